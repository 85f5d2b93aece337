//! The stand-ins for nodes themselves: that they are what later scenarios take them for.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use slotd_bootctl::SlotName;

use super::on_stand_ins;
use crate::cluster::wait_until;
use crate::lab::Lab;
use crate::runner::Test;
use crate::server::{Body, Fault};
use crate::standin::{Fleet, FleetOptions, Health, PodSeen, StandIn};

/// Many times what anything takes on an idle machine, the 20 s after which a silent node is given up included.
const PATIENCE: Duration = Duration::from_secs(120);

pub(super) fn tests() -> Vec<Test> {
    vec![
        on_stand_ins(
            "cluster/stand-ins-become-ready-and-run-pods-until-they-are-deleted",
            pods,
        ),
        on_stand_ins(
            "cluster/stand-ins-boot-what-their-agents-wrote-and-fall-back-from-what-fails",
            upgrades,
        ),
        on_stand_ins(
            "cluster/stand-ins-agents-are-killed-stopped-and-survive-a-power-cut",
            deaths,
        ),
        on_stand_ins(
            "cluster/stand-ins-that-are-cordoned-not-ready-or-silent-are-seen-by-the-observer",
            unavailable,
        ),
        on_stand_ins(
            "cluster/stand-ins-go-on-while-the-api-server-is-away",
            outage,
        ),
    ]
}

fn pods(lab: &Lab) -> Result<()> {
    let fleet = Fleet::start(lab, 3)?;
    let admin = fleet.admin();
    fleet.deploy("web", 6, Some(1))?;
    let all = || -> Result<Vec<PodSeen>> {
        let mut all = Vec::new();
        for node in fleet.nodes() {
            all.extend(node.pods()?);
        }
        Ok(all)
    };
    ensure!(
        all()?.len() == 6 && all()?.iter().all(|pod| pod.ready),
        "{:?}",
        all()?
    );

    // The scheduler honours a cordon, and the eviction API the budget.
    let node = fleet.node(0);
    admin.run(&["cordon", node.name()])?;
    let drain = ["drain", node.name(), "--timeout=60s"];
    fleet.observer().forget();
    admin.run(&drain)?;
    ensure!(node.pods()?.is_empty(), "{:?}", node.pods()?);
    let least = fleet.observer().least_ready_pods(fleet.name());
    ensure!(
        least == 5,
        "{least} of 6 pods were Ready\n{}",
        fleet.observer().log()
    );
    admin.run(&["uncordon", node.name()])?;

    // A pod that does not end stays, and one of a node that is off, too.
    let (slow, off) = (fleet.node(1), fleet.node(2));
    slow.keep_pods_ending();
    off.power_off()?;
    let [one, other] = [slow, off].map(first_pod);
    let (one, other) = (one?, other?);
    let delete = ["delete", "pod", "--wait=false", "--namespace", fleet.name()];
    admin.run(&[&delete[..], &[&one, &other]].concat())?;
    wait_until("replacements", PATIENCE, || {
        let ready = all()?
            .iter()
            .filter(|pod| pod.ready && !pod.leaving)
            .count();
        ensure!(ready >= 4, "{:?}", all()?);
        let left: BTreeSet<String> = all()?
            .into_iter()
            .filter(|pod| pod.leaving)
            .map(|pod| pod.name)
            .collect();
        ensure!(
            left == BTreeSet::from([one.clone(), other.clone()]),
            "{left:?}"
        );
        Ok(())
    })?;
    slow.let_pods_end();
    off.power_on()?;
    wait_until("the end of both", PATIENCE, || {
        ensure!(all()?.iter().all(|pod| !pod.leaving), "{:?}", all()?);
        Ok(())
    })?;
    fleet.wait_until_available()
}

fn first_pod(node: &StandIn) -> Result<String> {
    let pods = node.pods()?;
    let pod = pods
        .first()
        .with_context(|| format!("{} has no pods", node.name()))?;
    Ok(pod.name.clone())
}

