//! Random lives of a node: requests, faults and power cuts in any order. The model checks the promises after
//! every effect; here is asserted that every life comes to rest on a good slot, and tells the truth about it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests"
)]

mod node;

use node::{FAULTS, Nature, Node, request};
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop, prop_oneof, proptest};
use slotd_engine::{Request, Result as Ending, SlotState};

#[derive(Clone, Debug)]
enum Event {
    Turn(u8),
    Install(Nature, bool),
    Retarget(Nature),
    Activate,
    Rollback,
    Cancel,
    PowerCycle,
    Restart,
    Fault(usize),
    DisarmByHand,
}

fn nature() -> impl Strategy<Value = Nature> {
    prop_oneof![
        3 => Just(Nature::Healthy),
        1 => Just(Nature::Unhealthy),
        1 => Just(Nature::Panics),
        1 => Just(Nature::Hangs),
        1 => Just(Nature::Unfit),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (1..12_u8).prop_map(Event::Turn),
        4 => (nature(), any::<bool>()).prop_map(|(nature, only)| Event::Install(nature, only)),
        1 => nature().prop_map(Event::Retarget),
        2 => Just(Event::Activate),
        1 => Just(Event::Rollback),
        1 => Just(Event::Cancel),
        1 => Just(Event::PowerCycle),
        1 => Just(Event::Restart),
        3 => (0..FAULTS.len()).prop_map(Event::Fault),
        1 => Just(Event::DisarmByHand),
    ]
}

fn happen(node: &mut Node, event: &Event, number: u8) {
    let ask = match event {
        Event::Turn(turns) => {
            for _ in 0..*turns {
                node.turn();
            }
            return;
        }
        Event::Install(nature, stage_only) => {
            let ask = Request::Install(request(*stage_only));
            if slotd_engine::admit(&node.record, &ask).is_ok() {
                node.supply = (number, *nature);
            }
            ask
        }
        Event::Retarget(nature) => {
            let ask = Request::Retarget(request(false));
            if slotd_engine::admit(&node.record, &ask).is_ok() {
                node.supply = (number, *nature);
            }
            ask
        }
        Event::Activate => Request::Activate { drain: None },
        Event::Rollback => Request::Rollback { version: None },
        Event::Cancel => Request::Cancel(node.record.last_id),
        Event::PowerCycle => return node.power_cycle(),
        Event::Restart => return node.daemon_restart(),
        Event::Fault(which) => {
            node.plan.push((node.effects, FAULTS[*which]));
            return;
        }
        Event::DisarmByHand => {
            for slot in [slotd_engine::Slot::A, slotd_engine::Slot::B] {
                if slot != node.booted
                    && matches!(node.loader[node::index(slot)], SlotState::Trial { .. })
                {
                    node.loader[node::index(slot)] = SlotState::Empty;
                }
            }
            return;
        }
    };
    if slotd_engine::admit(&node.record, &ask).is_ok() {
        node.ask(ask);
        node.turn();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_life_comes_to_rest_on_a_good_slot(events in prop::collection::vec(event(), 1..40)) {
        let mut node = Node::new(Nature::Healthy);
        for (number, event) in events.iter().enumerate() {
            node.boots = 0;
            happen(&mut node, event, u8::try_from(number + 2).unwrap());
        }
        node.boots = 0;
        node.plan.clear();
        node.settle();
        assert_eq!(node.state(node.booted), SlotState::Good, "{}", node.story());
        for ended in &node.ended {
            assert!(ended.result != Ending::Completed || ended.failure.is_none());
        }
        let mut ids: Vec<u64> = node.history.iter().map(|(id, _)| *id).collect();
        ids.dedup();
        assert_eq!(ids.len(), node.history.len(), "reported twice");
    }
}
