use std::io::{Cursor, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

use super::{Copy, Gpt, TYPE_ESP, read};
use crate::error::Result;
use crate::fixture::{gpt_image, usual_partitions};

/// A table as `sfdisk` makes it, with gaps in the numbering.
const SCRIPT: &str = "label: gpt
unit: sectors
3 : start=2048, size=512, type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B, name=ESP, uuid=00000000-0000-0000-0000-0000000000E0
5 : start=4096, size=1024, type=4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709, name=\"root-a\", uuid=11111111-2222-3333-4455-66778899AABB
9 : start=6144, size=1024, type=4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709, name=\"Wurzel-ü\", uuid=11111111-2222-3333-4455-66778899AABC
";

fn made_by_sfdisk(script: &str) -> Vec<u8> {
    made_by("sfdisk", &["-q"], 512, |_| script.to_owned(), script)
}

/// `sfdisk` of Debian 12 takes the sector size of the device only; `fdisk` loads the same script.
fn made_by_fdisk(sector: u32, script: &str) -> Vec<u8> {
    let size = sector.to_string();
    let commands = |path: &Path| format!("I\n{}\nw\n", path.display());
    made_by("fdisk", &["-b", &size], u64::from(sector), commands, script)
}

fn made_by(
    tool: &str,
    arguments: &[&str],
    sector: u64,
    input: impl Fn(&Path) -> String,
    script: &str,
) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let (disk, script_file) = (dir.path().join("disk"), dir.path().join("script"));
    std::fs::File::create(&disk)
        .unwrap()
        .set_len(sector * 16384)
        .unwrap();
    std::fs::write(&script_file, script).unwrap();
    let mut child = Command::new(tool)
        .args(arguments)
        .arg(&disk)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .env("LC_ALL", "C.UTF-8")
        .spawn()
        .unwrap_or_else(|error| panic!("{tool}: {error}"));
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input(&script_file).as_bytes())
        .unwrap();
    assert!(child.wait().unwrap().success());
    std::fs::read(disk).unwrap()
}

fn parse(disk: &[u8], sector: u32) -> Result<Gpt> {
    read(
        &mut Cursor::new(disk),
        disk.len() as u64,
        sector,
        Path::new("disk"),
    )
}

#[test]
fn tables_that_the_usual_tools_make_are_read_for_both_sector_sizes() {
    for (sector, disk) in [
        (512, made_by_sfdisk(SCRIPT)),
        (4096, made_by_fdisk(4096, SCRIPT)),
    ] {
        let gpt = parse(&disk, sector).unwrap();
        assert_eq!(gpt.copy, Copy::Primary);
        let numbers: Vec<u32> = gpt.entries.iter().map(|entry| entry.index).collect();
        assert_eq!(numbers, [3, 5, 9]);
        let [esp, a, b] = gpt.entries.as_slice() else {
            panic!("{:?}", gpt.entries)
        };
        assert_eq!(esp.type_uuid, TYPE_ESP);
        let bytes = |sectors: u64| sectors * u64::from(sector);
        assert_eq!((esp.start, esp.size), (bytes(2048), bytes(512)));
        assert_eq!(a.name, "root-a");
        assert_eq!(a.uuid.to_string(), "11111111-2222-3333-4455-66778899aabb");
        assert_eq!(b.name, "Wurzel-ü");
    }
}

#[test]
fn the_fixtures_table_is_one_that_partx_reads_alike() {
    let partitions = usual_partitions("root-a", "root-b", 0xa000);
    let image = gpt_image(64 * 1024 * 1024, 4096, &partitions);
    let ours: Vec<String> = parse(&image, 4096)
        .unwrap()
        .entries
        .iter()
        .map(|e| format!("{} {} {} {}", e.index, e.start / 512, e.size / 512, e.name))
        .collect();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    std::fs::write(&path, image).unwrap();
    let output = Command::new("partx")
        .args([
            "--raw",
            "--noheadings",
            "-S",
            "4096",
            "-o",
            "NR,START,SECTORS,NAME",
        ])
        .arg(&path)
        .output()
        .unwrap();
    // partx counts in units of 512 bytes.
    let theirs = String::from_utf8(output.stdout).unwrap();
    assert_eq!(ours, theirs.lines().collect::<Vec<_>>());
}

#[test]
fn the_number_of_entries_comes_from_the_disk() {
    let script = SCRIPT.replace("unit: sectors", "unit: sectors\ntable-length: 24");
    let gpt = parse(&made_by_sfdisk(&script), 512).unwrap();
    assert_eq!(gpt.entries.len(), 3);
}

#[test]
fn a_wrong_sector_size_finds_no_table() {
    let error = parse(&made_by_sfdisk(SCRIPT), 4096).unwrap_err();
    assert!(error.to_string().contains("no GPT header"), "{error}");
}

