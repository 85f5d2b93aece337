//! The last good catalogs from servers, kept in one ConfigMap for the next leader: a server that is away then is no reason to know
//! less than the one before did, above all which versions are blocked.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use serde::{Deserialize, Serialize};
use slotd_crds::catalog::LIMIT;
use slotd_crds::names::{CATALOGS_CONFIG_MAP, url_digest};
use tracing::warn;

/// What this writes, and the oldest that reads it.
const VERSION: u32 = 1;

/// Most bytes of all catalogs together, compressed: a ConfigMap holds 1 MiB, keys and all.
const SPACE: usize = 900 << 10;

/// A catalog's text takes more as JSON, of a line's end two bytes; one that takes more still is none of ours.
const EXPANDED: usize = 8 * LIMIT;

/// How often a write is begun anew where somebody else wrote in between.
const TRIES: usize = 4;

/// A catalog as it was served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Kept {
    version: u32,
    min_reader: u32,
    /// What the server called it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tag: Option<String>,
    pub(super) text: String,
}

impl Kept {
    pub(super) fn new(text: String, tag: Option<String>) -> Self {
        Self {
            version: VERSION,
            min_reader: VERSION,
            tag,
            text,
        }
    }

    fn pack(&self) -> io::Result<Vec<u8>> {
        zstd::encode_all(serde_json::to_vec(self)?.as_slice(), 9)
    }

    /// What was kept; none where it cannot be read, which is as if nothing were.
    fn unpack(packed: &[u8]) -> Option<Self> {
        let limit = u64::try_from(EXPANDED).unwrap_or(u64::MAX);
        let expanded = zstd::Decoder::new(packed).ok()?.take(limit);
        let kept: Self = serde_json::from_reader(expanded).ok()?;
        (kept.min_reader <= VERSION).then_some(kept)
    }
}

/// Keeps catalogs.
#[derive(Clone)]
pub(super) struct Keeper {
    config_maps: Api<ConfigMap>,
    /// The keys of those that an upgrade names.
    wanted: Arc<Mutex<BTreeSet<String>>>,
    /// Catalogs are fetched side by side and written one after the other.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Keeper {
    pub(super) fn new(client: Client, namespace: &str) -> Self {
        Self {
            config_maps: Api::namespaced(client, namespace),
            wanted: Arc::default(),
            turn: Arc::default(),
        }
    }

    /// Which are to be kept; what was kept of others goes with the next write.
    pub(super) fn want(&self, urls: &[&str]) {
        let keys = urls.iter().map(|url| url_digest(url)).collect();
        *self.wanted.lock().unwrap_or_else(PoisonError::into_inner) = keys;
    }

    /// What was kept of a URL.
    pub(super) async fn load(&self, url: &str) -> Result<Option<Kept>, kube::Error> {
        let held = self.config_maps.get_opt(CATALOGS_CONFIG_MAP).await?;
        let packed = held
            .and_then(|map| map.binary_data)
            .and_then(|mut data| data.remove(&url_digest(url)));
        Ok(packed.and_then(|packed| Kept::unpack(&packed.0)))
    }

    /// Keeps a catalog, unless that is kept already.
    pub(super) async fn store(&self, url: &str, kept: &Kept) -> Result<(), kube::Error> {
        let _turn = self.turn.lock().await;
        let key = url_digest(url);
        for _ in 0..TRIES {
            let held = self.config_maps.get_opt(CATALOGS_CONFIG_MAP).await?;
            let wanted = self
                .wanted
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            let new = held.is_none();
            let Some(map) = with(held, &key, kept, &wanted)? else {
                return Ok(());
            };
            let parameters = PostParams::default();
            let written = if new {
                self.config_maps.create(&parameters, &map).await
            } else {
                self.config_maps
                    .replace(CATALOGS_CONFIG_MAP, &parameters, &map)
                    .await
            };
            match written {
                Err(kube::Error::Api(status))
                    if status.is_conflict() || status.is_already_exists() => {}
                other => return other.map(drop),
            }
        }
        // Whoever writes so often keeps it as well.
        Ok(())
    }
}

