//! GRUB on a fixture node: booted by a model of its script, or by GRUB itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::{Machine, image_tree, scratch};
use crate::backend::Backend;
use crate::fixture::{FixtureNode, FixturePartition, gpt_image};
use crate::grub::convention::Convention;
use crate::grub::environment::Environment;
use crate::grub::environment::tests::iterate;
use crate::grub::file::BlockFile;
use crate::grub::store::GrubStore;
use crate::grub::{self, GrubConvention, GrubSetting};
use crate::inspect::SlotView;
use crate::record::RecordBackend;
use crate::slot::{SlotName, SlotSettings};
use crate::table::SlotTable;

/// The script that is shipped.
pub(crate) const SCRIPT: &str = include_str!("../../../../systemd/usr/lib/slotd/grub/slotd.cfg");

/// Who boots the machine.
pub(crate) enum Firmware {
    /// The script's rules, on the bytes of the block.
    Model,
    /// RAUC's rules; what the agent has to do after each boot of a proven slot is done, or not.
    Rauc { agent: bool },
    /// GRUB itself, as a program (package grub-emu), with the script that is shipped.
    Real(Emulator),
}

pub(crate) struct InGrub {
    pub(crate) dir: TempDir,
    pub(crate) node: FixtureNode,
    firmware: Firmware,
    backend: RecordBackend<GrubStore>,
}

impl InGrub {
    pub(crate) fn new(firmware: impl FnOnce(&Path, &FixtureNode) -> Firmware) -> Self {
        let dir = scratch();
        let node = FixtureNode::create(&dir.path().join("node")).unwrap();
        fs::create_dir_all(node.esp().join("grub")).unwrap();
        fs::write(
            node.esp().join("grub/grub.cfg"),
            "source $prefix/slotd.cfg\n",
        )
        .unwrap();
        let firmware = firmware(dir.path(), &node);
        let variables = match firmware {
            Firmware::Rauc { .. } => "ORDER=A B\nA_OK=1\nA_TRY=0\nB_OK=0\nB_TRY=0\nslotd_empty=B\n",
            _ => "slotd_order=a b\nslotd_a_ok=1\n",
        };
        fs::write(block_of(&node), block(variables)).unwrap();
        let backend = open(&node, convention(&firmware));
        Self {
            dir,
            node,
            firmware,
            backend,
        }
    }

    pub(crate) fn modelled() -> Self {
        Self::new(|_, _| Firmware::Model)
    }

    pub(crate) fn real() -> Self {
        Self::new(|dir, node| Firmware::Real(Emulator::new(&dir.join("emulator"), node)))
    }

    pub(crate) fn rauc(agent: bool) -> Self {
        Self::new(|_, _| Firmware::Rauc { agent })
    }

    pub(crate) fn grubenv(&self) -> PathBuf {
        block_of(&self.node)
    }

    /// The store alone.
    pub(crate) fn store(&self) -> GrubStore {
        let setting = GrubSetting {
            convention: convention(&self.firmware),
            ..GrubSetting::default()
        };
        let file = BlockFile::new(&self.node.system(), Path::new("/efi/grub/grubenv"));
        GrubStore::new(
            &self.node.system(),
            &self.table(),
            file,
            Convention::of(&setting),
        )
    }

    /// What runs has the loader's data read anew.
    pub(crate) fn reopen(&mut self) {
        self.backend = open(&self.node, convention(&self.firmware));
    }
}

fn convention(firmware: &Firmware) -> GrubConvention {
    match firmware {
        Firmware::Rauc { .. } => GrubConvention::Rauc,
        _ => GrubConvention::Slotd,
    }
}

fn block_of(node: &FixtureNode) -> PathBuf {
    node.esp().join("grub/grubenv")
}

/// A block as others write it, without slotd's layout.
pub(crate) fn block(variables: &str) -> Vec<u8> {
    format!(
        "{:#<1024}",
        format!("# GRUB Environment Block\n{variables}")
    )
    .into_bytes()
}

fn open(node: &FixtureNode, convention: GrubConvention) -> RecordBackend<GrubStore> {
    let table = SlotTable::discover(&node.system(), &SlotSettings::Auto, None).unwrap();
    let setting = GrubSetting {
        convention,
        ..GrubSetting::default()
    };
    grub::open(&node.system(), &table, &setting).unwrap()
}

