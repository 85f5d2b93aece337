use proptest::prelude::{Just, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};

use super::*;

/// A copy made by hand from the format's description.
fn copy(strings: &[u8], size: usize, flags: Option<u8>, padding: u8) -> Vec<u8> {
    let header = if flags.is_some() { 5 } else { 4 };
    let mut data = strings.to_vec();
    data.resize(size - header, padding);
    let mut bytes = crc32fast::hash(&data).to_le_bytes().to_vec();
    bytes.extend(flags);
    bytes.extend(data);
    bytes
}

fn decode(bytes: &[u8], layout: Layout) -> Environment {
    Environment::decode(bytes, layout).unwrap().1
}

fn text(environment: &Environment) -> String {
    let pairs = environment.variables();
    pairs
        .map(|(name, value)| format!("{name}={value};"))
        .collect()
}

#[test]
fn a_copy_is_read_and_written_back_byte_for_byte() {
    for padding in [0, 0xff] {
        for strings in ["", "\0", "a=1\0\0", "a=1\0nonsense\0=x\0a=2\0\0"] {
            let strings = if strings.is_empty() { "\0" } else { strings };
            let single = copy(strings.as_bytes(), 64, None, padding);
            let (flags, read) = Environment::decode(&single, Layout::Single).unwrap();
            assert_eq!(read.encode(Layout::Single, flags).unwrap(), single);
            let redundant = copy(strings.as_bytes(), 64, Some(7), padding);
            let (flags, read) = Environment::decode(&redundant, Layout::Redundant).unwrap();
            assert_eq!(flags, Flags(7));
            assert_eq!(read.encode(Layout::Redundant, flags).unwrap(), redundant);
        }
    }
}

#[test]
fn setting_keeps_order_other_strings_and_padding() {
    let bytes = copy(b"b=1\0odd\0a=2\0\0", 64, None, 0xff);
    let mut read = decode(&bytes, Layout::Single);
    read.set("b", "3").unwrap();
    read.set("c", "4").unwrap();
    let wanted = copy(b"b=3\0odd\0a=2\0c=4\0\0", 64, None, 0xff);
    assert_eq!(read.encode(Layout::Single, Flags(0)).unwrap(), wanted);
    read.set("c", "").unwrap();
    read.set("a", "").unwrap();
    read.set("never there", "").unwrap();
    let wanted = copy(b"b=3\0odd\0\0", 64, None, 0xff);
    assert_eq!(read.encode(Layout::Single, Flags(0)).unwrap(), wanted);
}

#[test]
fn of_two_with_one_name_the_last_counts_and_stays() {
    let mut read = decode(
        &copy(b"a=1\0b=2\0a=3\0ab=4\0\0", 64, None, 0),
        Layout::Single,
    );
    assert_eq!(read.text("a"), Some("3"));
    read.set("a", "5").unwrap();
    assert_eq!(text(&read), "b=2;a=5;ab=4;");
}

#[test]
fn what_stands_behind_the_end_is_kept_where_it_is_not_needed() {
    // `fw_setenv` of U-Boot's own tools leaves old strings there.
    let bytes = copy(b"a=11\0\0old=1\0old=2\0\0", 64, None, 0);
    let mut read = decode(&bytes, Layout::Single);
    assert_eq!(text(&read), "a=11;");
    assert_eq!(read.encode(Layout::Single, Flags(0)).unwrap(), bytes);
    read.set("a", "1").unwrap();
    let wanted = copy(b"a=1\0\0\0old=1\0old=2\0\0", 64, None, 0);
    assert_eq!(read.encode(Layout::Single, Flags(0)).unwrap(), wanted);
}

#[test]
fn what_is_no_copy_says_what_it_is() {
    let mut bytes = copy(b"a=1\0\0", 64, None, 0);
    bytes[10] ^= 1;
    let fault = Environment::decode(&bytes, Layout::Single).unwrap_err();
    let message = fault.to_string();
    let stored = u32::from_le_bytes(bytes[..4].try_into().unwrap());
    assert!(message.contains(&format!("{stored:08x}")), "{message}");
    assert!(message.contains("61 3d 31 00"), "{message}");
    for size in 0..5 {
        assert_eq!(
            Environment::decode(&bytes[..size.min(4)], Layout::Single).unwrap_err(),
            Fault::TooSmall { size: size.min(4) }
        );
    }
    assert!(Environment::decode(&bytes[..5], Layout::Redundant).is_err());
    for strings in ["a=1\0b=2", "a"] {
        let open = copy(strings.as_bytes(), 4 + strings.len(), None, 0);
        let fault = Environment::decode(&open, Layout::Single).unwrap_err();
        assert!(matches!(fault, Fault::Unterminated { .. }), "{fault}");
    }
    let open = copy(b"a=1\0b=2\0", 12, None, 0);
    assert_eq!(
        Environment::decode(&open, Layout::Single).unwrap_err(),
        Fault::Unterminated { offset: 12 }
    );
}

