//! The thread that drives the engine: look, decide, keep, do. It parks while there is nothing to do.

mod keeping;

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use slotd_engine::{Command, Event, Failure, Observation, Outcome, Record, Verdict, World, next};
use slotd_image::Cancel;

use super::host::Trouble;
use super::lock::ChangeLock;
use super::shared::{Answer, Shared, stops};
use super::words::{message, reason, recording};
use crate::status::ProgressStatus;

/// Between two looks at a world that cannot be seen, or two tries to keep a record.
const PAUSE: Duration = Duration::from_secs(2);

/// Between two tries to keep a record while nothing else is done.
const REPEAT: Duration = Duration::from_secs(600);

/// Listeners hear of moving bytes so often at most.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// Starts the driver's thread.
pub(super) fn spawn(shared: Arc<Shared>) -> io::Result<()> {
    thread::Builder::new()
        .name("agent".to_owned())
        .spawn(move || {
            // Whatever ends the thread, those who wait for its end are told.
            let _end = End(Arc::clone(&shared));
            Driver {
                shared,
                record: Record::default(),
                loaded: Record::default(),
                lock: None,
                announced: false,
                answer: None,
            }
            .run();
        })?;
    Ok(())
}

struct End(Arc<Shared>);

impl Drop for End {
    fn drop(&mut self) {
        {
            let mut state = self.0.state();
            state.ended = true;
            state.answer = None;
        }
        self.0.notify();
    }
}

struct Driver {
    shared: Arc<Shared>,
    record: Record,
    /// What the state directory held when it was looked at last.
    loaded: Record,
    /// Held from the first command that changes slots or loader until nothing is under way.
    lock: Option<ChangeLock>,
    /// Whether those who wait for a verdict were told that there is none to come.
    announced: bool,
    /// Where the word on the request goes that was taken last.
    answer: Option<Answer>,
}

impl Driver {
    fn run(&mut self) {
        self.record = self.found(self.shared.host.load());
        let mut kept = Some(self.record.clone());
        let mut outcome = None;
        loop {
            if self.can_keep_again() {
                kept = None;
            }
            let Some(seen) = self.observe() else { return };
            let last = outcome.take();
            let step = next(&self.record, &seen, last.as_ref());
            if kept.as_ref() != Some(&step.record) {
                match self.keep(&step.record) {
                    Ok(()) => kept = Some(step.record.clone()),
                    Err(failure) if step.command.needs_record() => {
                        // What cannot be remembered is not begun: the record stays where it was.
                        self.shared.state().deciding = false;
                        if self.answer(Err(failure.clone())) {
                            // Whoever asked knows, and all goes on as if nobody had.
                            outcome = last;
                            continue;
                        }
                        outcome = Some(Outcome::Failed(failure));
                        if self.paused(PAUSE) {
                            return;
                        }
                        continue;
                    }
                    Err(_) => kept = None,
                }
            }
            self.moved(step.record, &step.command, step.event);
            self.answer(Ok(()));
            if self.shared.state().stopping {
                return;
            }
            outcome = Some(self.execute(&step.command));
            if outcome == Some(Outcome::Stopped) && self.shared.state().stopping {
                return;
            }
        }
    }

    /// The world with what is asked of us; `None` when the agent is to stop.
    fn observe(&mut self) -> Option<Observation> {
        loop {
            self.shared.pulse.begin();
            match self.shared.host.observe() {
                Ok(world) => return Some(self.observation(world)),
                Err(failure) => {
                    tracing::error!(reason = %failure.reason, "the node cannot be observed");
                    self.say(Some(failure.reason));
                    if self.paused(PAUSE) {
                        return None;
                    }
                }
            }
        }
    }

    fn observation(&mut self, world: World) -> Observation {
        let request = {
            let mut state = self.shared.state();
            state.deciding = state.request.is_some();
            self.answer = state.answer.take();
            state.request.take()
        };
        Observation {
            world,
            request,
            limits: self.shared.host.limits(),
        }
    }

