use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::find;
use crate::error::{Error, ErrorKind, Result};
use crate::fixture::FixtureNode;
use crate::grub::convention::Convention;
use crate::grub::{GrubConvention, GrubSetting};
use crate::scenarios::machines::grub::block;
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

fn own() -> Convention {
    Convention::of(&GrubSetting::default())
}

/// A block that says something of slots, as slotd's script has it.
fn put_knowing(node: &FixtureNode, path: &str) {
    put(node, path);
    fs::write(node.system().path(path), block("slotd_order=a b\n")).unwrap();
}

fn put(node: &FixtureNode, path: &str) {
    let path = node.system().path(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, "x").unwrap();
}

fn found(node: &FixtureNode, setting: Option<&str>) -> Result<PathBuf> {
    let table = SlotTable::discover(&node.system(), &SlotSettings::Auto, None).unwrap();
    find(&node.system(), &table, setting.map(Path::new), &own())?.resolved()
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
        assert_eq!(
            found(&node, None).unwrap(),
            Path::new(place).join("grubenv")
        );
        // A stub that leads to the real configuration has no block beside it.
        put_knowing(&node, &format!("{place}/grubenv"));
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
fn an_old_block_does_not_beat_the_missing_one_of_the_real_configuration() {
    let (_dir, node) = node();
    put(&node, "/boot/grub/grub.cfg");
    put(&node, "/efi/EFI/debian/grubenv");
    fs::write(
        node.system().path("/efi/EFI/debian/grubenv"),
        block("saved_entry=0\nslotd_order=\nA_OK=1\n"),
    )
    .unwrap();
    let error = refused(&node, None);
    assert!(
        error.contains("/boot/grub/grubenv, /efi/EFI/debian/grubenv"),
        "{error}"
    );
    // Another convention's variables do not count for this one.
    let rauc = Convention::of(&GrubSetting {
        convention: GrubConvention::Rauc,
        ..GrubSetting::default()
    });
    let table = SlotTable::discover(&node.system(), &SlotSettings::Auto, None).unwrap();
    let chosen = find(&node.system(), &table, None, &rauc).unwrap();
    assert_eq!(chosen.shown(), Path::new("/efi/EFI/debian/grubenv"));
}

#[test]
fn of_several_the_only_one_that_knows_slots_is_meant() {
    let (_dir, node) = node();
    put(&node, "/boot/grub/grubenv");
    put(&node, "/boot/grub2/grub.cfg");
    put_knowing(&node, "/efi/EFI/debian/grubenv");
    let place = Path::new("/efi/EFI/debian/grubenv");
    assert_eq!(found(&node, None).unwrap(), place);
    put_knowing(&node, "/efi/grub/grubenv");
    let error = refused(&node, None);
    for part in [
        "/boot/grub/grubenv",
        "/boot/grub2/grubenv",
        "/efi/grub/grubenv",
    ] {
        assert!(error.contains(part), "{error}");
    }
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

/// Roots whose device number is none of the slots', and what is said of a block in them.
const STACKED: [(&str, &str); 4] = [
    (
        "22 1 0:25 / / rw - overlay overlay rw,lowerdir=/ro,upperdir=/rw/u,workdir=/rw/w",
        "lies in the running root (overlay), which is slot A's",
    ),
    (
        "22 1 0:25 / / rw - btrfs /dev/vda2 rw",
        "lies in the running root (btrfs), which is slot A's",
    ),
    (
        "22 1 0:25 / / rw - tmpfs tmpfs rw",
        "lies in the running root (tmpfs), which is slot A's",
    ),
    (
        "22 1 253:0 / / ro - ext4 /dev/mapper/root ro",
        "lies in the running root (ext4), which is slot A's",
    ),
];

/// A node whose root is stacked on slot A, which is booted as the kernel's command line says.
fn stacked(root: &str) -> (TempDir, FixtureNode, SlotTable) {
    let (dir, node) = node();
    let table = SlotTable::discover(&node.system(), &SlotSettings::Auto, None).unwrap();
    node.add_mapped("dm-0", 0, &["vda2"]).unwrap();
    node.set_mounts(&format!(
        "{root}\n30 22 254:1 / /efi rw - vfat /dev/vda1 rw\n"
    ))
    .unwrap();
    (dir, node, table)
}

#[test]
fn a_root_that_is_stacked_on_a_slot_is_the_slots() {
    for (root, said) in STACKED {
        let (_dir, node, table) = stacked(root);
        put(&node, "/boot/grub/grubenv");
        let find = |setting: Option<&str>| {
            find(&node.system(), &table, setting.map(Path::new), &own())
                .map(|file| file.resolved().unwrap())
        };
        for setting in [None, Some("/boot/grub/grubenv")] {
            let error = find(setting).unwrap_err();
            assert!(matches!(error, Error::NoLoader { .. }), "{error}");
            let said = format!("/boot/grub/grubenv {said}");
            assert!(error.to_string().contains(&said), "{error}");
        }
        put(&node, "/efi/grub/grubenv");
        assert_eq!(find(None).unwrap(), Path::new("/efi/grub/grubenv"));
    }
}

#[test]
fn a_folder_of_the_running_root_that_is_mounted_elsewhere_is_the_slots() {
    let (_dir, node, table) = stacked("22 1 253:0 / / ro - ext4 /dev/mapper/root ro");
    node.set_mounts(
        "22 1 253:0 / / ro - ext4 /dev/mapper/root ro\n31 22 253:0 /boot /boot rw - ext4 /dev/mapper/root rw\n",
    )
    .unwrap();
    put(&node, "/boot/grub/grubenv");
    let error = find(&node.system(), &table, None, &own())
        .unwrap_err()
        .to_string();
    assert!(error.contains("lies in the running root"), "{error}");
}

#[test]
fn what_the_loader_cannot_write_is_not_taken() {
    for (mount, said) in [
        ("0:31 / /boot rw - btrfs /dev/vda4 rw", "lies on btrfs"),
        (
            "254:4 / /boot rw - squashfs /dev/vda4 ro",
            "lies on squashfs",
        ),
        ("0:31 / /boot rw - fuseblk x rw", "lies on fuseblk"),
        (
            "253:0 / /boot rw - ext4 /dev/mapper/boot rw",
            "lies on dm-0",
        ),
        ("9:127 / /boot rw - ext4 /dev/md127 rw", "lies on md127"),
        (
            "254:4 / /boot rw - ext4 /dev/vda4 rw,data=journal",
            "lies on ext4 mounted with data=journal",
        ),
    ] {
        let (_dir, node, table) = stacked("22 1 254:2 / / ro - ext4 /dev/root ro");
        node.add_disk("md127", 9, 127, 512, &[]).unwrap();
        node.set_mounts(&format!(
            "22 1 254:2 / / ro - ext4 /dev/root ro\n31 22 {mount}\n"
        ))
        .unwrap();
        put(&node, "/boot/grub/grubenv");
        for setting in [None, Some(Path::new("/boot/grub/grubenv"))] {
            let error = find(&node.system(), &table, setting, &own()).unwrap_err();
            assert!(matches!(error, Error::NoLoader { .. }), "{error}");
            let said = format!("/boot/grub/grubenv {said}");
            assert!(error.to_string().contains(&said), "{mount}: {error}");
        }
    }
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
