//! What is learned of an image from its directory tree.
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

use std::fs;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use slotd_bootctl::{Architecture, InspectSettings, SlotView};
use tempfile::TempDir;

struct Tree(TempDir);

impl Tree {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, path: &str, content: impl AsRef<[u8]>) -> &Self {
        let place = self.0.path().join(path);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::write(place, content).unwrap();
        self
    }

    fn program(&self, path: &str) -> &Self {
        self.file(path, elf(62, 1));
        let place = self.0.path().join(path);
        fs::set_permissions(place, fs::Permissions::from_mode(0o755)).unwrap();
        self
    }

    fn link(&self, path: &str, target: &str) -> &Self {
        let place = self.0.path().join(path);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        symlink(target, place).unwrap();
        self
    }

    fn remove(&self, path: &str) -> &Self {
        fs::remove_file(self.0.path().join(path)).unwrap();
        self
    }

    fn view(&self) -> SlotView {
        SlotView::of_tree(self.0.path(), &InspectSettings::default()).unwrap()
    }
}

/// The first bytes of a program: class, byte order (1 little, 2 big), e_machine at 18.
fn elf(machine: u16, order: u8) -> Vec<u8> {
    let mut bytes = b"\x7fELF\x02".to_vec();
    bytes.push(order);
    bytes.resize(18, 0);
    let machine = if order == 2 {
        machine.to_be_bytes()
    } else {
        machine.to_le_bytes()
    };
    bytes.extend_from_slice(&machine);
    bytes.resize(64, 0);
    bytes
}

/// An image with a slotd that confirms its trial, links as systemd and Debian make them.
fn whole() -> Tree {
    let tree = Tree::new();
    tree.program("usr/bin/slotd")
        .file("usr/lib/systemd/system/slotd.service", "[Unit]\n")
        .file("usr/lib/systemd/system/slotd-health.service", "[Unit]\n")
        .file("usr/lib/systemd/system/slotd-confirm.service", "[Unit]\n")
        .program("usr/lib/systemd/system-generators/slotd-boot-generator")
        .link("lib", "usr/lib")
        .link(
            "etc/systemd/system/multi-user.target.wants/slotd.service",
            "/lib/systemd/system/slotd.service",
        )
        .link(
            "etc/systemd/system/boot-complete.target.requires/slotd-health.service",
            "/usr/lib/systemd/system/slotd-health.service",
        )
        .link(
            "usr/lib/systemd/system/multi-user.target.wants/slotd-confirm.service",
            "../slotd-confirm.service",
        );
    tree
}

#[test]
fn an_empty_tree_has_no_facts() {
    let view = Tree::new().view();
    assert_eq!(view.facts.architecture, Architecture::Unknown);
    assert_eq!((&view.facts.version, &view.facts.kernel), (&None, &None));
    assert_eq!(view.facts.agent.missing().len(), 5);
    assert!(
        view.kernel()
            .err()
            .unwrap()
            .to_string()
            .contains("no kernel")
    );
}

#[test]
fn an_enabled_slotd_can_confirm() {
    let view = whole().view();
    assert_eq!(view.facts.agent.missing(), [""; 0]);
    assert!(view.facts.agent.can_confirm());
}

#[test]
fn whatever_is_missing_of_slotd_is_named() {
    for (path, missing) in [
        ("usr/bin/slotd", "the program slotd"),
        (
            "etc/systemd/system/multi-user.target.wants/slotd.service",
            "an enabled slotd.service",
        ),
        (
            "usr/lib/systemd/system/slotd.service",
            "an enabled slotd.service",
        ),
        (
            "etc/systemd/system/boot-complete.target.requires/slotd-health.service",
            "slotd-health.service required by boot-complete.target",
        ),
        (
            "usr/lib/systemd/system/multi-user.target.wants/slotd-confirm.service",
            "an enabled slotd-confirm.service",
        ),
        (
            "usr/lib/systemd/system-generators/slotd-boot-generator",
            "slotd-boot-generator",
        ),
    ] {
        let tree = whole();
        tree.remove(path);
        assert_eq!(tree.view().facts.agent.missing(), [missing], "{path}");
    }
}

#[test]
fn a_masked_unit_is_not_enabled() {
    let tree = whole();
    tree.link("etc/systemd/system/slotd.service", "/dev/null");
    assert_eq!(
        tree.view().facts.agent.missing(),
        ["an enabled slotd.service"]
    );
}

#[test]
fn a_health_gate_that_only_multi_user_wants_is_none() {
    let tree = whole();
    tree.remove("etc/systemd/system/boot-complete.target.requires/slotd-health.service")
        .link(
            "etc/systemd/system/multi-user.target.wants/slotd-health.service",
            "/usr/lib/systemd/system/slotd-health.service",
        );
    assert!(!tree.view().facts.agent.health_gate);
}

