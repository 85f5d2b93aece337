//! Runs the inputs that are checked in through a crate's fuzz targets. Part of each crate's own tests.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Reads an input, and judges what came of it; whether it was accepted.
type Target = fn(&[u8]) -> bool;

/// Inputs up to this length are also tried cut off at each byte, and with each byte inverted.
const SHORT: usize = 700;

/// Each target has a folder with inputs, at least one of them good, and each folder has a target. `good…` has to be read,
/// `bad…` refused; of the others the target's own assertions have to hold. `folder` is the crate's in `tests/fuzz/corpus`.
pub(crate) fn check(folder: &Path, targets: &[(&str, Target)]) {
    let folders: BTreeSet<String> = names(folder);
    let known: BTreeSet<String> = targets.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(folders, known, "{}", folder.display());
    let mut wrong = Vec::new();
    for (name, target) in targets {
        let inputs = names(&folder.join(name));
        if !inputs.iter().any(|input| input.starts_with("good")) {
            wrong.push(format!("{name} has no good input"));
        }
        for input in inputs {
            let bytes = fs::read(folder.join(name).join(&input)).unwrap();
            let input = format!("{name}/{input}");
            wrong.extend(misread(&input, *target, &bytes));
            if bytes.len() <= SHORT {
                wrong.extend(neighbour(&input, *target, &bytes));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What is wrong with how an input is read.
fn misread(input: &str, target: Target, bytes: &[u8]) -> Option<String> {
    let (_, name) = input.split_once('/').unwrap();
    match run(target, bytes) {
        None => Some(format!("a property does not hold for {input}")),
        Some(true) if name.starts_with("bad") => Some(format!("{input} is accepted")),
        Some(false) if name.starts_with("good") => Some(format!("{input} is refused")),
        Some(_) => None,
    }
}

/// The first input beside this one for which a property does not hold.
fn neighbour(input: &str, target: Target, bytes: &[u8]) -> Option<String> {
    (0..bytes.len()).find_map(|at| {
        if run(target, &bytes[..at]).is_none() {
            return Some(format!(
                "a property does not hold for {input} cut off at {at}"
            ));
        }
        let mut inverted = bytes.to_vec();
        inverted[at] ^= 0xff;
        run(target, &inverted)
            .is_none()
            .then(|| format!("a property does not hold for {input} with byte {at} inverted"))
    })
}

/// Whether it was accepted; `None` where a property does not hold.
fn run(target: Target, bytes: &[u8]) -> Option<bool> {
    catch_unwind(AssertUnwindSafe(|| target(bytes))).ok()
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries =
        fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}
