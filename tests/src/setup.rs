//! Installing what the lab needs on a Debian machine, and saying so.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};

/// A tool, where it may be, and the package that has it.
const TOOLS: &[(&str, &str)] = &[
    ("g++", "g++"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("qemu-storage-daemon", "qemu-system-common"),
    ("mmdebstrap", "mmdebstrap"),
    ("mformat", "mtools"),
    ("fsck.fat", "dosfstools"),
    ("mcopy", "mtools"),
    ("mdir", "mtools"),
    ("mtype", "mtools"),
    ("mdel", "mtools"),
    ("sfdisk", "fdisk"),
    ("sgdisk", "gdisk"),
    ("cgpt", "cgpt"),
    ("mke2fs", "e2fsprogs"),
    ("debugfs", "e2fsprogs"),
    ("e2fsck", "e2fsprogs"),
    ("mkfs.btrfs", "btrfs-progs"),
    ("zstd", "zstd"),
    ("curl", "curl"),
    ("tar", "tar"),
    ("veritysetup", "cryptsetup-bin"),
    ("objcopy", "binutils"),
    ("setpriv", "util-linux"),
    ("unshare", "util-linux"),
    ("losetup", "mount"),
    ("mount", "mount"),
    ("umount", "mount"),
    ("partx", "util-linux"),
    ("systemd-analyze", "systemd"),
    ("busctl", "systemd"),
    ("dbus-daemon", "dbus-daemon"),
    ("strace", "strace"),
    ("efibootmgr", "efibootmgr"),
    ("grub-mkimage", "grub-common"),
    ("grub-editenv", "grub-common"),
    ("grub-fstest", "grub-common"),
    ("grub-emu", "grub-emu"),
    ("mkimage", "u-boot-tools"),
    ("mkenvimage", "u-boot-tools"),
    ("fw_printenv", "libubootenv-tool"),
    ("fw_setenv", "libubootenv-tool"),
];

/// Files that no tool stands for.
const FILES: &[(&str, &str)] = &[
    ("/usr/share/OVMF/OVMF_CODE_4M.fd", "ovmf"),
    ("/usr/lib/grub/x86_64-efi/normal.mod", "grub-efi-amd64-bin"),
    ("/usr/lib/grub/i386-pc/normal.mod", "grub-pc-bin"),
];

/// Installs the packages that are missing, with apt-get. Says what it does; does nothing and says nothing when all is there.
pub fn ensure_packages() -> Result<()> {
    let missing = missing(&|tool| find(tool), &|file| Path::new(file).exists());
    if missing.is_empty() {
        return Ok(());
    }
    install(&missing)?;
    let still: Vec<&str> = self::missing(&|tool| find(tool), &|file| Path::new(file).exists());
    if !still.is_empty() {
        bail!("still missing after the installation: {}", still.join(", "));
    }
    Ok(())
}

/// Installs those of these packages that are not installed; an error if another package would have to go for them.
pub(crate) fn ensure_installed(packages: &[&'static str]) -> Result<()> {
    let mut missing = Vec::new();
    for package in packages {
        if installed_version(package)?.is_none() {
            missing.push(*package);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    install_with(&missing, &["--no-remove"])
}

/// The version of a package that is installed.
pub(crate) fn installed_version(package: &str) -> Result<Option<String>> {
    let output = Command::new("dpkg-query")
        .args(["--show", "--showformat=${db:Status-Status} ${Version}"])
        .arg(package)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .context("starting dpkg-query")?;
    // It fails for a package that it never heard of.
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.strip_prefix("installed ").map(str::to_owned))
}

/// Installs packages with apt-get, and says so.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    install_with(packages, &[])
}

fn install_with(packages: &[&str], options: &[&str]) -> Result<()> {
    // Tests run beside one another, and each may be the first that needs something.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    eprintln!("lab: installing {} with apt-get", packages.join(", "));
    let sudo: &[&str] = if nix::unistd::geteuid().is_root() {
        &[]
    } else {
        &["sudo"]
    };
    apt(sudo, &["update", "--quiet=2"])?;
    // Other programs of this machine may be installing, too.
    let mut arguments = vec![
        "install",
        "--yes",
        "--quiet=2",
        "--no-install-recommends",
        "--option=DPkg::Lock::Timeout=600",
    ];
    arguments.extend(options);
    arguments.extend(packages);
    apt(sudo, &arguments)
}

fn apt(sudo: &[&str], arguments: &[&str]) -> Result<()> {
    let line: Vec<&str> = sudo
        .iter()
        .chain(&["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"])
        .chain(arguments)
        .copied()
        .collect();
    let (program, rest) = line.split_first().context("no command")?;
    let output = Command::new(program)
        .args(rest)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting {program}"))?;
    if !output.status.success() {
        bail!(
            "{} failed ({}):\n{}{}",
            line.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

/// Packages of tools and files that are not there, each once.
fn missing(has_tool: &dyn Fn(&str) -> bool, has_file: &dyn Fn(&str) -> bool) -> Vec<&'static str> {
    let tools = TOOLS.iter().filter(|(tool, _)| !has_tool(tool));
    let files = FILES.iter().filter(|(file, _)| !has_file(file));
    let mut packages: Vec<&str> = tools.chain(files).map(|(_, package)| *package).collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

fn find(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|folder| folder.join(tool).is_file())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::{TOOLS, missing};
    use crate::artifacts::repository;

    /// Programs that are in no need of a package: of those that no Debian system is without (coreutils, dpkg, apt, libc-bin,
    /// util-linux, e2fsprogs), that are done without, or that are installed where they are wanted.
    const OTHERWISE: [&str; 20] = [
        "apt-get",
        "blkid",
        "blockdev",
        "chattr",
        "cp",
        "dd",
        "dpkg-deb",
        "dpkg-query",
        "fdtput",
        "git",
        "ldd",
        "modprobe",
        "nice",
        "python3",
        "sh",
        "sha256sum",
        "stty",
        "sync",
        "timeout",
        "true",
    ];
    /// How a program is named that is started.
    const STARTS: [&str; 3] = ["Command::new(\"", "process::output(\"", "process::run(\""];

    fn started(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                started(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                for start in STARTS {
                    let names = text.split(start).skip(1);
                    found.extend(names.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
                }
            }
        }
    }

    #[test]
    fn every_program_that_is_started_is_installed_first() {
        let mut found = BTreeSet::new();
        started(&repository().join("tests/src"), &mut found);
        assert!(found.contains("fsck.fat") && found.contains("sfdisk"));
        found.retain(|name| {
            !TOOLS.iter().any(|(tool, _)| tool == name) && !OTHERWISE.contains(&name.as_str())
        });
        assert_eq!(found, BTreeSet::new());
    }

    #[test]
    fn only_packages_of_what_is_missing_are_named_each_once() {
        assert_eq!(missing(&|_| true, &|_| true), Vec::<&str>::new());
        assert_eq!(
            missing(&|tool| !["mke2fs", "debugfs"].contains(&tool), &|_| false),
            ["e2fsprogs", "grub-efi-amd64-bin", "grub-pc-bin", "ovmf"]
        );
    }
}
