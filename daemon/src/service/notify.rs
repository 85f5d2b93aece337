//! What systemd is told: that the agent is ready, lives, and how things stand (`systemctl status slotd`).

use std::io;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::sync::oneshot::Sender;
use tracing::warn;

use crate::agent::AgentHandle;
use crate::status::UpgradeStatus;

/// How often the agent's thread is looked at where systemd asks for no pings.
const LOOK: Duration = Duration::from_secs(60);

/// How long the agent's thread may take for what is a matter of moments: far beyond what a device needs that answers
/// at all, timeouts and retries of its driver included.
const STUCK: Duration = Duration::from_secs(600);

fn send(state: &[NotifyState<'_>]) {
    // Without a socket this does nothing.
    if let Err(error) = sd_notify::notify(state) {
        warn!(%error, "systemd cannot be told");
    }
}

/// Ready: whatever is under way is gone on with by itself.
pub(super) fn ready(status: &UpgradeStatus) {
    send(&[NotifyState::Ready, NotifyState::Status(&line(status))]);
}

/// About to stop.
pub(super) fn stopping() {
    send(&[NotifyState::Stopping, NotifyState::Status("Stopping")]);
}

/// Pings at half the watchdog's interval for as long as the agent's thread lives and does not hang; `gone` hears when it
/// does not live.
///
/// A thread of its own that sleeps: a long timer of the runtime wakes up more than once on its way.
///
/// # Errors
/// When the thread cannot be started.
pub(super) fn watchdog(agent: AgentHandle, gone: Sender<()>) -> io::Result<()> {
    let pause = sd_notify::watchdog_enabled().map_or(LOOK, |interval| interval / 2);
    let ping = move || {
        while agent.is_running() {
            if agent.is_stuck(STUCK) {
                // systemd starts the agent anew unless this passes.
                warn!(seconds = STUCK.as_secs(), "the agent's thread hangs");
            } else {
                send(&[NotifyState::Watchdog]);
            }
            thread::sleep(pause);
        }
        // Nobody listens where the service is about to end anyway.
        let _ = gone.send(());
    };
    thread::Builder::new()
        .name("watchdog".to_owned())
        .spawn(ping)
        .map(|_| ())
}

/// The status line, sent when its words change.
#[derive(Default)]
pub(super) struct StatusLine {
    last: Mutex<String>,
}

impl StatusLine {
    pub(super) fn tell(&self, status: &UpgradeStatus) {
        let line = line(status);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if *last != line {
            send(&[NotifyState::Status(&line)]);
            *last = line;
        }
    }
}

/// One line on how things stand.
fn line(status: &UpgradeStatus) -> String {
    let mut line = status.phase.clone();
    if let Some(percent) = status.progress.and_then(|progress| progress.percent) {
        line = format!("{line}, {percent} %");
    }
    if let Some(version) = &status.target_version {
        line = format!("{line}: {version}");
    }
    if let Some(slot) = status.target_slot {
        line = format!("{line} in slot {slot}");
    }
    // A message that holds the reason says more.
    let reason = status.failure.as_ref().map(|failure| &failure.reason);
    let message = status.message.as_ref();
    let told = message.filter(|message| reason.is_none_or(|reason| message.contains(reason)));
    if let Some(words) = told.or(reason) {
        line = format!("{line}; {words}");
    }
    // One line it is, whatever a reason holds.
    line.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::line;
    use crate::status::{FailureStatus, ProgressStatus, SlotLetter, UpgradeStatus};

    #[test]
    fn the_status_line_tells_a_person_what_happens() {
        let mut status = UpgradeStatus {
            phase: "Staging".to_owned(),
            target_slot: Some(SlotLetter::B),
            target_version: Some("1.2.3".to_owned()),
            progress: Some(ProgressStatus {
                percent: Some(40),
                ..ProgressStatus::default()
            }),
            ..UpgradeStatus::default()
        };
        assert_eq!(line(&status), "Staging, 40 %: 1.2.3 in slot B");
        status.failure = Some(FailureStatus {
            kind: "Retry".to_owned(),
            reason: "reset\nby peer".to_owned(),
            code: None,
            check: None,
            output: None,
        });
        assert!(line(&status).ends_with("; reset by peer"));
        status.message = Some("next try in 4 s: reset\nby peer".to_owned());
        assert!(line(&status).ends_with("; next try in 4 s: reset by peer"));
        status.message = Some("rebooting".to_owned());
        assert!(line(&status).ends_with("; reset by peer"));
    }
}
