//! The boot generator, run as PID 1 would run it, on made-up roots.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot be set up has to fail"
)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

const SCRIPT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../systemd/usr/lib/systemd/system-generators/slotd-boot-generator"
);
const COUNT: &str =
    "sys/firmware/efi/efivars/LoaderBootCountPath-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";

/// A root directory as the generator sees it.
struct Machine {
    dir: tempfile::TempDir,
}

impl Machine {
    fn new(cmdline: &str) -> Self {
        let machine = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        machine.put("proc/cmdline", format!("{cmdline}\n").as_bytes());
        machine
    }

    /// What systemd-boot leaves for a counted entry: 4 attribute bytes, UTF-16LE, NUL.
    fn counted(self, entry: &str) -> Self {
        let mut bytes = vec![6, 0, 0, 0];
        for unit in format!("\\loader\\entries\\{entry}\0").encode_utf16() {
            bytes.extend_from_slice(&unit.to_le_bytes());
        }
        self.put(COUNT, &bytes);
        self
    }

    fn put(&self, path: &str, bytes: &[u8]) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn run(&self) -> PathBuf {
        self.run_with(Path::new("/bin/sh"))
    }

    /// Runs it with nothing but what an initrd is sure to have.
    fn run_with(&self, shell: &Path) -> PathBuf {
        let normal = self.dir.path().join("normal");
        let programs = self.dir.path().join("bin");
        for program in ["mkdir", "ln"] {
            let from = ["/usr/bin", "/bin"]
                .map(|folder| Path::new(folder).join(program))
                .into_iter()
                .find(|path| path.exists())
                .unwrap();
            let link = programs.join(program);
            if !link.exists() {
                fs::create_dir_all(&programs).unwrap();
                symlink(from, link).unwrap();
            }
        }
        let status = Command::new(shell)
            .env("PATH", &programs)
            .env("LANG", "C.UTF-8")
            .arg(SCRIPT)
            .arg(&normal)
            .arg(self.dir.path().join("early"))
            .arg(self.dir.path().join("late"))
            .arg(self.dir.path())
            .status()
            .unwrap();
        assert!(status.success(), "{status}");
        normal
    }
}

/// All files and links below `dir`, relative, sorted.
fn tree(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![dir.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.is_symlink() {
                folders.push(path);
            } else {
                found.push(path.strip_prefix(dir).unwrap().display().to_string());
            }
        }
    }
    found.sort();
    found
}

fn bounded(dir: &Path) -> bool {
    dir.join("boot-complete.target.d/90-slotd-trial.conf")
        .exists()
}

#[test]
fn a_trial_that_the_command_line_announces_is_one_too() {
    let options = "ro slotd.slot=b slotd.trial slotd.tries=3 slotd.trial_deadline=240 panic=10";
    let announced = Machine::new(options);
    let dir = announced.run();
    assert!(bounded(&dir));
    assert_eq!(
        tree(&dir),
        tree(&Machine::new(options).counted("slotd-b+2-1.conf").run())
    );
    // No word that only begins so.
    for words in [
        "slotd.slot=b slotd.tries=3 slotd.trial_deadline=240",
        "slotd.slot=b slotd.trials",
    ] {
        assert!(!bounded(&Machine::new(words).run()), "{words}");
    }
    let proven = Machine::new(options);
    proven.put("run/slotd/proven", b"");
    assert!(!bounded(&proven.run()));
}

#[test]
fn a_trial_boot_is_bounded_in_every_way_out() {
    let machine = Machine::new("ro panic=10 slotd.slot=b slotd.trial_deadline=240 quiet")
        .counted("slotd-b+2-1.conf");
    let dir = machine.run();
    assert_eq!(
        tree(&dir),
        [
            "basic.target.wants/slotd-confirm.service",
            "boot-complete.target.d/90-slotd-trial.conf",
            "emergency.service.d/90-slotd-trial.conf",
            "rescue.service.d/90-slotd-trial.conf",
            "slotd-confirm.service.d/90-slotd-trial.conf",
            "slotd-health.service.d/90-slotd-trial.conf",
            "slotd.service.d/90-slotd-trial.conf",
        ]
    );
    let read =
        |unit: &str| fs::read_to_string(dir.join(format!("{unit}.d/90-slotd-trial.conf"))).unwrap();
    let target = read("boot-complete.target");
    assert!(target.contains("JobTimeoutSec=300\n"), "{target}");
    assert!(
        target.contains("JobTimeoutAction=reboot-force\n"),
        "{target}"
    );
    let agent = read("slotd.service");
    assert!(agent.contains("StartLimitAction=reboot-force\n"), "{agent}");
    assert!(
        agent.contains("OnFailure=slotd-trial-failed.service\n"),
        "{agent}"
    );
    assert!(
        !agent.contains("FailureAction="),
        "restarts come first: {agent}"
    );
    for unit in [
        "slotd-health.service",
        "slotd-confirm.service",
        "emergency.service",
        "rescue.service",
    ] {
        assert!(
            read(unit).contains("FailureAction=reboot-force\n"),
            "{unit}"
        );
    }
    assert!(read("emergency.service").contains("SuccessAction=reboot-force\n"));
}

#[test]
fn a_boot_that_the_loader_did_not_count_is_left_alone() {
    let machine = Machine::new("ro slotd.slot=a slotd.trial_deadline=240");
    assert_eq!(tree(&machine.run()), Vec::<String>::new());
}

