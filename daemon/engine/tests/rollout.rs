//! The planner against a simulated fleet. Writes are lost and arrive late and in any order, caches are old, each part of
//! them by another age, two controllers act at once, nodes fail, go and come, upgrades are edited and deleted. An observer
//! that looks at the machines themselves says after every step whether more of them are away than may be.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "tests"
)]

mod fleet;

use fleet::{Fault, World};
use proptest::prelude::{ProptestConfig, any, prop_assert, proptest};

const STEPS: usize = 2500;

fn trouble(seed: u64, fault: Option<Fault>) -> Result<World, String> {
    let mut world = World::new(seed, fault);
    for step in 0..STEPS {
        if let Err(problem) = world.step() {
            let story = world.told();
            return Err(format!("seed {seed}, step {step}: {problem}\n{story}"));
        }
    }
    Ok(world)
}

fn live(seed: u64) -> Result<(), String> {
    let mut world = trouble(seed, None)?;
    let settled = world.settle();
    settled.map_err(|problem| format!("seed {seed}, settling: {problem}\n{}", world.told()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, max_shrink_iters: 0, ..ProptestConfig::default() })]
    #[test]
    fn never_too_many_are_away_and_it_ends_when_the_world_is_well(seed in any::<u64>()) {
        let lived = live(seed);
        prop_assert!(lived.is_ok(), "{}", lived.unwrap_err());
    }
}

/// The observer has to see what goes wrong when a rule of writing is broken.
fn seen(fault: Fault) {
    let found = (0..3000).any(|seed| trouble(seed, Some(fault)).is_err());
    assert!(found, "nobody saw {fault:?}");
}

#[test]
fn an_activation_on_a_claim_that_was_not_seen_stored_is_found() {
    seen(Fault::ActivateUnseen);
}

#[test]
fn places_that_are_overwritten_are_found() {
    seen(Fault::PlacesUnguarded);
}

#[test]
fn an_activation_of_what_changed_since_is_found() {
    seen(Fault::ActivateUnguarded);
}

#[test]
fn believing_a_cache_that_a_thing_is_gone_is_found() {
    seen(Fault::CacheBelieved);
}
