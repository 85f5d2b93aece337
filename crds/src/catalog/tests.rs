//! Catalogs as whole documents.

use super::{Catalog, CatalogError, Found, INLINE_LIMIT, LIMIT};
use crate::image::Image;
use crate::version::Version;
use proptest::prelude::{Strategy, prop_assert, prop_assert_eq, prop_assume, proptest};

const ONE: &str = "sha256:99af82a263deca44ad91d21d684f0fa944d5d0456a1da540f1c644f8aa59b14b";
const TWO: &str = "30e14955ebf1352266dc2ff8067e68104607e750abb9d3b36582b8af909fcb58";

fn read(text: &str) -> Catalog {
    Catalog::parse(text.as_bytes(), LIMIT).unwrap()
}

fn error(text: &str) -> String {
    Catalog::parse(text.as_bytes(), LIMIT)
        .unwrap_err()
        .to_string()
}

fn version(text: &str) -> Version {
    text.parse().unwrap()
}

fn problems(catalog: &Catalog) -> Vec<String> {
    catalog.problems().iter().map(ToString::to_string).collect()
}

#[test]
fn a_catalog_with_everything_is_read() {
    let catalog = read(include_str!("golden/complete.yaml"));
    assert_eq!(problems(&catalog), [""; 0]);
    assert_eq!(catalog.stable(), Some("v1.35.1"));
    assert!(catalog.blocks(&version("1.34.0")));
    assert!(!catalog.blocks(&version("v1.34.0+k3s1")));
    assert_eq!(
        catalog.find(&version("1.35.1")),
        Found::Image(&Image {
            version: "v1.35.1".to_owned(),
            url: "http://localhost:8000/rootfs.ext4.zst".to_owned(),
            checksum: ONE.to_owned(),
            expanded_checksum: Some(TWO.to_owned()),
            size: Some(1_858_076_672),
        })
    );
    assert_eq!(catalog.latest().unwrap().version, "v1.35.2+k3s10");
    assert_eq!(catalog.find(&version("v1.33.0")), Found::Nothing);
}

#[test]
fn a_bad_entry_spoils_only_itself_and_is_named_with_its_line() {
    let catalog = read(include_str!("golden/bad-entries.yaml"));
    assert_eq!(
        problems(&catalog),
        [
            "line 5: images[0] (v1.1.0): checksum \"sha256:abc\" is not sha256: and 64 hexadecimal digits",
            "line 8: images[1]: \"1.35\" is not a version: unexpected end of input while parsing minor version number \
             (expected an optional \"v\", then MAJOR.MINOR.PATCH with optional -pre-release and +build)",
            "line 11: images[2]: version is missing; url is missing; checksum is missing",
            "line 12: images[3] is v1.2.0, not an entry with version, url and checksum",
            "line 13: images[4] (v1.3.0): url: it carries a user or password, which would be readable to many; put them on the host",
            "line 16: images[5] (v1.4.0): size 0 is not a number of bytes",
            "line 20: images[6] (v1.5.0): expandedChecksum \"a list\" is not sha256: and 64 hexadecimal digits; \
             size big is not a number of bytes",
            "line 25: images[7] (v1.0.0): the key \"note\" is not known and ignored",
            "line 29: images[8] (v1.6.0): checksum is a number, not a text: put it in quotes",
            "line 34: blocked: \"v1\" is not a version: unexpected end of input while parsing major version number \
             (expected an optional \"v\", then MAJOR.MINOR.PATCH with optional -pre-release and +build); it blocks nothing",
        ]
    );
    assert_eq!(catalog.latest().unwrap().version, "v1.0.0");
    assert!(
        matches!(catalog.find(&version("v1.1.0")), Found::Spoilt(fault) if fault.checksum && fault.line == 5)
    );
    assert!(matches!(catalog.find(&version("v1.3.0")), Found::Spoilt(fault) if !fault.checksum));
    assert!(catalog.blocks(&version("v0.9.0")));
}

#[test]
fn entries_that_mean_one_image_are_one_and_others_are_ambiguous() {
    let catalog = read(include_str!("golden/duplicates.yaml"));
    assert!(
        matches!(catalog.find(&version("v1.0.0")), Found::Image(image) if image.url == "https://a/1")
    );
    assert_eq!(
        catalog.find(&version("v1.1.0")),
        Found::Different(vec![10, 13])
    );
    assert!(
        matches!(catalog.find(&version("v1.2.0")), Found::Image(image) if image.url == "https://b/12")
    );
    assert_eq!(
        catalog.find(&version("v1.3.0")),
        Found::Different(vec![22, 26, 29])
    );
    assert_eq!(catalog.latest().unwrap().version, "v1.2.0");
    let problems = problems(&catalog);
    assert!(
        problems.contains(
            &"line 13: v1.1.0 is listed with different images, on lines 10, 13".to_owned()
        ),
        "{problems:?}"
    );
    assert!(
        problems.contains(
            &"line 29: v1.3.0 is listed with different images, on lines 22, 26, 29".to_owned()
        ),
        "{problems:?}"
    );
}

