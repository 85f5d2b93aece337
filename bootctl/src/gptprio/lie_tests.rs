//! Tables whose checksums are right and whose contents are not.

use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

use super::crash_tests::{Recorded, disk};
use super::input_tests::{
    ARMED_B, GOOD_A, NUMBERS, Node, ON_A, SECTOR, backup, set, set_backup, set_entry,
};
use crate::backend::{ProblemCode, RefusalCode};
use crate::error::ErrorKind;
use crate::record::RecordStore;

#[test]
fn a_header_that_lies_is_not_believed() {
    let cases: [(&str, usize, Vec<u8>); 20] = [
        ("revision", 8, 0x0002_0000_u32.to_le_bytes().to_vec()),
        ("header size 0", 12, 0_u32.to_le_bytes().to_vec()),
        ("header size 91", 12, 91_u32.to_le_bytes().to_vec()),
        ("header size 513", 12, 513_u32.to_le_bytes().to_vec()),
        ("header size 4 GiB", 12, u32::MAX.to_le_bytes().to_vec()),
        ("own place", 24, 7_u64.to_le_bytes().to_vec()),
        (
            "first usable behind the last",
            40,
            250_u64.to_le_bytes().to_vec(),
        ),
        (
            "first usable in the array",
            40,
            10_u64.to_le_bytes().to_vec(),
        ),
        (
            "last usable behind the disk",
            48,
            u64::MAX.to_le_bytes().to_vec(),
        ),
        (
            "array in the first sector",
            72,
            0_u64.to_le_bytes().to_vec(),
        ),
        ("array on the header", 72, 1_u64.to_le_bytes().to_vec()),
        ("array in a partition", 72, 50_u64.to_le_bytes().to_vec()),
        (
            "array across the backup header",
            72,
            240_u64.to_le_bytes().to_vec(),
        ),
        ("array behind the disk", 72, u64::MAX.to_le_bytes().to_vec()),
        ("no entries", 80, 0_u32.to_le_bytes().to_vec()),
        (
            "more entries than memory",
            80,
            u32::MAX.to_le_bytes().to_vec(),
        ),
        (
            "entries that reach into a partition",
            80,
            200_u32.to_le_bytes().to_vec(),
        ),
        ("entries of 0 bytes", 84, 0_u32.to_le_bytes().to_vec()),
        ("entries of 120 bytes", 84, 120_u32.to_le_bytes().to_vec()),
        ("entries of 132 bytes", 84, 132_u32.to_le_bytes().to_vec()),
    ];
    for (what, at, value) in cases {
        // In one copy: the other is used, and nothing is written.
        let node = Node::new(|disk| set(disk, SECTOR, at, &value));
        node.refused(what, "only the backup table is whole");
        let node = Node::new(|disk| set_backup(disk, at, &value));
        node.refused(what, "only the primary table is whole");
        if what == "first usable in the array" {
            // Which is the primary array alone.
            continue;
        }
        // In both there is no table.
        let node = Node::new(|disk| {
            set(disk, SECTOR, at, &value);
            set_backup(disk, at, &value);
        });
        let before = node.bytes();
        let error = node.store.load(ON_A).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsafe, "{what}");
        node.store.commit(ON_A, &ARMED_B, None).unwrap_err();
        assert!(node.bytes() == before, "{what}");
    }
    // Where the other copy is.
    for alternate in [0, 1, 2, 100, 254, 256, u64::MAX] {
        let node = Node::new(|disk| set(disk, SECTOR, 32, &u64::to_le_bytes(alternate)));
        node.refused("alternate", "only the primary table is whole");
    }
    let node = Node::new(|disk| set_backup(disk, 32, &2_u64.to_le_bytes()));
    node.refused("alternate of the backup", "describes something else");
}

