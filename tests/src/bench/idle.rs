//! The idle agent in a guest.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::lab::Lab;
use crate::node::Node;
use crate::vm::Machine;

/// How long it is watched.
const IDLE: Duration = Duration::from_secs(300);

/// The agent with nothing to do.
#[derive(Debug, Serialize)]
pub struct Idle {
    /// Anonymous memory in bytes.
    pub anonymous: u64,
    /// Context switches a minute, of all its threads.
    pub switches_per_minute: f64,
}

pub(super) fn measure(lab: &Lab) -> Result<Idle> {
    eprintln!("lab: watching the idle agent for {} s", IDLE.as_secs());
    let mut node = Node::start(lab)?;
    let phase = node.status()?["upgrade"]["phase"].clone();
    ensure!(phase == "Idle", "the agent is not idle but {phase}");
    let process = node
        .machine
        .run("systemctl show --property MainPID --value slotd.service")?;
    let process = process.trim().to_owned();
    // Threads that the question above kept busy end some seconds after it.
    let deadline = Instant::now() + node.machine.patience(60);
    let mut before = switches(&mut node.machine, &process)?;
    loop {
        node.machine.try_run("sleep 15")?;
        let now = switches(&mut node.machine, &process)?;
        let is_settled = now.keys().eq(before.keys());
        before = now;
        if is_settled {
            break;
        }
        ensure!(
            Instant::now() < deadline,
            "the agent's threads come and go: {before:?}"
        );
    }
    let patience = IDLE + node.machine.patience(30);
    node.machine
        .try_run_within(&format!("sleep {}", IDLE.as_secs()), patience)?;
    let after = switches(&mut node.machine, &process)?;
    let memory = node.machine.run(&format!(
        "awk '/RssAnon/ {{ print $2 }}' /proc/{process}/status"
    ))?;
    let kibibytes: u64 = memory.trim().parse().context("the agent's memory")?;
    Ok(Idle {
        anonymous: kibibytes << 10,
        switches_per_minute: switches_per_minute(&before, &after)?,
    })
}

/// From the counts of each thread at both ends of the time that the agent was watched. A thread that ends takes its count along,
/// and an idle agent starts none.
fn switches_per_minute(before: &BTreeMap<u32, u64>, after: &BTreeMap<u32, u64>) -> Result<f64> {
    ensure!(
        after.keys().eq(before.keys()),
        "the idle agent's threads were {before:?} and are {after:?}"
    );
    let count: u64 = after
        .values()
        .zip(before.values())
        .map(|(after, before)| after.saturating_sub(*before))
        .sum();
    Ok(count as f64 / IDLE.as_secs_f64() * 60.0)
}

/// Context switches of each thread of a process in a guest.
fn switches(machine: &mut Machine, process: &str) -> Result<BTreeMap<u32, u64>> {
    let listing = machine.run(&format!(
        "cd /proc/{process}/task && for thread in *; do \
         echo $thread $(awk '/ctxt_switches/ {{ n += $2 }} END {{ print n }}' $thread/status); done"
    ))?;
    listing
        .lines()
        .map(|line| {
            let (thread, count) = line.split_once(' ').context("a thread and its count")?;
            Ok((thread.parse()?, count.trim().parse()?))
        })
        .collect::<Result<_>>()
        .with_context(|| format!("context switches in\n{listing}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::switches_per_minute;

    #[test]
    fn switches_of_all_threads_count_and_a_change_of_threads_is_an_error() {
        // Ten switches in five minutes.
        let before = BTreeMap::from([(7, 100), (8, 3)]);
        let after = BTreeMap::from([(7, 106), (8, 7)]);
        assert!((switches_per_minute(&before, &after).unwrap() - 2.0).abs() < 1e-9);
        for threads in [&[(7, 106)][..], &[(7, 106), (8, 7), (9, 1)]] {
            let after = threads.iter().copied().collect();
            assert!(switches_per_minute(&before, &after).is_err());
        }
    }
}
