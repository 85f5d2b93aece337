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
