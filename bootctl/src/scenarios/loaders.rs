//! Which loader is taken where nobody says which one it is.

use std::fs;

use tempfile::TempDir;

use super::machines::bytes;
use crate::backend::{Backend, PreflightRequest, Refusal, RefusalCode, SlotState};
use crate::error::{Error, ErrorKind, Result};
use crate::fixture::FixtureNode;
use crate::grub::GrubSetting;
use crate::loader::{LoaderKind, LoaderSetting};
use crate::slot::{SlotName, SlotSettings};
use crate::table::SlotTable;

const ROOT: &str = "22 1 254:2 / / ro - ext4 /dev/root ro\n";
const ESP: &str = "30 22 254:1 / /efi rw - vfat /dev/vda1 rw\n";
const OTHER: &str = "31 22 254:4 / /other rw - vfat /dev/vda4 rw\n";

/// A node that systemd-boot started, with a block of GRUB's on another partition that speaks of slots.
struct Two {
    _dir: TempDir,
    node: FixtureNode,
    setting: LoaderSetting,
}

impl Two {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let node = FixtureNode::create(&dir.path().join("node")).unwrap();
        let other = node.system().path("/other");
        fs::create_dir_all(&other).unwrap();
        let text = "# GRUB Environment Block\nslotd_order=a b\nslotd_a_ok=1\n";
        fs::write(other.join("grubenv"), format!("{text:#<1024}")).unwrap();
        node.set_mounts(&format!("{ROOT}{ESP}{OTHER}")).unwrap();
        let setting = LoaderSetting {
            grub: GrubSetting {
                environment: Some("/other/grubenv".into()),
                ..GrubSetting::default()
            },
            ..LoaderSetting::default()
        };
        Self {
            _dir: dir,
            node,
            setting,
        }
    }

    fn open(&self) -> Result<Box<dyn Backend>> {
        let table = SlotTable::discover(&self.node.system(), &SlotSettings::Auto, None)?;
        self.setting.open(&self.node.system(), &table)
    }

    fn problem(&self) -> String {
        let before = bytes(&self.node);
        let error = self.open().unwrap_err();
        assert_eq!(bytes(&self.node), before, "{error}");
        match error {
            Error::NoLoader { problem } => problem,
            other => panic!("{other}"),
        }
    }
}

/// As if the loader had set no variable: GRUB, U-Boot and those that go by partition attributes set none.
pub(super) fn started_by_nobody_known(node: &FixtureNode) {
    for entry in fs::read_dir(node.system().efivars()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("Loader") {
            fs::remove_file(path).unwrap();
        }
    }
}

#[test]
fn the_one_that_started_the_system_is_taken_or_none() {
    let two = Two::new();
    assert_eq!(two.open().unwrap().name(), "systemd-boot");
    // Its partition is out of sight: another loader's data must not be taken for what holds now.
    two.node.set_mounts(&format!("{ROOT}{OTHER}")).unwrap();
    let problem = two.problem();
    assert!(problem.contains("EFI system partition"), "{problem}");
}

#[test]
fn of_several_that_speak_none_is_taken_until_one_is_set() {
    let mut two = Two::new();
    started_by_nobody_known(&two.node);
    let problem = two.problem();
    assert!(problem.contains("systemd-boot and grub"), "{problem}");
    two.setting.kind = LoaderKind::Grub;
    assert_eq!(two.open().unwrap().name(), "grub");
}

#[test]
fn the_only_one_that_speaks_is_taken_and_silence_is_explained() {
    let two = Two::new();
    started_by_nobody_known(&two.node);
    two.node.set_mounts(&format!("{ROOT}{OTHER}")).unwrap();
    assert_eq!(two.open().unwrap().name(), "grub");
    fs::remove_file(two.node.system().path("/other/grubenv")).unwrap();
    let problem = two.problem();
    for kind in ["systemd-boot:", "grub:", "uboot:", "gptprio:", "efi:"] {
        assert!(problem.contains(kind), "{problem}");
    }
}

#[test]
fn what_cannot_be_read_is_an_error_and_not_a_loader_less() {
    let two = Two::new();
    started_by_nobody_known(&two.node);
    two.node.set_mounts(&format!("{ROOT}{OTHER}")).unwrap();
    let etc = two.node.system().path("/etc");
    fs::create_dir_all(&etc).unwrap();
    fs::write(etc.join("fw_env.config"), "/other/uboot.env 0 0x2000\n").unwrap();
    fs::write(two.node.system().path("/other/uboot.env"), [7; 0x2000]).unwrap();
    let before = bytes(&two.node);
    let error = two.open().unwrap_err();
    assert_eq!(bytes(&two.node), before);
    assert!(!matches!(error, Error::NoLoader { .. }), "{error}");
    assert!(error.chain().contains("uboot.env"), "{}", error.chain());
}

/// A machine with slots and no loader's data: no firmware's variables, no partition of its, nothing of GRUB's or U-Boot's,
/// and no attributes.
fn bare() -> (TempDir, FixtureNode) {
    let dir = tempfile::tempdir().unwrap();
    let node = FixtureNode::create(&dir.path().join("node")).unwrap();
    fs::remove_dir_all(node.esp()).unwrap();
    fs::remove_dir_all(node.system().sys("firmware/efi")).unwrap();
    node.set_mounts(ROOT).unwrap();
    node.set_command_line("slotd.slot=a").unwrap();
    (dir, node)
}

#[test]
fn a_loader_that_the_machine_lacks_is_refused_with_the_reason_and_nothing_is_changed() {
    let (_dir, node) = bare();
    let table = SlotTable::discover(&node.system(), &SlotSettings::Auto, None).unwrap();
    let request = PreflightRequest {
        slot: SlotName::B,
        boot_files: Some(1024),
        extra: String::new(),
    };
    // The lock file that U-Boot's own tools take, too, is in memory.
    let bytes = || {
        let mut files = bytes(&node);
        files.retain(|(path, _)| !path.ends_with("var/lock/fw_printenv.lock"));
        files
    };
    let before = bytes();
    for (kind, words) in [
        (LoaderKind::SystemdBoot, "/efi is not a mount point"),
        (LoaderKind::Grub, "no grubenv and no grub.cfg in /boot/grub"),
        (LoaderKind::Uboot, "/etc/fw_env.config"),
        (
            LoaderKind::Gptprio,
            "neither slot's entry carries attributes",
        ),
        (LoaderKind::Efi, "was not started by EFI firmware"),
    ] {
        let setting = LoaderSetting {
            kind,
            ..LoaderSetting::default()
        };
        match setting.open(&node.system(), &table) {
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Configuration, "{kind}: {error}");
                assert!(error.chain().contains(words), "{kind}: {}", error.chain());
            }
            // Where the data is only looked at when it is used.
            Ok(backend) => {
                let refusals = backend.preflight(&request);
                let missing = |refusal: &Refusal| {
                    refusal.code == RefusalCode::LoaderDataMissing
                        && refusal.message.contains(words)
                };
                assert!(refusals.iter().any(missing), "{kind}: {refusals:?}");
                if let Ok(state) = backend.state() {
                    assert_eq!(state.slot(SlotName::A), SlotState::Empty, "{kind}");
                }
                for error in [
                    backend.mark_good(SlotName::A).unwrap_err(),
                    backend.select(SlotName::A).unwrap_err(),
                ] {
                    assert!(
                        matches!(error.kind(), ErrorKind::Configuration | ErrorKind::Reject),
                        "{kind}: {error}"
                    );
                }
            }
        }
        assert_eq!(bytes(), before, "{kind}");
    }
}
