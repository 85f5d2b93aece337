//! The slot's device, before anything is changed for it.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;

use nix::libc;
use slotd_bootctl::{Partition, System};
use slotd_engine::{ErrorKind, Failure};

/// What is known of the device before anything is changed for it.
pub(super) fn device_trouble(system: &System, partition: &Partition) -> Option<Failure> {
    let node = &partition.node;
    // A partition of its own may have been left read-only by a look into it; a whole disk is so because
    // somebody or its hardware wants it.
    let disk = system.sys(format!("class/block/{}/ro", partition.disk));
    if std::fs::read_to_string(disk).is_ok_and(|text| text.trim() == "1") {
        let reason = format!("disk {} of {} is read-only", partition.disk, node.display());
        return Some(Failure::new(ErrorKind::Unsafe, reason));
    }
    // O_EXCL without O_CREAT: busy while the device is mounted or held, now rather than once the loader
    // has forgotten the slot.
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_EXCL | libc::O_CLOEXEC)
        .open(node);
    let error = opened.err()?;
    let (kind, what) = match error.raw_os_error() {
        Some(libc::EBUSY) => (
            ErrorKind::Unsafe,
            String::from("mounted or held by another program"),
        ),
        _ => (ErrorKind::Retry, error.to_string()),
    };
    Some(Failure::new(
        kind,
        format!("{} cannot be written: {what}", node.display()),
    ))
}
