//! The real host: bootctl for slots and boot loader, image for the bytes, the state directory, and the
//! machine's health checks and reboot.

mod convert;
mod plan;
mod proving;
mod staging;
mod survey;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use slotd_bootctl::{Backend, InvalidatedSlot, SlotName, SlotTable, VerifiedSlot};
use slotd_engine::{
    Drain, Ended, ErrorKind, Failure, Image, ImageRequest, Limits, Record, Slot, StagedSlot,
    Upgrade, Verdict, World,
};
use slotd_image::{Cancel, ImageSource, OpenedImage};

use super::host::{Host, Loaded, Trouble};
use super::lock::ChangeLock;
use super::machine::{Drainer, Machine};
use super::state::StateStore;
use super::state_directory::examine;
use crate::node::NodeSettings;
use crate::staging::boot_failure;
use crate::status::{NodeView, ProgressStatus};

pub use plan::{Plan, PlanRefusal, PlanStep};

/// The proofs and the source of the staging under way. They live in memory alone: after a restart a
/// staging begins anew, and a staged slot is proven by its marker.
#[derive(Default)]
struct Bench {
    opened: Option<OpenedImage>,
    invalidated: Option<InvalidatedSlot>,
    verified: Option<VerifiedSlot>,
}

/// The real host.
pub struct NodeHost {
    settings: NodeSettings,
    machine: Arc<dyn Machine>,
    /// Who moves the pods away; nobody on a node of no cluster.
    drainer: Option<Arc<dyn Drainer>>,
    /// Opened by the first who needs it: a look at the slots alone makes no directory.
    store: OnceLock<Mutex<StateStore>>,
    bench: Mutex<Bench>,
}

impl fmt::Debug for NodeHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeHost")
            .field("state_directory", &self.settings.state_directory)
            .finish_non_exhaustive()
    }
}

impl NodeHost {
    /// The host. Nothing is looked at yet.
    #[must_use]
    pub fn new(settings: NodeSettings, machine: Arc<dyn Machine>) -> Self {
        Self {
            settings,
            machine,
            drainer: None,
            store: OnceLock::new(),
            bench: Mutex::default(),
        }
    }

    /// The same with somebody who drains it.
    #[must_use]
    pub fn drained_by(self, drainer: Arc<dyn Drainer>) -> Self {
        Self {
            drainer: Some(drainer),
            ..self
        }
    }

    /// The state's files. A directory that is not fit is found out when it is loaded, and every write there answers with
    /// the reason until it is loaded again; what needs no record goes on.
    fn store(&self) -> MutexGuard<'_, StateStore> {
        let store = self.store.get_or_init(|| Mutex::new(self.open_store()));
        // What is kept under the lock is replaced whole, so a poisoned one holds nothing half done.
        store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_store(&self) -> StateStore {
        let settings = &self.settings;
        let slots = settings
            .table()
            .map(|table| vec![(SlotName::A, table.a.number), (SlotName::B, table.b.number)])
            // Without slots nothing is installed; the directory is checked for all the rest.
            .unwrap_or_default();
        let refused = examine(&settings.system, &settings.state_directory, &slots)
            .err()
            .map(|error| Failure::new(ErrorKind::Configuration, error.to_string()));
        StateStore::new(&settings.state_directory, refused)
    }

    fn bench(&self) -> MutexGuard<'_, Bench> {
        self.bench.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One transition of the loader's data, with slots and loader looked at afresh.
    fn with_loader<T>(
        &self,
        act: impl FnOnce(&SlotTable, &dyn Backend) -> slotd_bootctl::Result<T>,
    ) -> Result<T, Failure> {
        let table = self.settings.table()?;
        let backend = self.settings.backend(&table)?;
        act(&table, &*backend).map_err(|error| boot_failure(&error))
    }
}

impl Host for NodeHost {
    fn load(&self) -> Loaded {
        self.store().load()
    }

    fn reload(&self) -> Option<Loaded> {
        let mut store = self.store();
        store.refused()?;
        let mut again = self.open_store();
        let loaded = again.load();
        if again.refused().is_some() {
            return None;
        }
        *store = again;
        Some(loaded)
    }

    fn persist(&self, record: &Record) -> Result<(), Failure> {
        self.store().persist(record)
    }

    fn report(&self, ended: &Ended) -> Result<(), Failure> {
        self.store().report(ended)
    }

