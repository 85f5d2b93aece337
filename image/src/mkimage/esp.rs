//! The EFI system partition: systemd-boot, its configuration, and what each slot boots.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use uuid::Uuid;

use crate::command::Tool;
use crate::size::Size;

/// How long a trial boot may take, in seconds, before systemd gives it up (`slotd.trial_deadline=`).
const TRIAL_DEADLINE: u32 = 600;
/// Seconds from a panic to the reboot.
const PANIC: u32 = 10;

/// An EFI system partition inside a disk image. Made with mtools, in place.
#[derive(Debug)]
pub(crate) struct Esp<'a> {
    disk: &'a Path,
    offset: u64,
    workplace: &'a Path,
}

/// What a slot's boot entry and boot files are made of.
#[derive(Debug)]
pub(crate) struct BootImage {
    /// The slot's letter in lower case.
    pub(crate) slot: char,
    /// PARTUUID of the slot's partition.
    pub(crate) partition: Uuid,
    /// Install sequence: the highest boots.
    pub(crate) sequence: u32,
    /// PRETTY_NAME of the image.
    pub(crate) pretty_name: String,
    /// The kernel.
    pub(crate) kernel: Vec<u8>,
    /// The image's own kernel options (`/usr/lib/kernel/cmdline`).
    pub(crate) options: String,
    /// The marker that tells slotd which image the slot holds.
    pub(crate) marker: String,
}

impl BootImage {
    /// The kernel's command line: what binds the slot, `more` of ours, then the image's options and the disk's.
    pub(crate) fn command_line(&self, machine_id: &str, more: &[&str], extra: &str) -> String {
        let bound = format!(
            "root=PARTUUID={} ro systemd.machine_id={machine_id} panic={PANIC} slotd.slot={}",
            self.partition, self.slot
        );
        let mut words = vec![bound.as_str()];
        words.extend(more);
        words.extend([self.options.trim(), extra.trim()]);
        words.retain(|part| !part.is_empty());
        words.join(" ")
    }
}

impl<'a> Esp<'a> {
    /// Makes an empty FAT32 filesystem of `size` at `offset` of the disk image.
    pub(crate) fn format(
        disk: &'a Path,
        offset: u64,
        size: Size,
        workplace: &'a Path,
    ) -> Result<Self> {
        let esp = Self {
            disk,
            offset,
            workplace,
        };
        // Four sectors a cluster: at 256 MiB eight would make too few clusters for FAT32.
        esp.mtool("mformat")
            .args(["-F", "-c", "4", "-v", "ESP", "-T"])
            .arg((size.bytes() / 512).to_string())
            .arg("::")
            .run()?;
        Ok(esp)
    }

    fn mtool(&self, name: &'static str) -> Tool {
        Tool::new(name)
            .env("MTOOLS_SKIP_CHECK", "1")
            .arg("-i")
            .arg(format!("{}@@{}", self.disk.display(), self.offset))
    }

    /// Makes a folder whose parent exists.
    pub(crate) fn folder(&self, path: &str) -> Result<()> {
        self.mtool("mmd").arg(format!("::{path}")).run()
    }

    /// Writes a file.
    pub(crate) fn write(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let copy = self.workplace.join("esp-file");
        std::fs::write(&copy, bytes).with_context(|| format!("writing {}", copy.display()))?;
        self.mtool("mcopy")
            .arg("-o")
            .arg(&copy)
            .arg(format!("::{path}"))
            .run()
    }

    /// Installs systemd-boot as the removable-media default and under its own name, and its configuration.
    pub(crate) fn install_loader(&self, binary: &[u8]) -> Result<()> {
        for folder in [
            "/EFI",
            "/EFI/BOOT",
            "/EFI/systemd",
            "/loader",
            "/loader/entries",
            "/slotd",
        ] {
            self.folder(folder)?;
        }
        self.write("/EFI/BOOT/BOOTX64.EFI", binary)?;
        self.write("/EFI/systemd/systemd-bootx64.efi", binary)?;
        // No default: it would outrank the boot counters.
        self.write("/loader/loader.conf", b"timeout 0\neditor no\n")
    }

    /// Makes a slot bootable: kernel, marker, and an entry without a counter, which means good.
    pub(crate) fn install_slot(
        &self,
        image: &BootImage,
        machine_id: &str,
        extra: &str,
    ) -> Result<()> {
        let slot = image.slot;
        self.folder(&format!("/slotd/{slot}"))?;
        self.write(&format!("/slotd/{slot}/linux"), &image.kernel)?;
        self.write(
            &format!("/slotd/{slot}/image.json"),
            image.marker.as_bytes(),
        )?;
        let entry = entry(image, machine_id, extra)?;
        self.write(
            &format!("/loader/entries/slotd-{slot}.conf"),
            entry.as_bytes(),
        )
    }
}

/// The text of a boot entry.
fn entry(image: &BootImage, machine_id: &str, extra: &str) -> Result<String> {
    let slot = image.slot;
    for (what, text) in [("title", &image.pretty_name), ("options", &image.options)] {
        if text.contains(['\n', '\r']) {
            bail!("the {what} of slot {slot} span more than one line: {text:?}");
        }
    }
    let mut text = String::new();
    let _ = writeln!(
        text,
        "title {} (slot {})",
        image.pretty_name,
        slot.to_ascii_uppercase()
    );
    let _ = writeln!(text, "sort-key slotd");
    let _ = writeln!(text, "machine-id {machine_id}");
    let _ = writeln!(text, "version {}", image.sequence);
    let _ = writeln!(text, "linux /slotd/{slot}/linux");
    let deadline = format!("slotd.trial_deadline={TRIAL_DEADLINE}");
    let options = image.command_line(machine_id, &[&deadline], extra);
    let _ = writeln!(text, "options {options}");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::{BootImage, entry};

    fn image() -> BootImage {
        BootImage {
            slot: 'a',
            partition: Uuid::from_u128(0xa),
            sequence: 1,
            pretty_name: "Debian GNU/Linux 12 (bookworm)".to_owned(),
            kernel: Vec::new(),
            options: "console=ttyS0 quiet\n".trim().to_owned(),
            marker: String::new(),
        }
    }

    #[test]
    fn an_entry_binds_its_root_by_partition_and_names_its_slot() {
        let text = entry(&image(), "0123456789abcdef0123456789abcdef", "").unwrap();
        assert_eq!(
            text,
            "title Debian GNU/Linux 12 (bookworm) (slot A)\n\
             sort-key slotd\n\
             machine-id 0123456789abcdef0123456789abcdef\n\
             version 1\n\
             linux /slotd/a/linux\n\
             options root=PARTUUID=00000000-0000-0000-0000-00000000000a ro \
             systemd.machine_id=0123456789abcdef0123456789abcdef panic=10 slotd.slot=a \
             slotd.trial_deadline=600 console=ttyS0 quiet\n"
        );
    }

    #[test]
    fn options_of_two_lines_are_refused() {
        let mut image = image();
        image.options = "a\nlinux /evil".to_owned();
        assert!(entry(&image, "id", "").is_err());
    }
}
