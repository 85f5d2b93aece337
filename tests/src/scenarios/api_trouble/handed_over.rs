//! A credential of which the controller has systemd's copy alone.

use std::fs;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::PATIENCE;
use super::credentials::{SHORT, refused, replace};
use crate::cluster::{Holder, wait_until};
use crate::lab::Lab;
use crate::runner::Test;
use crate::scenarios::api::installed;
use crate::scenarios::on_stand_ins;
use crate::scenarios::wish::Wish;
use crate::standin::{Controller, Fleet, USER};

pub(super) fn tests() -> Vec<Test> {
    vec![on_stand_ins(
        "cluster/a-controller-whose-credential-systemd-hands-over-is-started-anew-with-another-one",
        handed_over,
    )]
}

/// Plays systemd: copies the kubeconfig, starts the controller, and does so again when that ends.
fn handed_over(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    let plane = lab.control_plane()?;
    let fleet = Fleet::start(lab, 2)?;
    let etc = lab.folder().join("etc-slotd");
    fs::create_dir_all(&etc).context("making a folder")?;
    let kubeconfig = etc.join("controller.kubeconfig");
    let renew = |lifetime| {
        let holder = Holder {
            user: USER,
            group: None,
            lifetime,
        };
        replace(&kubeconfig, &plane.kubeconfig(&holder)?)
    };
    let holder = || -> Result<Value> {
        let lease = admin.json(&[
            "get",
            "lease",
            "--namespace=kube-system",
            "slotd-controller",
        ])?;
        Ok(lease["spec"]["holderIdentity"].clone())
    };
    renew(None)?;
    fleet.observer().forget();
    let mut first = Controller::start_as_unit(lab, "first", &etc)?;
    let wish = Wish::apply(&fleet, &fleet.publish("v1.1.0")?, &json!({}))?;
    wish.wait_until("is under way", |status| status["phase"] == "RollingOut")?;
    // Gone for a while, and one that nobody has written to the end.
    fs::remove_file(&kubeconfig).context("removing a file")?;
    fs::write(&kubeconfig, "").context("writing a file")?;
    wish.wait_for("Completed", 2, 2, 0)?;
    ensure!(!first.ended_well()?, "it ended for nothing");
    renew(None)?;
    let renewed = Instant::now();
    ends(&mut first)?;
    lab.note(format!(
        "ended {:.1} s after the renewal",
        renewed.elapsed().as_secs_f64()
    ));
    ensure!(holder()?.is_null(), "the Lease was not given back");

    // One that runs out, and is renewed too late.
    renew(Some(SHORT))?;
    let mut second = Controller::start_as_unit(lab, "second", &etc)?;
    wait_until("another leader", PATIENCE, || {
        ensure!(!holder()?.is_null(), "nobody leads");
        Ok(())
    })?;
    let log = plane.audit_log()?;
    wait_until("a refusal", PATIENCE, || refused(&log).map(drop))?;
    renew(None)?;
    ends(&mut second)?;
    let _third = Controller::start_as_unit(lab, "third", &etc)?;
    let next = Wish::apply(&fleet, &fleet.publish("v1.2.0")?, &json!({}))?;
    next.wait_for("Completed", 2, 2, 0)?;
    ensure!(
        fleet.observer().most_unavailable() == 1,
        "{}",
        fleet.observer().log()
    );
    wish.delete()?;
    next.delete()
}

fn ends(controller: &mut Controller) -> Result<()> {
    wait_until("its end, to be started anew", PATIENCE, || {
        ensure!(controller.ended_well()?, "it goes on");
        Ok(())
    })
}
