//! What is odd in what the boot manager holds, and stops nothing by itself.

use super::boot_manager::{BootVariables, Role, foreign_first, program, runs, state};
use super::store::EfiStore;
use super::variables::Variables;
use crate::backend::{Problem, ProblemCode, SlotState};
use crate::error::Result;
use crate::slot::SlotName;
use crate::table::Booted;

impl EfiStore {
    pub(super) fn problems(
        &self,
        variables: &BootVariables,
        booted: Booted,
    ) -> Result<Vec<Problem>> {
        let mut found = Vec::new();
        let mut add = |code, message: String| found.push(Problem { code, message });
        let own = variables.own(self.esp_uuid());
        for (number, problem) in &variables.unreadable {
            let name = variables.name_of(*number);
            add(
                ProblemCode::Unreadable,
                format!("EFI variable {name}: {problem}"),
            );
        }
        if let Some((number, name)) = foreign_first(variables, self.esp_uuid()) {
            add(
                ProblemCode::ForeignDefault,
                format!(
                    "BootOrder starts with {name}, which is not slotd's: the firmware starts it \
                     before any slot; put it behind with `efibootmgr -o`, or remove it with \
                     `efibootmgr -b {number:04X} -B`"
                ),
            );
        }
        if let Some(next) = variables.leads_to().filter(|next| own.is(*next).is_none()) {
            let name = variables.name_of(next);
            add(
                ProblemCode::ForeignDefault,
                format!("BootNext is {name}, which is not slotd's: the next boot starts it"),
            );
        }
        if let Some(slot) = self.lost(variables, booted) {
            let missing = if self.files.has_kernel(slot) {
                String::new()
            } else {
                let kernel = program(slot);
                format!(
                    ", once its kernel is at {kernel} on {}",
                    self.esp.shown.display()
                )
            };
            add(
                ProblemCode::EntryLost,
                format!(
                    "slot {slot} runs, but the firmware has no option of it and would not start it again: \
                     `slotd-bootctl mark-good` makes one{missing}"
                ),
            );
        }
        for slot in SlotName::BOTH {
            self.slot_problems(variables, slot, booted, &mut add);
        }
        match Variables::unusable(&self.system)? {
            Some(unusable) => add(ProblemCode::NotWritable, unusable.message()),
            None if self.esp.read_only => add(
                ProblemCode::NotWritable,
                format!("{} is mounted read-only", self.esp.shown.display()),
            ),
            None => {}
        }
        Ok(found)
    }

    fn slot_problems(
        &self,
        variables: &BootVariables,
        slot: SlotName,
        booted: Booted,
        add: &mut impl FnMut(ProblemCode, String),
    ) {
        let own = variables.own(self.esp_uuid());
        let trials = own.numbers(slot, Role::Trial);
        if let Some(trial) = trials.iter().find(|trial| variables.order.contains(trial)) {
            let name = variables.name_of(*trial);
            add(
                ProblemCode::Leftovers,
                format!(
                    "{name} stands in BootOrder, where slotd never puts it: the firmware may \
                     start that trial more than once"
                ),
            );
        }
        if let Some(trial) = own.trial(variables, slot)
            && runs(variables, trial, slot, booted)
            && variables.next == Some(trial)
        {
            add(
                ProblemCode::CountingInactive,
                format!(
                    "the firmware started the trial of slot {slot} and did not remove \
                     BootNext: a trial would not end by itself"
                ),
            );
        }
        if trials.len() > 1 || own.numbers(slot, Role::Good).len() > 1 {
            add(
                ProblemCode::Leftovers,
                format!("there are several boot options of one kind for slot {slot}"),
            );
        }
        let held = state(variables, self.esp_uuid(), slot, booted);
        let started = matches!(held, SlotState::Good | SlotState::Trial { .. });
        if started && !self.files.has_kernel(slot) {
            add(
                ProblemCode::Leftovers,
                format!(
                    "slot {slot} is {held}, but {} is not on {}",
                    program(slot),
                    self.esp.shown.display()
                ),
            );
        }
    }
}
