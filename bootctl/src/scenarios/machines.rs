//! The machines that scenarios run on: one for each backend.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::backend::{Backend, BootOptions, NextBoot, SlotState, StagedImage};
use crate::facts::InspectSettings;
use crate::fixture::FixtureNode;
use crate::inspect::SlotView;
use crate::memory::MemoryBackend;
use crate::proof::{ReadBack, VerifiedSlot};
use crate::slot::{SlotName, SlotSettings};
use crate::systemd_boot::{EspSetting, SystemdBoot};
use crate::table::{Booted, SlotTable};

/// A machine whose boot loader can be driven and booted.
pub(crate) trait Machine {
    fn backend(&self) -> &dyn Backend;
    fn table(&self) -> SlotTable;
    /// Off and on; what runs afterwards.
    fn power_cycle(&mut self) -> Option<SlotName>;
    fn view(&self) -> SlotView;

    fn states(&self) -> (SlotState, SlotState) {
        let state = self.backend().state().unwrap();
        (state.a, state.b)
    }

    fn next(&self) -> NextBoot {
        self.backend().state().unwrap().next
    }

    /// Invalidate, "write", attest, install boot files.
    fn stage(&self, slot: SlotName) -> VerifiedSlot {
        let inactive = self.table().inactive(slot).unwrap();
        let invalidated = self.backend().invalidate(inactive).unwrap();
        assert_eq!(self.backend().state().unwrap().slot(slot), SlotState::Empty);
        let proof = ReadBack {
            expanded_sha256: [7; 32],
            expanded_size: 1234,
        };
        let verified = invalidated.attest(proof);
        self.backend()
            .install_boot_files(&verified, &self.view(), &image(), &options())
            .unwrap();
        verified
    }

    fn stage_and_arm(&self, slot: SlotName) {
        let verified = self.stage(slot);
        self.backend().arm(&verified, 3, &options()).unwrap();
    }
}

pub(crate) fn image() -> StagedImage {
    StagedImage {
        expanded_sha256: "07".repeat(32),
        expanded_size: 1234,
        version: Some("2.0.0".to_owned()),
        ..StagedImage::default()
    }
}

pub(crate) fn options() -> BootOptions {
    BootOptions {
        tries: 3,
        extra: String::new(),
        machine_id: FixtureNode::MACHINE_ID.to_owned(),
        trial_deadline_seconds: 600,
        panic_seconds: 10,
    }
}

/// An image tree with a kernel and the usual command line.
pub(crate) fn image_tree(root: &Path) -> SlotView {
    let modules = root.join("usr/lib/modules/6.1.0-1");
    fs::create_dir_all(&modules).unwrap();
    fs::create_dir_all(root.join("usr/lib/kernel")).unwrap();
    fs::create_dir_all(root.join("etc")).unwrap();
    fs::write(modules.join("vmlinuz"), "kernel of the new image").unwrap();
    fs::write(modules.join("initrd"), "initrd").unwrap();
    fs::write(
        root.join("usr/lib/kernel/cmdline"),
        "console=ttyS0 root=/dev/evil quiet\n",
    )
    .unwrap();
    fs::write(
        root.join("etc/os-release"),
        "PRETTY_NAME=\"Debian 12\"\nIMAGE_VERSION=2.0.0\n",
    )
    .unwrap();
    SlotView::of_tree(root, &InspectSettings::default()).unwrap()
}

/// In memory where that is possible: every change is synced, and a busy disk takes its time.
fn scratch() -> TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}

/// systemd-boot on a fixture node.
pub(crate) struct OnDisk {
    pub(crate) dir: TempDir,
    pub(crate) node: FixtureNode,
    backend: SystemdBoot,
}

impl OnDisk {
    pub(crate) fn new() -> Self {
        let dir = scratch();
        let node = FixtureNode::create(&dir.path().join("node")).unwrap();
        let backend = open(&node);
        Self { dir, node, backend }
    }
}

pub(crate) fn open(node: &FixtureNode) -> SystemdBoot {
    let table = SlotTable::discover(&node.system(), &SlotSettings::Auto, None).unwrap();
    SystemdBoot::open(&node.system(), &table, &EspSetting::Auto).unwrap()
}

impl Machine for OnDisk {
    fn backend(&self) -> &dyn Backend {
        &self.backend
    }

    fn table(&self) -> SlotTable {
        SlotTable::discover(&self.node.system(), &SlotSettings::Auto, None).unwrap()
    }

    fn power_cycle(&mut self) -> Option<SlotName> {
        let slot = self.node.power_cycle().unwrap();
        self.backend = open(&self.node);
        slot
    }

    fn view(&self) -> SlotView {
        image_tree(&self.dir.path().join("image"))
    }
}

/// The backend in memory; its slots are those of a fixture node.
pub(crate) struct InMemory {
    dir: TempDir,
    node: FixtureNode,
    backend: MemoryBackend,
}

impl InMemory {
    pub(crate) fn new() -> Self {
        let dir = scratch();
        let node = FixtureNode::create(&dir.path().join("node")).unwrap();
        let backend =
            MemoryBackend::new(Booted::Slot(SlotName::A), SlotState::Good, SlotState::Empty);
        Self { dir, node, backend }
    }
}

impl Machine for InMemory {
    fn backend(&self) -> &dyn Backend {
        &self.backend
    }

    fn table(&self) -> SlotTable {
        SlotTable::discover(&self.node.system(), &SlotSettings::Auto, None).unwrap()
    }

    fn power_cycle(&mut self) -> Option<SlotName> {
        let NextBoot::Slot { slot, .. } = self.backend.boot() else {
            return None;
        };
        self.node.run_slot(slot, "auto-memory").unwrap();
        Some(slot)
    }

    fn view(&self) -> SlotView {
        image_tree(&self.dir.path().join("image"))
    }
}
