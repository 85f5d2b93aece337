//! The transition table, as data: where an upgrade can stand, what can happen there, and where
//! that leads. What is not in the table does not happen.

use serde::{Deserialize, Serialize};

/// What people are told about where an upgrade stands.
///
/// Standing alone there is nothing to drain: then `Staged` leads to `Activating` at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// Nothing is under way.
    Idle,
    /// An image is brought into the inactive slot.
    Staging,
    /// A verified image waits there.
    Staged,
    /// The node's pods are moved away first.
    Draining,
    /// The next boot is made another slot's.
    Activating,
    /// A trial boot runs, or failed and is being left.
    Confirming,
    /// The target runs and is good.
    Completed,
    /// The node is back on the slot that it came from.
    RolledBack,
    /// The upgrade ended before its target was tried.
    Failed,
}

/// Where exactly an upgrade stands: each point is a phase and the one command that belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Point {
    /// At rest, nothing to tell.
    Idle,
    /// Everything that can be refused before a write is looked at; the source is opened.
    Preflight,
    /// The loader forgets the inactive slot's image.
    Invalidate,
    /// The image is written and read back.
    Write,
    /// The look into the written slot; kernel, initrd and the marker.
    PrepareBoot,
    /// What was staged is made unusable again.
    Discard,
    /// A verified image waits.
    Staged,
    /// The node is cordoned and its pods are evicted.
    Drain,
    /// The loader is told to try the target.
    Arm,
    /// The loader is told to start the other, good slot: a deliberate rollback.
    Select,
    /// The machine reboots, inhibitors honoured.
    Restart,
    /// The loader's next boot is flipped back.
    Disarm,
    /// The health checks of a trial boot.
    Check,
    /// Healthy: `boot-complete.target` is waited for.
    AwaitBootComplete,
    /// The loader is told that the slot is good.
    Bless,
    /// The loader is told that the slot is bad.
    GiveUp,
    /// The machine reboots at once, into the old slot.
    Return,
    /// At rest after a success.
    Completed,
    /// At rest after a rollback.
    RolledBack,
    /// At rest after a failure.
    Failed,
}

/// All points, in the order of an upgrade.
pub const POINTS: [Point; 20] = [
    Point::Idle,
    Point::Preflight,
    Point::Invalidate,
    Point::Write,
    Point::PrepareBoot,
    Point::Discard,
    Point::Staged,
    Point::Drain,
    Point::Arm,
    Point::Select,
    Point::Restart,
    Point::Disarm,
    Point::Check,
    Point::AwaitBootComplete,
    Point::Bless,
    Point::GiveUp,
    Point::Return,
    Point::Completed,
    Point::RolledBack,
    Point::Failed,
];

impl Point {
    /// The phase that it belongs to.
    #[must_use]
    pub fn phase(self) -> Phase {
        match self {
            Self::Idle => Phase::Idle,
            Self::Preflight
            | Self::Invalidate
            | Self::Write
            | Self::PrepareBoot
            | Self::Discard => Phase::Staging,
            Self::Staged => Phase::Staged,
            Self::Drain => Phase::Draining,
            Self::Arm | Self::Select | Self::Restart | Self::Disarm => Phase::Activating,
            Self::Check | Self::AwaitBootComplete | Self::Bless | Self::GiveUp | Self::Return => {
                Phase::Confirming
            }
            Self::Completed => Phase::Completed,
            Self::RolledBack => Phase::RolledBack,
            Self::Failed => Phase::Failed,
        }
    }

    /// Whether nothing is under way here.
    #[must_use]
    pub fn is_rest(self) -> bool {
        REST.contains(&self)
    }
}

