use std::cell::Cell;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;

use super::{GLOBAL, Unusable, Variables};
use crate::backend::{Refusal, RefusalCode};
use crate::ioctl;
use crate::system::System;

thread_local! {
    /// Bytes that the firmware's flash holds.
    static FLASH: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Runs `with` on a firmware whose variables take up no more than `bytes`.
pub(crate) fn with_flash<T>(bytes: usize, with: impl FnOnce() -> T) -> T {
    FLASH.set(Some(bytes));
    let outcome = with();
    FLASH.set(None);
    outcome
}

/// Bytes of all variables.
pub(crate) fn used(directory: &Path) -> usize {
    let files = fs::read_dir(directory).unwrap();
    let sizes = files.map(|file| file.unwrap().metadata().unwrap().len());
    usize::try_from(sizes.sum::<u64>()).unwrap()
}

/// Asked before every write of a variable.
pub(super) fn flash(path: &Path, size: usize) -> std::io::Result<()> {
    let old = fs::metadata(path).map_or(0, |old| usize::try_from(old.len()).unwrap());
    let then = used(path.parent().unwrap()) - old + size;
    match FLASH.get() {
        Some(flash) if then > flash => Err(std::io::ErrorKind::StorageFull.into()),
        _ => Ok(()),
    }
}

fn variables() -> (TempDir, Variables) {
    let dir = tempfile::tempdir().unwrap();
    let system = System::at(dir.path());
    fs::create_dir_all(system.efivars()).unwrap();
    fs::create_dir_all(dir.path().join("proc/self")).unwrap();
    let variables = Variables::at(&system);
    (dir, variables)
}

fn file(variables: &Variables, name: &str) -> PathBuf {
    variables.directory().join(format!("{name}-{GLOBAL}"))
}

#[test]
fn a_variable_is_four_attribute_bytes_and_its_data() {
    let (_dir, variables) = variables();
    assert_eq!(variables.read("BootNext").unwrap(), None);
    variables.write("BootNext", &[3, 0]).unwrap();
    let path = file(&variables, "BootNext");
    // Non-volatile 1, boot services 2, runtime 4.
    assert_eq!(fs::read(&path).unwrap(), [7, 0, 0, 0, 3, 0]);
    assert_eq!(variables.read("BootNext").unwrap(), Some(vec![3, 0]));
    assert_eq!(variables.names().unwrap(), ["BootNext"]);
    // A shorter value leaves nothing of the longer one.
    variables.write("BootNext", &[4]).unwrap();
    assert_eq!(fs::read(&path).unwrap(), [7, 0, 0, 0, 4]);
    for _ in 0..2 {
        variables.remove("BootNext").unwrap();
        assert!(!path.exists());
    }
}

#[test]
fn what_is_there_already_is_not_written_again() {
    let (_dir, variables) = variables();
    variables.write("BootOrder", &[1, 0, 2, 0]).unwrap();
    let path = file(&variables, "BootOrder");
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let file = File::options().write(true).open(&path).unwrap();
    file.set_modified(long_ago).unwrap();
    variables.write("BootOrder", &[1, 0, 2, 0]).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), long_ago);
    // Other attributes are another value.
    fs::write(&path, [6, 0, 0, 0, 1, 0, 2, 0]).unwrap();
    variables.write("BootOrder", &[1, 0, 2, 0]).unwrap();
    assert_eq!(fs::read(&path).unwrap(), [7, 0, 0, 0, 1, 0, 2, 0]);
}

fn immutable(path: &Path) -> bool {
    ioctl::immutable(&File::open(path).unwrap()).unwrap_or(false)
}

/// Where root can make a file immutable, which not every file system knows.
fn place_of_immutable_files() -> Option<(TempDir, Variables)> {
    let places = [
        std::env::temp_dir(),
        "/var/tmp".into(),
        env!("CARGO_MANIFEST_DIR").into(),
    ];
    places.into_iter().find_map(|place| {
        let dir = tempfile::tempdir_in(place).ok()?;
        let variables = Variables {
            directory: dir.path().to_owned(),
            plain: true,
        };
        let probe = File::create(dir.path().join("probe")).unwrap();
        ioctl::set_immutable(&probe, true).ok()?;
        ioctl::set_immutable(&probe, false).unwrap();
        fs::remove_file(dir.path().join("probe")).unwrap();
        Some((dir, variables))
    })
}

