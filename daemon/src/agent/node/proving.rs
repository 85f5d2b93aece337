//! A trial boot on its way to being proven, and what is released then.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use slotd_bootctl::{Counting, SlotName, SlotState};
use slotd_engine::{ErrorKind, Failure, Verdict};
use slotd_image::Cancel;

use super::super::host::Trouble;
use super::super::run_files::BootVerdict;
use super::NodeHost;
use crate::node::boot_is_counted;

/// Between two looks for `/run/slotd/boot-complete`, on trial boots only.
const LOOK: Duration = Duration::from_millis(250);

impl NodeHost {
    /// The moment at which the machine's uptime will be `deadline` seconds.
    fn instant_of(&self, deadline: u64) -> Result<Instant, Failure> {
        let left = deadline.saturating_sub(self.uptime()?);
        let now = Instant::now();
        Ok(now.checked_add(Duration::from_secs(left)).unwrap_or(now))
    }

    pub(super) fn check_health(&self, deadline: u64, cancel: &Cancel) -> Result<Verdict, Trouble> {
        let verdict = self.machine.run_checks(self.instant_of(deadline)?, cancel);
        if cancel.is_cancelled() {
            // What stopped checks say is no verdict.
            return Err(Trouble::Stopped);
        }
        let told = match &verdict {
            Verdict::Healthy => BootVerdict::Healthy,
            Verdict::Unhealthy { check, output } => BootVerdict::Unhealthy {
                check: check.clone(),
                output: output.clone(),
            },
            Verdict::Late { check, output } => BootVerdict::Unhealthy {
                check: check.clone().unwrap_or_else(|| String::from("deadline")),
                output: output.clone(),
            },
        };
        // A verdict that the gate does not hear leaves boot-complete.target waiting until its own time
        // is over: the machine still falls back.
        self.tell(&told)?;
        Ok(verdict)
    }

    fn tell(&self, verdict: &BootVerdict) -> Result<(), Failure> {
        let run = &self.settings.run;
        run.write_verdict(verdict)
            .map_err(|error| unwritten(&run.verdict(), &error))
    }

    pub(super) fn say_no_trial(&self) -> Result<(), Failure> {
        // An earlier life of the agent judged this boot: what it said stands.
        if let Ok(Some(_)) = self.settings.run.read_verdict() {
            return Ok(());
        }
        match self.unkept_slot() {
            Some(slot) => self.stay_unproven(&format!(
                "the boot loader counted this boot of slot {slot}, of which it has no entry any more"
            )),
            None => self.tell(&BootVerdict::NotOnTrial),
        }
    }

    /// The booted slot, where the loader counted this boot and somebody took the slot's entry away since. Nobody checks
    /// such a boot and nothing can keep it, so it is no complete one either; the next boot is the other slot's.
    fn unkept_slot(&self) -> Option<SlotName> {
        if !boot_is_counted(&self.settings.system) {
            return None;
        }
        let (table, loader, _) = self.look();
        let booted = table?.booted.slot()?;
        (loader?.slot(booted) == SlotState::Empty).then_some(booted)
    }

