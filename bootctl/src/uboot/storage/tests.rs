use std::sync::Arc;

use super::*;
use crate::uboot::medium::FixtureFlash;
use crate::uboot::medium::tests::flash_place;

/// A copy by the format's description.
fn copy(strings: &str, size: usize, flags: u8) -> Vec<u8> {
    let mut data = strings.as_bytes().to_vec();
    data.resize(size - 5, 0xff);
    let crc = crc32fast::hash(&data).to_le_bytes();
    [crc.as_slice(), &[flags], &data].concat()
}

/// A pair of 0x800 bytes at 0x1000 and 0x2000 of a flash with blocks of 0x1000.
fn pair(flash: &Arc<FixtureFlash>) -> Storage {
    Storage {
        config: PathBuf::from("/etc/fw_env.config"),
        first: flash_place(flash, 0x1000, 0x800),
        second: Some(flash_place(flash, 0x2000, 0x800)),
        scheme: FlagScheme::Boolean,
    }
}

fn flash(first: u8, second: u8) -> Arc<FixtureFlash> {
    let flash = Arc::new(FixtureFlash::new(0x4000, 0x1000));
    let mut bytes = vec![0xff; 0x4000];
    bytes[0x1000..0x1800].copy_from_slice(&copy("a=first\0b=1\0\0", 0x800, first));
    bytes[0x2000..0x2800].copy_from_slice(&copy("a=second\0b=1\0\0", 0x800, second));
    bytes[0x1800..0x2000].fill(0x11);
    bytes[0x3000..].fill(0x33);
    flash.put(&bytes);
    flash
}

#[test]
fn of_a_pair_on_flash_the_other_copy_is_written_and_the_old_one_retired() {
    for (first, second, current) in [(1, 0, 0), (0, 1, 1), (255, 0, 0), (1, 1, 0)] {
        let flash = flash(first, second);
        let before = flash.bytes();
        let storage = pair(&flash);
        let stored = storage.read().unwrap();
        assert_eq!(stored.current, current);
        let mut wanted = stored.environment.clone();
        wanted.set("b", "2").unwrap();
        storage.write(&stored, &wanted).unwrap();
        let after = flash.bytes();
        let (old, new) = if current == 0 {
            (0x1000, 0x2000)
        } else {
            (0x2000, 0x1000)
        };
        assert_eq!((after[old + 4], after[new + 4]), (0, 1));
        assert_eq!(after[old..old + 4], before[old..old + 4]);
        assert_eq!(after[0x1800..0x2000], before[0x1800..0x2000]);
        assert_eq!(after[0x3000..], before[0x3000..]);
        let found = storage.read().unwrap();
        assert_eq!(found.current, 1 - current);
        assert_eq!(found.environment.text("b"), Some("2"));
    }
}

#[test]
fn a_power_cut_in_any_operation_on_flash_leaves_the_old_or_the_new_variables() {
    for (first, second) in [(1, 0), (0, 1)] {
        let mut outcomes = Vec::new();
        // Erase, program, flag: the third cut is behind the last one.
        for operations in 0..=3 {
            let flash = flash(first, second);
            let storage = pair(&flash);
            let stored = storage.read().unwrap();
            let mut wanted = stored.environment.clone();
            wanted.set("b", "2").unwrap();
            flash.cut_after(operations);
            assert_eq!(
                storage.write(&stored, &wanted).is_ok(),
                operations == 3,
                "{operations}"
            );
            let found = storage.read().unwrap();
            let value = found.environment.text("b").unwrap().to_owned();
            assert_eq!(
                found.environment.text("a"),
                stored.environment.text("a"),
                "{operations}"
            );
            outcomes.push(value);
        }
        assert_eq!(outcomes[0], "1");
        assert_eq!(outcomes[3], "2");
    }
}

#[test]
fn copies_in_one_erase_block_overlap() {
    let flash = flash(1, 0);
    let first = flash_place(&flash, 0x1000, 0x800);
    assert!(first.overlaps(&flash_place(&flash, 0x1800, 0x800)));
    assert!(!first.overlaps(&flash_place(&flash, 0x2000, 0x800)));
    assert!(flash_place(&flash, 0x1000, 0x1001).overlaps(&flash_place(&flash, 0x2000, 0x800)));
}