    /// Tells whoever asked; whether somebody did.
    fn answer(&mut self, word: Result<(), Failure>) -> bool {
        let Some(answer) = self.answer.take() else {
            return false;
        };
        // Whoever asked may have gone away meanwhile.
        let _ = answer.try_send(word);
        true
    }

    /// The record moved on: handles and listeners see it, the request that was looked at is taken.
    fn moved(&mut self, record: Record, command: &Command, event: Option<Event>) {
        if record.phase() != self.record.phase()
            || record.upgrade.is_some() && record.at != self.record.at
        {
            let id = record.upgrade.as_ref().map_or(0, |upgrade| upgrade.id);
            let reason = reason(&record);
            let after = event.map(Event::label);
            tracing::info!(id, phase = ?record.phase(), step = ?record.at, after, reason, "upgrade");
        }
        {
            let mut state = self.shared.state();
            state.message = message(&record, command);
            if record.at != self.record.at {
                state.progress = None;
            }
            state.record = record.clone();
            state.deciding = false;
            state.ready = true;
            state.recording = recording(&record, command, state.recording.take());
            let resting = matches!(command, Command::Rest);
            if resting && state.request.is_none() {
                state.source = None;
            }
            // What was asked meanwhile stops what begins now, too.
            state.cancel = Cancel::new();
            if state.stopping || state.request.as_ref().is_some_and(stops) {
                state.cancel.cancel();
            }
        }
        self.record = record;
        self.shared.notify();
        self.shared.tell();
    }

    fn say(&self, message: Option<String>) {
        {
            let mut state = self.shared.state();
            if state.message == message {
                return;
            }
            state.message = message;
        }
        self.shared.notify();
        self.shared.tell();
    }

    /// Waits; `true` when the agent is to stop.
    fn paused(&self, time: Duration) -> bool {
        self.shared.pulse.rest();
        self.shared.wait(Some(time), |state| state.stopping)
    }

    fn execute(&mut self, command: &Command) -> Outcome {
        tracing::debug!(?command, "begin");
        // At rest with nothing to wait for: while the loader's data cannot be read, this may yet be a trial.
        let settled = matches!(command, Command::Rest | Command::Settle);
        if !self.announced && settled && self.record.at.is_rest() {
            self.announced = true;
            if let Err(failure) = self.shared.host.announce_no_trial() {
                tracing::warn!(reason = %failure.reason, "the gate cannot be told");
            }
        }
        if let Err(failure) = self.guard(command) {
            return Outcome::Failed(failure);
        }
        if takes_its_time(command) {
            self.shared.pulse.rest();
        } else {
            self.shared.pulse.begin();
        }
        let outcome = self.perform(command);
        if let Outcome::Failed(failure) = &outcome {
            tracing::warn!(?command, kind = ?failure.kind, reason = %failure.reason, "failed");
        }
        outcome
    }

    /// Takes the lock before what changes slots or loader, and gives it back at rest.
    fn guard(&mut self, command: &Command) -> Result<(), Failure> {
        match command {
            Command::Rest | Command::Report(_) | Command::Settle | Command::Stay { .. } => {
                self.lock = None;
            }
            Command::Wait { .. }
            | Command::Reboot { .. }
            | Command::RunChecks { .. }
            | Command::AwaitBootComplete { .. } => {}
            _ if self.lock.is_some() => {}
            _ => self.lock = Some(self.shared.host.lock()?),
        }
        Ok(())
    }

