//! 429, 5xx, no answer at all, and nobody who would answer, in the midst of a roll-out.

use std::fs;
use std::net::TcpListener;

use anyhow::{Context, Result, ensure};
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::{PATIENCE, SPAN, asked_seldom};
use crate::cluster::{ApiRequest, AuditLog, Knock, Requests, most_within, wait_until};
use crate::lab::Lab;
use crate::runner::Test;
use crate::scenarios::api::installed;
use crate::scenarios::applied::Applied;
use crate::scenarios::on_stand_ins;
use crate::scenarios::wish::{Wish, places, run_version};
use crate::standin::{Controller, Fleet, Health, USER};

/// Writes of agents and controller together for one node, evictions and Leases left out, with those that were refused: what
/// writes in vain again and again would be above.
const WRITES: usize = 30;

/// Connections that an agent may try to make in [`SPAN`] while nobody answers: what asks waits about a second at first and then
/// longer, so no more than six times in ten seconds; its watch, its Node, its status, and twice as much for chance.
const KNOCKS_OF_AGENT: usize = 30;

/// The same of the controller, with five watches, its Lease every two seconds, and its writes.
const KNOCKS_OF_CONTROLLER: usize = 40;

pub(super) fn tests() -> Vec<Test> {
    vec![
        on_stand_ins(
            "cluster/a-roll-out-that-is-answered-429-waits-and-goes-on",
            throttled,
        ),
        on_stand_ins(
            "cluster/a-roll-out-whose-writes-are-answered-500-waits-and-goes-on",
            failing,
        ),
        on_stand_ins(
            "cluster/a-roll-out-that-is-answered-nothing-waits-and-goes-on",
            silent,
        ),
        on_stand_ins("cluster/an-api-server-that-is-away-is-asked-seldom", away),
    ]
}

/// A priority level with a single place for requests, and who comes under it: all agents, the controller, and who holds the place:
/// their request waits for a webhook that never answers.
const JAM: &str = r#"
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {name: lab-jam}
spec:
  type: Limited
  limited:
    nominalConcurrencyShares: 0
    lendablePercent: 0
    borrowingLimitPercent: 0
    limitResponse: {type: Reject}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: lab-jam}
spec:
  matchingPrecedence: 2
  priorityLevelConfiguration: {name: lab-jam}
  rules:
    - subjects:
        - {kind: Group, group: {name: "system:nodes"}}
        - {kind: User, user: {name: slotd-controller}}
        - {kind: User, user: {name: "lab:holder"}}
      resourceRules:
        - {verbs: ["*"], apiGroups: ["*"], resources: ["*"], clusterScope: true, namespaces: ["*"]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: lab-jam}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: User, name: "lab:holder"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: lab-jam}
webhooks:
  - name: jam.lab.example
    clientConfig: {url: "https://@address@/"}
    failurePolicy: Fail
    sideEffects: None
    timeoutSeconds: 30
    admissionReviewVersions: [v1]
    rules:
      - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}
    matchConditions:
      - {name: holder, expression: "request.userInfo.username == 'lab:holder'"}
"#;

/// A webhook that nobody serves, and without which nothing of slotd's can be written.
const UNSERVED: &str = r#"
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: lab-unserved}
webhooks:
  - name: unserved.lab.example
    clientConfig: {url: "https://127.0.0.1:1/"}
    failurePolicy: Fail
    sideEffects: None
    timeoutSeconds: 2
    admissionReviewVersions: [v1]
    rules:
      - {apiGroups: [monok8s.io], apiVersions: ["*"], operations: [CREATE, UPDATE], resources: ["*/*"]}
      - {apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [configmaps]}
    matchConditions:
      - {name: own, expression: "request.resource.group != '' || request.name == 'slotd-places'"}
      - {name: not-the-test, expression: "request.userInfo.username != 'admin'"}
"#;

