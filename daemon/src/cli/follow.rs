//! Following an upgrade over the bus, from the request to where the one who asked can let go.

use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use tokio::time::MissedTickBehavior;
use zbus::proxy::OwnerChangedStream;

use super::error::CliError;
use super::report::Report;
use crate::dbus::client::{Client, ProgressStream};
use crate::dbus::wire::progress_from_dict;
use crate::error::ErrorKind;
use crate::status::{HistoryEntry, StatusDocument, UpgradeStatus};

/// Signals can be missed, so the daemon is asked now and then as well.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// Until when an upgrade is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// The image is staged.
    Staged,
    /// The machine reboots.
    Reboot,
    /// It is stopped.
    Cancelled,
}

/// How following ended well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The image waits in its slot.
    Staged,
    /// The machine reboots.
    Rebooting,
    /// The upgrade is over.
    Ended,
    /// Whoever followed it was interrupted; the daemon goes on.
    LetGo,
}

/// Signals subscribed to before anything is asked for, so that none is missed.
pub(super) struct Follower<'a> {
    client: &'a Client,
    progress: ProgressStream,
    owner: OwnerChangedStream<'static>,
    /// The numbers that belong to something older.
    before: u64,
}

impl<'a> Follower<'a> {
    /// Subscribes; the daemon has to be there.
    pub(super) async fn new(client: &'a Client) -> Result<Self, CliError> {
        let failed =
            |error: zbus::Error| CliError::from(crate::dbus::client::ClientError::from(error));
        let progress = client.proxy().receive_progress().await.map_err(failed)?;
        let owner = client
            .proxy()
            .inner()
            .receive_owner_changed()
            .await
            .map_err(failed)?;
        let before = newest(&client.status().await?);
        Ok(Self {
            client,
            progress,
            owner,
            before,
        })
    }

    /// Numbers up to this one belong to something older than what is followed.
    pub(super) fn after(&mut self, before: u64) {
        self.before = before;
    }

    /// Follows the upgrade that began after the subscription until `goal`.
    pub(super) async fn until(
        mut self,
        goal: Goal,
        report: &mut Report,
    ) -> Result<Outcome, CliError> {
        let mut ask = tokio::time::interval(ASK_EVERY);
        ask.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut rebooting = false;
        loop {
            let status = tokio::select! {
                Some(signal) = self.progress.next() => match signal.args() {
                    Ok(args) => progress_from_dict(args.upgrade, args.details),
                    Err(error) => {
                        report.note(&format!("a signal cannot be read: {error}"));
                        continue;
                    }
                },
                Some(owner) = self.owner.next() => {
                    if owner.is_none() {
                        return self.gone(rebooting, report);
                    }
                    continue;
                }
                () = self.client.connection().closed() => return self.gone(rebooting, report),
                _ = ask.tick() => match self.client.status().await {
                    Ok(document) => {
                        if let Some(ended) = self.result(&document) {
                            return conclude(&ended, goal);
                        }
                        document.upgrade
                    }
                    Err(error) if error.kind() == ErrorKind::NotRunning => {
                        return self.gone(rebooting, report);
                    }
                    Err(error) => return Err(error.into()),
                },
                interrupted = tokio::signal::ctrl_c() => {
                    interrupted.map_err(CliError::internal)?;
                    report.end("The daemon goes on by itself: see `slotd status`, or stop it with `slotd cancel`.");
                    return Ok(Outcome::LetGo);
                }
            };
            match heard(&status, self.before) {
                Heard::Nothing => continue,
                Heard::Rest => {
                    let document = self.client.status().await?;
                    if let Some(ended) = self.result(&document) {
                        return conclude(&ended, goal);
                    }
                    continue;
                }
                Heard::News => {}
            }
            report.show(&status);
            rebooting = reboots(&status);
            if goal == Goal::Staged && status.phase == "Staged" {
                return Ok(Outcome::Staged);
            }
            if status.at_rest() {
                let document = self.client.status().await?;
                if let Some(ended) = self.result(&document) {
                    return conclude(&ended, goal);
                }
            }
        }
    }

    /// The daemon went away. What it said before may not have been read yet: its last words and its end arrive
    /// together where the machine is busy going down.
    fn gone(mut self, mut rebooting: bool, report: &mut Report) -> Result<Outcome, CliError> {
        while let Some(Some(signal)) = self.progress.next().now_or_never() {
            let Ok(args) = signal.args() else { continue };
            let status = progress_from_dict(args.upgrade, args.details);
            if heard(&status, self.before) == Heard::News {
                report.show(&status);
                rebooting = reboots(&status);
            }
        }
        gone(rebooting)
    }

    /// The result of what is followed, once there is one.
    fn result(&self, document: &StatusDocument) -> Option<HistoryEntry> {
        if !document.upgrade.at_rest() {
            return None;
        }
        document
            .last_result
            .clone()
            .filter(|ended| ended.id > self.before)
    }
}

/// What a status says of the upgrade that is followed.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    /// It is about something older.
    Nothing,
    /// Nothing is under way, as when an upgrade was cancelled: what is followed may be over.
    Rest,
    /// It is about what is followed.
    News,
}

fn heard(status: &UpgradeStatus, before: u64) -> Heard {
    match status.id {
        None if status.at_rest() => Heard::Rest,
        Some(id) if id > before => Heard::News,
        _ => Heard::Nothing,
    }
}

/// Whether the machine is about to go down for the upgrade.
fn reboots(status: &UpgradeStatus) -> bool {
    status.phase == "Activating" && status.step == "reboot"
}

/// The newest number that the daemon knows.
fn newest(document: &StatusDocument) -> u64 {
    let ended = document.last_result.as_ref().map_or(0, |ended| ended.id);
    document.upgrade.id.unwrap_or(0).max(ended)
}

