//! Which object counts, and what it wants of this node. Pure.

use slotd_crds::api::{Action, Drain as DrainSpec, OSUpgradeProgress, OnTimeout, ProgressPhase};
use slotd_crds::image::{check_web_url, is_checksum};
use slotd_engine::{Assignment, Drain, ImageRequest, Phase, Record, Refusal, Request, Task, admit};
use slotd_image::ImageSource;

use crate::agent::{InstallRequest, UpgradeId};
use crate::staging::{Wanted, may_follow, same_version};

/// What runs, as far as a wish is judged by it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Running {
    /// The version of the booted slot.
    pub(super) version: Option<String>,
    /// Whether the boot loader calls the booted slot good.
    pub(super) good: bool,
}

/// What comes of a wish before anything is begun for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Judgement {
    /// It is begun, or gone on with.
    Take(Box<Assignment>),
    /// Nothing is to be done: the version runs, proven.
    Runs,
    /// A rule forbids it.
    Reject {
        /// In one word.
        code: String,
        /// For people.
        message: String,
    },
    /// It ended, and nobody here remembers how.
    Forgotten,
    /// It is not its turn.
    Wait(String),
}

impl Judgement {
    /// What the node is to be brought to, where the cluster wants something of it.
    pub(super) fn wanted(&self) -> Option<&Assignment> {
        match self {
            Self::Take(assignment) => Some(assignment),
            _ => None,
        }
    }
}

/// The attempt that an object asks for.
pub(super) fn task(object: &OSUpgradeProgress) -> Task {
    Task {
        uid: object.metadata.uid.clone().unwrap_or_default(),
        attempt: object.spec.attempt.unwrap_or(0),
        version: object.spec.image.version.clone(),
    }
}

/// Whether the object itself says that this attempt ended.
pub(super) fn says_ended(object: &OSUpgradeProgress) -> bool {
    phase_now(object).is_some_and(ProgressPhase::is_end)
}

/// The phase in an object's status, where it is one of the attempt and the version that the object asks for.
fn phase_now(object: &OSUpgradeProgress) -> Option<&ProgressPhase> {
    let status = object.status.as_ref()?;
    let version = status.target_version.as_ref();
    let same = status.attempt.unwrap_or(0) == object.spec.attempt.unwrap_or(0)
        && version.is_none_or(|version| *version == object.spec.image.version);
    status.phase.as_ref().filter(|_| same)
}

/// Whether an object is meant for the Node with this uid.
pub(super) fn is_for(object: &OSUpgradeProgress, node_uid: &str) -> bool {
    object
        .spec
        .node_uid
        .as_ref()
        .is_none_or(|uid| uid == node_uid)
}

/// The object that counts: what is in flight ends first, then the youngest. Objects that ended, go away or mean another
/// Node do not count.
pub(super) fn choose<'a>(
    objects: &[&'a OSUpgradeProgress],
    node_uid: &str,
    record: &Record,
) -> Option<&'a OSUpgradeProgress> {
    let open: Vec<&OSUpgradeProgress> = objects
        .iter()
        .copied()
        .filter(|object| object.metadata.deletion_timestamp.is_none())
        .filter(|object| is_for(object, node_uid))
        .filter(|object| !says_ended(object) && record.ended(&task(object)).is_none())
        .collect();
    let begun = begun(record);
    let in_flight = open.iter().find(|object| {
        let far = !matches!(record.phase(), Phase::Staging | Phase::Staged);
        begun == object.metadata.uid.as_deref() && (far || object.spec.action == Action::Activate)
    });
    in_flight.copied().or_else(|| {
        open.into_iter().max_by(|one, other| {
            let age = |object: &OSUpgradeProgress| {
                let made = object.metadata.creation_timestamp.as_ref();
                made.map(|time| time.0)
            };
            age(one)
                .cmp(&age(other))
                .then_with(|| one.metadata.name.cmp(&other.metadata.name))
        })
    })
}

/// The uid of the object that the upgrade under way was begun for.
pub(super) fn begun(record: &Record) -> Option<&str> {
    let request = record.under_way()?.request.as_ref()?;
    request.task.as_ref().map(|task| task.uid.as_str())
}

