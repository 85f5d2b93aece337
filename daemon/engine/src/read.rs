//! What happened? Reads an event out of the record, the world and the last outcome. The world comes
//! first: it outranks both what was recorded and what a command answered.

use crate::answer::answered;
use crate::next::Outcome;
use crate::record::{ErrorKind, Failure, Kind, Record, Upgrade};
use crate::table::{Event, Phase, Point, target};
use crate::world::{Observation, Request, Slot, SlotState};

/// Reboots that may pass without the loader starting the target before we give up.
const RESTARTS: u32 = 2;

/// An event, and why it is a bad one.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) event: Event,
    pub(crate) failure: Option<Failure>,
}

impl Seen {
    pub(crate) fn plain(event: Event) -> Option<Self> {
        Some(Self {
            event,
            failure: None,
        })
    }

    pub(crate) fn because(
        event: Event,
        kind: ErrorKind,
        reason: impl Into<String>,
    ) -> Option<Self> {
        Some(Self {
            event,
            failure: Some(Failure::new(kind, reason)),
        })
    }
}

/// The first event that means something where the upgrade stands.
pub(crate) fn event(
    record: &Record,
    seen: &Observation,
    outcome: Option<&Outcome>,
) -> Option<Seen> {
    let means = |event: &Seen| target(record.at, event.event).is_some();
    let world = world(record, seen).filter(means);
    let requested = || requested(record, seen).filter(means);
    let answered = || answered(record, seen, outcome).filter(means);
    match world {
        // What only goes on towards the reboot must not swallow that somebody stops it, or that a restart came between.
        Some(on) if goes_on(on.event) => requested()
            .or_else(|| answered().filter(|event| event.event == Event::Interrupted))
            .or(Some(on)),
        other => other.or_else(requested).or_else(answered),
    }
}

/// Whether what the world says leads nowhere but on towards a reboot that is still to come.
fn goes_on(event: Event) -> bool {
    matches!(event, Event::Armed | Event::NotStarted | Event::NotSelected)
}

/// What the world says by itself.
fn world(record: &Record, seen: &Observation) -> Option<Seen> {
    let booted = seen.world.booted?;
    if record.at.is_rest() {
        return adopted(record, seen, booted);
    }
    let upgrade = record.upgrade.as_ref()?;
    if upgrade.kind == Kind::Rollback {
        return going_back(record.at, upgrade, seen, booted);
    }
    if let Some(overtaken) = overtaken(record.phase(), upgrade, seen, booted) {
        return Some(overtaken);
    }
    match record.phase() {
        Phase::Staging | Phase::Staged | Phase::Draining
            if booted != upgrade.target && on_trial(seen, booted) =>
        {
            let reason = format!("the running slot {booted} became a trial, which is judged first");
            Seen::because(Event::RunningTried, ErrorKind::Unsafe, reason)
        }
        Phase::Staging => on_target(upgrade, seen, booted),
        Phase::Staged | Phase::Draining => staged(upgrade, seen, booted),
        Phase::Activating => activating(record.at, upgrade, seen, booted),
        Phase::Confirming => confirming(upgrade, seen, booted),
        Phase::Idle | Phase::Completed | Phase::RolledBack | Phase::Failed => None,
    }
}

/// A trial boot that nothing under way explains. One that already ended in this very boot (nothing
/// good to go back to) is left alone.
fn adopted(record: &Record, seen: &Observation, booted: Slot) -> Option<Seen> {
    let ended_here = record.upgrade.as_ref().is_some_and(|upgrade| {
        upgrade.target == booted && upgrade.boot_id.as_deref() == Some(&seen.world.boot_id)
    });
    match seen.world.state(booted)? {
        SlotState::Trial { .. } if !ended_here => Seen::plain(Event::TrialRunning),
        _ => None,
    }
}

fn on_trial(seen: &Observation, slot: Slot) -> bool {
    matches!(seen.world.state(slot), Some(SlotState::Trial { .. }))
}

/// While staging, the target must not be what runs: somebody else changed the slots meanwhile.
fn on_target(upgrade: &Upgrade, seen: &Observation, booted: Slot) -> Option<Seen> {
    if booted != upgrade.target {
        return None;
    }
    match seen.world.state(booted) {
        Some(SlotState::Trial { .. }) => return Seen::plain(Event::TrialRunning),
        Some(SlotState::Good) if own_image(upgrade, seen) == Some(true) => {
            return Seen::plain(Event::ProvenRunning);
        }
        _ => {}
    }
    let reason = format!("slot {booted} was to be written, but it is the booted one now");
    Seen::because(Event::TargetRunning, ErrorKind::Unsafe, reason)
}

