//! A controller with caches of any age, whose writes arrive late, in any order, or never.

use slotd_engine::rollout::{
    self, Action, NodeUid, Place, Plan, ProgressUid, Unwanted, Write, plan,
};

use super::Fault;
use super::random::Random;
use super::store::{Seen, Store, StoredProgress, ended};

/// A write on its way, with what it was made from.
#[derive(Clone, Debug)]
pub enum Sent {
    /// All claims and frees of one plan.
    Places {
        frees: Vec<Write>,
        claims: Vec<Place>,
        seen: Seen,
    },
    One {
        write: Write,
        seen: Seen,
    },
}

/// An activation that was stored.
#[derive(Clone, Debug)]
pub struct Activated {
    pub node: NodeUid,
    pub seen: Seen,
}

#[derive(Clone, Debug, Default)]
pub struct Controller {
    pub seen: Seen,
    pub sent: Vec<Sent>,
    /// How long the watch of each kind is silent yet.
    silent: [usize; 4],
}

impl Controller {
    /// Sees a part of what is new, or all of it.
    pub fn look(&mut self, store: &Store, random: &mut Random, whole: bool) {
        let kinds = [
            (&mut self.seen.nodes, store.nodes.latest()),
            (&mut self.seen.upgrades, store.upgrades.latest()),
            (&mut self.seen.progress, store.progress.latest()),
            (&mut self.seen.places, store.places.latest()),
        ];
        for ((seen, latest), silent) in kinds.into_iter().zip(&mut self.silent) {
            if whole {
                *seen = latest;
            } else if *silent > 0 {
                *silent -= 1;
            } else if random.chance(1) {
                *silent = random.below(80);
            } else if random.chance(60) {
                *seen = random.between(*seen, latest);
            }
        }
    }

    /// Plans on what it sees, and sends what is to be written.
    pub fn plan(&mut self, store: &Store, fault: Option<Fault>) -> Plan {
        let plan = plan(&store.fleet(self.seen));
        let (mut frees, mut claims) = (Vec::new(), Vec::new());
        for write in &plan.writes {
            match write {
                Write::Free { .. } => frees.push(write.clone()),
                Write::Claim(place) => {
                    if let (Some(Fault::ActivateUnseen), Some(holder)) = (fault, &place.holder) {
                        let write = Write::Activate {
                            progress: holder.progress.clone(),
                            attempt: holder.attempt,
                        };
                        self.sent.push(Sent::One {
                            write,
                            seen: self.seen,
                        });
                    }
                    claims.push(place.clone());
                }
                other => self.sent.push(Sent::One {
                    write: other.clone(),
                    seen: self.seen,
                }),
            }
        }
        if !frees.is_empty() || !claims.is_empty() {
            self.sent.push(Sent::Places {
                frees,
                claims,
                seen: self.seen,
            });
        }
        plan
    }
}

/// Lets a write arrive. What it was made from has to be there still.
pub fn arrive(store: &mut Store, sent: &Sent, fault: Option<Fault>) -> Option<Activated> {
    match sent {
        Sent::Places {
            frees,
            claims,
            seen,
        } => {
            if seen.places != store.places.latest() && fault != Some(Fault::PlacesUnguarded) {
                return None;
            }
            let gone: Vec<_> = frees
                .iter()
                .filter_map(|free| freed(store, free, fault))
                .collect();
            let old = store.places.at(seen.places).clone();
            store.places.change(|places| {
                if fault == Some(Fault::PlacesUnguarded) {
                    *places = old;
                }
                places.retain(|node, _| !gone.contains(node));
                if gone.len() == frees.len() {
                    let claims = claims.iter();
                    places.extend(claims.map(|place| (place.node.clone(), place.clone())));
                }
            });
            None
        }
        Sent::One { write, seen } => one(store, write, *seen, fault),
    }
}

