use std::path::Path;
use std::time::Duration;

use slotd_bootctl::{SlotName, SlotState};

use super::{Boot, Gate, Patience, gate_of, wait_until_good};
use crate::agent::{AgentLife, BootVerdict, RunFiles};
use crate::cli::error::CliError;
use crate::error::ErrorKind;

const NOW: Patience = Patience {
    silence: Duration::ZERO,
    give_up: Duration::ZERO,
    absence: Duration::ZERO,
};

/// A boot that the loader counted, with the generator's drop-ins.
fn trial(dir: &Path) -> Boot {
    let guards = dir.join("guards");
    std::fs::write(&guards, "").unwrap();
    Boot {
        counted: true,
        guards,
    }
}

/// A boot that the loader counted beyond its tries: the generator leaves it alone.
fn last_resort(dir: &Path) -> Boot {
    Boot {
        counted: true,
        guards: dir.join("none"),
    }
}

fn proven(dir: &Path) -> Boot {
    Boot {
        counted: false,
        guards: dir.join("none"),
    }
}

fn unhealthy() -> BootVerdict {
    BootVerdict::Unhealthy {
        check: "required.d/x".to_owned(),
        output: String::new(),
    }
}

#[test]
fn the_gate_opens_for_healthy_and_for_boots_that_are_no_trial() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunFiles::at(dir.path());
    for verdict in [BootVerdict::Healthy, BootVerdict::NotOnTrial] {
        run.write_verdict(&verdict).unwrap();
        gate_of(&run, &trial(dir.path()), &NOW).unwrap();
    }
}

#[test]
fn the_gate_stays_shut_for_a_bad_verdict() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunFiles::at(dir.path());
    run.write_verdict(&unhealthy()).unwrap();
    let error = gate_of(&run, &trial(dir.path()), &NOW).unwrap_err();
    assert!(error.to_string().contains("required.d/x"), "{error}");
}

#[test]
fn a_proven_boot_does_not_hang_on_an_agent_that_says_nothing() {
    let dir = tempfile::tempdir().unwrap();
    gate_of(&RunFiles::at(dir.path()), &proven(dir.path()), &NOW).unwrap();
}

#[test]
fn a_trial_boot_waits_for_the_verdict() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunFiles::at(dir.path());
    std::fs::write(run.verdict(), "{}").unwrap();
    let agent = run.clone();
    let writer = std::thread::spawn(move || {
        agent.write_verdict(&BootVerdict::Healthy).unwrap();
    });
    gate_of(&run, &trial(dir.path()), &NOW).unwrap();
    writer.join().unwrap();
}

const LONG: Patience = Patience {
    silence: Duration::from_secs(60),
    give_up: Duration::from_secs(60),
    absence: Duration::from_secs(60),
};

const TRYING: SlotState = SlotState::Trial { left: 2, done: 1 };

#[test]
fn a_verdict_that_is_taken_back_opens_the_gate() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunFiles::at(dir.path());
    run.write_verdict(&unhealthy()).unwrap();
    let agent = run.clone();
    let writer = std::thread::spawn(move || {
        agent.write_verdict(&BootVerdict::Healthy).unwrap();
    });
    gate_of(&run, &trial(dir.path()), &LONG).unwrap();
    writer.join().unwrap();
}

#[test]
fn a_slot_is_confirmed_only_when_the_loader_says_good() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunFiles::at(dir.path());
    let _agent = AgentLife::claim(&run.agent()).unwrap();
    let boot = trial(dir.path());
    let mut answers = vec![
        Ok(Some((SlotName::B, SlotState::Good))),
        Ok(Some((SlotName::B, TRYING))),
        Err(CliError::new(ErrorKind::Retry, "no ESP yet")),
    ];
    wait_until_good(&mut || answers.pop().unwrap(), &run, &boot, &NOW).unwrap();
    assert!(answers.is_empty());
    assert!(run.boot_complete().exists());
}

