//! slotd for ARM64: built on this machine with Debian's Rust and cross compiler.
//!
//! rustup's toolchain stays as it is and comes first in PATH. Nothing of ARM64 is installed: the standard library is
//! unpacked into the lab's cache folder, and apt learns of the other architecture only there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::artifacts::repository;
use crate::build::{Profile, target_folder, without_debug_information};
use crate::{process, setup};

/// What is built.
pub const PROGRAMS: [&str; 2] = ["slotd", "slotd-bootctl"];

/// Rust's name of the target.
const TARGET: &str = "aarch64-unknown-linux-gnu";
/// Debian's Rust, the one that is new enough; its programs.
const RUST: &str = "rustc-web";
const RUSTC: &str = "/usr/bin/rustc";
const CARGO: &str = "/usr/bin/cargo";
/// Debian's packages that a build needs, all of this machine's architecture.
const PACKAGES: [&str; 4] = [
    RUST,
    "cargo-web",
    "gcc-aarch64-linux-gnu",
    "libc6-dev-arm64-cross",
];
/// Of what the cross compiler needs itself.
const STRIP: &str = "aarch64-linux-gnu-strip";
/// The standard library for a target, in a package of the target's architecture.
const STANDARD_LIBRARY: &str = "libstd-rust-web-dev";
/// Where the cross compiler's C library lies, for programs that are run here.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";
/// Runs programs of the other architecture, where it is installed.
const EMULATOR: &str = "/usr/bin/qemu-aarch64-static";
/// ARM64's number in an ELF header (`EM_AARCH64`), at byte 18.
const ELF_MACHINE: u16 = 183;

/// Builds the programs and says where they are, how large, and whether they run.
pub fn run(profile: Profile) -> Result<()> {
    let folder = build(profile)?;
    for name in PROGRAMS {
        let path = folder.join(name);
        let size = fs::metadata(&path)
            .with_context(|| format!("looking at {}", path.display()))?
            .len();
        println!("{:6.1} MB  {}", size as f64 / 1e6, path.display());
    }
    match emulator() {
        Some(emulator) => {
            for name in PROGRAMS {
                println!("runs: {}", version(emulator, &folder.join(name))?);
            }
        }
        None => println!("not run: qemu-user-static is not installed"),
    }
    Ok(())
}

/// Builds the programs; the folder that they lie in.
pub fn build(profile: Profile) -> Result<PathBuf> {
    setup::ensure_installed(&PACKAGES)?;
    let release =
        setup::installed_version(RUST)?.with_context(|| format!("{RUST} is not installed"))?;
    let sysroot = sysroot(&release)?;
    // A folder of its own: another compiler's results in the common one would make cargo build everything anew.
    let target_folder = target_folder()?;
    let target = target_folder.join("cross");
    let began = Instant::now();
    eprintln!(
        "lab: building slotd for ARM64 ({}; several minutes at first)",
        profile.folder()
    );
    process::inherit(Path::new(CARGO), |command| {
        without_rustup(command)
            .current_dir(repository())
            .env("RUSTC", RUSTC)
            .env(variable("LINKER"), "aarch64-linux-gnu-gcc")
            .env(
                variable("RUSTFLAGS"),
                format!("--sysroot={}", sysroot.display()),
            )
            .args(["build", "--quiet", "--locked", "--target", TARGET])
            .args(PROGRAMS.map(|program| format!("--package={program}")))
            .args(profile.flag())
            .arg("--target-dir")
            .arg(&target)
    })?;
    eprintln!("lab: built in {:.0} s", began.elapsed().as_secs_f64());
    let built = target.join(TARGET).join(profile.folder());
    for program in PROGRAMS {
        expect_arm64(&built.join(program))?;
    }
    if profile == Profile::Release {
        return Ok(built);
    }
    let folder = target_folder.join("lab/arm64-programs");
    without_debug_information(STRIP, &built, &folder, &PROGRAMS)?;
    Ok(folder)
}

/// Takes out of a command's environment what a cargo of rustup's, such as the one that runs us, puts there.
fn without_rustup(command: &mut Command) -> &mut Command {
    for name in [
        "CARGO",
        "LD_LIBRARY_PATH",
        "RUSTUP_TOOLCHAIN",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
    ] {
        command.env_remove(name);
    }
    command
}

/// Cargo's variable for a setting of the target.
fn variable(setting: &str) -> String {
    let target = TARGET.to_ascii_uppercase().replace('-', "_");
    format!("CARGO_TARGET_{target}_{setting}")
}

