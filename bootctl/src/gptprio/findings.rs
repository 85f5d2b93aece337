//! What is said of a table: problems that stop nothing, and reasons not to begin an update.

use uuid::Uuid;

use super::store::{Found, Gptprio, USR_SLOTS};
use super::table::Entry;
use super::tables::Other;
use crate::backend::{Counting, Problem, ProblemCode, Refusal, RefusalCode};
use crate::slot::SlotName;
use crate::table::Booted;

impl Gptprio {
    /// Partitions of the slots' types that are neither and that the loader would start before a slot.
    fn strangers(&self, found: &Found) -> Vec<Entry> {
        let numbers = self.numbers();
        let entries = found.tables.entries();
        let types: Vec<Uuid> = entries
            .iter()
            .filter(|entry| numbers.contains(&entry.number))
            .map(|entry| entry.type_uuid)
            .collect();
        let front = [found.bits.a, found.bits.b]
            .into_iter()
            .filter(|boot| boot.can_start())
            .map(|boot| boot.priority)
            .max()
            .unwrap_or(0);
        let lowest = numbers.into_iter().min().unwrap_or(0);
        let before = |entry: &Entry| {
            entry.boot.priority > front || entry.boot.priority == front && entry.number < lowest
        };
        entries
            .into_iter()
            .filter(|entry| {
                !numbers.contains(&entry.number)
                    && types.contains(&entry.type_uuid)
                    && entry.boot.can_start()
                    && before(entry)
            })
            .collect()
    }

    /// What an operator should know.
    pub(super) fn problems(
        &self,
        found: &Found,
        booted: Booted,
        counting: Counting,
    ) -> Vec<Problem> {
        let tables = &found.tables;
        let mut problems = Vec::new();
        let mut say = |code, message| problems.push(Problem { code, message });
        for oddity in &tables.oddities {
            let code = match tables.other {
                Other::Behind(_) => ProblemCode::Leftovers,
                _ => ProblemCode::Unreadable,
            };
            say(code, format!("{}: {oddity}", self.shown));
        }
        for warning in &tables.warnings {
            say(
                ProblemCode::Unreadable,
                format!("{}: {warning}", self.shown),
            );
        }
        for obstacle in &tables.obstacles {
            say(
                ProblemCode::NotWritable,
                format!("{}: {obstacle}", self.shown),
            );
        }
        for slot in SlotName::BOTH {
            let boot = found.bits.of(slot);
            if boot.successful && boot.priority == 0 {
                say(
                    ProblemCode::Unreadable,
                    format!(
                        "slot {slot} is marked successful, but with priority 0 the loader never starts it"
                    ),
                );
            }
        }
        for entry in self.strangers(found) {
            say(ProblemCode::ForeignDefault, stranger(&entry));
        }
        if counting == Counting::Inactive
            && let Some(slot) = booted.slot()
        {
            say(
                ProblemCode::CountingInactive,
                format!("slot {slot} runs on trial and the loader took no try off it"),
            );
        }
        problems
    }

    /// Why no update is begun.
    pub(super) fn reasons(&self) -> Vec<Refusal> {
        let found = match self.node.open().and_then(|disk| self.find(&disk)) {
            Ok(found) => found,
            Err(error) => {
                return vec![Refusal {
                    code: RefusalCode::Unreadable,
                    message: error.chain(),
                }];
            }
        };
        let refuse = |code, message: &str| Refusal {
            code,
            message: format!("{}: {message}", self.shown),
        };
        let mut refusals: Vec<Refusal> = found
            .tables
            .obstacles
            .iter()
            .chain(&found.tables.warnings)
            .map(|obstacle| refuse(RefusalCode::Unreadable, obstacle))
            .collect();
        if !found.bits.speaks() {
            refusals.push(Refusal {
                code: RefusalCode::LoaderDataMissing,
                message: format!(
                    "{}: neither slot's entry carries attributes, so no loader that goes by them is known to be \
                     in use here; set `loader` to the one that starts this machine, or give the running slot's \
                     entry what that loader needs (`cgpt add -i NUMBER -P 15 -S 1 DISK`)",
                    self.shown
                ),
            });
        }
        if self.usr_slots {
            refusals.push(refuse(RefusalCode::UnsupportedLayout, USR_SLOTS));
        }
        refusals.extend(
            self.strangers(&found)
                .iter()
                .map(|entry| refuse(RefusalCode::ForeignEntryFirst, &stranger(entry))),
        );
        if refusals.is_empty()
            && let Err(error) = self.test_write()
        {
            refusals.push(Refusal::not_writable("the partition table", &error));
        }
        refusals
    }
}

fn stranger(entry: &Entry) -> String {
    format!(
        "partition {} is of the slots' type, no slot, and the loader starts it first ({})",
        entry.number, entry.boot
    )
}