#[test]
fn more_than_fits_is_refused_with_both_numbers() {
    let mut read = decode(&copy(b"a=1\0\0", 64, None, 0), Layout::Single);
    // 60 bytes of data: "a=1", "b=…" and the end.
    read.set("b", &"x".repeat(52)).unwrap();
    assert!(read.encode(Layout::Single, Flags(0)).is_ok());
    read.set("b", &"x".repeat(53)).unwrap();
    assert_eq!(
        read.encode(Layout::Single, Flags(0)).unwrap_err(),
        Unfit::Room { need: 61, room: 60 }
    );
    for (name, value) in [("", "x"), ("a=b", "x"), ("a\0", "x"), ("a", "x\0")] {
        assert!(matches!(read.set(name, value), Err(Unfit::Form(_))));
    }
}

#[test]
fn the_size_that_would_have_fitted_is_found() {
    for (flags, layout) in [(None, Layout::Single), (Some(3), Layout::Redundant)] {
        let mut bytes = copy(b"bootcmd=run x\0\0", 0x2000, flags, 0);
        bytes.resize(0x8000, 0xee);
        assert_eq!(fitting_sizes(&bytes), [(0x2000, layout)]);
        let wrong = bytes.get(..0x4000).unwrap();
        assert!(Environment::decode(wrong, layout).is_err());
    }
    assert_eq!(fitting_sizes(&[0; 0x1000]), []);
    assert_eq!(fitting_sizes(&[0xff; 0x1000]), []);
    assert_eq!(fitting_sizes(&[]), []);
}

fn name() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9_.#]{1,12}"
}

fn padding() -> impl Strategy<Value = u8> {
    prop_oneof![Just(0), Just(0xff)]
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused_and_never_changed_by_that(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        right_crc in any::<bool>(),
    ) {
        let mut bytes = bytes;
        if right_crc && bytes.len() > 4 {
            let crc = crc32fast::hash(&bytes[4..]).to_le_bytes();
            bytes[..4].copy_from_slice(&crc);
        }
        for layout in [Layout::Single, Layout::Redundant] {
            if let Ok((flags, read)) = Environment::decode(&bytes, layout) {
                prop_assert_eq!(read.encode(layout, flags).unwrap(), bytes.clone());
            }
        }
    }

    #[test]
    fn variables_are_what_was_set_last(
        changes in proptest::collection::vec((name(), "[ -~]{0,20}"), 0..30),
        padding in padding(),
        redundant in any::<bool>(),
    ) {
        let (layout, flags) = if redundant { (Layout::Redundant, Some(9)) } else { (Layout::Single, None) };
        let mut read = decode(&copy(b"\0", 2048, flags, padding), layout);
        let mut wanted: Vec<(String, String)> = Vec::new();
        for (name, value) in changes {
            read.set(&name, &value).unwrap();
            let known = wanted.iter().position(|(known, _)| *known == name);
            match (known, value.is_empty()) {
                (Some(at), true) => drop(wanted.remove(at)),
                (Some(at), false) => wanted[at].1 = value,
                (None, true) => {}
                (None, false) => wanted.push((name, value)),
            }
            let bytes = read.encode(layout, Flags(9)).unwrap();
            prop_assert_eq!(bytes.len(), 2048);
            prop_assert_eq!(bytes.last(), Some(&padding));
            let (again_flags, again) = Environment::decode(&bytes, layout).unwrap();
            prop_assert_eq!(again_flags.0, flags.unwrap_or(0));
            prop_assert_eq!(again.variables().collect::<Vec<_>>(), wanted.clone());
            read = again;
        }
    }

    #[test]
    fn a_flipped_bit_in_the_data_is_always_seen(at in 4_usize..64, bit in 0..8) {
        let mut bytes = copy(b"a=1\0b=2\0\0", 64, None, 0);
        bytes[at] ^= 1_u8 << bit;
        prop_assert!(Environment::decode(&bytes, Layout::Single).is_err());
    }
}
