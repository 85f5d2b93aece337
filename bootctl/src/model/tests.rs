use proptest::prelude::{Just, Strategy, any, prop_assert, prop_assert_eq, proptest};
use proptest::{option, prop_oneof, sample};

use super::{ModelEntry, Preferences, compare, glob, next, version_compare};
use crate::entry::{Counter, EntryName};

fn entry(file: &str, version: &str) -> ModelEntry {
    ModelEntry {
        name: EntryName::parse(file).unwrap(),
        sort_key: Some("slotd".to_owned()),
        machine_id: Some("0123".to_owned()),
        version: Some(version.to_owned()),
    }
}

fn next_name(entries: &[ModelEntry]) -> String {
    next(entries, &Preferences::default())
        .unwrap()
        .name
        .to_string()
}

#[test]
fn versions_sort_as_the_loaders_own_comment_lists_them() {
    // The list in the comment of strverscmp_improved, oldest first.
    let sorted = [
        "122.1",
        "123~rc1-1",
        "123",
        "123-a",
        "123-a.1",
        "123-1",
        "123-1.1",
        "123^post1",
        "123.a-1",
        "123.1-1",
        "123a-1",
        "124-1",
    ];
    for (older, a) in sorted.iter().enumerate() {
        for (newer, b) in sorted.iter().enumerate() {
            assert_eq!(version_compare(a, b), older.cmp(&newer), "{a} and {b}");
        }
    }
}

#[test]
fn a_trial_with_the_highest_version_is_started_and_counted_down_to_the_good_one() {
    let good = entry("slotd-a.conf", "1");
    let mut trial = entry("slotd-b+3.conf", "2");
    for expected in ["slotd-b+2-1.conf", "slotd-b+1-2.conf", "slotd-b+0-3.conf"] {
        let entries = [good.clone(), trial.clone()];
        assert_eq!(next_name(&entries), trial.name.to_string());
        trial.name = trial.name.started();
        assert_eq!(trial.name.to_string(), expected);
    }
    assert_eq!(next_name(&[good, trial]), "slotd-a.conf");
}

#[test]
fn versions_are_numbers_not_text() {
    assert_eq!(
        next_name(&[entry("slotd-a.conf", "9"), entry("slotd-b.conf", "10")]),
        "slotd-b.conf"
    );
}

#[test]
fn a_spent_entry_is_the_last_resort() {
    assert_eq!(
        next_name(&[entry("slotd-b+0-3.conf", "2")]),
        "slotd-b+0-3.conf"
    );
    assert_eq!(next(&[], &Preferences::default()), None);
}

#[test]
fn without_a_sort_key_the_version_does_not_count_and_comes_last() {
    let old_style = |file: &str, version: &str| ModelEntry {
        sort_key: None,
        ..entry(file, version)
    };
    let entries = [old_style("x-1.conf", "9"), old_style("x-2.conf", "1")];
    assert_eq!(next_name(&entries), "x-2.conf");
    assert_eq!(
        next_name(&[old_style("zz.conf", "9"), entry("slotd-a.conf", "1")]),
        "slotd-a.conf"
    );
}

#[test]
fn a_smaller_sort_key_or_machine_id_comes_first_whatever_the_version() {
    let debian = ModelEntry {
        sort_key: Some("debian".to_owned()),
        ..entry("debian-6.1.conf", "0")
    };
    assert_eq!(
        next_name(&[entry("slotd-b+3.conf", "99"), debian]),
        "debian-6.1.conf"
    );
    let other = ModelEntry {
        machine_id: None,
        ..entry("slotd-x.conf", "0")
    };
    assert_eq!(
        next_name(&[entry("slotd-b+3.conf", "99"), other]),
        "slotd-x.conf"
    );
}

