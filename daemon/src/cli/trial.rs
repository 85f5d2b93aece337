//! The two ends of a trial boot in systemd's own order: the gate before `boot-complete.target`, the confirmation after
//! it. Both need no bus; they meet the agent in files under `/run/slotd`.
//!
//! `systemd-bless-boot.service` comes after both, so neither of them succeeds on a boot that the loader counted unless
//! the agent or the loader's own data say that it is good, guards or no guards.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use slotd_bootctl::{Booted, SlotName, SlotState, System};

use super::error::CliError;
use crate::agent::{AgentLife, BootVerdict, RunFiles};
use crate::config;
use crate::error::ErrorKind;
use crate::node::{NodeSettings, boot_is_counted};
use crate::service::node_settings;

/// Written by `slotd-boot-generator` on a trial boot: while it is there, failing reboots.
const GUARDS: &str = "/run/systemd/generator/boot-complete.target.d/90-slotd-trial.conf";

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
pub(super) fn gate(config_root: &Path) -> Result<(), CliError> {
    // Without a configuration that can be read there is an agent that says so, or none.
    let settings = config::load(config_root)
        .ok()
        .map(|read| node_settings(&read));
    let boot = Boot::running(&System::host(), settings.as_ref());
    gate_of(&RunFiles::default(), &boot, &Patience::default())
}

/// What is known of this boot without the agent.
struct Boot {
    /// The loader counted it: a trial, or the last resort of a slot that was given up.
    counted: bool,
    /// Exists while failing reboots the machine.
    guards: PathBuf,
}

impl Boot {
    fn running(system: &System, settings: Option<&NodeSettings>) -> Self {
        // Where the variable cannot be seen any more, what the generator made of it still can.
        let announced = boot_is_counted(system) || Path::new(GUARDS).exists();
        Self {
            // Some loaders announce nothing; their own data says it.
            counted: announced || settings.is_some_and(on_trial),
            guards: PathBuf::from(GUARDS),
        }
    }

    fn is_guarded(&self) -> bool {
        self.guards.exists()
    }

    /// Whether failing reboots nothing any more: the agent had the units read again without the guards. That they are not
    /// there is not enough, since PID 1 may be making them anew.
    fn is_released(&self, run: &RunFiles) -> bool {
        !self.is_guarded() && run.settled().exists()
    }
}

/// How long what may still come is waited for.
struct Patience {
    silence: Duration,
    give_up: Duration,
    absence: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            silence: SILENCE,
            give_up: GIVE_UP,
            absence: ABSENCE,
        }
    }
}

fn gate_of(run: &RunFiles, boot: &Boot, patience: &Patience) -> Result<(), CliError> {
    let mut gate = Gate::new(run, boot, patience);
    loop {
        if let Some(end) = gate.look() {
            return end;
        }
        thread::sleep(LOOK);
    }
}

/// The gate while it waits.
struct Gate<'a> {
    run: &'a RunFiles,
    boot: &'a Boot,
    silent: Since,
    condemned: Since,
    absent: Since,
    said: Said,
}

impl<'a> Gate<'a> {
    fn new(run: &'a RunFiles, boot: &'a Boot, patience: &Patience) -> Self {
        Self {
            run,
            boot,
            silent: Since::new(patience.silence),
            condemned: Since::new(patience.give_up),
            absent: Since::new(patience.absence),
            said: Said::default(),
        }
    }

