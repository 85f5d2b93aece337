//! slotd's own convention, for the script in `systemd/usr/lib/slotd/uboot/`.
//!
//! | variable | value |
//! |---|---|
//! | `slotd_order` | `A B` or `B A`: which slot is preferred |
//! | `slotd_a_ok`, `slotd_b_ok` | `1`: proven, never counted; `0`: not proven; not set: empty |
//! | `slotd_a_tries`, `slotd_b_tries` | boots left to a slot that is not proven; not set: none, it was given up |
//! | `slotd_tries` | boots that the trial was given |
//! | `slotd_machine_id`, `slotd_deadline`, `slotd_panic` | what the script passes on, the numbers in decimal |
//!
//! Numbers are hexadecimal without `0x`. The script takes a try before it starts a slot that is not proven, and
//! starts nothing where no slot is proven and none has tries left.

use super::{Convention, Meaning, TRIES, hexadecimal, lower, seen_counting};
use crate::backend::{NextBoot, Problem, ProblemCode, SlotState};
use crate::error::Result;
use crate::record::Record;
use crate::slot::SlotName;
use crate::table::Booted;
use crate::uboot::environment::Environment;

const ORDER: &str = "slotd_order";

/// slotd's own variables.
#[derive(Debug)]
pub(crate) struct Own;

fn ok(slot: SlotName) -> String {
    lower("slotd_", slot, "_ok")
}

fn tries(slot: SlotName) -> String {
    lower("slotd_", slot, "_tries")
}

fn state(environment: &Environment, slot: SlotName, booted: Booted) -> Result<SlotState, String> {
    let given = hexadecimal(environment, TRIES)?.unwrap_or(0);
    let left = hexadecimal(environment, &tries(slot))?;
    let proven = match environment.text(&ok(slot)) {
        Some("1") => return Ok(SlotState::Good),
        Some("0") => true,
        None => false,
        Some(other) => return Err(format!("{}={other} is neither 0 nor 1", ok(slot))),
    };
    Ok(match (proven, left) {
        (false, _) => SlotState::Empty,
        (true, None) => SlotState::Bad,
        (true, Some(0)) if booted != Booted::Slot(slot) => SlotState::Bad,
        (true, Some(left)) => SlotState::Trial {
            left,
            done: given.saturating_sub(left),
        },
    })
}

impl Convention for Own {
    fn knows(&self, environment: &Environment) -> bool {
        // As the script asks; without these a number of tries says nothing.
        [ORDER.to_owned(), ok(SlotName::A), ok(SlotName::B)]
            .iter()
            .any(|name| environment.text(name).is_some())
    }

    fn read(&self, environment: &Environment, booted: Booted) -> Result<Meaning, String> {
        let mut problems = Vec::new();
        let first = match environment.text(ORDER) {
            Some(order) => {
                let first = order.split(' ').find_map(|word| match word {
                    "A" => Some(SlotName::A),
                    "B" => Some(SlotName::B),
                    _ => None,
                });
                first.ok_or_else(|| format!("{ORDER}={order} names neither A nor B"))?
            }
            None => SlotName::A,
        };
        let mut record = Record {
            a: state(environment, SlotName::A, booted)?,
            b: state(environment, SlotName::B, booted)?,
            first,
        };
        if !self.knows(environment) {
            // Missing is unknown, not bad. What runs was started nonetheless; of the other slot nothing is claimed.
            record.first = booted.slot().unwrap_or(SlotName::A);
            record.set(record.first, SlotState::Good);
            record.set(!record.first, SlotState::Empty);
            problems.push(Problem {
                code: ProblemCode::Unreadable,
                message: format!(
                    "the environment has none of slotd's variables ({ORDER}, {}, …); until it has, slot {} is taken \
                     for proven, but U-Boot's script starts slot A, or slot B where A has no kernel",
                    ok(SlotName::A),
                    record.first
                ),
            });
        }
        let (counting, problem) = seen_counting(&record, booted);
        problems.extend(problem);
        Ok(Meaning {
            record,
            counting,
            problems,
        })
    }

    fn variables(&self, wanted: &Record) -> Result<Vec<(String, String)>> {
        let order = format!("{} {}", wanted.first, !wanted.first);
        let mut variables = vec![(ORDER.to_owned(), order)];
        let mut given = String::new();
        for slot in SlotName::BOTH {
            let (ok_value, left) = match wanted.state(slot) {
                SlotState::Good => ("1", String::new()),
                SlotState::Bad => ("0", String::new()),
                SlotState::Empty => ("", String::new()),
                SlotState::Trial { left, done } => {
                    given = format!("{:x}", left.saturating_add(done));
                    ("0", format!("{left:x}"))
                }
            };
            variables.push((ok(slot), ok_value.to_owned()));
            variables.push((tries(slot), left));
        }
        variables.push((TRIES.to_owned(), given));
        Ok(variables)
    }

    fn next(&self, record: &Record) -> NextBoot {
        record.first_startable()
    }

    fn announces(&self) -> bool {
        true
    }

    fn max_tries(&self) -> u32 {
        // One digit: the same in hexadecimal, and in decimal on the kernel's command line.
        9
    }
}
