//! Proofs that a slot may be written or started, as types: each can only be had from the one
//! before it, `InactiveSlot` → `InvalidatedSlot` → `VerifiedSlot`.

use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use nix::libc;

use crate::error::{Error, Result};
use crate::exclusive;
use crate::ioctl;
use crate::slot::{DeviceNumber, SlotName};
use crate::table::Partition;

/// A slot that is not the running one. Made by `SlotTable::inactive` only.
#[derive(Debug)]
pub struct InactiveSlot {
    name: SlotName,
    partition: Partition,
    fixture: bool,
}

impl InactiveSlot {
    pub(crate) fn new(name: SlotName, partition: Partition, fixture: bool) -> Self {
        Self {
            name,
            partition,
            fixture,
        }
    }

    /// Which slot.
    #[must_use]
    pub fn name(&self) -> SlotName {
        self.name
    }

    /// Its partition.
    #[must_use]
    pub fn partition(&self) -> &Partition {
        &self.partition
    }
}

/// An inactive slot that the boot loader holds nothing of, durably. Made by
/// `Backend::invalidate` only.
#[derive(Debug)]
pub struct InvalidatedSlot {
    slot: InactiveSlot,
}

impl InvalidatedSlot {
    pub(crate) fn new(slot: InactiveSlot) -> Self {
        Self { slot }
    }

    /// Which slot.
    #[must_use]
    pub fn name(&self) -> SlotName {
        self.slot.name
    }

    /// Its partition.
    #[must_use]
    pub fn partition(&self) -> &Partition {
        &self.slot.partition
    }

    /// Opens the slot for direct reading and writing, alone: `O_RDWR|O_EXCL|O_DIRECT|O_CLOEXEC`.
    /// Nothing is written; a read-only flag that a look into the slot left behind is taken off.
    ///
    /// # Errors
    /// [`Error::InUse`] while it is mounted or held, [`Error::Refused`] when the node is no longer
    /// the device that was proven inactive.
    pub fn open_exclusive(&self) -> Result<(OwnedFd, PathBuf)> {
        let node = &self.slot.partition.node;
        // A fixture's slot may be a loop device, too, and is one like any other then.
        let plain_file = self.slot.fixture && node.is_file();
        if !plain_file {
            self.clear_read_only()?;
        }
        let flags = if plain_file {
            // Not every file system that tests run on takes O_DIRECT.
            libc::O_CLOEXEC
        } else {
            // O_EXCL without O_CREAT: the kernel answers EBUSY while the device is mounted or held
            // by anyone else, without the race of looking at a mount table.
            libc::O_EXCL | libc::O_DIRECT | libc::O_CLOEXEC
        };
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(flags);
        let file = exclusive::open(&options, "open for writing", node)?;
        self.check_identity(&file)?;
        Ok((file.into(), node.clone()))
    }

    fn clear_read_only(&self) -> Result<()> {
        let node = &self.slot.partition.node;
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK)
            .open(node)
            .map_err(Error::io("open", node))?;
        self.check_identity(&file)?;
        if ioctl::read_only(&file).map_err(Error::sys("ask whether read-only", node))? {
            ioctl::set_read_only(&file, false).map_err(Error::sys("make writable", node))?;
        }
        Ok(())
    }

    fn check_identity(&self, file: &std::fs::File) -> Result<()> {
        let partition = &self.slot.partition;
        let meta = file
            .metadata()
            .map_err(Error::io("stat", &partition.node))?;
        if self.slot.fixture && meta.file_type().is_file() {
            return Ok(());
        }
        if !meta.file_type().is_block_device() {
            return Err(Error::Refused {
                reason: format!("{} is not a block device", partition.node.display()),
            });
        }
        let number = DeviceNumber::from_rdev(meta.rdev());
        if number == partition.number {
            return Ok(());
        }
        Err(Error::Refused {
            reason: format!(
                "{} is device {number} now, but {} was proven inactive",
                partition.node.display(),
                partition.number
            ),
        })
    }

    /// Turns what was read back from the medium into the proof that the slot may be started.
    #[must_use]
    pub fn attest(self, proof: ReadBack) -> VerifiedSlot {
        VerifiedSlot {
            name: self.slot.name,
            partition: self.slot.partition,
            proof,
        }
    }
}

/// What was read back, uncached, from the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadBack {
    /// SHA-256 of the expanded image.
    pub expanded_sha256: [u8; 32],
    /// Its size in bytes.
    pub expanded_size: u64,
}

impl ReadBack {
    /// The proof that a slot's marker keeps.
    pub(crate) fn of_marker(image: &crate::backend::StagedImage) -> Result<Self> {
        let text = image.expanded_sha256.as_bytes();
        let mut digest = [0_u8; 32];
        let wrong = || Error::Rejected {
            reason: format!(
                "expandedSha256 {:?} is not 64 hexadecimal digits",
                image.expanded_sha256
            ),
        };
        if text.len() != 64 {
            return Err(wrong());
        }
        for (byte, pair) in digest.iter_mut().zip(text.chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| wrong())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
        }
        Ok(Self {
            expanded_sha256: digest,
            expanded_size: image.expanded_size,
        })
    }

    /// The digest in lower-case hexadecimal.
    #[must_use]
    pub fn hex(&self) -> String {
        self.expanded_sha256
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}

/// An inactive slot whose content was read back and matched. From `InvalidatedSlot::attest`, or
/// after a restart from `Backend::verified` by the slot's marker.
#[derive(Debug)]
pub struct VerifiedSlot {
    name: SlotName,
    partition: Partition,
    proof: ReadBack,
}

impl VerifiedSlot {
    pub(crate) fn from_marker(slot: InactiveSlot, proof: ReadBack) -> Self {
        Self {
            name: slot.name,
            partition: slot.partition,
            proof,
        }
    }

    /// Which slot.
    #[must_use]
    pub fn name(&self) -> SlotName {
        self.name
    }

    /// Its partition.
    #[must_use]
    pub fn partition(&self) -> &Partition {
        &self.partition
    }

    /// What was read back.
    #[must_use]
    pub fn proof(&self) -> &ReadBack {
        &self.proof
    }
}
