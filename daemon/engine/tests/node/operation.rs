//! What happens to a node from outside: requests, power, other programs and people, trouble around it.

use slotd_engine::{Drain, Point, Request, Slot, SlotState, Task, admit};

use super::told::Told;
use super::{Content, Fault, Nature, Node, Trouble, digest, index, request};

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Install {
        nature: Nature,
        stage_only: bool,
        asked_anew: bool,
    },
    Retarget(Nature),
    Activate,
    ActivateDrained {
        force: bool,
    },
    Hold,
    Renew,
    Rollback,
    Cancel,
    /// The daemon takes so many turns.
    Turns(u8),
    /// Goes wrong at the next effect.
    Fault(Fault),
    /// Power is cut, and comes back.
    PowerCycle,
    /// The daemon is killed, and started again.
    Restart,
    /// Somebody starts the other slot, in the loader's menu.
    StartOther,
    /// Somebody starts a rescue stick.
    Rescue,
    /// Somebody activates what is staged.
    ArmByHand,
    /// Somebody takes the other slot's trial back.
    DisarmByHand,
    /// Somebody empties the other slot.
    ForgetByHand,
    /// Somebody marks the other slot bad.
    GiveUpByHand,
    /// Somebody makes the other good slot the next one.
    SelectByHand,
    /// Somebody marks the running slot good.
    ProveByHand,
    /// Somebody starts the other slot and proves it, before the agent looks again: with the image that lies there, or with
    /// another one that was brought there from a rescue system.
    TakeOver {
        another: bool,
    },
    Blind,
    Seal,
    Deafen,
    Stick,
    /// All trouble ends.
    Mend,
}

impl Node {
    /// Lets it happen; whether it could.
    pub(crate) fn undergo(&mut self, operation: Operation) -> bool {
        if !self.possible(operation) {
            return false;
        }
        self.story.push(Told::Operation(operation));
        self.judge.reboots = 0;
        self.boots = 0;
        if let Some(request) = self.wanted(operation) {
            let nature = match operation {
                Operation::Install { nature, .. } | Operation::Retarget(nature) => nature,
                _ => self.supply.1,
            };
            self.ask_for(request, nature);
            self.turn();
            return true;
        }
        let other = !self.booted;
        match operation {
            Operation::Turns(turns) => {
                for _ in 0..turns {
                    self.turn();
                }
            }
            Operation::Fault(fault) => self.plan.push((self.effects, fault)),
            Operation::PowerCycle => self.power_cycle(),
            Operation::Restart => self.daemon_restart(),
            Operation::StartOther => self.start(other),
            Operation::Rescue => self.rescue(),
            Operation::Blind => self.trouble.blind = true,
            Operation::Seal => self.trouble.sealed = true,
            Operation::Deafen => self.trouble.deaf = true,
            Operation::Stick => self.trouble.stuck = true,
            Operation::Mend => {
                let rescue = self.trouble.rescue;
                self.trouble = Trouble::default();
                if rescue {
                    self.power_cycle();
                }
            }
            _ => self.by_hand(operation, other),
        }
        self.check();
        true
    }

    /// Asks, and an image that is asked for is such a one.
    pub(crate) fn ask_for(&mut self, request: Request, nature: Nature) {
        if let Request::Install(_) | Request::Retarget(_) = request {
            self.supply = (self.number(nature), nature);
            // Each image may have as many as it takes.
            self.judge.reboots = 0;
        }
        self.ask(request);
    }

    fn wanted(&self, operation: Operation) -> Option<Request> {
        let image = |stage_only, asked_anew| {
            let mut request = request(stage_only);
            request.asked_anew = asked_anew;
            request
        };
        Some(match operation {
            Operation::Install {
                stage_only,
                asked_anew,
                ..
            } => Request::Install(image(stage_only, asked_anew)),
            Operation::Retarget(_) => Request::Retarget(image(false, true)),
            Operation::Activate => Request::Activate { drain: None },
            Operation::ActivateDrained { force } => Request::Activate {
                drain: Some(Drain {
                    timeout: 300,
                    force,
                }),
            },
            Operation::Hold => Request::Hold,
            Operation::Renew => Request::Renew(Task {
                uid: "progress-1".to_owned(),
                attempt: 1,
                version: "2.0.0".to_owned(),
            }),
            Operation::Rollback => Request::Rollback { version: None },
            Operation::Cancel => Request::Cancel(self.record.last_id),
            _ => return None,
        })
    }

