//! The machines that scenarios run on: one for each backend.

pub(crate) mod extended;
pub(crate) mod grub;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tempfile::TempDir;

use crate::backend::{
    Backend, BootOptions, Counting, NextBoot, PlannedChange, PreflightRequest, Refusal, SlotState,
    StagedImage,
};
use crate::error::{Error, Result};
use crate::facts::{ImageFacts, InspectSettings};
use crate::fixture::FixtureNode;
use crate::inspect::SlotView;
use crate::lock::Lock;
use crate::markers::Markers;
use crate::memory::MemoryBackend;
use crate::proof::{ReadBack, VerifiedSlot};
use crate::record::{Arming, Loaded, Record, RecordBackend, RecordStore};
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

    /// Boots that a trial gets of the three that are asked for.
    fn tries(&self) -> u32 {
        3
    }

    /// Whether the loader's script counts only slots that are not proven. One that is not slotd's may count all.
    fn spares_proven_slots(&self) -> bool {
        true
    }

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
pub(crate) fn scratch() -> TempDir {
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

    /// Sum of every file of the node: partitions, devices, EFI variables.
    pub(crate) fn bytes(&self) -> Vec<(PathBuf, u32)> {
        bytes(&self.node)
    }
}

/// Sum of every file of a node: partitions, devices, EFI variables.
pub(crate) fn bytes(node: &FixtureNode) -> Vec<(PathBuf, u32)> {
    let mut files = Vec::new();
    let mut pending = vec![node.system().path("/")];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            if meta.is_dir() {
                pending.push(path);
            } else if meta.is_file() {
                let sum = crc32fast::hash(&fs::read(&path).unwrap());
                files.push((path, sum));
            } else {
                files.push((path, 0));
            }
        }
    }
    files.sort();
    files
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

/// A loader whose record is a cell in memory: what all backends with a record share, and nothing else.
pub(crate) struct InRecord {
    dir: TempDir,
    node: FixtureNode,
    cell: Arc<Mutex<Record>>,
    backend: RecordBackend<Cell>,
}

/// The record's store.
#[derive(Debug)]
struct Cell {
    record: Arc<Mutex<Record>>,
    lock: PathBuf,
}

impl InRecord {
    pub(crate) fn new() -> Self {
        let dir = scratch();
        let node = FixtureNode::create(&dir.path().join("node")).unwrap();
        let cell = Arc::new(Mutex::new(Record {
            a: SlotState::Good,
            b: SlotState::Empty,
            first: SlotName::A,
        }));
        let backend = Self::open(&node, &cell);
        Self {
            dir,
            node,
            cell,
            backend,
        }
    }

    fn open(node: &FixtureNode, cell: &Arc<Mutex<Record>>) -> RecordBackend<Cell> {
        let table = SlotTable::discover(&node.system(), &SlotSettings::Auto, None).unwrap();
        let store = Cell {
            record: cell.clone(),
            lock: node.system().path("/"),
        };
        let markers = Markers::at(&node.system(), "/var/lib/slotd/slots");
        RecordBackend::new(store, markers, table.booted)
    }
}

impl RecordStore for Cell {
    fn name(&self) -> &'static str {
        "cell"
    }

    fn location(&self) -> String {
        "memory".to_owned()
    }

    fn lock(&self) -> Result<Lock> {
        Lock::of(&self.lock)
    }

    fn load(&self, booted: Booted) -> Result<Loaded> {
        let mut record = *self.record.lock().unwrap();
        for slot in SlotName::BOTH {
            if let SlotState::Trial { left: 0, .. } = record.state(slot)
                && booted != Booted::Slot(slot)
            {
                record.set(slot, SlotState::Bad);
            }
        }
        Ok(Loaded {
            record,
            counting: Counting::Active,
            problems: Vec::new(),
        })
    }

    fn commit(&self, _booted: Booted, wanted: &Record, arming: Option<Arming<'_>>) -> Result<()> {
        if let Some(Arming {
            slot,
            options,
            boot,
        }) = arming
        {
            // What an entry's text would be made of is there.
            assert_eq!(wanted.first, slot);
            assert_eq!(options.machine_id, FixtureNode::MACHINE_ID);
            assert!(boot.unwrap().cmdline.as_ref().unwrap().contains("quiet"));
        }
        *self.record.lock().unwrap() = *wanted;
        Ok(())
    }

    fn plan(
        &self,
        _booted: Booted,
        before: &Record,
        wanted: &Record,
        _arming: Option<Arming<'_>>,
    ) -> Result<Vec<PlannedChange>> {
        Ok((before != wanted)
            .then(|| PlannedChange {
                target: self.location(),
                change: format!("{wanted:?}"),
                content: None,
                why: "one cell".to_owned(),
            })
            .into_iter()
            .collect())
    }

    fn refusals(&self, _request: &PreflightRequest) -> Vec<Refusal> {
        Vec::new()
    }

    fn max_tries(&self) -> u32 {
        9
    }

    fn check_image(&self, facts: &ImageFacts) -> Result<()> {
        facts.kernel.is_some().then_some(()).ok_or(Error::Image {
            device: "the image".into(),
            problem: "no kernel".to_owned(),
        })
    }
}

impl Machine for InRecord {
    fn backend(&self) -> &dyn Backend {
        &self.backend
    }

    fn table(&self) -> SlotTable {
        SlotTable::discover(&self.node.system(), &SlotSettings::Auto, None).unwrap()
    }

    fn power_cycle(&mut self) -> Option<SlotName> {
        let record = self.backend.state().unwrap();
        let NextBoot::Slot { slot, .. } = record.next else {
            return None;
        };
        let started = {
            let store = Cell {
                record: self.cell.clone(),
                lock: self.node.system().path("/"),
            };
            let booted = self.table().booted;
            store.start(&store.load(booted).unwrap().record)
        };
        *self.cell.lock().unwrap() = started;
        self.node.run_slot(slot, "auto-record").unwrap();
        self.backend = Self::open(&self.node, &self.cell);
        Some(slot)
    }

    fn view(&self) -> SlotView {
        image_tree(&self.dir.path().join("image"))
    }
}
