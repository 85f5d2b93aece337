use std::sync::Arc;

use super::flash::tests::FixtureFlash;
use super::*;

fn file_place(file: &Path, offset: u64, size: usize, fat: bool) -> Place {
    Place {
        shown: PathBuf::from("/boot/uboot.env"),
        node: file.to_owned(),
        offset,
        size,
        device_size: fs::metadata(file).unwrap().len(),
        kind: Kind::File { fat },
    }
}

/// A place on flash, for tests of what is built on places.
pub(in crate::uboot) fn flash_place(flash: &Arc<FixtureFlash>, offset: u64, size: usize) -> Place {
    Place {
        shown: PathBuf::from("/dev/mtd0"),
        node: PathBuf::from("/dev/mtd0"),
        offset,
        size,
        device_size: flash.info().size,
        kind: Kind::Flash {
            flash: Box::new(Arc::clone(flash)),
            no_lock: false,
        },
    }
}

#[test]
fn only_sectors_that_differ_are_written_and_they_are_the_devices() {
    let old = vec![1; 2048];
    let mut new = old.clone();
    assert_eq!(differing_runs(0, &old, &new), []);
    new[0] = 2;
    new[600] = 2;
    new[2047] = 2;
    let runs: Vec<(usize, usize)> = differing_runs(0, &old, &new)
        .into_iter()
        .map(|(at, bytes)| (at, bytes.len()))
        .collect();
    assert_eq!(runs, [(0, 1024), (1536, 512)]);
    // A copy that begins 0x10 bytes before the end of a sector.
    let runs: Vec<(usize, usize)> = differing_runs(0x3f0, &old, &new)
        .into_iter()
        .map(|(at, bytes)| (at, bytes.len()))
        .collect();
    assert_eq!(runs, [(0, 16), (528, 512), (1552, 496)]);
}

#[test]
fn the_only_copy_in_a_file_on_fat_is_replaced_and_what_is_around_it_kept() {
    use std::os::unix::fs::MetadataExt;

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("uboot.env");
    fs::write(&file, [7; 3000]).unwrap();
    let inode = || fs::metadata(&file).unwrap().ino();
    let place = file_place(&file, 100, 2000, true);
    assert!(!place.can_tear());
    let (before, old) = (inode(), place.read().unwrap());
    place.write(&old, &[9; 2000], true).unwrap();
    assert_ne!(inode(), before, "it was written in place");
    let content = fs::read(&file).unwrap();
    assert_eq!(
        content,
        [vec![7; 100], vec![9; 2000], vec![7; 900]].concat()
    );
    // One of two is written where it is.
    let before = inode();
    place.write(&[9; 2000], &[8; 2000], false).unwrap();
    assert_eq!(inode(), before);
    place.test_write(true).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn elsewhere_a_file_is_written_in_place_and_that_can_tear() {
    use std::os::unix::fs::MetadataExt;

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("uboot.env");
    fs::write(&file, [7; 3000]).unwrap();
    let place = file_place(&file, 0, 3000, false);
    assert!(place.can_tear() && !file_place(&file, 0, 512, false).can_tear());
    let before = fs::metadata(&file).unwrap().ino();
    place.write(&[7; 3000], &[9; 3000], true).unwrap();
    assert_eq!(fs::metadata(&file).unwrap().ino(), before);
    assert_eq!(fs::read(&file).unwrap(), [9; 3000]);
}

#[test]
fn what_does_not_arrive_on_the_medium_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("uboot.env");
    fs::write(&file, [7; 2048]).unwrap();
    let place = file_place(&file, 0, 2048, false);
    // Said to be there already, so that it is not written.
    let mut new = vec![7; 2048];
    new[5] = 9;
    let error = place.write(&new, &new, false).unwrap_err();
    assert!(matches!(error, Error::ReadBack { .. }), "{error}");
    assert!(error.to_string().contains("byte 0x5"), "{error}");
}
