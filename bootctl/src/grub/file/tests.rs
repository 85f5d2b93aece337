use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::BlockFile;
use crate::error::{ErrorKind, Result};
use crate::grub::environment::Environment;
use crate::system::System;

fn place() -> (TempDir, BlockFile, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("boot/grub")).unwrap();
    fs::create_dir_all(dir.path().join("efi")).unwrap();
    let file = BlockFile::new(&System::at(dir.path()), Path::new("/boot/grub/grubenv"));
    let path = dir.path().join("boot/grub/grubenv");
    (dir, file, path)
}

fn with(at: usize, byte: u8) -> Vec<u8> {
    let mut block = Environment::fresh().bytes().to_vec();
    block[at] = byte;
    block
}

#[test]
fn a_block_is_changed_in_place() {
    let (_dir, file, path) = place();
    let before = Environment::fresh().bytes().to_vec();
    fs::write(&path, &before).unwrap();
    let inode = fs::metadata(&path).unwrap().ino();
    file.write(&before, &[with(100, b'x'), with(700, b'y')])
        .unwrap();
    let meta = fs::metadata(&path).unwrap();
    assert_eq!((meta.ino(), meta.len()), (inode, 1024));
    assert_eq!(fs::read(&path).unwrap(), with(700, b'y'));
}

#[test]
fn only_sectors_that_differ_are_written() {
    let (_dir, file, path) = place();
    let before = Environment::fresh().bytes().to_vec();
    // What stands on the medium in the second sector is not what was read: it must not be touched, and is noticed.
    fs::write(&path, with(700, b'z')).unwrap();
    let error = file.write(&before, &[with(100, b'x')]).unwrap_err();
    assert!(error.to_string().contains("byte 700 differs"), "{error}");
    let found = fs::read(&path).unwrap();
    assert_eq!((found[100], found[700]), (b'x', b'z'));
}

#[test]
fn links_are_followed_below_the_nodes_root() {
    for target in ["../../efi/grubenv", "/efi/grubenv"] {
        let (dir, file, path) = place();
        let real = dir.path().join("efi/grubenv");
        let before = Environment::fresh().bytes().to_vec();
        fs::write(&real, &before).unwrap();
        symlink(target, &path).unwrap();
        file.write(&before, &[with(100, b'x')]).unwrap();
        assert!(fs::symlink_metadata(&path).unwrap().is_symlink());
        assert_eq!(fs::read(&real).unwrap(), with(100, b'x'));
    }
    // A folder that is a link, and a file in it that is missing.
    let (dir, _, _) = place();
    fs::create_dir_all(dir.path().join("efi/grub")).unwrap();
    symlink("/efi/grub", dir.path().join("boot/grub2")).unwrap();
    let file = BlockFile::new(&System::at(dir.path()), Path::new("/boot/grub2/grubenv"));
    assert_eq!(file.resolved().unwrap(), Path::new("/efi/grub/grubenv"));
}

#[test]
fn a_missing_or_an_empty_file_is_made_whole() {
    let (dir, file, path) = place();
    for empty in [false, true] {
        if empty {
            fs::write(&path, "").unwrap();
        }
        let content = file.read().unwrap();
        assert!(content.raw.is_none());
        file.test_write().unwrap();
        file.create(content.environment.bytes()).unwrap();
        let meta = fs::metadata(&path).unwrap();
        assert_eq!(meta.len(), 1024);
        assert!(meta.blocks() * 512 >= 1024);
        assert_eq!(
            file.read().unwrap().raw.unwrap(),
            content.environment.bytes()
        );
        let names = fs::read_dir(dir.path().join("boot/grub")).unwrap().count();
        assert_eq!(names, 1);
        fs::remove_file(&path).unwrap();
    }
}

fn refused(result: Result<()>, parts: &[&str]) {
    let error = result.unwrap_err();
    let text = error.chain();
    for part in parts {
        assert!(text.contains(part), "{text}");
    }
    assert!(
        matches!(error.kind(), ErrorKind::Unsafe | ErrorKind::Configuration),
        "{error}"
    );
}

#[test]
fn what_cannot_be_a_block_is_refused_by_name_and_stays_as_it_is() {
    let (_dir, file, path) = place();
    let zeros = [&b"# GRUB Environment Block\n"[..], &[0; 999]].concat();
    for (content, part) in [
        (b"menuentry x {}\n".to_vec(), "no GRUB environment block"),
        (zeros, "byte 25"),
        (vec![b'#'; 70_000], "too many"),
    ] {
        fs::write(&path, &content).unwrap();
        refused(file.test_write(), &["boot/grub/grubenv", part]);
        assert_eq!(fs::read(&path).unwrap(), content);
    }
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    refused(
        file.test_write(),
        &["boot/grub/grubenv", "not a regular file"],
    );
}

#[test]
fn links_that_lead_nowhere_are_refused() {
    let (_dir, file, path) = place();
    symlink("../../efi/EFI/fedora/grubenv", &path).unwrap();
    refused(file.test_write(), &["efi/EFI"]);
    fs::remove_file(&path).unwrap();
    // The folder is there, as an empty mount point is.
    symlink("/efi/grubenv", &path).unwrap();
    refused(
        file.test_write(),
        &["boot/grub/grubenv", "link to /efi/grubenv", "mounted"],
    );
    fs::remove_file(&path).unwrap();
    symlink("grubenv", &path).unwrap();
    refused(file.test_write(), &["boot/grub/grubenv", "circle"]);
}

#[test]
fn a_sparse_file_is_refused_since_the_loader_cannot_write_it() {
    let (_dir, file, path) = place();
    // Only the first page has blocks.
    let sparse = fs::File::create(&path).unwrap();
    let mut block = Environment::fresh().bytes().to_vec();
    block.resize(4096, b'#');
    block.extend(b"a=");
    std::os::unix::fs::FileExt::write_all_at(&sparse, &block, 0).unwrap();
    sparse.set_len(16384).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"\n", 16383).unwrap();
    sparse.sync_all().unwrap();
    refused(
        file.test_write(),
        &["boot/grub/grubenv", "sparse", "cp --sparse=never"],
    );
    let before = fs::read(&path).unwrap();
    let mut after = before.clone();
    after[100] = b'x';
    refused(file.write(&before, &[after]), &["sparse"]);
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn a_place_that_takes_no_file_is_found_before_anything_is_changed() {
    // sysfs lets nobody make files.
    let file = BlockFile::new(&System::at("/"), Path::new("/sys/kernel/grubenv"));
    let error = file.test_write().unwrap_err();
    assert!(error.to_string().contains("/sys/kernel"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
}
