//! `slotd flash`: the write alone, without the daemon, as from a rescue system.

use slotd_bootctl::{
    BootOptions, Booted, InspectSettings, InvalidatedSlot, PreflightRequest, ReadBack, SlotName,
    SlotTable, StagedImage, VerifiedSlot, inspect, require_no_refusals,
};
use slotd_image::{Cancel, Event, Expectation, OpenedImage, Progress, WriteReport, WriteTarget};

use super::arguments::{FlashArguments, OutputFormat};
use super::error::CliError;
use super::report::Report;
use super::{image, print_json};
use crate::agent::{ChangeLock, NodeSettings};
use crate::config::Settings;
use crate::error::ErrorKind;
use crate::service::node_settings;
use crate::status::{ProgressStatus, SlotLetter, UpgradeStatus};

/// Writes an image to an inactive slot, reads it back, and installs what boots it. The next boot stays as it is.
/// After a crash anywhere before the end the slot is empty to the boot loader.
pub(super) fn flash(
    settings: &Settings,
    arguments: &FlashArguments,
    output: OutputFormat,
) -> Result<(), CliError> {
    let expectation = Expectation {
        checksum: arguments.checksum.as_deref().map(str::parse).transpose()?,
        expanded_checksum: None,
        size: arguments.size,
    };
    let source = image::source(&arguments.source)?;
    let node = node_settings(settings);
    let _lock = ChangeLock::take(&node.run.lock())?;
    let table = SlotTable::discover(&node.system, &node.slots, None)?;
    let slot = chosen(arguments.slot.as_deref(), table.booted)?;
    let inactive = table.inactive(slot)?;
    let partition = table.get(slot);
    let backend = (node.backend)(&node.system, &table)?;
    require_no_refusals(&backend.preflight(&PreflightRequest {
        slot,
        boot_files: None,
        extra: node.boot_options.clone(),
    }))?;
    let options = boot_options(&node)?;

    let mut report = Report::new(output);
    report.show(&at(slot, "preflight", None));
    let cancel = Cancel::new();
    let opened = slotd_image::open(
        source,
        &settings.fetch()?,
        &expectation,
        partition.size,
        &cancel,
        &|_| (),
    )?;
    report.show(&at(slot, "invalidate", None));
    let invalidated = backend.invalidate(inactive)?;
    let (written, verified) = write(invalidated, opened, &expectation, slot, report)?;

    let mut report = Report::new(output);
    report.show(&at(slot, "prepareBoot", None));
    let inspect_settings = InspectSettings {
        version_key: node.version_key.clone(),
    };
    let view = inspect(partition, &inspect_settings)?;
    let version = view
        .facts
        .version
        .clone()
        .or_else(|| view.facts.version_id().map(str::to_owned));
    let staged = StagedImage {
        expanded_sha256: written.expanded.to_hex(),
        expanded_size: written.expanded_size,
        checksum: Some(written.published.to_string()),
        version: version.clone(),
        staged_at: Some(jiff::Timestamp::now().to_string()),
    };
    backend.install_boot_files(&verified, &view, &staged, &options)?;
    let named = version.as_deref().unwrap_or("an image without a version");
    report.end(&format!(
        "Slot {slot} holds {named}, read back and verified. `slotd-bootctl activate {slot}` makes the next boot a trial of it."
    ));
    match output {
        OutputFormat::Json => print_json(&serde_json::json!({"slot": slot, "image": staged})),
        OutputFormat::Table => Ok(()),
    }
}

/// The slot that is asked for; where none is, the one that is not booted.
fn chosen(asked: Option<&str>, booted: Booted) -> Result<SlotName, CliError> {
    match (asked, booted) {
        (Some(asked), _) => asked.parse().map_err(|_| {
            CliError::new(
                ErrorKind::Reject,
                format!("`{asked}` is no slot, A or B is"),
            )
        }),
        (None, Booted::Slot(booted)) => Ok(!booted),
        (None, Booted::Neither) => Err(CliError::new(
            ErrorKind::Unsafe,
            "this system runs from neither slot: say which one to write with --slot",
        )),
    }
}

