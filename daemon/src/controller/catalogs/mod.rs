//! Catalogs: from the document itself, from ConfigMaps, from servers.

mod kept;
mod url;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use slotd_crds::api::{CatalogSource, OSUpgrade};
use slotd_crds::catalog::{Catalog, CatalogError, ConfigMapName, INLINE_LIMIT, LIMIT, content};
use slotd_crds::resolve::Rejection;
use tokio::sync::Notify;

use super::watches::{Followed, Watches};
use kept::Keeper;
use url::Fetcher;

/// Why a catalog cannot be read now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trouble {
    /// For a condition's reason.
    pub(super) reason: &'static str,
    /// For its message.
    pub(super) message: String,
}

/// What there is of a catalog.
#[derive(Debug, Clone)]
pub(super) enum Reading {
    /// Nothing yet.
    Unknown,
    /// What an earlier leader had last, before the server was asked: good enough to know what is blocked, not to choose by.
    Kept(Arc<Catalog>),
    /// The catalog, and why there is no newer one, where it could not be read again.
    Read(Arc<Catalog>, Option<Trouble>),
    /// It could not be read.
    Unreachable(Trouble),
    /// What was read is no catalog.
    Unusable(Rejection),
}

impl Reading {
    fn of(parsed: Result<Catalog, CatalogError>) -> Self {
        match parsed {
            Ok(catalog) => Self::Read(Arc::new(catalog), None),
            Err(error) => Self::Unusable(error.into()),
        }
    }

    /// The catalog, if there is one.
    pub(super) fn catalog(&self) -> Option<&Catalog> {
        match self {
            Self::Read(catalog, _) | Self::Kept(catalog) => Some(catalog),
            _ => None,
        }
    }
}

/// All catalogs that upgrades name.
pub(super) struct Catalogs {
    namespace: String,
    changed: Arc<Notify>,
    /// By what they were read from, so that each is parsed once.
    parsed: BTreeMap<String, Reading>,
    /// The last good one of each ConfigMap.
    kept: BTreeMap<(String, String), Arc<Catalog>>,
    fetchers: BTreeMap<String, Fetcher>,
    keeper: Keeper,
}

impl Catalogs {
    pub(super) fn new(client: Client, namespace: &str, changed: Arc<Notify>) -> Self {
        Self {
            namespace: namespace.to_owned(),
            changed,
            parsed: BTreeMap::new(),
            kept: BTreeMap::new(),
            fetchers: BTreeMap::new(),
            keeper: Keeper::new(client, namespace),
        }
    }

    /// Lets go of everything that is fetched: only who leads fetches.
    pub(super) fn pause(&mut self) {
        self.fetchers.clear();
    }

    /// Reads the catalogs of all upgrades, each by the upgrade's uid.
    pub(super) fn read(
        &mut self,
        upgrades: &[Arc<OSUpgrade>],
        watches: &mut Watches,
    ) -> BTreeMap<String, Reading> {
        let sources: Vec<_> = upgrades
            .iter()
            .filter_map(|upgrade| Some((upgrade, upgrade.spec.catalog.as_ref()?)))
            .collect();
        let names: Vec<_> = sources
            .iter()
            .filter_map(|(_, source)| source.config_map.as_deref())
            .map(|name| ConfigMapName::read(name, &self.namespace))
            .collect();
        watches.follow(&names);
        self.kept.retain(|key, _| {
            names
                .iter()
                .any(|name| key.0 == name.namespace && key.1 == name.name)
        });
        let urls: Vec<_> = sources
            .iter()
            .filter_map(|(_, source)| source.url.as_deref())
            .collect();
        self.keeper.want(&urls);
        self.fetchers.retain(|url, _| urls.contains(&url.as_str()));
        let mut used = BTreeMap::new();
        let mut readings = BTreeMap::new();
        for (upgrade, source) in sources {
            let reading = self.one(upgrade, source, watches, &mut used);
            readings.insert(upgrade.metadata.uid.clone().unwrap_or_default(), reading);
        }
        self.parsed = used;
        readings
    }

    fn one(
        &mut self,
        upgrade: &OSUpgrade,
        source: &CatalogSource,
        watches: &Watches,
        used: &mut BTreeMap<String, Reading>,
    ) -> Reading {
        if let Some(text) = &source.inline {
            let key = format!("inline/{}", upgrade.spec.resolution_digest());
            return self.parse(key, used, || Catalog::parse(text.as_bytes(), INLINE_LIMIT));
        }
        if let Some(name) = &source.config_map {
            let name = ConfigMapName::read(name, &self.namespace);
            let shown = format!("{}/{}", name.namespace, name.name);
            return match watches.config_map(&name) {
                Followed::Unknown => Reading::Unknown,
                Followed::Unreadable(why) => self.kept(
                    &name,
                    Trouble {
                        reason: "ConfigMapUnreadable",
                        message: format!("the ConfigMap {shown}: {why}"),
                    },
                ),
                Followed::Missing => self.kept(
                    &name,
                    Trouble {
                        reason: "ConfigMapNotFound",
                        message: format!("there is no ConfigMap {shown}"),
                    },
                ),
                Followed::Held(config_map) => self.config_map(&name, &config_map, used),
            };
        }
        if let Some(url) = &source.url {
            let (changed, keeper) = (&self.changed, &self.keeper);
            let fetcher = self
                .fetchers
                .entry(url.clone())
                .or_insert_with(|| Fetcher::start(url, changed.clone(), keeper.clone()));
            return fetcher.reading();
        }
        Reading::Unusable(Rejection {
            reason: slotd_crds::resolve::Reason::NoCatalog,
            message: "the catalog names none of URL, ConfigMap and inline".to_owned(),
        })
    }

    fn config_map(
        &mut self,
        name: &ConfigMapName,
        config_map: &ConfigMap,
        used: &mut BTreeMap<String, Reading>,
    ) -> Reading {
        let version = config_map
            .metadata
            .resource_version
            .as_deref()
            .unwrap_or_default();
        let key = format!("{}/{}/{version}", name.namespace, name.name);
        let reading = self.parse(key, used, || Catalog::parse(content(config_map)?, LIMIT));
        match reading {
            Reading::Read(catalog, _) => {
                self.kept
                    .insert((name.namespace.clone(), name.name.clone()), catalog.clone());
                Reading::Read(catalog, None)
            }
            Reading::Unusable(rejection) => {
                match self.kept.get(&(name.namespace.clone(), name.name.clone())) {
                    Some(catalog) => Reading::Read(catalog.clone(), Some(unreadable(&rejection))),
                    None => Reading::Unusable(rejection),
                }
            }
            other => other,
        }
    }

    fn kept(&self, name: &ConfigMapName, trouble: Trouble) -> Reading {
        match self.kept.get(&(name.namespace.clone(), name.name.clone())) {
            Some(catalog) => Reading::Read(catalog.clone(), Some(trouble)),
            None => Reading::Unreachable(trouble),
        }
    }

    fn parse(
        &self,
        key: String,
        used: &mut BTreeMap<String, Reading>,
        parse: impl FnOnce() -> Result<Catalog, CatalogError>,
    ) -> Reading {
        let reading = used.get(&key).or_else(|| self.parsed.get(&key)).cloned();
        let reading = reading.unwrap_or_else(|| Reading::of(parse()));
        used.insert(key, reading.clone());
        reading
    }
}

/// Why the last good catalog is used and not what is there now.
fn unreadable(rejection: &Rejection) -> Trouble {
    Trouble {
        reason: "CatalogUnreadable",
        message: format!("the last good catalog is used: {}", rejection.message),
    }
}