#[test]
fn a_reload_after_the_confirmation_takes_the_bounds_away() {
    let machine = Machine::new("ro slotd.slot=b").counted("slotd-b+2-1.conf");
    machine.put("run/slotd/proven", b"");
    assert_eq!(tree(&machine.run()), Vec::<String>::new());
}

#[test]
fn a_boot_that_stays_although_it_is_not_proven_is_left_alone() {
    let machine = Machine::new("ro slotd.slot=b").counted("slotd-b+2-1.conf");
    machine.put("run/slotd/stays", b"");
    assert_eq!(tree(&machine.run()), Vec::<String>::new());
}

#[test]
fn an_initrd_on_a_trial_boot_waits_neither_at_a_shell_nor_for_a_root() {
    let machine =
        Machine::new("ro slotd.trial_deadline=240 slotd.tries=3").counted("slotd-b+2-1.conf");
    machine.put("etc/initrd-release", b"");
    let dir = machine.run();
    assert_eq!(
        tree(&dir),
        [
            "dracut-emergency.service.d/90-slotd-trial.conf",
            "emergency.service.d/90-slotd-trial.conf",
            "initrd-cleanup.service.d/90-slotd-trial.conf",
            "initrd.target.d/90-slotd-trial.conf",
            "rescue.service.d/90-slotd-trial.conf",
        ]
    );
    let read =
        |unit: &str| fs::read_to_string(dir.join(format!("{unit}.d/90-slotd-trial.conf"))).unwrap();
    for unit in [
        "emergency.service",
        "rescue.service",
        "dracut-emergency.service",
    ] {
        assert_eq!(
            read(unit),
            "[Unit]\nSuccessAction=reboot-immediate\nFailureAction=reboot-immediate\n\
             [Service]\nType=oneshot\nExecStartPre=\nExecStart=\nExecStart=/bin/true\n\
             ExecStopPost=\nStandardInput=null\n",
            "{unit}"
        );
    }
    for unit in ["initrd.target", "initrd-cleanup.service"] {
        assert_eq!(
            read(unit),
            "[Unit]\nJobTimeoutSec=300\nJobTimeoutAction=reboot-immediate\n",
            "{unit}"
        );
    }
}

#[test]
fn an_initrd_is_left_alone_on_any_boot_but_a_trial() {
    let uncounted = Machine::new("ro slotd.tries=3");
    let spent = Machine::new("ro slotd.tries=3").counted("slotd-b+0-4.conf");
    for machine in [uncounted, spent] {
        machine.put("etc/initrd-release", b"");
        assert_eq!(tree(&machine.run()), Vec::<String>::new());
    }
}

/// What reads the loader's variable and the command line differs from shell to shell.
#[test]
fn every_shell_writes_the_same() {
    let shells: Vec<PathBuf> = ["/bin/sh", "/bin/dash", "/bin/bash"]
        .map(PathBuf::from)
        .into_iter()
        .filter(|shell| shell.exists())
        .collect();
    assert!(!shells.is_empty());
    for shell in shells {
        let written = |entry: &str| {
            let machine = Machine::new("ro slotd.trial_deadline=77 slotd.tries=3").counted(entry);
            let dir = machine.run_with(&shell);
            tree(&dir)
                .into_iter()
                .filter(|name| !name.contains(".wants/"))
                .map(|name| (fs::read_to_string(dir.join(&name)).unwrap(), name))
                .collect::<Vec<_>>()
        };
        let first = written("slotd-b+2-1.conf");
        assert_eq!(first.len(), 6, "{}", shell.display());
        assert!(
            first
                .iter()
                .any(|(text, _)| text.contains("JobTimeoutSec=137\n")),
            "{}: {first:?}",
            shell.display()
        );
        // Characters whose bytes a shell could stumble over, in a folder's name.
        assert_eq!(
            written("äöü 猫/slotd-b+0-4.conf"),
            [],
            "{}",
            shell.display()
        );
    }
}

#[test]
fn the_last_try_is_a_trial_but_a_spent_entry_is_a_last_resort() {
    let boot = |entry: &str, tries: &str| {
        let machine = Machine::new(&format!("ro slotd.tries={tries} quiet")).counted(entry);
        bounded(&machine.run())
    };
    assert!(boot("slotd-b+0-3.conf", "3"), "third of three");
    assert!(!boot("slotd-b+0-4.conf", "3"), "fourth of three");
    assert!(boot("slotd-b+0-4.conf", "5"), "the tries are the entry's");
    assert!(boot("slotd-b+1-4.conf", "3"), "the loader's count decides");
    assert!(boot("slotd-b+0-4.conf", "x"), "in doubt a trial");
}

#[test]
fn a_deadline_that_is_no_number_falls_back_to_ten_minutes() {
    for cmdline in [
        "",
        "slotd.trial_deadline=",
        "slotd.trial_deadline=1$(reboot)",
        "* ?",
    ] {
        let machine = Machine::new(cmdline).counted("slotd-b+2-1.conf");
        let dir = machine.run();
        let text =
            fs::read_to_string(dir.join("boot-complete.target.d/90-slotd-trial.conf")).unwrap();
        assert!(text.contains("JobTimeoutSec=660\n"), "{cmdline}: {text}");
    }
}
