//! From a request to a slot that may be tried: what is refused, what is written, what is looked at.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;

use jiff::Timestamp;
use nix::libc;
use slotd_bootctl::{
    AgentPresence, Architecture, Backend, ImageFacts, InspectSettings, LoaderState, Partition,
    PreflightRequest, ReadBack, SlotTable, StagedImage,
};
use slotd_engine::{Digest, ErrorKind, Failure, Image, ImageRequest, Slot, StagedSlot, Upgrade};
use slotd_image::{Cancel, Event, ImageSource, OpenedImage, Progress, WriteReport, WriteTarget};

use super::super::host::Trouble;
use super::super::request::expectation;
use super::{NodeHost, convert, versions};
use crate::status::ProgressStatus;

fn reject(reason: impl Into<String>) -> Failure {
    Failure::new(ErrorKind::Reject, reason)
}

impl NodeHost {
    /// Every reason against writing this slot for this request that can be known without the image.
    pub(super) fn refusals(
        &self,
        slot: Slot,
        request: &ImageRequest,
        table: &SlotTable,
        backend: &dyn Backend,
        loader: &LoaderState,
    ) -> Vec<Failure> {
        let mut reasons: Vec<Failure> = self.store().refused().cloned().into_iter().collect();
        if let Err(error) = table.inactive(convert::name(slot)) {
            reasons.push(convert::boot_failure(&error));
        }
        reasons.extend(device_trouble(self, table.get(convert::name(slot))));
        let refused = backend.preflight(&PreflightRequest {
            slot: convert::name(slot),
            boot_files: None,
            extra: self.settings.boot_options.clone(),
        });
        reasons.extend(refused.iter().map(|refusal| {
            let kind = match refusal.kind() {
                slotd_bootctl::ErrorKind::Unsafe => ErrorKind::Unsafe,
                slotd_bootctl::ErrorKind::Reject => ErrorKind::Reject,
                slotd_bootctl::ErrorKind::Retry => ErrorKind::Retry,
                _ => ErrorKind::Configuration,
            };
            Failure::new(kind, refusal.message.clone())
        }));
        if self.settings.require_checksum
            && request.checksum.is_none()
            && request.expanded_checksum.is_none()
        {
            reasons.push(reject(
                "no checksum is given, and install.requireChecksum asks for one",
            ));
        }
        let running = table
            .booted
            .slot()
            .and_then(|slot| self.running_version(Some(loader), slot));
        if let Some(wanted) = &request.version
            && let Err(failure) = versions::may_follow(running.as_deref(), wanted, request)
        {
            reasons.push(failure);
        }
        reasons
    }

    pub(super) fn open_image(
        &self,
        slot: Slot,
        request: &ImageRequest,
        source: Option<ImageSource>,
        cancel: &Cancel,
    ) -> Result<OpenedImage, Trouble> {
        let table = self.table()?;
        let backend = self.backend(&table)?;
        let loader = backend
            .state()
            .map_err(|error| convert::boot_failure(&error))?;
        let refusals = self.refusals(slot, request, &table, &*backend, &loader);
        if let Some(failure) = one(refusals) {
            return Err(failure.into());
        }
        let source = match (source, &request.locator) {
            (Some(source), _) => source,
            (None, Some(locator)) => {
                ImageSource::parse(locator).map_err(|error| convert::image_failure(&error))?
            }
            (None, None) => {
                let reason = format!("{} cannot be opened again", request.source);
                return Err(Failure::new(ErrorKind::Retry, reason).into());
            }
        };
        let capacity = table.get(convert::name(slot)).size;
        let fetch = (self.settings.fetch)()?;
        let events = |event| log(&event);
        slotd_image::open(
            source,
            &fetch,
            &expectation(request),
            capacity,
            cancel,
            &events,
        )
        .map_err(|error| trouble(&error))
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
        let (fd, path) = invalidated
            .open_exclusive()
            .map_err(|error| convert::boot_failure(&error))?;
        let mut target = WriteTarget::from_exclusive(fd, path)
            .map_err(|error| convert::image_failure(&error))?;
        let events = |event: Event| match event {
            Event::Progress(now) => progress(shown(&now)),
            other => log(&other),
        };
        let report =
            slotd_image::write(opened, &mut target, &expectation(request), cancel, &events)
                .map_err(|error| trouble(&error))?;
        // Held exclusively until here; the look into the slot opens it anew.
        drop(target);
        let image = written(&report)?;
        let proof = ReadBack {
            expanded_sha256: *report.expanded.as_bytes(),
            expanded_size: report.expanded_size,
        };
        self.bench().verified = Some(invalidated.attest(proof));
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
        let table = self.table()?;
        let backend = self.backend(&table)?;
        let settings = InspectSettings {
            version_key: self.settings.version_key.clone(),
        };
        let view = (self.settings.look)(table.get(convert::name(slot)), &settings)
            .map_err(|error| convert::boot_failure(&error))?;
        let loader = backend
            .state()
            .map_err(|error| convert::boot_failure(&error))?;
        let running = table
            .booted
            .slot()
            .and_then(|slot| self.running_version(Some(&loader), slot));
        let requires_agent = self.settings.require_agent && !request.allow_no_agent;
        let version = judge(&view.facts, running.as_deref(), request, requires_agent)?;
        let staged = StagedImage {
            expanded_sha256: image.digest.as_hex().to_owned(),
            expanded_size: image.size,
            checksum: image.published.as_ref().map(Digest::to_string),
            version: version.clone(),
            staged_at: Some(Timestamp::now().to_string()),
        };
        backend
            .install_boot_files(&verified, &view, &staged, &self.boot_options()?)
            .map_err(|error| convert::boot_failure(&error))?;
        Ok(version)
    }

