//! A machine whose firmware starts the slots by itself: plain files in the place of the variables, and a boot manager that
//! goes by the UEFI specification (2.10, sections 3.1.1 and 3.3) on their raw bytes, with none of the backend's code.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;
use uuid::Uuid;

use crate::backend::Backend;
use crate::facts::InspectSettings;
use crate::fixture::FixtureNode;
use crate::inspect::SlotView;
use crate::record::RecordBackend;
use crate::scenarios::machines::{Machine, image_tree, scratch};
use crate::slot::{SlotName, SlotSettings};
use crate::systemd_boot::EspSetting;
use crate::table::SlotTable;

use super::EfiStore;
use super::program::tests::program;

const GLOBAL: &str = "8be4df61-93ca-11d2-aa0d-00e098032b8c";
const MACHINE_ID: &str = FixtureNode::MACHINE_ID;

/// The firmware's own menu, and a whole disk, as OVMF has them.
const MENU: &str = "090100002c0055006900410070007000000004071400c9bdb87cebf8344faaea3ee4af6516a10406140021aa2c46\
                    14760345836e8ab6f46623317fff0400";
pub(crate) const DISK: &str = "01000000200055004500460049002000510045004d005500200048004100520044004400490053004b002000\
                    51004d00300030003000300031002000000002010c00d041030a0000000001010600021f03120a000000ffff0000\
                    7fff04004eac0881119f594d850ee21a522c59b2";

/// UUID of the fixture's EFI system partition.
pub(crate) const ESP: Uuid = Uuid::from_u128(0xa001);

pub(crate) struct InFirmware {
    dir: TempDir,
    pub(crate) node: FixtureNode,
    backend: RecordBackend<EfiStore>,
    /// Of a boot that came to no slot: what was started instead, if anything was.
    pub(crate) started: Option<u16>,
}

impl InFirmware {
    /// Slot A is booted and good, and some options of the firmware's stand behind it.
    pub(crate) fn new() -> Self {
        let dir = scratch();
        let node = FixtureNode::create(&dir.path().join("node")).unwrap();
        fs::remove_dir_all(node.esp()).unwrap();
        let place = node.esp().join("EFI/slotd/a");
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join("linux.efi"), program(0x8664)).unwrap();
        for file in fs::read_dir(node.system().efivars()).unwrap() {
            fs::remove_file(file.unwrap().path()).unwrap();
        }
        let firmware = Firmware { node: &node };
        let options = format!(
            "root=PARTUUID={} ro systemd.machine_id={MACHINE_ID} slotd.slot=a",
            node.slot_uuid(SlotName::A)
        );
        let good = firmware.option("slotd A", "\\EFI\\slotd\\a\\linux.efi", &options);
        firmware.put("Boot0000", Some(&unhex(MENU)));
        firmware.put("Boot0001", Some(&unhex(DISK)));
        firmware.put("Boot0004", Some(&good));
        firmware.put("BootOrder", Some(&[4, 0, 0, 0, 1, 0]));
        assert_eq!(firmware.boot().1, Some(SlotName::A));
        let backend = open(&node);
        Self {
            dir,
            node,
            backend,
            started: None,
        }
    }

    pub(crate) fn firmware(&self) -> Firmware<'_> {
        Firmware { node: &self.node }
    }

    /// The variables' and the partition's bytes, by name.
    pub(crate) fn bytes(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut found = Vec::new();
        let mut pending = vec![self.node.system().efivars(), self.node.esp()];
        while let Some(directory) = pending.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    pending.push(path);
                } else {
                    let bytes = fs::read(&path).unwrap();
                    found.push((path, bytes));
                }
            }
        }
        found.sort();
        found
    }

    /// The backend anew, as after a restart of the program.
    pub(crate) fn reopen(&mut self) {
        self.backend = open(&self.node);
    }
}

fn open(node: &FixtureNode) -> RecordBackend<EfiStore> {
    let table = SlotTable::discover(&node.system(), &SlotSettings::Auto, None).unwrap();
    super::open(&node.system(), &table, &EspSetting::Auto).unwrap()
}

impl Machine for InFirmware {
    fn backend(&self) -> &dyn Backend {
        &self.backend
    }

    fn table(&self) -> SlotTable {
        SlotTable::discover(&self.node.system(), &SlotSettings::Auto, None).unwrap()
    }

    fn power_cycle(&mut self) -> Option<SlotName> {
        let (started, slot) = self.firmware().boot();
        self.started = started;
        slot?;
        self.reopen();
        slot
    }

    fn view(&self) -> SlotView {
        let root = self.dir.path().join("image");
        drop(image_tree(&root));
        let kernel = root.join("usr/lib/modules/6.1.0-1/vmlinuz");
        fs::write(kernel, program(0x8664)).unwrap();
        SlotView::of_tree(&root, &InspectSettings::default()).unwrap()
    }

    fn tries(&self) -> u32 {
        1
    }
}

/// The firmware: its variables and its boot manager.
pub(crate) struct Firmware<'a> {
    node: &'a FixtureNode,
}

