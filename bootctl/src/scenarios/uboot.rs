//! U-Boot: a fixture node whose environment is counted in by models of the scripts, one for each convention.

mod model;
mod refusals;
mod script;
mod torn;

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::machines::{Machine, image_tree, scratch};
use super::{A, B, boots, trial};
use crate::backend::{Backend, Counting, Problem, ProblemCode, SlotState};
use crate::fixture::FixtureNode;
use crate::inspect::SlotView;
use crate::markers::Markers;
use crate::record::{RecordBackend, RecordStore};
use crate::slot::{SlotName, SlotSettings};
use crate::table::SlotTable;
use crate::uboot::{UbootConvention, UbootStore};
use model::{Copies, Script, Variables};

const CONFIG: &str = "/etc/fw_env.config";

/// Bytes of a copy: more than one sector, so that it can tear.
const SIZE: usize = 0x800;

/// Variables of U-Boot's own that have to outlive everything.
const OTHERS: [(&str, &str); 3] = [
    ("bootcmd", "run distro_bootcmd"),
    ("ethaddr", "02:00:00:00:00:01"),
    ("zzz", "a value; with $(everything) \"in\" it = \\"),
];

/// Where the environment lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Medium {
    /// A file of the boot partition.
    File,
    /// Two files.
    Files,
    /// Two areas of a block device, the second counted from its end.
    Raw,
    /// An eMMC boot partition that is protected against writing.
    EmmcBoot,
}

/// A machine with U-Boot.
pub(crate) struct Uboot {
    dir: TempDir,
    node: FixtureNode,
    copies: Copies,
    convention: UbootConvention,
    script: Script,
    backend: RecordBackend<UbootStore>,
}

impl Uboot {
    /// Each convention, and each medium with ours.
    pub(crate) fn every_kind() -> Vec<Self> {
        let own = UbootConvention::Slotd;
        vec![
            Self::new(Medium::File, own.clone()),
            Self::new(Medium::Files, own.clone()),
            Self::new(Medium::Raw, own.clone()),
            Self::new(Medium::EmmcBoot, own),
            Self::new(Medium::Raw, UbootConvention::Rauc),
            Self::new(Medium::Files, mender()),
        ]
    }

