//! Every reason at once why a trial would not do what it should.

use super::arming::{USR_SLOTS, arm};
use super::esp::Esp;
use super::snapshot::Snapshot;
use super::transitions::{Circumstances, after, steps};
use crate::backend::{
    BootOptions, Counting, NextBoot, PreflightRequest, Refusal, RefusalCode, StagedImage,
    Transition,
};
use crate::error::Result;
use crate::options::reserved;
use crate::slot::SlotName;
use crate::table::Booted;

/// Room for entry, marker and directories besides the boot files, in bytes.
const SLACK: u64 = 256 * 1024;

/// Boots of the trial that is gone through.
const TRIES: u32 = 3;

pub(crate) fn refusals(
    esp: &Esp,
    circumstances: &Circumstances,
    request: &PreflightRequest,
) -> Vec<Refusal> {
    let mut found = Vec::new();
    if let Err(error) = esp.test_write() {
        found.push(Refusal::not_writable("the boot partition", &error));
    }
    match esp.read() {
        Ok(snapshot) => {
            found.extend(circumstances.situation(&snapshot).fallback(request.slot));
            found.extend(space(esp, &snapshot, request));
            found.extend(precedence(circumstances, &snapshot, request.slot));
        }
        Err(error) => found.push(refusal(RefusalCode::Unreadable, error.chain())),
    }
    if let Some(one_shot) = &circumstances.variables.one_shot {
        found.push(refusal(
            RefusalCode::OneShotSet,
            format!(
                "EFI variable LoaderEntryOneShot is set to {one_shot:?}: the next boot would not be \
                 the trial; reboot once, or clear it with `bootctl set-oneshot \"\"`"
            ),
        ));
    }
    found.extend(counting(circumstances));
    found.extend(layout(circumstances, request));
    found.extend(reserved(&request.extra));
    found
}

fn refusal(code: RefusalCode, message: String) -> Refusal {
    Refusal { code, message }
}

fn space(esp: &Esp, snapshot: &Snapshot, request: &PreflightRequest) -> Option<Refusal> {
    match room(esp, snapshot, request) {
        Ok((need, room)) if need <= room => None,
        Ok((need, room)) => Some(refusal(
            RefusalCode::NoSpace,
            format!(
                "{} has room for {} KiB with the old boot files of slot {} removed, kernel and \
                 initrd need {} KiB{}",
                esp.root.display(),
                room / 1024,
                request.slot,
                need / 1024,
                if request.boot_files.is_none() {
                    " (estimated from the other slot's)"
                } else {
                    ""
                },
            ),
        )),
        Err(error) => Some(refusal(RefusalCode::Unreadable, error.chain())),
    }
}

fn room(esp: &Esp, snapshot: &Snapshot, request: &PreflightRequest) -> Result<(u64, u64)> {
    let files = match request.boot_files {
        Some(bytes) => bytes,
        None => esp.boot_bytes(snapshot, !request.slot)?,
    };
    let room = esp
        .free()?
        .saturating_add(snapshot.slot_bytes(request.slot));
    Ok((files.saturating_add(SLACK), room))
}

/// Goes through the whole life of a trial in the model: at each step the loader has to start what
/// it should, and if not, whoever stands in the way is named.
fn precedence(circumstances: &Circumstances, snapshot: &Snapshot, slot: SlotName) -> Vec<Refusal> {
    let mut circumstances = circumstances.clone();
    // Refused by itself already.
    circumstances.variables.one_shot = None;
    let mut found = Vec::new();
    let saved = [
        circumstances.variables.default.clone(),
        default_of(snapshot),
    ];
    if saved
        .iter()
        .flatten()
        .any(|value| value.eq_ignore_ascii_case("@saved"))
    {
        found.push(refusal(
            RefusalCode::DefaultSet,
            "the loader's default is @saved: it would start the entry of the last boot before any \
             trial"
                .to_owned(),
        ));
        return found;
    }
    if let Some(refusal) = life(&circumstances, snapshot, slot) {
        found.push(refusal);
    }
    found
}

fn default_of(snapshot: &Snapshot) -> Option<String> {
    snapshot.configured_default().map(|(_, value)| value)
}

