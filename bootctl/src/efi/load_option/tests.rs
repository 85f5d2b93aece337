use std::fs;
use std::path::Path;
use std::process::Command;

use proptest::prelude::{any, prop_assert_eq, proptest};
use uuid::Uuid;

use super::{HardDrive, LoadOption};

const GLOBAL: &str = "8be4df61-93ca-11d2-aa0d-00e098032b8c";

/// `Boot0000` as efibootmgr 17 made it on a disk that sfdisk made: partition 1 from sector 2048, 16384 sectors, UUID
/// `0000a001-0000-0000-0000-0000000000ff`, file `\EFI\slotd\a\linux.efi`, label "slotd A", `-u 'root=PARTUUID=x ro'`.
const BY_EFIBOOTMGR: &str = "01000000600073006c006f007400640020004100000004012a000100000000080000000000000040000000000000\
    01a000000000000000000000000000ff0202040432005c004500460049005c0073006c006f00740064005c006100\
    5c006c0069006e00750078002e0065006600690000007fff040072006f006f0074003d0050004100520054005500\
    5500490044003d007800200072006f00";

/// Of OVMF's variable store in Debian 12 (`OVMF_VARS_4M.ms.fd`), as `virt-fw-vars` prints them: the firmware's menu (a
/// program that does not boot), a disk (PCI, SATA, with data of the firmware's own), and the shell.
const OF_OVMF: [(&str, &str, bool); 3] = [
    (
        "090100002c0055006900410070007000000004071400c9bdb87cebf8344faaea3ee4af6516a10406140021aa2c46\
         14760345836e8ab6f46623317fff0400",
        "UiApp",
        false,
    ),
    (
        "01000000200055004500460049002000510045004d005500200048004100520044004400490053004b0020005100\
         4d00300030003000300031002000000002010c00d041030a0000000001010600021f03120a000000ffff00007fff\
         04004eac0881119f594d850ee21a522c59b2",
        "UEFI QEMU HARDDISK QM00001 ",
        true,
    ),
    (
        "010000002c00450046004900200049006e007400650072006e0061006c0020005300680065006c006c0000000407\
         1400c9bdb87cebf8344faaea3ee4af6516a10406140083a5047c3e9e1c4fad65e05268d0b4d17fff0400",
        "EFI Internal Shell",
        true,
    ),
];

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b' ').collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn partition() -> HardDrive {
    HardDrive {
        number: 1,
        start: 2048,
        size: 16384,
        signature: "0000a001-0000-0000-0000-0000000000ff".parse().unwrap(),
    }
}

#[test]
fn what_efibootmgr_made_is_made_alike() {
    let theirs = unhex(BY_EFIBOOTMGR);
    let option = LoadOption::parse(&theirs).unwrap();
    assert_eq!(option.description(), "slotd A");
    assert_eq!(option.hard_drive(), Some(partition()));
    assert_eq!(option.file().as_deref(), Some("\\EFI\\slotd\\a\\linux.efi"));
    assert_eq!(option.arguments(), "root=PARTUUID=x ro");
    assert!(option.starts_by_itself());

    let ours = LoadOption::new(
        "slotd A",
        &partition(),
        "\\EFI\\slotd\\a\\linux.efi",
        "root=PARTUUID=x ro",
    );
    // Ours ends in a NUL besides.
    assert_eq!(ours.render(), [theirs, vec![0, 0]].concat());
}

#[test]
fn the_firmwares_own_options_are_read_and_keep_every_byte() {
    for (hex, description, starts) in OF_OVMF {
        let bytes = unhex(hex);
        let option = LoadOption::parse(&bytes).unwrap();
        assert_eq!(option.render(), bytes);
        assert_eq!(option.description(), description);
        assert_eq!(option.starts_by_itself(), starts, "{description}");
        assert_eq!((option.hard_drive(), option.file()), (None, None));
    }
}

#[test]
fn efibootmgr_reads_ours() {
    let dir = tempfile::tempdir().unwrap();
    let option = LoadOption::new(
        "slotd B trial",
        &HardDrive {
            number: 7,
            start: 0x12_3456_789a,
            size: 0x10_0000,
            signature: "11112222-3333-4444-5555-666677778888".parse().unwrap(),
        },
        "\\EFI\\slotd\\b\\linux.efi",
        "quiet",
    );
    let put = |name: &str, data: &[u8]| {
        let path = dir.path().join(format!("{name}-{GLOBAL}"));
        fs::write(path, [&[7, 0, 0, 0], data].concat()).unwrap();
    };
    put("Boot00AB", &option.render());
    put("Boot00AC", &option.with_active(false).render());
    put("BootOrder", &[0xab, 0, 0xac, 0]);
    put("BootNext", &[0xac, 0]);
    let listed = efibootmgr(dir.path(), &["-v"]);
    let path = "HD(7,GPT,11112222-3333-4444-5555-666677778888,0x123456789a,0x100000)\
                /File(\\EFI\\slotd\\b\\linux.efi)";
    assert!(
        listed.contains(&format!("Boot00AB* slotd B trial\t{path}")),
        "{listed}"
    );
    assert!(
        listed.contains(&format!("Boot00AC  slotd B trial\t{path}")),
        "{listed}"
    );
    assert!(listed.contains("BootNext: 00AC"), "{listed}");
    assert!(listed.contains("BootOrder: 00AB,00AC"), "{listed}");
}