#[test]
fn what_is_set_outranks_the_order_and_ignores_counters() {
    let entries = [entry("slotd-a.conf", "1"), entry("slotd-b+0-3.conf", "2")];
    let name = |preferences: &Preferences| next(&entries, preferences).unwrap().name.to_string();
    let set = |pattern: &str| Some(pattern.to_owned());
    let preferences = Preferences {
        default_variable: set("slotd-b*"),
        ..Preferences::default()
    };
    assert_eq!(name(&preferences), "slotd-b+0-3.conf");
    let preferences = Preferences {
        one_shot: set("slotd-a.conf"),
        ..preferences
    };
    assert_eq!(name(&preferences), "slotd-a.conf");
    let preferences = Preferences {
        default_config: set("@saved"),
        saved: set("SLOTD-B.conf"),
        ..Preferences::default()
    };
    assert_eq!(name(&preferences), "slotd-b+0-3.conf");
    let preferences = Preferences {
        default_config: set("nothing"),
        ..Preferences::default()
    };
    assert_eq!(name(&preferences), "slotd-a.conf");
}

#[test]
fn patterns_match_as_in_a_shell() {
    for (pattern, text, matches) in [
        ("*", "", true),
        ("a*c", "abbbc", true),
        ("a?c", "ac", false),
        ("[a-c]x", "bx", true),
        ("[]]x", "]x", true),
        ("\\*", "*", true),
        ("\\*", "x", false),
        ("slotd-*.conf", "slotd-a.conf", true),
        ("slotd-?.conf", "slotd-b+3.conf", false),
    ] {
        assert_eq!(glob(pattern, text), matches, "{pattern} {text}");
    }
}

fn entries() -> impl Strategy<Value = ModelEntry> {
    let name = prop_oneof![
        Just("slotd-a"),
        Just("slotd-b"),
        Just("debian"),
        Just("x-1.2")
    ];
    let counter = option::of((0_u32..4, 0_u32..4).prop_map(|(left, done)| Counter { left, done }));
    let key = || {
        option::of(sample::select(vec![
            "a".to_owned(),
            "slotd".to_owned(),
            "z".to_owned(),
        ]))
    };
    let version = option::of("[0-9]{1,2}([.~-][0-9a]){0,2}");
    (name, counter, key(), key(), version).prop_map(
        |(stem, counter, sort_key, machine_id, version)| ModelEntry {
            name: EntryName {
                stem: stem.to_owned(),
                counter,
                suffix: ".conf".to_owned(),
            },
            sort_key,
            machine_id,
            version,
        },
    )
}

proptest! {
    #[test]
    fn comparing_versions_is_antisymmetric(a in "[0-9a-z.~^_-]{0,10}", b in "[0-9a-z.~^_-]{0,10}") {
        prop_assert_eq!(version_compare(&a, &b), version_compare(&b, &a).reverse());
        prop_assert!(version_compare(&a, &a).is_eq());
    }

    #[test]
    fn decimal_sequences_sort_by_value(a in any::<u64>(), b in any::<u64>()) {
        prop_assert_eq!(version_compare(&a.to_string(), &b.to_string()), a.cmp(&b));
    }

    #[test]
    fn the_order_is_total(a in entries(), b in entries(), c in entries()) {
        prop_assert_eq!(compare(&a, &b), compare(&b, &a).reverse());
        if compare(&a, &b).is_le() && compare(&b, &c).is_le() {
            prop_assert!(compare(&a, &c).is_le());
        }
    }

    #[test]
    fn a_spent_entry_is_started_only_when_all_are_spent(list in proptest::collection::vec(entries(), 1..6)) {
        let chosen = next(&list, &Preferences::default()).unwrap();
        prop_assert!(!chosen.spent() || list.iter().all(ModelEntry::spent));
    }

    #[test]
    fn any_trial_ends_after_as_many_boots_as_it_has(left in 1_u32..20, done in 0_u32..20) {
        let good = entry("slotd-a.conf", "1");
        let mut trial = entry("slotd-b.conf", "2");
        trial.name.counter = Some(Counter { left, done });
        let mut boots = 0;
        while next(&[good.clone(), trial.clone()], &Preferences::default()) == Some(&trial) {
            trial.name = trial.name.started();
            boots += 1;
        }
        prop_assert_eq!(boots, left);
    }

    #[test]
    fn patterns_never_panic(pattern in "[ab*?\\[\\]\\\\-]{0,8}", text in "[ab\\]-]{0,8}") {
        let _ = glob(&pattern, &text);
    }
}
