use std::io::{Cursor, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use proptest::prelude::{any, prop_assert, proptest};

use super::{DosTable, read};
use crate::error::Result;
use crate::fixture::{dos_image, usual_partitions};

/// Two primaries, an extended partition with three logical ones, and a primary behind it.
const SCRIPT: &str = "label: dos
label-id: 0x0badcafe
unit: sectors
1 : start=2048, size=512, type=c, bootable
2 : start=4096, size=1024, type=83
3 : start=6144, size=8192, type=5
4 : start=14336, size=1000, type=83
5 : start=8192, size=512, type=83
6 : start=10752, size=1024, type=83
7 : start=13824, size=256, type=82
";

const SECTORS: u64 = 16384;

/// A disk as `sfdisk` makes it; for other sectors than 512 bytes as `fdisk` does, with the same script.
fn made(sector: u32, script: &str) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let (disk, file) = (dir.path().join("disk"), dir.path().join("script"));
    std::fs::File::create(&disk)
        .unwrap()
        .set_len(SECTORS * u64::from(sector))
        .unwrap();
    std::fs::write(&file, script).unwrap();
    let (mut command, input) = if sector == 512 {
        let mut command = Command::new("sfdisk");
        command.arg("-q");
        (command, script.to_owned())
    } else {
        let mut command = Command::new("fdisk");
        command.args(["-b", &sector.to_string()]);
        (command, format!("I\n{}\nw\n", file.display()))
    };
    let mut child = command
        .arg(&disk)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .env("LC_ALL", "C.UTF-8")
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    assert!(child.wait().unwrap().success());
    std::fs::read(disk).unwrap()
}

fn parse(disk: &[u8], sector: u32) -> Result<Option<DosTable>> {
    let size = u64::try_from(disk.len()).unwrap();
    read(&mut Cursor::new(disk), size, sector, Path::new("disk"))
}

fn table(disk: &[u8], sector: u32) -> DosTable {
    parse(disk, sector).unwrap().unwrap()
}

