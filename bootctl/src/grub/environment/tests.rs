use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::Command;

use proptest::prelude::{ProptestConfig, Strategy, any, prop_assert, prop_assert_eq, proptest};

use super::{DEFAULT_SIZE, Environment, Fault, record};

type Variables = Vec<(String, Vec<u8>)>;

/// What `grub_envblk_iterate` gives its hook, by its own rules: a second reader, written from the C text.
pub(crate) fn iterate(block: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    let (mut p, end) = (25, block.len());
    while p < end {
        if block[p] != b'#' {
            let name = p;
            while p < end && block[p] != b'=' {
                p += 1;
            }
            if p == end {
                return found;
            }
            let equals = p;
            p += 1;
            let mut value = Vec::new();
            loop {
                if p >= end {
                    return found;
                }
                if block[p] == b'\n' {
                    break;
                }
                if block[p] == b'\\' {
                    p += 1;
                    if p >= end {
                        return found;
                    }
                }
                value.push(block[p]);
                p += 1;
            }
            found.push((block[name..equals].to_vec(), value));
        }
        while p < end {
            match block[p] {
                b'\\' => p += 2,
                b'\n' => break,
                _ => p += 1,
            }
        }
        p += 1;
    }
    found
}

pub(crate) fn editenv(file: &Path, arguments: &[OsString]) -> Result<Vec<u8>, String> {
    let output = Command::new("grub-editenv")
        .arg(file)
        .args(arguments)
        .env("LC_ALL", "C")
        .output()
        .expect("grub-editenv (package grub-common)");
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// What `grub-editenv list` prints of these.
pub(crate) fn listing<'a>(values: impl IntoIterator<Item = &'a (Vec<u8>, Vec<u8>)>) -> Vec<u8> {
    let line = |(name, value): &(Vec<u8>, Vec<u8>)| [name, &b"="[..], value, b"\n"].concat();
    values.into_iter().flat_map(line).collect()
}

fn block(variables: &[(String, Vec<u8>)], size: usize) -> Vec<u8> {
    let mut bytes = Environment::fresh().bytes[..94].to_vec();
    for (name, value) in variables {
        bytes.extend(record(name, value));
    }
    bytes.resize(size, b'#');
    bytes
}

/// Bytes that a variable can have, many of them special ones.
pub(crate) fn value() -> impl Strategy<Value = Vec<u8>> {
    let byte = proptest::prop_oneof![
        proptest::sample::select(b"\\\n#= a".to_vec()),
        (1_u8..=255).prop_map(|byte| byte),
    ];
    proptest::collection::vec(byte, 0..12)
}

fn variables() -> impl Strategy<Value = Variables> {
    let name = "[a-z_][a-z0-9_]{0,8}";
    proptest::collection::btree_map(name, value(), 0..8).prop_map(|map| map.into_iter().collect())
}