/// Somebody else may have armed, started or emptied a staged slot.
fn staged(upgrade: &Upgrade, seen: &Observation, booted: Slot) -> Option<Seen> {
    let slot = upgrade.target;
    let state = seen.world.state(slot);
    if booted == slot {
        return runs(state);
    }
    match state? {
        SlotState::Bad | SlotState::Trial { left: 0, .. } => Seen::plain(Event::FellBack),
        SlotState::Trial { .. } => None,
        _ if seen.world.staged_for(upgrade).is_some() => None,
        _ => lost(slot),
    }
}

fn lost(slot: Slot) -> Option<Seen> {
    let reason = format!("the image staged in slot {slot} is not there any more");
    Seen::because(Event::StagedLost, ErrorKind::Reject, reason)
}

/// The target runs. Where the loader's data cannot be read that is a trial until they say otherwise: nothing but a look
/// at it is done to a slot that runs.
fn runs(state: Option<SlotState>) -> Option<Seen> {
    Seen::plain(match state {
        Some(SlotState::Good) => Event::ProvenRunning,
        _ => Event::TrialRunning,
    })
}

/// Whether the target holds what the upgrade wrote; `None` where that is not known.
pub(crate) fn own_image(upgrade: &Upgrade, seen: &Observation) -> Option<bool> {
    let lies = seen.world.image(upgrade.target)?;
    upgrade.image.as_ref().map(|own| own.digest == *lies)
}

/// Once an image was staged, its slot is known to hold another one: what becomes of that is nothing of this upgrade. Where
/// it runs on trial, the trial is confirmed or left first.
fn overtaken(phase: Phase, upgrade: &Upgrade, seen: &Observation, booted: Slot) -> Option<Seen> {
    let slot = upgrade.target;
    let staged = matches!(
        phase,
        Phase::Staged | Phase::Draining | Phase::Activating | Phase::Confirming
    );
    if !staged || upgrade.kind != Kind::Install || own_image(upgrade, seen) != Some(false) {
        return None;
    }
    if booted == slot && seen.world.state(slot) != Some(SlotState::Good) {
        return None;
    }
    let reason = format!("slot {slot} holds an image that is not this upgrade's");
    Seen::because(Event::Overtaken, ErrorKind::Unsafe, reason)
}

/// From the decision to try the target until one of the two slots came up.
fn activating(at: Point, upgrade: &Upgrade, seen: &Observation, booted: Slot) -> Option<Seen> {
    let slot = upgrade.target;
    let state = seen.world.state(slot);
    if booted == slot {
        return runs(state);
    }
    match (at, state?) {
        (_, SlotState::Bad | SlotState::Trial { left: 0, .. }) => Seen::plain(Event::FellBack),
        (_, SlotState::Good) => Seen::because(
            Event::WentBack,
            ErrorKind::Reject,
            format!("slot {slot} is good, but the machine was made to run slot {booted}"),
        ),
        (Point::Disarm, _) => None,
        (_, SlotState::Trial { done, .. }) if done > 0 => Seen::because(
            Event::Abandoned,
            ErrorKind::Reject,
            format!(
                "slot {slot} was started {done} times without being confirmed, and the machine \
                 came back to slot {booted} with tries left"
            ),
        ),
        (Point::Arm, SlotState::Trial { .. }) => Seen::plain(Event::Armed),
        (Point::Arm, _) if seen.world.proven(booted).is_none() => Seen::because(
            Event::NoFallback,
            ErrorKind::Unsafe,
            format!("the boot loader does not call the running slot {booted} good any more"),
        ),
        (Point::Arm, SlotState::Empty) if seen.world.staged_for(upgrade).is_none() => lost(slot),
        (Point::Restart, SlotState::Trial { .. }) if rebooted(upgrade, seen) => {
            not_started(upgrade, slot, booted)
        }
        (Point::Restart, SlotState::Empty) => Seen::because(
            Event::NotArmed,
            ErrorKind::Reject,
            format!("the trial of slot {slot} was taken back by other means before its reboot"),
        ),
        _ => None,
    }
}

fn not_started(upgrade: &Upgrade, slot: Slot, booted: Slot) -> Option<Seen> {
    if upgrade.restarts < RESTARTS {
        return Seen::plain(Event::NotStarted);
    }
    let reason = format!(
        "after {} reboots the boot loader still starts slot {booted} and not the armed slot {slot}",
        upgrade.restarts.saturating_add(1)
    );
    Seen::because(Event::Exhausted, ErrorKind::Reject, reason)
}

