//! RAUC's convention, to take over a disk whose script is RAUC's (`contrib/uboot.sh`, `src/bootloaders/uboot.c`).
//!
//! `BOOT_ORDER` lists slots; the script starts the first whose `BOOT_<slot>_LEFT` (hexadecimal) is above 0 and takes
//! one from it, on every boot, of a proven slot too. Where none is left it sets both to 3 and resets: an endless loop
//! where both slots are really bad. A proven slot therefore gets its tries back each time that it is marked good.
//! What these variables cannot tell apart stands in `slotd_a_state` and `slotd_b_state` (`good`, `trial`, `bad`,
//! `empty`), and `slotd_tries`, the boots of the trial.

use super::{Convention, Meaning, Memo, TRIES, hexadecimal, seen_counting, started_nonetheless};
use crate::backend::{Counting, NextBoot, Problem, ProblemCode, SlotState};
use crate::error::Result;
use crate::record::Record;
use crate::slot::SlotName;
use crate::table::Booted;
use crate::uboot::environment::Environment;

const ORDER: &str = "BOOT_ORDER";

/// Boots that RAUC gives a good slot by default, and that its script starts from.
const ATTEMPTS: u32 = 3;

/// RAUC's variables.
#[derive(Debug)]
pub(crate) struct Rauc;

fn left_name(slot: SlotName) -> String {
    format!("BOOT_{slot}_LEFT")
}

/// What the variables say of a slot, and what is odd about it.
fn state(
    environment: &Environment,
    slot: SlotName,
    listed: bool,
    booted: Booted,
) -> Result<(SlotState, Option<Problem>), String> {
    let left = hexadecimal(environment, &left_name(slot))?;
    let startable = listed && left != Some(0);
    let given = hexadecimal(environment, TRIES)?.unwrap_or(0);
    let runs = booted == Booted::Slot(slot);
    let left = left.unwrap_or(ATTEMPTS);
    let trial = SlotState::Trial {
        left,
        done: given.saturating_sub(left),
    };
    let state = match (Memo::read(environment, slot)?, startable) {
        (Some(Memo::Bad), _) => SlotState::Bad,
        (Some(Memo::Empty), _) => SlotState::Empty,
        (Some(Memo::Trial), true) => trial,
        (Some(Memo::Trial), false) if runs && listed => trial,
        (Some(Memo::Good) | None, true) => SlotState::Good,
        // It was proven, and the script has counted it down: that proves nothing against it, and the next change gives its
        // tries back.
        (Some(Memo::Good), false) if listed => SlotState::Good,
        // RAUC's own mark: out of the order, no tries left. Where nothing was ever said of it, nothing is claimed.
        (None, false) if !listed && environment.text(&left_name(slot)).is_none() => {
            SlotState::Empty
        }
        (Some(Memo::Good | Memo::Trial) | None, false) => SlotState::Bad,
    };
    let problem = match state {
        SlotState::Bad | SlotState::Empty if startable => Some(started_nonetheless(slot, state)),
        SlotState::Good if !startable => Some(used_up(slot)),
        _ => None,
    };
    Ok((state, problem))
}

/// That the script passes over a slot that is proven.
fn used_up(slot: SlotName) -> Problem {
    Problem {
        code: ProblemCode::PromiseNotKept,
        message: format!(
            "slot {slot} is proven, but was started so often without being marked good that {} is 0: RAUC's script passes \
             over it until the next change, which gives its tries back",
            left_name(slot)
        ),
    }
}

impl Convention for Rauc {
    fn knows(&self, environment: &Environment) -> bool {
        SlotName::BOTH
            .into_iter()
            .flat_map(|slot| [left_name(slot), Memo::name(slot)])
            .chain([ORDER.to_owned()])
            .any(|name| environment.text(&name).is_some())
    }

    fn read(&self, environment: &Environment, booted: Booted) -> Result<Meaning, String> {
        // The script's own defaults.
        let order = environment.text(ORDER).unwrap_or("A B");
        let order: Vec<SlotName> = order
            .split(' ')
            .filter_map(|word| match word {
                "A" => Some(SlotName::A),
                "B" => Some(SlotName::B),
                _ => None,
            })
            .collect();
        let first = *order.first().ok_or_else(|| {
            format!(
                "{ORDER}={} names neither A nor B",
                environment.text(ORDER).unwrap_or_default()
            )
        })?;
        let (a, odd_a) = state(
            environment,
            SlotName::A,
            order.contains(&SlotName::A),
            booted,
        )?;
        let (b, odd_b) = state(
            environment,
            SlotName::B,
            order.contains(&SlotName::B),
            booted,
        )?;
        let mut record = Record { a, b, first };
        let ended = |slot| matches!(record.state(slot), SlotState::Bad | SlotState::Empty);
        if ended(first) && !ended(!first) {
            // The script passes over it.
            record.first = !first;
        }
        if record.state(first) == SlotState::Good
            && booted == Booted::Slot(!first)
            && hexadecimal(environment, &left_name(first))? == Some(0)
        {
            // It has passed over it, for the one that runs and is preferred from then on.
            record.first = !first;
        }
        let mut problems: Vec<Problem> = odd_a.into_iter().chain(odd_b).collect();
        problems.push(Problem {
            code: ProblemCode::PromiseNotKept,
            message: format!(
                "RAUC's script takes a try on every boot: a proven slot that is not marked good after each boot is left \
                 after {ATTEMPTS} of them, and where both slots have none left it starts over without end"
            ),
        });
        let counting = match seen_counting(&record, booted) {
            (Counting::Inactive, problem) => {
                problems.extend(problem);
                Counting::Inactive
            }
            _ => Counting::EveryBoot,
        };
        Ok(Meaning {
            record,
            counting,
            problems,
        })
    }

    fn variables(&self, wanted: &Record) -> Result<Vec<(String, String)>> {
        let startable = |slot: &SlotName| {
            matches!(
                wanted.state(*slot),
                SlotState::Good | SlotState::Trial { .. }
            )
        };
        let both = [wanted.first, !wanted.first];
        let mut order: Vec<String> = both
            .iter()
            .filter(|slot| startable(slot))
            .map(ToString::to_string)
            .collect();
        // Never empty: the script would take that for "A B".
        if order.is_empty() {
            order = both.iter().map(ToString::to_string).collect();
        }
        let mut variables = vec![(ORDER.to_owned(), order.join(" "))];
        let mut given = String::new();
        for slot in SlotName::BOTH {
            let state = wanted.state(slot);
            let left = match state {
                SlotState::Good => ATTEMPTS,
                SlotState::Trial { left, done } => {
                    given = format!("{:x}", left.saturating_add(done));
                    left
                }
                SlotState::Bad | SlotState::Empty => 0,
            };
            variables.push((left_name(slot), format!("{left:x}")));
            variables.push((Memo::name(slot), Memo::of(state).to_owned()));
        }
        variables.push((TRIES.to_owned(), given));
        Ok(variables)
    }

    fn next(&self, record: &Record) -> NextBoot {
        // With none left the script resets both counts, and begins with the first of the order.
        match record.first_startable() {
            NextBoot::Nothing => NextBoot::Slot {
                slot: record.first,
                trial: false,
            },
            next => next,
        }
    }

    fn max_tries(&self) -> u32 {
        255
    }
}
