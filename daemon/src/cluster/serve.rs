//! The task that speaks with the cluster: it looks at everything again whenever something changed, and does what is due.

mod hear;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use slotd_crds::api::{OSUpgradeProgress, OSUpgradeProgressStatus};
use slotd_engine::{Phase, Point, assign};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, info, warn};

use super::ClusterAccess;
use super::drain::Lender;
use super::error::{ANSWER, ClusterError, FIRST_PAUSE, LONGEST_PAUSE, ask};
use super::identity::{self, Identity};
use super::own_node::{OwnNode, cordoned_by_us};
use super::report::{self, News, NodeFacts};
use super::told::Told;
use super::watch::Watch;
use super::wish::{Judgement, Running, choose, is_for, judge};
use crate::agent::{AgentHandle, Snapshot};
use crate::backoff::Backoff;
use crate::credential::Material;
use crate::error::ErrorKind;

/// Between two looks at whether there is a kubeconfig by now: a node that stands alone is not to be woken for nothing.
const KUBECONFIG: Duration = Duration::from_secs(120);

/// Between two looks at whether the credential was renewed; a kubelet renews it days before it expires.
const CREDENTIAL: Duration = Duration::from_secs(60);

/// The same while the cluster is in trouble, for which an old credential may be the reason.
const CREDENTIAL_SOON: Duration = Duration::from_secs(5);

/// Between two looks at what somebody may have changed without our hearing of it.
const RESYNC: Duration = Duration::from_secs(300);

/// Between two writes of a status in which only bytes moved.
const MOVING: Duration = Duration::from_secs(10);

/// For so long a trial boot's version does not stand on the Node yet: it may be gone in a moment.
const TRIAL: Duration = Duration::from_secs(60);

/// What happens at once is looked at together.
const TOGETHER: Duration = Duration::from_millis(100);

/// Until the agent has looked at the node.
const START: Duration = Duration::from_millis(500);

/// Until a request that was in the way of another one is over.
const IN_THE_WAY: Duration = Duration::from_secs(1);

/// Until a node that can take no request is asked again.
const IMPOSSIBLE: Duration = Duration::from_secs(60);

/// Speaks with the cluster for as long as the agent runs; at once over where the node stands alone.
pub async fn serve(access: ClusterAccess, agent: AgentHandle, lender: Lender) {
    let Some(path) = access.kubeconfig() else {
        return;
    };
    let wake = Arc::new(Notify::new());
    let waker = Arc::clone(&wake);
    agent.subscribe(Box::new(move |_| waker.notify_one()));
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    let mut told = Told::new(&agent, "ClusterUnknown");
    loop {
        match identity::load(path).await {
            Ok(identity) => {
                backoff.succeeded();
                told.over();
                info!(node = identity.node, "in a cluster");
                lender.identity.send_replace(Some(identity.clone()));
                Side::new(&identity, &agent, &lender)
                    .run(path, &identity, &wake)
                    .await;
            }
            Err(_) if access == ClusterAccess::Auto && missing(path) => {
                sleep(KUBECONFIG).await;
            }
            Err(error) => {
                told.warn(&error.to_string());
                sleep(backoff.failed()).await;
            }
        }
    }
}

fn missing(path: &Path) -> bool {
    path.metadata()
        .is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// What came of asking the agent for what the cluster wants.
#[derive(Debug, PartialEq, Eq)]
enum Order {
    /// It wants nothing now.
    Nothing,
    /// It is begun.
    Taken,
    /// Another request comes first.
    InTheWay,
    /// Somebody has to put the node in order first.
    Impossible(String),
}

/// One life with one credential.
struct Side<'a> {
    agent: &'a AgentHandle,
    lender: &'a Lender,
    own: OwnNode,
    statuses: Api<OSUpgradeProgress>,
    watch: Watch,
    /// The Node as it was seen last, and where the agent stood then.
    node: Option<(Node, Point)>,
    /// Its uid, once it was seen.
    uid: Option<String>,
    facts: Option<(NodeFacts, Running, Option<Point>)>,
    resync: Instant,
    /// When this life began.
    began: Instant,
    /// The Nodes of this name that objects were seen to mean, beside the one that there is.
    strangers: BTreeSet<String>,
    /// When each object's status was written last.
    written: BTreeMap<String, Instant>,
}