impl Machine for InGrub {
    fn backend(&self) -> &dyn Backend {
        &self.backend
    }

    fn table(&self) -> SlotTable {
        SlotTable::discover(&self.node.system(), &SlotSettings::Auto, None).unwrap()
    }

    fn power_cycle(&mut self) -> Option<SlotName> {
        let path = self.grubenv();
        let mut bytes = fs::read(&path).unwrap();
        let started = match &self.firmware {
            Firmware::Model => model(&mut bytes),
            Firmware::Rauc { .. } => rauc_model(&mut bytes).map(|slot| (slot, String::new())),
            Firmware::Real(emulator) => emulator.boot(&mut bytes),
        };
        fs::write(&path, bytes).unwrap();
        let (slot, options) = started?;
        self.node.run_slot(slot, "auto-grub").unwrap();
        let uuid = self.node.slot_uuid(slot);
        let rauc = format!("root=PARTUUID={uuid} ro rauc.slot={slot}");
        let line = if options.is_empty() { rauc } else { options };
        self.node.set_command_line(&line).unwrap();
        self.reopen();
        if let Firmware::Rauc { agent: true } = self.firmware
            && self.backend.state().unwrap().slot(slot) == crate::backend::SlotState::Good
        {
            self.backend.mark_good(slot).unwrap();
        }
        Some(slot)
    }

    fn view(&self) -> SlotView {
        image_tree(&self.dir.path().join("image"))
    }

    fn tries(&self) -> u32 {
        if self.spares_proven_slots() { 3 } else { 1 }
    }

    fn spares_proven_slots(&self) -> bool {
        !matches!(self.firmware, Firmware::Rauc { .. })
    }
}

fn value(bytes: &[u8], name: &str) -> Option<String> {
    let found = iterate(bytes).into_iter().rev();
    let mut found = found.filter(|(known, _)| known == name.as_bytes());
    found
        .next()
        .map(|(_, value)| String::from_utf8(value).unwrap())
}

/// Puts one digit in the place of another.
fn overwrite(bytes: &mut [u8], name: &str, digit: u8) {
    let text = format!("\n{name}=");
    let at = bytes
        .windows(text.len())
        .position(|window| window == text.as_bytes());
    bytes[at.unwrap() + text.len()] = digit;
}

/// What `slotd.cfg` does to the block, and the slot and command line that it starts; both slots have a kernel.
pub(crate) fn model(bytes: &mut [u8]) -> Option<(SlotName, String)> {
    let order = value(bytes, "slotd_order").unwrap_or_default();
    for word in order.split(' ') {
        let slot = match word {
            "a" => SlotName::A,
            "b" => SlotName::B,
            _ => continue,
        };
        let plain = match value(bytes, "slotd_machine_id") {
            Some(id) => format!("slotd.slot={word} systemd.machine_id={id}"),
            None => format!("slotd.slot={word}"),
        };
        if value(bytes, &format!("slotd_{word}_ok")).as_deref() == Some("1") {
            return Some((slot, plain));
        }
        let tries = format!("slotd_{word}_tries");
        let left = value(bytes, &tries).unwrap_or_default();
        if let [left @ b'1'..=b'9'] = left.as_bytes() {
            overwrite(bytes, &tries, left - 1);
            let given = value(bytes, "slotd_tries").unwrap_or_default();
            let or = |name, default: &str| value(bytes, name).unwrap_or(default.to_owned());
            let (deadline, panic) = (or("slotd_deadline", "600"), or("slotd_panic", "10"));
            let trial = format!(
                "{plain} slotd.trial slotd.tries={given} slotd.trial_deadline={deadline} panic={panic}"
            );
            return Some((slot, trial));
        }
    }
    let known = ["order", "a_ok", "a_tries", "b_ok", "b_tries"];
    let known = known
        .iter()
        .any(|name| value(bytes, &format!("slotd_{name}")).is_some_and(|value| !value.is_empty()));
    (!known).then(|| (SlotName::A, "slotd.slot=a".to_owned()))
}

