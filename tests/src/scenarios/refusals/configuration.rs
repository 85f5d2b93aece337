//! A configuration, a state directory and a record that are not as they should be, and an agent that does not run.

use anyhow::{Result, ensure};

use super::group::{Fault, Group, Leaves, wait_for, wait_until_ready};
use super::node::Install;
use crate::node::Node;

const FRAGMENT: &str = "/etc/slotd/config.d/50-wrong.yaml";

pub(super) fn check(group: &mut Group, install: &Install) -> Result<()> {
    fragments(group, install)?;
    state_directories(group, install)?;
    state_files(group, install)?;
    not_root(group)?;
    not_running(group, install)
}

/// Wrong files: every program that reads them says where, and the agent does not run with half of a configuration.
fn fragments(group: &mut Group, install: &Install) -> Result<()> {
    for (name, text, says) in [
        (
            "an unknown key in the configuration",
            "trial:\n  tires: 3\n",
            &["/etc/slotd/config.d/50-wrong.yaml:2", "tires"][..],
        ),
        (
            "a value of the wrong type in the configuration",
            "boot:\n  options: quiet\n  panic: soon\n",
            &["/etc/slotd/config.d/50-wrong.yaml:3", "panic"],
        ),
        (
            "one device for both slots in the configuration",
            "slots:\n  a: /dev/nvme0n1p2\n  b: /dev/nvme0n1p2\n",
            &[
                "/etc/slotd/config.d/50-wrong.yaml:3",
                "both slots are the same",
            ],
        ),
    ] {
        let begin = format!(
            "printf '{}' > {FRAGMENT}; systemctl restart slotd.service; true",
            text.replace('\n', "\\n")
        );
        // The next check starts the agent anew anyway.
        let end = format!("rm {FRAGMENT}");
        let fault = Fault {
            name,
            begin: &begin,
            end: &end,
        };
        group.under(&fault, Leaves::Untouched, |node| {
            node.refused("slotd config show", 3, says)?;
            node.refused("slotd status", 3, says)?;
            let code = node
                .machine
                .run("systemctl show --property=ExecMainStatus --value slotd.service")?;
            ensure!(code.trim() == "3", "the agent ended with {}", code.trim());
            let journal = node
                .machine
                .run("journalctl --boot --unit slotd.service --lines 20 --no-pager --output cat")?;
            for word in says {
                ensure!(
                    journal.contains(word),
                    "the journal does not say {word}:\n{journal}"
                );
            }
            install.refused(node, 8, &["not running", "slotd.service"])
        })?;
    }
    group.restart_agent()
}

/// A state directory that cannot be written, or that would not be found again from the other slot.
fn state_directories(group: &mut Group, install: &Install) -> Result<()> {
    for (name, path, says) in [
        (
            "the state directory cannot be written",
            "/data/elsewhere",
            &["/data/elsewhere", "read-only"][..],
        ),
        (
            "the state directory is on a slot",
            "/usr/lib/slotd",
            &["/usr/lib/slotd", "on slot A", "stateDirectory"],
        ),
        (
            "the state directory is on a slot and not made yet",
            "/srv/slotd/state",
            &["/srv/slotd/state", "on slot A", "stateDirectory"],
        ),
        (
            "the state directory is in memory",
            "/run/slotd/state",
            &["/run/slotd/state", "in memory", "stateDirectory"],
        ),
        (
            "the state directory is a file",
            "/etc/slotd/config.yaml",
            &["/etc/slotd/config.yaml", "state directory"],
        ),
    ] {
        let begin =
            format!("echo 'stateDirectory: {path}' > {FRAGMENT}; systemctl restart slotd.service");
        // The next check starts the agent anew anyway.
        let end = format!("rm {FRAGMENT}");
        let fault = Fault {
            name,
            begin: &begin,
            end: &end,
        };
        group.under(&fault, Leaves::Untouched, |node| {
            wait_until_ready(node)?;
            install.refused(node, 3, says)?;
            condition(node, "StateDirectoryRefused", says)
        })?;
    }
    group.restart_agent()
}

