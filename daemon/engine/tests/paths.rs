//! Every path: from each state that requests and turns lead to, any number of upgrades long, every fault at the next effect
//! and all that can come from outside; and on the way of one upgrade two of these. `PATHS_MORE=1` makes it one more each.
//! States that differ in nothing that counts are one. The model asks for the promises after every effect; here is asserted that every path comes
//! to rest, that every row of the table is taken, and that every fault meets every effect.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod node;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use node::operation::Operation;
use node::points::{TRIAL, record, world};
use node::{EFFECTS, FAULTS, Fault, Nature, Node, Trouble, digest};
use slotd_engine::table::TABLE;
use slotd_engine::{ErrorKind, Event, Failure, Kind, Outcome, Point, Slot, SlotState, next};

/// What somebody may ask for.
fn requests() -> Vec<Operation> {
    let mut requests = vec![
        Operation::Retarget(Nature::Healthy),
        Operation::Activate,
        Operation::ActivateDrained { force: false },
        Operation::ActivateDrained { force: true },
        Operation::Hold,
        Operation::Renew,
        Operation::Rollback,
        Operation::Cancel,
    ];
    for nature in node::NATURES {
        requests.push(Operation::Install {
            nature,
            stage_only: nature == Nature::Healthy,
            asked_anew: true,
        });
    }
    for nature in [Nature::Healthy, Nature::Unhealthy] {
        requests.push(Operation::Install {
            nature,
            stage_only: false,
            asked_anew: nature == Nature::Healthy,
        });
    }
    requests
}

const OUTSIDE: [Operation; 16] = [
    Operation::PowerCycle,
    Operation::Restart,
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
];

/// What is gone through, and how.
struct Explorer {
    /// What may be asked for here, and is no disturbance.
    free: fn(&Node) -> Vec<Operation>,
    /// What can come from outside.
    outside: Vec<Operation>,
    /// States, and how many disturbances more they were tried with.
    seen: HashMap<u64, usize>,
    steps: usize,
    faults: usize,
    disturbed: usize,
    rows: BTreeSet<(Point, Event)>,
    /// Faults by their number, and what they met.
    met: BTreeSet<(usize, &'static str)>,
}

impl Explorer {
    fn explore(free: fn(&Node) -> Vec<Operation>, outside: Vec<Operation>, limit: usize) -> Self {
        let mut explorer = Self {
            free,
            outside,
            seen: HashMap::new(),
            steps: 0,
            faults: 0,
            disturbed: 0,
            rows: BTreeSet::new(),
            met: BTreeSet::new(),
        };
        let mut open = VecDeque::from([Node::new(Nature::Healthy)]);
        while let Some(node) = open.pop_front() {
            explorer.follow(node, limit, Some(&mut open));
        }
        println!(
            "counted: {} states with up to {limit} disturbances, {} steps, {} faults, {} from outside",
            explorer.seen.len(),
            explorer.steps,
            explorer.faults,
            explorer.disturbed
        );
        explorer
    }

    /// On from a state, until it rests or comes to where it was before with as many disturbances to come.
    fn follow(&mut self, mut node: Node, more: usize, mut open: Option<&mut VecDeque<Node>>) {
        let mut chain = HashSet::new();
        loop {
            let key = node.fingerprint();
            if self.seen.get(&key).is_some_and(|known| *known >= more) {
                let circle = chain.contains(&key) && node.trouble == Trouble::default();
                assert!(!circle, "it goes round in circles\n{}", node.story());
                return;
            }
            self.seen.insert(key, more);
            chain.insert(key);
            assert!(chain.len() < 300, "no end\n{}", node.story());
            let before = node.clone();
            let busy = self.turn(&mut node);
            if let Some(less) = more.checked_sub(1) {
                self.disturb(&before, &node, less);
            }
            match &mut open {
                Some(open) => {
                    for operation in (self.free)(&before) {
                        open.extend(self.undergone(&before, operation));
                    }
                }
                None => {
                    if let Some(mended) = self.undergone(&before, Operation::Mend) {
                        self.follow(mended, more, None);
                    }
                }
            }
            if !busy {
                rests(&node);
                chain.clear();
            }
        }
    }

    fn turn(&mut self, node: &mut Node) -> bool {
        let busy = node.turn();
        self.steps += 1;
        self.rows.extend(node.moved);
        busy
    }

    fn undergone(&mut self, node: &Node, operation: Operation) -> Option<Node> {
        if !node.possible(operation) {
            return None;
        }
        let mut after = node.clone();
        after.undergo(operation);
        self.steps += 1;
        self.rows.extend(after.moved);
        Some(after)
    }