    /// Slot A good, slot B empty, and nothing of slotd's in the environment besides what a builder of disks puts there.
    fn new(medium: Medium, convention: UbootConvention) -> Self {
        let dir = scratch();
        let node = FixtureNode::create(&dir.path().join("node")).unwrap();
        let root = node.system().path("/");
        for folder in ["boot", "etc"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        let device = root.join("dev/mmcblk0boot0");
        // As large as such partitions are.
        let length = 4 * 1024 * 1024;
        if matches!(medium, Medium::Raw | Medium::EmmcBoot) {
            node.add_disk("mmcblk0boot0", 179, 8, 512, &[]).unwrap();
            let file = fs::OpenOptions::new().write(true).open(&device).unwrap();
            file.set_len(0).unwrap();
            file.set_len(length as u64).unwrap();
        }
        let copies = match medium {
            Medium::File => vec![(root.join("boot/uboot.env"), 0)],
            Medium::Files => vec![
                (root.join("boot/uboot.env"), 0),
                (root.join("boot/uboot-redund.env"), 0),
            ],
            Medium::Raw | Medium::EmmcBoot => {
                vec![(device.clone(), 0x10_0000), (device, length - 0x10_0000)]
            }
        };
        if medium == Medium::EmmcBoot {
            for file in ["force_ro", "ro"] {
                fs::write(root.join("sys/class/block/mmcblk0boot0").join(file), "1\n").unwrap();
            }
        }
        let lines: String = match medium {
            Medium::File => "/boot/uboot.env 0x0 0x800\n".to_owned(),
            Medium::Files => "/boot/uboot.env 0x0 0x800\n/boot/uboot-redund.env 0 800".to_owned(),
            Medium::Raw | Medium::EmmcBoot => {
                "# two copies\n/dev/mmcblk0boot0 0x100000 0x800\n/dev/mmcblk0boot0 -0x100000 0x800\n"
                    .to_owned()
            }
        };
        fs::write(node.system().path(CONFIG), lines).unwrap();
        let copies = Copies::new(copies, SIZE);
        let (script, first): (Script, &[(&str, &str)]) = match &convention {
            UbootConvention::Slotd => (model::own, &[("slotd_order", "A B"), ("slotd_a_ok", "1")]),
            UbootConvention::Rauc => (model::rauc, &[("BOOT_ORDER", "A"), ("BOOT_A_LEFT", "3")]),
            UbootConvention::BootCount { .. } => (
                model::bootcount,
                &[("mender_boot_part", "2"), ("mender_boot_part_hex", "2")],
            ),
        };
        let variables: Variables = OTHERS
            .iter()
            .chain(first)
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        copies.write_first(&variables);
        let backend = open(&node, &convention);
        Self {
            dir,
            node,
            copies,
            convention,
            script,
            backend,
        }
    }

    /// The file of `force_ro`.
    fn force_ro(&self) -> PathBuf {
        self.node.system().sys("class/block/mmcblk0boot0/force_ro")
    }

    /// All files that the environment lies in, as they are.
    fn bytes(&self) -> Vec<Vec<u8>> {
        self.copies.bytes()
    }
}

fn mender() -> UbootConvention {
    UbootConvention::BootCount {
        variable: "mender_boot_part".to_owned(),
        a: "2".to_owned(),
        b: "3".to_owned(),
    }
}

fn store(node: &FixtureNode, convention: &UbootConvention) -> UbootStore {
    let table = SlotTable::discover(&node.system(), &SlotSettings::Auto, None).unwrap();
    UbootStore::new(&node.system(), Path::new(CONFIG), &table, convention).unwrap()
}

fn open(node: &FixtureNode, convention: &UbootConvention) -> RecordBackend<UbootStore> {
    let table = SlotTable::discover(&node.system(), &SlotSettings::Auto, None).unwrap();
    let markers = Markers::at(&node.system(), "/var/lib/slotd/slots");
    RecordBackend::new(store(node, convention), markers, table.booted)
}

impl Machine for Uboot {
    fn backend(&self) -> &dyn Backend {
        &self.backend
    }

    fn table(&self) -> SlotTable {
        SlotTable::discover(&self.node.system(), &SlotSettings::Auto, None).unwrap()
    }

    fn power_cycle(&mut self) -> Option<SlotName> {
        let before = self.copies.load().expect("a good copy");
        for (name, value) in OTHERS {
            assert_eq!(before.get(name).map(String::as_str), Some(value));
        }
        let mut variables = before.clone();
        let slot = (self.script)(&mut variables);
        if variables != before {
            self.copies.save(&variables);
        }
        let slot = slot?;
        self.node.run_slot(slot, "auto-uboot").unwrap();
        self.backend = open(&self.node, &self.convention);
        Some(slot)
    }

    fn view(&self) -> SlotView {
        let root = self.dir.path().join("image");
        fs::create_dir_all(root.join("boot")).unwrap();
        fs::write(root.join("boot/vmlinuz"), "kernel of the new image").unwrap();
        image_tree(&root)
    }

