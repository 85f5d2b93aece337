//! Certificates that expire, are renewed while their holder runs, or are not accepted any more.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::{BUSY_AGENT, BUSY_CONTROLLER, PATIENCE, SPAN};
use crate::cluster::{AuditLog, Holder, Requests, wait_until};
use crate::lab::Lab;
use crate::runner::Test;
use crate::scenarios::api::installed;
use crate::scenarios::on_stand_ins;
use crate::scenarios::told::Told;
use crate::scenarios::wish::{Wish, run_version};
use crate::standin::{Controller, Fleet, FleetOptions, StandIn, USER};

/// Long enough to be used, and short enough to be waited for.
pub(super) const SHORT: Duration = Duration::from_secs(6);

pub(super) fn tests() -> Vec<Test> {
    vec![
        on_stand_ins(
            "cluster/an-agents-certificate-expires-and-is-renewed-while-it-runs",
            agent_expired,
        ),
        on_stand_ins(
            "cluster/an-agents-certificate-is-revoked-and-replaced-while-it-runs",
            agent_revoked,
        ),
        on_stand_ins(
            "cluster/a-controllers-certificate-expires-is-renewed-and-is-revoked-while-it-runs",
            controller,
        ),
    ]
}

/// Puts a file in the place of another one, as the kubelet does: written beside, then renamed over it.
pub(super) fn replace(path: &Path, text: &str) -> Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, text)
        .and_then(|()| fs::rename(&new, path))
        .with_context(|| format!("writing {}", path.display()))
}

/// Lets a link point to another file, as the kubelet does.
fn point(link: &Path, target: &str) -> Result<()> {
    let new = link.with_extension("new");
    symlink(target, &new)
        .and_then(|()| fs::rename(&new, link))
        .with_context(|| format!("making the link {}", link.display()))
}

/// Requests whose credential was refused, which name nobody; an error where there is none.
pub(super) fn refused(log: &AuditLog) -> Result<Requests> {
    let refused = log.requests()?.filter(|request| request.code == 401);
    ensure!(refused.count() > 0, "none was refused");
    Ok(refused)
}

fn seldom_refused(lab: &Lab, log: &AuditLog, most: usize) -> Result<()> {
    let refused = refused(log)?;
    let busiest = refused.most_within(SPAN);
    lab.note(format!(
        "{} requests were refused, at most {busiest} in {} s",
        refused.count(),
        SPAN.as_secs()
    ));
    ensure!(busiest <= most, "refused were {:#?}", refused.by_kind());
    Ok(())
}

/// One node with a bus, whose agent starts anew with this credential.
fn fleet_of_one<'a>(
    lab: &'a Lab,
    kubeconfig: impl FnOnce(&StandIn) -> Result<()>,
) -> Result<Fleet<'a>> {
    let fleet = Fleet::start_with(
        lab,
        &FleetOptions {
            nodes: 1,
            buses: true,
            ..FleetOptions::default()
        },
    )?;
    let node = fleet.node(0);
    kubeconfig(node)?;
    let starts = node.agent_starts();
    let log = fleet.plane().audit_log()?;
    node.kill_agent()?;
    let user = format!("system:node:{}", node.name());
    wait_until("an agent with this credential", PATIENCE, || {
        ensure!(node.agent_starts() > starts, "{starts} starts");
        let own = log.requests()?.of_user(&user);
        ensure!(
            own.filter(|request| request.resource == "osupgradeprogresses"
                && request.verb == "list"
                && request.code == 200)
                .count()
                > 0,
            "{own:?}"
        );
        Ok(())
    })?;
    Ok(fleet)
}

/// Waits until the node's status says that the cluster is in trouble, in these words.
fn says(node: &StandIn, words: &str) -> Result<()> {
    wait_until(&format!("a status that says {words:?}"), PATIENCE, || {
        let status = node.bus().status()?;
        let said = status["conditions"].as_array().is_some_and(|all| {
            all.iter().any(|one| {
                one["type"]
                    .as_str()
                    .is_some_and(|kind| kind.starts_with("Cluster"))
                    && one["message"]
                        .as_str()
                        .is_some_and(|text| text.contains(words))
            })
        });
        ensure!(said, "{:#}", status["conditions"]);
        Ok(())
    })
}

fn agent_expired(lab: &Lab) -> Result<()> {
    installed(lab)?;
    let plane = lab.control_plane()?;
    let current = |lifetime: Option<Duration>, node: &StandIn| {
        let user = format!("system:node:{}", node.name());
        let holder = Holder {
            user: &user,
            group: Some("system:nodes"),
            lifetime,
        };
        plane.kubeconfig_beside(&holder, "kubelet-client-current.pem")
    };
    // As the kubelet keeps it: the kubeconfig names a link, and the link is made to point elsewhere.
    let renew = |lifetime: Option<Duration>, node: &StandIn, name: &str| -> Result<String> {
        let (kubeconfig, pem) = current(lifetime, node)?;
        let credential = node.credential();
        let folder = credential.parent().context("the kubeconfig has a folder")?;
        replace(&folder.join(name), &pem)?;
        point(&folder.join("kubelet-client-current.pem"), name)?;
        Ok(kubeconfig)
    };
    let fleet = fleet_of_one(lab, |node| {
        let kubeconfig = renew(Some(SHORT), node, "one.pem")?;
        replace(&node.credential(), &kubeconfig)
    })?;
    let node = fleet.node(0);
    let starts = node.agent_starts();
    let log = plane.audit_log()?;
    let expired = Instant::now() + SHORT;
    wait_until("the end of the certificate", PATIENCE, || {
        ensure!(Instant::now() > expired, "it is valid still");
        Ok(())
    })?;
    // It hears by the watch that is open what to do, and does what needs no API server.
    let from = fleet.publish("v1.1.0")?;
    let told = Told::apply(&fleet, node, "v1.1.0", &from, &json!({}))?;
    says(node, "client certificate expired at 20")?;
    wait_until("a node that waits undrained", PATIENCE, || {
        let status = node.bus().status()?;
        ensure!(
            status["upgrade"]["phase"] == "Draining" || status["upgrade"]["phase"] == "Staged",
            "{status:#}"
        );
        Ok(())
    })?;
    ensure!(node.boots().len() == 1, "it rebooted undrained");
    renew(None, node, "two.pem")?;
    told.wait_for("Completed")?;
    seldom_refused(lab, &log, BUSY_AGENT)?;
    went_on(&fleet, starts)?;
    told.delete()
}

