//! The two ends of a trial boot in systemd's own order: the gate before `boot-complete.target`, the confirmation after
//! it. Both need no bus; they meet the agent in files under `/run/slotd`.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use slotd_bootctl::{Booted, SlotName, SlotState};

use super::error::CliError;
use crate::agent::{BootVerdict, NodeSettings, RunFiles};
use crate::config;
use crate::error::ErrorKind;
use crate::service::node_settings;

/// Written by `slotd-boot-generator` on a trial boot.
const TRIAL_MARK: &str = "/run/systemd/generator/boot-complete.target.d/90-slotd-trial.conf";

/// Between two looks; only while a boot is under way.
const LOOK: Duration = Duration::from_millis(200);

/// How long the gate of a proven boot waits for an agent that says nothing.
const SILENCE: Duration = Duration::from_secs(30);

/// How long the agent has, after a bad verdict, to mark the slot bad and to reboot by itself.
const GIVE_UP: Duration = Duration::from_secs(60);

/// How long after the trial's deadline the loader's data may still come to say that the slot is good.
const RECORDING: Duration = Duration::from_secs(60);

/// `slotd gate`: waits for the agent's verdict on this boot.
pub(super) fn gate() -> Result<(), CliError> {
    gate_of(
        &RunFiles::default(),
        Path::new(TRIAL_MARK).exists(),
        SILENCE,
        GIVE_UP,
    )
}

fn gate_of(
    run: &RunFiles,
    trial: bool,
    silence: Duration,
    give_up: Duration,
) -> Result<(), CliError> {
    let began = Instant::now();
    let mut trouble = String::new();
    loop {
        match run.read_verdict() {
            Ok(Some(BootVerdict::NotOnTrial)) => {
                println!("not a trial boot");
                return Ok(());
            }
            Ok(Some(BootVerdict::Healthy)) => {
                println!("healthy");
                return Ok(());
            }
            Ok(Some(BootVerdict::Unhealthy { check, output })) => {
                println!("unhealthy: {check}\n{output}");
                // Failing reboots; what the agent still records saves the remaining tries.
                thread::sleep(give_up);
                return Err(CliError::new(
                    ErrorKind::Unsafe,
                    format!("unhealthy: {check}"),
                ));
            }
            Ok(None) => {}
            Err(error) => {
                let error = error.to_string();
                if error != trouble {
                    eprintln!("slotd: the verdict cannot be read: {error}");
                    trouble = error;
                }
            }
        }
        // A trial boot is bounded by boot-complete.target's own timeout.
        if !trial && began.elapsed() >= silence {
            println!("not a trial boot, and no agent that says so");
            return Ok(());
        }
        thread::sleep(LOOK);
    }
}

/// `slotd confirm`: tells the agent that the boot is complete, and on a trial boot waits until the boot loader's own
/// data says that the slot is good.
pub(super) fn confirm(config_root: &Path) -> Result<(), CliError> {
    let settings = node_settings(&config::load(config_root)?);
    settings
        .run
        .announce_boot_complete()
        .map_err(|error| CliError::io(&settings.run.boot_complete(), error))?;
    if !Path::new(TRIAL_MARK).exists() {
        println!("not a trial boot");
        return Ok(());
    }
    let limit = settings.deadline.saturating_add(RECORDING);
    wait_until_good(&mut || booted_state(&settings), &mut uptime, limit)
}

fn wait_until_good(
    look: &mut dyn FnMut() -> Result<Option<(SlotName, SlotState)>, CliError>,
    uptime: &mut dyn FnMut() -> Duration,
    limit: Duration,
) -> Result<(), CliError> {
    let mut seen = String::new();
    loop {
        let now = match look() {
            Ok(None) => {
                println!("this boot runs from neither slot");
                return Ok(());
            }
            Ok(Some((slot, SlotState::Good))) => {
                println!("slot {slot} is good");
                return Ok(());
            }
            Ok(Some((slot, state))) => format!("slot {slot} is {state}"),
            // The loader's data may be readable later.
            Err(error) => error.to_string(),
        };
        if now != seen {
            println!("{now}; waiting until it is good");
            seen = now;
        }
        if uptime() >= limit {
            let message = format!("not confirmed in time: {seen}");
            return Err(CliError::new(ErrorKind::Unsafe, message));
        }
        thread::sleep(LOOK.saturating_mul(3));
    }
}

/// The booted slot and what the loader's own data says of it.
fn booted_state(settings: &NodeSettings) -> Result<Option<(SlotName, SlotState)>, CliError> {
    let table = slotd_bootctl::SlotTable::discover(&settings.system, &settings.slots, None)?;
    let Booted::Slot(slot) = table.booted else {
        return Ok(None);
    };
    let backend = (settings.backend)(&settings.system, &table)?;
    Ok(Some((slot, backend.state()?.slot(slot))))
}

/// Time since the kernel started.
fn uptime() -> Duration {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME)
        .map(Duration::from)
        // A kernel without this clock has no trial boots either; waiting on would be for ever.
        .unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use slotd_bootctl::{SlotName, SlotState};

    use super::{gate_of, wait_until_good};
    use crate::agent::{BootVerdict, RunFiles};
    use crate::error::ErrorKind;

    const NOW: Duration = Duration::ZERO;

    #[test]
    fn the_gate_opens_for_healthy_and_for_boots_that_are_no_trial() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunFiles::at(dir.path());
        for verdict in [BootVerdict::Healthy, BootVerdict::NotOnTrial] {
            run.write_verdict(&verdict).unwrap();
            gate_of(&run, true, NOW, NOW).unwrap();
        }
    }

    #[test]
    fn the_gate_stays_shut_for_a_bad_verdict() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunFiles::at(dir.path());
        run.write_verdict(&BootVerdict::Unhealthy {
            check: "required.d/x".to_owned(),
            output: String::new(),
        })
        .unwrap();
        let error = gate_of(&run, true, NOW, NOW).unwrap_err();
        assert!(error.to_string().contains("required.d/x"), "{error}");
    }

    #[test]
    fn a_proven_boot_does_not_hang_on_an_agent_that_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        gate_of(&RunFiles::at(dir.path()), false, NOW, NOW).unwrap();
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
        gate_of(&run, true, NOW, NOW).unwrap();
        writer.join().unwrap();
    }

    #[test]
    fn a_slot_is_confirmed_only_when_the_loader_says_good() {
        let mut answers = vec![
            Ok(Some((SlotName::B, SlotState::Good))),
            Ok(Some((SlotName::B, SlotState::Trial { left: 2, done: 1 }))),
            Err(crate::cli::error::CliError::new(
                ErrorKind::Retry,
                "no ESP yet",
            )),
        ];
        wait_until_good(
            &mut || answers.pop().unwrap(),
            &mut || NOW,
            Duration::from_secs(1),
        )
        .unwrap();
        assert!(answers.is_empty());
    }

    #[test]
    fn a_slot_that_is_not_good_in_time_is_not_confirmed() {
        let error = wait_until_good(
            &mut || Ok(Some((SlotName::B, SlotState::Trial { left: 2, done: 1 }))),
            &mut || Duration::from_secs(9),
            Duration::from_secs(9),
        )
        .unwrap_err();
        assert!(error.to_string().contains("slot B is trial"), "{error}");
    }
}
