//! The places: taken and given back in one write.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::{ObjectMeta, PostParams};
use slotd_crds::names::{PLACES_CONFIG_MAP, progress_name};
use slotd_crds::place::Place;
use slotd_engine::rollout::{self, NodeUid, Write};
use tracing::info;

use super::{Touched, Writing, late};

impl Writing<'_> {
    /// Takes and gives back places, all in one write.
    pub(super) async fn change_places(
        &mut self,
        writes: &[Write],
        fleet: &rollout::Fleet,
    ) -> Result<(), kube::Error> {
        let mut freed: BTreeSet<_> = writes
            .iter()
            .filter_map(|write| match write {
                Write::Free { node, .. } => Some(node.clone()),
                _ => None,
            })
            .collect();
        let planned = freed.len();
        if !freed.is_empty() {
            let asked = self.asked(fleet, &freed).await?;
            freed.retain(|node| asked.contains(node));
        }
        let mut claims: Vec<_> = writes
            .iter()
            .filter_map(|write| match write {
                Write::Claim(place) => Some(place),
                _ => None,
            })
            .collect();
        if freed.len() < planned {
            // They were planned on all of these being free.
            claims.clear();
        }
        if freed.is_empty() && claims.is_empty() {
            return Ok(());
        }
        let version = self
            .snapshot
            .places
            .as_ref()
            .and_then(|places| places.resource_version());
        let mut places = self
            .snapshot
            .places
            .as_deref()
            .cloned()
            .unwrap_or_else(|| ConfigMap {
                metadata: ObjectMeta {
                    name: Some(PLACES_CONFIG_MAP.to_owned()),
                    ..ObjectMeta::default()
                },
                ..ConfigMap::default()
            });
        let data = places.data.get_or_insert_default();
        data.retain(|node, _| !freed.contains(&NodeUid(node.clone())));
        for claim in &claims {
            let Some(holder) = &claim.holder else {
                continue;
            };
            let place = Place {
                node: claim.node_name.clone(),
                upgrade_uid: holder.upgrade.0.clone(),
                progress_uid: holder.progress.0.clone(),
                attempt: holder.attempt,
            };
            data.insert(
                claim.node.0.clone(),
                serde_json::to_string(&place).map_err(kube::Error::SerdeError)?,
            );
        }
        let parameters = PostParams::default();
        let written = match &version {
            Some(_) => {
                self.writer
                    .places
                    .replace(PLACES_CONFIG_MAP, &parameters, &places)
                    .await
            }
            None => self.writer.places.create(&parameters, &places).await,
        };
        if late(written)?.is_some() {
            for claim in &claims {
                info!(node = claim.node_name, "place taken");
            }
            for node in &freed {
                info!(
                    node = self
                        .snapshot
                        .node(node)
                        .map_or_else(|| node.0.clone(), |node| node.name_any()),
                    "place given back"
                );
            }
        }
        self.touched.insert(Touched::Places(version));
        Ok(())
    }

    /// Of the places that are to be given back those that are so by what the server itself says of their Nodes and progress objects.
    async fn asked(
        &self,
        fleet: &rollout::Fleet,
        freed: &BTreeSet<NodeUid>,
    ) -> Result<BTreeSet<NodeUid>, kube::Error> {
        let mut asked = self.snapshot.clone();
        for place in fleet
            .places
            .iter()
            .filter(|place| freed.contains(&place.node))
        {
            let name = self
                .snapshot
                .node(&place.node)
                .map_or_else(|| place.node_name.clone(), |node| node.name_any());
            let node = if name.is_empty() {
                None
            } else {
                self.writer.nodes.get_opt(&name).await?
            };
            asked.nodes.retain(|node| {
                node.name_any() != name && node.metadata.uid.as_ref() != Some(&place.node.0)
            });
            asked.nodes.extend(node.map(Arc::new));
            let Some(holder) = &place.holder else {
                continue;
            };
            let name = self.snapshot.object(&holder.progress).map_or_else(
                || progress_name(&holder.upgrade.0, &place.node.0),
                |object| object.name_any(),
            );
            let object = self.writer.progress.get_opt(&name).await?;
            asked.progress.retain(|object| object.name_any() != name);
            asked.progress.extend(object.map(Arc::new));
        }
        let free = rollout::frees(&asked.fleet(self.settled));
        Ok(free.into_iter().map(|(node, _)| node).collect())
    }
}