    fn perform(&self, command: &Command) -> Outcome {
        let host = &*self.shared.host;
        let cancel = self.shared.state().cancel.clone();
        match command {
            Command::Rest => {
                // A record that could not be kept is tried again now and then.
                let unkept = {
                    let state = self.shared.state();
                    state.unrecorded.is_some() || state.keeps_nothing().is_some()
                };
                self.shared.wait(unkept.then_some(REPEAT), |state| {
                    state.stopping || state.request.is_some() || state.look_again
                });
                Outcome::Waited
            }
            Command::Wait { seconds } => {
                let time = Duration::from_secs(*seconds);
                self.shared.wait(Some(time), |state| {
                    state.stopping || state.request.is_some() || state.look_again
                });
                Outcome::Waited
            }
            Command::Report(ended) => match host.report(ended) {
                Ok(()) => Outcome::Reported(ended.id),
                Err(failure) => Outcome::Failed(failure),
            },
            Command::Settle => done(host.settle()),
            Command::Stay { reason } => done(host.stay(reason)),
            Command::Preflight { slot } => {
                let Some(request) = self.request() else {
                    return lost_request();
                };
                let source = self.shared.state().source.take();
                outcome(host.preflight(*slot, &request, source, &cancel), |()| {
                    Outcome::Done
                })
            }
            Command::Invalidate { slot } => done(host.invalidate(*slot)),
            Command::Write { slot } => {
                let Some(request) = self.request() else {
                    return lost_request();
                };
                let told = Mutex::new(None);
                let progress = |progress| self.progressed(progress, &told);
                outcome(
                    host.write(*slot, &request, &cancel, &progress),
                    Outcome::Written,
                )
            }
            Command::PrepareBoot { slot } => {
                let Some(upgrade) = &self.record.upgrade else {
                    return lost_request();
                };
                match host.prepare_boot(*slot, upgrade) {
                    Ok(version) => Outcome::Prepared { version },
                    Err(failure) => Outcome::Failed(failure),
                }
            }
            Command::Discard { slot } => done(host.discard(*slot)),
            Command::Drain(drain) => {
                let say = |words| self.say(Some(words));
                outcome(host.drain(*drain, &cancel, &say), |()| Outcome::Drained)
            }
            Command::Arm(slot) => done(host.arm(slot)),
            Command::Disarm { slot } => done(host.disarm(*slot)),
            Command::Select { slot } => done(host.select(*slot)),
            Command::Reboot { forced } => done(host.reboot(*forced)),
            Command::RunChecks { deadline } => {
                outcome(host.run_checks(*deadline, &cancel), Outcome::Verdict)
            }
            Command::AwaitBootComplete { deadline } => {
                let waited = host.await_boot_complete(*deadline, &cancel);
                outcome(waited, |reached| match reached {
                    true => Outcome::Done,
                    false => Outcome::Verdict(Verdict::Late {
                        check: Some(String::from("boot-complete.target")),
                        output: String::from(
                            "the required checks passed, the target was not reached",
                        ),
                    }),
                })
            }
            Command::MarkGood { slot } => done(host.mark_good(*slot)),
            Command::MarkBad { slot } => done(host.mark_bad(*slot)),
        }
    }

    fn request(&self) -> Option<slotd_engine::ImageRequest> {
        self.record.upgrade.as_ref()?.request.clone()
    }

    fn progressed(&self, progress: ProgressStatus, told: &Mutex<Option<Instant>>) {
        self.shared.state().progress = Some(progress);
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_none_or(|last| last.elapsed() >= PROGRESS_INTERVAL) {
            *told = Some(Instant::now());
            drop(told);
            self.shared.notify();
            self.shared.tell();
        }
    }
}

/// Whether a command may go on for any time, bounded by what it works with.
fn takes_its_time(command: &Command) -> bool {
    matches!(
        command,
        Command::Rest
            | Command::Wait { .. }
            | Command::Preflight { .. }
            | Command::Write { .. }
            | Command::PrepareBoot { .. }
            | Command::Drain(_)
            | Command::RunChecks { .. }
            | Command::AwaitBootComplete { .. }
    )
}

fn done(result: Result<(), Failure>) -> Outcome {
    match result {
        Ok(()) => Outcome::Done,
        Err(failure) => Outcome::Failed(failure),
    }
}

fn outcome<T>(result: Result<T, Trouble>, good: impl FnOnce(T) -> Outcome) -> Outcome {
    match result {
        Ok(value) => good(value),
        Err(Trouble::Stopped) => Outcome::Stopped,
        Err(Trouble::Failed(failure)) => Outcome::Failed(failure),
    }
}

fn lost_request() -> Outcome {
    let reason = "the record holds no image to be installed";
    Outcome::Failed(Failure::new(slotd_engine::ErrorKind::Bug, reason))
}
