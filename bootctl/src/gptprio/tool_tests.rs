//! Against the tools that know these tables: `sgdisk`, `sfdisk`, `fdisk` and ChromeOS's own `cgpt`, both ways.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use super::attributes::Boot;
use super::crash_tests::disk;
use super::disk::{Disk, DiskNode};
use super::input_tests::run;
use super::tables::{Other, Tables};

/// Rounds with random attributes for each disk.
const ROUNDS: u64 = 12;

/// Random enough, and the same each time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn boot(&mut self) -> Boot {
        Boot::of(self.next() >> 7)
    }
}

fn feed(tool: &str, arguments: &[&str], disk: &Path, input: &str) -> String {
    let mut child = Command::new(tool)
        .args(arguments)
        .arg(disk)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .env("LC_ALL", "C.UTF-8")
        .spawn()
        .unwrap_or_else(|error| panic!("{tool}: {error}"));
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{tool}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A disk of 16384 sectors with slots of those numbers and a table of that many entries.
fn made_by_sfdisk(path: &Path, numbers: [u32; 2], length: u32) {
    std::fs::File::create(path)
        .unwrap()
        .set_len(16384 * 512)
        .unwrap();
    let [a, b] = numbers;
    let script = format!(
        "label: gpt\ntable-length: {length}\n\
         1 : start=2048, size=512, type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B, name=ESP\n\
         {a} : start=4096, size=1024, name=\"root-a\", attrs=\"RequiredPartition GUID:57,60\"\n\
         {b} : start=6144, size=1024, name=\"Wurzel-ü\", attrs=\"LegacyBIOSBootable GUID:59\"\n"
    );
    feed("sfdisk", &["-q"], path, &script);
}

fn node(path: &Path, sector: u32) -> DiskNode {
    DiskNode {
        path: path.to_owned(),
        sector,
        size: std::fs::metadata(path).unwrap().len(),
        fixture: true,
    }
}

/// Sets the attributes by the code under test.
fn set(node: &DiskNode, boots: &[(u32, Boot)]) {
    let numbers: Vec<u32> = boots.iter().map(|(number, _)| *number).collect();
    let disk = node.open_for_writing().unwrap();
    let tables = Tables::read(&disk, &numbers).unwrap();
    for stage in tables.change(boots).unwrap() {
        for (lba, bytes) in stage.0 {
            disk.write(lba, &bytes).unwrap();
        }
        disk.flush().unwrap();
    }
}

/// Reads them by the code under test; both copies have to be whole.
fn get(node: &DiskNode, number: u32) -> Boot {
    let tables = Tables::read(&node.open().unwrap(), &[number]).unwrap();
    assert!(matches!(tables.other, Other::Same(_)), "{tables:?}");
    assert_eq!(tables.obstacles, [""; 0]);
    let mut entries = tables.entries().into_iter();
    entries.find(|entry| entry.number == number).unwrap().boot
}

fn by_sgdisk(path: &Path, number: u32) -> u64 {
    let text = run("sgdisk", &["-i", &number.to_string()], path);
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Attribute flags: "));
    u64::from_str_radix(line.unwrap_or_else(|| panic!("{text}")), 16).unwrap()
}

fn by_sfdisk(path: &Path, number: u32) -> u64 {
    let path = path.to_str().unwrap();
    let text = run(
        "sfdisk",
        &["--part-attrs", path],
        Path::new(&number.to_string()),
    );
    bits_of(text.trim())
}

/// `RequiredPartition LegacyBIOSBootable GUID:48,56` as bits.
fn bits_of(text: &str) -> u64 {
    text.split([' ', ','])
        .filter(|word| !word.is_empty())
        .fold(0, |bits, word| {
            let bit = match word {
                "RequiredPartition" => 0,
                "NoBlockIOProtocol" => 1,
                "LegacyBIOSBootable" => 2,
                word => word
                    .trim_start_matches("GUID:")
                    .parse()
                    .unwrap_or_else(|_| panic!("{text}")),
            };
            bits | 1_u64 << bit
        })
}

fn by_cgpt(path: &Path, number: u32) -> Boot {
    let field = |field: &str| -> u8 {
        run("cgpt", &["show", "-i", &number.to_string(), field], path)
            .trim()
            .parse()
            .unwrap()
    };
    Boot {
        priority: field("-P"),
        tries: field("-T"),
        successful: field("-S") == 1,
    }
}

fn set_by_cgpt(path: &Path, boots: [(u32, Boot); 2]) {
    for (number, boot) in boots {
        let values = [
            format!("-i{number}"),
            format!("-P{}", boot.priority),
            format!("-T{}", boot.tries),
            format!("-S{}", u8::from(boot.successful)),
        ];
        let values = values.iter().map(String::as_str);
        let arguments: Vec<&str> = ["add"].into_iter().chain(values).collect();
        run("cgpt", &arguments, path);
    }
}

fn is_set(boot: Boot, bit: u32) -> bool {
    boot.in_attributes(0) >> bit & 1 == 1
}

fn set_by_sfdisk(path: &Path, boots: [(u32, Boot); 2]) {
    for (number, boot) in boots {
        let bits = (48..=56).filter(|bit| is_set(boot, *bit));
        let bits: Vec<String> = bits.map(|bit| format!("GUID:{bit}")).collect();
        let arguments = [
            "-q",
            "--part-attrs",
            path.to_str().unwrap(),
            &number.to_string(),
        ];
        run("sfdisk", &arguments, Path::new(&bits.join(",")));
    }
}

/// Both in one call: it waits for a second after each.
fn set_by_sgdisk(path: &Path, boots: [(u32, Boot); 2]) {
    let changes: Vec<String> = boots
        .into_iter()
        .flat_map(|(number, boot)| {
            (48..=56).map(move |bit| {
                let change = if is_set(boot, bit) { "set" } else { "clear" };
                format!("--attributes={number}:{change}:{bit}")
            })
        })
        .collect();
    let arguments: Vec<&str> = changes.iter().map(String::as_str).collect();
    run("sgdisk", &arguments, path);
}

fn checked_by_the_tools(path: &Path) {
    let text = run("sgdisk", &["-v"], path);
    assert!(text.contains("No problems found"), "{text}");
    let text = run("sfdisk", &["--verify"], path);
    assert!(text.contains("No errors detected"), "{text}");
}

const DISKS: [([u32; 2], u32); 5] = [
    ([2, 3], 128),
    ([9, 5], 128),
    ([128, 4], 128),
    ([4, 3], 4),
    ([248, 7], 248),
];

#[test]
fn attributes_that_we_write_are_those_that_all_tools_read() {
    let mut random = Random(0x5107_d000_0000_0001);
    for (numbers, length) in DISKS {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        made_by_sfdisk(&path, numbers, length);
        let others = numbers.map(|number| by_sgdisk(&path, number));
        // Bits 57 and 60, 59, and those of the specification.
        assert_eq!(others, [1 << 57 | 1 << 60 | 1, 1 << 59 | 4]);
        let listed = run("sfdisk", &["-d"], &path);
        for round in 0..ROUNDS {
            let boots = numbers.map(|number| (number, random.boot()));
            set(&node(&path, 512), &boots);
            checked_by_the_tools(&path);
            for ((number, boot), other) in boots.into_iter().zip(others) {
                let expected = other
                    | u64::from(boot.priority) << 48
                    | u64::from(boot.tries) << 52
                    | u64::from(boot.successful) << 56;
                let what = format!("{numbers:?} of {length}, round {round}: {boot}");
                assert_eq!(by_sgdisk(&path, number), expected, "{what}");
                assert_eq!(by_sfdisk(&path, number), expected, "{what}");
                if length == 128 {
                    assert_eq!(by_cgpt(&path, number), boot, "{what}");
                }
            }
        }
        set(
            &node(&path, 512),
            &numbers.map(|number| (number, Boot::default())),
        );
        assert_eq!(run("sfdisk", &["-d"], &path), listed);
    }
}

#[test]
fn attributes_that_the_tools_write_are_those_that_we_read() {
    let mut random = Random(0x5107_d000_0000_0002);
    for (numbers, length) in DISKS {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        made_by_sfdisk(&path, numbers, length);
        for round in 0..6 {
            let boots = numbers.map(|number| (number, random.boot()));
            match round % 3 {
                0 if length == 128 => set_by_cgpt(&path, boots),
                1 => set_by_sfdisk(&path, boots),
                _ => set_by_sgdisk(&path, boots),
            }
            for (number, boot) in boots {
                assert_eq!(
                    get(&node(&path, 512), number),
                    boot,
                    "{numbers:?} of {length}, round {round}"
                );
            }
        }
    }
}

/// On plain files only `fdisk` of Debian 12 takes another sector size than 512.
#[test]
fn with_sectors_of_4096_bytes_fdisk_and_we_read_each_other() {
    let mut random = Random(0x5107_d000_0000_0003);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    std::fs::File::create(&path)
        .unwrap()
        .set_len(8192 * 4096)
        .unwrap();
    // Entries 32 and 33 are in different sectors of the array.
    feed(
        "fdisk",
        &["-b", "4096"],
        &path,
        "g\nn\n32\n512\n+512\nn\n33\n2048\n+512\nw\n",
    );
    let arguments = ["-b", "4096", "-l", "-o", "Attrs"];
    let attributes = |path: &Path| -> Vec<u64> {
        let text = run("fdisk", &arguments, path);
        let table = text
            .split_once("Attrs\n")
            .unwrap_or_else(|| panic!("{text}"))
            .1;
        table
            .lines()
            .take(2)
            .map(|line| bits_of(line.trim()))
            .collect()
    };
    for _ in 0..ROUNDS {
        let boots = [32, 33].map(|number| (number, random.boot()));
        set(&node(&path, 4096), &boots);
        assert_eq!(
            attributes(&path),
            boots.map(|(_, boot)| boot.in_attributes(0))
        );
        let text = feed("fdisk", &["-b", "4096"], &path, "v\nq\n");
        assert!(text.contains("No errors detected"), "{text}");
        // `S` in the expert menu turns one bit over.
        let flip = random.boot();
        let steps: Vec<String> = (48..=56)
            .filter(|bit| is_set(flip, *bit))
            .map(|bit| format!("S\n33\n{bit}\n"))
            .collect();
        let input = format!("x\n{}r\nw\n", steps.concat());
        feed("fdisk", &["-b", "4096"], &path, &input);
        let expected = boots[1].1.in_attributes(0) ^ flip.in_attributes(0);
        assert_eq!(get(&node(&path, 4096), 33), Boot::of(expected));
        assert_eq!(get(&node(&path, 4096), 32), boots[0].1);
    }
}

/// Entries larger than usual, which none of the tools makes or reads: by hand.
#[test]
fn larger_entries_are_changed_in_place() {
    let (image, _) = disk(512, [2, 3]);
    let last = image.len() - 512;
    let mut wide = image.clone();
    for (header, array) in [(512, 1024), (last, last - 128 * 128)] {
        let mut entries = Vec::new();
        for entry in image[array..array + 64 * 128].chunks_exact(128) {
            entries.extend_from_slice(entry);
            entries.extend_from_slice(&[0xee; 128]);
        }
        wide[array..array + entries.len()].copy_from_slice(&entries);
        wide[header + 80..header + 84].copy_from_slice(&64_u32.to_le_bytes());
        wide[header + 84..header + 88].copy_from_slice(&256_u32.to_le_bytes());
        seal(&mut wide, header, array);
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    std::fs::write(&path, &wide).unwrap();
    let boot = Boot {
        priority: 9,
        tries: 6,
        successful: true,
    };
    set(&node(&path, 512), &[(2, boot), (3, boot)]);
    assert_eq!(
        [2, 3].map(|number| get(&node(&path, 512), number)),
        [boot, boot]
    );
    // Entries 2 and 3, bits 48 to 56: 0x0169.
    let mut expected = wide;
    for (header, array) in [(512, 1024), (last, last - 128 * 128)] {
        for entry in [1, 2] {
            let at = array + entry * 256 + 48 + 6;
            expected[at..at + 2].copy_from_slice(&[0x69, 0x01]);
        }
        seal(&mut expected, header, array);
    }
    assert!(std::fs::read(&path).unwrap() == expected);
}

fn seal(disk: &mut [u8], header: usize, array: usize) {
    let crc = crc32fast::hash(&disk[array..array + 128 * 128]);
    disk[header + 88..header + 92].copy_from_slice(&crc.to_le_bytes());
    disk[header + 16..header + 20].fill(0);
    let crc = crc32fast::hash(&disk[header..header + 92]);
    disk[header + 16..header + 20].copy_from_slice(&crc.to_le_bytes());
}
