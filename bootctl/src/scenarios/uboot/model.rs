//! U-Boot's side: the environment as it reads and writes it, and the scripts. By code of its own, so that it can
//! disagree with the backend.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::slot::SlotName;

pub(super) type Variables = BTreeMap<String, String>;

/// What a script does with the variables; the slot that it starts.
pub(super) type Script = fn(&mut Variables) -> Option<SlotName>;

/// Files and offsets of the copies, and their size.
pub(super) struct Copies {
    places: Vec<(PathBuf, usize)>,
    size: usize,
}

impl Copies {
    pub(super) fn new(places: Vec<(PathBuf, usize)>, size: usize) -> Self {
        Self { places, size }
    }

    fn pair(&self) -> bool {
        self.places.len() == 2
    }

    pub(super) fn copy(&self, which: usize) -> Vec<u8> {
        let (path, offset) = &self.places[which];
        let mut bytes = vec![0; self.size];
        let file = File::open(path).unwrap();
        file.read_exact_at(&mut bytes, *offset as u64).unwrap();
        bytes
    }

    pub(super) fn put(&self, which: usize, bytes: &[u8]) {
        let (path, offset) = &self.places[which];
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).open(path);
        file.unwrap().write_all_at(bytes, *offset as u64).unwrap();
    }

    /// The files whole: that nothing else in them changes is part of what is tested.
    pub(super) fn bytes(&self) -> Vec<Vec<u8>> {
        self.places
            .iter()
            .map(|(file, _)| fs::read(file).unwrap_or_default())
            .collect()
    }

    /// Both copies with the same variables, as a builder of disks puts them there.
    pub(super) fn write_first(&self, variables: &Variables) {
        for which in 0..self.places.len() {
            self.put(which, &self.encode(variables, 1));
        }
    }

    fn encode(&self, variables: &Variables, flags: u8) -> Vec<u8> {
        let mut data = Vec::new();
        for (name, value) in variables {
            data.extend_from_slice(format!("{name}={value}\0").as_bytes());
        }
        data.push(0);
        let header = if self.pair() { 5 } else { 4 };
        assert!(data.len() <= self.size - header);
        data.resize(self.size - header, 0);
        let mut bytes = crc(&data).to_le_bytes().to_vec();
        if self.pair() {
            bytes.push(flags);
        }
        bytes.extend(data);
        bytes
    }

    fn decode(&self, bytes: &[u8]) -> Option<(u8, Variables)> {
        let header = if self.pair() { 5 } else { 4 };
        let stored = u32::from_le_bytes(bytes[..4].try_into().unwrap());
        if crc(&bytes[header..]) != stored {
            return None;
        }
        let text = String::from_utf8(bytes[header..].to_vec()).unwrap();
        let (strings, _) = text.split_once("\0\0").unwrap();
        let variables = strings
            .split('\0')
            .filter_map(|string| string.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        Some((if self.pair() { bytes[4] } else { 0 }, variables))
    }

    fn current(&self) -> Option<(usize, u8, Variables)> {
        let mut good = Vec::new();
        for which in 0..self.places.len() {
            if let Some((flags, variables)) = self.decode(&self.copy(which)) {
                good.push((which, flags, variables));
            }
        }
        if let [first, second] = &good[..] {
            let wrapped = (first.1, second.1) == (255, 0);
            let second_newer = second.1 > first.1 && (first.1, second.1) != (0, 255);
            return Some(if wrapped || second_newer {
                good.remove(1)
            } else {
                good.remove(0)
            });
        }
        good.pop()
    }

    /// `None` where no copy is good.
    pub(super) fn load(&self) -> Option<Variables> {
        self.current().map(|(_, _, variables)| variables)
    }

    pub(super) fn save(&self, variables: &Variables) {
        let (which, flags, _) = self.current().unwrap();
        let target = if self.pair() { 1 - which } else { 0 };
        self.put(target, &self.encode(variables, flags.wrapping_add(1)));
    }

    /// As somebody at U-Boot's prompt does it.
    pub(super) fn set(&self, name: &str, value: &str) {
        let mut variables = self.load().unwrap();
        if value.is_empty() {
            variables.remove(name);
        } else {
            variables.insert(name.to_owned(), value.to_owned());
        }
        self.save(&variables);
    }
}

