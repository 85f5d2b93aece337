//! What runs, what the loader says, and how that is shown.

use std::fs;

use slotd_bootctl::{Booted, Counting, LoaderState, NextBoot, SlotName, SlotState, SlotTable};
use slotd_engine::{Digest, ErrorKind, Failure, World};

use super::{NodeHost, convert};
use crate::staging::boot_failure;
use crate::status::{Condition, LoaderStatus, NodeView, SlotLetter, SlotStatus};

impl NodeHost {
    /// Slots and loader as far as they can be read, with the first thing that could not.
    pub(super) fn look(&self) -> (Option<SlotTable>, Option<LoaderState>, Option<Failure>) {
        let table = match self.settings.table() {
            Ok(table) => table,
            Err(failure) => return (None, None, Some(failure)),
        };
        let state = self
            .settings
            .backend(&table)
            .and_then(|backend| backend.state().map_err(|error| boot_failure(&error)));
        match state {
            Ok(state) => (Some(table), Some(state), None),
            Err(failure) => (Some(table), None, Some(failure)),
        }
    }

    pub(super) fn observe_world(&self) -> Result<World, Failure> {
        let (table, loader, trouble) = self.look();
        let images = [SlotName::A, SlotName::B].map(|slot| {
            let image = loader.as_ref().and_then(|loader| loader.image(slot));
            image.and_then(|image| Digest::new(&image.expanded_sha256))
        });
        let next_boot = loader.as_ref().and_then(|loader| next_slot(&loader.next));
        Ok(World {
            booted: table
                .and_then(|table| table.booted.slot())
                .map(convert::slot),
            loader: loader.map(|loader| [convert::state(loader.a), convert::state(loader.b)]),
            trouble,
            next_boot: next_boot.map(convert::slot),
            images,
            boot_id: self.boot_id()?,
            uptime: self.uptime()?,
            now: now(),
            settled: self.settings.run.settled().exists(),
        })
    }

    /// Whether the other slot is armed: then the reboot that is due leads into its trial. A rollback's leads to a slot that
    /// is good.
    pub(super) fn reboots_into_trial(&self) -> bool {
        let (Some(table), Some(loader), _) = self.look() else {
            return false;
        };
        table
            .booted
            .slot()
            .is_some_and(|booted| matches!(loader.slot(!booted), SlotState::Trial { .. }))
    }

    fn boot_id(&self) -> Result<String, Failure> {
        Ok(self
            .proc_text("sys/kernel/random/boot_id")?
            .trim()
            .to_owned())
    }

    /// Whole seconds since the kernel started, by `/proc/uptime`.
    pub(super) fn uptime(&self) -> Result<u64, Failure> {
        let text = self.proc_text("uptime")?;
        let seconds = text
            .split(['.', ' '])
            .next()
            .and_then(|text| text.parse().ok());
        seconds.ok_or_else(|| {
            Failure::new(
                ErrorKind::Bug,
                format!("/proc/uptime does not hold seconds: {text:?}"),
            )
        })
    }

    fn proc_text(&self, name: &str) -> Result<String, Failure> {
        let path = self.settings.system.proc(name);
        fs::read_to_string(&path).map_err(|error| {
            Failure::new(
                ErrorKind::Retry,
                format!("cannot read {}: {error}", path.display()),
            )
        })
    }

    pub(super) fn survey_node(&self) -> NodeView {
        let (table, loader, trouble) = self.look();
        let mut view = NodeView::default();
        if let Some(failure) = trouble {
            let kind = if table.is_some() {
                "LoaderUnreadable"
            } else {
                "SlotsUnreadable"
            };
            view.conditions.push(Condition::new(kind, failure.reason));
        }
        let Some(table) = table else { return view };
        view.booted = table.booted.slot().map(letter);
        view.slots = SlotName::BOTH
            .into_iter()
            .map(|slot| self.slot_status(slot, &table, loader.as_ref()))
            .collect();
        if let Some(loader) = loader {
            view.conditions.extend(
                loader
                    .problems
                    .iter()
                    .map(|problem| Condition::new("LoaderProblem", problem.message.clone())),
            );
            view.loader = Some(loader_status(&loader));
        }
        view
    }

    fn slot_status(
        &self,
        slot: SlotName,
        table: &SlotTable,
        loader: Option<&LoaderState>,
    ) -> SlotStatus {
        let partition = table.get(slot);
        let booted = table.booted == Booted::Slot(slot);
        let image = loader.and_then(|loader| loader.image(slot));
        let state = loader.map(|loader| loader.slot(slot));
        let (tries_left, tries_done) = match state {
            Some(SlotState::Trial { left, done }) => (Some(left), Some(done)),
            _ => (None, None),
        };
        SlotStatus {
            slot: letter(slot),
            device: partition.node.clone(),
            label: partition.label.clone(),
            size: partition.size,
            version: if booted {
                self.settings.running_version(loader, slot)
            } else {
                image.and_then(|image| image.version.clone())
            },
            state: state.map_or("unknown", state_word).to_owned(),
            tries_left,
            tries_done,
            booted,
            digest: image.map(|image| format!("sha256:{}", image.expanded_sha256)),
        }
    }
}

fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    // A clock before 1970 is not set.
    since.map_or(0, |time| time.as_secs())
}

fn next_slot(next: &NextBoot) -> Option<SlotName> {
    match next {
        NextBoot::Slot { slot, .. } => Some(*slot),
        NextBoot::Foreign { .. } | NextBoot::Nothing => None,
    }
}

fn letter(slot: SlotName) -> SlotLetter {
    convert::slot(slot).into()
}

fn state_word(state: SlotState) -> &'static str {
    match state {
        SlotState::Good => "good",
        SlotState::Trial { .. } => "trial",
        SlotState::Bad => "bad",
        SlotState::Empty => "empty",
    }
}

fn loader_status(loader: &LoaderState) -> LoaderStatus {
    LoaderStatus {
        backend: loader.backend.clone(),
        next_slot: next_slot(&loader.next).map(letter),
        next_boot: loader.next.to_string(),
        trial_boot: loader.trial_boot,
        counting: match loader.counting {
            Counting::Active => "active",
            Counting::Inactive => "inactive",
            Counting::EveryBoot => "everyBoot",
            Counting::Unknown => "unknown",
        }
        .to_owned(),
        problems: loader
            .problems
            .iter()
            .map(|problem| problem.message.clone())
            .collect(),
    }
}
