//! From a request to a slot that may be tried, with the proofs kept in between.

use slotd_engine::{Digest, ErrorKind, Failure, Image, ImageRequest, Slot, StagedSlot, Upgrade};
use slotd_image::{Cancel, Event, ImageSource, OpenedImage, WriteReport};

use super::super::host::Trouble;
use super::super::request::wanted;
use super::{NodeHost, convert};
use crate::staging::{self, Site, Wanted, boot_failure, image_failure, one};
use crate::status::ProgressStatus;

impl NodeHost {
    /// Every reason against writing this slot for this request that can be known without the image.
    pub(super) fn refusals(&self, site: &Site<'_>, slot: Slot, wanted: &Wanted) -> Vec<Failure> {
        let mut reasons: Vec<Failure> = self.store().refused().cloned().into_iter().collect();
        reasons.extend(site.refusals(convert::name(slot), wanted));
        reasons
    }

    pub(super) fn open_image(
        &self,
        slot: Slot,
        request: &ImageRequest,
        source: Option<ImageSource>,
        cancel: &Cancel,
    ) -> Result<OpenedImage, Trouble> {
        let wanted = wanted(request);
        let site = Site::look(&self.settings)?;
        if let Some(failure) = one(self.refusals(&site, slot, &wanted)) {
            return Err(failure.into());
        }
        let source = match (source, &request.locator) {
            (Some(source), _) => source,
            (None, Some(locator)) => {
                ImageSource::parse(locator).map_err(|error| image_failure(&error))?
            }
            (None, None) => {
                let reason = format!("{} cannot be opened again", request.source);
                return Err(Failure::new(ErrorKind::Retry, reason).into());
            }
        };
        let events = |event| log(&event);
        site.open(convert::name(slot), source, &wanted, cancel, &events)
    }

    pub(super) fn write_image(
        &self,
        slot: Slot,
        request: &ImageRequest,
        cancel: &Cancel,
        progress: &(dyn Fn(ProgressStatus) + Send + Sync),
    ) -> Result<Image, Trouble> {
        let (opened, invalidated) = {
            let mut bench = self.bench();
            (bench.opened.take(), bench.invalidated.take())
        };
        let (Some(opened), Some(invalidated)) = (opened, invalidated) else {
            return Err(bug("a slot was to be written without an opened image or a proof").into());
        };
        if invalidated.name() != convert::name(slot) {
            return Err(bug("the proof is another slot's").into());
        }
        let events = |event: Event| match event {
            Event::Progress(now) => progress(staging::progress_status(&now)),
            other => log(&other),
        };
        let (report, verified) =
            staging::write(opened, invalidated, &wanted(request), cancel, &events)?;
        let image = written(&report)?;
        self.bench().verified = Some(verified);
        Ok(image)
    }

    pub(super) fn prepare_slot(
        &self,
        slot: Slot,
        upgrade: &Upgrade,
    ) -> Result<Option<String>, Failure> {
        let Some(verified) = self.bench().verified.take() else {
            return Err(bug(
                "a slot was to be prepared without the proof that it was read back",
            ));
        };
        let (Some(request), Some(image)) = (&upgrade.request, &upgrade.image) else {
            return Err(bug(
                "a slot was to be prepared without a request or an image",
            ));
        };
        if verified.name() != convert::name(slot) || verified.proof().hex() != image.digest.as_hex()
        {
            return Err(bug("the proof is another slot's or another image's"));
        }
        let published = image.published.as_ref().map(Digest::to_string);
        let site = Site::look(&self.settings)?;
        let staged = site.prepare(&verified, published, &wanted(request))?;
        Ok(staged.version)
    }

    /// Makes the loader forget the slot, and clears what could be taken for an image in it. The latter failing is
    /// told and no more: what cannot be started is harmless.
    pub(super) fn discard_slot(&self, slot: Slot) -> Result<(), Failure> {
        let invalidated = self.with_loader(|table, backend| {
            backend.invalidate(table.inactive(convert::name(slot))?)
        })?;
        if let Err(failure) = staging::clear(&invalidated) {
            tracing::warn!(%slot, reason = %failure.reason, "the slot's first MiB could not be zeroed");
        }
        Ok(())
    }

    pub(super) fn arm_slot(&self, slot: &StagedSlot) -> Result<(), Failure> {
        let options = self.settings.boot_options()?;
        let table = self.settings.table()?;
        let backend = self.settings.backend(&table)?;
        let verified = backend
            .verified(&table, convert::name(slot.slot()))
            .map_err(|error| boot_failure(&error))?;
        match verified {
            Some(verified) if verified.proof().hex() == slot.digest().as_hex() => backend
                .arm(&verified, self.settings.tries, &options)
                .map_err(|error| boot_failure(&error)),
            _ => Err(Failure::new(
                ErrorKind::Unsafe,
                format!(
                    "slot {} does not hold the verified image {}",
                    slot.slot(),
                    slot.digest()
                ),
            )),
        }
    }
}

fn bug(reason: &str) -> Failure {
    Failure::new(ErrorKind::Bug, reason)
}

fn written(report: &WriteReport) -> Result<Image, Failure> {
    let digest = Digest::new(&report.expanded.to_hex());
    let Some(digest) = digest else {
        return Err(bug("the writer's digest is no digest"));
    };
    tracing::info!(
        matched = ?report.matched,
        expanded = %report.expanded,
        published = %report.published,
        "image written and read back"
    );
    Ok(Image {
        digest,
        published: Digest::new(&report.published.to_hex()),
        size: report.expanded_size,
        version: None,
    })
}

fn log(event: &Event) {
    match event {
        Event::Opened(opened) => tracing::info!(
            source = %opened.location,
            format = ?opened.format,
            bytes = opened.published_total,
            "image opened"
        ),
        Event::Retrying {
            attempt,
            error,
            delay,
        } => {
            tracing::warn!(attempt, %error, seconds = delay.as_secs(), "fetch is tried again");
        }
        Event::Progress(_) | Event::Verified(_) => {}
    }
}
