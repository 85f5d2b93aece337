//! Whether the state directory outlives a slot: what is kept there has to be found again by the other
//! slot's agent.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::sys::statfs::{FsType, TMPFS_MAGIC, statfs};
use slotd_bootctl::{DeviceNumber, SlotName, System};
use thiserror::Error;

/// Why a directory cannot hold the state.
#[derive(Debug, Error)]
pub enum StateDirectoryError {
    /// It cannot be made, looked at or written.
    #[error("state directory {}: cannot {action}: {source}", path.display())]
    Unusable {
        /// The directory.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// It is not on a disk.
    #[error(
        "state directory {} is in memory ({what}): nothing there outlives a reboot; put it on a \
         data partition (stateDirectory)", path.display()
    )]
    InMemory {
        /// The directory.
        path: PathBuf,
        /// The kind of file system.
        what: String,
    },
    /// It is on a slot.
    #[error(
        "state directory {} is on slot {slot} ({device}): it does not outlive a change of slot; put it \
         on a data partition (stateDirectory)", path.display()
    )]
    OnSlot {
        /// The directory.
        path: PathBuf,
        /// The slot.
        slot: SlotName,
        /// The device.
        device: DeviceNumber,
    },
}

/// Makes the directory (mode 0700) where it is missing, and checks that it can be written, is on a
/// disk, and is on neither of the slots. `slots` are the slots' devices, as far as they are known.
///
/// # Errors
/// The first reason that was found.
pub(super) fn examine(
    system: &System,
    path: &Path,
    slots: &[(SlotName, DeviceNumber)],
) -> Result<(), StateDirectoryError> {
    let unusable = |action: &'static str| {
        let path = path.to_owned();
        move |source| StateDirectoryError::Unusable {
            path,
            action,
            source,
        }
    };
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    if let Err(source) = made {
        // A slot's root is mounted read-only, so there it is not made; where it would be says more than that.
        let above = path.ancestors().find(|ancestor| ancestor.exists());
        if let Some(above) = above.filter(|_| !system.is_fixture()) {
            stands(system, path, above, slots, 0)?;
        }
        return Err(unusable("make it")(source));
    }
    // What it stands on first: a slot's root is mounted read-only, and "read-only" would hide why.
    // The directories of a fixture are wherever the test's are.
    if !system.is_fixture() {
        stands(system, path, path, slots, 0)?;
    }
    try_writing(path).map_err(unusable("write a file in it"))
}

fn try_writing(path: &Path) -> io::Result<()> {
    let probe = path.join(".write-test");
    let written = File::create(&probe).and_then(|mut file| {
        file.write_all(b"slotd")?;
        file.sync_all()
    });
    match fs::remove_file(&probe) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => written.and(Err(error)),
        _ => written,
    }
}

/// Overlays on overlays are followed so deep.
const DEPTH: u32 = 4;

fn stands(
    system: &System,
    directory: &Path,
    on: &Path,
    slots: &[(SlotName, DeviceNumber)],
    depth: u32,
) -> Result<(), StateDirectoryError> {
    let unusable = |action: &'static str| {
        let path = directory.to_owned();
        move |source| StateDirectoryError::Unusable {
            path,
            action,
            source,
        }
    };
    let kind = statfs(on)
        .map_err(|errno| unusable("ask for its file system")(errno.into()))?
        .filesystem_type();
    if kind == TMPFS_MAGIC || kind == RAMFS {
        let what = if kind == TMPFS_MAGIC {
            "tmpfs"
        } else {
            "ramfs"
        };
        let what = if depth == 0 {
            what.to_owned()
        } else {
            format!("an overlay on {what}")
        };
        return Err(StateDirectoryError::InMemory {
            path: directory.to_owned(),
            what,
        });
    }
    let number = DeviceNumber::from_rdev(fs::metadata(on).map_err(unusable("stat it"))?.dev());
    let mount = mount_of(system, number);
    if kind == OVERLAY && depth < DEPTH {
        // Writes go to the upper directory; where it cannot be seen from here, its device is unknown,
        // and what is unknown is refused.
        let upper = mount
            .and_then(|mount| mount.upper)
            .filter(|upper| upper.is_dir());
        return match upper {
            Some(upper) => stands(system, directory, &upper, slots, depth.saturating_add(1)),
            None => Err(StateDirectoryError::InMemory {
                path: directory.to_owned(),
                what: String::from("an overlay whose upper directory cannot be seen"),
            }),
        };
    }
    let mut devices = vec![number];
    // btrfs and the like have numbers of their own; their mounts name the device.
    let source = mount.and_then(|mount| fs::metadata(mount.source).ok());
    devices.extend(source.map(|meta| DeviceNumber::from_rdev(meta.rdev())));
    for device in devices.clone() {
        below(system, device, &mut devices, 0);
    }
    match slots.iter().find(|(_, slot)| devices.contains(slot)) {
        Some((slot, device)) => Err(StateDirectoryError::OnSlot {
            path: directory.to_owned(),
            slot: *slot,
            device: *device,
        }),
        None => Ok(()),
    }
}

/// `RAMFS_MAGIC` of linux/magic.h.
const RAMFS: FsType = FsType(0x8584_58f6);

/// `OVERLAYFS_SUPER_MAGIC` of linux/magic.h.
const OVERLAY: FsType = FsType(0x794c_7630);