#[test]
fn a_damaged_primary_is_answered_with_the_backup() {
    let good = made_by_sfdisk(SCRIPT);
    let expected = parse(&good, 512).unwrap().entries;
    // Header, header checksum, an entry.
    for offset in [512, 512 + 16, 1024 + 2 * 128 + 56] {
        let mut disk = good.clone();
        disk[offset] ^= 0x40;
        let gpt = parse(&disk, 512).unwrap();
        assert_eq!(gpt.copy, Copy::Backup, "byte {offset}");
        assert_eq!(gpt.entries, expected);
    }
}

#[test]
fn a_backup_in_the_middle_of_a_grown_disk_is_found_through_the_primary_header() {
    let mut disk = made_by_sfdisk(SCRIPT);
    let expected = parse(&disk, 512).unwrap().entries;
    disk.resize(disk.len() * 2, 0);
    disk[1024 + 2 * 128] ^= 1;
    let gpt = parse(&disk, 512).unwrap();
    assert_eq!((gpt.copy, gpt.entries), (Copy::Backup, expected));
}

#[test]
fn damage_in_both_copies_is_an_error_that_names_the_offset() {
    let mut disk = made_by_sfdisk(SCRIPT);
    let last = disk.len() - 512;
    disk[last] ^= 1;
    disk[1024] ^= 1;
    let error = parse(&disk, 512).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("byte 1024: checksum of the entry array"),
        "{error}"
    );
}

#[test]
fn larger_entries_than_usual_are_read() {
    // By hand, since no tool makes them: entry size 256, recomputed checksums.
    let mut disk = made_by_sfdisk(SCRIPT);
    let old: Vec<u8> = disk[1024..1024 + 128 * 32].to_vec();
    let mut array = Vec::new();
    for entry in old.chunks_exact(128) {
        array.extend_from_slice(entry);
        array.extend_from_slice(&[0; 128]);
    }
    disk[1024..1024 + array.len()].copy_from_slice(&array);
    disk[512 + 80..512 + 84].copy_from_slice(&32_u32.to_le_bytes());
    disk[512 + 84..512 + 88].copy_from_slice(&256_u32.to_le_bytes());
    disk[512 + 88..512 + 92].copy_from_slice(&crc32fast::hash(&array).to_le_bytes());
    disk[512 + 16..512 + 20].fill(0);
    let crc = crc32fast::hash(&disk[512..512 + 92]);
    disk[512 + 16..512 + 20].copy_from_slice(&crc.to_le_bytes());
    let gpt = parse(&disk, 512).unwrap();
    assert_eq!(gpt.copy, Copy::Primary);
    assert_eq!(
        gpt.entries
            .iter()
            .map(|entry| entry.index)
            .collect::<Vec<_>>(),
        [3, 5, 9]
    );
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
        let mut disk = vec![0; 512];
        disk.extend_from_slice(b"EFI PART");
        disk.extend_from_slice(&bytes);
        prop_assert!(parse(&disk, 512).is_err());
    }

    #[test]
    fn any_header_with_a_right_checksum_is_refused_or_in_bounds(
        lba in any::<u64>(), entries_lba in any::<u64>(), count in any::<u32>(), size in any::<u32>(),
    ) {
        let mut disk = vec![0_u8; 512 * 64];
        let header = &mut disk[512..512 + 92];
        header[..8].copy_from_slice(b"EFI PART");
        header[12..16].copy_from_slice(&92_u32.to_le_bytes());
        header[24..32].copy_from_slice(&1_u64.to_le_bytes());
        header[32..40].copy_from_slice(&lba.to_le_bytes());
        header[72..80].copy_from_slice(&(entries_lba % 70).to_le_bytes());
        header[80..84].copy_from_slice(&(count % 300).to_le_bytes());
        header[84..88].copy_from_slice(&(size % 1024).to_le_bytes());
        let crc = crc32fast::hash(header);
        header[16..20].copy_from_slice(&crc.to_le_bytes());
        if let Ok(gpt) = parse(&disk, 512) {
            prop_assert!(gpt.entries.is_empty());
        }
    }

    #[test]
    fn a_flipped_bit_anywhere_in_the_primary_changes_nothing_that_is_read(
        offset in 512_usize..512 + 92, bit in 0_u8..8,
    ) {
        let mut disk = made_once();
        let expected = parse(&disk, 512).unwrap().entries;
        disk[offset] ^= 1 << bit;
        prop_assert_eq!(parse(&disk, 512).unwrap().entries, expected);
    }
}

fn made_once() -> Vec<u8> {
    static DISK: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    DISK.get_or_init(|| made_by_sfdisk(SCRIPT)).clone()
}
