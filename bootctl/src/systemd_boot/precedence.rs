//! Whether the loader's order gives a trial what it needs: goes through its life in the model. Pure.

use super::arming::arm;
use super::preflight::refusal;
use super::snapshot::{LOADER_CONF, Snapshot};
use super::surroundings::remount;
use super::transitions::{Circumstances, after, steps};
use crate::backend::{BootOptions, NextBoot, Refusal, RefusalCode, StagedImage, Transition};
use crate::slot::SlotName;
use crate::table::Booted;

/// Boots of the trial that is gone through.
const TRIES: u32 = 3;

/// Goes through the whole life of a trial in the model: at each step the loader has to start what
/// it should, and if not, whoever stands in the way is named.
pub(super) fn precedence(
    circumstances: &Circumstances,
    snapshot: &Snapshot,
    slot: SlotName,
) -> Vec<Refusal> {
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
                 instead of {what} of slot {slot}; clear it with `bootctl set-default \"\"`{}",
                remount(circumstances)
            ),
        );
    }
    let mut plain = snapshot.clone();
    plain.files.remove(LOADER_CONF);
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