/// What happened. Payloads stay in observation and outcome; this is what the table is keyed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Event {
    /// Somebody asked for an image.
    InstallAsked,
    /// Somebody asked for an image while the running slot is not proven, or to go back while that cannot be seen.
    AskedUnsafe,
    /// The target of the upgrade under way was edited.
    RetargetAsked,
    /// Somebody asked to activate, or nobody asked to wait.
    ActivateAsked,
    /// Somebody asked to activate once the node is drained.
    DrainAsked,
    /// Whoever asked to activate takes that back.
    HoldAsked,
    /// The staged image is for another attempt.
    RenewAsked,
    /// Somebody asked to go back.
    RollbackAsked,
    /// Somebody asked to stop.
    CancelAsked,
    /// The command did its work.
    Done,
    /// The command failed for good.
    Failed,
    /// A restart found the staging unfinished, or a drained node that may have been given back meanwhile.
    Interrupted,
    /// The bound on attempts is reached.
    Exhausted,
    /// The staged image is not there any more.
    StagedLost,
    /// The loader's data show the trial.
    Armed,
    /// The loader's data do not show the trial (any more).
    NotArmed,
    /// Another boot, but the loader did not start the target.
    NotStarted,
    /// Another boot, and the other slot is not even the next one.
    NotSelected,
    /// The target runs on trial.
    TrialRunning,
    /// The target runs and is good.
    ProvenRunning,
    /// The target runs although it was given up, or nothing good is left to go back to.
    NoFallback,
    /// The slot that is worked on is the booted one by now.
    TargetRunning,
    /// The target holds another image than the one that the upgrade wrote.
    Overtaken,
    /// The running slot, which is not the target, was made a trial by other means.
    RunningTried,
    /// The old slot runs and the loader gave the target up.
    FellBack,
    /// The old slot runs although tries were left.
    Abandoned,
    /// The old slot runs because somebody wanted that.
    WentBack,
    /// All required checks passed.
    Healthy,
    /// A required check failed.
    Unhealthy,
    /// The deadline passed.
    Late,
    /// Taken back: somebody had asked to stop.
    Cancelled,
    /// Taken back: it had failed.
    GaveUp,
    /// Taken back: another image comes next.
    Replaced,
}

impl Event {
    /// The words on an arrow of the diagram.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::InstallAsked => "install",
            Self::AskedUnsafe => "asked, running slot unproven",
            Self::RetargetAsked => "target edited",
            Self::ActivateAsked => "activate",
            Self::DrainAsked => "activate, drained",
            Self::HoldAsked => "held back",
            Self::RenewAsked => "next attempt",
            Self::RollbackAsked => "rollback asked",
            Self::CancelAsked => "cancel",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Interrupted => "restarted",
            Self::Exhausted => "attempts spent",
            Self::StagedLost => "image gone",
            Self::Armed => "trial shown by the loader",
            Self::NotArmed => "trial not shown by the loader",
            Self::NotStarted => "not started by the loader",
            Self::NotSelected => "other slot not selected",
            Self::TrialRunning => "target runs on trial",
            Self::ProvenRunning => "target runs, loader says good",
            Self::NoFallback => "nothing good to go back to",
            Self::TargetRunning => "target is booted",
            Self::Overtaken => "another image in the target",
            Self::RunningTried => "running slot made a trial",
            Self::FellBack => "old slot runs, loader gave up",
            Self::Abandoned => "old slot runs, tries left",
            Self::WentBack => "old slot runs, as asked",
            Self::Healthy => "healthy",
            Self::Unhealthy => "unhealthy",
            Self::Late => "late",
            Self::Cancelled => "taken back, cancelled",
            Self::GaveUp => "taken back, failed",
            Self::Replaced => "taken back, next image",
        }
    }
}

/// From any of these points, this event leads there.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Where the upgrade stands.
    pub from: &'static [Point],
    /// What happens.
    pub event: Event,
    /// Where that leads.
    pub to: Point,
}

const fn row(from: &'static [Point], event: Event, to: Point) -> Row {
    Row { from, event, to }
}

/// The points at which nothing is under way.
pub const REST: &[Point] = &[
    Point::Idle,
    Point::Completed,
    Point::RolledBack,
    Point::Failed,
];