    pub(super) fn wait_for_boot_complete(
        &self,
        deadline: u64,
        cancel: &Cancel,
    ) -> Result<bool, Trouble> {
        let until = self.instant_of(deadline)?;
        let file = self.settings.run.boot_complete();
        loop {
            if file.exists() {
                return Ok(true);
            }
            if cancel.is_cancelled() {
                return Err(Trouble::Stopped);
            }
            if Instant::now() >= until {
                // Whoever waits for the confirmation hears that none will come.
                self.tell(&BootVerdict::Unhealthy {
                    check: String::from("boot-complete.target"),
                    output: String::from("not reached before the trial's deadline"),
                })?;
                return Ok(false);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The proven boot loses the guards of a trial: a panic no longer reboots by our word, and units no
    /// longer reboot the machine when they fail. Idempotent; nothing of it outlives the boot.
    pub(super) fn release_from_trial(&self) -> Result<(), Failure> {
        let run = &self.settings.run;
        // First: the generator, which the reload runs, looks for it.
        run.announce_proven()
            .map_err(|error| unwritten(&run.proven(), &error))?;
        // Before the boot counts as settled: what failed is done again only until then.
        let given_back = self.give_tries_back();
        self.lift_guards(given_back)
    }

    /// A loader whose script takes a try on every boot (RAUC's) has taken one of this proven slot: marked good once more,
    /// the slot has them all again. Writes nothing where nothing was taken.
    fn give_tries_back(&self) -> Result<(), Failure> {
        let (table, loader, trouble) = self.look();
        if let Some(trouble) = trouble {
            return Err(trouble);
        }
        let Some((booted, loader)) = table.and_then(|table| table.booted.slot()).zip(loader) else {
            return Ok(());
        };
        if loader.counting != Counting::EveryBoot || loader.slot(booted) != SlotState::Good {
            return Ok(());
        }
        self.with_loader(|_, backend| backend.mark_good(booted))
    }

    /// The boot that is not proven and has nowhere to go loses the same guards: nothing of it reboots the machine any
    /// more, a panic included, and nothing keeps the slot. Idempotent; nothing of it outlives the boot.
    pub(super) fn stay_unproven(&self, reason: &str) -> Result<(), Failure> {
        let run = &self.settings.run;
        let judged = matches!(
            run.read_verdict(),
            Ok(Some(
                BootVerdict::Unhealthy { .. } | BootVerdict::Stays { .. }
            ))
        );
        if judged || boot_is_counted(&self.settings.system) {
            // First: whoever fails while the guards are there reboots the machine, so the gate waits for their end.
            self.tell(&BootVerdict::Stays {
                reason: reason.to_owned(),
            })?;
            run.announce_stays()
                .map_err(|error| unwritten(&run.stays(), &error))?;
        } else {
            self.say_no_trial()?;
        }
        self.lift_guards(Ok(()))
    }

    /// Whatever came of what was to be done `before` the boot counts as settled, the guards go.
    fn lift_guards(&self, before: Result<(), Failure>) -> Result<(), Failure> {
        let run = &self.settings.run;
        self.reset_panic()?;
        // Only a boot that was counted got drop-ins from the generator.
        if boot_is_counted(&self.settings.system) {
            self.machine.reload_units()?;
        }
        before?;
        run.announce_settled()
            .map_err(|error| unwritten(&run.settled(), &error))
    }

    /// The deadline that this boot's entry was armed with, in seconds since the kernel's start.
    pub(super) fn entry_deadline(&self) -> Option<u64> {
        let options = fs::read_to_string(self.settings.system.proc("cmdline")).ok()?;
        options
            .split_whitespace()
            .filter_map(|word| word.strip_prefix("slotd.trial_deadline="))
            .find_map(|seconds| seconds.parse().ok())
    }

    /// `kernel.panic` back to 0, unless somebody set another value than the entry's.
    fn reset_panic(&self) -> Result<(), Failure> {
        let system = &self.settings.system;
        let path = system.proc("sys/kernel/panic");
        let trouble = |action: &str, error: std::io::Error| {
            let reason = format!("cannot {action} {}: {error}", path.display());
            Failure::new(ErrorKind::Retry, reason)
        };
        let set = fs::read_to_string(&path).map_err(|error| trouble("read", error))?;
        let options = fs::read_to_string(system.proc("cmdline")).unwrap_or_default();
        let entry = options
            .split_whitespace()
            .filter_map(|word| word.strip_prefix("panic="))
            .next_back();
        if entry == Some(set.trim()) && set.trim() != "0" {
            fs::write(&path, "0").map_err(|error| trouble("write", error))?;
        }
        Ok(())
    }
}

fn unwritten(path: &Path, error: &io::Error) -> Failure {
    let reason = format!("cannot write {}: {error}", path.display());
    Failure::new(ErrorKind::Retry, reason)
}