fn upgrades(lab: &Lab) -> Result<()> {
    let fleet = Fleet::start_with(
        lab,
        &FleetOptions {
            nodes: 2,
            buses: true,
            ..FleetOptions::default()
        },
    )?;
    let node = fleet.node(0);
    let first = node.boot()?;
    ensure!(
        (first.slot, first.version.as_str()) == (SlotName::A, "v1.0.0"),
        "{first:?}"
    );
    written_alone_and_directly(&fleet, node)?;
    install(&fleet, node, "v2.0.0", "Completed")?;
    let second = node.boot()?;
    ensure!(
        (second.slot, second.version.as_str()) == (SlotName::B, "v2.0.0"),
        "{second:?}"
    );
    let info = &node.object()?["status"]["nodeInfo"];
    ensure!(
        info["bootID"] == second.boot_id.as_str() && info["osImage"] == "stand-in v2.0.0",
        "{info}"
    );
    ensure!(first.boot_id != second.boot_id, "{second:?}");

    let failing = Health::Failing {
        check: "required.d/50-app".to_owned(),
        output: "refused".to_owned(),
    };
    node.set_health("v3.0.0", failing)?;
    install(&fleet, node, "v3.0.0", "RolledBack")?;
    node.set_health("v4.0.0", Health::Panicking)?;
    install(&fleet, node, "v4.0.0", "RolledBack")?;
    let boots = node.boots();
    let versions: Vec<&str> = boots.iter().map(|boot| boot.version.as_str()).collect();
    // What panics comes to no agent.
    ensure!(
        versions == ["v1.0.0", "v2.0.0", "v3.0.0", "v2.0.0", "v2.0.0"],
        "{versions:?}"
    );
    let history = node.history()?;
    let output = history
        .get(2)
        .and_then(|entry| entry.failure.as_ref()?.output.clone());
    ensure!(output.as_deref() == Some("refused"), "{history:?}");

    // Its reboots were seen, and the other node was never touched.
    ensure!(
        fleet.observer().ever_unavailable() == BTreeSet::from([node.name().to_owned()]),
        "{}",
        fleet.observer().log()
    );
    ensure!(fleet.node(1).boots().len() == 1, "the other node rebooted");
    for node in fleet.nodes() {
        node.sound()?;
    }
    Ok(())
}

/// While the agent writes its slot, it has it for itself and writes past the page cache, as on any disk.
fn written_alone_and_directly(fleet: &Fleet, node: &StandIn) -> Result<()> {
    let (url, image) = fleet.publish("v1.5.0")?;
    let slow = Fault::Slow(256 << 10);
    fleet
        .server()
        .serve("/v1.5.0.ext4.zst", Body::File(image.path.clone()), slow);
    let bus = node.bus();
    wait_until("the agent on its bus", PATIENCE, || bus.status().map(drop))?;
    let upgrade = bus.install(&url, &image.checksum)?;
    let device = fs::read_link(node.root().join("dev/vda3")).context("slot B's device")?;
    let agent = node.agent().context("no agent runs")?;
    wait_until("a slot that is written directly", PATIENCE, || {
        ensure!(
            opened_directly(agent, &device)?,
            "{:#}",
            bus.status()?["upgrade"]
        );
        Ok(())
    })?;
    let alone = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_EXCL)
        .open(&device);
    ensure!(
        alone
            .as_ref()
            .is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY)),
        "{alone:?}"
    );
    bus.cancel(upgrade)?;
    wait_until("the end of what was cancelled", PATIENCE, || {
        ensure!(node.history()?.len() == 1, "{:#}", bus.status()?["upgrade"]);
        Ok(())
    })
}

