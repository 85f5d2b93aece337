//! The two ends of a trial boot in systemd's own order: the gate before `boot-complete.target`, the confirmation after
//! it. Both need no bus; they meet the agent in files under `/run/slotd`.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use slotd_bootctl::{Booted, SlotName, SlotState};

use super::error::CliError;
use crate::agent::{AgentLife, BootVerdict, RunFiles};
use crate::config;
use crate::error::ErrorKind;
use crate::node::NodeSettings;
use crate::service::node_settings;

/// Written by `slotd-boot-generator` on a trial boot.
const TRIAL_MARK: &str = "/run/systemd/generator/boot-complete.target.d/90-slotd-trial.conf";

/// Between two looks; only while a boot is under way.
const LOOK: Duration = Duration::from_millis(200);

/// The same, once a confirmation takes long.
const LONGEST_LOOK: Duration = Duration::from_secs(5);

/// How long the gate of a proven boot waits for an agent that says nothing.
const SILENCE: Duration = Duration::from_secs(30);

/// How long the agent has, after a bad verdict, to mark the slot bad and to reboot by itself.
const GIVE_UP: Duration = Duration::from_secs(60);

/// How long there may be no agent before none is expected any more: several times what its restarts take.
const ABSENCE: Duration = Duration::from_secs(60);

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
    let mut condemned = Since::new(give_up);
    let mut said = Said::default();
    loop {
        let verdict = run.read_verdict();
        let unhealthy = matches!(verdict, Ok(Some(BootVerdict::Unhealthy { .. })));
        let is_final = condemned.lasts(unhealthy);
        match verdict {
            Ok(Some(BootVerdict::NotOnTrial)) => {
                println!("not a trial boot");
                return Ok(());
            }
            Ok(Some(BootVerdict::Healthy)) => {
                println!("healthy");
                return Ok(());
            }
            Ok(Some(BootVerdict::Unhealthy { check, output })) => {
                said.once(&format!("unhealthy: {check}\n{output}"));
                // Failing reboots; what the agent still records saves the remaining tries.
                if is_final {
                    return Err(unhealthy_because(&check));
                }
            }
            Ok(None) => {}
            Err(error) => said.once(&format!("the verdict cannot be read: {error}")),
        }
        // A trial boot is bounded by boot-complete.target's own timeout.
        if !trial && began.elapsed() >= silence {
            println!("not a trial boot, and no agent that says so");
            return Ok(());
        }
        thread::sleep(LOOK);
    }
}

fn unhealthy_because(check: &str) -> CliError {
    CliError::new(ErrorKind::Unsafe, format!("unhealthy: {check}"))
}

/// How long something has been so without a break.
struct Since {
    limit: Duration,
    from: Option<Instant>,
}

impl Since {
    fn new(limit: Duration) -> Self {
        Self { limit, from: None }
    }

    /// Whether it has been so for the limit by now.
    fn lasts(&mut self, is_so: bool) -> bool {
        if !is_so {
            self.from = None;
            return false;
        }
        self.from.get_or_insert_with(Instant::now).elapsed() >= self.limit
    }
}

/// Says a thing once, until there is another one to say.
#[derive(Default)]
struct Said(String);

impl Said {
    fn once(&mut self, words: &str) {
        if self.0 != words {
            println!("{words}");
            words.clone_into(&mut self.0);
        }
    }
}

/// `slotd confirm`: tells the agent that the boot is complete, and on a trial boot waits until the boot loader's own
/// data says that the slot is good.
///
/// Failing reboots a trial boot. A success that cannot be recorded (a boot partition that is read-only, say) is no ill
/// health: the agent tries again for as long as it takes, and this waits as long. It fails where that cannot end well:
/// on a bad verdict, or where there is no agent.
pub(super) fn confirm(config_root: &Path) -> Result<(), CliError> {
    let settings = node_settings(&config::load(config_root)?);
    let run = &settings.run;
    if !Path::new(TRIAL_MARK).exists() {
        run.announce_boot_complete()
            .map_err(|error| CliError::io(&run.boot_complete(), error))?;
        println!("not a trial boot");
        return Ok(());
    }
    wait_until_good(&mut || booted_state(&settings), run, GIVE_UP, ABSENCE)
}