/// The ConfigMap with a catalog in it, and without what nobody wants any more; none where it says the same already.
fn with(
    held: Option<ConfigMap>,
    key: &str,
    kept: &Kept,
    wanted: &BTreeSet<String>,
) -> Result<Option<ConfigMap>, kube::Error> {
    let mut map = held.unwrap_or_else(|| ConfigMap {
        metadata: ObjectMeta {
            name: Some(CATALOGS_CONFIG_MAP.to_owned()),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    });
    let before = map.binary_data.take().unwrap_or_default();
    let mut after: BTreeMap<_, _> = before.clone();
    after.retain(|held, _| held == key || wanted.contains(held));
    let same = after
        .get(key)
        .and_then(|packed| Kept::unpack(&packed.0))
        .is_some_and(|held| held.text == kept.text);
    if !same {
        // Not the one before in its place: that is the last good one no more.
        after.remove(key);
        let packed = kept
            .pack()
            .map_err(|error| kube::Error::SerdeError(serde_json::Error::io(error)))?;
        let others: usize = after.values().map(|packed| packed.0.len()).sum();
        if others + packed.len() <= SPACE {
            after.insert(key.to_owned(), ByteString(packed));
        } else {
            warn!(
                bytes = packed.len(),
                "a catalog is too large to be kept for the next leader beside the others"
            );
        }
    }
    if after == before {
        return Ok(None);
    }
    map.binary_data = Some(after);
    Ok(Some(map))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Read;

    use k8s_openapi::ByteString;

    use super::{Kept, SPACE, with};

    fn kept(text: &str) -> Kept {
        Kept::new(text.to_owned(), Some("\"one\"".to_owned()))
    }

    fn wanted(keys: &[&str]) -> BTreeSet<String> {
        keys.iter().map(|key| (*key).to_owned()).collect()
    }

    #[test]
    fn a_catalog_comes_back_as_it_was_kept_and_what_cannot_be_read_does_not() {
        let whole = "stable: v1\n".repeat(90_000);
        let packed = kept(&whole).pack().unwrap();
        assert_eq!(Kept::unpack(&packed), Some(kept(&whole)));
        assert_eq!(Kept::unpack(&packed[..packed.len() - 9]), None);
        assert_eq!(Kept::unpack(b"stable: v1"), None);
        let later = Kept {
            min_reader: 2,
            ..kept("x")
        };
        assert_eq!(Kept::unpack(&later.pack().unwrap()), None);
        // A frame that expands without end is read no further than a catalog may take.
        let bomb = zstd::encode_all(std::io::repeat(b' ').take(1 << 27), 3).unwrap();
        assert_eq!(Kept::unpack(&bomb), None);
    }

    #[test]
    fn it_is_written_on_change_alone_and_takes_no_more_than_there_is_room_for() {
        let all = wanted(&["a", "b"]);
        let first = with(None, "a", &kept("one"), &all).unwrap().unwrap();
        assert_eq!(
            with(Some(first.clone()), "a", &kept("one"), &all).unwrap(),
            None
        );
        let other_tag = Kept::new("one".to_owned(), None);
        assert_eq!(
            with(Some(first.clone()), "a", &other_tag, &all).unwrap(),
            None
        );
        let second = with(Some(first), "b", &kept("two"), &all).unwrap().unwrap();
        let keys = |map: &super::ConfigMap| -> Vec<String> {
            map.binary_data
                .iter()
                .flatten()
                .map(|(key, _)| key.clone())
                .collect()
        };
        assert_eq!(keys(&second), ["a", "b"]);
        // What nobody names any more goes.
        let third = with(Some(second.clone()), "b", &kept("three"), &wanted(&["b"]));
        assert_eq!(keys(&third.unwrap().unwrap()), ["b"]);
        // The others have the room: the one before does not stay for this one.
        let mut full = second;
        let data = full.binary_data.as_mut().unwrap();
        data.insert("a".to_owned(), ByteString(vec![0; SPACE - 20]));
        let fourth = with(Some(full), "b", &kept("four"), &all).unwrap().unwrap();
        assert_eq!(keys(&fourth), ["a"]);
    }
}