/// The daemon went away.
fn gone(rebooting: bool) -> Result<Outcome, CliError> {
    if rebooting {
        return Ok(Outcome::Rebooting);
    }
    Err(CliError::new(
        ErrorKind::NotRunning,
        "the daemon went away; once it is back, `slotd status` tells what became of the upgrade",
    ))
}

fn conclude(ended: &HistoryEntry, goal: Goal) -> Result<Outcome, CliError> {
    match (ended.result.as_str(), goal) {
        ("Completed", _) | ("Cancelled", Goal::Cancelled) => Ok(Outcome::Ended),
        ("Cancelled", _) => Err(CliError::new(
            ErrorKind::Reject,
            "the upgrade was cancelled",
        )),
        (result, _) => Err(match &ended.failure {
            Some(failure) => CliError::from(failure),
            None => CliError::new(ErrorKind::Bug, format!("the upgrade ended as {result}")),
        }),
    }
}

/// The status of the upgrade that is under way, where one is.
pub(super) fn under_way(document: &StatusDocument) -> Option<&UpgradeStatus> {
    Some(&document.upgrade).filter(|upgrade| !upgrade.at_rest())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Follower, Goal, Heard, Outcome, conclude, gone, heard};
    use crate::cli::arguments::OutputFormat;
    use crate::cli::report::Report;
    use crate::dbus::PATH;
    use crate::dbus::client::Client;
    use crate::dbus::pair::connected;
    use crate::dbus::server::emit;
    use crate::error::ErrorKind;
    use crate::status::{
        FailureStatus, HistoryEntry, STATUS_VERSION, SlotLetter, StatusDocument, UpgradeStatus,
    };

    fn ended(result: &str, failure: Option<FailureStatus>) -> HistoryEntry {
        HistoryEntry {
            id: 1,
            kind: "install".to_owned(),
            result: result.to_owned(),
            slot: SlotLetter::B,
            version: None,
            digest: None,
            source: None,
            failure,
            started_at: jiff::Timestamp::UNIX_EPOCH,
            completed_at: jiff::Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn a_lost_connection_is_success_only_when_the_machine_was_about_to_reboot() {
        assert_eq!(gone(true).unwrap(), Outcome::Rebooting);
        assert_eq!(gone(false).unwrap_err().kind(), ErrorKind::NotRunning);
    }

    /// A daemon of which nothing but the status document is asked.
    struct AtRest;

    #[zbus::interface(name = "io.monok8s.Slotd1")]
    impl AtRest {
        fn get_status(&self) -> String {
            let document = StatusDocument {
                version: STATUS_VERSION,
                daemon: "1".to_owned(),
                booted: None,
                slots: Vec::new(),
                loader: None,
                upgrade: UpgradeStatus::default(),
                last_result: None,
                conditions: Vec::new(),
            };
            serde_json::to_string(&document).unwrap()
        }
    }

    /// As on a machine that is slow to let anybody run while it goes down.
    #[tokio::test]
    async fn last_words_count_that_are_read_together_with_the_end() {
        let at = |step: &str| UpgradeStatus {
            id: Some(1),
            phase: "Activating".to_owned(),
            step: step.to_owned(),
            ..UpgradeStatus::default()
        };
        let said = [
            (vec![at("arm"), at("reboot")], true),
            (vec![at("reboot"), at("disarm")], false),
            (vec![at("arm")], false),
        ];
        // Which of several things that are there is taken first is left to chance.
        for (words, rebooting) in (0..16).flat_map(|_| said.clone()) {
            let (server, client) = connected(|server| server.serve_at(PATH, AtRest)).await;
            let client = Client::over(client).await.unwrap();
            let follower = Follower::new(&client).await.unwrap();
            for word in &words {
                emit(&server, word).await.unwrap();
            }
            server.close().await.unwrap();
            tokio::time::timeout(Duration::from_secs(60), client.connection().closed())
                .await
                .unwrap();
            let mut report = Report::new(OutputFormat::Json);
            let end = follower.until(Goal::Reboot, &mut report).await;
            match end {
                Ok(end) => assert!(rebooting && end == Outcome::Rebooting, "{words:?}: {end:?}"),
                Err(error) => assert!(
                    !rebooting && error.kind() == ErrorKind::NotRunning,
                    "{words:?}: {error}"
                ),
            }
        }
    }

    #[test]
    fn a_failed_upgrade_ends_with_its_own_kind() {
        let failure = FailureStatus {
            kind: "Reject".to_owned(),
            reason: "checksum".to_owned(),
            code: None,
            check: None,
            output: None,
        };
        let error = conclude(&ended("Failed", Some(failure)), Goal::Reboot).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Reject);
        assert_eq!(error.to_string(), "checksum");
    }

    #[test]
    fn a_node_at_rest_without_an_upgrade_may_be_the_end_of_a_cancelled_one() {
        let status = |phase: &str, id| UpgradeStatus {
            phase: phase.to_owned(),
            id,
            ..UpgradeStatus::default()
        };
        assert_eq!(heard(&status("Idle", None), 3), Heard::Rest);
        assert_eq!(heard(&status("Staging", None), 3), Heard::Nothing);
        assert_eq!(heard(&status("Failed", Some(3)), 3), Heard::Nothing);
        assert_eq!(heard(&status("Failed", Some(4)), 3), Heard::News);
    }

    #[test]
    fn being_cancelled_is_what_cancel_wants_and_nobody_else() {
        assert!(conclude(&ended("Cancelled", None), Goal::Cancelled).is_ok());
        assert!(conclude(&ended("Cancelled", None), Goal::Staged).is_err());
        assert!(conclude(&ended("RolledBack", None), Goal::Reboot).is_err());
    }
}