/// Which node's place is freed, once the server was asked.
fn freed(store: &Store, free: &Write, fault: Option<Fault>) -> Option<NodeUid> {
    let Write::Free { node, .. } = free else {
        return None;
    };
    let free = fault == Some(Fault::CacheBelieved)
        || rollout::frees(&store.fleet(store.latest()))
            .iter()
            .any(|(free, _)| free == node);
    free.then(|| node.clone())
}

fn one(store: &mut Store, write: &Write, seen: Seen, fault: Option<Fault>) -> Option<Activated> {
    let unchanged = |store: &Store, uid| {
        let then = store.progress.at(seen.progress).get(uid)?;
        let now: &StoredProgress = store.progress.now().get(uid)?;
        (then.revision == now.revision).then(|| now.clone())
    };
    match write {
        Write::Create {
            upgrade,
            node,
            attempt,
        } => {
            let owner = store.upgrades.at(seen.upgrades).get(upgrade)?.clone();
            let same =
                |object: &&StoredProgress| object.upgrade == *upgrade && object.node == *node;
            if store.progress.now().values().any(|object| same(&object)) {
                return None;
            }
            let uid = ProgressUid(format!("p{}-{}-{}", store.uid(), owner.name, node.0));
            let revision = store.uid();
            let object = StoredProgress {
                revision,
                upgrade: upgrade.clone(),
                node: node.clone(),
                image: owner.image,
                action: Action::Stage,
                attempt: *attempt,
                upgrade_attempt: owner.attempt,
                suspended: false,
                activated: None,
                deleting: false,
                status: None,
            };
            store.progress.change(|objects| {
                objects.insert(uid, object);
            });
            // The collector, where its upgrade went meanwhile.
            if !store.upgrades.now().contains_key(upgrade) {
                store.delete_upgrade(upgrade);
            }
        }
        Write::Raise {
            progress, attempt, ..
        } => {
            let object = unchanged(store, progress)?;
            let owner = store
                .upgrades
                .at(seen.upgrades)
                .get(&object.upgrade)?
                .clone();
            store.edit(progress, |object| {
                object.attempt = *attempt;
                object.upgrade_attempt = owner.attempt;
                object.image = owner.image;
                object.action = Action::Stage;
            });
        }
        Write::Activate { progress, attempt } => {
            let object = if fault == Some(Fault::ActivateUnguarded) {
                store.progress.now().get(progress)?.clone()
            } else {
                unchanged(store, progress)?
            };
            if ended(&object).is_some() || object.deleting {
                return None;
            }
            let attempt = *attempt;
            store.edit(progress, |object| {
                object.action = Action::Activate;
                object.attempt = attempt.max(object.attempt);
                object.activated = Some(object.attempt);
            });
            return Some(Activated {
                node: object.node,
                seen,
            });
        }
        Write::Delete { progress, because } => {
            let object = unchanged(store, progress)?;
            let asked = *because == Unwanted::NodeGone;
            if !(asked && store.nodes.now().contains_key(&object.node)) {
                store.delete(progress);
            }
        }
        Write::Unbind {
            progress,
            node_gone,
        } => {
            let object = unchanged(store, progress)?;
            if !(*node_gone && store.nodes.now().contains_key(&object.node)) {
                store.unbind(progress);
            }
        }
        Write::BindUpgrade(uid) => store.upgrades.change(|upgrades| {
            if let Some(upgrade) = upgrades.get_mut(uid).filter(|upgrade| !upgrade.deleting) {
                upgrade.bound = true;
            }
        }),
        Write::UnbindUpgrade(uid) => {
            store.upgrades.change(|upgrades| {
                if let Some(upgrade) = upgrades.get_mut(uid) {
                    upgrade.bound = false;
                }
            });
            if store
                .upgrades
                .now()
                .get(uid)
                .is_some_and(|upgrade| upgrade.deleting)
            {
                store.delete_upgrade(uid);
            }
        }
        Write::Free { .. } | Write::Claim(_) => {}
    }
    None
}
