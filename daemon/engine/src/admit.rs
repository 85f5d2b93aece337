//! Whether a request can be taken now, so that whoever asks is told at once.

use thiserror::Error;

use crate::record::Record;
use crate::table::{Phase, Point};
use crate::world::{Digest, Request, Slot};

/// Why a request is not taken.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// Another upgrade is under way.
    #[error("upgrade {id} is under way ({phase:?}, slot {slot})")]
    Busy {
        /// Its id.
        id: u64,
        /// Its phase.
        phase: Phase,
        /// Its target.
        slot: Slot,
    },
    /// The trial boot has to be confirmed or rolled back first.
    #[error("upgrade {id} runs its trial boot: it is confirmed or rolled back first")]
    TrialRunning {
        /// Its id.
        id: u64,
    },
    /// There is no staged image.
    #[error("no image is staged")]
    NothingStaged,
    /// No upgrade of this id is under way.
    #[error("no upgrade {id} is under way")]
    NoSuchUpgrade {
        /// The id that was asked for.
        id: u64,
    },
    /// The image failed here before, and nobody asked for it anew.
    #[error("image {digest} failed here before: {reason}")]
    FailedBefore {
        /// The digest that was recognised.
        digest: Digest,
        /// What happened.
        reason: String,
    },
}

/// Whether `request` can be taken where the record stands.
///
/// # Errors
///
/// The reason why it cannot.
pub fn admit(record: &Record, request: &Request) -> Result<(), Refusal> {
    let upgrade = record.upgrade.as_ref().filter(|_| !record.at.is_rest());
    if let Request::Install(image) | Request::Retarget(image) = request {
        let digests: Vec<&Digest> = image
            .checksum
            .iter()
            .chain(image.expanded_checksum.iter())
            .collect();
        let known = record.refused(&digests).filter(|_| !image.asked_anew);
        if let Some(refused) = known {
            return Err(Refusal::FailedBefore {
                digest: refused.digest.clone(),
                reason: refused.reason.clone(),
            });
        }
    }
    let Some(upgrade) = upgrade else {
        return match request {
            Request::Install(_) | Request::Retarget(_) | Request::Rollback { .. } => Ok(()),
            Request::Activate { .. } | Request::Hold | Request::Renew(_) => {
                Err(Refusal::NothingStaged)
            }
            Request::Cancel(id) => Err(Refusal::NoSuchUpgrade { id: *id }),
        };
    };
    let busy = Refusal::Busy {
        id: upgrade.id,
        phase: record.phase(),
        slot: upgrade.target,
    };
    let trial = record.phase() == Phase::Confirming;
    match request {
        Request::Cancel(id) if *id != upgrade.id => Err(Refusal::NoSuchUpgrade { id: *id }),
        Request::Cancel(_) | Request::Retarget(_) if trial => {
            Err(Refusal::TrialRunning { id: upgrade.id })
        }
        Request::Cancel(_) | Request::Retarget(_) => Ok(()),
        Request::Activate { .. } if record.at == Point::Staged => Ok(()),
        Request::Hold if record.at == Point::Drain => Ok(()),
        Request::Renew(_) if matches!(record.at, Point::Staged | Point::Drain) => Ok(()),
        Request::Install(_)
        | Request::Activate { .. }
        | Request::Hold
        | Request::Renew(_)
        | Request::Rollback { .. } => Err(busy),
    }
}
