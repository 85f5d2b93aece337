//! U-Boot's own boot counter with a variable for the slot, as Mender has it.
//!
//! The slot that is started stands in one variable (`mender_boot_part`). While `upgrade_available` is 1, U-Boot adds 1
//! to `bootcount` on each boot (`drivers/bootcount/bootcount_env.c`), and where it exceeds `bootlimit` runs
//! `altbootcmd`, which names the other slot, sets `upgrade_available` to 0 and starts it. These numbers are decimal.
//! With `upgrade_available` 0 nothing is counted and the slot is started whatever is known of it: two bad slots are
//! started for ever, and not by slotd's doing. What the variables cannot tell stands in `slotd_a_state` and
//! `slotd_b_state` (`good`, `trial`, `bad`, `empty`).

use super::{Convention, Meaning, Memo, cannot_hold, seen_counting, started_nonetheless};
use crate::backend::{NextBoot, Problem, ProblemCode, SlotState};
use crate::error::Result;
use crate::record::Record;
use crate::slot::SlotName;
use crate::table::Booted;
use crate::uboot::environment::Environment;

const COUNT: &str = "bootcount";
const LIMIT: &str = "bootlimit";
const UPGRADE: &str = "upgrade_available";

/// U-Boot's counter and a slot variable.
#[derive(Debug)]
pub(crate) struct BootCount {
    /// Name of the variable that names the slot.
    pub(crate) variable: String,
    /// Its values for slot A and slot B.
    pub(crate) values: [String; 2],
}

impl BootCount {
    fn value(&self, slot: SlotName) -> &str {
        let [a, b] = &self.values;
        match slot {
            SlotName::A => a,
            SlotName::B => b,
        }
    }

    /// The companion that holds the same number in hexadecimal for U-Boot's commands, and its value.
    fn companion(&self, slot: SlotName) -> Option<(String, String)> {
        let number: u32 = self.value(slot).parse().ok()?;
        Some((format!("{}_hex", self.variable), format!("{number:x}")))
    }
}

/// As `env_get_ulong` with base 10 reads it, where it is all digits.
fn decimal(environment: &Environment, name: &str) -> Result<u32, String> {
    match environment.text(name) {
        None => Ok(0),
        Some(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => text
            .parse()
            .map_err(|_| format!("{name}={text} is too large a number")),
        Some(text) => Err(format!("{name}={text} is no decimal number")),
    }
}

impl Convention for BootCount {
    fn knows(&self, environment: &Environment) -> bool {
        environment.text(&self.variable).is_some()
    }

    fn read(&self, environment: &Environment, booted: Booted) -> Result<Meaning, String> {
        let named = environment.text(&self.variable).unwrap_or_default();
        let current = SlotName::BOTH
            .into_iter()
            .find(|slot| self.value(*slot) == named)
            .ok_or_else(|| {
                let [a, b] = &self.values;
                format!(
                    "{}={named} names no slot; slot A is {a}, slot B is {b}",
                    self.variable
                )
            })?;
        let counted = decimal(environment, UPGRADE)? == 1;
        let (count, limit) = (decimal(environment, COUNT)?, decimal(environment, LIMIT)?);
        let memo = |slot| Memo::read(environment, slot);
        let mut problems = Vec::new();
        let mut record = Record {
            a: SlotState::Empty,
            b: SlotState::Empty,
            first: current,
        };
        record.set(
            !current,
            match memo(!current)? {
                Some(Memo::Good) => SlotState::Good,
                // It was on trial and is no longer named: U-Boot has given it up.
                Some(Memo::Bad | Memo::Trial) => SlotState::Bad,
                Some(Memo::Empty) | None => SlotState::Empty,
            },
        );
        let left = limit.saturating_sub(count);
        if !counted {
            let state = match memo(current)? {
                Some(Memo::Bad) => SlotState::Bad,
                Some(Memo::Empty) => SlotState::Empty,
                // Not counted: whoever ended the trial called it good.
                Some(Memo::Good | Memo::Trial) | None => SlotState::Good,
            };
            if state != SlotState::Good {
                problems.push(started_nonetheless(current, state));
            }
            record.set(current, state);
        } else if left == 0 && booted != Booted::Slot(current) {
            // The next boot exceeds the limit, and `altbootcmd` takes the other one.
            record.set(current, SlotState::Bad);
            record.first = !current;
        } else {
            record.set(current, SlotState::Trial { left, done: count });
        }
        let (counting, problem) = seen_counting(&record, booted);
        problems.extend(problem);
        problems.push(Problem {
            code: ProblemCode::PromiseNotKept,
            message: "bootcount is kept only while a trial runs: where both slots are bad, U-Boot starts the last one \
                      without end"
                .to_owned(),
        });
        Ok(Meaning {
            record,
            counting,
            problems,
        })
    }

    fn variables(&self, wanted: &Record) -> Result<Vec<(String, String)>> {
        if matches!(wanted.state(!wanted.first), SlotState::Trial { .. }) {
            return Err(cannot_hold(UPGRADE, wanted));
        }
        let mut variables = vec![(self.variable.clone(), self.value(wanted.first).to_owned())];
        variables.extend(self.companion(wanted.first));
        match wanted.state(wanted.first) {
            SlotState::Trial { left, done } => {
                let limit = left.saturating_add(done);
                variables.extend([
                    (UPGRADE.to_owned(), "1".to_owned()),
                    (COUNT.to_owned(), done.to_string()),
                    (LIMIT.to_owned(), limit.to_string()),
                ]);
            }
            // The limit stays: without a trial nothing is counted.
            _ => variables.extend([
                (UPGRADE.to_owned(), "0".to_owned()),
                (COUNT.to_owned(), "0".to_owned()),
            ]),
        }
        for slot in SlotName::BOTH {
            variables.push((Memo::name(slot), Memo::of(wanted.state(slot)).to_owned()));
        }
        Ok(variables)
    }

    fn next(&self, record: &Record) -> NextBoot {
        let slot = record.first;
        match record.state(slot) {
            SlotState::Trial { left: 1.., .. } => NextBoot::Slot { slot, trial: true },
            SlotState::Trial { .. } => NextBoot::Slot {
                slot: !slot,
                trial: false,
            },
            _ => NextBoot::Slot { slot, trial: false },
        }
    }

    fn max_tries(&self) -> u32 {
        255
    }
}
