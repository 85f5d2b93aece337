//! The `slotd` program.
fn main() {}
