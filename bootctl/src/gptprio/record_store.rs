//! The attributes as a record: what transitions, rules and plans are made of.

use super::states::{Bits, TRIES_GIVEN_MAX, bits};
use super::store::Gptprio;
use crate::backend::{Counting, PlannedChange, PreflightRequest, Refusal, SlotState};
use crate::error::{Error, Result};
use crate::facts::ImageFacts;
use crate::lock::Lock;
use crate::record::{Arming, Loaded, Record, RecordStore};
use crate::table::Booted;

impl RecordStore for Gptprio {
    fn name(&self) -> &'static str {
        "gptprio"
    }

    fn location(&self) -> String {
        self.shown.clone()
    }

    /// The lock of the whole disk, which udev and the partitioning tools take, too.
    fn lock(&self) -> Result<Lock> {
        Lock::of(&self.node.path)
    }

    fn load(&self, booted: Booted) -> Result<Loaded> {
        let found = self.find(&self.node.open()?)?;
        let record = found.bits.record(booted);
        let counting = counting(&found.bits, &record, booted);
        Ok(Loaded {
            record,
            counting,
            problems: self.problems(&found, booted, counting),
        })
    }

    fn commit(&self, booted: Booted, wanted: &Record, _arming: Option<Arming<'_>>) -> Result<()> {
        self.write(&self.node.open_for_writing()?, booted, wanted)
    }

    fn plan(
        &self,
        booted: Booted,
        before: &Record,
        wanted: &Record,
        _arming: Option<Arming<'_>>,
    ) -> Result<Vec<PlannedChange>> {
        let mut found = self.find(&self.node.open()?)?;
        if !found.tables.obstacles.is_empty() {
            found.tables.change(&[])?;
        }
        if !found.bits.record(booted).agrees_with(before) {
            found.bits = bits(before, found.bits.lower);
        }
        let changes: Vec<String> = self
            .steps(&found, booted, wanted)
            .into_iter()
            .filter(|(_, old, new)| old != new)
            .map(|(slot, old, new)| {
                format!(
                    "partition {} (slot {slot}): {old} → {new}",
                    self.number(slot)
                )
            })
            .collect();
        Ok((!changes.is_empty())
            .then(|| PlannedChange {
                target: self.shown.clone(),
                change: format!("set attributes in both tables: {}", changes.join("; ")),
                content: None,
                why: "the loader goes by them".to_owned(),
            })
            .into_iter()
            .collect())
    }

    fn refusals(&self, _request: &PreflightRequest) -> Vec<Refusal> {
        self.reasons()
    }

    fn max_tries(&self) -> u32 {
        u32::from(TRIES_GIVEN_MAX)
    }

    fn announces_trials(&self) -> bool {
        false
    }

    /// The loader reads the kernel in the slot.
    fn check_image(&self, facts: &ImageFacts) -> Result<()> {
        match facts.kernel {
            Some(_) => Ok(()),
            None => Err(Error::Image {
                device: "the image".into(),
                problem: "no kernel at /usr/lib/modules/*/vmlinuz or /boot/vmlinuz-*".to_owned(),
            }),
        }
    }
}

/// Whether the loader was seen taking a try.
fn counting(bits: &Bits, record: &Record, booted: Booted) -> Counting {
    let Some(slot) = booted.slot() else {
        return Counting::Unknown;
    };
    match (record.state(slot), bits.given(slot)) {
        (SlotState::Trial { left, .. }, Some(given)) if left < u32::from(given) => Counting::Active,
        (SlotState::Trial { .. }, Some(_)) => Counting::Inactive,
        _ => Counting::Unknown,
    }
}
