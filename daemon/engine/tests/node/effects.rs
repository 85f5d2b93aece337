//! What each command does to the model of a node.

use slotd_engine::{Command, ErrorKind, Image, Outcome, Phase, SlotState, Verdict};

use super::{Content, Nature, Node, digest, failed, index};

impl Node {
    /// The command does its work.
    pub(super) fn apply(&mut self, command: &Command) -> Outcome {
        match command {
            Command::Rest | Command::Wait { .. } => Outcome::Waited,
            Command::Report(ended) => {
                if !self.history.iter().any(|(id, _)| *id == ended.id) {
                    self.history.push((ended.id, ended.result));
                    self.ended.push(*ended.clone());
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
                assert_ne!(*slot, self.booted);
                self.bench = [true, false, false];
                Outcome::Done
            }
            Command::Invalidate { slot } | Command::Discard { slot } => {
                assert_ne!(*slot, self.booted, "promise 1");
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
                assert_ne!(*slot, self.booted, "promise 1");
                assert_eq!(
                    self.loader[index(*slot)],
                    SlotState::Empty,
                    "written while known"
                );
                if !(self.bench[0] && self.bench[1]) {
                    return failed(ErrorKind::Bug);
                }
                let (number, nature) = self.supply;
                self.disk[index(*slot)] = Content::Image(number, nature);
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
            Command::Drain(_) => {
                assert_eq!(self.record.phase(), Phase::Draining);
                self.cordoned = true;
                Outcome::Done
            }
            Command::Arm(proof) => {
                let slot = proof.slot();
                let upgrade = self.record.upgrade.as_ref().unwrap();
                assert!(
                    upgrade.drain.is_none() || self.cordoned,
                    "promise 8: armed without a drain"
                );
                assert_eq!(self.state(!slot), SlotState::Good, "no fallback");
                assert_eq!(
                    self.marker[index(slot)].as_ref(),
                    Some(proof.digest()),
                    "promise 3"
                );
                self.loader[index(slot)] = SlotState::Trial {
                    left: self.limits.tries,
                    done: 0,
                };
                self.trials[index(slot)] = 0;
                self.sequence[index(slot)] = self.sequence.iter().max().unwrap() + 1;
                Outcome::Done
            }
            Command::Disarm { slot } => {
                if let SlotState::Trial { .. } = self.loader[index(*slot)] {
                    assert_ne!(*slot, self.booted);
                    self.loader[index(*slot)] = SlotState::Empty;
                }
                Outcome::Done
            }
            Command::Select { slot } => {
                if self.state(*slot) != SlotState::Good {
                    return failed(ErrorKind::Reject);
                }
                self.sequence[index(*slot)] = self.sequence.iter().max().unwrap() + 1;
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
                assert_eq!(*slot, self.booted, "good without running");
                self.loader[index(*slot)] = SlotState::Good;
                Outcome::Done
            }
            Command::MarkBad { slot } => {
                if self.state(!*slot) != SlotState::Good {
                    return failed(ErrorKind::Unsafe);
                }
                self.loader[index(*slot)] = SlotState::Bad;
                Outcome::Done
            }
        }
    }
}
