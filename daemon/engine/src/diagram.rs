//! The transition table, drawn.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::table::{Phase, Point, TABLE};

/// The table as a mermaid state diagram: each phase a box with its points, the arrows between phases
/// outside (mermaid draws no arrow between the insides of two boxes).
#[must_use]
pub fn diagram() -> String {
    let mut inside: BTreeMap<Phase, BTreeMap<(Point, Point), Vec<&str>>> = BTreeMap::new();
    let mut between: BTreeMap<(Phase, Phase), Vec<&str>> = BTreeMap::new();
    for row in TABLE {
        for &from in row.from {
            let (here, there) = (from.phase(), row.to.phase());
            let labels = if here == there && !from.is_rest() {
                inside
                    .entry(here)
                    .or_default()
                    .entry((from, row.to))
                    .or_default()
            } else {
                between.entry((here, there)).or_default()
            };
            if !labels.contains(&row.event.label()) {
                labels.push(row.event.label());
            }
        }
    }
    let mut text = String::from("stateDiagram-v2\n    [*] --> Idle\n");
    // Writing to a String cannot fail.
    for (phase, arrows) in &inside {
        let _ = writeln!(text, "    state {phase:?} {{");
        for ((from, to), labels) in arrows {
            let _ = writeln!(text, "        {from:?} --> {to:?}: {}", labels.join(" / "));
        }
        text.push_str("    }\n");
    }
    for ((from, to), labels) in &between {
        let _ = writeln!(text, "    {from:?} --> {to:?}: {}", labels.join(" / "));
    }
    text
}