    fn spares_proven_slots(&self) -> bool {
        self.convention != UbootConvention::Rauc
    }
}

#[test]
fn a_proven_slot_that_raucs_script_counted_down_gets_its_tries_back_and_that_is_said_before() {
    let mut machine = Uboot::new(Medium::Raw, UbootConvention::Rauc);
    machine.stage_and_arm(B);
    machine.power_cycle();
    machine.backend().mark_good(B).unwrap();
    let problems = machine.backend().state().unwrap().problems;
    assert!(
        problems
            .iter()
            .any(|problem| problem.code == ProblemCode::PromiseNotKept
                && problem.message.contains("every boot")),
        "{problems:?}"
    );
    for _ in 0..3 {
        assert_eq!(machine.power_cycle(), Some(B));
        assert_eq!(machine.states(), (SlotState::Good, SlotState::Good));
    }
    assert_eq!(machine.power_cycle(), Some(A));
    assert_eq!(machine.states(), (SlotState::Good, SlotState::Good));
    let state = machine.backend().state().unwrap();
    assert_eq!(state.next, boots(A, false));
    assert!(
        state
            .problems
            .iter()
            .any(|problem| problem.code == ProblemCode::PromiseNotKept
                && problem.message.contains("BOOT_B_LEFT is 0")),
        "{:?}",
        state.problems
    );
    // What is done to prove A gives B its tries back, and A stays the one that is preferred.
    machine.backend().mark_good(A).unwrap();
    let variables = machine.copies.load().unwrap();
    assert_eq!(variables["BOOT_ORDER"], "A B");
    assert_eq!(variables["BOOT_B_LEFT"], "3");
    assert_eq!(machine.states(), (SlotState::Good, SlotState::Good));
    let problems = machine.backend().state().unwrap().problems;
    assert!(
        !problems
            .iter()
            .any(|problem| problem.message.contains("is 0")),
        "{problems:?}"
    );
}

#[test]
fn where_no_slot_can_be_started_our_script_stops_and_the_others_go_on() {
    let both_bad = |machine: &mut Uboot| {
        machine.stage_and_arm(B);
        for _ in 0..3 {
            assert_eq!(machine.power_cycle(), Some(B));
        }
    };
    let mut machine = Uboot::new(Medium::Raw, UbootConvention::Slotd);
    both_bad(&mut machine);
    machine.copies.set("slotd_a_ok", "0");
    let bytes = machine.bytes();
    for _ in 0..3 {
        assert_eq!(machine.power_cycle(), None);
        assert!(machine.bytes() == bytes);
    }
    let mut machine = Uboot::new(Medium::Raw, UbootConvention::Rauc);
    both_bad(&mut machine);
    machine.copies.set("BOOT_A_LEFT", "0");
    assert_eq!(machine.power_cycle(), None, "it resets");
    assert!(machine.power_cycle().is_some());
    let mut machine = Uboot::new(Medium::Raw, mender());
    both_bad(&mut machine);
    machine.copies.set("slotd_a_state", "bad");
    for _ in 0..3 {
        assert_eq!(machine.power_cycle(), Some(A));
        assert_eq!(machine.states(), (SlotState::Bad, SlotState::Bad));
        // And that is said.
        assert_eq!(machine.next(), boots(A, false));
        let problems = machine.backend().state().unwrap().problems;
        for (code, words) in [
            (
                ProblemCode::PromiseNotKept,
                "where both slots are bad, U-Boot starts the last one without end",
            ),
            (ProblemCode::NoGoodSlot, "neither slot is good"),
        ] {
            let said = |problem: &Problem| problem.code == code && problem.message.contains(words);
            assert!(problems.iter().any(said), "{words}: {problems:?}");
        }
    }
}

#[test]
fn a_trial_that_the_script_did_not_count_is_seen() {
    for machine in Uboot::every_kind() {
        machine.stage_and_arm(B);
        machine.node.run_slot(B, "auto-uboot").unwrap();
        let backend = open(&machine.node, &machine.convention);
        let state = backend.state().unwrap();
        assert_eq!((state.b, state.counting), (trial(3, 0), Counting::Inactive));
        assert!(
            state
                .problems
                .iter()
                .any(|problem| problem.code == ProblemCode::CountingInactive),
            "{:?}",
            state.problems
        );
    }
}

#[test]
fn an_image_whose_kernel_the_script_would_not_find_is_refused() {
    for (convention, taken) in [
        (UbootConvention::Slotd, false),
        // Where the scripts of others look is theirs to know.
        (UbootConvention::Rauc, true),
    ] {
        let machine = Uboot::new(Medium::Raw, convention);
        let store = store(&machine.node, &machine.convention);
        // With a kernel and an initrd in /usr/lib/modules.
        let view = image_tree(&machine.dir.path().join("other"));
        assert!(view.facts.kernel.is_some());
        match store.check_image(&view.facts) {
            Ok(()) => assert!(taken),
            Err(error) => {
                assert!(!taken, "{error:?}");
                let message = error.chain();
                for place in ["/boot/Image", "/boot/vmlinuz"] {
                    assert!(message.contains(place), "{message}");
                }
            }
        }
        store.check_image(&machine.view().facts).unwrap();
    }
}

#[test]
fn an_environment_without_slotds_variables_is_unknown_not_bad() {
    let mut machine = Uboot::new(Medium::Files, UbootConvention::Slotd);
    for name in ["slotd_order", "slotd_a_ok"] {
        machine.copies.set(name, "");
    }
    assert_eq!(machine.states(), (SlotState::Good, SlotState::Empty));
    let problems = machine.backend().state().unwrap().problems;
    assert!(problems[0].message.contains("none of slotd's variables"));
    assert_eq!(machine.power_cycle(), Some(A));
    machine.stage_and_arm(B);
    assert_eq!(machine.next(), boots(B, true));
    assert_eq!(machine.power_cycle(), Some(B));
    assert_eq!(machine.backend().state().unwrap().problems, []);
}

#[test]
fn variables_that_were_lost_are_written_anew_for_the_slot_that_runs() {
    for medium in [Medium::File, Medium::Raw] {
        let mut machine = Uboot::new(medium, UbootConvention::Slotd);
        machine.stage_and_arm(B);
        assert_eq!(machine.power_cycle(), Some(B));
        machine.backend().mark_good(B).unwrap();
        let knows = |machine: &Uboot| {
            store(&machine.node, &machine.convention)
                .knows_slots()
                .unwrap()
        };
        assert!(knows(&machine));
        for name in ["slotd_order", "slotd_a_ok", "slotd_b_ok"] {
            machine.copies.set(name, "");
        }
        assert!(!knows(&machine));
        assert_eq!(machine.states(), (SlotState::Empty, SlotState::Good));
        machine.backend().mark_good(B).unwrap();
        assert!(knows(&machine));
        let variables = machine.copies.load().unwrap();
        assert_eq!(variables["slotd_order"], "B A");
        assert_eq!(variables["slotd_b_ok"], "1");
        assert!(!variables.contains_key("slotd_a_ok"));
        assert_eq!(machine.power_cycle(), Some(B));
    }
}

#[test]
fn a_trial_whose_variables_were_lost_has_proven_nothing() {
    let mut machine = Uboot::new(Medium::Raw, UbootConvention::Slotd);
    machine.stage_and_arm(B);
    assert_eq!(machine.power_cycle(), Some(B));
    for name in ["slotd_order", "slotd_a_ok", "slotd_b_ok", "slotd_b_tries"] {
        machine.copies.set(name, "");
    }
    let line = "ro slotd.slot=b slotd.trial slotd.tries=3";
    machine.node.set_command_line(line).unwrap();
    assert_eq!(machine.states(), (SlotState::Empty, trial(0, 1)));
    machine.backend().mark_good(B).unwrap();
    assert_eq!(machine.states(), (SlotState::Empty, SlotState::Good));
}

#[test]
fn the_protection_of_an_emmc_boot_partition_is_back_after_each_change() {
    let machine = Uboot::new(Medium::EmmcBoot, UbootConvention::Slotd);
    machine.stage_and_arm(B);
    assert_eq!(fs::read_to_string(machine.force_ro()).unwrap().trim(), "1");
    fs::write(machine.force_ro(), "0\n").unwrap();
    machine.backend().disarm(B).unwrap();
    assert_eq!(fs::read_to_string(machine.force_ro()).unwrap(), "0\n");
}
