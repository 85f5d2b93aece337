//! Other tools as oracles: `mkenvimage` of U-Boot, `fw_printenv` and `fw_setenv` of libubootenv (Debian packages
//! `u-boot-tools` and `libubootenv-tool`).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use proptest::prelude::{Strategy, any};
use proptest::test_runner::{Config as RunnerConfig, TestRunner};

use super::choice::Flags;
use super::environment::{Environment, Layout};
use super::storage::Storage;
use crate::fixture::FixtureNode;
use crate::slot::SlotSettings;
use crate::table::SlotTable;

type Variables = BTreeMap<String, String>;

fn run(tool: &str, arguments: &[&str]) -> Output {
    let output = Command::new(tool)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{tool}: {error}; see CONTRIBUTING.md for packages"));
    assert!(
        output.status.success(),
        "{tool} {arguments:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn lines(variables: &Variables) -> String {
    variables
        .iter()
        .map(|(name, value)| format!("{name}={value}\n"))
        .collect()
}

/// A copy as `mkenvimage` makes it.
fn mkenvimage(dir: &Path, variables: &Variables, size: &str, extra: &[&str]) -> Vec<u8> {
    let (text, image) = (dir.join("variables.txt"), dir.join("image.env"));
    fs::write(&text, lines(variables)).unwrap();
    let mut arguments = extra.to_vec();
    let (text, image) = (text.to_str().unwrap(), image.to_str().unwrap());
    arguments.extend(["-s", size, "-o", image, text]);
    run("mkenvimage", &arguments);
    fs::read(image).unwrap()
}

fn some_variables() -> Variables {
    [
        ("bootcmd", "run distro_bootcmd; echo \"done\" = $?"),
        ("ethaddr", "02:00:00:00:00:01"),
        ("slotd_order", "A B"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

#[test]
fn images_of_mkenvimage_are_read_and_written_back_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    for (layout, redundant) in [(Layout::Single, false), (Layout::Redundant, true)] {
        for padding in ["0xff", "0x00"] {
            for size in ["0x100", "0x2000", "0x20000", "1000"] {
                let mut extra = vec!["-p", padding];
                extra.extend(redundant.then_some("-r"));
                let image = mkenvimage(dir.path(), &some_variables(), size, &extra);
                let (flags, read) = Environment::decode(&image, layout).unwrap();
                let found: Variables = read.variables().collect();
                assert_eq!(found, some_variables());
                assert!(
                    read.encode(layout, flags).unwrap() == image,
                    "{extra:?} {size}"
                );
                assert_eq!(flags, Flags(u8::from(redundant)));
            }
        }
    }
}

/// A node whose environment both sides reach: one file, or two.
struct Shared {
    _dir: tempfile::TempDir,
    storage: Storage,
    /// Configuration with the paths of this machine.
    config: PathBuf,
    files: Vec<PathBuf>,
}

impl Shared {
    const SIZE: &str = "0x1000";

    fn new(redundant: bool, flags: u8) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let node = FixtureNode::create(&dir.path().join("node")).unwrap();
        let system = node.system();
        let names: &[&str] = if redundant {
            &["/boot/uboot.env", "/boot/uboot-redund.env"]
        } else {
            &["/boot/uboot.env"]
        };
        for folder in ["/boot", "/etc"] {
            fs::create_dir_all(system.path(folder)).unwrap();
        }
        let extra: &[&str] = if redundant { &["-r"] } else { &[] };
        let mut image = mkenvimage(dir.path(), &some_variables(), Self::SIZE, extra);
        if redundant {
            image[4] = flags;
        }
        // 16 bytes that belong to nobody stand before and behind each copy.
        let around = [vec![0xaa; 16], image, vec![0xbb; 16]].concat();
        let (mut inside, mut outside) = (String::new(), String::new());
        let mut files = Vec::new();
        for name in names {
            let file = system.path(name);
            fs::write(&file, &around).unwrap();
            inside.push_str(&format!("{name} 0x10 {}\n", Self::SIZE));
            outside.push_str(&format!("{} 0x10 {}\n", file.display(), Self::SIZE));
            files.push(file);
        }
        let path = Path::new("/etc/fw_env.config");
        fs::write(system.path(path), inside).unwrap();
        let config = dir.path().join("fw_env.config");
        fs::write(&config, outside).unwrap();
        let table = SlotTable::discover(&system, &SlotSettings::Auto, None).unwrap();
        let storage = Storage::find(&system, path, &table).unwrap();
        Self {
            _dir: dir,
            storage,
            config,
            files,
        }
    }

    fn ours(&self) -> Variables {
        self.storage
            .read()
            .unwrap()
            .environment
            .variables()
            .collect()
    }

    fn theirs(&self) -> Variables {
        let output = run("fw_printenv", &["-c", self.config.to_str().unwrap()]);
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines()
            .filter_map(|line| line.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    fn set_by_us(&self, changes: &[(String, String)]) {
        let stored = self.storage.read().unwrap();
        let mut wanted = stored.environment.clone();
        for (name, value) in changes {
            wanted.set(name, value).unwrap();
        }
        self.storage.write(&stored, &wanted).unwrap();
    }

    fn set_by_them(&self, changes: &[(String, String)]) {
        let script = self.config.with_extension("script");
        let text: String = changes
            .iter()
            .map(|(name, value)| format!("{name}={value}\n"))
            .collect();
        fs::write(&script, text).unwrap();
        run(
            "fw_setenv",
            &[
                "-c",
                self.config.to_str().unwrap(),
                "-s",
                script.to_str().unwrap(),
            ],
        );
    }

    fn nothing_around_changed(&self) -> bool {
        self.files.iter().all(|file| {
            let bytes = fs::read(file).unwrap();
            bytes.len() == 0x1020 && bytes[..16] == [0xaa; 16] && bytes[0x1010..] == [0xbb; 16]
        })
    }
}

fn changes() -> impl Strategy<Value = Vec<(String, String)>> {
    let value = "[!-~]([ -~]{0,30}[!-~])?|";
    proptest::collection::vec(("[a-z][a-zA-Z0-9_]{0,6}", value), 1..12)
}

fn applied(mut variables: Variables, changes: &[(String, String)]) -> Variables {
    for (name, value) in changes {
        if value.is_empty() {
            variables.remove(name);
        } else {
            variables.insert(name.clone(), value.clone());
        }
    }
    variables
}

#[test]
fn what_one_side_writes_the_other_one_reads() {
    for redundant in [false, true] {
        // From 250 on the number of a pair goes around.
        let shared = Shared::new(redundant, 250);
        let mut wanted = some_variables();
        let mut runner = TestRunner::new(RunnerConfig {
            cases: 60,
            failure_persistence: None,
            ..RunnerConfig::default()
        });
        let wanted = std::cell::RefCell::new(&mut wanted);
        runner
            .run(&(changes(), any::<bool>()), |(changes, by_us)| {
                let mut wanted = wanted.borrow_mut();
                let mut changes = changes;
                **wanted = applied(wanted.clone(), &changes);
                // Bounded, so that it fits: what has no room goes, whether it was there before or is one of the changes.
                while lines(*wanted).len() > 3000
                    && let Some((name, _)) = wanted.pop_first()
                {
                    changes.push((name, String::new()));
                }
                if by_us {
                    shared.set_by_us(&changes);
                } else {
                    shared.set_by_them(&changes);
                }
                assert_eq!(shared.ours(), **wanted);
                assert_eq!(shared.theirs(), **wanted);
                assert!(shared.nothing_around_changed());
                Ok(())
            })
            .unwrap();
    }
}

#[test]
fn both_sides_choose_the_same_copy_whatever_its_flags_are() {
    let shared = Shared::new(true, 0);
    let mut copies = Vec::new();
    for (file, name) in shared.files.iter().zip(["first", "second"]) {
        let variables = Variables::from([("copy".to_owned(), name.to_owned())]);
        let image = mkenvimage(
            shared.config.parent().unwrap(),
            &variables,
            Shared::SIZE,
            &["-r"],
        );
        copies.push((file.clone(), image));
    }
    for first in [0, 1, 2, 127, 128, 254, 255] {
        for second in [0, 1, 2, 127, 128, 254, 255] {
            for ((file, image), flags) in copies.iter().zip([first, second]) {
                let mut bytes = vec![0; 16];
                bytes.extend_from_slice(image);
                bytes[20] = flags;
                bytes.extend_from_slice(&[0; 16]);
                fs::write(file, bytes).unwrap();
            }
            assert_eq!(shared.ours(), shared.theirs(), "{first} {second}");
        }
    }
}

#[test]
fn what_is_no_environment_to_them_is_none_to_us() {
    for redundant in [false, true] {
        let shared = Shared::new(redundant, 1);
        for file in &shared.files {
            let mut bytes = fs::read(file).unwrap();
            bytes[0x800] ^= 1;
            fs::write(file, bytes).unwrap();
        }
        let output = Command::new("fw_printenv")
            .args(["-c", shared.config.to_str().unwrap()])
            .output()
            .unwrap();
        assert!(!output.status.success());
        let error = shared.storage.read().unwrap_err();
        assert!(
            error.to_string().contains("no good U-Boot environment"),
            "{error}"
        );
    }
}

#[test]
fn the_boot_script_is_one_that_mkimage_takes() {
    let dir = tempfile::tempdir().unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../systemd/usr/lib/slotd/uboot");
    let image = dir.path().join("boot.scr");
    run(
        "mkimage",
        &[
            "-A",
            "arm64",
            "-T",
            "script",
            "-C",
            "none",
            "-d",
            folder.join("boot.cmd").to_str().unwrap(),
            image.to_str().unwrap(),
        ],
    );
    let script = fs::read(folder.join("boot.cmd")).unwrap();
    let image = fs::read(image).unwrap();
    assert!(image.ends_with(&script));
}
