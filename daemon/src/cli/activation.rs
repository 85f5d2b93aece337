//! The command that makes the next boot a trial of a slot without the daemon, with everything that is configured here:
//! `slotd-bootctl` reads no configuration.

use slotd_bootctl::{
    EspSetting, GrubConvention, LoaderKind, LoaderSetting, SlotName, SlotSettings, UbootSetting,
};

use crate::node::NodeSettings;

/// The words of the command, the program first.
pub(super) fn activation(node: &NodeSettings, slot: SlotName) -> Vec<String> {
    let mut words = vec![
        "slotd-bootctl".to_owned(),
        "activate".to_owned(),
        slot.to_string(),
        format!("--tries={}", node.tries),
        format!("--deadline={}", node.deadline.as_secs()),
        format!("--panic={}", node.panic_seconds),
    ];
    // With the sign, since the value may begin with a hyphen.
    if !node.boot_options.is_empty() {
        words.push(format!("--options={}", node.boot_options));
    }
    if let SlotSettings::Explicit { a, b } = &node.slots {
        words.extend([format!("--slot-a={a}"), format!("--slot-b={b}")]);
    }
    words.extend(loader_words(&node.loader));
    words
}

/// What of the loader's settings is not the default.
fn loader_words(loader: &LoaderSetting) -> Vec<String> {
    let mut words = Vec::new();
    if let EspSetting::Path(path) = &loader.esp {
        words.push(format!("--esp={}", path.display()));
    }
    if loader.kind != LoaderKind::default() {
        words.push(format!("--loader={}", loader.kind));
    }
    if let Some(path) = &loader.grub.environment {
        words.push(format!("--grub-environment={}", path.display()));
    }
    if loader.grub.convention != GrubConvention::default() {
        words.push(format!("--grub-convention={}", loader.grub.convention));
    }
    let uboot = UbootSetting::default();
    if loader.uboot.config != uboot.config {
        words.push(format!("--uboot-config={}", loader.uboot.config.display()));
    }
    if loader.uboot.convention != uboot.convention {
        words.push(format!("--uboot-convention={}", loader.uboot.convention));
    }
    words
}

/// The words as a line for a POSIX shell.
pub(super) fn shell_line(words: &[String]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    quoted.join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_@%+=:,./-".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::process::Command as Process;
    use std::time::Duration;

    use clap::Parser;
    use slotd_bootctl::{
        EspSetting, GrubConvention, GrubSetting, LoaderKind, LoaderSetting, SlotLocator, SlotName,
        SlotSettings, UbootConvention, UbootSetting,
    };
    use slotd_image::FetchSettings;

    use super::bootctl_arguments::{Arguments, Command};
    use super::{activation, shell_line};
    use crate::node::NodeSettings;

    /// The line's words as a shell makes them, read by the program's own parser.
    fn parsed(line: &str) -> Arguments {
        let script = format!("printf '%s\\0' {line}");
        let output = Process::new("sh").arg("-c").arg(script).output().unwrap();
        assert!(output.status.success(), "{line}");
        let text = String::from_utf8(output.stdout).unwrap();
        let words: Vec<&str> = text.strip_suffix('\0').unwrap().split('\0').collect();
        Arguments::try_parse_from(words).unwrap_or_else(|error| panic!("{line}\n{error}"))
    }

    fn node(loader: LoaderSetting, options: &str, slots: SlotSettings) -> NodeSettings {
        NodeSettings {
            slots,
            tries: 7,
            deadline: Duration::from_secs(901),
            boot_options: options.to_owned(),
            panic_seconds: 23,
            ..NodeSettings::new(loader, Box::new(|| Ok(FetchSettings::default())))
        }
    }

    #[test]
    fn the_printed_command_arms_as_the_daemon_would() {
        let locator = |text: &str| text.parse::<SlotLocator>().unwrap();
        let explicit = SlotSettings::Explicit {
            a: locator("PARTLABEL=my root $A"),
            b: locator("PARTUUID=6c1b7e0e-63ae-4b3f-9f0a-2f4d5c3f9c11"),
        };
        let labels = SlotSettings::Explicit {
            a: locator("/dev/disk/by-path/a"),
            b: locator("PARTLABEL=it's b"),
        };
        let paths = ["/boot", "/mnt/the esp", "/mnt/'$(reboot)`x`\\"].map(PathBuf::from);
        for options in [
            "",
            "quiet",
            "console=ttyS0,115200 quiet",
            "-x --y",
            "a=\"b c\" d='e' $HOME `id` \\ * ! # ; & | > ä",
        ] {
            for slots in [SlotSettings::Auto, explicit.clone(), labels.clone()] {
                let settings = [EspSetting::Auto]
                    .into_iter()
                    .chain(paths.iter().cloned().map(EspSetting::Path));
                for esp in settings {
                    let loader = LoaderSetting {
                        kind: LoaderKind::Grub,
                        esp,
                        grub: GrubSetting {
                            environment: Some("/boot/my grub/$env".into()),
                            convention: GrubConvention::Rauc,
                            variables: None,
                        },
                        uboot: UbootSetting {
                            config: "/etc/u boot.config".into(),
                            convention: UbootConvention::BootCount {
                                variable: "mender_boot_part".to_owned(),
                                a: "2".to_owned(),
                                b: "3".to_owned(),
                            },
                        },
                    };
                    let node = node(loader.clone(), options, slots.clone());
                    let line = shell_line(&activation(&node, SlotName::B));
                    let read = parsed(&line);
                    assert_eq!(read.loader_setting(), loader, "{line}");
                    let Some(Command::Activate { slot, trial }) = read.command else {
                        panic!("{line}");
                    };
                    assert_eq!(slot, SlotName::B, "{line}");
                    assert_eq!(trial.tries, 7, "{line}");
                    assert_eq!(trial.deadline, 901, "{line}");
                    assert_eq!(trial.panic, 23, "{line}");
                    assert_eq!(trial.options, options, "{line}");
                    let read_slots = match (read.slot_a, read.slot_b) {
                        (Some(a), Some(b)) => SlotSettings::Explicit { a, b },
                        _ => SlotSettings::Auto,
                    };
                    assert_eq!(read_slots, slots, "{line}");
                }
            }
        }
    }

    #[test]
    fn a_plain_command_is_printed_plainly() {
        let node = NodeSettings::new(
            LoaderSetting::auto(EspSetting::Path(Path::new("/efi").to_owned())),
            Box::new(|| Ok(FetchSettings::default())),
        );
        assert_eq!(
            shell_line(&activation(&node, SlotName::A)),
            "slotd-bootctl activate A --tries=3 --deadline=600 --panic=10 --esp=/efi"
        );
    }
}

/// The parser of `slotd-bootctl`, as it is built into that program.
#[cfg(test)]
#[path = "../../../bootctl/src/bin/slotd-bootctl/arguments.rs"]
#[allow(dead_code, reason = "the program uses what the test does not")]
mod bootctl_arguments;