#[test]
fn a_program_that_cannot_be_run_is_none() {
    let tree = whole();
    let program = tree.0.path().join("usr/bin/slotd");
    fs::set_permissions(program, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(!tree.view().facts.agent.binary);
}

#[test]
fn no_symlink_leads_out_of_the_image() {
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("os-release");
    fs::write(&secret, "IMAGE_VERSION=outside\n").unwrap();
    for target in [
        secret.to_str().unwrap(),
        "../../../../../../../../etc/passwd",
    ] {
        let tree = Tree::new();
        tree.link("etc/os-release", target)
            .link("boot/vmlinuz-1", target);
        let view = tree.view();
        assert_eq!(view.facts.version, None);
        assert_eq!(view.facts.kernel, None);
    }
    // An absolute link is one inside the image.
    let tree = Tree::new();
    tree.file("usr/lib/os-release", "IMAGE_VERSION='1.5'\n")
        .link("etc/os-release", "/usr/lib/os-release");
    assert_eq!(tree.view().facts.version.as_deref(), Some("1.5"));
}

#[test]
fn links_in_circles_and_pipes_do_not_stop_the_look() {
    let tree = Tree::new();
    tree.link("etc/os-release", "/etc/os-release")
        .file("boot/x", "");
    let pipe = tree.0.path().join("boot/vmlinuz-1");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(pipe)
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(tree.view().facts.kernel, None);
}

#[test]
fn the_version_is_the_named_key_and_quotes_are_taken_off() {
    let tree = Tree::new();
    tree.file(
        "etc/os-release",
        "# comment\nNAME=\"A \\\"B\\\"\"\nVERSION_ID=\"12\"\nOTHER='x y'\nIMAGE_VERSION=\n",
    );
    let facts = tree.view().facts;
    assert_eq!(
        (facts.version.as_deref(), facts.version_id()),
        (None, Some("12"))
    );
    assert_eq!(facts.pretty_name(), Some("A \"B\""));
    let settings = InspectSettings {
        version_key: "OTHER".to_owned(),
    };
    let facts = SlotView::of_tree(tree.0.path(), &settings).unwrap().facts;
    assert_eq!(facts.version.as_deref(), Some("x y"));
}

#[test]
fn the_architecture_is_that_of_init() {
    for (machine, order, expected) in [
        (62, 1, Architecture::X86_64),
        (183, 1, Architecture::Aarch64),
        (243, 1, Architecture::Other(243)),
        (22, 2, Architecture::Other(22)),
    ] {
        let tree = Tree::new();
        tree.file("usr/lib/systemd/systemd", elf(machine, order))
            .link("sbin/init", "/lib/systemd/systemd")
            .link("lib", "usr/lib");
        assert_eq!(tree.view().facts.architecture, expected);
    }
    let tree = Tree::new();
    tree.file("sbin/init", "#!/bin/sh\n");
    assert_eq!(tree.view().facts.architecture, Architecture::Unknown);
}

#[test]
fn the_newest_kernel_is_taken_with_the_initrd_of_its_version() {
    let tree = Tree::new();
    tree.file("usr/lib/modules/6.1.9/vmlinuz", "old")
        .file("usr/lib/modules/6.1.9/initrd", "old initrd")
        .file("boot/vmlinuz-6.1.10", "new kernel")
        .file("boot/initrd.img-6.1.10", "new initrd")
        .file("boot/vmlinuz-7.0", "");
    let view = tree.view();
    let kernel = view.facts.kernel.clone().unwrap();
    assert_eq!(
        (kernel.path.as_path(), kernel.size),
        (Path::new("/boot/vmlinuz-6.1.10"), 10)
    );
    assert_eq!(
        view.facts.initrd.clone().unwrap().path,
        PathBuf::from("/boot/initrd.img-6.1.10")
    );
    // Twice, because a copy may be tried again.
    for _ in 0..2 {
        let mut text = String::new();
        view.kernel().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "new kernel");
        text.clear();
        view.initrd().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "new initrd");
    }
}

#[test]
fn a_kernel_without_an_initrd_is_fine() {
    let tree = Tree::new();
    tree.file("boot/vmlinuz-6.1.10", "kernel")
        .file("boot/initrd.img-6.1.9", "another's");
    let view = tree.view();
    assert!(view.facts.kernel.is_some() && view.facts.initrd.is_none() && view.initrd().is_none());
}

#[test]
fn the_command_line_is_one_line_without_comments() {
    let tree = Tree::new();
    tree.file(
        "usr/lib/kernel/cmdline",
        "# vendor\nconsole=ttyS0\n  quiet \n",
    );
    assert_eq!(
        tree.view().facts.cmdline.as_deref(),
        Some("console=ttyS0 quiet")
    );
}
