//! The world is well again: what the fleet has to come to.

use super::World;

impl World {
    /// The world is well again: whether the roll-out ends, and then stays as it is.
    pub fn settle(&mut self) -> Result<(), String> {
        for controller in &mut self.controllers {
            controller.sent.clear();
        }
        self.store.nodes.change(|nodes| {
            for stored in nodes.values_mut() {
                stored.node.hold = None;
            }
        });
        for machine in self.machines.values_mut() {
            machine.ill = false;
            machine.cordoned_by_others = false;
            machine.ill_since = None;
            machine.write_node(&mut self.store);
        }
        self.store.upgrades.change(|upgrades| {
            for upgrade in upgrades.values_mut() {
                upgrade.suspended = false;
                upgrade.attempt += 1;
            }
        });
        for uid in self.store.progress.now().clone().keys() {
            self.store.edit(uid, |object| object.suspended = false);
        }
        // An agent may need one round to see that what it worked on is gone.
        let mut quiet = 0;
        for _ in 0..600 {
            quiet = if self.round()? { quiet + 1 } else { 0 };
            if quiet == 3 {
                return self.at_rest();
            }
        }
        Err(format!(
            "it does not come to an end: {:#?}",
            self.controllers[0].plan(&self.store, None)
        ))
    }

    /// Everybody does what there is to do; whether there was nothing.
    fn round(&mut self) -> Result<bool, String> {
        let before = self.store.latest();
        let mut quiet = true;
        for which in 0..2 {
            self.controllers[which].look(&self.store, &mut self.random, true);
            let plan = self.controllers[which].plan(&self.store, None);
            quiet &= plan.writes.is_empty();
            for sent in std::mem::take(&mut self.controllers[which].sent) {
                self.arrives(&sent);
                self.observer.judge(self)?;
            }
        }
        for machine in self.machines.values_mut() {
            machine.look(&self.store, &mut self.random, true);
            machine.act(&mut self.store, &mut self.random, true);
            machine.report(&mut self.store);
            machine.started(&mut self.store);
            quiet &= machine.work.is_none();
        }
        self.observer.judge(self)?;
        Ok(quiet && self.store.latest() == before)
    }

    fn at_rest(&mut self) -> Result<(), String> {
        let plan = self.controllers[0].plan(&self.store, None);
        for outlook in &plan.upgrades {
            if outlook.ok != outlook.targets || outlook.fail != 0 {
                return Err(format!("not all targets run it: {outlook:#?}"));
            }
        }
        let busy = self
            .store
            .progress
            .now()
            .values()
            .any(|object| object.activated.is_some() || object.deleting);
        if busy || !self.store.places.now().is_empty() {
            return Err("something is left over".to_owned());
        }
        if self
            .store
            .upgrades
            .now()
            .values()
            .any(|upgrade| upgrade.bound || upgrade.deleting)
        {
            return Err("an upgrade is bound for nothing".to_owned());
        }
        for (uid, stored) in self.store.nodes.now() {
            let matching = self
                .store
                .upgrades
                .now()
                .values()
                .filter(|upgrade| upgrade.groups & (1 << stored.group) != 0);
            let youngest = matching.max_by_key(|upgrade| (upgrade.created, upgrade.name.clone()));
            let wanted = youngest
                .filter(|_| stored.node.agent)
                .map_or(stored.version, |upgrade| upgrade.image);
            if stored.version != wanted || stored.node.unavailable() {
                return Err(format!(
                    "{} runs {} and not {wanted}",
                    uid.0, stored.version
                ));
            }
        }
        Ok(())
    }
}