#[test]
fn the_immutable_flag_is_taken_off_and_put_back() {
    let Some((_dir, variables)) = place_of_immutable_files() else {
        // CAP_LINUX_IMMUTABLE is bit 9.
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let held = u64::from_str_radix(line.unwrap().trim(), 16).unwrap();
        assert_eq!(held & 1 << 9, 0, "no immutable files anywhere");
        println!("not tested here: this process may make no file immutable");
        return;
    };
    variables.write("BootOrder", &[1, 0]).unwrap();
    let path = file(&variables, "BootOrder");
    ioctl::set_immutable(&File::open(&path).unwrap(), true).unwrap();
    assert!(fs::write(&path, [0]).is_err());
    variables.write("BootOrder", &[2, 0]).unwrap();
    assert_eq!(fs::read(&path).unwrap(), [7, 0, 0, 0, 2, 0]);
    assert!(immutable(&path));
    // Also where storing fails.
    assert!(variables.store(&path, &vec![0; 70_000]).is_err());
    assert!(immutable(&path));
    variables.remove("BootOrder").unwrap();
    assert!(!path.exists());
    variables.write("BootOrder", &[2, 0]).unwrap();
    assert!(!immutable(&path));
}

#[test]
fn a_value_without_attributes_is_an_error_and_an_empty_one_is_none() {
    let (_dir, variables) = variables();
    fs::write(file(&variables, "BootNext"), [7, 0]).unwrap();
    let error = variables.read("BootNext").unwrap_err();
    assert!(error.to_string().contains("BootNext-8be4"), "{error}");
    fs::write(file(&variables, "BootNext"), []).unwrap();
    assert_eq!(variables.read("BootNext").unwrap(), None);
    fs::write(file(&variables, "Boot0001"), vec![7; 70_000]).unwrap();
    let error = variables.read("Boot0001").unwrap_err();
    assert!(error.to_string().contains("longer than"), "{error}");
}

#[test]
fn the_write_test_leaves_nothing() {
    let (_dir, variables) = variables();
    variables.write("BootOrder", &[1, 0]).unwrap();
    variables.test_write(&[1000, 1000]).unwrap();
    // Also where only the first one has room.
    assert!(with_flash(1500, || variables.test_write(&[1000, 1000])).is_err());
    let left: Vec<_> = fs::read_dir(variables.directory()).unwrap().collect();
    assert_eq!(left.len(), 1);
}

#[test]
fn full_flash_is_named_with_what_to_do() {
    let full = std::io::Error::from_raw_os_error(nix::libc::ENOSPC);
    let error = super::failed("store", Path::new("/x/BootNext"), full);
    assert!(
        error
            .to_string()
            .contains("flash is full or waits for a reboot")
    );
    let refusal = Refusal::not_writable("the variable store", &error);
    assert_eq!(refusal.code, RefusalCode::NoSpace);
}

#[test]
fn the_mount_table_says_whether_they_can_be_changed() {
    let (dir, _) = variables();
    let system = System::at(dir.path());
    let line = "40 22 0:30 / /sys/firmware/efi/efivars";
    let other = "22 1 254:2 / / rw - ext4 /dev/root rw\n";
    for (mounts, expected) in [
        (format!("{line} rw - efivarfs efivarfs rw\n"), None),
        (
            format!("{line} ro - efivarfs efivarfs rw\n"),
            Some(Unusable::ReadOnly),
        ),
        (
            format!("{line} rw - efivarfs efivarfs ro\n"),
            Some(Unusable::ReadOnly),
        ),
        (
            format!("{line} rw - tmpfs tmpfs rw\n"),
            Some(Unusable::NotMounted),
        ),
        (String::new(), Some(Unusable::NotMounted)),
    ] {
        fs::write(
            dir.path().join("proc/self/mountinfo"),
            format!("{other}{mounts}"),
        )
        .unwrap();
        assert_eq!(Variables::unusable(&system).unwrap(), expected, "{mounts}");
    }
    fs::remove_dir_all(system.sys("firmware/efi")).unwrap();
    assert_eq!(Variables::unusable(&system).unwrap(), Some(Unusable::NoEfi));
    assert!(Unusable::NotMounted.message().contains("mount -t efivarfs"));
}