fn wait_until_good(
    look: &mut dyn FnMut() -> Result<Option<(SlotName, SlotState)>, CliError>,
    run: &RunFiles,
    give_up: Duration,
    absence: Duration,
) -> Result<(), CliError> {
    let mut condemned = Since::new(give_up);
    let mut absent = Since::new(absence);
    let mut said = Said::default();
    let mut pause = LOOK;
    loop {
        let announced = match run.boot_complete().exists() {
            true => Ok(()),
            false => run.announce_boot_complete(),
        };
        let now = match (look(), announced) {
            (Ok(None), _) => {
                println!("this boot runs from neither slot");
                return Ok(());
            }
            (Ok(Some((slot, SlotState::Good))), _) => {
                println!("slot {slot} is good");
                return Ok(());
            }
            (_, Err(error)) => format!("cannot tell the agent that the boot is complete: {error}"),
            (Ok(Some((slot, state))), Ok(())) => format!("slot {slot} is {state}"),
            // The loader's data may be readable later.
            (Err(error), Ok(())) => error.to_string(),
        };
        said.once(&format!("{now}; waiting until it is good"));
        let verdict = run.read_verdict().ok().flatten();
        let unhealthy = match &verdict {
            Some(BootVerdict::Unhealthy { check, .. }) => Some(check),
            _ => None,
        };
        if condemned.lasts(unhealthy.is_some())
            && let Some(check) = unhealthy
        {
            return Err(unhealthy_because(check));
        }
        // What cannot be found out is no reason to reboot.
        let gone = AgentLife::is_there(&run.agent()).is_ok_and(|there| !there);
        if absent.lasts(gone) {
            let message = format!("no agent that could confirm this boot: {now}");
            return Err(CliError::new(ErrorKind::Unsafe, message));
        }
        thread::sleep(pause);
        pause = pause.saturating_mul(2).min(LONGEST_LOOK);
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use slotd_bootctl::{SlotName, SlotState};

    use super::{gate_of, wait_until_good};
    use crate::agent::{AgentLife, BootVerdict, RunFiles};
    use crate::cli::error::CliError;
    use crate::error::ErrorKind;

    const NOW: Duration = Duration::ZERO;

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
            gate_of(&run, true, NOW, NOW).unwrap();
        }
    }

    #[test]
    fn the_gate_stays_shut_for_a_bad_verdict() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunFiles::at(dir.path());
        run.write_verdict(&unhealthy()).unwrap();
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
        gate_of(&run, true, NOW, Duration::from_secs(60)).unwrap();
        writer.join().unwrap();
    }

    #[test]
    fn a_slot_is_confirmed_only_when_the_loader_says_good() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunFiles::at(dir.path());
        let _agent = AgentLife::claim(&run.agent()).unwrap();
        let mut answers = vec![
            Ok(Some((SlotName::B, SlotState::Good))),
            Ok(Some((SlotName::B, TRYING))),
            Err(CliError::new(ErrorKind::Retry, "no ESP yet")),
        ];
        wait_until_good(&mut || answers.pop().unwrap(), &run, NOW, NOW).unwrap();
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
        wait_until_good(&mut look, &run, NOW, NOW).unwrap();
        assert_eq!(looks, 4);
    }

    #[test]
    fn a_late_verdict_and_an_agent_that_is_gone_end_the_wait() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunFiles::at(dir.path());
        let long = Duration::from_secs(60);
        let trying = || wait_until_good(&mut || Ok(Some((SlotName::B, TRYING))), &run, NOW, NOW);
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
        wait_until_good(&mut || answers.pop().unwrap(), &run, long, long).unwrap();
    }
}