/// Number, start and size in units of 512 bytes, as `partx` finds them, sorted.
fn by_partx(disk: &[u8], sector: u32) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    std::fs::write(&path, disk).unwrap();
    let output = Command::new("partx")
        .args([
            "--raw",
            "--noheadings",
            "-S",
            &sector.to_string(),
            "-o",
            "NR,START,SECTORS",
        ])
        .arg(&path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn tables_that_the_usual_tools_make_are_read_as_partx_reads_them() {
    for sector in [512, 4096] {
        let disk = made(sector, SCRIPT);
        let found = table(&disk, sector);
        assert_eq!(found.signature, Some(0x0bad_cafe));
        let mut ours: Vec<String> = found
            .entries
            .iter()
            .map(|e| format!("{} {} {}", e.index, e.start / 512, e.size / 512))
            .collect();
        ours.sort();
        assert_eq!(ours, by_partx(&disk, sector), "sectors of {sector}");
        let logical = found.entries.iter().find(|entry| entry.index == 6).unwrap();
        let unit = u64::from(sector);
        assert_eq!((logical.start, logical.size), (10752 * unit, 1024 * unit));
        let extended: Vec<u32> = found
            .entries
            .iter()
            .filter(|entry| entry.extended)
            .map(|entry| entry.index)
            .collect();
        assert_eq!(extended, [3]);
    }
}

#[test]
fn the_fixtures_table_is_one_that_partx_reads_alike() {
    let mut partitions = usual_partitions("", "", 0);
    for (partition, index) in partitions.iter_mut().zip([1, 2, 5, 6]) {
        partition.index = index;
    }
    for sector in [512, 4096] {
        let image = dos_image(64 << 20, sector, 0x0bad_cafe, &partitions);
        let mut ours: Vec<String> = table(&image, sector)
            .entries
            .iter()
            .map(|e| format!("{} {} {}", e.index, e.start / 512, e.size / 512))
            .collect();
        ours.sort();
        assert_eq!(ours.len(), 5);
        assert_eq!(ours, by_partx(&image, sector), "sectors of {sector}");
    }
}

#[test]
fn a_disk_without_a_signature_has_none() {
    let mut disk = made(512, SCRIPT);
    disk[440..444].fill(0);
    assert_eq!(table(&disk, 512).signature, None);
}

#[test]
fn an_extended_partition_that_was_never_filled_is_empty() {
    let script = "label: dos\n1 : start=2048, size=4096, type=5\n2 : start=8192, size=512\n";
    let mut disk = made(512, script);
    disk[2048 * 512..2049 * 512].fill(0);
    let numbers: Vec<u32> = table(&disk, 512).entries.iter().map(|e| e.index).collect();
    assert_eq!(numbers, [1, 2]);
}

#[test]
fn what_is_no_dos_table_is_left_to_others() {
    let gpt = made(512, "label: gpt\nstart=2048, size=512\n");
    assert_eq!(parse(&gpt, 512).unwrap(), None);
    // A hybrid table: the kernel takes the GUID table as soon as one entry protects it.
    let mut hybrid = gpt.clone();
    let entry = hybrid[446..462].to_vec();
    hybrid[462..478].copy_from_slice(&entry);
    hybrid[446 + 4] = 0x83;
    assert_eq!(parse(&hybrid, 512).unwrap(), None);
    assert_eq!(parse(&vec![0; 1 << 20], 512).unwrap(), None);
    let mut empty = vec![0; 1 << 20];
    empty[510..512].copy_from_slice(&[0x55, 0xaa]);
    assert_eq!(parse(&empty, 512).unwrap(), None);
    // A file system's boot sector.
    let mut boot_sector = made(512, SCRIPT);
    boot_sector[446] = 0x20;
    assert_eq!(parse(&boot_sector, 512).unwrap(), None);
}

#[test]
fn damage_is_an_error_that_names_the_place() {
    let good = made(512, SCRIPT);
    let entry = |number: usize| 446 + (number - 1) * 16;
    // Partition 4 reaches beyond the end.
    let mut disk = good.clone();
    disk[entry(4) + 12..entry(4) + 16].copy_from_slice(&1_000_000_u32.to_le_bytes());
    let error = parse(&disk, 512).unwrap_err().to_string();
    assert!(error.contains("partition 4 spans 1000000"), "{error}");
    // The first link of the chain: its second entry leads to the next one.
    let link = 6144 * 512;
    for (next, word) in [
        (0_u32, "chain of more than 100"),
        (9000, "the next link"),
        (5, "is none"),
    ] {
        let mut disk = good.clone();
        disk[link + 462 + 8..link + 462 + 12].copy_from_slice(&next.to_le_bytes());
        let error = parse(&disk, 512).unwrap_err().to_string();
        assert!(error.contains(word), "{next}: {error}");
        assert!(error.contains("byte "), "{error}");
    }
}

proptest! {
    #[test]
    fn arbitrary_tables_never_panic_and_stay_within_the_disk(
        first in proptest::collection::vec(any::<u8>(), 64),
        link in proptest::collection::vec(any::<u8>(), 64),
        kinds in proptest::array::uniform4(0_u8..16),
        small in any::<bool>(),
    ) {
        let mut disk = vec![0_u8; 512 * 256];
        for sector in disk.chunks_exact_mut(512) {
            sector[446..510].copy_from_slice(&link);
            sector[510..512].copy_from_slice(&[0x55, 0xaa]);
        }
        disk[446..510].copy_from_slice(&first);
        for (number, kind) in kinds.into_iter().enumerate() {
            disk[446 + number * 16] &= 0x80;
            disk[446 + number * 16 + 4] = kind;
            if small {
                disk[446 + number * 16 + 9..446 + number * 16 + 12].fill(0);
                disk[446 + number * 16 + 13..446 + number * 16 + 16].fill(0);
            }
        }
        if let Ok(Some(table)) = parse(&disk, 512) {
            for entry in table.entries {
                prop_assert!(entry.start + entry.size <= 512 * 256);
            }
        }
    }
}
