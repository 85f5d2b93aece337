//! All tests that are more than a crate's own.

mod admission;
mod agent;
mod agent_trouble;
mod api;
mod api_trouble;
mod applied;
mod backends;
mod boot_loaders;
mod catalogs;
mod control_plane;
mod controller_access;
mod cordons;
mod cut_downloads;
mod cuts;
mod deaf;
mod discovery;
mod failing_disk;
mod health;
mod judge;
mod kills;
mod lease;
mod lone;
mod loops;
mod moments;
mod neighbours;
mod node_access;
mod power_cuts;
mod real_nodes;
mod reference_disk;
mod refusals;
mod rollout;
mod rollout_rules;
mod stand_ins;
mod state_directory;
mod told;
mod uboot_script;
mod upgrades;
pub(crate) mod wish;
mod writer;

use crate::runner::{Set, Test, Tier};

/// Every test of the lab, cheapest first.
pub fn all() -> Vec<Test> {
    let mut tests = Vec::new();
    tests.extend(loops::tests());
    tests.extend(discovery::tests());
    tests.extend(backends::tests());
    tests.extend(writer::tests());
    tests.extend(failing_disk::tests());
    tests.extend(kills::tests());
    tests.extend(cut_downloads::tests());
    tests.extend(state_directory::tests());
    tests.extend(neighbours::tests());
    tests.extend(control_plane::tests());
    tests.extend(api::tests());
    tests.extend(admission::tests());
    tests.extend(node_access::tests());
    tests.extend(controller_access::tests());
    tests.extend(lease::tests());
    tests.extend(catalogs::tests());
    tests.extend(stand_ins::tests());
    tests.extend(agent::tests());
    tests.extend(cordons::tests());
    tests.extend(moments::tests());
    tests.extend(agent_trouble::tests());
    tests.extend(deaf::tests());
    tests.extend(rollout::tests());
    tests.extend(rollout_rules::tests());
    tests.extend(api_trouble::tests());
    // The longest of all first, so that nothing waits for it at the end: a translated machine.
    tests.extend(boot_loaders::tests());
    tests.extend(reference_disk::tests());
    tests.extend(uboot_script::tests());
    tests.extend(upgrades::tests());
    tests.extend(power_cuts::tests());
    tests.extend(cuts::tests());
    tests.extend(refusals::tests());
    tests.extend(real_nodes::tests());
    tests.sort_by_key(|test| test.tier);
    tests
}

/// A test in virtual machines that runs with every `lab test`.
const fn in_machine(name: &'static str, run: fn(&crate::lab::Lab) -> anyhow::Result<()>) -> Test {
    Test {
        name,
        tier: Tier::Machine,
        set: Set::Test,
        unavailable: || None,
        run,
    }
}

/// A test in virtual machines that takes too long for each change.
const fn proved_in_machine(
    name: &'static str,
    run: fn(&crate::lab::Lab) -> anyhow::Result<()>,
) -> Test {
    Test {
        set: Set::Prove,
        ..in_machine(name, run)
    }
}

/// A test of virtual machines that are nodes of a cluster of their own, which takes too long for each change.
const fn on_nodes(name: &'static str, run: fn(&crate::lab::Lab) -> anyhow::Result<()>) -> Test {
    Test {
        tier: Tier::Node,
        ..proved_in_machine(name, run)
    }
}

/// A test on loop devices that runs with every `lab test`.
const fn on_loop_disk(name: &'static str, run: fn(&crate::lab::Lab) -> anyhow::Result<()>) -> Test {
    Test {
        name,
        tier: Tier::Loop,
        set: Set::Test,
        unavailable: crate::loopdisk::unavailable,
        run,
    }
}

/// A test on loop devices that takes too long for each change.
const fn proved_on_loop_disk(
    name: &'static str,
    run: fn(&crate::lab::Lab) -> anyhow::Result<()>,
) -> Test {
    Test {
        set: Set::Prove,
        ..on_loop_disk(name, run)
    }
}

/// A test against the control plane that tests share, which runs with every `lab test`.
const fn in_cluster(name: &'static str, run: fn(&crate::lab::Lab) -> anyhow::Result<()>) -> Test {
    Test {
        name,
        tier: Tier::Cluster,
        set: Set::Test,
        unavailable: || None,
        run,
    }
}

/// A test of stand-ins for nodes in the control plane that tests share, which runs with every `lab test`. Their slots are loop
/// devices.
const fn on_stand_ins(name: &'static str, run: fn(&crate::lab::Lab) -> anyhow::Result<()>) -> Test {
    Test {
        unavailable: crate::loopdisk::unavailable,
        ..in_cluster(name, run)
    }
}
