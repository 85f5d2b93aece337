//! What each command does to the model of a node.

use std::rc::Rc;

use slotd_engine::{Command, ErrorKind, Image, Outcome, Phase, Slot, SlotState, Verdict};

use super::{Content, Nature, Node, digest, failed, index};

impl Node {
    /// The command does its work.
    pub(super) fn apply(&mut self, command: &Command) -> Outcome {
        if self.trouble.blind && of_the_loader(command) {
            return failed(ErrorKind::Retry);
        }
        match command {
            Command::Rest | Command::Wait { .. } => Outcome::Waited,
            Command::Report(ended) => {
                if self.trouble.sealed {
                    return failed(ErrorKind::Configuration);
                }
                if !self.history.iter().any(|(id, _)| *id == ended.id) {
                    self.history.push((ended.id, ended.result));
                    self.ended.push(Rc::new(*ended.clone()));
                }
                Outcome::Reported(ended.id)
            }
            Command::Settle => {
                assert_eq!(self.state(self.booted), SlotState::Good, "settled unproven");
                self.settled = true;
                Outcome::Done
            }
            Command::Stay { .. } => {
                assert_ne!(
                    self.state(self.booted),
                    SlotState::Good,
                    "proven, and treated as if it were not"
                );
                self.settled = true;
                Outcome::Done
            }
            Command::Preflight { slot } => {
                if self.supply.1 == Nature::Refused {
                    return failed(ErrorKind::Reject);
                }
                if self.state(!*slot) != SlotState::Good {
                    return failed(ErrorKind::Unsafe);
                }
                self.bench = [true, false, false];
                Outcome::Done
            }
            Command::Invalidate { slot } | Command::Discard { slot } => {
                let last = self.state(!*slot) != SlotState::Good;
                if last && self.state(*slot) == SlotState::Good {
                    return failed(ErrorKind::Unsafe);
                }
                self.loader[index(*slot)] = SlotState::Empty;
                self.marker[index(*slot)] = None;
                if matches!(command, Command::Discard { .. }) {
                    self.bench = [false; 3];
                } else {
                    self.bench[1] = true;
                }
                Outcome::Done
            }
            Command::Write { slot } => {
                assert_eq!(
                    self.loader[index(*slot)],
                    SlotState::Empty,
                    "written while known\n{}",
                    self.story()
                );
                if !(self.bench[0] && self.bench[1]) {
                    return failed(ErrorKind::Bug);
                }
                let (number, nature) = self.supply;
                self.disk[index(*slot)] = Content::Image(number, nature);
                // Read back, past every cache.
                self.judge.verified[index(*slot)] = Some(number);
                self.bench[2] = true;
                Outcome::Written(Image {
                    digest: digest(number),
                    published: None,
                    size: 1 << 20,
                    version: None,
                })
            }
            Command::PrepareBoot { slot } => {
                if !self.bench[2] {
                    return failed(ErrorKind::Bug);
                }
                let Content::Image(number, nature) = self.disk[index(*slot)] else {
                    panic!("a partial image was looked into");
                };
                if nature == Nature::Unfit {
                    return failed(ErrorKind::Reject);
                }
                self.marker[index(*slot)] = Some(digest(number));
                Outcome::Prepared {
                    version: Some("2.0.0".to_owned()),
                }
            }
            Command::Drain(drain) => {
                assert_eq!(self.record.phase(), Phase::Draining);
                self.cordoned = true;
                if self.trouble.stuck && !drain.force {
                    return failed(ErrorKind::Reject);
                }
                Outcome::Drained
            }
            Command::Arm(proof) => {
                self.armed(proof.slot());
                Outcome::Done
            }
            Command::Disarm { slot } => {
                match self.loader[index(*slot)] {
                    SlotState::Good => return failed(ErrorKind::Reject),
                    SlotState::Trial { .. } => self.loader[index(*slot)] = SlotState::Empty,
                    SlotState::Bad | SlotState::Empty => {}
                }
                Outcome::Done
            }
            Command::Select { slot } => {
                if self.state(*slot) != SlotState::Good {
                    return failed(ErrorKind::Reject);
                }
                self.first(*slot);
                Outcome::Done
            }
            Command::Reboot { .. } => {
                self.going_down = true;
                Outcome::Done
            }
            Command::RunChecks { .. } => {
                self.uptime += 20;
                match self.disk[index(self.booted)] {
                    Content::Image(_, Nature::Unhealthy) => Outcome::Verdict(Verdict::Unhealthy {
                        check: "web".to_owned(),
                        output: "connection refused".to_owned(),
                    }),
                    _ => Outcome::Verdict(Verdict::Healthy),
                }
            }
            Command::AwaitBootComplete { deadline } => {
                if self.boot_complete {
                    return Outcome::Done;
                }
                self.uptime = *deadline;
                Outcome::Verdict(Verdict::Late {
                    check: None,
                    output: String::new(),
                })
            }
            Command::MarkGood { slot } => {
                match self.loader[index(*slot)] {
                    SlotState::Good => {}
                    SlotState::Empty => return failed(ErrorKind::Reject),
                    _ if *slot != self.booted || self.trouble.rescue => {
                        return failed(ErrorKind::Unsafe);
                    }
                    _ => self.loader[index(*slot)] = SlotState::Good,
                }
                Outcome::Done
            }
            Command::MarkBad { slot } => {
                match self.loader[index(*slot)] {
                    SlotState::Bad | SlotState::Empty => {}
                    _ if self.state(!*slot) != SlotState::Good => {
                        return failed(ErrorKind::Unsafe);
                    }
                    _ => self.loader[index(*slot)] = SlotState::Bad,
                }
                Outcome::Done
            }
        }
    }

    /// The loader is told to try the slot, first of all.
    pub(super) fn armed(&mut self, slot: Slot) {
        self.loader[index(slot)] = SlotState::Trial {
            left: self.limits.tries,
            done: 0,
        };
        self.trials[index(slot)] = 0;
        self.first(slot);
    }

    /// The slot is the first in the loader's order.
    pub(super) fn first(&mut self, slot: Slot) {
        self.sequence[index(slot)] = self.sequence.iter().max().unwrap() + 1;
    }
}

/// Whether a command reads or changes the loader's data.
fn of_the_loader(command: &Command) -> bool {
    !matches!(
        command,
        Command::Rest
            | Command::Wait { .. }
            | Command::Report(_)
            | Command::Settle
            | Command::Stay { .. }
            | Command::Write { .. }
            | Command::Drain(_)
            | Command::Reboot { .. }
            | Command::RunChecks { .. }
            | Command::AwaitBootComplete { .. }
    )
}