/// The points of a staging whose slot was already touched.
const DIRTY: &[Point] = &[Point::Invalidate, Point::Write, Point::PrepareBoot];
/// The points of a staging that goes forward.
const STAGING: &[Point] = &[
    Point::Preflight,
    Point::Invalidate,
    Point::Write,
    Point::PrepareBoot,
];
/// The points of a staging, and the one that takes it back.
const TOUCHING: &[Point] = &[
    Point::Preflight,
    Point::Invalidate,
    Point::Write,
    Point::PrepareBoot,
    Point::Discard,
];
/// The points between the staged image and the reboot.
const ACTIVATING: &[Point] = &[Point::Arm, Point::Select, Point::Restart, Point::Disarm];
/// Those of an upgrade, which goes on by a trial.
const ARMING: &[Point] = &[Point::Arm, Point::Restart, Point::Disarm];
/// The points of a trial boot.
const CONFIRMING: &[Point] = &[
    Point::Check,
    Point::AwaitBootComplete,
    Point::Bless,
    Point::GiveUp,
    Point::Return,
];
/// The points of a trial boot before its verdict is acted upon.
const UNDECIDED: &[Point] = &[Point::Check, Point::AwaitBootComplete];

/// Every transition there is.
pub const TABLE: &[Row] = &[
    // At rest.
    row(REST, Event::InstallAsked, Point::Preflight),
    row(REST, Event::AskedUnsafe, Point::Failed),
    row(REST, Event::RollbackAsked, Point::Select),
    row(REST, Event::TrialRunning, Point::Check),
    // Staging.
    row(&[Point::Preflight], Event::Done, Point::Invalidate),
    row(&[Point::Invalidate], Event::Done, Point::Write),
    row(&[Point::Write], Event::Done, Point::PrepareBoot),
    row(&[Point::PrepareBoot], Event::Done, Point::Staged),
    row(&[Point::Preflight], Event::Failed, Point::Failed),
    row(&[Point::Preflight], Event::Exhausted, Point::Failed),
    row(&[Point::Preflight], Event::CancelAsked, Point::Idle),
    row(&[Point::Preflight], Event::RetargetAsked, Point::Preflight),
    row(DIRTY, Event::Failed, Point::Discard),
    row(DIRTY, Event::Exhausted, Point::Discard),
    row(DIRTY, Event::CancelAsked, Point::Discard),
    row(DIRTY, Event::RetargetAsked, Point::Discard),
    row(STAGING, Event::Interrupted, Point::Preflight),
    row(TOUCHING, Event::TrialRunning, Point::Check),
    row(TOUCHING, Event::TargetRunning, Point::Failed),
    row(TOUCHING, Event::RunningTried, Point::Failed),
    row(
        &[Point::PrepareBoot, Point::Discard],
        Event::ProvenRunning,
        Point::Completed,
    ),
    row(&[Point::Discard], Event::CancelAsked, Point::Discard),
    row(&[Point::Discard], Event::RetargetAsked, Point::Discard),
    row(&[Point::Discard], Event::Cancelled, Point::Idle),
    row(&[Point::Discard], Event::GaveUp, Point::Failed),
    row(&[Point::Discard], Event::Replaced, Point::Preflight),
    // Staged.
    row(&[Point::Staged], Event::ActivateAsked, Point::Arm),
    row(&[Point::Staged], Event::CancelAsked, Point::Discard),
    row(&[Point::Staged], Event::RetargetAsked, Point::Discard),
    row(&[Point::Staged], Event::StagedLost, Point::Failed),
    row(&[Point::Staged], Event::TrialRunning, Point::Check),
    row(&[Point::Staged], Event::ProvenRunning, Point::Completed),
    row(&[Point::Staged], Event::FellBack, Point::RolledBack),
    row(&[Point::Staged], Event::Overtaken, Point::Failed),
    row(&[Point::Staged], Event::RunningTried, Point::Failed),
    // Draining.
    row(&[Point::Staged], Event::DrainAsked, Point::Drain),
    row(&[Point::Drain], Event::Done, Point::Arm),
    row(&[Point::Drain], Event::HoldAsked, Point::Staged),
    row(
        &[Point::Staged, Point::Drain],
        Event::RenewAsked,
        Point::Staged,
    ),
    row(&[Point::Drain], Event::Failed, Point::Discard),
    row(&[Point::Drain], Event::CancelAsked, Point::Discard),
    row(&[Point::Drain], Event::RetargetAsked, Point::Discard),
    row(&[Point::Drain], Event::StagedLost, Point::Failed),
    row(&[Point::Drain], Event::TrialRunning, Point::Check),
    row(&[Point::Drain], Event::ProvenRunning, Point::Completed),
    row(&[Point::Drain], Event::FellBack, Point::RolledBack),
    row(&[Point::Drain], Event::Overtaken, Point::Failed),
    row(&[Point::Drain], Event::RunningTried, Point::Failed),
    // The cordon may be gone with an end that could not be kept.
    row(
        &[Point::Arm, Point::Restart],
        Event::Interrupted,
        Point::Drain,
    ),
    // Activating, before the reboot.
    row(&[Point::Arm], Event::Armed, Point::Restart),
    row(&[Point::Arm], Event::StagedLost, Point::Failed),
    row(&[Point::Arm], Event::Failed, Point::Disarm),
    row(&[Point::Select], Event::Done, Point::Restart),
    row(&[Point::Select], Event::Failed, Point::Disarm),
    row(
        &[Point::Arm, Point::Select],
        Event::NoFallback,
        Point::Failed,
    ),
    row(&[Point::Restart], Event::NotArmed, Point::Disarm),
    row(&[Point::Restart], Event::Failed, Point::Disarm),
    row(ACTIVATING, Event::CancelAsked, Point::Disarm),
    row(ACTIVATING, Event::RetargetAsked, Point::Disarm),
    row(&[Point::Disarm], Event::Done, Point::Discard),
    row(&[Point::Disarm], Event::Cancelled, Point::Idle),
    row(&[Point::Disarm], Event::GaveUp, Point::Failed),
    row(&[Point::Disarm], Event::Replaced, Point::Preflight),
    // Activating, after the reboot.
    row(&[Point::Restart], Event::NotStarted, Point::Restart),
    row(&[Point::Restart], Event::NotSelected, Point::Select),
    row(&[Point::Restart], Event::Exhausted, Point::Disarm),
    row(ACTIVATING, Event::WentBack, Point::RolledBack),
    row(ACTIVATING, Event::TrialRunning, Point::Check),
    row(ARMING, Event::ProvenRunning, Point::Completed),
    row(ARMING, Event::FellBack, Point::RolledBack),
    row(ARMING, Event::Overtaken, Point::Failed),
    row(
        &[Point::Arm, Point::Restart],
        Event::Abandoned,
        Point::GiveUp,
    ),
    // The trial boot.
    row(&[Point::Check], Event::Healthy, Point::AwaitBootComplete),
    row(&[Point::AwaitBootComplete], Event::Done, Point::Bless),
    row(&[Point::Check], Event::Unhealthy, Point::GiveUp),
    row(UNDECIDED, Event::Late, Point::GiveUp),
    row(&[Point::GiveUp], Event::Done, Point::Return),
    row(CONFIRMING, Event::NoFallback, Point::Failed),
    row(CONFIRMING, Event::TrialRunning, Point::Check),
    row(CONFIRMING, Event::ProvenRunning, Point::Completed),
    row(CONFIRMING, Event::FellBack, Point::RolledBack),
    row(CONFIRMING, Event::WentBack, Point::RolledBack),
    row(CONFIRMING, Event::Abandoned, Point::GiveUp),
    row(CONFIRMING, Event::Overtaken, Point::Failed),
];

/// Where an event leads from a point; `None` where it means nothing.
#[must_use]
pub fn target(at: Point, event: Event) -> Option<Point> {
    TABLE
        .iter()
        .find(|row| row.event == event && row.from.contains(&at))
        .map(|row| row.to)
}