impl<'a> Side<'a> {
    fn new(identity: &Identity, agent: &'a AgentHandle, lender: &'a Lender) -> Self {
        Self {
            agent,
            lender,
            own: OwnNode::new(identity.client.clone(), &identity.node),
            statuses: Api::all(identity.client.clone()),
            watch: Watch::start(identity.client.clone(), &identity.node),
            node: None,
            uid: None,
            facts: None,
            resync: Instant::now(),
            began: Instant::now(),
            strangers: BTreeSet::new(),
            written: BTreeMap::new(),
        }
    }

    /// Goes on until the credential was renewed.
    async fn run(&mut self, path: &Path, identity: &Identity, wake: &Notify) {
        let lender = self.lender;
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut told = Told::new(self.agent, "ClusterUnreachable");
        let mut watching = Told::new(self.agent, "ClusterUnwatched");
        let mut due = Instant::now();
        // Whatever the agent has to tell, what fails is tried again in its own time.
        let mut no_earlier = due;
        let mut renewed = Instant::now() + CREDENTIAL;
        loop {
            tokio::select! {
                changed = self.watch.changed() => match changed {
                    Ok(()) => {
                        if no_earlier > Instant::now() {
                            self.hear();
                        }
                        if watching.over() {
                            no_earlier = Instant::now();
                        }
                        due = due.min(no_earlier.max(Instant::now() + TOGETHER));
                    }
                    Err(error) => {
                        watching.warn(&identity.explain(&error));
                        renewed = renewed.min(Instant::now() + CREDENTIAL_SOON);
                    }
                },
                () = lender.landed.notified() => {
                    // What nobody waits for any more is taken back, if it was a cordon.
                    self.node = None;
                    due = due.min(no_earlier.max(Instant::now()));
                }
                () = wake.notified() => {
                    due = due.min(no_earlier.max(Instant::now() + TOGETHER));
                }
                () = sleep_until(due) => {
                    let pause = match self.reconcile().await {
                        Ok(pause) => {
                            backoff.succeeded();
                            told.over();
                            pause
                        }
                        Err(error) => {
                            told.warn(&identity.explain(&error));
                            renewed = renewed.min(Instant::now() + CREDENTIAL_SOON);
                            // Whatever it was, the Node is looked at anew.
                            self.node = None;
                            let pause = backoff.failed();
                            no_earlier = Instant::now() + pause;
                            pause
                        }
                    };
                    due = Instant::now() + pause;
                }
                () = sleep_until(renewed) => {
                    let trouble = told.lasts() || watching.lasts();
                    let pause = if trouble { CREDENTIAL_SOON } else { CREDENTIAL };
                    renewed = Instant::now() + pause;
                    // One that cannot be read now is being written: the one in use goes on.
                    if Material::read(path).is_ok_and(|material| material != identity.material) {
                        info!("the credential was renewed");
                        return;
                    }
                }
            }
        }
    }

