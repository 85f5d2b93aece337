//! One verified write in a process of its own, for `lab bench` to measure.
//!
//! `bench-write URL CHECKSUM DEVICE`

use std::path::Path;

use anyhow::{Context, Result};
use slotd_image::Expectation;
use slotd_tests::writing::write_image;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut next = |what| arguments.next().with_context(|| format!("no {what}"));
    let source = next("URL")?;
    let expectation = Expectation {
        checksum: Some(next("checksum")?.parse()?),
        ..Expectation::default()
    };
    write_image(&source, &expectation, Path::new(&next("device")?)).map(drop)
}
