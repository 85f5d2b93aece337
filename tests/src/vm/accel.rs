//! Whether this machine's KVM can be used: only what booted something is believed.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// How guests are executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acceleration {
    /// The kernel's hypervisor.
    Kvm,
    /// QEMU's own translation.
    Tcg,
}

impl Acceleration {
    /// QEMU's arguments for it.
    pub fn arguments(self) -> [&'static str; 4] {
        match self {
            Self::Kvm => ["-accel", "kvm", "-cpu", "host"],
            // Without a limit the translation buffer of each guest grows to a GiB.
            Self::Tcg => ["-accel", "tcg,thread=multi,tb-size=256", "-cpu", "qemu64"],
        }
    }

    /// How much longer things take than on the machine that deadlines were set for.
    pub fn patience(self, base: Duration) -> Duration {
        match self {
            Self::Kvm => base,
            // Emulated three times as slow, and that twice on a machine that is shared.
            Self::Tcg => base * 6,
        }
    }
}

/// Finds out what works by booting `kernel` without a root filesystem under KVM: it gets as far as saying so in a second or two
/// where KVM is real. `/dev/kvm` alone proves nothing: a nested one may be emulated instruction by instruction. The answer is kept
/// in `memory` for this boot of the machine.
pub fn probe(kernel: &Path, memory: &Path) -> Result<Acceleration> {
    if !Path::new("/dev/kvm").exists() {
        return Ok(Acceleration::Tcg);
    }
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let remembered = std::fs::read_to_string(memory).unwrap_or_default();
    if let Some(answer) = remembered.strip_prefix(boot.trim()) {
        return Ok(if answer.trim() == "kvm" {
            Acceleration::Kvm
        } else {
            Acceleration::Tcg
        });
    }
    let works = boots_under_kvm(kernel)?;
    let word = if works { "kvm" } else { "tcg" };
    std::fs::write(memory, format!("{} {word}\n", boot.trim()))
        .with_context(|| format!("writing {}", memory.display()))?;
    Ok(if works {
        Acceleration::Kvm
    } else {
        Acceleration::Tcg
    })
}

fn boots_under_kvm(kernel: &Path) -> Result<bool> {
    let log = tempfile::NamedTempFile::new().context("making a temporary file")?;
    let mut qemu = Command::new("setpriv")
        .args([
            "--pdeathsig",
            "KILL",
            "qemu-system-x86_64",
            "-M",
            "q35",
            "-m",
            "256",
            "-display",
            "none",
        ])
        .args(["-monitor", "none", "-nic", "none", "-no-reboot"])
        .args(Acceleration::Kvm.arguments())
        .arg("-serial")
        .arg(format!("file:{}", log.path().display()))
        .arg("-kernel")
        .arg(kernel)
        .args(["-append", "console=ttyS0 panic=-1"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("starting qemu-system-x86_64")?;
    let deadline = Instant::now() + Duration::from_secs(15);
    let mut works = false;
    while Instant::now() < deadline && !works {
        let text = std::fs::read(log.path()).unwrap_or_default();
        works = String::from_utf8_lossy(&text).contains("Unable to mount root fs");
        if !works && qemu.try_wait().context("waiting for qemu")?.is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    // It may have ended by itself.
    let _ = qemu.kill();
    qemu.wait().context("waiting for qemu")?;
    Ok(works)
}
