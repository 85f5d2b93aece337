//! Long random lives of a node: upgrades, rollbacks, edits, cancels, a wish of the cluster that is changed, suspended and
//! withdrawn, faults, power cuts and other hands, in any order. The model asks for the promises after every effect; here is
//! asserted that every life comes to rest on a good slot, and has told the truth about all that it was asked for.
//!
//! Every run lives the same lives: `PROPTEST_RNG_SEED` gives another seed than the one that is printed, `LIVES` and
//! `LIFE_STEPS` more and longer ones.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod node;

use std::cell::Cell;

use node::operation::Operation;
use node::{FAULTS, Nature, Node, request};
use proptest::prelude::{Just, Strategy, any, prop, prop_oneof};
use proptest::test_runner::{Config, RngSeed, TestRunner};
use slotd_engine::{Assignment, Drain, Result as Ending, SlotState, Task, admit, assign};

/// One thing that happens in a life.
#[derive(Clone, Debug)]
enum Happening {
    Node(Operation),
    /// The object in the cluster asks for such an image.
    Wish(Nature),
    /// It may go further than staged, or not any more.
    Approve(bool),
    Suspend(bool),
    /// A later attempt of the same.
    Attempt,
    /// The object is deleted.
    Withdraw,
}

fn nature() -> impl Strategy<Value = Nature> {
    prop_oneof![
        4 => Just(Nature::Healthy),
        1 => Just(Nature::Unhealthy),
        1 => Just(Nature::Panics),
        1 => Just(Nature::Hangs),
        1 => Just(Nature::Unfit),
        1 => Just(Nature::Refused),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    let install =
        (nature(), any::<bool>(), any::<bool>()).prop_map(|(nature, stage_only, asked_anew)| {
            Operation::Install {
                nature,
                stage_only,
                asked_anew,
            }
        });
    let activate = any::<bool>().prop_map(|force| Operation::ActivateDrained { force });
    let others = prop::sample::select(vec![
        Operation::Hold,
        Operation::Renew,
        Operation::StartOther,
        Operation::Rescue,
        Operation::ArmByHand,
        Operation::DisarmByHand,
        Operation::ForgetByHand,
        Operation::GiveUpByHand,
        Operation::SelectByHand,
        Operation::ProveByHand,
        Operation::TakeOver { another: false },
        Operation::TakeOver { another: true },
        Operation::Blind,
        Operation::Seal,
        Operation::Deafen,
        Operation::Stick,
    ]);
    prop_oneof![
        12 => (1..14_u8).prop_map(Operation::Turns),
        6 => install,
        2 => nature().prop_map(Operation::Retarget),
        3 => Just(Operation::Activate),
        2 => activate,
        2 => Just(Operation::Rollback),
        2 => Just(Operation::Cancel),
        // Also again and again, which spends the tries of a trial.
        3 => Just(Operation::PowerCycle),
        2 => Just(Operation::Restart),
        6 => prop::sample::select(FAULTS.to_vec()).prop_map(Operation::Fault),
        3 => others,
        2 => Just(Operation::Mend),
    ]
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        20 => operation().prop_map(Happening::Node),
        2 => nature().prop_map(Happening::Wish),
        2 => any::<bool>().prop_map(Happening::Approve),
        1 => any::<bool>().prop_map(Happening::Suspend),
        1 => Just(Happening::Attempt),
        1 => Just(Happening::Withdraw),
    ]
}

/// The node, and what the cluster wants of it.
struct Life {
    node: Node,
    wish: Option<(Assignment, Nature)>,
    attempts: u32,
}

