use std::fs;

use proptest::prelude::{Just, ProptestConfig, Strategy, prop_assert, prop_assert_eq, proptest};
use proptest::{collection, option, sample};

use super::{NoPlace, SECTOR, Variable, lay_out};
use crate::grub::environment::tests::{editenv, iterate, listing, value};
use crate::grub::environment::{Environment, SIGNATURE, record};

const NAMES: [&str; 3] = ["slotd_order", "slotd_a_ok", "slotd_b_tries"];
/// Lengths of the longest values.
const LONGEST: [usize; 3] = [3, 1, 1];
/// Names, values, equals signs and newlines.
const RESERVE: usize = 11 + 10 + 13 + 5 + 3 * 2;

fn wanted() -> impl Strategy<Value = Vec<Variable>> {
    let digit = || option::of(sample::select(vec![&b"0"[..], b"1", b"3"]));
    let order = option::of(sample::select(vec![&b"a b"[..], b"b a"]));
    (order, digit(), digit()).prop_map(|(order, ok, tries)| {
        [order, ok, tries]
            .into_iter()
            .zip(NAMES)
            .map(|(value, name)| (name.to_owned(), value.map(<[u8]>::to_vec)))
            .collect()
    })
}

fn line() -> impl Strategy<Value = Vec<u8>> {
    proptest::prop_oneof![
        4 => (sample::select(vec!["x", "y", "foo", "kernelopts"]), value(), 1..20_usize)
            .prop_map(|(name, value, times)| record(name, &value.repeat(times))),
        2 => (sample::select(NAMES.to_vec()), sample::select(vec![&b"1"[..], b"a b", b"much too long for it"]))
            .prop_map(|(name, value)| record(name, value)),
        1 => "#[a-z #]{0,60}\n".prop_map(String::into_bytes),
        1 => Just(b"##\n".to_vec()),
    ]
}

fn block() -> impl Strategy<Value = Vec<u8>> {
    let size = sample::select(vec![512_usize, 600, 1024, 1025, 2048]);
    (collection::vec(line(), 0..16), size).prop_map(|(lines, size)| {
        let mut bytes = SIGNATURE.to_vec();
        for line in lines {
            if bytes.len() + line.len() <= size {
                bytes.extend(line);
            }
        }
        bytes.resize(size, b'#');
        bytes
    })
}

/// Name to last value, without ours.
fn others(block: &[u8]) -> std::collections::BTreeMap<Vec<u8>, Vec<u8>> {
    let mut values: std::collections::BTreeMap<_, _> = iterate(block).into_iter().collect();
    values.retain(|name, _| !NAMES.iter().any(|own| own.as_bytes() == name));
    values
}

fn last(block: &[u8], name: &str) -> Option<Vec<u8>> {
    let mut values = iterate(block).into_iter().rev();
    values
        .find(|(known, _)| known == name.as_bytes())
        .map(|(_, value)| value)
}