    pub(crate) fn possible(&self, operation: Operation) -> bool {
        if let Some(request) = self.wanted(operation) {
            return admit(&self.record, &request).is_ok();
        }
        let (own, other) = (self.state(self.booted), self.state(!self.booted));
        let at = index(!self.booted);
        let armed = matches!(other, SlotState::Trial { .. });
        let trouble = self.trouble;
        let tool = !trouble.blind && !trouble.rescue;
        match operation {
            Operation::StartOther => other != SlotState::Empty && !trouble.rescue,
            Operation::Rescue => !trouble.rescue,
            // As the rules of every boot loader have it.
            Operation::ArmByHand => {
                let whole = self.marker[at].is_some();
                tool && whole && !armed && other != SlotState::Good && own == SlotState::Good
            }
            Operation::DisarmByHand => tool && armed,
            Operation::ForgetByHand => tool && own == SlotState::Good && other != SlotState::Empty,
            Operation::GiveUpByHand => {
                tool && own == SlotState::Good && (armed || other == SlotState::Good)
            }
            Operation::SelectByHand => {
                let trial = matches!(own, SlotState::Trial { .. });
                tool && other == SlotState::Good && !trial && self.order()[0] == self.booted
            }
            Operation::TakeOver { another } => {
                let whole = self.marker[at].is_some() && self.comes_up(!self.booted);
                tool && own == SlotState::Good && (another || whole)
            }
            Operation::ProveByHand => {
                tool && matches!(own, SlotState::Trial { .. } | SlotState::Bad)
            }
            Operation::Blind => !trouble.blind,
            Operation::Seal => !trouble.sealed,
            Operation::Deafen => !trouble.deaf,
            Operation::Stick => !trouble.stuck && self.record.at == Point::Drain,
            Operation::Mend => trouble != Trouble::default(),
            _ => true,
        }
    }

    fn by_hand(&mut self, operation: Operation, slot: Slot) {
        let at = index(slot);
        match operation {
            Operation::ArmByHand => {
                self.armed(slot);
                self.judge.by_hand[at] = true;
            }
            Operation::DisarmByHand => self.loader[at] = SlotState::Empty,
            Operation::ForgetByHand => {
                self.loader[at] = SlotState::Empty;
                self.marker[at] = None;
            }
            Operation::GiveUpByHand => {
                self.loader[at] = SlotState::Bad;
                self.judge.by_hand[at] = true;
            }
            Operation::SelectByHand => self.first(slot),
            Operation::ProveByHand => {
                self.loader[index(self.booted)] = SlotState::Good;
            }
            Operation::TakeOver { another } => {
                if another {
                    self.disk[at] = Content::Image(9, Nature::Healthy);
                    self.marker[at] = Some(digest(9));
                    self.judge.verified[at] = Some(9);
                }
                self.armed(slot);
                self.loader[at] = SlotState::Good;
                self.judge.by_hand[at] = false;
                self.start(slot);
            }
            _ => unreachable!("{operation:?}"),
        }
    }

    /// Whether something with an agent runs once the slot is started.
    fn comes_up(&self, slot: Slot) -> bool {
        let dies = matches!(
            self.disk[index(slot)],
            Content::Partial | Content::Image(_, Nature::Panics)
        );
        !dies
    }

    /// The same record, and a system that is neither slot.
    fn rescue(&mut self) {
        self.boot += 1;
        self.uptime = 30;
        self.going_down = false;
        self.settled = false;
        self.trouble.rescue = true;
        self.daemon_restart();
    }

    /// An image has one number: a digest tells what it is. Of two healthy ones, one that does not run.
    fn number(&self, nature: Nature) -> u8 {
        match nature {
            Nature::Healthy if matches!(self.disk[index(self.booted)], Content::Image(2, _)) => 3,
            Nature::Healthy => 2,
            Nature::Unhealthy => 4,
            Nature::Panics => 5,
            Nature::Hangs => 6,
            Nature::Unfit => 7,
            Nature::Refused => 8,
        }
    }
}
