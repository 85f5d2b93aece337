//! The record as bytes: JSON with the version that wrote it and the oldest one that can read it.
//!
//! Two OS versions share the file. The older one accepts what the newer wrote as long as `min_reader`
//! allows it, and ignores fields that it does not know.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::record::Record;
use crate::table::Point;

/// The format that this engine writes.
pub const VERSION: u32 = 1;

/// The oldest engine that can read what this one writes.
pub const MIN_READER: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Envelope<T> {
    version: u32,
    min_reader: u32,
    record: T,
}

/// The head alone, read first: a newer record may hold what we cannot read.
#[derive(Deserialize)]
struct Head {
    version: u32,
    min_reader: u32,
}

/// Why bytes are no record.
#[derive(Debug, Error)]
pub enum DecodeError {
    /// There are none (a crash of another writer, a full disk).
    #[error("the state file is empty")]
    Empty,
    /// They were not written by us, or were damaged.
    #[error("the state file is damaged: {reason}")]
    Garbage {
        /// What is wrong, and where.
        reason: String,
        /// The parser's own error, if it was one.
        #[source]
        source: Option<serde_json::Error>,
    },
    /// A newer version wrote them and says that we cannot read them.
    #[error(
        "the state file has version {version} and needs a reader of version {min_reader}; this one \
         is {VERSION}"
    )]
    Future {
        /// The version that wrote it.
        version: u32,
        /// The oldest version that can read it.
        min_reader: u32,
    },
}

/// The record as the bytes to be stored.
///
/// # Errors
///
/// Only if the record cannot be expressed as JSON, which would be a defect.
pub fn encode(record: &Record) -> Result<Vec<u8>, serde_json::Error> {
    let envelope = Envelope {
        version: VERSION,
        min_reader: MIN_READER,
        record,
    };
    let mut bytes = serde_json::to_vec_pretty(&envelope)?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// The record out of stored bytes.
///
/// # Errors
///
/// [`DecodeError`], which tells an empty file, a damaged one and a newer one apart.
pub fn decode(bytes: &[u8]) -> Result<Record, DecodeError> {
    if bytes
        .iter()
        .all(|byte| byte.is_ascii_whitespace() || *byte == 0)
    {
        return Err(DecodeError::Empty);
    }
    let head: Head = serde_json::from_slice(bytes).map_err(garbage)?;
    let future = DecodeError::Future {
        version: head.version,
        min_reader: head.min_reader,
    };
    if head.min_reader > VERSION {
        return Err(future);
    }
    let record = match serde_json::from_slice::<Envelope<Record>>(bytes) {
        Ok(envelope) => envelope.record,
        // Better kept and refused than called damaged: a newer version wrote it.
        Err(_) if head.version > VERSION => return Err(future),
        Err(source) => return Err(garbage(source)),
    };
    if record.upgrade.is_none() && record.at != Point::Idle {
        let reason = format!("it stands at {:?} without an upgrade", record.at);
        return Err(DecodeError::Garbage {
            reason,
            source: None,
        });
    }
    Ok(record)
}

fn garbage(source: serde_json::Error) -> DecodeError {
    DecodeError::Garbage {
        reason: source.to_string(),
        source: Some(source),
    }
}