/// What comes of the object that counts.
pub(super) fn judge(object: &OSUpgradeProgress, record: &Record, running: &Running) -> Judgement {
    let assignment = match assignment(object) {
        Ok(assignment) => assignment,
        Err(judgement) => return judgement,
    };
    if begun(record).is_some_and(|uid| object.metadata.uid.as_deref() == Some(uid)) {
        let edited = record
            .under_way()
            .is_some_and(|upgrade| upgrade.request.as_ref() != Some(&assignment.image));
        // What is asked now is not taken, and what was asked before must not go on in its place.
        if edited && let Err(refusal) = failed_before(record, &assignment) {
            return refusal;
        }
        return Judgement::Take(Box::new(assignment));
    }
    if let Some(upgrade) = record.under_way() {
        return Judgement::Wait(busy(upgrade.id));
    }
    let wanted = &object.spec.image.version;
    if let Some(version) = &running.version
        && same_version(version, wanted)
    {
        return if running.good {
            Judgement::Runs
        } else {
            Judgement::Wait(format!(
                "{version} runs, but the boot loader does not call its slot good"
            ))
        };
    }
    if went_down(object) {
        return Judgement::Forgotten;
    }
    let rules = Wanted {
        allow_downgrade: assignment.image.allow_downgrade,
        ..Wanted::default()
    };
    if let Err(failure) = may_follow(running.version.as_deref(), wanted, &rules) {
        return Judgement::Reject {
            code: failure.code.unwrap_or_else(|| "Rejected".to_owned()),
            message: format!(
                "version {wanted} is older than the running {}, and allowDowngrade is not set",
                running.version.as_deref().unwrap_or_default()
            ),
        };
    }
    if assignment.suspended {
        return Judgement::Wait("suspended".to_owned());
    }
    match failed_before(record, &assignment) {
        Err(refusal) => refusal,
        Ok(()) => Judgement::Take(Box::new(assignment)),
    }
}

/// Whether the node remembers the image as one that failed, and was not asked for it anew.
fn failed_before(record: &Record, assignment: &Assignment) -> Result<(), Judgement> {
    match admit(record, &Request::Install(assignment.image.clone())) {
        Err(refusal @ Refusal::FailedBefore { .. }) => Err(Judgement::Reject {
            code: "FailedBefore".to_owned(),
            message: format!("{refusal}; raise attempt to try it again"),
        }),
        // What else is in the way is over some time.
        Err(_) | Ok(()) => Ok(()),
    }
}

fn busy(id: UpgradeId) -> String {
    format!("upgrade {id}, which was asked for on the node itself, has to end first")
}

/// Whether the object says that the node went down for its trial boot in this attempt.
pub(super) fn went_down(object: &OSUpgradeProgress) -> bool {
    matches!(
        phase_now(object),
        Some(ProgressPhase::Rebooting | ProgressPhase::Confirming)
    )
}

/// The object in the engine's words.
fn assignment(object: &OSUpgradeProgress) -> Result<Assignment, Judgement> {
    let reject = |code: &str, message: String| Judgement::Reject {
        code: code.to_owned(),
        message,
    };
    let image = &object.spec.image;
    check_web_url(&image.url)
        .map_err(|problem| reject("InvalidURL", format!("image.url: {problem}")))?;
    let source = ImageSource::parse(&image.url)
        .map_err(|error| reject("InvalidURL", format!("image.url: {error}")))?;
    let checksum = |field: &str, text: &str| {
        let parsed = is_checksum(text).then(|| text.parse().ok()).flatten();
        parsed.ok_or_else(|| {
            reject(
                "InvalidChecksum",
                format!("image.{field} is not sha256: and 64 hexadecimal digits"),
            )
        })
    };
    let mut request = InstallRequest::new(source);
    request.checksum = Some(checksum("checksum", &image.checksum)?);
    if let Some(text) = &image.expanded_checksum {
        request.expanded_checksum = Some(checksum("expandedChecksum", text)?);
    }
    request.size = image.size;
    request.version = Some(image.version.clone());
    request.stage_only = true;
    request.allow_downgrade = object.spec.allow_downgrade.unwrap_or(false);
    // Raising the attempt is asking anew.
    request.unattended = object.spec.attempt.unwrap_or(0) == 0;
    Ok(Assignment {
        image: ImageRequest {
            task: Some(task(object)),
            ..request.to_engine()
        },
        // A word of a later release goes no further than what is surely allowed.
        activate: object.spec.action == Action::Activate,
        suspended: object.spec.suspend.unwrap_or(false),
        drain: drain(object.spec.drain.as_ref()),
    })
}

/// A timeout that cannot be read, which the API server refuses, is the default.
fn drain(spec: Option<&DrainSpec>) -> Drain {
    let spec = spec.cloned().unwrap_or_default();
    Drain {
        timeout: spec
            .timeout()
            .unwrap_or(DrainSpec::DEFAULT_TIMEOUT)
            .as_secs(),
        force: spec.on_timeout() == OnTimeout::Force,
    }
}