    /// One look at the verdict; `None` while there is something to wait for.
    fn look(&mut self) -> Option<Result<(), CliError>> {
        let verdict = self.run.read_verdict();
        let unhealthy = matches!(verdict, Ok(Some(BootVerdict::Unhealthy { .. })));
        let is_final = self.condemned.lasts(unhealthy);
        match verdict {
            Ok(Some(BootVerdict::NotOnTrial)) => {
                println!("not a trial boot");
                return Some(Ok(()));
            }
            Ok(Some(BootVerdict::Healthy)) => {
                println!("healthy");
                return Some(Ok(()));
            }
            Ok(Some(BootVerdict::Unhealthy { check, output })) => {
                self.said.once(&format!("unhealthy: {check}\n{output}"));
                // Failing reboots; what the agent still records saves the remaining tries.
                if is_final {
                    return Some(Err(unhealthy_because(&check)));
                }
            }
            Ok(Some(BootVerdict::Stays { reason })) => {
                let words = stays_because(&reason);
                self.said.once(&words);
                // Failing with the guards in place would reboot the machine that is to stay.
                return match self.boot.is_released(self.run) {
                    true => Some(Err(CliError::new(ErrorKind::Unsafe, words))),
                    false => None,
                };
            }
            Ok(None) => {}
            Err(error) => self
                .said
                .once(&format!("the verdict cannot be read: {error}")),
        }
        if !self.boot.counted && self.silent.lasts(true) {
            println!("not a trial boot, and no agent that says so");
            return Some(Ok(()));
        }
        // Guards have a timeout of their own. A slot that the loader starts as its last resort has none, and is kept
        // by no silence either.
        let alone = self.boot.counted && !self.boot.is_guarded() && is_gone(self.run);
        if self.absent.lasts(alone) {
            let message = "no agent that could judge this boot";
            return Some(Err(CliError::new(ErrorKind::Unsafe, message)));
        }
        None
    }
}

fn unhealthy_because(check: &str) -> CliError {
    CliError::new(ErrorKind::Unsafe, format!("unhealthy: {check}"))
}

fn stays_because(reason: &str) -> String {
    format!("not healthy, and neither rebooted nor kept: {reason}")
}

/// Whether there is no agent. What cannot be found out is no reason to act.
fn is_gone(run: &RunFiles) -> bool {
    AgentLife::is_there(&run.agent()).is_ok_and(|there| !there)
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

/// `slotd confirm`: tells the agent that the boot is complete, and on a boot that the loader counted waits until the
/// loader's own data says that the slot is good.
///
/// Failing reboots a trial boot while its guards are there. A success that cannot be recorded (a boot partition that is
/// read-only, say) is no ill health: the agent tries again for as long as it takes, and this waits as long. It fails
/// where that cannot end well: on a bad verdict, or where there is no agent.
pub(super) fn confirm(config_root: &Path) -> Result<(), CliError> {
    let settings = node_settings(&config::load(config_root)?);
    let run = &settings.run;
    let boot = Boot::running(&settings.system, Some(&settings));
    if !boot.counted {
        run.announce_boot_complete()
            .map_err(|error| CliError::io(&run.boot_complete(), error))?;
        println!("not a trial boot");
        return Ok(());
    }
    let mut look = || booted_state(&settings);
    wait_until_good(&mut look, run, &boot, &Patience::default())
}

fn wait_until_good(
    look: &mut dyn FnMut() -> Result<Option<(SlotName, SlotState)>, CliError>,
    run: &RunFiles,
    boot: &Boot,
    patience: &Patience,
) -> Result<(), CliError> {
    let mut condemned = Since::new(patience.give_up);
    let mut absent = Since::new(patience.absence);
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
        if let Some(BootVerdict::Stays { reason }) = &verdict
            && boot.is_released(run)
        {
            return Err(CliError::new(ErrorKind::Unsafe, stays_because(reason)));
        }
        if absent.lasts(is_gone(run)) {
            let message = format!("no agent that could confirm this boot: {now}");
            return Err(CliError::new(ErrorKind::Unsafe, message));
        }
        thread::sleep(pause);
        pause = pause.saturating_mul(2).min(LONGEST_LOOK);
    }
}

/// Whether the loader's own data says that the booted slot is on trial. What cannot be read does not say so.
fn on_trial(settings: &NodeSettings) -> bool {
    matches!(
        booted_state(settings),
        Ok(Some((_, SlotState::Trial { .. })))
    )
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
mod tests;
