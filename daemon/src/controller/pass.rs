//! One pass: look, settle, plan, write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::{Client, ResourceExt};
use slotd_engine::rollout::plan;
use tokio::sync::Notify;
use tracing::debug;

use super::catalogs::Catalogs;
use super::events::Events;
use super::resolution::{Insight, nothing_known, settle};
use super::silent::Silent;
use super::snapshot::Snapshot;
use super::watches::Watches;
use super::writes::{Touched, Writer};
use super::{status, waiting};

/// For so long the watches may not show what was written before it is planned anew all the same.
const PATIENCE: Duration = Duration::from_secs(3);
/// How soon it is looked again whether they do.
const AGAIN: Duration = Duration::from_millis(100);

/// How often it is looked after nodes that are away.
const LOOK: Duration = Duration::from_secs(60);

/// Everything that a pass is made with.
pub(super) struct Passes {
    watches: Watches,
    catalogs: Catalogs,
    writer: Writer,
    events: Events,
    touched: BTreeSet<Touched>,
    wrote: Instant,
    silent: Silent,
}

/// When to look again, if nothing changes before.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Not before something changes.
    OnChange,
    /// Soon.
    Soon(Duration),
}

impl Passes {
    pub(super) fn new(
        client: &Client,
        namespace: &str,
        identity: &str,
        changed: &Arc<Notify>,
    ) -> Self {
        Self {
            watches: Watches::start(client, namespace, changed),
            catalogs: Catalogs::new(client.clone(), namespace, changed.clone()),
            writer: Writer::new(client, namespace),
            events: Events::new(client.clone(), identity),
            touched: BTreeSet::new(),
            wrote: Instant::now(),
            silent: Silent::default(),
        }
    }

    /// Stops what only the leader does.
    pub(super) fn pause(&mut self) {
        self.catalogs.pause();
    }

    /// One pass.
    pub(super) async fn pass(&mut self) -> Result<Next, kube::Error> {
        if !self.watches.whole() {
            return Ok(Next::OnChange);
        }
        let snapshot = Snapshot::of(&self.watches);
        self.touched.retain(|touched| !touched.seen(&snapshot));
        if !self.touched.is_empty() && self.wrote.elapsed() < PATIENCE {
            return Ok(Next::Soon(AGAIN));
        }
        self.touched.clear();
        let readings = self.catalogs.read(&snapshot.upgrades, &mut self.watches);
        let settled: BTreeMap<_, _> = snapshot
            .upgrades
            .iter()
            .filter_map(|upgrade| {
                let uid = upgrade.metadata.uid.clone()?;
                let settled = settle(upgrade, readings.get(&uid), &snapshot.progress);
                Some((uid, settled))
            })
            .collect();
        let fleet = snapshot.fleet(&settled);
        let mut plan = plan(&fleet);
        plan.begin_nothing(&fleet, |upgrade| nothing_known(&settled, &upgrade.0));
        debug!(writes = plan.writes.len(), "planned");
        let mut writing = self.writer.begin(&snapshot, &settled);
        let mut written = writing.plan(&plan, &fleet).await;
        let (silent, next_silent) = self.silent.due(&snapshot.progress, Instant::now());
        for object in silent {
            if written.is_ok() {
                written = writing.first_status(&object).await;
            }
        }
        if written.is_ok() {
            for (progress, holds) in waiting::changes(&snapshot, &settled, &plan) {
                written = writing.waiting(&progress, holds).await;
                if written.is_err() {
                    break;
                }
            }
        }
        // What is shown is shown also where something could not be done.
        for outlook in &plan.upgrades {
            let Some(upgrade) = snapshot.upgrade(&outlook.upgrade) else {
                continue;
            };
            let Some(settled) = settled.get(&outlook.upgrade.0) else {
                continue;
            };
            let quiet = settled.insight != Insight::Whole;
            if quiet || upgrade.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let wanted = status::wanted(upgrade, settled, outlook, &snapshot);
            let Some(patch) = status::patch(upgrade, &wanted) else {
                continue;
            };
            debug!(upgrade = upgrade.name_any(), phase = ?wanted.phase, "status");
            writing.status(upgrade, patch).await?;
            self.events.phase(upgrade, &wanted).await;
        }
        self.touched = std::mem::take(&mut writing.touched);
        written?;
        if self.touched.is_empty() {
            // That a node is away for long is told of by the clock alone.
            let away = plan.upgrades.iter().any(|outlook| !outlook.away.is_empty());
            let look = away.then_some(LOOK);
            let next = look.into_iter().chain(next_silent).min();
            return Ok(next.map_or(Next::OnChange, Next::Soon));
        }
        self.wrote = Instant::now();
        Ok(Next::Soon(AGAIN))
    }
}