    /// Does what is due. How long nothing is due after that, if nothing changes.
    async fn reconcile(&mut self) -> Result<Duration, ClusterError> {
        let Some(snapshot) = self.agent.snapshot() else {
            return Ok(START);
        };
        if Instant::now() >= self.resync {
            self.resync = Instant::now() + RESYNC;
            self.node = None;
            if let Some((_, _, at)) = &mut self.facts {
                // Looked at anew; kept, should it not be seen.
                *at = None;
            }
        }
        if self.watch.went() {
            // The Node that it was for may have gone before it, and another one of its name be there by now.
            self.node = None;
        }
        let (facts, running) = self.facts(&snapshot).await;
        let kept = self.keep_node(&snapshot, &facts).await;
        if kept.is_err() {
            self.hear();
        }
        let Some(node_uid) = kept? else {
            return Ok(IN_THE_WAY);
        };
        self.uid = Some(node_uid.clone());
        let mut pause = self.resync.saturating_duration_since(Instant::now());
        let Some(objects) = self.watch.objects() else {
            return Ok(pause);
        };
        let strangers: BTreeSet<String> = objects
            .filter(|object| !is_for(object, &node_uid))
            .filter_map(|object| object.spec.node_uid.clone())
            .collect();
        if !strangers.is_subset(&self.strangers) {
            // Another Node of this name is meant: the own one may be another one by now.
            self.strangers = strangers;
            self.node = None;
            return Ok(Duration::ZERO);
        }
        let objects = self.watch.objects().into_iter().flatten();
        let objects: Vec<OSUpgradeProgress> = objects
            .filter(|object| is_for(object, &node_uid))
            .cloned()
            .collect();
        let all: Vec<&OSUpgradeProgress> = objects.iter().collect();
        let chosen = choose(&all, &node_uid, &snapshot.record);
        let mut judgement = chosen.map(|object| judge(object, &snapshot.record, &running));
        let order = self.order(&snapshot, chosen, judgement.as_ref());
        match &order {
            Order::Nothing | Order::Taken => {}
            Order::InTheWay => pause = pause.min(IN_THE_WAY),
            Order::Impossible(reason) => {
                pause = pause.min(IMPOSSIBLE);
                judgement = Some(Judgement::Wait(reason.clone()));
            }
        }
        let mut refused = Ok(());
        for object in &objects {
            let counts = chosen.is_some_and(|chosen| std::ptr::eq(chosen, object));
            // What was just begun says itself how it stands, in a moment.
            if counts && order == Order::Taken {
                continue;
            }
            let judgement = judgement.as_ref().filter(|_| counts);
            if let Some(status) = report::status(object, &snapshot, &facts, judgement) {
                // One that cannot be written keeps no other one from being written.
                match self.write(object, &status).await {
                    Ok(wait) => pause = pause.min(wait.unwrap_or(pause)),
                    Err(error) => refused = refused.and(Err(error)),
                }
            }
        }
        refused.map(|()| pause)
    }

    /// Asks the agent for what the cluster wants next.
    fn order(
        &self,
        snapshot: &Snapshot,
        chosen: Option<&OSUpgradeProgress>,
        judgement: Option<&Judgement>,
    ) -> Order {
        let assignment = judgement.and_then(Judgement::wanted);
        // Before anything is asked for: an agent that was restarted while it drained waits for this word.
        if assignment.is_some_and(|wanted| wanted.activate && !wanted.suspended)
            && let Some(name) = chosen.and_then(|object| object.metadata.name.as_deref())
        {
            self.lender.name(name);
        }
        let Some(request) = assign(&snapshot.record, assignment) else {
            return Order::Nothing;
        };
        match self.agent.order(request) {
            Ok(id) => {
                debug!(id, "asked for what the cluster wants");
                Order::Taken
            }
            Err(error) if error.kind() == ErrorKind::Configuration => {
                Order::Impossible(error.to_string())
            }
            Err(error) => {
                debug!(%error, "the agent takes no request now");
                Order::InTheWay
            }
        }
    }