impl Firmware<'_> {
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.node
            .system()
            .efivars()
            .join(format!("{name}-{GLOBAL}"))
    }

    pub(crate) fn get(&self, name: &str) -> Option<Vec<u8>> {
        let bytes = fs::read(self.file(name)).ok()?;
        Some(bytes[4..].to_vec())
    }

    pub(crate) fn put(&self, name: &str, data: Option<&[u8]>) {
        match data {
            Some(data) => fs::write(self.file(name), [&[7, 0, 0, 0], data].concat()).unwrap(),
            None => fs::remove_file(self.file(name)).unwrap(),
        }
    }

    fn numbers(&self, name: &str) -> Vec<u16> {
        let data = self.get(name).unwrap_or_default();
        data.chunks(2)
            .map(|pair| u16::from(pair[0]) + 256 * u16::from(pair[1]))
            .collect()
    }

    /// An option on the node's EFI system partition: 2048 sectors of 512 bytes in, 16384 long, by [`gpt_image`]'s table.
    ///
    /// [`gpt_image`]: crate::fixture::gpt_image
    pub(crate) fn option(&self, name: &str, file: &str, options: &str) -> Vec<u8> {
        let text = |text: &str| -> Vec<u8> {
            let units = text.encode_utf16().chain([0]);
            units.flat_map(|unit| unit.to_le_bytes()).collect()
        };
        let mut path = unhex("04012a000100000000080000000000000040000000000000");
        path.extend(ESP.to_bytes_le());
        path.extend([2, 2, 4, 4]);
        path.extend(u16::try_from(4 + text(file).len()).unwrap().to_le_bytes());
        path.extend(text(file));
        path.extend([0x7f, 0xff, 4, 0]);
        let mut option = vec![1, 0, 0, 0];
        option.extend(u16::try_from(path.len()).unwrap().to_le_bytes());
        option.extend(text(name));
        option.extend(path);
        option.extend(text(options));
        option
    }

    /// Off and on: the option that was started, and the slot that came up.
    fn boot(&self) -> (Option<u16>, Option<SlotName>) {
        let _ = fs::remove_file(self.file("BootCurrent"));
        let mut tried = self.numbers("BootNext");
        if !tried.is_empty() {
            // Before it is started.
            self.put("BootNext", None);
        }
        for number in self.numbers("BootOrder") {
            let attributes = self
                .get(&format!("Boot{number:04X}"))
                .map(|data| data[0..2].to_vec());
            // Active, and no program that does not boot.
            if attributes.is_some_and(|bytes| bytes[0] & 1 == 1 && bytes[1] & 0x1f == 0) {
                tried.push(number);
            }
        }
        for number in tried {
            let Some(data) = self.get(&format!("Boot{number:04X}")) else {
                continue;
            };
            match self.load(&data) {
                Load::Failed => {}
                Load::Foreign => return (Some(number), None),
                Load::Kernel(line) => {
                    fs::write(
                        self.file("BootCurrent"),
                        [&[6, 0, 0, 0], number.to_le_bytes().as_slice()].concat(),
                    )
                    .unwrap();
                    return (Some(number), Some(self.run(&line)));
                }
            }
        }
        (None, None)
    }

    fn load(&self, data: &[u8]) -> Load {
        let length = usize::from(data[4]) + 256 * usize::from(data[5]);
        let mut at = 6;
        while data[at..at + 2] != [0, 0] {
            at += 2;
        }
        let (path, arguments) = data[at + 2..].split_at(length);
        let text = |bytes: &[u8]| -> String {
            let units = bytes
                .chunks(2)
                .map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
            let units: Vec<u16> = units.take_while(|unit| *unit != 0).collect();
            String::from_utf16(&units).unwrap()
        };
        if path[..2] != [4, 1] {
            return Load::Foreign;
        }
        if path[24..40] != ESP.to_bytes_le() {
            return Load::Failed;
        }
        let file = text(&path[46..path.len() - 4]).replace('\\', "/");
        let Ok(kernel) = fs::read(self.node.esp().join(file.trim_start_matches('/'))) else {
            return Load::Failed;
        };
        let line = text(arguments);
        // The kernel's EFI stub gives up where an initrd is not there.
        let initrd = line
            .split(' ')
            .find_map(|word| word.strip_prefix("initrd="));
        let initrd = initrd.map(|path| path.replace('\\', "/"));
        let there = |path: &String| self.node.esp().join(path.trim_start_matches('/')).is_file();
        if !kernel.starts_with(b"MZ") || initrd.is_some_and(|path| !there(&path)) {
            return Load::Failed;
        }
        Load::Kernel(line)
    }

    /// The kernel finds its root.
    fn run(&self, line: &str) -> SlotName {
        let slot = SlotName::BOTH
            .into_iter()
            .find(|slot| line.contains(&format!("root=PARTUUID={} ", self.node.slot_uuid(*slot))))
            .unwrap();
        let device = if slot == SlotName::A {
            "254:2"
        } else {
            "254:3"
        };
        self.mount(device, "efivarfs efivarfs rw", "vfat /dev/vda1 rw");
        self.node.set_command_line(line).unwrap();
        slot
    }

    /// The mount table: what the root is, and how variables and partition are mounted.
    pub(crate) fn mount(&self, root: &str, variables: &str, partition: &str) {
        let table = format!(
            "22 1 {root} / / ro,relatime shared:1 - ext4 /dev/root ro\n\
             30 22 254:1 / /efi rw,relatime shared:2 - {partition}\n\
             31 22 0:30 / /sys/firmware/efi/efivars rw,nosuid - {variables}\n"
        );
        self.node.set_mounts(&table).unwrap();
    }
}

enum Load {
    /// Not found, or it came back: the boot manager goes on.
    Failed,
    /// Something else than a kernel of ours runs.
    Foreign,
    /// A kernel runs with these options.
    Kernel(String),
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}