fn boot_options(node: &NodeSettings) -> Result<BootOptions, CliError> {
    let path = node.system.path("/etc/machine-id");
    let machine_id = std::fs::read_to_string(&path).map_err(|error| CliError::io(&path, error))?;
    Ok(BootOptions {
        tries: node.tries,
        extra: node.boot_options.clone(),
        machine_id: machine_id.trim().to_owned(),
        trial_deadline_seconds: node.deadline.as_secs(),
        panic_seconds: node.panic_seconds,
    })
}

fn write(
    invalidated: InvalidatedSlot,
    opened: OpenedImage,
    expectation: &Expectation,
    slot: SlotName,
    report: Report,
) -> Result<(WriteReport, VerifiedSlot), CliError> {
    let (fd, path) = invalidated.open_exclusive()?;
    let mut target = WriteTarget::from_exclusive(fd, path)?;
    let report = std::sync::Mutex::new(report);
    let events = |event: Event| {
        let mut report = report
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        match event {
            Event::Progress(now) => report.show(&at(slot, "write", Some(shown(&now)))),
            Event::Retrying { error, delay, .. } => {
                report.note(&format!("{error}; tried again in {} s", delay.as_secs()));
            }
            Event::Opened(_) | Event::Verified(_) => {}
        }
    };
    let written = slotd_image::write(opened, &mut target, expectation, &Cancel::new(), &events)?;
    drop(target);
    let verified = invalidated.attest(ReadBack {
        expanded_sha256: *written.expanded.as_bytes(),
        expanded_size: written.expanded_size,
    });
    Ok((written, verified))
}

fn at(slot: SlotName, step: &str, progress: Option<ProgressStatus>) -> UpgradeStatus {
    UpgradeStatus {
        phase: "Staging".to_owned(),
        step: step.to_owned(),
        target_slot: Some(match slot {
            SlotName::A => SlotLetter::A,
            SlotName::B => SlotLetter::B,
        }),
        progress,
        ..UpgradeStatus::default()
    }
}

fn shown(progress: &Progress) -> ProgressStatus {
    ProgressStatus {
        percent: percent(progress),
        bytes_written: progress.written,
        bytes_verified: progress.verified,
        bytes_total: progress.expanded_total,
        published_bytes: progress.published,
        published_total: progress.published_total,
        rate: progress.rate,
        seconds_left: progress.remaining.map(|left| left.as_secs()),
    }
}

fn percent(progress: &Progress) -> Option<u8> {
    let (done, of) = match (progress.expanded_total, progress.published_total) {
        (Some(total), _) => (
            u128::from(progress.written) + u128::from(progress.verified),
            u128::from(total) * 2,
        ),
        (None, Some(total)) => (u128::from(progress.published), u128::from(total)),
        (None, None) => return None,
    };
    u8::try_from((done * 100).checked_div(of)?.min(100)).ok()
}

#[cfg(test)]
mod tests {
    use slotd_bootctl::{Booted, SlotName};
    use slotd_image::Progress;

    use super::{chosen, percent};
    use crate::error::ErrorKind;

    #[test]
    fn the_slot_is_asked_for_where_none_is_booted() {
        assert_eq!(
            chosen(None, Booted::Slot(SlotName::A)).unwrap(),
            SlotName::B
        );
        assert_eq!(chosen(Some("a"), Booted::Neither).unwrap(), SlotName::A);
        let error = chosen(None, Booted::Neither).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsafe);
        let error = chosen(Some("c"), Booted::Neither).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Reject);
    }

    #[test]
    fn the_percentage_counts_writing_and_reading_back() {
        let mut progress = Progress {
            written: 100,
            verified: 50,
            expanded_total: Some(100),
            ..Progress::default()
        };
        assert_eq!(percent(&progress), Some(75));
        progress.expanded_total = None;
        assert_eq!(percent(&progress), None);
        progress.published = 3;
        progress.published_total = Some(4);
        assert_eq!(percent(&progress), Some(75));
        progress.published_total = Some(0);
        assert_eq!(percent(&progress), None);
    }
}
