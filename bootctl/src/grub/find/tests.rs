use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::find;
use crate::error::{ErrorKind, Result};
use crate::fixture::FixtureNode;
use crate::slot::SlotSettings;
use crate::table::SlotTable;

/// A node whose `/boot` is a partition of its own.
fn node() -> (TempDir, FixtureNode) {
    let dir = tempfile::tempdir().unwrap();
    let node = FixtureNode::create(dir.path()).unwrap();
    node.set_mounts(
        "22 1 254:2 / / ro - ext4 /dev/root ro\n\
         30 22 254:1 / /efi rw - vfat /dev/vda1 rw\n\
         31 22 254:4 / /boot rw - ext4 /dev/vda4 rw\n",
    )
    .unwrap();
    (dir, node)
}

fn put(node: &FixtureNode, path: &str) {
    let path = node.system().path(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, "x").unwrap();
}

fn found(node: &FixtureNode, setting: Option<&str>) -> Result<PathBuf> {
    let table = SlotTable::discover(&node.system(), &SlotSettings::Auto, None).unwrap();
    find(&node.system(), &table, setting.map(Path::new))?.resolved()
}

fn refused(node: &FixtureNode, setting: Option<&str>) -> String {
    let error = found(node, setting).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
    error.to_string()
}

#[test]
fn the_only_one_in_the_usual_places_is_meant() {
    for place in [
        "/boot/grub",
        "/boot/grub2",
        "/efi/grub",
        "/efi/EFI/debian",
        "/boot/EFI/BOOT",
    ] {
        let (_dir, node) = node();
        put(&node, &format!("{place}/grubenv"));
        // A stub that leads to the real configuration has no block beside it.
        put(&node, "/efi/EFI/fedora/grub.cfg");
        assert_eq!(
            found(&node, None).unwrap(),
            Path::new(place).join("grubenv")
        );
    }
}

#[test]
fn one_that_is_missing_is_to_be_made_beside_the_configuration() {
    let (_dir, node) = node();
    put(&node, "/boot/grub/grub.cfg");
    assert_eq!(found(&node, None).unwrap(), Path::new("/boot/grub/grubenv"));
    put(&node, "/efi/grub/grub.cfg");
    let error = refused(&node, None);
    assert!(
        error.contains("/boot/grub/grubenv, /efi/grub/grubenv"),
        "{error}"
    );
}

#[test]
fn a_link_and_what_it_leads_to_are_one() {
    for target in ["../../efi/EFI/fedora/grubenv", "/efi/EFI/fedora/grubenv"] {
        let (_dir, node) = node();
        put(&node, "/efi/EFI/fedora/grubenv");
        put(&node, "/boot/grub2/grub.cfg");
        symlink(target, node.system().path("/boot/grub2/grubenv")).unwrap();
        assert_eq!(
            found(&node, None).unwrap(),
            Path::new("/efi/EFI/fedora/grubenv")
        );
    }
}

#[test]
fn two_that_differ_are_refused_with_both_names() {
    let (_dir, node) = node();
    put(&node, "/boot/grub/grubenv");
    put(&node, "/efi/EFI/debian/grubenv");
    let error = refused(&node, None);
    for part in [
        "/boot/grub/grubenv",
        "/efi/EFI/debian/grubenv",
        "grub.environment",
    ] {
        assert!(error.contains(part), "{error}");
    }
    let one = found(&node, Some("/efi/EFI/debian/grubenv")).unwrap();
    assert_eq!(one, Path::new("/efi/EFI/debian/grubenv"));
}

#[test]
fn what_lies_in_a_slot_is_the_images() {
    let (_dir, node) = node();
    // Without a partition of its own, /boot is a folder of the running slot.
    node.set_mounts(
        "22 1 254:2 / / ro - ext4 /dev/root ro\n30 22 254:1 / /efi rw - vfat /dev/vda1 rw\n",
    )
    .unwrap();
    put(&node, "/boot/grub/grubenv");
    let error = refused(&node, None);
    assert!(
        error.contains("/boot/grub/grubenv lies in slot A"),
        "{error}"
    );
    let error = refused(&node, Some("/boot/grub/grubenv"));
    assert!(error.contains("lies in slot A"), "{error}");
    put(&node, "/efi/grub/grubenv");
    assert_eq!(found(&node, None).unwrap(), Path::new("/efi/grub/grubenv"));
}

#[test]
fn nothing_found_says_where_it_was_looked_for() {
    let (_dir, node) = node();
    let error = refused(&node, None);
    assert!(
        error.contains("/boot/grub2") && error.contains("EFI/*"),
        "{error}"
    );
}