struct Mount {
    source: PathBuf,
    upper: Option<PathBuf>,
}

/// The mount with this device number, by `/proc/self/mountinfo`
/// (`id parent major:minor root point options… - type source super-options`).
fn mount_of(system: &System, number: DeviceNumber) -> Option<Mount> {
    let table = fs::read_to_string(system.proc("self/mountinfo")).ok()?;
    mount_in(&table, number)
}

fn mount_in(table: &str, number: DeviceNumber) -> Option<Mount> {
    let wanted = number.to_string();
    // The last one wins: it covers those before it.
    let line = table
        .lines()
        .rev()
        .find(|line| line.split(' ').nth(2) == Some(wanted.as_str()))?;
    let (_, tail) = line.split_once(" - ")?;
    let mut fields = tail.split(' ').skip(1);
    let source = PathBuf::from(unescape(fields.next()?));
    let options = fields.next().unwrap_or_default();
    let upper = options
        .split(',')
        .find_map(|option| option.strip_prefix("upperdir="));
    Some(Mount {
        source,
        upper: upper.map(|path| PathBuf::from(unescape(path))),
    })
}

/// The kernel writes blanks in these paths as octal escapes.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\012", "\n")
        .replace("\\134", "\\")
}

/// The devices that a stacked one (dm-crypt, dm-verity, md) stands on.
fn below(system: &System, device: DeviceNumber, found: &mut Vec<DeviceNumber>, depth: u32) {
    if depth > 8 {
        return;
    }
    let slaves = system.sys(format!("dev/block/{device}/slaves"));
    let Ok(entries) = fs::read_dir(slaves) else {
        return;
    };
    for entry in entries.flatten() {
        let number = fs::read_to_string(entry.path().join("dev"))
            .ok()
            .and_then(|text| text.trim().parse::<DeviceNumber>().ok());
        if let Some(number) = number
            && !found.contains(&number)
        {
            found.push(number);
            below(system, number, found, depth.saturating_add(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use slotd_bootctl::{DeviceNumber, SlotName, System};

    use super::{StateDirectoryError, examine, mount_in};

    /// A directory on the file system of the build tree, which is a disk.
    fn on_disk() -> tempfile::TempDir {
        tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap()
    }

    #[test]
    fn a_directory_on_a_slot_is_refused_with_the_slot_named() {
        let directory = on_disk();
        let number = DeviceNumber::from_rdev(directory.path().metadata().unwrap().dev());
        let path = directory.path().join("state");
        let error = examine(&System::host(), &path, &[(SlotName::B, number)]).unwrap_err();
        // Build trees on an overlay cannot show their device; either way it is refused.
        let refused = matches!(
            error,
            StateDirectoryError::OnSlot {
                slot: SlotName::B,
                ..
            } | StateDirectoryError::InMemory { .. }
        );
        assert!(refused, "{error}");
        assert!(error.to_string().contains("stateDirectory"), "{error}");
    }

    #[test]
    fn a_directory_that_cannot_be_made_on_a_slot_is_refused_for_the_slot() {
        let directory = on_disk();
        let number = DeviceNumber::from_rdev(directory.path().metadata().unwrap().dev());
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        let path = file.join("slotd/state");
        let error = examine(&System::host(), &path, &[(SlotName::A, number)]).unwrap_err();
        let refused = matches!(
            error,
            StateDirectoryError::OnSlot {
                slot: SlotName::A,
                ..
            } | StateDirectoryError::InMemory { .. }
        );
        assert!(refused, "{error}");
        assert!(error.to_string().contains("slotd/state"), "{error}");
    }

    #[test]
    fn memory_is_refused() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        let error = examine(&System::host(), directory.path(), &[]).unwrap_err();
        assert!(
            matches!(error, StateDirectoryError::InMemory { .. }),
            "{error}"
        );
    }

    #[test]
    fn the_directory_is_made_for_its_owner_alone() {
        let directory = on_disk();
        let path = directory.path().join("lib/slotd");
        // On an overlay whose upper directory is hidden it is refused, but made all the same.
        let _ = examine(&System::host(), &path, &[]);
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn a_file_in_its_place_is_an_error_that_names_it() {
        let directory = on_disk();
        let path = directory.path().join("file");
        std::fs::write(&path, "").unwrap();
        let error = examine(&System::host(), &path, &[]).unwrap_err();
        assert!(error.to_string().contains("file"), "{error}");
        assert!(matches!(error, StateDirectoryError::Unusable { .. }));
    }

    #[test]
    fn a_mount_line_tells_source_and_upper_directory() {
        let table = "22 1 0:20 / / rw - overlay overlay rw,lowerdir=/a,upperdir=/data/my\\040up,workdir=/w\n\
                     23 22 259:4 / /data rw,relatime shared:1 - ext4 /dev/nvme0n1p4 rw\n";
        let overlay = mount_in(
            table,
            DeviceNumber {
                major: 0,
                minor: 20,
            },
        )
        .unwrap();
        assert_eq!(overlay.upper.unwrap(), std::path::Path::new("/data/my up"));
        let data = mount_in(
            table,
            DeviceNumber {
                major: 259,
                minor: 4,
            },
        )
        .unwrap();
        assert_eq!(data.source, std::path::Path::new("/dev/nvme0n1p4"));
        assert!(data.upper.is_none());
    }
}