/// efibootmgr on a directory instead of the firmware's variables.
pub(crate) fn efibootmgr(variables: &Path, arguments: &[&str]) -> String {
    let output = Command::new("efibootmgr")
        .args(arguments)
        .env("LIBEFIVAR_OPS", "efivarfs")
        // The library joins names to it without a separator.
        .env("EFIVARFS_PATH", format!("{}/", variables.display()))
        .output()
        .unwrap_or_else(|error| panic!("efibootmgr: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {text}{error}");
    text
}

#[test]
fn a_length_that_leads_out_of_the_bytes_is_named() {
    let whole = unhex(BY_EFIBOOTMGR);
    for (length, named) in [
        (0, "attributes (byte 0)"),
        (3, "attributes (byte 0)"),
        (5, "length of the device path (byte 4)"),
        (6, "description (byte 6)"),
        (20, "description (byte 6)"),
        (60, "device path of 96 bytes (byte 22)"),
        (117, "device path of 96 bytes (byte 22)"),
    ] {
        let problem = LoadOption::parse(&whole[..length]).unwrap_err();
        assert!(problem.contains(named), "{length}: {problem}");
    }
    // The optional data may be cut anywhere.
    assert!(LoadOption::parse(&whole[..118]).is_ok());
}

#[test]
fn nodes_that_make_no_sense_end_the_path() {
    let whole = unhex(BY_EFIBOOTMGR);
    // The hard drive node's length (byte 24): none at all, too long, shorter than its header.
    for length in [0_u8, 3, 200] {
        let mut bytes = whole.clone();
        bytes[24] = length;
        let option = LoadOption::parse(&bytes).unwrap();
        assert_eq!((option.hard_drive(), option.file()), (None, None));
        assert_eq!(option.render(), bytes);
    }
    // A partition of a DOS table is not one by UUID.
    let mut bytes = whole;
    bytes[62] = 1;
    assert_eq!(LoadOption::parse(&bytes).unwrap().hard_drive(), None);
}

proptest! {
    #[test]
    fn whatever_can_be_read_keeps_every_byte(
        attributes: u32,
        text in proptest::collection::vec(1_u16.., 0..20),
        path in proptest::collection::vec(any::<u8>(), 0..80),
        data in proptest::collection::vec(any::<u8>(), 0..40),
        cut in 0_usize..200,
    ) {
        let mut bytes = attributes.to_le_bytes().to_vec();
        bytes.extend(u16::try_from(path.len()).unwrap().to_le_bytes());
        bytes.extend(text.iter().flat_map(|unit| unit.to_le_bytes()));
        bytes.extend([0, 0]);
        bytes.extend(&path);
        bytes.extend(&data);
        let option = LoadOption::parse(&bytes).unwrap();
        prop_assert_eq!(option.render(), bytes.clone());
        prop_assert_eq!(&option.description, &text);
        prop_assert_eq!(&option.data, &data);
        let _ = (option.hard_drive(), option.file(), option.arguments());
        bytes.truncate(cut);
        if let Ok(option) = LoadOption::parse(&bytes) {
            prop_assert_eq!(option.render(), bytes);
        }
    }

    #[test]
    fn what_is_built_reads_as_it_was_given(
        number: u32, start: u64, size: u64, signature: u128, description in "[^\\x00]{0,30}",
        arguments in "[^\\x00]{0,200}",
    ) {
        let partition = HardDrive { number, start, size, signature: Uuid::from_u128(signature) };
        let file = "\\EFI\\slotd\\a\\linux.efi";
        let option = LoadOption::new(&description, &partition, file, &arguments);
        let read = LoadOption::parse(&option.render()).unwrap();
        prop_assert_eq!(&read, &option);
        prop_assert_eq!(read.hard_drive(), Some(partition));
        prop_assert_eq!(read.file(), Some(file.to_owned()));
        prop_assert_eq!(read.description(), description);
        prop_assert_eq!(read.arguments(), arguments);
    }
}
