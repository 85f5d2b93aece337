//! The diagram in ARCHITECTURE.md is the table's own. `UPDATE_DIAGRAM=1 cargo test -p slotd-engine --test diagram` writes it anew.

use std::path::Path;

const BEGIN: &str = "<!-- engine-diagram:begin -->\n";
const END: &str = "<!-- engine-diagram:end -->";

#[test]
fn the_diagram_in_architecture_md_is_the_tables_own() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ARCHITECTURE.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page
        .split_once(BEGIN)
        .expect("the mark where the diagram begins");
    let (shown, after) = rest
        .split_once(END)
        .expect("the mark where the diagram ends");
    let wanted = format!("```mermaid\n{}```\n", slotd_engine::diagram());
    if std::env::var_os("UPDATE_DIAGRAM").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{wanted}{END}{after}")).unwrap();
    } else {
        assert_eq!(
            shown, wanted,
            "ARCHITECTURE.md shows another table; run this test with UPDATE_DIAGRAM=1"
        );
    }
}