    /// What runs, looked at anew where the agent has moved on.
    async fn facts(&mut self, snapshot: &Snapshot) -> (NodeFacts, Running) {
        let at = snapshot.record.at;
        if let Some((facts, running, _)) = self.facts.as_ref().filter(|known| known.2 == Some(at)) {
            return (facts.clone(), running.clone());
        }
        let agent = self.agent.clone();
        // It reads devices.
        let view = tokio::task::spawn_blocking(move || agent.survey())
            .await
            .unwrap_or_default();
        let slot = view.slots.iter().find(|slot| slot.booted);
        if slot.is_none()
            && let Some((facts, running, _)) = &self.facts
        {
            // It could not be seen this time; what ran a moment ago runs still.
            return (facts.clone(), running.clone());
        }
        let facts = NodeFacts {
            version: slot.and_then(|slot| slot.version.clone()),
            booted: view.booted,
        };
        let running = Running {
            version: facts.version.clone(),
            good: slot.is_some_and(|slot| slot.state == "good"),
        };
        self.facts = Some((facts.clone(), running.clone(), Some(at)));
        (facts, running)
    }

    /// Keeps the own Node's labels, and takes a cordon of ours back that nothing needs any more. The Node's uid;
    /// none where the agent has moved on meanwhile.
    async fn keep_node(
        &mut self,
        snapshot: &Snapshot,
        facts: &NodeFacts,
    ) -> Result<Option<String>, ClusterError> {
        let at = snapshot.record.at;
        let before = self.node.take();
        if before
            .as_ref()
            .is_some_and(|(_, then)| *then == Point::Drain)
            && at != Point::Drain
        {
            // A cordon that was on its way when the drain was stopped may arrive after this look.
            self.resync = self.resync.min(Instant::now() + ANSWER + START);
        }
        let known = before.filter(|(_, then)| *then == at);
        let node = match known {
            Some((node, _)) => node,
            None => {
                let node = self.own.get().await?;
                let needed = matches!(
                    at.phase(),
                    Phase::Draining | Phase::Activating | Phase::Confirming
                );
                // A drain that was asked for since is not to lose its cordon; no other one begins without our word.
                if !needed && cordoned_by_us(&node) && !self.agent.stands(at) {
                    return Ok(None);
                }
                let later = self.labelled_at(at);
                self.resync = later.map_or(self.resync, |moment| self.resync.min(moment));
                let facts = later.is_none().then_some(facts);
                if self.own.keep(&node, facts, !needed).await? {
                    info!("uncordoned");
                }
                node
            }
        };
        let uid = node.metadata.uid.clone().unwrap_or_default();
        self.node = Some((node, at));
        Ok(Some(uid))
    }

    /// When the Node is to be told what runs; at once, where there is no such moment. A trial boot is over in a moment as a rule,
    /// and its end is told together with the uncordoning.
    fn labelled_at(&self, at: Point) -> Option<Instant> {
        let moment = self.began + TRIAL;
        let trial = matches!(at.phase(), Phase::Activating | Phase::Confirming);
        (trial && Instant::now() < moment).then_some(moment)
    }

    /// Writes a status where it says something new. How long it may wait, where it does wait.
    async fn write(
        &mut self,
        object: &OSUpgradeProgress,
        status: &OSUpgradeProgressStatus,
    ) -> Result<Option<Duration>, ClusterError> {
        let uid = object.metadata.uid.clone().unwrap_or_default();
        match report::news(status, object) {
            News::Nothing => return Ok(None),
            News::Moving => {
                let last = self.written.get(&uid).map(Instant::elapsed);
                let wait = last.and_then(|last| MOVING.checked_sub(last));
                if let Some(wait) = wait.filter(|wait| !wait.is_zero()) {
                    return Ok(Some(wait));
                }
            }
            News::Change => {}
        }
        let Ok(patch) = report::patch(status) else {
            warn!("a status could not be expressed");
            return Ok(None);
        };
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(&patch));
        let request = self.statuses.patch_status(name, &parameters, &patch);
        match ask("write the status of a progress object", request).await {
            Ok(object) => {
                self.written.insert(uid, Instant::now());
                self.watch.wrote(object);
                Ok(None)
            }
            // It went meanwhile.
            Err(error) if error.code() == Some(404) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
