//! The two requests to a block device that no safe library offers.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

nix::ioctl_write_ptr_bad!(
    /// `BLKZEROOUT` of `linux/fs.h`: `_IO(0x12, 127)` with a pointer to start and length.
    blkzeroout,
    nix::request_code_none!(0x12, 127),
    [u64; 2]
);

nix::ioctl_read_bad!(
    /// `BLKROGET` of `linux/fs.h`: `_IO(0x12, 94)` with a pointer to where the answer goes.
    blkroget,
    nix::request_code_none!(0x12, 94),
    i32
);

/// Whether the kernel lets nobody write to this block device, whatever it was opened for.
///
/// # Errors
///
/// What the system says.
pub(crate) fn is_read_only(device: impl AsFd) -> io::Result<bool> {
    let mut answer = 0i32;
    // SAFETY: the request writes one int behind the pointer, which `answer` holds during the call.
    // The descriptor is open while it is borrowed.
    unsafe { blkroget(device.as_fd().as_raw_fd(), &raw mut answer) }.map_err(io::Error::from)?;
    Ok(answer != 0)
}

/// Makes `length` bytes at `offset` read as zero. Both are multiples of the logical block.
///
/// Not durable before a flush. The kernel drops cached pages of the range, and writes zeros itself
/// where the device cannot; unlike with a discard, what is read afterwards is defined. A crash in
/// the middle leaves any part of the range as it was.
///
/// # Errors
///
/// What the system says, such as a device error.
pub(crate) fn zero_out(device: impl AsFd, offset: u64, length: u64) -> io::Result<()> {
    let range = [offset, length];
    // SAFETY: the request reads two u64 behind the pointer, which `range` holds during the call,
    // and touches no other memory of this process. The descriptor is open while it is borrowed.
    unsafe { blkzeroout(device.as_fd().as_raw_fd(), &raw const range) }
        .map(|_| ())
        .map_err(io::Error::from)
}