    /// All that can go wrong between a state and the next one.
    fn disturb(&mut self, node: &Node, next: &Node, less: usize) {
        let plain = next.effects == node.effects && next.record == node.record;
        for (number, fault) in FAULTS.into_iter().enumerate().filter(|_| !plain) {
            let mut after = node.clone();
            after.plan = vec![(node.effects, fault)];
            self.turn(&mut after);
            after.plan.clear();
            if let Some((_, effect)) = after.struck.pop() {
                self.faults += 1;
                self.met.insert((number, effect));
                self.follow(after, less, None);
            }
        }
        for operation in self.outside.clone() {
            if let Some(after) = self.undergone(node, operation) {
                self.disturbed += 1;
                self.follow(after, less, None);
            }
        }
    }
}

/// Where nothing is left to do: a good slot runs, and all is told.
fn rests(node: &Node) {
    node.told_all();
    let trouble = node.trouble;
    let state = node.state(node.booted);
    // One that was given up, or is spent, is left alone where somebody starts it by hand.
    let fine = matches!(
        state,
        SlotState::Good | SlotState::Bad | SlotState::Trial { left: 0, .. }
    );
    assert!(
        fine || trouble.blind || trouble.rescue,
        "it rests on {state:?}\n{}",
        node.story()
    );
    assert!(!node.cordoned, "it rests cordoned\n{}", node.story());
}

/// The rows that need more than two disturbances: each is taken by a step of its own.
const FURTHER: &[(Point, Event)] = &[
    (Point::Preflight, Event::RunningTried),
    (Point::Invalidate, Event::TrialRunning),
    (Point::Invalidate, Event::RunningTried),
    (Point::Write, Event::TrialRunning),
    (Point::Write, Event::RunningTried),
    (Point::PrepareBoot, Event::RunningTried),
    (Point::Discard, Event::TrialRunning),
    (Point::Discard, Event::ProvenRunning),
    (Point::Discard, Event::RunningTried),
    (Point::Staged, Event::RunningTried),
    (Point::Drain, Event::RunningTried),
    (Point::Arm, Event::NoFallback),
    (Point::Select, Event::TrialRunning),
    (Point::Restart, Event::Failed),
    (Point::Bless, Event::NoFallback),
    (Point::Completed, Event::TrialRunning),
];

#[test]
fn what_needs_more_than_two_disturbances_is_taken_by_a_step_of_its_own() {
    for (at, event) in FURTHER.iter().copied() {
        let mut record = record(at);
        let upgrade = record.upgrade.as_mut().unwrap();
        let failure = Failure::new(ErrorKind::Configuration, "it cannot be written");
        let mut outcome = Outcome::Waited;
        let seen = match event {
            Event::TrialRunning => {
                if at == Point::Select {
                    upgrade.kind = Kind::Rollback;
                }
                world(Slot::B, TRIAL, 2)
            }
            Event::ProvenRunning => {
                let mut seen = world(Slot::B, SlotState::Good, 2);
                seen.world.images[1] = Some(digest(2));
                seen
            }
            Event::RunningTried => {
                let mut seen = world(Slot::A, SlotState::Empty, 2);
                seen.world.loader = Some([TRIAL, SlotState::Empty]);
                seen
            }
            Event::NoFallback if at == Point::Arm => {
                let mut seen = world(Slot::A, SlotState::Empty, 1);
                seen.world.loader = Some([SlotState::Bad, SlotState::Empty]);
                seen
            }
            Event::NoFallback => {
                upgrade.failure = Some(failure);
                world(Slot::B, SlotState::Bad, 9)
            }
            _ => {
                upgrade.tries = 29;
                outcome = Outcome::Failed(failure);
                world(Slot::A, SlotState::Trial { left: 3, done: 0 }, 1)
            }
        };
        let step = next(&record, &seen, Some(&outcome));
        assert_eq!(step.event, Some(event), "{at:?}");
    }
}

/// Any request at any time, and so any number of upgrades.
fn anything(node: &Node) -> Vec<Operation> {
    // Else there would be no end to what waits for the history.
    let waits = node.record.unreported.len();
    if waits > usize::from(!node.record.at.is_rest()) {
        return Vec::new();
    }
    requests()
}

/// One upgrade, or one way back.
fn one_upgrade(node: &Node) -> Vec<Operation> {
    let asked = requests().into_iter().filter(|request| match request {
        Operation::Install { .. } | Operation::Rollback => node.record.last_id == 0,
        Operation::Activate | Operation::ActivateDrained { .. } => true,
        _ => false,
    });
    asked.collect()
}

#[test]
fn every_fault_meets_every_effect_and_every_row_is_taken_and_every_path_comes_to_rest() {
    let more = std::env::var("PATHS_MORE").map_or(0, |more| more.parse().unwrap());
    let explored = [
        Explorer::explore(anything, Vec::new(), 1 + more),
        Explorer::explore(one_upgrade, [&OUTSIDE[..], &requests()].concat(), 2 + more),
    ];
    let taken: BTreeSet<_> = explored.iter().flat_map(|one| one.rows.clone()).collect();
    let met: BTreeSet<_> = explored.iter().flat_map(|one| one.met.clone()).collect();
    let rows: BTreeSet<(Point, Event)> = TABLE
        .iter()
        .flat_map(|row| row.from.iter().map(|from| (*from, row.event)))
        .collect();
    println!(
        "counted: {} of {} transitions taken, {} pairs of a fault and an effect",
        taken.len(),
        rows.len(),
        met.len()
    );
    let missed: Vec<_> = rows.difference(&taken).copied().collect();
    assert_eq!(
        missed, FURTHER,
        "dead rows, or rows that are reached by now"
    );
    for (number, fault) in FAULTS.into_iter().enumerate() {
        if matches!(fault, Fault::Unrecorded | Fault::RecordUnanswered) {
            assert!(met.contains(&(number, "the record")), "{fault:?}");
            continue;
        }
        for effect in EFFECTS {
            assert!(met.contains(&(number, effect)), "{fault:?} at {effect}");
        }
    }
}