/// CRC-32 bit by bit.
fn crc(data: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in data {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

fn slot(name: &str) -> Option<SlotName> {
    name.parse().ok()
}

/// `0x${name}`, where what is no number is 0.
fn hex(variables: &Variables, name: &str) -> u32 {
    let text = variables.get(name).map_or("", String::as_str);
    u32::from_str_radix(text, 16).unwrap_or(0)
}

fn take_hex(variables: &mut Variables, name: &str) -> bool {
    let left = hex(variables, name);
    if left == 0 {
        return false;
    }
    variables.insert(name.to_owned(), format!("{:x}", left - 1));
    true
}

/// `systemd/usr/lib/slotd/uboot/boot.cmd`.
pub(super) fn own(variables: &mut Variables) -> Option<SlotName> {
    let order = match variables.get("slotd_order") {
        Some(order) => order.clone(),
        None => {
            if !variables.contains_key("slotd_a_ok") && !variables.contains_key("slotd_b_ok") {
                // Both are taken for proven, and in this model both have a kernel.
                return Some(SlotName::A);
            }
            "A B".to_owned()
        }
    };
    for name in order.split(' ') {
        let prefix = format!("slotd_{}", name.to_lowercase());
        let ok = variables.get(&format!("{prefix}_ok")).cloned();
        match ok.as_deref() {
            Some("1") => return slot(name),
            Some("0") if take_hex(variables, &format!("{prefix}_tries")) => return slot(name),
            _ => {}
        }
    }
    None
}

/// RAUC's `contrib/uboot.sh`. `None` where it resets the counts and the machine.
pub(super) fn rauc(variables: &mut Variables) -> Option<SlotName> {
    for (name, value) in [
        ("BOOT_ORDER", "A B"),
        ("BOOT_A_LEFT", "3"),
        ("BOOT_B_LEFT", "3"),
    ] {
        let entry = variables.entry(name.to_owned());
        entry.or_insert_with(|| value.to_owned());
    }
    let order = variables["BOOT_ORDER"].clone();
    for name in order.split(' ') {
        if take_hex(variables, &format!("BOOT_{name}_LEFT")) {
            return slot(name);
        }
    }
    for name in ["BOOT_A_LEFT", "BOOT_B_LEFT"] {
        variables.insert(name.to_owned(), "3".to_owned());
    }
    None
}

/// `drivers/bootcount/bootcount_env.c` and Mender's `altbootcmd`.
pub(super) fn bootcount(variables: &mut Variables) -> Option<SlotName> {
    let number = |variables: &Variables, name: &str| -> u32 {
        let text = variables.get(name).map_or("0", String::as_str);
        text.parse().unwrap()
    };
    if number(variables, "upgrade_available") == 1 {
        let count = number(variables, "bootcount") + 1;
        variables.insert("bootcount".to_owned(), count.to_string());
        let limit = number(variables, "bootlimit");
        if limit != 0 && count > limit {
            let other = if variables["mender_boot_part"] == "2" {
                "3"
            } else {
                "2"
            };
            for name in ["mender_boot_part", "mender_boot_part_hex"] {
                variables.insert(name.to_owned(), other.to_owned());
            }
            variables.insert("upgrade_available".to_owned(), "0".to_owned());
        }
    }
    assert_eq!(
        variables["mender_boot_part"],
        variables["mender_boot_part_hex"]
    );
    match variables["mender_boot_part"].as_str() {
        "2" => Some(SlotName::A),
        "3" => Some(SlotName::B),
        other => panic!("{other}"),
    }
}
