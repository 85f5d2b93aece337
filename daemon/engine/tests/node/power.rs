//! Power and the boot loader: which slot is started, what that costs it, and what a start of the daemon finds.

use slotd_engine::{Record, Slot, SlotState, decode, encode};

use super::told::Told;
use super::{Content, Nature, Node, index};

impl Node {
    pub(crate) fn state(&self, slot: Slot) -> SlotState {
        match self.loader[index(slot)] {
            // A spent trial that does not run is bad.
            SlotState::Trial { left: 0, .. } if self.booted != slot || self.trouble.rescue => {
                SlotState::Bad
            }
            state => state,
        }
    }

    /// The slots in the loader's order: spent ones last, else the newest first.
    pub(super) fn order(&self) -> Vec<Slot> {
        let mut slots = vec![Slot::A, Slot::B];
        slots.sort_by_key(|slot| {
            let state = self.loader[index(*slot)];
            let spent = match state {
                SlotState::Bad | SlotState::Trial { left: 0, .. } => true,
                SlotState::Trial { .. } => self.trouble.deaf,
                SlotState::Good | SlotState::Empty => false,
            };
            (spent, std::cmp::Reverse(self.sequence[index(*slot)]))
        });
        slots.retain(|slot| self.loader[index(*slot)] != SlotState::Empty);
        slots
    }

    /// Power comes back: the loader chooses, counts and starts, until something with an agent runs.
    pub(crate) fn power_cycle(&mut self) {
        let chosen = self.order().into_iter().next();
        self.start(chosen.expect("nothing can be booted"));
    }

    /// This slot is started, by the loader's choice or by somebody's in its menu.
    pub(super) fn start(&mut self, mut slot: Slot) {
        loop {
            self.boots += 1;
            assert!(self.boots < 60, "endless reboots\n{}", self.story());
            let content = self.disk[index(slot)];
            if let SlotState::Trial { left, done } = &mut self.loader[index(slot)] {
                // One that is spent is started by hand alone.
                self.trials[index(slot)] += u32::from(*left > 0);
                *left = left.saturating_sub(1);
                *done += 1;
            }
            self.booted = slot;
            self.boot += 1;
            self.uptime = 30;
            self.going_down = false;
            self.trouble.rescue = false;
            self.boot_complete = !matches!(content, Content::Image(_, Nature::Hangs));
            self.settled = false;
            self.judge.running = content;
            self.story.push(Told::Boot(slot, self.loader));
            match content {
                Content::Partial => panic!("promise 3: a partial image was booted"),
                Content::Image(_, Nature::Panics) => {}
                Content::Image(..) => break,
            }
            slot = *self.order().first().expect("nothing can be booted");
        }
        self.daemon_restart();
    }

    pub(crate) fn daemon_restart(&mut self) {
        self.bench = [false; 3];
        self.outcome = None;
        self.asked = None;
        self.kept = true;
        self.record = match &self.stored {
            Some(record) => {
                let bytes = encode(record).unwrap();
                decode(&bytes).expect("our own record can be read")
            }
            // It goes on counting where the history ends.
            None => Record {
                last_id: self.history.iter().map(|(id, _)| *id).max().unwrap_or(0),
                ..Record::default()
            },
        };
    }
}
