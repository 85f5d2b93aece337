//! What the planner answers: writes, and how each upgrade stands.

use super::fleet::{Failure, Fleet, NodeUid, Place, ProgressUid, UpgradeUid};

/// What is to be written now, and what is to be shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What to write, in this order. Nothing where all is as it should be.
    pub writes: Vec<Write>,
    /// How each upgrade stands, in the order of the snapshot.
    pub upgrades: Vec<Outlook>,
}

/// One write.
///
/// The planner may see an old snapshot, and not be the only one. That is safe as long as whoever writes
///
/// - writes all claims and frees of one plan in one update of the places, on condition that they are as the snapshot has them,
///   and no claim where one of the frees is not written;
/// - writes [`Write::Raise`], [`Write::Activate`], [`Write::Delete`] and [`Write::Unbind`] on condition that the object is as
///   the snapshot has it;
/// - asks the server itself, not a cache, about the Node and the progress object of each place before it is given back
///   (see [`super::frees`]), and whether a Node is gone where a write says that it is.
///
/// Any of them may be lost, and apart from claims none depends on another of the same plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Gives a place back.
    Free {
        /// The node that held it.
        node: NodeUid,
        /// What makes it free.
        because: Freed,
    },
    /// Takes a place.
    Claim(Place),
    /// Puts our finalizer on an upgrade.
    BindUpgrade(UpgradeUid),
    /// Takes our finalizer off an upgrade.
    UnbindUpgrade(UpgradeUid),
    /// Takes our finalizer off a progress object.
    Unbind {
        /// Which.
        progress: ProgressUid,
        /// Its Node is gone, and that is the reason; to be asked of the server.
        node_gone: bool,
    },
    /// Deletes a progress object.
    Delete {
        /// Which.
        progress: ProgressUid,
        /// Why.
        because: Unwanted,
    },
    /// Makes a progress object that says Stage.
    Create {
        /// For this upgrade, with its image and its attempt.
        upgrade: UpgradeUid,
        /// For this node.
        node: NodeUid,
        /// The attempt that it asks for.
        attempt: u32,
    },
    /// Lets a progress object ask for a further attempt, of its upgrade's image and attempt, that says Stage: approval of
    /// the one before is revoked.
    Raise {
        /// Which.
        progress: ProgressUid,
        /// The attempt that it asks for.
        attempt: u32,
        /// Why.
        because: Raised,
    },
    /// Lets a node go on to the trial boot. The same write puts our finalizer on the progress object.
    Activate {
        /// Which.
        progress: ProgressUid,
        /// The attempt that is activated.
        attempt: u32,
    },
}

impl Plan {
    /// Takes out what would let a node of these upgrades begin, or begin anew: what is under way goes on, and what is over is put in
    /// order. Any write may be lost, so may these.
    pub fn begin_nothing(&mut self, fleet: &Fleet, held: impl Fn(&UpgradeUid) -> bool) {
        self.writes
            .retain(|write| !write.begun(fleet).is_some_and(&held));
    }
}

impl Write {
    /// The upgrade of which this lets a node begin, or begin anew.
    pub(super) fn begun<'a>(&'a self, fleet: &'a Fleet) -> Option<&'a UpgradeUid> {
        match self {
            Self::Create { upgrade, .. } => Some(upgrade),
            Self::Claim(place) => place.holder.as_ref().map(|holder| &holder.upgrade),
            Self::Raise { progress, .. } | Self::Activate { progress, .. } => {
                let of = fleet.progress.iter().find(|one| one.uid == *progress);
                of.and_then(|progress| progress.upgrade.as_ref())
            }
            Self::Free { .. }
            | Self::BindUpgrade(_)
            | Self::UnbindUpgrade(_)
            | Self::Unbind { .. }
            | Self::Delete { .. } => None,
        }
    }
}