/// What RAUC's `contrib/grub.conf` does to the block, and the slot that it starts; `None` for its first menu entry.
pub(crate) fn rauc_model(bytes: &mut [u8]) -> Option<SlotName> {
    let order = value(bytes, "ORDER").unwrap();
    let mut found = None;
    for word in order.split(' ') {
        let ok = value(bytes, &format!("{word}_OK")).unwrap() == "1";
        let untouched = value(bytes, &format!("{word}_TRY")).unwrap() == "0";
        overwrite(bytes, &format!("{word}_TRY"), b'1');
        if ok && untouched {
            found = Some(if word == "A" {
                SlotName::A
            } else {
                SlotName::B
            });
            break;
        }
    }
    if found.is_none() {
        for word in ["A", "B"] {
            if value(bytes, &format!("{word}_OK")).unwrap() == "1" {
                overwrite(bytes, &format!("{word}_TRY"), b'0');
            }
        }
    }
    found
}

/// The file system that GRUB's block lies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockFileSystem {
    /// As on an EFI system partition.
    Fat,
    /// As on a separate `/boot`.
    Ext4,
}

impl BlockFileSystem {
    /// Makes one in `boot.img` of what is in a folder.
    fn make(self, dir: &Path, folder: &str) {
        match self {
            Self::Fat => {
                empty_image(dir, "boot.img");
                run("mformat", &["-i", "boot.img", "-T", "4096", "::"], dir);
                for file in fs::read_dir(dir.join(folder)).unwrap() {
                    let path = file.unwrap().path();
                    let copy = ["-i", "boot.img", path.to_str().unwrap(), "::"];
                    run("mcopy", &copy, dir);
                }
            }
            Self::Ext4 => ext4_image(dir, folder, "boot.img"),
        }
    }

    /// A file of it.
    fn read(self, dir: &Path, name: &str) -> Vec<u8> {
        let to = dir.join("read");
        match self {
            Self::Fat => run(
                "mcopy",
                &["-n", "-i", "boot.img", &format!("::{name}"), "read"],
                dir,
            ),
            Self::Ext4 => run(
                "debugfs",
                &["-R", &format!("dump {name} read"), "boot.img"],
                dir,
            ),
        }
        fs::read(to).unwrap()
    }

    /// Whether its own checker finds nothing.
    fn check(self, dir: &Path) {
        match self {
            // mtools has no checker; what it reads back is what the tests compare.
            Self::Fat => {}
            Self::Ext4 => run("e2fsck", &["-fn", "boot.img"], dir),
        }
    }
}

/// GRUB as a program of this machine, with a disk of two slots and a file system for its block.
pub(crate) struct Emulator {
    dir: PathBuf,
    block: BlockFileSystem,
}

/// What stands in for the kernel: it writes down what it was given, and ends GRUB once all is loaded.
const KERNEL: &str = "function linux { set said=\"$*\"; save_env -f (hd0)/said said; }\n\
    function initrd { set said_initrd=\"$*\"; save_env -f (hd0)/said said_initrd; exit; }\n";

impl Emulator {
    pub(crate) fn new(dir: &Path, node: &FixtureNode) -> Self {
        Self::with_options(dir, node, "set slotd_options=\"quiet root=/dev/evil\"\n")
    }

    /// With another file system for its block than FAT.
    pub(crate) fn on(self, block: BlockFileSystem) -> Self {
        Self { block, ..self }
    }

    /// With slot B's own file of options.
    pub(crate) fn with_options(dir: &Path, node: &FixtureNode, config: &str) -> Self {
        fs::create_dir_all(dir.join("grub")).unwrap();
        fs::write(dir.join("slotd.cfg"), SCRIPT).unwrap();
        let emulator = Self {
            dir: dir.to_owned(),
            block: BlockFileSystem::Fat,
        };
        let a = emulator.slot("a", &["boot/vmlinuz", "boot/initrd.img"], "");
        let modules = ["usr/lib/modules/6.1/vmlinuz", "usr/lib/modules/6.1/initrd"];
        let b = emulator.slot("b", &modules, config);
        let size = 8 << 20;
        let partitions: Vec<FixturePartition> = [SlotName::A, SlotName::B]
            .into_iter()
            .zip([(2, 1 << 20), (3, 4 << 20)])
            .map(|(slot, (index, start))| FixturePartition {
                index,
                label: format!("root-{}", slot.lower()),
                type_uuid: uuid::Uuid::from_u128(1),
                uuid: node.slot_uuid(slot),
                start,
                size: 2 << 20,
            })
            .collect();
        let mut disk = gpt_image(size, 512, &partitions);
        for (slot, at) in [(a, 1 << 20), (b, 4 << 20)] {
            disk[at..at + slot.len()].copy_from_slice(&slot);
        }
        fs::write(dir.join("disk.img"), disk).unwrap();
        let map = format!("(hd0) {0}/boot.img\n(hd1) {0}/disk.img\n", dir.display());
        fs::write(dir.join("device.map"), map).unwrap();
        emulator
    }

