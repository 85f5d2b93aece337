//! The durable record: where an upgrade stands, and what must not be forgotten.
//!
//! Two OS versions read these types: fields are only ever added, each with a default.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::table::{Phase, Point};
use crate::world::{Digest, Slot};

/// How many images that failed here are remembered.
pub(crate) const REMEMBERED: usize = 16;

/// How many ended attempts of the cluster are remembered.
pub(crate) const TASKS: usize = 16;

/// How many finished upgrades wait for the history at most.
pub(crate) const UNREPORTED: usize = 16;

/// What to do about an error. The same words in every crate of the project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ErrorKind {
    /// Temporary: trying again may help.
    Retry,
    /// The input or the request is refused.
    Reject,
    /// Refused to protect the node.
    Unsafe,
    /// The configuration has to change.
    Configuration,
    /// A defect of ours.
    Bug,
}

/// Why something ended badly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// What to do about it.
    pub kind: ErrorKind,
    /// The reason, one sentence for people.
    pub reason: String,
    /// The reason in one word for programs, such as `VersionMismatch`; none where only the sentence says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The health check that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<String>,
    /// What that check printed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}

impl Failure {
    /// A failure without a health check behind it.
    #[must_use]
    pub fn new(kind: ErrorKind, reason: impl Into<String>) -> Self {
        Self {
            kind,
            reason: reason.into(),
            code: None,
            check: None,
            output: None,
        }
    }

    /// The same with its reason in one word.
    #[must_use]
    pub fn coded(self, code: &str) -> Self {
        Self {
            code: Some(code.to_owned()),
            ..self
        }
    }
}

/// What asked for an upgrade from outside of the node: one attempt of one object in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Task {
    /// The object's uid.
    pub uid: String,
    /// The number of the attempt.
    #[serde(default)]
    pub attempt: u32,
    /// The version that is to run.
    #[serde(default)]
    pub version: String,
}

/// How a node is drained before its reboot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Drain {
    /// Seconds from the cordon until the pods have to be gone.
    pub timeout: u64,
    /// What happens then: a reboot with what still runs, or none.
    #[serde(default)]
    pub force: bool,
}

/// The image that is asked for.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageRequest {
    /// The source as it may be shown: no user, no query.
    pub source: String,
    /// The source as it can be opened again after a restart; `None` when it cannot (a pipe).
    /// May hold secrets: the file that holds the record is for root alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locator: Option<String>,
    /// The digest of the file as published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<Digest>,
    /// The digest of the expanded image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expanded_checksum: Option<Digest>,
    /// The expanded size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The version that it is said to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Stop once staged, until asked to activate.
    #[serde(default)]
    pub stage_only: bool,
    /// An older version than the running one is wanted.
    #[serde(default)]
    pub allow_downgrade: bool,
    /// The running version is wanted again.
    #[serde(default)]
    pub allow_same_version: bool,
    /// An image without an enabled agent is wanted.
    #[serde(default)]
    pub allow_no_agent: bool,
    /// Asked for by somebody, and not tried by itself: then an image that failed here before may be
    /// tried again.
    #[serde(default)]
    pub asked_anew: bool,
    /// What in the cluster asked for it; `None` where somebody on the node did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Task>,
}

impl fmt::Debug for ImageRequest {
    /// All but the locator, which may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageRequest")
            .field("source", &self.source)
            .field("locator", &self.locator.as_ref().map(|_| "***"))
            .field("checksum", &self.checksum)
            .field("expanded_checksum", &self.expanded_checksum)
            .field("size", &self.size)
            .field("version", &self.version)
            .field("stage_only", &self.stage_only)
            .field("allow_downgrade", &self.allow_downgrade)
            .field("allow_same_version", &self.allow_same_version)
            .field("allow_no_agent", &self.allow_no_agent)
            .field("asked_anew", &self.asked_anew)
            .field("task", &self.task)
            .finish()
    }
}

/// The image that was written and read back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Image {
    /// The digest of the expanded image, as read back.
    pub digest: Digest,
    /// The digest of the file as published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<Digest>,
    /// The expanded size in bytes.
    pub size: u64,
    /// The version that the image names itself, known after the look into it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// What an upgrade sets out to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// Install an image in the other slot.
    Install,
    /// Go back to the other slot, whose image is good.
    Rollback,
    /// A trial boot that no record told of: it is confirmed or rolled back like any other.
    Adopted,
}

/// How an upgrade that is being taken back will have ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Ending {
    /// Somebody asked to stop.
    Cancelled,
    /// It failed; the upgrade's `failure` says why.
    Failed,
    /// Its target was edited: this comes next.
    Replaced(Box<ImageRequest>),
}

