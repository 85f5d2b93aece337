//! What the planner is told: one snapshot of everything that the roll-out depends on.
//!
//! The parts of a snapshot may be of different ages, and another controller may act on another one at the same moment. What
//! keeps that safe is said at [`super::Write`].

use std::collections::BTreeMap;

use super::limit::Limit;

macro_rules! uid {
    ($(#[$outer:meta])* $name:ident) => {
        $(#[$outer])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub String);
    };
}

uid! {
    /// The uid of a Node: another one of that name is another node.
    NodeUid
}
uid! {
    /// The uid of an upgrade.
    UpgradeUid
}
uid! {
    /// The uid of a progress object.
    ProgressUid
}
uid! {
    /// What tells one resolved image from another: equal where a node would install the same.
    ImageId
}

/// One snapshot of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fleet {
    /// All nodes, also those without an agent.
    pub nodes: Vec<Node>,
    /// All upgrades.
    pub upgrades: Vec<Upgrade>,
    /// All progress objects.
    pub progress: Vec<Progress>,
    /// All places held.
    pub places: Vec<Place>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Which.
    pub uid: NodeUid,
    /// Its name.
    pub name: String,
    /// An agent runs there: without one it is no target.
    pub agent: bool,
    /// It is Ready.
    pub ready: bool,
    /// Nothing new is scheduled there, whoever wished that.
    pub unschedulable: bool,
    /// That was us, and it is not taken back yet.
    pub cordoned_by_us: bool,
    /// It carries the control plane.
    pub control_plane: bool,
    /// An operator holds it back, for this reason.
    pub hold: Option<String>,
}

impl Node {
    /// Whether it takes no work, for whatever reason.
    #[must_use]
    pub fn unavailable(&self) -> bool {
        !self.ready || self.unschedulable
    }

    /// Whether it is Ready and nothing of an upgrade of ours is left there.
    #[must_use]
    pub(super) fn back(&self) -> bool {
        self.ready && !self.cordoned_by_us
    }
}

/// An upgrade.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upgrade {
    /// Which.
    pub uid: UpgradeUid,
    /// Its name.
    pub name: String,
    /// When it was made, seconds. Only compared with that of other upgrades.
    pub created: i64,
    /// Raised to go on after a halt.
    pub attempt: u32,
    /// No further node is started.
    pub suspended: bool,
    /// It is being deleted.
    pub deleting: bool,
    /// Our finalizer is on it.
    pub bound: bool,
    /// It was Completed when it was looked at last, for the same image.
    pub completed: bool,
    /// What it means.
    pub resolution: Resolution,
    /// The nodes that it is for, with an agent or without, and what its image is to each.
    pub matches: BTreeMap<NodeUid, Fit>,
    /// How many targets may be unavailable at one time.
    pub max_unavailable: Limit,
    /// How many may stage, or wait staged, before it is their turn. Without it none does: no more than `max_unavailable` are on
    /// their way at one time.
    pub max_staging: Option<Limit>,
    /// With so many failures it halts.
    pub max_failures: u32,
}

/// What an upgrade means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Not known yet.
    Pending,
    /// A rule forbids it.
    Rejected,
    /// This image.
    Image(ImageId),
    /// This image, which was blocked since: what is on its way ends, no further node is started.
    Blocked(ImageId),
}

impl Resolution {
    /// The image, where there is one.
    #[must_use]
    pub fn image(&self) -> Option<&ImageId> {
        match self {
            Self::Image(image) | Self::Blocked(image) => Some(image),
            Self::Pending | Self::Rejected => None,
        }
    }
}

/// What an upgrade's image is to one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fit {
    /// The node runs that version.
    Runs,
    /// The node may go there, or only the node itself can tell.
    Follows,
    /// A rule forbids it for this node.
    Refused(Failure),
}

/// Why something failed or was refused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// One word.
    pub reason: String,
    /// A sentence.
    pub message: String,
}

/// One node's part of an upgrade, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Which.
    pub uid: ProgressUid,
    /// Its name.
    pub name: String,
    /// The upgrade that it was made for; none where it was made by hand.
    pub upgrade: Option<UpgradeUid>,
    /// The node that it is for.
    pub node: NodeUid,
    /// The image that it asks for.
    pub image: ImageId,
    /// How far the node may go.
    pub action: Action,
    /// The attempt that it asks for.
    pub attempt: u32,
    /// The upgrade's attempt that this one belongs to.
    pub upgrade_attempt: u32,
    /// An operator holds this one node.
    pub suspended: bool,
    /// Our finalizer is on it: this attempt was activated, and nobody has seen the end of that yet.
    pub activated: Option<u32>,
    /// It is being deleted.
    pub deleting: bool,
    /// The node runs the version that this asks for.
    pub runs_target: bool,
    /// What the agent said last, if it said anything.
    pub status: Option<Status>,
}

/// How far a node may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Stage the image and wait.
    Stage,
    /// Also drain, restart, confirm or go back.
    Activate,
}

/// What an agent said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The attempt that it speaks of. An agent speaks of an attempt only when all earlier ones are over on its node, with our
    /// cordon taken back.
    pub attempt: u32,
    /// How far it is.
    pub at: At,
    /// When it ended, seconds; only compared with that of others.
    pub ended: Option<i64>,
    /// Why it failed or was refused.
    pub failure: Failure,
}

/// How far an attempt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Anywhere before the image is staged.
    Before,
    /// The image is staged.
    Staged,
    /// Anywhere behind that, or not known.
    Leaving,
    /// It is over.
    Ended(End),
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The image runs, proven.
    Completed,
    /// The trial did not hold; what ran before runs again.
    RolledBack,
    /// It could not be done.
    Failed,
    /// It was not tried: a rule forbids it.
    Refused,
}

impl Progress {
    /// How far the attempt is that is asked for; `Before` while the agent has not spoken of it.
    #[must_use]
    pub fn at(&self) -> At {
        match &self.status {
            Some(status) if status.attempt == self.attempt => status.at,
            _ => At::Before,
        }
    }

    /// How the attempt ended that is asked for.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        match self.at() {
            At::Ended(end) => Some(end),
            At::Before | At::Staged | At::Leaving => None,
        }
    }

    /// Whether nothing of an attempt is left on the node: it ended, or the agent has taken up a later one.
    pub(super) fn over(&self, attempt: u32) -> bool {
        self.status.as_ref().is_some_and(|status| {
            let ended = matches!(status.at, At::Ended(_));
            status.attempt > attempt || (status.attempt == attempt && ended)
        })
    }

    /// Whether the node may be away on its account.
    pub(super) fn under_way(&self) -> bool {
        (self.action == Action::Activate && self.end().is_none())
            || self.activated.is_some_and(|attempt| !self.over(attempt))
    }
}

/// A place in the roll-out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The node that holds it.
    pub node: NodeUid,
    /// Its name.
    pub node_name: String,
    /// What it was claimed for; none where that cannot be read, and then the place is held as long as there is that Node.
    pub holder: Option<Holder>,
}

/// What a place was claimed for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The upgrade.
    pub upgrade: UpgradeUid,
    /// The progress object.
    pub progress: ProgressUid,
    /// Its attempt.
    pub attempt: u32,
}
