//! Environments of each layout as `mkenvimage` (U-Boot 2023.01) made them, kept as files that never change: what was
//! written once is read for ever. Bytes of flags other than its own 1 were put in by hand.
//!
//! Newer copies name slot B on trial, older ones slot A. The small ones have not one byte to spare.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use super::choice::{FlagScheme, Flags};
use super::environment::{Environment, Layout};

type Variables = BTreeMap<String, String>;

fn variables(pairs: &[(&str, &str)]) -> Variables {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    pairs.iter().map(owned).collect()
}

fn newer() -> Variables {
    variables(&[
        ("bootcmd", "run distro_bootcmd; echo \"done\" = $?"),
        ("ethaddr", "02:00:00:00:00:01"),
        ("slotd_a_ok", "1"),
        ("slotd_b_tries", "3"),
        ("slotd_order", "B A"),
    ])
}

fn older() -> Variables {
    variables(&[
        ("bootcmd", "run distro_bootcmd; echo \"done\" = $?"),
        ("ethaddr", "02:00:00:00:00:01"),
        ("slotd_a_ok", "1"),
        ("slotd_order", "A B"),
    ])
}

/// Reads a copy, and sees that writing it back changes no byte.
fn read(name: &str, image: &[u8], layout: Layout) -> (Flags, Variables) {
    let (flags, environment) = Environment::decode(image, layout).unwrap();
    assert!(
        environment.encode(layout, flags).unwrap() == image,
        "{name}"
    );
    (flags, environment.variables().collect())
}

/// What `fw_printenv` reads.
fn theirs(copies: &[&[u8]]) -> Variables {
    let dir = tempfile::tempdir().unwrap();
    let mut lines = String::new();
    for (number, copy) in copies.iter().enumerate() {
        let file = dir.path().join(format!("copy-{number}"));
        fs::write(&file, copy).unwrap();
        lines.push_str(&format!("{} 0 {:#x}\n", file.display(), copy.len()));
    }
    let config = dir.path().join("fw_env.config");
    fs::write(&config, lines).unwrap();
    let output = Command::new("fw_printenv")
        .arg("-c")
        .arg(&config)
        .output()
        .expect("fw_printenv (package libubootenv-tool)");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().filter_map(|line| line.split_once('='));
    lines
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

#[test]
fn a_single_copy_is_read_with_either_padding_and_with_none() {
    for (name, image) in [
        ("ff", include_bytes!("golden/single-ff.env").as_slice()),
        ("00", include_bytes!("golden/single-00.env")),
        ("full", include_bytes!("golden/single-full.env")),
    ] {
        let read = read(name, image, Layout::Single);
        assert_eq!(read, (Flags(0), newer()), "{name}");
        assert_eq!(theirs(&[image]), newer(), "{name}");
    }
}

#[test]
fn of_a_pair_the_newer_copy_is_read_by_either_kind_of_flags() {
    use FlagScheme::{Boolean, Incremental};
    type Pair = (&'static str, FlagScheme, [&'static [u8]; 2], [u8; 2], usize);
    let pairs: [Pair; 5] = [
        (
            "a number that went around, ff",
            Incremental,
            [
                include_bytes!("golden/incremental-ff-first.env"),
                include_bytes!("golden/incremental-ff-second.env"),
            ],
            [0, 255],
            0,
        ),
        (
            "a number that went around, 00",
            Incremental,
            [
                include_bytes!("golden/incremental-00-first.env"),
                include_bytes!("golden/incremental-00-second.env"),
            ],
            [0, 255],
            0,
        ),
        (
            "numbers, the newer one without padding",
            Incremental,
            [
                include_bytes!("golden/incremental-full-first.env"),
                include_bytes!("golden/incremental-full-second.env"),
            ],
            [7, 8],
            1,
        ),
        (
            "obsolete and active, ff",
            Boolean,
            [
                include_bytes!("golden/boolean-ff-first.env"),
                include_bytes!("golden/boolean-ff-second.env"),
            ],
            [0, 1],
            1,
        ),
        (
            "obsolete and active, 00",
            Boolean,
            [
                include_bytes!("golden/boolean-00-first.env"),
                include_bytes!("golden/boolean-00-second.env"),
            ],
            [0, 1],
            1,
        ),
    ];
    for (name, scheme, images, flags, counts) in pairs {
        let copies = images.map(|image| read(name, image, Layout::Redundant));
        assert_eq!([copies[0].0.0, copies[1].0.0], flags, "{name}");
        assert_eq!(scheme.newer(copies[0].0, copies[1].0), counts, "{name}");
        assert_eq!(copies[counts].1, newer(), "{name}");
        assert_eq!(copies[1 - counts].1, older(), "{name}");
        // Its plain files have numbers.
        if scheme == Incremental {
            assert_eq!(theirs(&images), newer(), "{name}");
        }
        // One layout is never taken for the other.
        for image in images {
            assert!(
                Environment::decode(image, Layout::Single).is_err(),
                "{name}"
            );
        }
    }
}