#[test]
fn entries_that_lie_are_refused() {
    let overlapping = Node::new(|disk| set_entry(disk, 4, 32, &90_u64.to_le_bytes()));
    overlapping.refused("overlap", "partitions 3 and 4 overlap");
    let on_table = Node::new(|disk| set_entry(disk, 1, 32, &5_u64.to_le_bytes()));
    on_table.refused("on the table", "partition 1 spans sectors 5 to 59");
    let behind = Node::new(|disk| set_entry(disk, 4, 40, &u64::MAX.to_le_bytes()));
    behind.refused("behind the disk", "partition 4 spans");
    let reversed = Node::new(|disk| set_entry(disk, 4, 40, &1_u64.to_le_bytes()));
    reversed.refused("reversed", "partition 4 spans sectors 100 to 1");

    // A slot's entry that is another partition now.
    for (at, value) in [(32, 61_u64), (40, 78), (16, 1), (0, 0)] {
        let node = Node::new(|disk| {
            set_entry(disk, 2, at, &value.to_le_bytes());
            if at == 0 {
                set_entry(disk, 2, 8, &[0; 8]);
            }
        });
        let before = node.bytes();
        let error = node.store.load(ON_A).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsafe);
        assert!(
            error.to_string().contains("partition 2 in the table"),
            "{error}"
        );
        node.store.commit(ON_A, &ARMED_B, None).unwrap_err();
        assert!(!node.refusals().is_empty());
        assert!(node.bytes() == before);
    }
}

#[test]
fn a_third_partition_that_the_loader_would_start_first_is_named() {
    let attributes = |priority: u64| (priority << 48 | 1 << 56).to_le_bytes();
    // Slot A has priority 15 and a lower number than partition 4, but not than partition 1.
    for (number, priority, named) in [(1, 15, true), (4, 15, false), (1, 14, false), (4, 0, false)]
    {
        let node = Node::new(|disk| set_entry(disk, number, 48, &attributes(priority)));
        let refusals = node.refusals();
        assert_eq!(!refusals.is_empty(), named, "{refusals:?}");
        assert_eq!(
            node.problems()
                .iter()
                .any(|(code, _)| *code == ProblemCode::ForeignDefault),
            named
        );
        if named {
            assert_eq!(refusals[0].0, RefusalCode::ForeignEntryFirst);
            assert!(refusals[0].1.contains("partition 1"), "{refusals:?}");
        }
    }
    // Of another type it is none of the loader's.
    let node = Node::new(|disk| {
        set_entry(disk, 1, 48, &attributes(15));
        set_entry(disk, 1, 0, &[9; 16]);
    });
    assert_eq!(node.refusals(), []);
}

proptest! {
    #[test]
    fn any_header_with_a_right_checksum_is_refused_or_changed_within_the_tables(
        at in 24_usize..92, value in any::<u64>(), small in any::<bool>(), both in any::<bool>(),
    ) {
        let value = if small { value % 300 } else { value }.to_le_bytes();
        let (image, store) = disk(SECTOR, NUMBERS);
        let setup = Recorded::new(&image, SECTOR);
        store.write(&setup, ON_A, &GOOD_A).unwrap();
        let mut bytes = setup.bytes();
        let length = value.len().min(92 - at);
        set(&mut bytes, SECTOR, at, &value[..length]);
        if both {
            let header = backup(&bytes);
            set(&mut bytes, header, at, &value[..length]);
        }
        let disk = Recorded::new(&bytes, SECTOR);
        let result = store.write(&disk, ON_A, &ARMED_B);
        let after = disk.bytes();
        if result.is_err() {
            prop_assert_eq!(&after, &bytes);
        }
        // The first sector and the partitions, whatever the header says.
        prop_assert_eq!(&after[..SECTOR], &bytes[..SECTOR]);
        prop_assert_eq!(&after[34 * SECTOR..223 * SECTOR], &bytes[34 * SECTOR..223 * SECTOR]);
    }

    #[test]
    fn any_damage_to_one_copy_is_read_as_the_other_and_never_spreads(
        offset in 0_usize..33 * SECTOR, bit in 0_u8..8, in_backup in any::<bool>(),
    ) {
        let (image, store) = disk(SECTOR, NUMBERS);
        let setup = Recorded::new(&image, SECTOR);
        store.write(&setup, ON_A, &GOOD_A).unwrap();
        let mut bytes = setup.bytes();
        let at = if in_backup { 223 * SECTOR + offset } else { SECTOR + offset };
        bytes[at] ^= 1 << bit;
        let disk = Recorded::new(&bytes, SECTOR);
        match store.write(&disk, ON_A, &ARMED_B) {
            Ok(()) => {
                let end = Recorded::new(&setup.bytes(), SECTOR);
                store.write(&end, ON_A, &ARMED_B).unwrap();
                // Finished, or the flipped bit is in no field.
                let mut end = end.bytes();
                if disk.bytes() != end {
                    end[at] ^= 1 << bit;
                }
                prop_assert!(disk.bytes() == end);
            }
            Err(error) => {
                prop_assert_eq!(error.kind(), ErrorKind::Unsafe);
                prop_assert!(disk.bytes() == bytes);
            }
        }
    }
}
