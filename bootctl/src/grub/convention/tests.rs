use super::{Convention, GrubConvention};
use crate::backend::SlotState;
use crate::grub::environment::Environment;
use crate::grub::layout::{SECTOR, lay_out};
use crate::record::Record;
use crate::slot::SlotName;
use crate::table::Booted;

fn convention(kind: GrubConvention) -> Convention {
    Convention {
        kind,
        names: kind.variables(),
    }
}

/// Every record that a convention can hold, and what runs meanwhile.
fn records(kind: GrubConvention) -> Vec<(Record, Booted)> {
    let mut states = vec![SlotState::Good, SlotState::Bad, SlotState::Empty];
    let most = kind.max_tries();
    states.extend((0..=most).map(|left| SlotState::Trial {
        left,
        done: most - left,
    }));
    let booted = [
        Booted::Slot(SlotName::A),
        Booted::Slot(SlotName::B),
        Booted::Neither,
    ];
    let mut records = Vec::new();
    for a in &states {
        for b in &states {
            for first in SlotName::BOTH {
                for booted in booted {
                    let record = Record {
                        a: *a,
                        b: *b,
                        first,
                    };
                    let trials = SlotName::BOTH.map(|slot| (slot, record.state(slot)));
                    let trials: Vec<_> = trials
                        .iter()
                        .filter(|(_, state)| matches!(state, SlotState::Trial { .. }))
                        .collect();
                    // One trial at a time; and a spent one is on its last boot or bad.
                    let spent = trials.iter().any(|(slot, state)| {
                        matches!(state, SlotState::Trial { left: 0, .. })
                            && booted != Booted::Slot(*slot)
                    });
                    if trials.len() < 2 && !spent {
                        records.push((record, booted));
                    }
                }
            }
        }
    }
    records
}

fn decode(convention: &Convention, block: &[u8], booted: Booted) -> Record {
    let environment = Environment::parse(block).unwrap();
    let decoded = convention.decode(|name| environment.get(name), booted, false);
    assert!(decoded.odd.is_empty() && decoded.known, "{decoded:?}");
    decoded.record
}

#[test]
fn every_record_is_read_as_it_was_written_and_is_one_sector_away_from_every_other() {
    for kind in [GrubConvention::Slotd, GrubConvention::Rauc] {
        let convention = convention(kind);
        let write = |block: &[u8], record: &Record| {
            let environment = Environment::parse(block).unwrap();
            let variables = convention.encode(record);
            let blocks = lay_out(&environment, block, &variables, convention.reserve()).unwrap();
            assert!(blocks.len() <= 1, "{}", blocks.len());
            blocks.into_iter().next().unwrap_or_else(|| block.to_vec())
        };
        let fresh = Environment::fresh().bytes().to_vec();
        let records = records(kind);
        assert!(records.len() > 50, "{}", records.len());
        for (record, booted) in &records {
            let block = write(&fresh, record);
            assert_eq!(decode(&convention, &block, *booted), *record);
            for (next, _) in records.iter().step_by(7) {
                let after = write(&block, next);
                assert_eq!(block[SECTOR..], after[SECTOR..]);
            }
        }
    }
}

#[test]
fn what_stands_in_the_block_is_what_its_page_says() {
    let cases = [
        (
            GrubConvention::Slotd,
            "slotd_order=b a|slotd_a_ok=1|slotd_b_ok=0|slotd_b_tries=2|slotd_tries=3",
        ),
        (
            GrubConvention::Rauc,
            "ORDER=B A|A_OK=1|A_TRY=0|B_OK=1|B_TRY=0|slotd_trial=B",
        ),
    ];
    for (kind, expected) in cases {
        let record = Record {
            a: SlotState::Good,
            b: SlotState::Trial { left: 2, done: 1 },
            first: SlotName::B,
        };
        let variables = convention(kind).encode(&record);
        let text: Vec<String> = variables
            .iter()
            .filter_map(|(name, value)| {
                Some(format!(
                    "{name}={}",
                    String::from_utf8_lossy(value.as_deref()?)
                ))
            })
            .collect();
        assert_eq!(text.join("|"), expected);
    }
}

#[test]
fn what_makes_no_sense_is_never_a_slot_that_may_be_started() {
    let convention = convention(GrubConvention::Slotd);
    for (variables, b) in [
        ("slotd_order=b a\nslotd_b_tries=10\n", SlotState::Bad),
        ("slotd_order=b a\nslotd_b_tries=x\n", SlotState::Bad),
        ("slotd_order=b a\nslotd_b_ok=2\n", SlotState::Bad),
        ("slotd_order=b a\nslotd_b_tries=0\n", SlotState::Bad),
        // The script goes by the order.
        ("slotd_order=a\nslotd_b_ok=1\n", SlotState::Bad),
        ("slotd_order=a\n", SlotState::Empty),
        ("slotd_order=b a\nslotd_b_ok=\n", SlotState::Empty),
    ] {
        let block = [b"# GRUB Environment Block\n", variables.as_bytes()].concat();
        let environment = Environment::parse(&block).unwrap();
        let get = |name: &str| environment.get(name);
        let record = convention
            .decode(get, Booted::Slot(SlotName::A), false)
            .record;
        assert_eq!(record.b, b, "{variables}");
    }
}