fn sectors_that_differ(a: &[u8], b: &[u8]) -> Vec<usize> {
    let pairs = a.chunks(SECTOR).zip(b.chunks(SECTOR)).enumerate();
    pairs
        .filter(|(_, (a, b))| a != b)
        .map(|(index, _)| index)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_block_on_the_way_holds_what_it_should(block in block(), first in wanted(), second in wanted()) {
        let environment = Environment::parse(&block).unwrap();
        let blocks = match lay_out(&environment, &block, &first, RESERVE) {
            Ok(blocks) => blocks,
            Err(NoPlace::TooSmall { used, size, .. }) => {
                // Only where others' lines really leave too little room.
                prop_assert!(used + RESERVE + 2 > SECTOR.min(size), "{used} of {size}");
                return Ok(());
            }
            Err(NoPlace::Inconsistent(problem)) => {
                // An escape that a sector's end cuts in two, or names that come twice: refused, nothing is lost.
                let twice = iterate(&block).len() != others(&block).len();
                let cut = block.len() > SECTOR && block[..SECTOR].ends_with(b"\\");
                prop_assert!(twice || cut, "{}", problem);
                return Ok(());
            }
        };
        let long = NAMES.iter().zip(LONGEST).any(|(name, longest)| {
            last(&block, name).is_some_and(|value| value.len() > longest)
        });
        let mut before = block.clone();
        for (index, now) in blocks.iter().enumerate() {
            prop_assert_eq!(now.len(), block.len());
            prop_assert_eq!(others(now), others(&block));
            let done = NAMES.iter().all(|name| last(now, name) == first.iter().find(|(own, _)| own == name).unwrap().1);
            let undone = NAMES.iter().all(|name| last(now, name) == last(&block, name));
            if index + 1 == blocks.len() {
                prop_assert!(done);
                if !long && !undone {
                    prop_assert_eq!(sectors_that_differ(&before, now), [0]);
                }
            } else {
                prop_assert!(undone || long);
            }
            before = now.clone();
        }
        // From then on it is one sector.
        let environment = Environment::parse(&before).unwrap();
        let again = lay_out(&environment, &before, &second, RESERVE).unwrap();
        prop_assert!(again.len() <= 1);
        for now in again {
            prop_assert_eq!(sectors_that_differ(&before, &now), [0]);
            prop_assert_eq!(others(&now), others(&block));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn the_usual_tool_goes_on_with_a_laid_out_block(block in block(), first in wanted(), second in wanted()) {
        let environment = Environment::parse(&block).unwrap();
        let Ok(blocks) = lay_out(&environment, &block, &first, RESERVE) else { return Ok(()) };
        let now = blocks.last().unwrap_or(&block);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("grubenv");
        fs::write(&file, now).unwrap();
        prop_assert_eq!(editenv(&file, &["list".into()]).unwrap(), listing(&iterate(now)));
        // It adds, changes and removes; a block that is full stays as it is.
        for arguments in [["set", "zz_new=1"], ["set", "slotd_b_tries=2"], ["unset", "slotd_a_ok"], ["set", "zz_new=22"]] {
            let _ = editenv(&file, &arguments.map(Into::into));
        }
        let theirs = fs::read(&file).unwrap();
        let environment = Environment::parse(&theirs).unwrap();
        prop_assert!(!environment.is_damaged());
        let Ok(blocks) = lay_out(&environment, &theirs, &second, RESERVE) else { return Ok(()) };
        let ours = blocks.last().unwrap_or(&theirs);
        prop_assert_eq!(others(ours), others(&theirs));
        fs::write(&file, ours).unwrap();
        prop_assert_eq!(editenv(&file, &["list".into()]).unwrap(), listing(&iterate(ours)));
    }
}

fn simple() -> Vec<Variable> {
    let values = [&b"b a"[..], b"1", b"3"];
    let pairs = NAMES.iter().zip(values);
    pairs
        .map(|(name, value)| ((*name).to_owned(), Some(value.to_vec())))
        .collect()
}

#[test]
fn a_long_variable_of_others_makes_way_for_ours() {
    // As Fedora has it: one line across the first sector's end.
    let mut block = SIGNATURE.to_vec();
    block.extend(record("saved_entry", b"linux-6.1"));
    block.extend(record(
        "kernelopts",
        "root=UUID=x ro quiet ".repeat(23).as_bytes(),
    ));
    let long = block.len();
    block.resize(1024, b'#');
    assert!(long > SECTOR && long < 1024, "{long}");
    let environment = Environment::parse(&block).unwrap();
    let laid_out = lay_out(&environment, &block, &simple(), RESERVE);
    let error = laid_out.map(|blocks| blocks.len()).unwrap_err();
    let text = error.to_string();
    for part in ["too small", "1024", "grub-editenv", &long.to_string()] {
        assert!(text.contains(part), "{text}");
    }
    // With room behind it, it is copied there first.
    block.resize(2048, b'#');
    let environment = Environment::parse(&block).unwrap();
    let blocks = lay_out(&environment, &block, &simple(), RESERVE).unwrap();
    assert_eq!(blocks.len(), 2);
    assert!(!sectors_that_differ(&block, &blocks[0]).contains(&0));
    assert_eq!(sectors_that_differ(&blocks[0], &blocks[1]), [0]);
    assert_eq!(others(&blocks[1]), others(&block));
    assert_eq!(last(&blocks[1], "slotd_order").unwrap(), b"b a");
}

#[test]
fn ours_stand_first_and_within_the_first_sector() {
    let fresh = Environment::fresh();
    let blocks = lay_out(&fresh, fresh.bytes(), &simple(), RESERVE).unwrap();
    let expected = "# GRUB Environment Block\n\
        # WARNING: Do not edit this file by tools other than grub-editenv!!!\n\
        slotd_order=b a\nslotd_a_ok=1\nslotd_b_tries=3\n#\n";
    let expected = format!("{expected:#<1024}");
    assert_eq!(String::from_utf8_lossy(blocks.last().unwrap()), expected);
}

#[test]
fn a_full_block_in_which_ours_stand_last_is_changed_as_any_other() {
    for size in [SECTOR, 1024, 2048] {
        let ours = record("slotd_order", b"a b");
        let mut block = SIGNATURE.to_vec();
        if size == SECTOR {
            // A comment leaves as much room as ours need, with what is reserved for others of ours.
            let comment = size - SIGNATURE.len() - RESERVE - 2;
            block.extend([&b"# "[..], &vec![b'c'; comment - 3], b"\n"].concat());
            block.extend(&ours);
            block.extend([&vec![b'#'; size - block.len() - 1][..], b"\n"].concat());
        } else {
            // Room in front, as a block has that was laid out before; others' up to the last of ours.
            block.extend([&[b'#'; RESERVE + 2][..], b"\n"].concat());
            let other = size - block.len() - b"other=\n".len() - ours.len();
            block.extend(record("other", &vec![b'x'; other]));
            block.extend(&ours);
        }
        assert_eq!(block.len(), size);
        let environment = Environment::parse(&block).unwrap();
        let blocks = lay_out(&environment, &block, &simple(), RESERVE).unwrap();
        let now = blocks.last().unwrap();
        assert_eq!(last(now, "slotd_order").unwrap(), b"b a", "{size}");
        assert_eq!(others(now), others(&block), "{size}");
        // With a newline at its end GRUB would find no room in it.
        assert!(!Environment::parse(now).unwrap().is_damaged(), "{size}");
        assert_eq!(now.last(), Some(&b'#'), "{size}");
    }
}

#[test]
fn ours_far_behind_are_brought_to_the_front_before_they_change() {
    let mut block = SIGNATURE.to_vec();
    block.extend(record("other", &[b'x'; 500]));
    block.extend(record("slotd_order", b"a b"));
    block.resize(2048, b'#');
    let environment = Environment::parse(&block).unwrap();
    let blocks = lay_out(&environment, &block, &simple(), RESERVE).unwrap();
    let orders: Vec<_> = blocks
        .iter()
        .map(|block| last(block, "slotd_order").unwrap())
        .collect();
    assert!(orders.len() >= 3, "{orders:?}");
    let (new, old) = orders.split_last().unwrap();
    assert_eq!(new, b"b a");
    assert!(old.iter().all(|order| order == b"a b"), "{orders:?}");
    let at = |block: &[u8]| {
        block
            .windows(12)
            .filter(|text| text == b"slotd_order=")
            .count()
    };
    assert_eq!(at(blocks.last().unwrap()), 1);
}