/// One upgrade, from the request to its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Upgrade {
    /// Its number on this node.
    pub id: u64,
    /// What it sets out to do.
    pub kind: Kind,
    /// The slot that is to run at the end.
    pub target: Slot,
    /// The image that is asked for; none for a rollback and an adopted trial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<ImageRequest>,
    /// The image as written; known once it was read back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// The image of the slot that a deliberate rollback leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<Image>,
    /// The version of the slot that a deliberate rollback goes back to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub back_to: Option<String>,
    /// How the node is drained before the reboot, once that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
    /// How often the staging was begun.
    #[serde(default)]
    pub attempt: u32,
    /// How often the present point was tried in vain.
    #[serde(default)]
    pub tries: u32,
    /// Reboots after which the loader had not started the target.
    #[serde(default)]
    pub restarts: u32,
    /// Trial boots seen.
    #[serde(default)]
    pub trials: u32,
    /// Trial boots that the loader granted.
    #[serde(default)]
    pub granted: u32,
    /// The boot in which the activation was begun, later the trial boot's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// Why it failed, or what it stumbled over last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// How it will have ended, while it is being taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ending: Option<Ending>,
    /// When it began, seconds since 1970.
    pub started_at: u64,
    /// When it ended, seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<u64>,
}

impl Upgrade {
    /// The version that it is about: the image's own, else the one that was asked for.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        let own = self
            .image
            .as_ref()
            .and_then(|image| image.version.as_deref());
        own.or_else(|| self.request.as_ref()?.version.as_deref())
            .or(self.back_to.as_deref())
    }
}

/// How an upgrade ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Result {
    /// The target runs and the boot loader calls it good.
    Completed,
    /// The node went back to the slot that it came from.
    RolledBack,
    /// It ended before the target was tried.
    Failed,
    /// Somebody stopped it.
    Cancelled,
}

/// A finished upgrade, as the history keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ended {
    /// The upgrade's number on this node.
    pub id: u64,
    /// What it set out to do.
    pub kind: Kind,
    /// How it ended.
    pub result: Result,
    /// The slot that was to run.
    pub slot: Slot,
    /// The version that it was about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The expanded image's digest, where it was known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// The source as it may be shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Why it did not complete, or what is to be known about its success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// What in the cluster had asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Task>,
    /// When it began, seconds since 1970.
    pub started_at: u64,
    /// When it ended, seconds since 1970.
    pub ended_at: u64,
}

/// An image that failed or was rolled back here and is not tried again by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusedImage {
    /// The digest of the expanded image.
    pub digest: Digest,
    /// The digest of the file as published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<Digest>,
    /// Its version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// What happened.
    pub reason: String,
}

/// All that must survive a crash, a restart and a change of slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// The number that was given last.
    #[serde(default)]
    pub last_id: u64,
    /// Where the upgrade stands.
    pub at: Point,
    /// The upgrade under way, or the last one where it ended at a rest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgrade: Option<Upgrade>,
    /// The result of the last finished upgrade.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Ended>,
    /// Finished upgrades that the history does not have yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreported: Vec<Ended>,
    /// Images that failed here, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedImage>,
    /// How the last attempts ended that the cluster had asked for, oldest first: none of them is begun again, whether or
    /// not the cluster has heard of its end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<Ended>,
}

impl Default for Record {
    /// A node on which nothing ever happened.
    fn default() -> Self {
        Self {
            last_id: 0,
            at: Point::Idle,
            upgrade: None,
            last: None,
            unreported: Vec::new(),
            refused: Vec::new(),
            tasks: Vec::new(),
        }
    }
}

impl Record {
    /// The phase that is shown.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.at.phase()
    }

    /// How this attempt ended, if it did.
    #[must_use]
    pub fn ended(&self, task: &Task) -> Option<&Ended> {
        self.tasks
            .iter()
            .rev()
            .find(|ended| ended.task.as_ref() == Some(task))
    }

    /// The upgrade under way, if one is.
    #[must_use]
    pub fn under_way(&self) -> Option<&Upgrade> {
        self.upgrade.as_ref().filter(|_| !self.at.is_rest())
    }

    /// The remembered failure of an image, found by either of its digests.
    #[must_use]
    pub fn refused(&self, digests: &[&Digest]) -> Option<&RefusedImage> {
        self.refused.iter().find(|image| {
            digests
                .iter()
                .any(|digest| **digest == image.digest || image.published.as_ref() == Some(*digest))
        })
    }
}
