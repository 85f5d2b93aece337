//! What operators, hardware and others do.

use slotd_engine::rollout::Limit;

use super::World;

impl World {
    /// What operators, hardware and others do.
    pub fn trouble_comes(&mut self) {
        let index = self.random.below(self.machines.len());
        let uid = self.machines.keys().nth(index).cloned();
        let kind = self.random.below(16);
        if let (0..8, Some(uid)) = (kind, &uid)
            && let Some(machine) = self.machines.get_mut(uid)
        {
            match kind {
                0..3 => machine.ill = !machine.ill && self.random.chance(40),
                3..5 => {
                    machine.cordoned_by_others = !machine.cordoned && !machine.cordoned_by_others
                }
                _ => {
                    let held = self.random.chance(20).then(|| "because".to_owned());
                    self.store.nodes.change(|nodes| {
                        if let Some(stored) = nodes.get_mut(uid) {
                            stored.node.hold = held;
                        }
                    });
                }
            }
            machine.write_node(&mut self.store);
            if !machine.unavailable_by_others() {
                machine.ill_since = None;
            } else if machine.ill_since.is_none() {
                machine.ill_since = Some(self.store.nodes.latest());
            }
            return;
        }
        match kind {
            8 if self.machines.len() < 8 => self.join(),
            9 => {
                if let Some(uid) = uid.filter(|_| self.random.chance(30)) {
                    self.machines.remove(&uid);
                    self.store.nodes.change(|nodes| {
                        nodes.remove(&uid);
                    });
                }
            }
            10 if self.store.upgrades.now().len() < 4 => self.ask(),
            11 => {
                let objects = self.store.progress.now();
                let index = self.random.below(objects.len());
                if let Some(uid) = objects.keys().nth(index).cloned() {
                    let suspended = self.random.chance(30);
                    self.store.edit(&uid, |object| object.suspended = suspended);
                }
            }
            _ => self.edit_an_upgrade(kind),
        }
    }

    fn edit_an_upgrade(&mut self, kind: usize) {
        let upgrades = self.store.upgrades.now();
        let index = self.random.below(upgrades.len());
        let Some(uid) = upgrades.keys().nth(index).cloned() else {
            return;
        };
        if kind == 12 && self.random.chance(30) {
            self.store.delete_upgrade(&uid);
            return;
        }
        let random = &mut self.random;
        self.store.upgrades.change(|upgrades| {
            let Some(upgrade) = upgrades.get_mut(&uid) else {
                return;
            };
            match kind {
                13 => upgrade.image = 2 + random.small(3),
                15 => upgrade.suspended = random.chance(30),
                12 => upgrade.max_unavailable = Limit::Nodes(1 + random.small(3)),
                _ => upgrade.attempt += 1,
            }
        });
    }
}
