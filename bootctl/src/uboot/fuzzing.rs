//! See [`crate::fuzzing`].

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a property that does not hold is to end the program"
)]

use super::choice::Flags;
use super::config::{Config, LARGEST};
use super::conventions::{BootCount, Convention, Own, Rauc};
use super::environment::{Environment, Fault, Layout, fitting_sizes};
use crate::backend::SlotState;
use crate::record::Record;
use crate::slot::SlotName;
use crate::table::Booted;

pub(crate) fn config(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else {
        return false;
    };
    let config = match Config::parse(text) {
        Ok(config) => config,
        Err(problem) => {
            let says = problem.contains("line ") || problem.contains("names no environment");
            assert!(says, "{problem}");
            return false;
        }
    };
    for copy in [Some(&config.first), config.second.as_ref()]
        .into_iter()
        .flatten()
    {
        assert!(
            (16..=LARGEST).contains(&copy.size) && copy.path.is_absolute(),
            "{copy:?}"
        );
        assert!(copy.line >= 1 && copy.line <= text.lines().count());
        // Written by hand from what was understood, it says the same.
        let line = format!(
            "{} {} {:#x} {:x} {:x} {}\n",
            copy.path.display(),
            copy.offset,
            copy.size,
            copy.sector,
            copy.sectors,
            u8::from(copy.no_lock)
        );
        let again = Config::parse(&line).expect("a line with all columns").first;
        assert_eq!(
            (again.offset, again.size),
            (copy.offset, copy.size),
            "{line}"
        );
        assert_eq!(
            (again.sector, again.sectors),
            (copy.sector, copy.sectors),
            "{line}"
        );
        assert_eq!(
            (&again.path, again.no_lock),
            (&copy.path, copy.no_lock),
            "{line}"
        );
    }
    true
}

pub(crate) fn environment(input: &[u8]) -> bool {
    let mut accepted = false;
    for layout in [Layout::Single, Layout::Redundant] {
        accepted |= judge(input, layout);
        let mut sealed = input.to_vec();
        if let (Some(data), true) = (input.get(layout.header()..), input.len() >= 4) {
            sealed[..4].copy_from_slice(&crc32fast::hash(data).to_le_bytes());
        }
        accepted |= judge(&sealed, layout);
    }
    for (size, layout) in fitting_sizes(input) {
        let copy = input.get(..size).expect("a size of the input");
        assert!(
            Environment::decode(copy, layout).is_ok(),
            "{size} {layout:?}"
        );
    }
    accepted
}

fn judge(bytes: &[u8], layout: Layout) -> bool {
    let (flags, environment) = match Environment::decode(bytes, layout) {
        Ok(found) => found,
        Err(Fault::Unterminated { offset }) => {
            assert!(offset <= bytes.len(), "byte {offset} of {}", bytes.len());
            return false;
        }
        Err(Fault::TooSmall { size }) => {
            assert!(size <= layout.header());
            return false;
        }
        Err(Fault::Crc { .. }) => return false,
    };
    let again = environment
        .encode(layout, flags)
        .expect("what was read fits");
    assert_eq!(again, bytes, "written again it is the same");
    let bootcount = BootCount {
        variable: "slot".to_owned(),
        values: ["a".to_owned(), "b".to_owned()],
    };
    let conventions: [&dyn Convention; 3] = [&Own, &Rauc, &bootcount];
    for convention in conventions {
        change(&environment, layout, flags, convention);
    }
    true
}

/// Puts another record in, as the store does; others' variables stay.
fn change(environment: &Environment, layout: Layout, flags: Flags, convention: &dyn Convention) {
    let booted = Booted::Slot(SlotName::A);
    if let Err(problem) = convention.read(environment, booted) {
        assert!(!problem.is_empty());
    }
    let record = Record {
        a: SlotState::Good,
        b: SlotState::Trial { left: 1, done: 0 },
        first: SlotName::B,
    };
    let variables = convention
        .variables(&record)
        .expect("a trial beside a good slot");
    let mut changed = environment.clone();
    for (name, value) in &variables {
        changed.set(name, value).expect("a variable");
    }
    let Ok(bytes) = changed.encode(layout, flags) else {
        return;
    };
    let (_, read) = Environment::decode(&bytes, layout).expect("what was written");
    let own = |name: &str| variables.iter().any(|(own, _)| own == name);
    let others = |environment: &Environment| -> Vec<(String, String)> {
        environment
            .variables()
            .filter(|(name, _)| !own(name))
            .collect()
    };
    assert_eq!(others(&read), others(environment));
    for (name, value) in &variables {
        let found = read.text(name).unwrap_or_default();
        assert_eq!(found, value, "{name}");
    }
    let meaning = convention
        .read(&read, booted)
        .expect("slotd's own variables");
    assert!(meaning.record.agrees_with(&record), "{:?}", meaning.record);
}