fn throttled(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    let holder = lab.control_plane()?.user("lab:holder", None)?;
    // Connections come to it, and are never taken.
    let silent = TcpListener::bind("127.0.0.1:0").context("listening")?;
    let documents = JAM.replace("@address@", &silent.local_addr()?.to_string());
    let kinds = "flowschema/lab-jam prioritylevelconfiguration/lab-jam clusterrolebinding/lab-jam \
                 validatingwebhookconfiguration/lab-jam";
    let object = lab.folder().join("held.json");
    let text = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "lab-jam"}});
    fs::write(&object, text.to_string()).context("writing a document")?;
    ridden_out(lab, &|ride| {
        let applied = Applied::new(admin, &documents, kinds)?;
        let path = "/api/v1/namespaces/default/configmaps";
        let object = object.display().to_string();
        let mut held = holder.spawn(&["create", "--raw", path, "--filename", &object])?;
        let refused = ride.refused(429).and_then(|()| ride.paused());
        drop(applied);
        held.kill().context("ending kubectl")?;
        held.wait().context("waiting for kubectl")?;
        refused
    })
}

fn failing(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    let kinds = "validatingwebhookconfiguration/lab-unserved";
    ridden_out(lab, &|ride| {
        let applied = Applied::new(admin, UNSERVED, kinds)?;
        ride.refused(500)?;
        drop(applied);
        Ok(())
    })
}

fn silent(lab: &Lab) -> Result<()> {
    installed(lab)?;
    ridden_out(lab, &|ride| {
        let paused = ride.fleet.plane().pause_etcd()?;
        ride.confirm()?;
        let log = lab.folder().join("controller.log");
        wait_until("a controller that leads no more", PATIENCE, || {
            let text = std::fs::read_to_string(&log)?;
            ensure!(
                text.contains("the API server does not answer in time about the Lease")
                    && text.contains("not leading any more"),
                "the controller says {text}"
            );
            Ok(())
        })?;
        drop(paused);
        Ok(())
    })
}

fn away(lab: &Lab) -> Result<()> {
    installed(lab)?;
    ridden_out(lab, &|ride| {
        let controller = ride.controller.process().context("no controller")?;
        // The one on trial is being started.
        let mut processes = wait_until("an agent on each node", PATIENCE, || {
            let agents = ride.fleet.nodes().iter().map(|node| {
                let name = node.name();
                node.agent().with_context(|| format!("{name} has no agent"))
            });
            agents.collect::<Result<Vec<u32>>>()
        })?;
        processes.push(controller);
        let away = ride.fleet.plane().stop_api_server()?;
        let knocks = away.knocks(&processes)?;
        ride.confirm()?;
        let times_of = |process: u32, knocks: &[Knock]| -> Vec<Timestamp> {
            let own = knocks.iter().filter(|knock| knock.process == process);
            own.map(|knock| knock.received).collect()
        };
        // For so long that who asks again at once is noticed, and who does not ask at all.
        let seen = wait_until("knocks of all for a while", PATIENCE * 2, || {
            let seen = knocks.seen();
            for &process in &processes {
                let times = times_of(process, &seen);
                let lasts = times
                    .first()
                    .zip(times.last())
                    .is_some_and(|(first, last)| {
                        last.duration_since(*first).unsigned_abs() >= SPAN
                    });
                ensure!(lasts, "{process} of {processes:?} knocked at {times:?}");
            }
            Ok(seen)
        })?;
        // The port is the server's again.
        drop(knocks);
        away.end()?;
        let mut busiest = 0;
        for &process in &processes {
            let most = most_within(times_of(process, &seen), SPAN);
            let allowed = if process == controller {
                KNOCKS_OF_CONTROLLER
            } else {
                busiest = busiest.max(most);
                KNOCKS_OF_AGENT
            };
            ensure!(
                most <= allowed,
                "{most} knocks of {process}, of which {controller} is the controller"
            );
        }
        lab.note(format!(
            "at most {busiest} knocks of an agent and {} of the controller in {} s",
            most_within(times_of(controller, &seen), SPAN),
            SPAN.as_secs()
        ));
        Ok(())
    })
}

/// A roll-out whose first node is on trial.
struct Ride<'a> {
    controller: &'a Controller,
    fleet: &'a Fleet<'a>,
    wish: &'a Wish<'a>,
    log: AuditLog,
}

