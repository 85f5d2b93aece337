//! What people are told of a step.

use slotd_engine::{Command, Point, Record};

use crate::status::Condition;

/// That a healthy boot cannot be recorded as good: known from the second try on, until it is.
pub(super) fn recording(
    record: &Record,
    command: &Command,
    before: Option<Condition>,
) -> Option<Condition> {
    if record.at != Point::Bless {
        return None;
    }
    if !matches!(command, Command::Wait { .. }) {
        return before;
    }
    let reason = reason(record).unwrap_or("the boot loader's data do not show it");
    let message = format!("this boot is healthy, but that cannot be recorded yet: {reason}");
    Some(Condition::new("RecordingFailed", message))
}

pub(super) fn reason(record: &Record) -> Option<&str> {
    let failure = record.upgrade.as_ref()?.failure.as_ref()?;
    Some(&failure.reason)
}

/// What is being waited for, for people.
pub(super) fn message(record: &Record, command: &Command) -> Option<String> {
    match command {
        // It goes on at once.
        Command::Wait { seconds: 0 } => None,
        Command::Wait { seconds } if record.at == Point::Bless => Some(format!(
            "healthy, but that cannot be recorded yet, next try in {seconds} s: {}",
            reason(record).unwrap_or("the boot loader's data do not show it")
        )),
        Command::Wait { seconds } if !record.at.is_rest() => Some(match reason(record) {
            Some(reason) => format!("next try in {seconds} s: {reason}"),
            None => format!("next look in {seconds} s"),
        }),
        Command::Rest if record.at == Point::Staged => Some(String::from(if for_cluster(record) {
            "waits for the cluster to activate it"
        } else {
            "waits for slotd activate"
        })),
        Command::Reboot { .. } => Some(String::from("rebooting")),
        Command::RunChecks { .. } => Some(String::from("health checks run")),
        Command::AwaitBootComplete { .. } => {
            Some(String::from("healthy: waits for boot-complete.target"))
        }
        _ => None,
    }
}

/// Whether the upgrade under way was begun for an object of the cluster.
fn for_cluster(record: &Record) -> bool {
    let request = record.upgrade.as_ref().and_then(|own| own.request.as_ref());
    request.is_some_and(|request| request.task.is_some())
}

#[cfg(test)]
mod tests {
    use slotd_engine::{Command, Point, Record};

    use super::{message, recording};

    #[test]
    fn a_step_that_goes_on_at_once_promises_no_next_try() {
        let at = |at| Record {
            at,
            ..Record::default()
        };
        let wait = |seconds| Command::Wait { seconds };
        assert_eq!(message(&at(Point::Staged), &wait(0)), None);
        let said = message(&at(Point::Restart), &wait(4)).unwrap();
        assert_eq!(said, "next look in 4 s");
        let said = message(&at(Point::Bless), &wait(4)).unwrap();
        assert!(said.starts_with("healthy, but"), "{said}");
    }

    #[test]
    fn a_recording_that_fails_is_known_until_it_is_over() {
        let bless = Record {
            at: Point::Bless,
            ..Record::default()
        };
        let mark = Command::MarkGood {
            slot: slotd_engine::Slot::B,
        };
        assert_eq!(recording(&bless, &mark, None), None);
        let known = recording(&bless, &Command::Wait { seconds: 1 }, None);
        assert_eq!(known.as_ref().unwrap().kind, "RecordingFailed");
        assert_eq!(recording(&bless, &mark, known.clone()), known);
        assert_eq!(recording(&Record::default(), &Command::Rest, known), None);
    }
}
