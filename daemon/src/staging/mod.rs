//! The one way into a slot, for the agent and for `slotd flash`: what is refused beforehand, the write, the look into
//! what was written, and what boots it. What is thought of an image is judged in [`judgement`], without effects.

mod device;
mod failure;
mod judgement;
mod versions;

use jiff::Timestamp;
use slotd_bootctl::{
    Backend, InspectSettings, InvalidatedSlot, LoaderState, PreflightRequest, ReadBack, SlotName,
    SlotTable, StagedImage, VerifiedSlot,
};
use slotd_engine::Failure;
use slotd_image::{Cancel, Event, ImageSource, OpenedImage, Progress, WriteReport, WriteTarget};

use crate::agent::Trouble;
use crate::node::NodeSettings;
use crate::status::ProgressStatus;

pub(crate) use failure::{boot_failure, image_failure};
pub(crate) use judgement::{Wanted, kind_of_all, one};
pub(crate) use versions::{may_follow, same as same_version};

/// Slots and boot loader as they were when they were looked at.
pub(crate) struct Site<'a> {
    node: &'a NodeSettings,
    /// The slots.
    pub(crate) table: SlotTable,
    /// The boot loader.
    pub(crate) backend: Box<dyn Backend>,
    /// What its data said.
    loader: LoaderState,
}

impl<'a> Site<'a> {
    /// Looks at slots and boot loader.
    ///
    /// # Errors
    /// When they cannot be read.
    pub(crate) fn look(node: &'a NodeSettings) -> Result<Self, Failure> {
        let table = node.table()?;
        let backend = node.backend(&table)?;
        let loader = backend.state().map_err(|error| boot_failure(&error))?;
        Ok(Self {
            node,
            table,
            backend,
            loader,
        })
    }

    fn running_version(&self) -> Option<String> {
        let booted = self.table.booted.slot()?;
        self.node.running_version(Some(&self.loader), booted)
    }

    /// Every reason against writing this slot that can be known without the image. Changes nothing; a write test
    /// beside the loader's data leaves nothing behind.
    pub(crate) fn refusals(&self, slot: SlotName, wanted: &Wanted) -> Vec<Failure> {
        let mut reasons = Vec::new();
        if let Err(error) = self.table.inactive(slot) {
            reasons.push(boot_failure(&error));
        }
        reasons.extend(device::device_trouble(
            &self.node.system,
            self.table.get(slot),
        ));
        let refused = self.backend.preflight(&PreflightRequest {
            slot,
            boot_files: None,
            extra: self.node.boot_options.clone(),
        });
        reasons.extend(refused.iter().map(failure::refusal));
        if self.node.require_checksum && !wanted.has_checksum() {
            reasons.push(judgement::reject(
                "no checksum is given, and install.requireChecksum asks for one",
            ));
        }
        if let Some(version) = &wanted.version
            && let Err(failure) =
                versions::may_follow(self.running_version().as_deref(), version, wanted)
        {
            reasons.push(failure);
        }
        reasons
    }

    /// Opens the source for this slot. Nothing is written.
    ///
    /// # Errors
    /// What is wrong with the source, or with its first bytes and its size.
    pub(crate) fn open(
        &self,
        slot: SlotName,
        source: ImageSource,
        wanted: &Wanted,
        cancel: &Cancel,
        events: &dyn Fn(Event),
    ) -> Result<OpenedImage, Trouble> {
        if let Some(failure) = device::source_trouble(&source, self.table.get(slot)) {
            return Err(failure.into());
        }
        let fetch = (self.node.fetch)()?;
        let capacity = self.table.get(slot).size;
        slotd_image::open(
            source,
            &fetch,
            &wanted.expectation,
            capacity,
            cancel,
            events,
        )
        .map_err(|error| failure::trouble(&error))
    }

    /// Looks into the written slot, judges what is there, and installs what boots it, the marker last. The next boot
    /// stays as it is. Durable when it returns; a crash in the middle leaves the slot empty to the boot loader.
    ///
    /// # Errors
    /// What is wrong with the image, or with the place of the boot files.
    pub(crate) fn prepare(
        &self,
        verified: &VerifiedSlot,
        published: Option<String>,
        wanted: &Wanted,
    ) -> Result<StagedImage, Failure> {
        let settings = InspectSettings {
            version_key: self.node.version_key.clone(),
        };
        let view = (self.node.look)(verified.partition(), &settings)
            .map_err(|error| boot_failure(&error))?;
        let requires_agent = self.node.require_agent && !wanted.allow_no_agent;
        let running = self.running_version();
        let version = judgement::judge(&view.facts, running.as_deref(), wanted, requires_agent)?;
        let staged = StagedImage {
            expanded_sha256: verified.proof().hex(),
            expanded_size: verified.proof().expanded_size,
            checksum: published,
            version,
            staged_at: Some(Timestamp::now().to_string()),
        };
        self.backend
            .install_boot_files(verified, &view, &staged, &self.node.boot_options()?)
            .map_err(|error| boot_failure(&error))?;
        Ok(staged)
    }
}

/// Writes an opened image into a slot that the loader has forgotten, and reads it back. Durable when it returns; a
/// crash or an error in the middle leaves what [`slotd_image::write()`] says: a slot whose first MiB is zero, or one
/// that was not touched.
///
/// # Errors
/// What went wrong, or that it was stopped.
pub(crate) fn write(
    opened: OpenedImage,
    invalidated: InvalidatedSlot,
    wanted: &Wanted,
    cancel: &Cancel,
    events: &dyn Fn(Event),
) -> Result<(WriteReport, VerifiedSlot), Trouble> {
    let mut target = target(&invalidated)?;
    let report = slotd_image::write(opened, &mut target, &wanted.expectation, cancel, events)
        .map_err(|error| failure::trouble(&error))?;
    // Held exclusively until here; the look into the slot opens it anew.
    drop(target);
    let proof = ReadBack {
        expanded_sha256: *report.expanded.as_bytes(),
        expanded_size: report.expanded_size,
    };
    Ok((report, invalidated.attest(proof)))
}

/// Zeroes the first MiB of a slot that the loader has forgotten: a refused filesystem in it is not to be taken for an
/// image by anybody. Durable when it returns; a crash in the middle leaves some of the old.
///
/// # Errors
/// When the device is held by others or cannot be written. The loader knows no image there all the same.
pub(crate) fn clear(invalidated: &InvalidatedSlot) -> Result<(), Failure> {
    slotd_image::clear_head(&target(invalidated)?).map_err(|error| image_failure(&error))
}

fn target(invalidated: &InvalidatedSlot) -> Result<WriteTarget, Failure> {
    let (fd, path) = invalidated
        .open_exclusive()
        .map_err(|error| boot_failure(&error))?;
    WriteTarget::from_exclusive(fd, path).map_err(|error| image_failure(&error))
}

/// How far it is, as the status document says it.
pub(crate) fn progress_status(progress: &Progress) -> ProgressStatus {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a fraction between 0 and 1, times 100"
    )]
    let percent = progress
        .fraction()
        .map(|part| (part.clamp(0.0, 1.0) * 100.0) as u8);
    ProgressStatus {
        percent,
        bytes_written: progress.written,
        bytes_verified: progress.verified,
        bytes_total: progress.expanded_total,
        published_bytes: progress.published,
        published_total: progress.published_total,
        rate: progress.rate,
        seconds_left: progress.remaining.map(|time| time.as_secs()),
    }
}