    fn limits(&self) -> Limits {
        Limits {
            tries: self.settings.tries,
            // The boot generator's bound comes from the entry; the agent gives up before it and says why.
            trial_deadline: self
                .entry_deadline()
                .unwrap_or(u64::MAX)
                .min(self.settings.deadline.as_secs()),
            ..Limits::default()
        }
    }

    fn observe(&self) -> Result<World, Failure> {
        self.observe_world()
    }

    fn survey(&self) -> NodeView {
        self.survey_node()
    }

    fn lock(&self) -> Result<ChangeLock, Failure> {
        ChangeLock::take(&self.settings.run.lock())
            .map_err(|error| Failure::new(ErrorKind::Retry, error.to_string()))
    }

    fn preflight(
        &self,
        slot: Slot,
        request: &ImageRequest,
        source: Option<ImageSource>,
        cancel: &Cancel,
    ) -> Result<(), Trouble> {
        let opened = self.open_image(slot, request, source, cancel)?;
        *self.bench() = Bench {
            opened: Some(opened),
            ..Bench::default()
        };
        Ok(())
    }

    fn invalidate(&self, slot: Slot) -> Result<(), Failure> {
        let invalidated = self.with_loader(|table, backend| {
            backend.invalidate(table.inactive(convert::name(slot))?)
        })?;
        self.bench().invalidated = Some(invalidated);
        Ok(())
    }

    fn write(
        &self,
        slot: Slot,
        request: &ImageRequest,
        cancel: &Cancel,
        progress: &(dyn Fn(ProgressStatus) + Send + Sync),
    ) -> Result<Image, Trouble> {
        self.write_image(slot, request, cancel, progress)
    }

    fn prepare_boot(&self, slot: Slot, upgrade: &Upgrade) -> Result<Option<String>, Failure> {
        self.prepare_slot(slot, upgrade)
    }

    fn discard(&self, slot: Slot) -> Result<(), Failure> {
        *self.bench() = Bench::default();
        self.discard_slot(slot)
    }

    fn drain(
        &self,
        drain: Drain,
        cancel: &Cancel,
        say: &(dyn Fn(String) + Send + Sync),
    ) -> Result<(), Trouble> {
        match &self.drainer {
            Some(drainer) => drainer.drain(drain, cancel, say),
            None => {
                let reason = "the node was to be drained, but is configured for no cluster";
                Err(Failure::new(ErrorKind::Configuration, reason).into())
            }
        }
    }

    fn arm(&self, slot: &StagedSlot) -> Result<(), Failure> {
        self.arm_slot(slot)
    }

    fn disarm(&self, slot: Slot) -> Result<(), Failure> {
        self.machine.forget_failed_units();
        self.with_loader(|_, backend| backend.disarm(convert::name(slot)))
    }

    fn select(&self, slot: Slot) -> Result<(), Failure> {
        self.with_loader(|_, backend| backend.select(convert::name(slot)))
    }

    fn mark_good(&self, slot: Slot) -> Result<(), Failure> {
        self.with_loader(|_, backend| backend.mark_good(convert::name(slot)))
    }

    fn mark_bad(&self, slot: Slot) -> Result<(), Failure> {
        self.with_loader(|_, backend| backend.mark_bad(convert::name(slot)))
    }

    fn run_checks(&self, deadline: u64, cancel: &Cancel) -> Result<Verdict, Trouble> {
        self.check_health(deadline, cancel)
    }

    fn await_boot_complete(&self, deadline: u64, cancel: &Cancel) -> Result<bool, Trouble> {
        self.wait_for_boot_complete(deadline, cancel)
    }

    fn settle(&self) -> Result<(), Failure> {
        self.release_from_trial()
    }

    fn stay(&self, reason: &str) -> Result<(), Failure> {
        self.stay_unproven(reason)
    }

    fn announce_no_trial(&self) -> Result<(), Failure> {
        // What is there is of a trial that ended before its checks, or was taken back.
        self.machine.forget_failed_units();
        self.say_no_trial()
    }

    fn reboot(&self, forced: bool) -> Result<(), Failure> {
        match self.reboots_into_trial() {
            true => self.machine.remember_failed_units(),
            false => self.machine.forget_failed_units(),
        }
        self.machine.reboot(forced)
    }
}
