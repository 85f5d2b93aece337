//! A unified kernel image is what a slot boots: installed, armed, counted, confirmed.

use std::fs;

use super::machines::{OnDisk, image, open, options};
use super::{B, Machine, trial};
use crate::backend::{Backend, SlotState};
use crate::error::ErrorKind;
use crate::facts::InspectSettings;
use crate::inspect::SlotView;
use crate::pe::tests::image as pe_image;
use crate::proof::{ReadBack, VerifiedSlot};

const X86_64: u16 = 0x8664;

/// An image tree with a unified kernel image alone.
fn tree(machine: &OnDisk, unified: &[u8]) -> SlotView {
    let root = machine.dir.path().join("unified");
    fs::create_dir_all(root.join("usr/lib/modules/6.1.0-1")).unwrap();
    fs::create_dir_all(root.join("usr/lib/kernel")).unwrap();
    fs::write(root.join("usr/lib/modules/6.1.0-1/linux.efi"), unified).unwrap();
    fs::write(root.join("usr/lib/kernel/cmdline"), "console=ttyS0 root=x").unwrap();
    SlotView::of_tree(&root, &InspectSettings::default()).unwrap()
}

fn verified(machine: &OnDisk) -> VerifiedSlot {
    let inactive = machine.table().inactive(B).unwrap();
    let invalidated = machine.backend().invalidate(inactive).unwrap();
    invalidated.attest(ReadBack {
        expanded_sha256: [7; 32],
        expanded_size: 1234,
    })
}

#[test]
fn a_unified_image_is_started_by_an_entry_that_binds_its_root() {
    let mut machine = OnDisk::new();
    // What an earlier image with a kernel and an initrd of its own left.
    machine.stage(B);
    let unified = pe_image(X86_64, &[(".linux", b"kernel"), (".initrd", b"initrd")]);
    let slot = verified(&machine);
    let view = tree(&machine, &unified);
    let backend = machine.backend();
    backend
        .install_boot_files(&slot, &view, &image(), &options())
        .unwrap();
    let esp = machine.node.esp();
    assert_eq!(fs::read(esp.join("slotd/b/linux")).unwrap(), unified);
    assert!(!esp.join("slotd/b/initrd").exists());
    // A stray file beside it is none of its initrds.
    fs::write(esp.join("slotd/b/initrd"), "stray").unwrap();
    // As after a restart: what the entry is made of comes from the marker.
    open(&machine.node).arm(&slot, 3, &options()).unwrap();
    let entry = esp.join("loader/entries/slotd-b+3.conf");
    assert_eq!(
        fs::read_to_string(entry).unwrap(),
        "title Linux 2.0.0 (slot B)\n\
         sort-key slotd\n\
         machine-id 0123456789abcdef0123456789abcdef\n\
         version 2\n\
         efi /slotd/b/linux\n\
         options root=PARTUUID=00000000-0000-0000-0000-00000000a003 ro \
         systemd.machine_id=0123456789abcdef0123456789abcdef panic=10 slotd.slot=b \
         slotd.trial_deadline=600 slotd.tries=3 console=ttyS0\n"
    );
    assert_eq!(machine.power_cycle(), Some(B));
    assert_eq!(machine.states(), (SlotState::Good, trial(2, 1)));
    machine.backend().mark_good(B).unwrap();
    assert_eq!(machine.power_cycle(), Some(B));
    assert_eq!(machine.states(), (SlotState::Good, SlotState::Good));
}

#[test]
fn one_with_a_command_line_of_its_own_is_refused_before_anything_is_written() {
    let machine = OnDisk::new();
    let unified = pe_image(
        X86_64,
        &[(".linux", b"kernel"), (".cmdline", b"root=/dev/sda1")],
    );
    let slot = verified(&machine);
    let before = machine.bytes();
    let error = machine
        .backend()
        .install_boot_files(&slot, &tree(&machine, &unified), &image(), &options())
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Reject);
    let text = error.to_string();
    assert!(
        text.contains("linux.efi") && text.contains(".cmdline"),
        "{text}"
    );
    assert_eq!(machine.bytes(), before);
    assert!(
        machine
            .backend()
            .staged(&machine.table())
            .unwrap()
            .is_none()
    );
}

#[test]
fn a_damaged_unified_image_on_the_partition_is_not_armed() {
    let machine = OnDisk::new();
    let unified = pe_image(X86_64, &[(".linux", b"kernel")]);
    let slot = verified(&machine);
    let view = tree(&machine, &unified);
    let backend = machine.backend();
    backend
        .install_boot_files(&slot, &view, &image(), &options())
        .unwrap();
    let place = machine.node.esp().join("slotd/b/linux");
    let mut bytes = fs::read(&place).unwrap();
    bytes[0x401] ^= 1;
    fs::write(&place, bytes).unwrap();
    let error = backend.arm(&slot, 3, &options()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsafe, "{error}");
    assert_eq!(machine.node.entries().unwrap(), ["slotd-a.conf"]);
}
