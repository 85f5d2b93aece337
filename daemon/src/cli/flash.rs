//! `slotd flash`: the write alone, without the daemon, as from a rescue system.

use std::cell::RefCell;
use std::thread;

use slotd_bootctl::{Booted, InvalidatedSlot, SlotName, StagedImage};
use slotd_image::{Cancel, Event, Expectation, OpenedImage};
use tokio::signal::unix::{SignalKind, signal};

use super::activation::{activation, shell_line};
use super::arguments::{FlashArguments, ImageArguments, OutputFormat};
use super::error::CliError;
use super::report::Report;
use super::{image, print_json};
use crate::agent::{ChangeLock, Trouble};
use crate::config::Settings;
use crate::error::ErrorKind;
use crate::node::NodeSettings;
use crate::service::node_settings;
use crate::staging::{self, Site, Wanted, boot_failure, one};
use crate::status::{ProgressStatus, SlotLetter, UpgradeStatus};

/// Writes an image to an inactive slot, reads it back, and installs what boots it. The next boot stays as it is.
/// After a crash anywhere before the end the slot is empty to the boot loader. SIGINT and SIGTERM end it at once, with
/// the slot empty or not touched.
pub(super) fn flash(
    settings: &Settings,
    arguments: &FlashArguments,
    output: OutputFormat,
) -> Result<(), CliError> {
    let cancel = interruptible()?;
    flash_on(&node_settings(settings), arguments, output, &cancel)
}

fn flash_on(
    node: &NodeSettings,
    arguments: &FlashArguments,
    output: OutputFormat,
    cancel: &Cancel,
) -> Result<(), CliError> {
    let wanted = wanted(&arguments.image)?;
    let source = image::source(&arguments.image.source)?;
    let _lock = ChangeLock::take(&node.run.lock())?;
    let site = Site::look(node)?;
    let slot = chosen(arguments.slot.as_deref(), site.table.booted)?;
    let flash = Flash {
        site: &site,
        slot,
        wanted: &wanted,
        cancel,
        report: RefCell::new(Report::new(output)),
    };
    flash.show("preflight", None);
    if let Some(failure) = one(site.refusals(slot, &wanted)) {
        return Err(failure.into());
    }
    let opened = site
        .open(slot, source, &wanted, cancel, &|event| flash.tell(&event))
        .map_err(|trouble| ended(trouble, "nothing was changed"))?;
    flash.show("invalidate", None);
    let staged = flash
        .invalidate()
        .map_err(Trouble::from)
        .and_then(|invalidated| flash.fill(opened, invalidated))
        .map_err(|trouble| ended(trouble, &flash.discard()))?;

    let named = staged
        .version
        .as_deref()
        .unwrap_or("an image without a version");
    let activation = activation(node, slot);
    flash.report.borrow_mut().end(&format!(
        "Slot {slot} holds {named}, read back and verified. This makes the next boot a trial of it:\n  {}",
        shell_line(&activation)
    ));
    match output {
        OutputFormat::Json => {
            let activate = activation;
            print_json(&serde_json::json!({"slot": slot, "image": staged, "activate": activate}))
        }
        OutputFormat::Table => Ok(()),
    }
}

/// A flag that SIGINT and SIGTERM raise from now on, instead of ending the process.
fn interruptible() -> Result<Cancel, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(CliError::internal)?;
    let (interrupt, terminate) = {
        let _inside = runtime.enter();
        (
            signal(SignalKind::interrupt()).map_err(CliError::internal)?,
            signal(SignalKind::terminate()).map_err(CliError::internal)?,
        )
    };
    let cancel = Cancel::new();
    let flag = cancel.clone();
    let wait = move || {
        let (mut interrupt, mut terminate) = (interrupt, terminate);
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        });
        flag.cancel();
    };
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(wait)
        .map_err(CliError::internal)?;
    Ok(cancel)
}

fn wanted(arguments: &ImageArguments) -> Result<Wanted, CliError> {
    let checksum = |text: &Option<String>| text.as_deref().map(str::parse).transpose();
    Ok(Wanted {
        expectation: Expectation {
            checksum: checksum(&arguments.checksum)?,
            expanded_checksum: checksum(&arguments.expanded_checksum)?,
            size: arguments.size,
        },
        version: arguments.image_version.clone(),
        // What is written by hand may be any version: from a rescue system, going back is the point.
        allow_downgrade: true,
        allow_same_version: true,
        allow_no_agent: arguments.allow_no_agent,
    })
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

/// How it ended badly, and what is left.
fn ended(trouble: Trouble, left: &str) -> CliError {
    match trouble {
        Trouble::Stopped => CliError::new(ErrorKind::Retry, format!("interrupted: {left}")),
        Trouble::Failed(failure) => {
            let error = CliError::from(failure);
            CliError::new(error.kind(), format!("{error}; {left}"))
        }
    }
}

/// One run.
struct Flash<'a> {
    site: &'a Site<'a>,
    slot: SlotName,
    wanted: &'a Wanted,
    cancel: &'a Cancel,
    report: RefCell<Report>,
}

impl Flash<'_> {
    fn invalidate(&self) -> Result<InvalidatedSlot, slotd_engine::Failure> {
        self.site
            .table
            .inactive(self.slot)
            .and_then(|inactive| self.site.backend.invalidate(inactive))
            .map_err(|error| boot_failure(&error))
    }

    fn fill(
        &self,
        opened: OpenedImage,
        invalidated: InvalidatedSlot,
    ) -> Result<StagedImage, Trouble> {
        let (written, verified) =
            staging::write(opened, invalidated, self.wanted, self.cancel, &|event| {
                self.tell(&event);
            })?;
        if self.cancel.is_cancelled() {
            return Err(Trouble::Stopped);
        }
        self.show("prepareBoot", None);
        let published = Some(written.published.to_string());
        Ok(self.site.prepare(&verified, published, self.wanted)?)
    }

    /// Leaves the slot empty; what became of it.
    fn discard(&self) -> String {
        self.show("discard", None);
        let slot = self.slot;
        match self.invalidate() {
            Err(failure) => format!("slot {slot} could not be emptied: {}", failure.reason),
            Ok(invalidated) => match staging::clear(&invalidated) {
                Ok(()) => format!("slot {slot} is empty"),
                Err(failure) => format!(
                    "slot {slot} is empty to the boot loader, but its first MiB could not be zeroed: {}",
                    failure.reason
                ),
            },
        }
    }

    fn tell(&self, event: &Event) {
        match event {
            Event::Progress(now) => self.show("write", Some(staging::progress_status(now))),
            Event::Retrying { error, delay, .. } => {
                let words = format!("{error}; tried again in {} s", delay.as_secs());
                self.report.borrow().note(&words);
            }
            Event::Opened(_) | Event::Verified(_) => {}
        }
    }

    fn show(&self, step: &str, progress: Option<ProgressStatus>) {
        self.report.borrow_mut().show(&UpgradeStatus {
            phase: "Staging".to_owned(),
            step: step.to_owned(),
            target_slot: Some(match self.slot {
                SlotName::A => SlotLetter::A,
                SlotName::B => SlotLetter::B,
            }),
            progress,
            ..UpgradeStatus::default()
        });
    }
}

#[cfg(test)]
mod tests;
