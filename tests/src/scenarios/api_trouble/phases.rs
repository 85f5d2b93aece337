//! The API server killed in each phase of a roll-out, and others who write to the same objects all the time.

use std::fmt::Debug;
use std::fs;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;
use slotd_crds::api::{OSUpgrade, OSUpgradeProgress};

use super::PATIENCE;
use crate::cluster::{Client, wait_until};
use crate::lab::Lab;
use crate::runner::Test;
use crate::scenarios::api::installed;
use crate::scenarios::on_stand_ins;
use crate::scenarios::wish::{Wish, places_given_back, run_version};
use crate::standin::{Background, Controller, Fleet, FleetOptions, Health, StandIn, USER};

pub(super) fn tests() -> Vec<Test> {
    vec![
        on_stand_ins(
            "cluster/the-api-server-dies-while-a-node-downloads-and-drains",
            |lab| killed(lab, ["Downloading", "Draining"]),
        ),
        on_stand_ins(
            "cluster/the-api-server-dies-while-a-node-is-staged-and-confirms",
            |lab| killed(lab, ["Staged", "Confirming"]),
        ),
        on_stand_ins(
            "cluster/a-roll-out-comes-through-among-others-who-write-the-same-objects",
            conflicts,
        ),
    ]
}

const VERSION: &str = "v1.1.0";

/// Of a node whose roll-outs go on until something of theirs came too late.
const MOST_BOOTS: usize = 6;

fn killed(lab: &Lab, phases: [&str; 2]) -> Result<()> {
    let admin = installed(lab)?;
    let fleet = Fleet::start_with(
        lab,
        &FleetOptions {
            nodes: 2,
            ..FleetOptions::slowly("2MiB")
        },
    )?;
    let _controller = Controller::start(lab, "controller")?;
    // So many that there are some on each node.
    fleet.deploy("web", 6, None)?;
    fleet.observer().forget();
    for node in fleet.nodes() {
        node.set_health(VERSION, Health::Waiting)?;
        node.keep_pods_ending();
    }
    let wish = Wish::apply(&fleet, &fleet.publish(VERSION)?, &json!({}))?;
    for phase in phases {
        if phase == "Confirming" {
            fleet.nodes().iter().for_each(StandIn::let_pods_end);
        }
        let node = wait_until(&format!("a node that is {phase}"), PATIENCE, || {
            let shown = fleet.nodes().iter().filter_map(|node| {
                let object = wish.progress(node).ok()?;
                Some((node, object["status"]["phase"].clone()))
            });
            let shown: Vec<_> = shown.collect();
            let node = shown.iter().find(|(_, shown)| shown == phase);
            let node = node.map(|(node, _)| *node);
            node.with_context(|| {
                let phases: Vec<_> = shown.iter().map(|(_, phase)| phase).collect();
                format!("{phases:?}")
            })
        })?;
        let before = fs::read_to_string(node.log())?.len();
        let away = fleet.plane().stop_api_server()?;
        // Not before it came in the way of what the node does.
        let noticed = if phase == "Draining" {
            "WARN draining"
        } else {
            "WARN the cluster"
        };
        wait_until("an agent that notices", PATIENCE, || {
            let log = fs::read_to_string(node.log())?;
            let since = log.get(before..).unwrap_or_default();
            ensure!(since.contains(noticed), "since then it said {since}");
            Ok(())
        })?;
        if phase == "Confirming" {
            all_well(&fleet)?;
            wait_until("a confirmation that nobody is told of", PATIENCE, || {
                let history = node.history()?;
                let last = history.last().map(|entry| entry.result.as_str());
                ensure!(last == Some("Completed"), "{history:?}");
                Ok(())
            })?;
        }
        away.end()?;
    }
    fleet.nodes().iter().for_each(StandIn::let_pods_end);
    all_well(&fleet)?;
    wish.wait_for("Completed", 2, 2, 0)?;
    through(&fleet, admin, VERSION, 2)?;
    wish.delete()
}

fn all_well(fleet: &Fleet<'_>) -> Result<()> {
    let mut nodes = fleet.nodes().iter();
    nodes.try_for_each(|node| node.set_health(VERSION, Health::Healthy))
}

/// Every node is through, with as many boots as it should have, one at a time, and nothing is held any more.
fn through(fleet: &Fleet<'_>, admin: &Client, version: &str, boots: usize) -> Result<()> {
    run_version(fleet, version)?;
    for node in fleet.nodes() {
        ensure!(node.boots().len() == boots, "{:?}", node.boots());
    }
    places_given_back(admin)?;
    let observer = fleet.observer();
    ensure!(observer.most_taken_down() == 1, "{}", observer.log());
    Ok(())
}

/// Gives every object of a kind another version, unless it is none that slotd writes.
async fn touch<K>(api: &Api<K>, number: u64)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let Ok(list) = api.list(&ListParams::default()).await else {
        return;
    };
    let mark = json!({"metadata": {"annotations": {"lab.slotd/mark": number.to_string()}}});
    for object in list {
        // One that went meanwhile cannot be written to.
        let _ = api
            .patch(
                &object.name_any(),
                &PatchParams::default(),
                &Patch::Merge(&mark),
            )
            .await;
    }
}

fn conflicts(lab: &Lab) -> Result<()> {
    let admin = installed(lab)?;
    let fleet = Fleet::start(lab, 3)?;
    let _controller = Controller::start(lab, "controller")?;
    fleet.observer().forget();
    let user = fleet.plane().user("lab:restless", Some("system:masters"))?;
    let _restless = Background::start("restless", user.kubeconfig(), |client| async move {
        let places: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
        let progress: Api<OSUpgradeProgress> = Api::all(client.clone());
        let upgrades: Api<OSUpgrade> = Api::all(client.clone());
        let nodes: Api<Node> = Api::all(client);
        for number in 0.. {
            touch(&places, number).await;
            touch(&progress, number).await;
            touch(&upgrades, number).await;
            touch(&nodes, number).await;
        }
    })?;
    // Whether another's write comes between a read and the write after it is chance: few roll-outs have none.
    for boots in 2..=MOST_BOOTS {
        let log = fleet.plane().audit_log()?;
        let version = format!("v1.{}.0", boots - 1);
        let wish = Wish::apply(&fleet, &fleet.publish(&version)?, &json!({}))?;
        wish.wait_for("Completed", 3, 3, 0)?;
        through(&fleet, admin, &version, boots)?;
        wish.delete()?;
        let requests = log.requests()?.writes();
        let writes = requests
            .filter(|request| request.user == USER || request.user.starts_with("system:node:"));
        let lost = writes.filter(|request| request.code == 409).count();
        let each = writes.count().div_ceil(3);
        let others = requests.of_user("lab:restless").count();
        lab.note(format!(
            "{each} API writes for each node, of which {lost} in all came too late among {others} of others"
        ));
        ensure!(each <= 60, "{:#?}", writes.by_kind());
        if lost > 0 {
            return Ok(());
        }
    }
    bail!("nothing came too late in {} roll-outs", MOST_BOOTS - 1)
}