fn life(circumstances: &Circumstances, snapshot: &Snapshot, slot: SlotName) -> Option<Refusal> {
    // A good slot that is fit for comparison; its absence is refused by itself.
    let other = circumstances.findings(snapshot, !slot).entry?;
    let machine_id = other.text.machine_id.unwrap_or_default();
    let image = StagedImage::default();
    let circumstances = Circumstances {
        booted: Booted::Slot(!slot),
        ..circumstances.clone()
    };
    let prepare = [
        Transition::Invalidate { slot },
        Transition::InstallBootFiles {
            slot,
            image,
            kernel: Some(1),
            initrd: Some(1),
        },
    ];
    let mut now = snapshot.clone();
    for transition in prepare {
        now = after(&now, &steps(&circumstances, &now, &transition).ok()?);
    }
    let options = BootOptions {
        tries: TRIES,
        extra: String::new(),
        machine_id,
        trial_deadline_seconds: 0,
        panic_seconds: 0,
    };
    // The missing fallback is refused by itself.
    let trial = Transition::Arm {
        slot,
        options: options.clone(),
    };
    circumstances.allow(&now, &trial).ok()?;
    now = after(&now, &arm(&circumstances, &now, slot, &options).ok()?);
    for _ in 0..TRIES {
        if circumstances.next(&now) != (NextBoot::Slot { slot, trial: true }) {
            return Some(in_the_way(&circumstances, &now, slot, "the trial"));
        }
        now = after(
            &now,
            &steps(&circumstances, &now, &Transition::TrialBoot { slot }).ok()?,
        );
    }
    if circumstances.next(&now)
        != (NextBoot::Slot {
            slot: !slot,
            trial: false,
        })
    {
        return Some(in_the_way(&circumstances, &now, !slot, "the fallback"));
    }
    let booted = Circumstances {
        booted: Booted::Slot(slot),
        ..circumstances
    };
    let good = after(
        &now,
        &steps(&booted, &now, &Transition::MarkGood { slot }).ok()?,
    );
    if booted.next(&good) != (NextBoot::Slot { slot, trial: false }) {
        return Some(in_the_way(&booted, &good, slot, "the confirmed slot"));
    }
    None
}

fn in_the_way(
    circumstances: &Circumstances,
    snapshot: &Snapshot,
    slot: SlotName,
    what: &str,
) -> Refusal {
    let next = circumstances.next(snapshot);
    let variables = &circumstances.variables;
    let mut without = circumstances.clone();
    without.variables.default = None;
    without.variables.preferred = None;
    let set = variables.default.as_ref().or(variables.preferred.as_ref());
    if let Some(value) = set.filter(|_| without.next(snapshot) != next) {
        return refusal(
            RefusalCode::DefaultSet,
            format!(
                "EFI variable LoaderEntryDefault is set to {value:?}: the loader would start {next} \
                 instead of {what} of slot {slot}; clear it with `bootctl set-default \"\"`"
            ),
        );
    }
    let mut plain = snapshot.clone();
    plain.files.remove(super::snapshot::LOADER_CONF);
    if let Some((key, value)) = snapshot
        .configured_default()
        .filter(|_| without.next(&plain) != next)
    {
        return refusal(
            RefusalCode::DefaultSet,
            format!(
                "loader.conf sets `{key} {value}`: the loader would start {next} instead of {what} \
                 of slot {slot}; remove that line"
            ),
        );
    }
    refusal(
        RefusalCode::ForeignEntryFirst,
        format!(
            "the loader would start {next} instead of {what} of slot {slot}, because it sorts first \
             (by sort-key, machine-id, version)"
        ),
    )
}

/// Whether the loader counts boots, by its own word and by what this boot shows.
pub(crate) fn counting_of(circumstances: &Circumstances, snapshot: &Snapshot) -> Counting {
    let variables = &circumstances.variables;
    let counted = |slot: SlotName| {
        let entry = circumstances.findings(snapshot, slot).entry;
        entry.is_some_and(|entry| entry.name.counter.is_some_and(|counter| counter.left > 0))
    };
    let uncounted_trial = circumstances
        .booted
        .slot()
        .is_some_and(|slot| counted(slot) && variables.boot_count_path.is_none());
    match variables.counts {
        Some(false) => Counting::Inactive,
        Some(true) if uncounted_trial => Counting::Inactive,
        Some(true) => Counting::Active,
        None => Counting::Unknown,
    }
}

fn counting(circumstances: &Circumstances) -> Option<Refusal> {
    (circumstances.variables.counts == Some(false)).then(|| {
        let info = circumstances
            .variables
            .info
            .as_deref()
            .unwrap_or("the boot loader");
        refusal(
            RefusalCode::CountingUnsupported,
            format!("{info} says in LoaderFeatures that it does not count boots"),
        )
    })
}

fn layout(circumstances: &Circumstances, request: &PreflightRequest) -> Vec<Refusal> {
    let mut found = Vec::new();
    if circumstances.usr_slots {
        found.push(refusal(
            RefusalCode::UnsupportedLayout,
            USR_SLOTS.to_owned(),
        ));
    }
    if circumstances.partition(request.slot).is_none() {
        found.push(refusal(
            RefusalCode::UnsupportedLayout,
            format!(
                "slot {} has no partition UUID to bind an entry's root to",
                request.slot
            ),
        ));
    }
    let started = circumstances.variables.info.as_deref();
    if circumstances.booted.slot().is_some()
        && !started.is_some_and(|info| info.starts_with("systemd-boot"))
    {
        let by = started.unwrap_or("a loader that set no LoaderInfo");
        found.push(refusal(
            RefusalCode::LoaderDataMissing,
            format!("this system was not started by systemd-boot but by {by}"),
        ));
    }
    found
}
