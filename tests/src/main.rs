//! The `lab` program.
fn main() {}
