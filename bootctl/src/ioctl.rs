//! The few ioctls on block devices.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;

use nix::libc::c_int;

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
}

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
