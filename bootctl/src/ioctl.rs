//! The few ioctls: on block devices, and on the flags of files.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;

use nix::libc::{c_int, c_long};

mod raw {
    // BLKROSET and BLKROGET of <linux/fs.h>: `_IO` numbers that take a pointer to int.
    nix::ioctl_write_ptr_bad!(
        blkroset,
        nix::request_code_none!(0x12, 93),
        nix::libc::c_int
    );
    nix::ioctl_read_bad!(
        blkroget,
        nix::request_code_none!(0x12, 94),
        nix::libc::c_int
    );
    // FS_IOC_GETFLAGS and FS_IOC_SETFLAGS of <linux/fs.h>: numbers made for a long, which take a pointer to int.
    nix::ioctl_read_bad!(
        getflags,
        nix::request_code_read!(b'f', 1, std::mem::size_of::<super::c_long>()),
        nix::libc::c_int
    );
    nix::ioctl_write_ptr_bad!(
        setflags,
        nix::request_code_write!(b'f', 2, std::mem::size_of::<super::c_long>()),
        nix::libc::c_int
    );
}

/// `FS_IMMUTABLE_FL`: not even root may change or remove the file.
const IMMUTABLE: c_int = 0x10;

/// Whether the block device is set read-only.
pub(crate) fn read_only(device: &File) -> nix::Result<bool> {
    let mut flag: c_int = 0;
    // SAFETY: the descriptor is open for as long as `device` is borrowed, and the kernel writes one
    // int to a live local.
    unsafe { raw::blkroget(device.as_raw_fd(), &mut flag) }?;
    Ok(flag != 0)
}

/// Sets or clears the block device's read-only flag. Not durable: it ends with the boot.
pub(crate) fn set_read_only(device: &File, on: bool) -> nix::Result<()> {
    let flag = c_int::from(on);
    // SAFETY: the descriptor is open for as long as `device` is borrowed, and the kernel reads one
    // int from a live local.
    unsafe { raw::blkroset(device.as_raw_fd(), &flag) }?;
    Ok(())
}

/// Whether the file is immutable. `ENOTTY` and the like on a file system that has no such flags.
pub(crate) fn immutable(file: &File) -> nix::Result<bool> {
    Ok(flags(file)? & IMMUTABLE != 0)
}

/// Makes the file immutable, or takes that off; its other flags stay.
pub(crate) fn set_immutable(file: &File, on: bool) -> nix::Result<()> {
    let now = flags(file)?;
    let wanted = if on {
        now | IMMUTABLE
    } else {
        now & !IMMUTABLE
    };
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and the kernel reads one int from a live local.
    unsafe { raw::setflags(file.as_raw_fd(), &wanted) }?;
    Ok(())
}

fn flags(file: &File) -> nix::Result<c_int> {
    let mut flags: c_int = 0;
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and the kernel writes one int to a live local,
    // whatever size the number of the request says.
    unsafe { raw::getflags(file.as_raw_fd(), &mut flags) }?;
    Ok(flags)
}

/// `MTD_NORFLASH` of <mtd/mtd-abi.h>.
pub(crate) const MTD_NORFLASH: u8 = 3;

/// `struct mtd_info_user` of <mtd/mtd-abi.h>.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct MtdInfoUser {
    kind: u8,
    flags: u32,
    size: u32,
    erase_block: u32,
    write_size: u32,
    oob_size: u32,
    padding: u64,
}

/// `struct erase_info_user` of <mtd/mtd-abi.h>.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct EraseInfoUser {
    start: u32,
    length: u32,
}

mod mtd {
    use super::{EraseInfoUser, MtdInfoUser};

    nix::ioctl_read!(memgetinfo, b'M', 1, MtdInfoUser);
    nix::ioctl_write_ptr!(memerase, b'M', 2, EraseInfoUser);
    nix::ioctl_write_ptr!(memlock, b'M', 5, EraseInfoUser);
    nix::ioctl_write_ptr!(memunlock, b'M', 6, EraseInfoUser);
    // `_IOR` in the header, although the kernel reads the structure and answers by its result.
    nix::ioctl_read!(memislocked, b'M', 23, EraseInfoUser);
}

/// What a flash is; sizes in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MtdInfo {
    pub(crate) kind: u8,
    pub(crate) size: u32,
    pub(crate) erase_block: u32,
}

/// Asks an MTD character device what it is.
pub(crate) fn mtd_info(device: &File) -> nix::Result<MtdInfo> {
    let mut info = MtdInfoUser::default();
    // SAFETY: the descriptor is open for as long as `device` is borrowed, and the kernel fills a live local of its
    // own layout.
    unsafe { mtd::memgetinfo(device.as_raw_fd(), &mut info) }?;
    Ok(MtdInfo {
        kind: info.kind,
        size: info.size,
        erase_block: info.erase_block,
    })
}

/// Sets all bits of whole erase blocks. Durable when it returns.
pub(crate) fn mtd_erase(device: &File, start: u32, length: u32) -> nix::Result<()> {
    let blocks = EraseInfoUser { start, length };
    // SAFETY: the descriptor is open for as long as `device` is borrowed, and the kernel reads a live local.
    unsafe { mtd::memerase(device.as_raw_fd(), &blocks) }?;
    Ok(())
}

/// Allows writes to erase blocks.
pub(crate) fn mtd_unlock(device: &File, start: u32, length: u32) -> nix::Result<()> {
    let blocks = EraseInfoUser { start, length };
    // SAFETY: as in `mtd_erase`.
    unsafe { mtd::memunlock(device.as_raw_fd(), &blocks) }?;
    Ok(())
}

/// Forbids them.
pub(crate) fn mtd_lock(device: &File, start: u32, length: u32) -> nix::Result<()> {
    let blocks = EraseInfoUser { start, length };
    // SAFETY: as in `mtd_erase`.
    unsafe { mtd::memlock(device.as_raw_fd(), &blocks) }?;
    Ok(())
}

/// Whether they are forbidden.
pub(crate) fn mtd_is_locked(device: &File, start: u32, length: u32) -> nix::Result<bool> {
    let mut blocks = EraseInfoUser { start, length };
    // SAFETY: as in `mtd_erase`; nothing is written to the local, which is mutable for the macro's sake.
    let locked = unsafe { mtd::memislocked(device.as_raw_fd(), &mut blocks) }?;
    Ok(locked != 0)
}