/// A trial boot, and what came after it.
fn confirming(upgrade: &Upgrade, seen: &Observation, booted: Slot) -> Option<Seen> {
    let slot = upgrade.target;
    let state = seen.world.state(slot);
    if booted == slot {
        return match state {
            Some(SlotState::Good) => Seen::plain(Event::ProvenRunning),
            _ if !rebooted(upgrade, seen) => None,
            // The loader starts a spent entry as its last resort. Rebooting again would be an
            // endless loop of our making.
            Some(SlotState::Bad) if upgrade.failure.is_some() => Seen::because(
                Event::NoFallback,
                ErrorKind::Unsafe,
                format!("slot {slot} was given up, but the boot loader started it once more"),
            ),
            _ => Seen::plain(Event::TrialRunning),
        };
    }
    match state? {
        SlotState::Bad | SlotState::Trial { left: 0, .. } | SlotState::Empty => {
            Seen::plain(Event::FellBack)
        }
        SlotState::Trial { done, .. } => Seen::because(
            Event::Abandoned,
            ErrorKind::Reject,
            format!(
                "slot {slot} was not confirmed in {done} trial boots, and the machine came back to \
                 slot {booted} with tries left"
            ),
        ),
        SlotState::Good => Seen::because(
            Event::WentBack,
            ErrorKind::Reject,
            format!("slot {slot} is good, but the machine was made to run slot {booted}"),
        ),
    }
}

/// A deliberate rollback.
fn going_back(at: Point, upgrade: &Upgrade, seen: &Observation, booted: Slot) -> Option<Seen> {
    let slot = upgrade.target;
    if booted == slot {
        return match seen.world.state(slot) {
            Some(SlotState::Trial { .. }) => Seen::plain(Event::TrialRunning),
            _ => Seen::because(Event::WentBack, ErrorKind::Reject, "asked by the operator"),
        };
    }
    if at == Point::Select
        && seen
            .world
            .state(slot)
            .is_some_and(|state| state != SlotState::Good)
    {
        let reason = format!("slot {slot} is not good: there is nothing to go back to");
        return Seen::because(Event::NoFallback, ErrorKind::Unsafe, reason);
    }
    if at != Point::Restart || !rebooted(upgrade, seen) {
        return None;
    }
    match not_started(upgrade, slot, booted) {
        Some(Seen {
            event: Event::NotStarted,
            ..
        }) if seen.world.next_boot != Some(slot) => Seen::plain(Event::NotSelected),
        other => other,
    }
}

/// Whether this is another boot than the one that the upgrade's present part was begun in.
pub(crate) fn rebooted(upgrade: &Upgrade, seen: &Observation) -> bool {
    upgrade.boot_id.as_deref() != Some(seen.world.boot_id.as_str())
}

/// Whether a staged image is activated without being asked for it.
pub(crate) fn activates(upgrade: &Upgrade, seen: &Observation) -> bool {
    let waits = upgrade
        .request
        .as_ref()
        .is_none_or(|request| request.stage_only);
    !waits && seen.world.booted.is_some()
}

/// What somebody asks.
fn requested(record: &Record, seen: &Observation) -> Option<Seen> {
    match seen.request.as_ref()? {
        Request::Install(_) => match seen.world.booted.and_then(|slot| seen.world.proven(slot)) {
            Some(_) => Seen::plain(Event::InstallAsked),
            None => Some(Seen {
                event: Event::AskedUnsafe,
                failure: Some(unsafe_reason(seen)),
            }),
        },
        Request::Retarget(_) => Seen::plain(Event::RetargetAsked),
        Request::Activate { drain: None } => Seen::plain(Event::ActivateAsked),
        Request::Activate { drain: Some(_) } => Seen::plain(Event::DrainAsked),
        Request::Hold => Seen::plain(Event::HoldAsked),
        Request::Renew(_) => Seen::plain(Event::RenewAsked),
        // What runs could be a trial that nobody remembers.
        Request::Rollback { .. } if seen.world.booted.is_some() && seen.world.loader.is_none() => {
            Some(Seen {
                event: Event::AskedUnsafe,
                failure: Some(unsafe_reason(seen)),
            })
        }
        Request::Rollback { .. } if seen.world.booted.is_some() => {
            Seen::plain(Event::RollbackAsked)
        }
        Request::Cancel(id) if record.upgrade.as_ref().is_some_and(|own| own.id == *id) => {
            Seen::plain(Event::CancelAsked)
        }
        Request::Rollback { .. } | Request::Cancel(_) => None,
    }
}

/// Why no slot can be written now.
fn unsafe_reason(seen: &Observation) -> Failure {
    match (&seen.world.trouble, seen.world.booted) {
        (Some(trouble), _) => trouble.clone(),
        (None, Some(slot)) => Failure::new(
            ErrorKind::Unsafe,
            format!(
                "the boot loader does not call the running slot {slot} good: writing the other one \
                 could leave nothing to boot"
            ),
        ),
        (None, None) => Failure::new(
            ErrorKind::Unsafe,
            "this system runs from neither of the two slots",
        ),
    }
}