/// Whether a process has a device open for direct I/O, by `/proc/PID/fdinfo`.
fn opened_directly(process: u32, device: &Path) -> Result<bool> {
    let folder = Path::new("/proc").join(process.to_string());
    for entry in fs::read_dir(folder.join("fd")).context("listing the agent's files")? {
        let entry = entry.context("listing the agent's files")?;
        // It may be closed by now.
        let Ok(target) = fs::read_link(entry.path()) else {
            continue;
        };
        let info = fs::read_to_string(folder.join("fdinfo").join(entry.file_name()));
        let flags = info.unwrap_or_default().lines().find_map(|line| {
            let flags = line.strip_prefix("flags:")?.trim();
            i32::from_str_radix(flags, 8).ok()
        });
        if target == device && flags.is_some_and(|flags| flags & libc::O_DIRECT != 0) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Installs by the local door, and waits until the upgrade has ended as it should on a node that is Ready.
fn install(fleet: &Fleet, node: &StandIn, version: &str, result: &str) -> Result<()> {
    let (url, image) = fleet.publish(version)?;
    let ended = node.history()?.len();
    let bus = node.bus();
    wait_until("the agent on its bus", PATIENCE, || bus.status().map(drop))?;
    bus.install(&url, &image.checksum)?;
    wait_until(&format!("{version} {result}"), PATIENCE, || {
        node.sound()?;
        let history = node.history()?;
        ensure!(history.len() > ended, "{:#}", bus.status()?["upgrade"]);
        Ok(())
    })?;
    let history = node.history()?;
    let last = history.last().context("a history")?;
    ensure!(last.result == result, "{last:?}");
    fleet.wait_until_available()
}

fn deaths(lab: &Lab) -> Result<()> {
    let fleet = Fleet::start_with(
        lab,
        &FleetOptions {
            nodes: 1,
            buses: true,
            ..FleetOptions::default()
        },
    )?;
    let node = fleet.node(0);
    let process = node.agent().context("no agent runs")?;
    node.kill_agent()?;
    wait_until("another agent", PATIENCE, || {
        ensure!(
            node.agent().is_some_and(|other| other != process),
            "{:?}",
            node.agent()
        );
        Ok(())
    })?;
    node.stop_agent()?;
    ensure!(node.agent().is_none(), "{:?}", node.agent());
    node.reboot()?;
    ensure!(
        node.agent().is_none() && node.boots().len() == 2,
        "{node:?}"
    );
    node.start_agent()?;
    wait_until("the agent", PATIENCE, || {
        node.agent().map(drop).context("no agent runs")
    })?;

    // A trial whose checks come to no end is cut short: the loader tries once more, and then it is confirmed.
    node.set_health("v2.0.0", Health::Waiting)?;
    let (url, image) = fleet.publish("v2.0.0")?;
    let bus = node.bus();
    wait_until("the agent on its bus", PATIENCE, || bus.status().map(drop))?;
    bus.install(&url, &image.checksum)?;
    wait_until("the trial", PATIENCE, || {
        ensure!(node.boot()?.version == "v2.0.0", "{:?}", node.boot());
        Ok(())
    })?;
    node.power_off()?;
    ensure!(
        node.agent().is_none(),
        "an agent runs on a node that is off"
    );
    node.set_health("v2.0.0", Health::Healthy)?;
    node.power_on()?;
    wait_until("the confirmation", PATIENCE, || {
        ensure!(
            node.history()?
                .last()
                .is_some_and(|entry| entry.result == "Completed"),
            "{:?}",
            node.history()
        );
        Ok(())
    })?;
    ensure!(node.boots().len() == 4, "{:?}", node.boots());
    node.sound()
}

fn unavailable(lab: &Lab) -> Result<()> {
    let fleet = Fleet::start(lab, 4)?;
    let (admin, observer) = (fleet.admin(), fleet.observer());
    ensure!(observer.most_unavailable() == 0, "{}", observer.log());
    let names: Vec<&str> = fleet.nodes().iter().map(StandIn::name).collect();
    admin.run(&["cordon", names[0]])?;
    fleet.node(1).say_not_ready()?;
    let both = BTreeSet::from([names[0].to_owned(), names[1].to_owned()]);
    observer.wait_for("two unavailable nodes", PATIENCE, |moment| {
        moment.unavailable == both
    })?;
    admin.run(&["uncordon", names[0]])?;
    fleet.node(1).say_ready()?;
    fleet.wait_until_available()?;
    // Short as it was, it stays seen.
    ensure!(observer.most_unavailable() == 2, "{}", observer.log());
    ensure!(observer.ever_unavailable() == both, "{}", observer.log());
    observer.forget();
    ensure!(observer.most_unavailable() == 0, "{}", observer.log());

    // Nobody says that a silent node is not Ready but the controller manager; the others go on renewing their Leases.
    fleet.node(2).stop_kubelet();
    let silent = BTreeSet::from([names[2].to_owned()]);
    observer.wait_for("a node that is given up", PATIENCE, |moment| {
        moment.unavailable == silent
    })?;
    let conditions = &fleet.node(2).object()?["status"]["conditions"];
    let ready = conditions
        .as_array()
        .and_then(|all| all.iter().find(|condition| condition["type"] == "Ready"))
        .context("no condition Ready")?;
    ensure!(ready["status"] == "Unknown", "{ready}");
    fleet.node(2).start_kubelet();

    // A Node object that is deleted comes back with the kubelet, as another one.
    let node = fleet.node(3);
    let before = node.object()?["metadata"]["uid"].clone();
    admin.run(&["delete", "node", node.name()])?;
    node.stop_kubelet();
    node.start_kubelet();
    node.wait_until_heard()?;
    let after = node.object()?["metadata"]["uid"].clone();
    ensure!(before != after, "the Node is still {before}");
    fleet.wait_until_available()
}

fn outage(lab: &Lab) -> Result<()> {
    let fleet = Fleet::start(lab, 2)?;
    fleet.deploy("web", 2, None)?;
    let log = fleet.plane().audit_log()?;
    let away = fleet.plane().stop_api_server()?;
    let refusal = fleet.admin().refusal(&["get", "nodes"])?;
    ensure!(refusal.contains("refused"), "{refusal}");
    // A machine needs no API server to reboot.
    fleet.node(0).reboot()?;
    let boot = fleet.node(0).boot()?;
    away.end()?;
    fleet.wait_until_available()?;
    let info = &fleet.node(0).object()?["status"]["nodeInfo"];
    ensure!(info["bootID"] == boot.boot_id.as_str(), "{info}");
    wait_until("pods on a node that was away", PATIENCE, || {
        let pods = fleet.node(0).pods()?;
        ensure!(pods.iter().all(|pod| pod.ready), "{pods:?}");
        Ok(())
    })?;
    let interruptions = fleet.observer().interruptions();
    ensure!(interruptions > 0, "the observer noticed nothing");

    let requests = log.requests()?;
    let kubelets = requests.of_user("lab:kubelets");
    let writes = kubelets.writes();
    ensure!(
        (1..10).contains(&writes.count()),
        "{} writes: {:?}",
        writes.count(),
        writes.all()
    );
    ensure!(
        kubelets.count() > writes.count(),
        "no Lease was renewed: {:?}",
        kubelets.all()
    );
    lab.note(format!(
        "requests since the outage, by user: {:?}",
        requests.by_user()
    ));
    Ok(())
}