fn agent_revoked(lab: &Lab) -> Result<()> {
    installed(lab)?;
    let plane = lab.control_plane()?;
    let other = plane.trust_another()?;
    let fleet = fleet_of_one(lab, |node| {
        let user = format!("system:node:{}", node.name());
        let holder = Holder {
            user: &user,
            group: Some("system:nodes"),
            lifetime: None,
        };
        let kubeconfig = other.kubeconfig(&holder)?;
        replace(&node.credential(), &kubeconfig)
    })?;
    let node = fleet.node(0);
    let starts = node.agent_starts();
    let log = plane.audit_log()?;
    drop(other);
    let from = fleet.publish("v1.1.0")?;
    let told = Told::apply(
        &fleet,
        node,
        "v1.1.0",
        &from,
        &json!({"action": "Stage", "suspend": true}),
    )?;
    // Each change is something to tell, until the API server has noticed and refuses it.
    let mut suspend = true;
    wait_until("a refusal", PATIENCE, || {
        suspend = !suspend;
        told.patch(&json!({"suspend": suspend}))?;
        refused(&log).map(drop)
    })?;
    says(node, "the credential is not accepted")?;
    told.patch(&json!({"suspend": false, "action": "Activate"}))?;
    let user = format!("system:node:{}", node.name());
    let holder = Holder {
        user: &user,
        group: Some("system:nodes"),
        lifetime: None,
    };
    // Half a file is not taken for a credential, and the whole one is.
    let kubeconfig = plane.kubeconfig(&holder)?;
    replace(&node.credential(), &kubeconfig[..kubeconfig.len() / 2])?;
    replace(&node.credential(), &kubeconfig)?;
    told.wait_for("Completed")?;
    seldom_refused(lab, &log, BUSY_AGENT)?;
    went_on(&fleet, starts)?;
    told.delete()
}

/// The only node is available, and its agent was started anew by its reboot alone.
fn went_on(fleet: &Fleet<'_>, starts: u32) -> Result<()> {
    let again = fleet.node(0).agent_starts();
    ensure!(again == starts + 1, "beside its reboot: {again} starts");
    fleet.wait_until_available()
}

fn controller(lab: &Lab) -> Result<()> {
    installed(lab)?;
    let plane = lab.control_plane()?;
    let other = plane.trust_another()?;
    let fleet = Fleet::start(lab, 2)?;
    let holder = |lifetime| Holder {
        user: USER,
        group: None,
        lifetime,
    };
    let kubeconfig = lab.folder().join("controller.kubeconfig");
    replace(&kubeconfig, &plane.kubeconfig(&holder(Some(SHORT)))?)?;
    let log = plane.audit_log()?;
    let controller = Controller::start_by(lab, "controller", &kubeconfig)?;
    let process = controller.process();
    let said = |words: &str, times: usize| {
        let path = lab.folder().join("controller.log");
        wait_until(
            &format!("a controller that says {words:?}"),
            PATIENCE,
            || {
                let text = fs::read_to_string(&path)?;
                ensure!(text.matches(words).count() >= times, "it says {text}");
                Ok(())
            },
        )
    };
    said("leading", 1)?;
    let from = fleet.publish("v1.1.0")?;
    said("the credential is not accepted", 1)?;
    let wish = Wish::apply(&fleet, &from, &json!({}))?;
    said("not leading any more", 1)?;
    replace(&kubeconfig, &other.kubeconfig(&holder(None))?)?;
    wish.wait_for("Completed", 2, 2, 0)?;
    run_version(&fleet, "v1.1.0")?;
    seldom_refused(lab, &log, BUSY_CONTROLLER)?;

    let log = plane.audit_log()?;
    drop(other);
    wait_until("a refusal", PATIENCE, || refused(&log).map(drop))?;
    replace(&kubeconfig, &plane.kubeconfig(&holder(None))?)?;
    said("the credential was renewed", 2)?;
    wish.patch(&json!({"suspend": true}))?;
    wish.wait_until("is told of", |status| status["observedGeneration"] == 2)?;
    seldom_refused(lab, &log, BUSY_CONTROLLER)?;
    ensure!(controller.process() == process, "it was started anew");
    ensure!(
        fleet.observer().most_unavailable() == 1,
        "{}",
        fleet.observer().log()
    );
    wish.delete()
}