/// The condition is shown, with these words.
fn condition(node: &mut Node, kind: &str, says: &[&str]) -> Result<()> {
    let status = node.status()?;
    let message = status["conditions"]
        .as_array()
        .and_then(|all| all.iter().find(|condition| condition["type"] == kind))
        .and_then(|condition| condition["message"].as_str())
        .unwrap_or("");
    for word in says {
        ensure!(
            message.to_lowercase().contains(&word.to_lowercase()),
            "slotd status has no {kind} that says {word:?}: {:#}",
            status["conditions"]
        );
    }
    Ok(())
}

fn state_files(group: &mut Group, install: &Install) -> Result<()> {
    let file = "/var/lib/slotd/state.json";
    for (name, text, kept) in [
        (
            "the state file is garbage",
            "\\001\\377{not json",
            "\\001\\377{not json",
        ),
        ("the state file is empty", "", ""),
    ] {
        let begin = format!(
            "systemctl stop slotd.service; cp {file} /run/state.json; rm -f {file}.broken-*; \
             printf '{text}' > {file}; systemctl start slotd.service"
        );
        let end = format!(
            "systemctl stop slotd.service; cp /run/state.json {file}; rm -f {file}.broken-*; systemctl start slotd.service"
        );
        let fault = Fault {
            name,
            begin: &begin,
            end: &end,
        };
        // It is not in the way of an upgrade, so nothing is refused; what was there is kept.
        group.under(&fault, Leaves::Forgotten, |node| {
            wait_until_ready(node)?;
            condition(node, "StateBroken", &[file, "state.json.broken-1"])?;
            node.machine
                .run(&format!("printf '{kept}' | cmp - {file}.broken-1"))?;
            if text.is_empty() {
                return Ok(());
            }
            node.machine.run(&install.command)?;
            let status = node.status()?;
            ensure!(
                status["upgrade"]["phase"] == "Staged",
                "nothing can be staged: {status:#}"
            );
            node.machine.run("slotd cancel").map(drop)
        })?;
        wait_until_ready(&mut group.node)?;
    }
    let future = r#"{"version":9,"min_reader":9,"record":{"at":"flying"}}"#;
    let begin = format!(
        "systemctl stop slotd.service; cp {file} /run/state.json; echo '{future}' > {file}; systemctl start slotd.service"
    );
    let end = format!(
        "systemctl stop slotd.service; cp /run/state.json {file}; systemctl start slotd.service"
    );
    let fault = Fault {
        name: "the state file is from the future",
        begin: &begin,
        end: &end,
    };
    group.under(&fault, Leaves::Untouched, |node| {
        wait_until_ready(node)?;
        install.refused(node, 3, &[file, "9"])?;
        condition(node, "StateFromTheFuture", &[file])?;
        let text = node.machine.run(&format!("cat {file}"))?;
        ensure!(text.trim() == future, "{file} was changed to {text}");
        Ok(())
    })?;
    wait_until_ready(&mut group.node)
}

/// Whoever is neither root nor in the group `slotd` gets no answer from the agent.
fn not_root(group: &mut Group) -> Result<()> {
    group.check("somebody else than root asks", Leaves::Untouched, |node| {
        for command in ["cancel 1", "activate", "rollback", "status"] {
            let command =
                format!("setpriv --reuid=65534 --regid=65534 --clear-groups slotd {command}");
            node.refused(&command, 4, &["only root may ask the daemon for that"])?;
        }
        Ok(())
    })
}

fn not_running(group: &mut Group, install: &Install) -> Result<()> {
    let stopped = Fault {
        name: "the daemon is not running",
        begin: "systemctl stop slotd.service",
        end: "systemctl start slotd.service",
    };
    group.under(&stopped, Leaves::Untouched, |node| {
        let says = &["not running", "slotd.service"];
        install.refused(node, 8, says)?;
        for command in ["slotd activate", "slotd rollback", "slotd cancel"] {
            node.refused(command, 8, says)?;
        }
        // What can be seen without it is shown.
        let status = node.status()?;
        ensure!(
            status["booted"] == "A" && status["slots"][0]["state"] == "good",
            "slotd status shows {status:#}"
        );
        condition(node, "DaemonNotRunning", &["slotd.service"])
    })?;
    wait_for(&mut group.node, "the agent is back", |node| {
        Ok(node
            .machine
            .try_run("systemctl is-active slotd.service")?
            .code
            == 0)
    })?;
    wait_until_ready(&mut group.node)
}