/// The standard library of just this compiler for the target: downloaded with apt-get and unpacked, once, beside what other
/// builds share.
fn sysroot(release: &str) -> Result<PathBuf> {
    let cache = slotd_image::build_cache()
        .context("neither XDG_CACHE_HOME nor HOME is set")?
        .join("cross");
    let folder = cache.join(release);
    let sysroot = folder.join("usr");
    if folder.is_dir() {
        return Ok(sysroot);
    }
    fs::create_dir_all(&cache).with_context(|| format!("creating {}", cache.display()))?;
    let workplace = tempfile::tempdir_in(&cache)
        .with_context(|| format!("making a folder in {}", cache.display()))?;
    let package = download(workplace.path(), STANDARD_LIBRARY, release).with_context(|| {
        format!(
            "{STANDARD_LIBRARY} has to have the version of the {RUST} that is installed, {release}: \
             if the archive has a newer one, upgrade that"
        )
    })?;
    let unpacked = workplace.path().join("unpacked");
    process::run("dpkg-deb", |command| {
        command.arg("--extract").arg(&package).arg(&unpacked)
    })?;
    ensure!(
        unpacked
            .join("usr/lib/rustlib")
            .join(TARGET)
            .join("lib")
            .is_dir(),
        "{} holds no standard library for {TARGET}",
        package.display()
    );
    fs::rename(&unpacked, &folder)
        .with_context(|| format!("renaming the unpacked folder to {}", folder.display()))?;
    Ok(sysroot)
}

/// Downloads a package of ARM64 from the machine's own sources, with lists and state in `folder`: the system's apt and dpkg are
/// not told of the architecture.
fn download(folder: &Path, package: &str, version: &str) -> Result<PathBuf> {
    let state = folder.join("state");
    let cache = folder.join("cache");
    for place in ["state/lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(folder.join(place)).context("making a folder for apt")?;
    }
    fs::write(state.join("status"), "").context("making a folder for apt")?;
    let options = [
        "APT::Architecture=arm64".to_owned(),
        "APT::Architectures=arm64".to_owned(),
        format!("Dir::State={}", state.display()),
        format!("Dir::State::status={}", state.join("status").display()),
        format!("Dir::Cache={}", cache.display()),
        // The user that apt-get would become cannot write here.
        "APT::Sandbox::User=root".to_owned(),
    ];
    let apt = |arguments: &[&str]| {
        process::run("apt-get", |command| {
            command
                .current_dir(folder)
                .arg("--quiet=2")
                .args(options.iter().map(|option| format!("--option={option}")))
                .args(arguments)
        })
    };
    eprintln!("lab: downloading {package} {version} for ARM64");
    apt(&["update"])?;
    apt(&["download", &format!("{package}={version}")])?;
    let found = fs::read_dir(folder)
        .with_context(|| format!("listing {}", folder.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"));
    found.with_context(|| format!("apt-get left no package in {}", folder.display()))
}

/// What runs ARM64 programs here, if anything does.
fn emulator() -> Option<&'static Path> {
    let path = Path::new(EMULATOR);
    path.is_file().then_some(path)
}

/// What a program says when it is asked for its version.
fn version(emulator: &Path, program: &Path) -> Result<String> {
    let text = process::output_with_errors(emulator, |command| {
        command
            .args(["-L", LIBRARIES])
            .arg(program)
            .arg("--version")
    })?;
    Ok(text.trim().to_owned())
}

/// An error unless a file is a program for ARM64.
fn expect_arm64(path: &Path) -> Result<()> {
    let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    match elf_machine(&bytes) {
        Some(ELF_MACHINE) => Ok(()),
        Some(other) => bail!(
            "{} is for ELF machine {other}, not {ELF_MACHINE}",
            path.display()
        ),
        None => bail!("{} is no ELF program", path.display()),
    }
}

/// The machine of an ELF header of least-significant-byte-first order.
fn elf_machine(bytes: &[u8]) -> Option<u16> {
    let header = bytes.get(..20)?;
    if !header.starts_with(b"\x7fELF") || header[5] != 1 {
        return None;
    }
    Some(u16::from_le_bytes([header[18], header[19]]))
}

#[cfg(test)]
mod tests {
    use super::{elf_machine, variable};

    #[test]
    fn cargo_is_told_of_the_target_by_its_own_names() {
        // https://doc.rust-lang.org/cargo/reference/config.html: upper case, dashes as underscores.
        assert_eq!(
            variable("LINKER"),
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER"
        );
    }

    #[test]
    fn a_program_of_this_machine_is_told_from_one_for_arm64() {
        let own = std::fs::read(crate::process::this_program()).unwrap();
        // elf.h: EM_X86_64 is 62, EM_AARCH64 183.
        let expected = if cfg!(target_arch = "x86_64") {
            62
        } else {
            183
        };
        assert_eq!(elf_machine(&own), Some(expected));
        let mut arm = own[..64].to_vec();
        arm[18..20].copy_from_slice(&[183, 0]);
        assert_eq!(elf_machine(&arm), Some(183));
        assert_eq!(elf_machine(b"#!/bin/sh\nexec something else\n"), None);
        assert_eq!(elf_machine(b"\x7fELF"), None);
    }
}