/// What makes a place free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    /// The node runs the target and is Ready.
    Completed,
    /// The node went back to what it had, and is Ready.
    RolledBack,
    /// The attempt ended before its reboot.
    Ended,
    /// The attempt was raised before it was activated, or the agent has taken up a later one.
    Raised,
    /// The progress object is gone.
    ProgressGone,
    /// The Node is gone.
    NodeGone,
}

/// Why a progress object goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwanted {
    /// The Node is gone; to be asked of the server.
    NodeGone,
    /// The upgrade is being deleted.
    UpgradeDeleted,
    /// The upgrade is Rejected.
    UpgradeRejected,
    /// The node runs the image already.
    Runs,
    /// The upgrade is not for this node any more.
    NoTarget,
    /// A younger upgrade has the node.
    Superseded,
    /// It asks for another image than its upgrade, whose turn it is not.
    OtherImage,
}

/// Why an attempt is raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Raised {
    /// The upgrade means another image.
    OtherImage,
    /// The upgrade asks anew.
    AskedAnew,
    /// Its claim was not used, and does not fit any more.
    HeldBack,
}

/// How an upgrade stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// Which.
    pub upgrade: UpgradeUid,
    /// How far it is.
    pub phase: Phase,
    /// Why no further node is started, where the phase is Halted.
    pub halted: Option<Halted>,
    /// How many nodes are to run the image.
    pub targets: u32,
    /// How many of them run it and are Ready.
    pub ok: u32,
    /// How many of them failed, rolled back or refused.
    pub fail: u32,
    /// The most that may be unavailable at one time.
    pub max_unavailable: u32,
    /// How many nodes match that have no agent.
    pub without_agent: u32,
    /// Which failed first, and why.
    pub first_failure: Option<FirstFailure>,
    /// Which nodes wait, and for what, by name.
    pub waiting: Vec<Waiting>,
    /// Which nodes stage, or take a place by this very plan, and for what they would have to wait by what is stored. They wait
    /// for nothing yet or no more; with them the list of those that have no place changes with the places alone.
    pub ahead: Vec<Waiting>,
    /// Targets that are unavailable and hold no place, by name: they take part of the limit too.
    pub unavailable: Vec<NodeUid>,
    /// Nodes that hold a place for this upgrade and are not Ready, by name.
    pub away: Vec<NodeUid>,
}

/// How far an upgrade is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// What it means is not known yet.
    Pending,
    /// It is known, and no node was started.
    Accepted,
    /// Nodes are on their way, or wait for their turn.
    RollingOut,
    /// Every target runs the image.
    Completed,
    /// A rule forbids it, for all targets.
    Rejected,
    /// No further node is started.
    Halted,
}

/// Why no further node is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halted {
    /// As many nodes failed as `max_failures` says.
    Failures {
        /// How many failed.
        failed: u32,
    },
    /// The image was blocked since.
    Blocked,
    /// Every other target runs the image; these did not get there.
    NothingLeft,
}

/// The node that failed first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstFailure {
    /// Its name.
    pub node: String,
    /// Why.
    pub failure: Failure,
}

/// A node that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Which.
    pub node: NodeUid,
    /// Its name.
    pub node_name: String,
    /// Its progress object, where it has one.
    pub progress: Option<ProgressUid>,
    /// What it waits for.
    pub wait: Wait,
}

/// What a node waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Its turn to stage.
    StagingTurn,
    /// A place: as many nodes are unavailable or on their way as may be.
    Place,
    /// Another control-plane node, by name, which is on its way or not Ready.
    ControlPlane(String),
    /// The upgrade, or this node's progress object, is suspended.
    Suspended,
    /// An operator holds the node, for this reason.
    Held(String),
    /// The node is not Ready.
    NotReady,
    /// The upgrade is Halted.
    Halted,
    /// It is not known yet what the upgrade means.
    Unresolved,
    /// A younger upgrade, by name, has the node.
    Superseded(String),
    /// Another progress object of the node, by name, has to end first.
    OtherFirst(String),
    /// The attempt was completed, and the node runs something else since. Only asking anew changes that.
    Drifted,
}
