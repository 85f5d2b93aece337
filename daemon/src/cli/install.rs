//! Commands that ask the agent for something and see it through.

use std::os::fd::OwnedFd;

use serde_json::json;
use slotd_image::ImageSource;

use super::arguments::{InstallArguments, OutputFormat};
use super::error::CliError;
use super::follow::{Follower, Goal, Outcome, under_way};
use super::report::Report;
use super::{image, print_json};
use crate::dbus::client::Client;
use crate::error::ErrorKind;

/// The outcome of an upgrade whose end nobody waited for.
const ACCEPTED: &str = "accepted";

/// What is handed to the agent.
enum Handed {
    Location(String),
    Descriptor(OwnedFd),
}

/// `slotd install`.
pub(super) async fn install(
    arguments: &InstallArguments,
    output: OutputFormat,
) -> Result<(), CliError> {
    let options = image::options(&arguments.plan);
    // Read here as well, so that what is wrong with it is said before anybody is asked.
    let source = image::source(&arguments.plan.image.source)?;
    let handed = match source {
        ImageSource::Http(url) => Handed::Location(url.to_string()),
        ImageSource::File(path) => {
            Handed::Location(path.to_str().map(str::to_owned).ok_or_else(|| {
                let message = format!(
                    "{} is not UTF-8; feed it through standard input",
                    path.display()
                );
                CliError::new(ErrorKind::Reject, message)
            })?)
        }
        ImageSource::Reader { fd, .. } => Handed::Descriptor(fd),
    };
    options
        .clone()
        .request(ImageSource::File("/".into()))
        .map_err(CliError::from)?;

    let client = Client::connect().await?;
    let mut follower = Follower::new(&client).await?;
    let id = match handed {
        Handed::Location(location) => client.install(&location, &options).await?,
        Handed::Descriptor(fd) => client.install_fd(fd, &options).await?,
    };
    if arguments.no_wait {
        return accepted(id, output);
    }
    follower.after(id.saturating_sub(1));
    let goal = if options.stage_only {
        Goal::Staged
    } else {
        Goal::Reboot
    };
    see_through(follower, goal, Some(id), output).await
}

/// `slotd activate`.
pub(super) async fn activate(output: OutputFormat) -> Result<(), CliError> {
    let client = Client::connect().await?;
    let mut follower = Follower::new(&client).await?;
    // What is staged has its number already.
    let id = client.status().await?.upgrade.id;
    follower.after(id.unwrap_or(0).saturating_sub(1));
    client
        .proxy()
        .activate()
        .await
        .map_err(crate::dbus::client::ClientError::from)?;
    see_through(follower, Goal::Reboot, id, output).await
}

/// `slotd rollback`.
pub(super) async fn rollback(output: OutputFormat) -> Result<(), CliError> {
    let client = Client::connect().await?;
    let follower = Follower::new(&client).await?;
    client
        .proxy()
        .rollback()
        .await
        .map_err(crate::dbus::client::ClientError::from)?;
    see_through(follower, Goal::Reboot, None, output).await
}

/// `slotd cancel`.
pub(super) async fn cancel(id: Option<u64>, output: OutputFormat) -> Result<(), CliError> {
    let client = Client::connect().await?;
    let mut follower = Follower::new(&client).await?;
    let document = client.status().await?;
    let running = under_way(&document).and_then(|upgrade| upgrade.id);
    let Some(id) = id.or(running) else {
        return Err(CliError::new(ErrorKind::Reject, "no upgrade is under way"));
    };
    client
        .proxy()
        .cancel(id)
        .await
        .map_err(crate::dbus::client::ClientError::from)?;
    follower.after(id.saturating_sub(1));
    see_through(follower, Goal::Cancelled, Some(id), output).await
}

fn accepted(id: u64, output: OutputFormat) -> Result<(), CliError> {
    match output {
        OutputFormat::Json => print_json(&json!({"id": id, "outcome": ACCEPTED})),
        OutputFormat::Table => {
            eprintln!("Upgrade {id} is under way; see `slotd status`.");
            Ok(())
        }
    }
}

async fn see_through(
    follower: Follower<'_>,
    goal: Goal,
    id: Option<u64>,
    output: OutputFormat,
) -> Result<(), CliError> {
    let mut report = Report::new(output);
    let outcome = follower.until(goal, &mut report).await?;
    let (word, sentence) = told(outcome, goal);
    match output {
        OutputFormat::Json => print_json(&json!({"id": id, "outcome": word})),
        OutputFormat::Table => {
            if !sentence.is_empty() {
                report.end(sentence);
            }
            Ok(())
        }
    }
}

/// How following ended: a word for programs, a sentence for people.
fn told(outcome: Outcome, goal: Goal) -> (&'static str, &'static str) {
    match (outcome, goal) {
        (Outcome::Staged, _) => ("staged", "Staged. `slotd activate` boots it on trial."),
        (Outcome::Rebooting, _) => (
            "rebooting",
            "The connection is lost: the machine reboots. Afterwards `slotd status` tells how it went.",
        ),
        (Outcome::Ended, Goal::Cancelled) => ("cancelled", "Cancelled."),
        (Outcome::Ended, _) => ("ended", ""),
        // People were told when it happened.
        (Outcome::LetGo, _) => (ACCEPTED, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::{Goal, Outcome, told};

    #[test]
    fn an_upgrade_is_called_ended_or_cancelled_only_when_it_is_over() {
        for goal in [Goal::Staged, Goal::Reboot, Goal::Cancelled] {
            for (outcome, over) in [
                (Outcome::Staged, false),
                (Outcome::Rebooting, false),
                (Outcome::Ended, true),
                (Outcome::LetGo, false),
            ] {
                let (word, _) = told(outcome, goal);
                assert_eq!(matches!(word, "ended" | "cancelled"), over, "{word}");
            }
        }
        assert_eq!(told(Outcome::LetGo, Goal::Reboot), ("accepted", ""));
    }
}