#[test]
fn a_success_that_cannot_be_recorded_is_waited_for_without_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunFiles::at(dir.path());
    run.write_verdict(&BootVerdict::Healthy).unwrap();
    let _agent = AgentLife::claim(&run.agent()).unwrap();
    // No patience is left for anything else: only the number of looks ends this.
    let mut looks = 0;
    let mut look = || {
        looks += 1;
        let state = if looks < 4 { TRYING } else { SlotState::Good };
        Ok(Some((SlotName::B, state)))
    };
    wait_until_good(&mut look, &run, &trial(dir.path()), &NOW).unwrap();
    assert_eq!(looks, 4);
}

#[test]
fn a_late_verdict_and_an_agent_that_is_gone_end_the_wait() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunFiles::at(dir.path());
    let boot = trial(dir.path());
    let trying = || wait_until_good(&mut || Ok(Some((SlotName::B, TRYING))), &run, &boot, &NOW);
    let error = trying().unwrap_err();
    assert!(error.to_string().contains("no agent"), "{error}");
    assert!(error.to_string().contains("slot B is trial"), "{error}");
    let agent = AgentLife::claim(&run.agent()).unwrap();
    run.write_verdict(&unhealthy()).unwrap();
    let error = trying().unwrap_err();
    assert_eq!(error.to_string(), "unhealthy: required.d/x");
    // A restart of the agent is no absence.
    drop(agent);
    std::fs::remove_file(run.verdict()).unwrap();
    let mut answers = vec![
        Ok(Some((SlotName::B, SlotState::Good))),
        Ok(Some((SlotName::B, TRYING))),
    ];
    wait_until_good(&mut || answers.pop().unwrap(), &run, &boot, &LONG).unwrap();
}

#[test]
fn a_boot_that_stays_shuts_gate_and_confirmation_once_nothing_reboots_for_it_any_more() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunFiles::at(dir.path());
    let _agent = AgentLife::claim(&run.agent()).unwrap();
    run.write_verdict(&BootVerdict::Stays {
        reason: "slot A is bad".to_owned(),
    })
    .unwrap();
    let boot = trial(dir.path());
    let mut gate = Gate::new(&run, &boot, &NOW);
    for _ in 0..3 {
        assert!(gate.look().is_none(), "with the guards in place it reboots");
    }
    let mut looks = 0;
    let mut look = || {
        looks += 1;
        match looks {
            3 => std::fs::remove_file(&boot.guards).unwrap(),
            // Until then PID 1 may be making them anew.
            4 => run.announce_settled().unwrap(),
            _ => {}
        }
        Ok(Some((SlotName::B, TRYING)))
    };
    let error = wait_until_good(&mut look, &run, &boot, &NOW).unwrap_err();
    assert!(error.to_string().contains("slot A is bad"), "{error}");
    assert_eq!(looks, 4);
    let error = gate.look().unwrap().unwrap_err();
    assert!(error.to_string().contains("slot A is bad"), "{error}");
}

#[test]
fn silence_keeps_no_boot_that_the_loader_counted() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunFiles::at(dir.path());
    let boot = last_resort(dir.path());
    let error = gate_of(&run, &boot, &NOW).unwrap_err();
    assert!(error.to_string().contains("no agent"), "{error}");
    let mut look = || Ok(Some((SlotName::B, TRYING)));
    let error = wait_until_good(&mut look, &run, &boot, &NOW).unwrap_err();
    assert!(error.to_string().contains("no agent"), "{error}");
    // An agent that is slow is waited for.
    let agent = AgentLife::claim(&run.agent()).unwrap();
    let judge = run.clone();
    let writer = std::thread::spawn(move || {
        judge.write_verdict(&BootVerdict::Healthy).unwrap();
    });
    gate_of(&run, &boot, &NOW).unwrap();
    writer.join().unwrap();
    drop(agent);
}
