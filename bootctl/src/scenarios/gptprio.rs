//! A machine whose slots' state is in their partitions' attributes, with a model of each loader that goes by them.

use tempfile::TempDir;

use super::machines::{Machine, image_tree, scratch};
use crate::backend::{Backend, NextBoot, SlotState};
use crate::fixture::FixtureNode;
use crate::gptprio::loader_model::{self, Image, Loader};
use crate::gptprio::{self, Gptprio, carries_attributes};
use crate::inspect::SlotView;
use crate::loader::LoaderSetting;
use crate::markers::Markers;
use crate::record::RecordBackend;
use crate::slot::{SlotName, SlotSettings};
use crate::systemd_boot::EspSetting;
use crate::table::SlotTable;

/// Numbers of the slots' partitions on a fixture node.
const NUMBERS: [u32; 2] = [2, 3];

/// Slots in attributes.
pub(crate) struct InAttributes {
    dir: TempDir,
    node: FixtureNode,
    loader: Loader,
    backend: RecordBackend<Gptprio>,
}

impl InAttributes {
    /// Slot A is good, with the attributes that Bottlerocket's own tool would have given it.
    pub(crate) fn new(loader: Loader) -> Self {
        let dir = scratch();
        let node = FixtureNode::create(&dir.path().join("node")).unwrap();
        node.set_attributes("vda", 512, &[(2, 0x0102 << 48)])
            .unwrap();
        let backend = open(&node);
        Self {
            dir,
            node,
            loader,
            backend,
        }
    }
}

fn open(node: &FixtureNode) -> RecordBackend<Gptprio> {
    let table = SlotTable::discover(&node.system(), &SlotSettings::Auto, None).unwrap();
    let markers = Markers::at(&node.system(), "/var/lib/slotd/slots");
    gptprio::open(&node.system(), &table, markers).unwrap()
}

impl Machine for InAttributes {
    fn backend(&self) -> &dyn Backend {
        &self.backend
    }

    fn table(&self) -> SlotTable {
        SlotTable::discover(&self.node.system(), &SlotSettings::Auto, None).unwrap()
    }

    fn power_cycle(&mut self) -> Option<SlotName> {
        let mut medium = Image::open(&self.node.system().dev("vda"));
        let mut machine = loader_model::Machine {
            medium: &mut medium,
            sector: 512,
        };
        let slot = match machine.start(self.loader, NUMBERS)? {
            2 => SlotName::A,
            _ => SlotName::B,
        };
        self.node.run_slot(slot, "auto-gptprio").unwrap();
        self.backend = open(&self.node);
        Some(slot)
    }

    fn view(&self) -> SlotView {
        image_tree(&self.dir.path().join("image"))
    }
}

#[test]
fn whether_a_disk_carries_attributes_is_known() {
    let dir = scratch();
    let node = FixtureNode::create(&dir.path().join("node")).unwrap();
    let carries = || {
        let table = SlotTable::discover(&node.system(), &SlotSettings::Auto, None).unwrap();
        carries_attributes(&node.system(), &table).unwrap()
    };
    assert!(!carries());
    for (attributes, expected) in [
        // Tries alone, bits of the specification, Bottlerocket's 57: none that a loader goes by.
        (0x00f0 << 48, false),
        (1 << 57 | 1 << 60 | 4, false),
        (1 << 48, true),
        (1 << 56, true),
    ] {
        node.set_attributes("vda", 512, &[(3, attributes)]).unwrap();
        assert_eq!(carries(), expected, "{attributes:#x}");
        node.set_attributes("vda", 512, &[(3, 0), (2, attributes)])
            .unwrap();
        assert_eq!(carries(), expected, "{attributes:#x}");
        node.set_attributes("vda", 512, &[(2, 0)]).unwrap();
    }
    // Of other partitions it says nothing.
    node.set_attributes("vda", 512, &[(1, 0x01ff << 48)])
        .unwrap();
    assert!(!carries());
}

#[test]
fn a_disk_without_attributes_claims_nothing_and_another_loaders_data_goes_before_them() {
    let dir = scratch();
    let node = FixtureNode::create(&dir.path().join("node")).unwrap();
    let table = SlotTable::discover(&node.system(), &SlotSettings::Auto, None).unwrap();
    let state = open(&node).state().unwrap();
    assert_eq!((state.a, state.b), (SlotState::Empty, SlotState::Empty));
    assert_eq!((state.trial_boot, state.next), (false, NextBoot::Nothing));
    let chosen = || {
        let setting = LoaderSetting::auto(EspSetting::Auto);
        setting.open(&node.system(), &table).unwrap().name()
    };
    // The fixture has systemd-boot's data.
    node.set_attributes("vda", 512, &[(2, 0x0102 << 48)])
        .unwrap();
    assert_eq!(chosen(), "systemd-boot");
    std::fs::remove_dir_all(node.esp()).unwrap();
    super::loaders::started_by_nobody_known(&node);
    assert_eq!(chosen(), "gptprio");
}