#[test]
fn what_is_no_catalog_as_a_whole_is_an_error_with_its_line() {
    for (text, message) in [
        ("", "line 1 of the catalog: it is empty"),
        ("# nothing\n", "line 1 of the catalog: it is empty"),
        (
            "stable: v1.0.0\nblocks: [v1.0.0]\n",
            "line 2 of the catalog: unknown field `blocks`, expected one of stable, images, blocked",
        ),
    ] {
        assert_eq!(error(text), message);
    }
    for (text, line) in [
        ("<html>\n<body>404</body>\n", 1),
        ("images:\n  - version: v1.0.0\n   url: x\n", 3),
        ("stable: v1.0.0\nimages: {v1.0.0: x}\n", 2),
        ("stable: v1.0.0\nimages:\n  version: v1.0.0\n", 3),
        ("stable: v1.0.0\nblocked: v1.0.0\n", 2),
        ("- version: v1.0.0\n", 1),
        ("stable: v1.0.0\nstable: v1.0.1\n", 2),
        ("images: []\nstable: [\n", 2),
    ] {
        let error = error(text);
        assert!(
            error.starts_with(&format!("line {line} of the catalog: ")),
            "{text:?}: {error}"
        );
    }
    let latin1 = Catalog::parse(b"stable: v1.0.0\n# \xe9\n", LIMIT).unwrap_err();
    assert_eq!(latin1.to_string(), "line 2 of the catalog: it is not UTF-8");
}

#[test]
fn the_size_is_limited_to_the_byte() {
    for limit in [INLINE_LIMIT, LIMIT] {
        let mut text = "stable: v1.0.0\n#".to_owned();
        text.push_str(&"x".repeat(limit - text.len()));
        assert!(Catalog::parse(text.as_bytes(), limit).is_ok());
        text.push('x');
        assert_eq!(
            Catalog::parse(text.as_bytes(), limit),
            Err(CatalogError::TooLarge { limit })
        );
    }
}

#[test]
fn a_catalog_as_large_as_allowed_is_read() {
    let mut text = "images:\n".to_owned();
    let mut count = 0;
    loop {
        let entry =
            format!("- version: 1.0.{count}\n  url: https://h/{count}\n  checksum: {TWO}\n");
        if text.len() + entry.len() > LIMIT {
            break;
        }
        text.push_str(&entry);
        count += 1;
    }
    let catalog = read(&text);
    assert_eq!(problems(&catalog), [""; 0]);
    assert_eq!(
        catalog.latest().unwrap().version,
        format!("1.0.{}", count - 1)
    );
}

#[test]
fn lists_may_be_missing_or_empty_and_json_is_yaml() {
    for text in ["stable: v1.0.0", "images:\nblocked:\n", "{}", "images: []"] {
        assert_eq!(read(text).latest(), None, "{text}");
    }
    let json = format!(
        r#"{{"images": [{{"version": "1.0.0", "url": "https://h/x", "checksum": "{TWO}", "size": 4096}}]}}"#
    );
    assert_eq!(read(&json).latest().unwrap().size, Some(4096));
}

#[test]
fn a_value_that_is_no_plain_one_spoils_its_entry_alone() {
    for value in [
        "99999999999999999999999999",
        "-1",
        "1.5",
        "1e400",
        ".nan",
        ".inf",
        "9223372036854775808",
        "true",
        "~x",
        "!!binary aGk=",
        "\"4096\"",
        "[]",
        "{a: b}",
        "2026-01-01",
        "0x1000z",
    ] {
        let text = format!(
            "images:\n- {{version: 1.0.0, url: 'https://h/x', checksum: {TWO}}}\n\
             - {{version: 2.0.0, url: 'https://h/x', checksum: {TWO}, size: {value}}}\n"
        );
        let catalog = read(&text);
        assert_eq!(catalog.latest().unwrap().version, "1.0.0", "{value}");
        assert_eq!(catalog.problems().len(), 1, "{value}");
    }
}

fn any_version() -> impl Strategy<Value = Version> {
    "v?[0-2]\\.[0-3]\\.[0-3](-rc\\.[0-9])?(\\+k3s[0-9])?".prop_map(|text| text.parse().unwrap())
}

proptest! {
    #[test]
    fn the_latest_is_the_highest_that_may_be_installed(
        versions in proptest::collection::vec(any_version(), 0..12),
        blocked in proptest::collection::vec(any_version(), 0..4),
    ) {
        let mut text = "images:\n".to_owned();
        for version in &versions {
            text.push_str(&format!("- {{version: {version}, url: 'https://h/x', checksum: {TWO}}}\n"));
        }
        text.push_str("blocked:\n");
        for version in &blocked {
            text.push_str(&format!("- {version}\n"));
        }
        let catalog = read(&text);
        let highest = versions.iter().filter(|version| !blocked.contains(version) && !version.is_prerelease()).max();
        let latest = catalog.latest().map(|image| version(&image.version));
        prop_assert_eq!(latest.as_ref(), highest);
    }

    #[test]
    fn the_nearest_are_next_to_the_missing_one(
        versions in proptest::collection::vec(any_version(), 0..12),
        missing in any_version(),
    ) {
        prop_assume!(!versions.contains(&missing));
        let list: Vec<_> = versions.iter().map(|v| format!("{{version: {v}, url: 'https://h/x', checksum: {TWO}}}")).collect();
        let catalog = read(&format!("images: [{}]\n", list.join(", ")));
        let nearest = catalog.nearest(&missing);
        let (below, above): (Vec<_>, Vec<_>) = nearest.iter().copied().partition(|version| **version < missing);
        prop_assert!(nearest.windows(2).all(|pair| pair[0] < pair[1]));
        prop_assert!(below.len() <= 2 && above.len() <= 2);
        prop_assert_eq!(below.last().copied(), versions.iter().filter(|v| **v < missing).max());
        prop_assert_eq!(above.first().copied(), versions.iter().filter(|v| **v > missing).min());
    }

    #[test]
    fn no_document_brings_the_reader_down(text in "[ -~\n]{0,200}") {
        let _ = Catalog::parse(text.as_bytes(), LIMIT);
        let _ = Catalog::parse(format!("images:\n- {text}\n").as_bytes(), LIMIT);
    }
}
