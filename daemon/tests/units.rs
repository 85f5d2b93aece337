//! The units as they are installed, judged by systemd's own tool.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot be set up has to fail"
)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

const TREE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../systemd");
const UNITS: [&str; 5] = [
    "slotd.service",
    "slotd-controller.service",
    "slotd-health.service",
    "slotd-confirm.service",
    "slotd-trial-failed.service",
];

/// A root with this machine's own units and ours laid over them, and something executable where ours expect it.
fn installed() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    copy(
        Path::new("/usr/lib/systemd/system"),
        &root.path().join("usr/lib/systemd/system"),
    );
    copy(Path::new(TREE), root.path());
    for program in ["usr/bin/slotd", "bin/true"] {
        let path = root.path().join(program);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    root
}

fn copy(from: &Path, to: &Path) {
    let status = Command::new("sh")
        .args(["-c", "mkdir -p \"$2\" && cp -R \"$1/.\" \"$2/\"", "sh"])
        .args([from, to])
        .status()
        .unwrap();
    assert!(status.success(), "copying {}", from.display());
}

#[test]
fn systemd_finds_no_fault_in_the_units() {
    let root = installed();
    let out = Command::new("systemd-analyze")
        .arg("verify")
        .arg("--man=no")
        .arg(format!("--root={}", root.path().display()))
        .args(UNITS)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    let about_us: Vec<&str> = said.lines().filter(|line| line.contains("slotd")).collect();
    assert!(about_us.is_empty(), "{said}");
    assert!(out.status.success(), "{said}");
}

#[test]
fn units_name_documentation_that_is_there_on_every_node() {
    for unit in UNITS {
        let text = fs::read_to_string(format!("{TREE}/usr/lib/systemd/system/{unit}")).unwrap();
        let named: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("Documentation="))
            .collect();
        assert_eq!(named, [env!("CARGO_PKG_REPOSITORY")], "{unit}");
    }
}

#[test]
fn systemd_understands_all_that_the_generator_writes() {
    let seen = tempfile::tempdir().unwrap();
    let put = |path: &str, bytes: &[u8]| {
        let path = seen.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    };
    put("proc/cmdline", b"ro slotd.trial_deadline=240\n");
    put(
        "sys/firmware/efi/efivars/LoaderBootCountPath-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f",
        b"\x06\0\0\0",
    );
    for initrd in [false, true] {
        if initrd {
            put("etc/initrd-release", b"");
        }
        let root = installed();
        let units = root.path().join("etc/systemd/system");
        let status = Command::new("sh")
            .arg(format!(
                "{TREE}/usr/lib/systemd/system-generators/slotd-boot-generator"
            ))
            .args([&units, &units, &units])
            .arg(seen.path())
            .status()
            .unwrap();
        assert!(status.success());
        let written: Vec<String> = fs::read_dir(&units)
            .unwrap()
            .filter_map(|entry| {
                let name = entry.unwrap().file_name().into_string().unwrap();
                name.strip_suffix(".d").map(str::to_owned)
            })
            // dracut's own is in its initrds only.
            .filter(|unit| unit != "dracut-emergency.service")
            .collect();
        assert!(written.len() >= 4, "{written:?}");
        let out = Command::new("systemd-analyze")
            .args(["verify", "--man=no"])
            .arg(format!("--root={}", root.path().display()))
            .args(&written)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(!said.contains("slotd-trial"), "{said}");
    }
}

#[test]
fn units_are_exposed_as_little_as_their_work_allows() {
    let root = installed();
    for (unit, tenths) in [
        ("slotd.service", 40),
        ("slotd-health.service", 45),
        ("slotd-confirm.service", 25),
        // It speaks with servers and does nothing else.
        ("slotd-controller.service", 15),
    ] {
        let out = Command::new("systemd-analyze")
            .args(["security", "--offline=true", "--no-pager"])
            .arg(format!("--threshold={tenths}"))
            .arg(format!("--root={}", root.path().display()))
            .arg(unit)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stdout);
        assert!(
            out.status.success() && said.contains("Overall exposure level"),
            "{unit}: {said}"
        );
    }
}

#[test]
fn the_controller_is_started_anew_when_it_ends_to_have_another_copy_of_its_credential() {
    let path = format!("{TREE}/usr/lib/systemd/system/slotd-controller.service");
    let text = fs::read_to_string(path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    for line in [
        "LoadCredential=kubeconfig:/etc/slotd/controller.kubeconfig",
        "Restart=always",
        // However often.
        "StartLimitIntervalSec=0",
    ] {
        assert!(lines.contains(&line), "{line}");
    }
}

/// The settings of a unit that take something away from its process, such as `DevicePolicy=closed`.
fn confinement(unit: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(format!("{TREE}/usr/lib/systemd/system/{unit}")).unwrap();
    let names = [
        "Protect", "Private", "Restrict", "Lock", "Memory", "Keyring", "Remove",
    ];
    text.lines()
        .filter(|line| names.iter().any(|name| line.starts_with(name)))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_confirmation_is_confined_by_nothing_that_the_agent_does_without() {
    let agent = confinement("slotd.service");
    let of_its_own: Vec<String> = confinement("slotd-confirm.service")
        .difference(&agent)
        .cloned()
        .collect();
    // What it never does: it has no look into a slot, and asks nobody on a network.
    assert_eq!(
        of_its_own,
        ["RestrictAddressFamilies=AF_UNIX", "RestrictNamespaces=yes"]
    );
}

#[test]
fn presets_enable_units_that_can_be_enabled() {
    let preset = fs::read_to_string(format!(
        "{TREE}/usr/lib/systemd/system-preset/90-slotd.preset"
    ))
    .unwrap();
    let enabled: Vec<&str> = preset
        .lines()
        .filter_map(|line| line.strip_prefix("enable "))
        .collect();
    assert_eq!(
        enabled,
        [
            "slotd.service",
            "slotd-health.service",
            "slotd-confirm.service",
            "slotd-controller.service",
        ]
    );
    for unit in enabled {
        let text = fs::read_to_string(format!("{TREE}/usr/lib/systemd/system/{unit}")).unwrap();
        assert!(text.contains("[Install]\n"), "{unit}");
    }
}