impl Life {
    fn happen(&mut self, happening: &Happening) {
        match happening {
            Happening::Node(Operation::Turns(turns)) => {
                for _ in 0..*turns {
                    self.turn();
                }
            }
            Happening::Node(operation) => {
                self.node.undergo(*operation);
            }
            Happening::Wish(nature) => {
                let mut image = request(true);
                image.version = Some(format!("{nature:?}"));
                image.task = Some(Task {
                    uid: "progress-1".to_owned(),
                    attempt: self.attempts,
                    version: format!("{nature:?}"),
                });
                let wish = Assignment {
                    image,
                    activate: true,
                    suspended: false,
                    drain: Drain {
                        timeout: 300,
                        force: false,
                    },
                };
                self.wish = Some((wish, *nature));
            }
            Happening::Approve(activate) => {
                if let Some((wish, _)) = &mut self.wish {
                    wish.activate = *activate;
                }
            }
            Happening::Suspend(suspended) => {
                if let Some((wish, _)) = &mut self.wish {
                    wish.suspended = *suspended;
                }
            }
            Happening::Attempt => {
                self.attempts += 1;
                if let Some((wish, _)) = &mut self.wish
                    && let Some(task) = &mut wish.image.task
                {
                    task.attempt = self.attempts;
                }
            }
            Happening::Withdraw => self.wish = None,
        }
    }

    /// One turn, before which the cluster's side asks for what comes nearer to the wish.
    fn turn(&mut self) -> bool {
        let wish = self.wish.as_ref().map(|(wish, _)| wish);
        let asked = assign(&self.node.record, wish)
            .filter(|request| admit(&self.node.record, request).is_ok());
        let asks = asked.is_some();
        if let Some(request) = asked {
            let nature = self
                .wish
                .as_ref()
                .map_or(Nature::Healthy, |(_, nature)| *nature);
            self.node.ask_for(request, nature);
        }
        self.node.turn() || asks
    }

    /// Nothing goes wrong any more, and all that was begun ends.
    fn end(&mut self) {
        self.node.plan.clear();
        self.node.undergo(Operation::Mend);
        for _ in 0..3000 {
            if !self.turn() {
                return;
            }
        }
        panic!("no end\n{}", self.node.story());
    }
}

fn live(happenings: &[Happening]) -> Node {
    let mut life = Life {
        node: Node::new(Nature::Healthy),
        wish: None,
        attempts: 0,
    };
    for happening in happenings {
        life.happen(happening);
    }
    life.end();
    let node = life.node;
    let state = node.state(node.booted);
    let story = || node.story();
    // One that was given up is left alone where somebody starts it by hand.
    let given_up = state == SlotState::Bad
        && happenings.iter().any(|happening| {
            matches!(
                happening,
                Happening::Node(Operation::StartOther | Operation::GiveUpByHand)
            )
        });
    assert!(
        state == SlotState::Good || given_up,
        "{state:?}\n{}",
        story()
    );
    for ended in &node.ended {
        assert!(ended.result != Ending::Completed || ended.failure.is_none());
    }
    node.told_all();
    node
}

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).map_or(otherwise, |text| text.parse().expect(variable))
}

#[test]
fn every_life_comes_to_rest_on_a_good_slot() {
    let seed = number("PROPTEST_RNG_SEED", 0x51_07_d0);
    let lives = number("LIVES", 4000);
    let steps = usize::try_from(number("LIFE_STEPS", 80)).unwrap();
    println!("seed: PROPTEST_RNG_SEED={seed}");
    let mut runner = TestRunner::new(Config {
        cases: u32::try_from(lives).unwrap(),
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed),
        max_shrink_iters: 2000,
        ..Config::default()
    });
    let (effects, faults, ends) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let lived = runner.run(
        &prop::collection::vec(happening(), 1..=steps),
        |happenings| {
            let node = live(&happenings);
            effects.set(effects.get() + node.effects);
            faults.set(faults.get() + node.struck.len());
            ends.set(ends.get() + node.ended.len());
            Ok(())
        },
    );
    if let Err(error) = lived {
        panic!("PROPTEST_RNG_SEED={seed} LIVES={lives} LIFE_STEPS={steps}\n{error}");
    }
    println!(
        "counted: {lives} random lives of up to {steps} steps, {} effects, {} faults, {} upgrades that ended (PROPTEST_RNG_SEED={seed})",
        effects.get(),
        faults.get(),
        ends.get()
    );
    assert!(
        u64::try_from(ends.get()).unwrap() > lives,
        "they did not live"
    );
}