#[test]
fn a_fresh_block_is_the_one_that_the_usual_tool_makes() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("grubenv");
    editenv(&file, &["create".into()]).unwrap();
    let theirs = fs::read(file).unwrap();
    assert_eq!(Environment::fresh().bytes(), theirs);
    assert_eq!(Environment::parse(&theirs), Ok(Environment::fresh()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_the_usual_tool_writes_is_read(variables in variables()) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("grubenv");
        editenv(&file, &["create".into()]).unwrap();
        let mut arguments = vec![OsString::from("set")];
        for (name, value) in &variables {
            arguments.push(OsString::from_vec([name.as_bytes(), b"=", value].concat()));
        }
        editenv(&file, &arguments).unwrap();
        let bytes = fs::read(&file).unwrap();
        let environment = Environment::parse(&bytes).unwrap();
        prop_assert!(!environment.is_damaged());
        for (name, value) in &variables {
            prop_assert_eq!(environment.get(name), Some(value.clone()));
        }
        prop_assert_eq!(environment.values().len(), variables.len());
        // And without the second comment line, as older tools have it.
        let old: Vec<u8> = [&bytes[..25], &bytes[94..]].concat();
        prop_assert_eq!(Environment::parse(&old).unwrap().values(), environment.values());
    }

    #[test]
    fn what_we_write_the_usual_tool_reads(variables in variables()) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("grubenv");
        let bytes = block(&variables, DEFAULT_SIZE);
        fs::write(&file, &bytes).unwrap();
        let pairs: Vec<_> = variables.iter().map(|(name, value)| (name.clone().into_bytes(), value.clone())).collect();
        prop_assert_eq!(editenv(&file, &["list".into()]).unwrap(), listing(&pairs));
        prop_assert_eq!(iterate(&bytes), pairs);
    }

    #[test]
    fn any_bytes_are_read_as_the_loader_reads_them_or_refused(
        tail in proptest::collection::vec(proptest::prop_oneof![
            proptest::sample::select(b"\\\n##=ab".to_vec()),
            any::<u8>(),
        ], 0..600),
    ) {
        let bytes = [&Environment::fresh().bytes[..25], &tail].concat();
        if let Ok(environment) = Environment::parse(&bytes) {
            let loaded = iterate(&bytes);
            for (name, value) in environment.values() {
                let last = loaded.iter().rev().find(|(known, _)| *known == name);
                prop_assert_eq!(last.map(|(_, value)| value), Some(&value));
            }
            let whole: Vec<u8> = environment.pieces.iter().flat_map(|piece| piece.raw.clone()).collect();
            prop_assert_eq!(&environment.bytes[25..environment.end], whole);
        }
    }
}

#[test]
fn the_file_with_one_newline_too_many_is_read_and_can_be_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("grubenv");
    let mut bytes = block(&[("saved_entry".to_owned(), b"gnulinux".to_vec())], 1024);
    bytes.push(b'\n');
    fs::write(&file, &bytes).unwrap();
    // The complaint that stays for ever.
    let set: [OsString; 2] = ["set".into(), "x=1".into()];
    let error = editenv(&file, &set).unwrap_err();
    assert!(error.contains("too small"), "{error}");

    let environment = Environment::parse(&bytes).unwrap();
    assert!(environment.is_damaged());
    assert_eq!(environment.bytes().len(), 1025);
    assert_eq!(environment.get("saved_entry").unwrap(), b"gnulinux");
    fs::write(&file, environment.bytes()).unwrap();
    editenv(&file, &set).unwrap();
    let after = fs::read(&file).unwrap();
    assert_eq!(after.len(), 1025);
    let after = Environment::parse(&after).unwrap();
    assert_eq!(
        (after.is_damaged(), after.get("x")),
        (false, Some(b"1".to_vec()))
    );
}

#[test]
fn of_two_records_of_one_name_the_last_counts_as_in_the_loader() {
    let twice = [
        ("x".to_owned(), b"1".to_vec()),
        ("x".to_owned(), b"2".to_vec()),
    ];
    let environment = Environment::parse(&block(&twice, 512)).unwrap();
    assert_eq!(environment.get("x"), Some(b"2".to_vec()));
    assert_eq!(environment.values(), [(b"x".to_vec(), b"2".to_vec())]);
}

#[test]
fn what_is_no_block_is_refused_with_the_place() {
    let fresh = Environment::fresh().bytes;
    for bytes in [
        &b""[..],
        b"x=1\n",
        b"# GRUB Environment Block\r\nx=1\r\n",
        &fresh[1..],
    ] {
        assert_eq!(Environment::parse(bytes), Err(Fault::Signature));
    }
    let zeros = [&fresh[..94], &[0; 930]].concat();
    assert_eq!(
        Environment::parse(&zeros),
        Err(Fault::Broken { offset: 94 })
    );
    // A value without an end.
    let open = [&fresh[..25], b"x=1"].concat();
    let fault = Environment::parse(&open).unwrap_err();
    assert!(fault.to_string().contains("byte 25"), "{fault}");
}