    fn slot(&self, name: &str, files: &[&str], config: &str) -> Vec<u8> {
        let tree = self.dir.join(name);
        for file in files {
            let path = tree.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        fs::create_dir_all(tree.join("usr/lib/slotd")).unwrap();
        if !config.is_empty() {
            fs::write(tree.join("usr/lib/slotd/grub.cfg"), config).unwrap();
        }
        let image = format!("{name}.img");
        ext4_image(&self.dir, name, &image);
        fs::read(self.dir.join(image)).unwrap()
    }

    /// Boots with a block, and returns the slot that was started and its command line.
    pub(crate) fn boot(&self, bytes: &mut Vec<u8>) -> Option<(SlotName, String)> {
        let (started, screen) = self.boot_with(bytes, "");
        assert!(
            started.is_some() || screen.contains("NEITHER SLOT"),
            "{screen}"
        );
        started
    }

    /// The same with lines of one's own before the script, and with what is on the screen.
    pub(crate) fn boot_with(
        &self,
        bytes: &mut Vec<u8>,
        lines: &str,
    ) -> (Option<(SlotName, String)>, String) {
        let place = self.dir.join("slotd.cfg");
        let config = format!(
            "{KERNEL}set slotd_env=(hd0)/grubenv\nset slotd_a_device=hd1,gpt2\n\
             set slotd_b_device=hd1,gpt3\n{lines}\nsource (host){}\necho LEFT THE SCRIPT\nexit\n",
            place.display()
        );
        fs::write(self.dir.join("grub/grub.cfg"), config).unwrap();
        let boot = self.dir.join("boot");
        fs::create_dir_all(&boot).unwrap();
        fs::write(boot.join("grubenv"), &*bytes).unwrap();
        fs::write(boot.join("said"), block("")).unwrap();
        self.block.make(&self.dir, "boot");
        let mut child = Command::new("timeout")
            .args([
                "30",
                "grub-emu",
                "-d",
                "grub",
                "-m",
                "device.map",
                "-r",
                "host",
            ])
            .env("TERM", "vt100")
            .current_dir(&self.dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("grub-emu (package grub-emu)");
        // Esc, which ends the waiting where neither slot can be started.
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"\x1b").unwrap();
        let output = child.wait_with_output().unwrap();
        let screen = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{screen}");
        self.block.check(&self.dir);
        *bytes = self.block.read(&self.dir, "grubenv");
        let said = Environment::parse(&self.block.read(&self.dir, "said")).unwrap();
        let text = |name| String::from_utf8(said.get(name)?).ok();
        let (Some(line), Some(initrd)) = (text("said"), text("said_initrd")) else {
            return (None, screen);
        };
        let (kernel, options) = line.split_once(' ').unwrap();
        let slot = if kernel.starts_with("(hd1,gpt2)") {
            SlotName::A
        } else {
            SlotName::B
        };
        let files = match slot {
            SlotName::A => ["(hd1,gpt2)/boot/vmlinuz", "(hd1,gpt2)/boot/initrd.img"],
            SlotName::B => [
                "(hd1,gpt3)/usr/lib/modules/6.1/vmlinuz",
                "(hd1,gpt3)/usr/lib/modules/6.1/initrd",
            ],
        };
        assert_eq!([kernel, &initrd], files);
        (Some((slot, options.to_owned())), screen)
    }
}

/// Of 2 MiB.
fn empty_image(dir: &Path, image: &str) {
    fs::write(dir.join(image), vec![0; 2 << 20]).unwrap();
}

/// An ext4 file system of what is in a folder.
fn ext4_image(dir: &Path, folder: &str, image: &str) {
    empty_image(dir, image);
    run("mke2fs", &["-q", "-t", "ext4", "-d", folder, image], dir);
}

fn run(program: &str, arguments: &[&str], dir: &Path) {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(dir)
        .output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
}