    pub(super) fn arm_slot(&self, slot: &StagedSlot) -> Result<(), Failure> {
        let options = self.boot_options()?;
        let table = self.table()?;
        let backend = self.backend(&table)?;
        let verified = backend
            .verified(&table, convert::name(slot.slot()))
            .map_err(|error| convert::boot_failure(&error))?;
        match verified {
            Some(verified) if verified.proof().hex() == slot.digest().as_hex() => backend
                .arm(&verified, self.settings.tries, &options)
                .map_err(|error| convert::boot_failure(&error)),
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

/// All reasons as one failure; what protects the node names the kind.
pub(super) fn one(reasons: Vec<Failure>) -> Option<Failure> {
    let kind = reasons
        .iter()
        .map(|failure| failure.kind)
        .find(|kind| *kind == ErrorKind::Unsafe)
        .or_else(|| reasons.first().map(|failure| failure.kind))?;
    let reasons: Vec<&str> = reasons
        .iter()
        .map(|failure| failure.reason.as_str())
        .collect();
    Some(Failure::new(kind, reasons.join("; ")))
}

/// What is known of the device before anything is changed for it.
fn device_trouble(host: &NodeHost, partition: &Partition) -> Option<Failure> {
    let node = &partition.node;
    // A partition of its own may have been left read-only by a look into it; a whole disk is so because
    // somebody or its hardware wants it.
    let disk = host
        .settings
        .system
        .sys(format!("class/block/{}/ro", partition.disk));
    if std::fs::read_to_string(disk).is_ok_and(|text| text.trim() == "1") {
        let reason = format!("disk {} of {} is read-only", partition.disk, node.display());
        return Some(Failure::new(ErrorKind::Unsafe, reason));
    }
    // O_EXCL without O_CREAT: busy while the device is mounted or held, now rather than once the loader
    // has forgotten the slot.
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_EXCL | libc::O_CLOEXEC)
        .open(node);
    let error = opened.err()?;
    let (kind, what) = match error.raw_os_error() {
        Some(libc::EBUSY) => (
            ErrorKind::Unsafe,
            String::from("mounted or held by another program"),
        ),
        _ => (ErrorKind::Retry, error.to_string()),
    };
    Some(Failure::new(
        kind,
        format!("{} cannot be written: {what}", node.display()),
    ))
}

/// Whether what is in the slot is what was asked for and could confirm itself. Returns its version.
fn judge(
    facts: &ImageFacts,
    running: Option<&str>,
    request: &ImageRequest,
    requires_agent: bool,
) -> Result<Option<String>, Failure> {
    let mut reasons = Vec::new();
    let here = Architecture::running();
    if facts.architecture != here {
        reasons.push(reject(format!(
            "the image is made for {}, this machine is {here}",
            facts.architecture
        )));
    }
    if facts.kernel.is_none() {
        reasons.push(reject("the image has no kernel"));
    }
    if requires_agent && !AgentPresence::can_confirm(facts.agent) {
        reasons.push(reject(format!(
            "the image could not confirm itself: it lacks {} (allow it with --allow-no-agent)",
            facts.agent.missing().join(", ")
        )));
    }
    if let (Some(own), Some(wanted)) = (&facts.version, &request.version)
        && !versions::same(own, wanted)
    {
        reasons.push(reject(format!(
            "VersionMismatch: the image names itself {own}, but {wanted} was asked for"
        )));
    }
    let version = facts
        .version
        .clone()
        .or_else(|| request.version.clone())
        .or_else(|| facts.version_id().map(str::to_owned));
    if let Some(version) = &version
        && let Err(failure) = versions::may_follow(running, version, request)
    {
        reasons.push(failure);
    }
    match one(reasons) {
        Some(failure) => Err(failure),
        None => Ok(version),
    }
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

fn trouble(error: &slotd_image::Error) -> Trouble {
    if error.is_cancelled() {
        return Trouble::Stopped;
    }
    Trouble::Failed(convert::image_failure(error))
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

fn shown(progress: &Progress) -> ProgressStatus {
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use slotd_bootctl::{AgentPresence, Architecture, BootFile, ImageFacts};
    use slotd_engine::{ErrorKind, Failure, ImageRequest};

    use super::{judge, one};

    fn facts(version: Option<&str>) -> ImageFacts {
        ImageFacts {
            os_release: BTreeMap::from([("VERSION_ID".to_owned(), "12".to_owned())]),
            version: version.map(str::to_owned),
            architecture: Architecture::running(),
            kernel: Some(BootFile {
                path: PathBuf::from("/boot/vmlinuz"),
                size: 1,
            }),
            initrd: None,
            cmdline: None,
            agent: AgentPresence {
                binary: true,
                service: true,
                health_gate: true,
                confirm: true,
                generator: true,
            },
        }
    }

    fn request(version: Option<&str>) -> ImageRequest {
        ImageRequest {
            source: "image".to_owned(),
            locator: None,
            checksum: None,
            expanded_checksum: None,
            size: None,
            version: version.map(str::to_owned),
            stage_only: false,
            allow_downgrade: false,
            allow_same_version: false,
            allow_no_agent: false,
            asked_anew: true,
        }
    }

    #[test]
    fn the_images_own_version_comes_first_then_the_request_then_version_id() {
        let version = |own, asked| judge(&facts(own), Some("1.0.0"), &request(asked), true);
        assert_eq!(
            version(Some("2.0.0"), None).unwrap().as_deref(),
            Some("2.0.0")
        );
        assert_eq!(
            version(None, Some("2.0.1")).unwrap().as_deref(),
            Some("2.0.1")
        );
        assert_eq!(version(None, None).unwrap().as_deref(), Some("12"));
    }

    #[test]
    fn an_image_that_names_another_version_is_refused() {
        let error = judge(&facts(Some("2.0.0")), None, &request(Some("2.0.1")), true).unwrap_err();
        assert!(
            error.reason.starts_with("VersionMismatch"),
            "{}",
            error.reason
        );
        judge(&facts(Some("v2.0.1")), None, &request(Some("2.0.1")), true).unwrap();
    }

    #[test]
    fn all_that_is_wrong_with_an_image_is_said_at_once() {
        let mut facts = facts(Some("0.9.0"));
        facts.architecture = Architecture::Other(243);
        facts.kernel = None;
        facts.agent.generator = false;
        let error = judge(&facts, Some("1.0.0"), &request(None), true).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Reject);
        for part in [
            "machine 243",
            "no kernel",
            "slotd-boot-generator",
            "older than",
        ] {
            assert!(error.reason.contains(part), "{}", error.reason);
        }
    }

    #[test]
    fn an_image_without_an_agent_passes_when_allowed() {
        let mut facts = facts(Some("2.0.0"));
        facts.agent = AgentPresence::default();
        assert!(judge(&facts, None, &request(None), true).is_err());
        judge(&facts, None, &request(None), false).unwrap();
    }

    #[test]
    fn what_protects_the_node_names_the_kind_of_many_reasons() {
        let failure = one(vec![
            Failure::new(ErrorKind::Configuration, "full"),
            Failure::new(ErrorKind::Unsafe, "booted"),
        ])
        .unwrap();
        assert_eq!(
            (failure.kind, failure.reason.as_str()),
            (ErrorKind::Unsafe, "full; booted")
        );
        assert!(one(Vec::new()).is_none());
    }
}
