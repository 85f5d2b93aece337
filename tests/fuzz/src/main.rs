//! Every fuzzer in one program, so that it is linked once. `SLOTD_FUZZ_TARGET` says which one runs; the arguments are
//! libFuzzer's, among them files to be tried again.

#![no_main]

mod seeded;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

/// Reads an input, and judges what came of it; whether it was accepted.
type Target = fn(&[u8]) -> bool;

/// The crates by their folder in `tests/fuzz/corpus`, with their targets by name.
const CRATES: [(&str, &[(&str, Target)]); 6] = [
    ("bootctl", slotd_bootctl::fuzzing::TARGETS),
    ("crds", slotd_crds::fuzzing::TARGETS),
    ("engine", slotd_engine::fuzzing::TARGETS),
    ("image", slotd_image::fuzzing::TARGETS),
    ("seeded", seeded::TARGETS),
    ("slotd", slotd::fuzzing::TARGETS),
];

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let asked = std::env::var("SLOTD_FUZZ_TARGET").unwrap_or_default();
    let found = asked.split_once('/').and_then(|(folder, name)| {
        let (_, targets) = CRATES.iter().find(|(known, _)| *known == folder)?;
        targets.iter().find(|(known, _)| *known == name)
    });
    let Some((_, target)) = found else {
        eprintln!(
            "SLOTD_FUZZ_TARGET is {asked:?}, which is no fuzzer; `cargo lab fuzz --list` prints them"
        );
        std::process::exit(2);
    };
    *target
});

fuzz_target!(init: LazyLock::force(&TARGET), |input: &[u8]| {
    (*TARGET)(input);
});