impl Ride<'_> {
    /// Every node is well from now on, and says so as soon as it can.
    fn confirm(&self) -> Result<()> {
        let mut nodes = self.fleet.nodes().iter();
        nodes.try_for_each(|node| node.set_health(VERSION, Health::Healthy))
    }

    /// Gives both sides something to write, and waits until they were answered this several times.
    fn refused(&self, code: u16) -> Result<()> {
        let refused = || -> Result<Requests> {
            Ok(self.log.requests()?.filter(|request| request.code == code))
        };
        let mut suspend = false;
        wait_until("a first refusal of the controller", PATIENCE, || {
            suspend = !suspend;
            self.wish.patch(&json!({"suspend": suspend}))?;
            let refused = refused()?;
            ensure!(refused.of_user(USER).count() > 0, "{:?}", refused.by_user());
            Ok(())
        })?;
        self.confirm()?;
        wait_until("refusals of an agent and the controller", PATIENCE, || {
            let refused = refused()?;
            let agents = refused.filter(|request| request.user.starts_with("system:node:"));
            // For so long that who asks again at once is noticed.
            let times = agents.all().iter().map(|request| request.received);
            let since = times.clone().max().zip(times.min());
            let lasts = since
                .is_some_and(|(last, first)| last.duration_since(first).unsigned_abs() >= SPAN / 2);
            ensure!(
                refused.of_user(USER).count() >= 4 && agents.count() >= 4 && lasts,
                "refused were {:?}",
                refused.by_user()
            );
            Ok(())
        })?;
        self.wish.patch(&json!({"suspend": false}))
    }

    /// An error where somebody who was asked to wait for a second asked again before; what was on its way already aside.
    fn paused(&self) -> Result<()> {
        let requests = self.log.requests()?;
        let refused = requests.filter(|request| {
            request.code == 429
                && (request.user == USER || request.user.starts_with("system:node:"))
        });
        for refusal in refused.all() {
            // The Lease is asked for by a client of its own, which waits for itself.
            let of_lease = |request: &ApiRequest| request.resource == "leases";
            let early = requests.of_user(&refusal.user).filter(|request| {
                let later = request.received.duration_since(refusal.received);
                of_lease(request) == of_lease(refusal) && (200..800).contains(&later.as_millis())
            });
            ensure!(
                early.count() == 0,
                "after {refusal:?} came {:#?}",
                early.all()
            );
        }
        Ok(())
    }
}

const VERSION: &str = "v1.1.0";

/// Three nodes, one after the other, with trouble while the first one is on trial.
fn ridden_out(lab: &Lab, trouble: &dyn Fn(&Ride<'_>) -> Result<()>) -> Result<()> {
    let fleet = Fleet::start(lab, 3)?;
    for node in fleet.nodes() {
        node.set_health(VERSION, Health::Waiting)?;
    }
    let controller = Controller::start(lab, "controller")?;
    fleet.observer().forget();
    let log = fleet.plane().audit_log()?;
    let from = fleet.publish(VERSION)?;
    let wish = Wish::apply(&fleet, &from, &json!({}))?;
    wait_until("a node on trial", PATIENCE, || {
        let mut nodes = fleet.nodes().iter();
        ensure!(nodes.any(|node| node.boots().len() == 2), "none reboots");
        Ok(())
    })?;
    let began = Timestamp::now();
    trouble(&Ride {
        controller: &controller,
        fleet: &fleet,
        wish: &wish,
        log: fleet.plane().audit_log()?,
    })?;
    let over = Timestamp::now();

    wish.wait_for("Completed", 3, 3, 0)?;
    run_version(&fleet, VERSION)?;
    let observer = fleet.observer();
    ensure!(observer.most_taken_down() == 1, "{}", observer.log());
    for node in fleet.nodes() {
        let boots = node.boots();
        ensure!(boots.len() == 2, "{}: {boots:?}", node.name());
    }
    let held = places(fleet.admin())?;
    ensure!(
        held.as_object().is_none_or(serde_json::Map::is_empty),
        "{held} is held still"
    );
    // One that was never answered is told of late.
    let requests = log.requests()?;
    let meanwhile = requests.filter(|one| began <= one.received && one.received < over);
    asked_seldom(lab, &fleet, &meanwhile)?;
    let writes = requests.writes().filter(|request| {
        request.subresource != "eviction"
            && (request.user == USER || request.user.starts_with("system:node:"))
    });
    let made = writes.filter(|request| {
        request.verb == "create" && request.resource == "osupgradeprogresses" && request.code == 201
    });
    ensure!(made.count() == 3, "{:#?}", writes.by_kind());
    let each = writes.count().div_ceil(3);
    lab.note(format!(
        "{each} API writes for each node, refused ones with them"
    ));
    ensure!(
        each <= WRITES,
        "{each} writes for each node: {:#?}",
        writes.by_kind()
    );
    wish.delete()
}
