//! The look into a written slot, which changes nothing in it.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;

use nix::libc;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

use crate::error::{Error, Result};
use crate::exclusive;
use crate::facts::{Collected, ImageFacts, InspectSettings, Unified, collect};
use crate::ioctl;
use crate::slot::DeviceNumber;
use crate::table::Partition;

/// What was seen in a slot. While it is held, the boot files can be read and the device stays
/// read-only.
#[derive(Debug)]
pub struct SlotView {
    /// What the image is.
    pub facts: ImageFacts,
    // Before `guard`: the files keep the file system busy, whose device the guard makes writable.
    kernel: Option<File>,
    initrd: Option<File>,
    unified: Option<Unified>,
    device: PathBuf,
    _guard: Option<ReadOnlyDevice>,
}

impl SlotView {
    /// Looks at a directory tree instead of a device.
    ///
    /// # Errors
    /// When the tree cannot be read.
    pub fn of_tree(root: &Path, settings: &InspectSettings) -> Result<Self> {
        Ok(Self::new(collect(root, settings)?, root, None))
    }

    fn new(collected: Collected, device: &Path, guard: Option<ReadOnlyDevice>) -> Self {
        let Collected {
            facts,
            kernel,
            initrd,
            unified,
        } = collected;
        Self {
            facts,
            kernel,
            initrd,
            unified,
            device: device.to_owned(),
            _guard: guard,
        }
    }

    /// The kernel, from its start.
    ///
    /// # Errors
    /// [`Error::Image`] where the image has none.
    pub fn kernel(&self) -> Result<impl Read + '_> {
        match &self.kernel {
            Some(file) => Ok(FromStart { file, offset: 0 }),
            None => Err(Error::Image {
                device: self.device.clone(),
                problem: "no kernel at /usr/lib/modules/*/vmlinuz or /boot/vmlinuz-*".to_owned(),
            }),
        }
    }

    /// The unified kernel image, from its start; `None` where the image has none.
    ///
    /// # Errors
    /// [`Error::Image`] where it is damaged, runs on another machine, or has a command line of its own.
    pub fn unified(&self) -> Result<Option<impl Read + '_>> {
        let Some(unified) = &self.unified else {
            return Ok(None);
        };
        match &unified.problem {
            Some(problem) => Err(Error::Image {
                device: self.device.clone(),
                problem: problem.clone(),
            }),
            None => Ok(Some(FromStart {
                file: &unified.file,
                offset: 0,
            })),
        }
    }

    /// What an EFI loader starts, by [`ImageFacts::starts_unified`]: the unified image, or the kernel.
    ///
    /// # Errors
    /// As [`SlotView::kernel`] and [`SlotView::unified`].
    pub fn efi_program(&self) -> Result<Box<dyn Read + '_>> {
        if self.facts.starts_unified()
            && let Some(unified) = self.unified()?
        {
            return Ok(Box::new(unified));
        }
        Ok(Box::new(self.kernel()?))
    }

    /// The initrd, from its start; `None` where the image has none.
    #[must_use]
    pub fn initrd(&self) -> Option<impl Read + '_> {
        self.initrd
            .as_ref()
            .map(|file| FromStart { file, offset: 0 })
    }
}

/// Reads a shared file from its start, whatever others read of it.
struct FromStart<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for FromStart<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.read_at(buffer, self.offset)?;
        self.offset = self
            .offset
            .saturating_add(u64::try_from(read).unwrap_or(u64::MAX));
        Ok(read)
    }
}

/// Looks into an inactive slot: sets the device read-only, mounts it read-only without journal
/// replay in a mount namespace of its own, and gathers facts. Nothing on the device changes, and
/// what was set is taken back when the view is dropped.
///
/// # Errors
/// [`Error::InUse`] when the device is mounted or held, [`Error::Image`] when it holds no file
/// system that can be mounted.
pub fn inspect(slot: &Partition, settings: &InspectSettings) -> Result<SlotView> {
    let guard = ReadOnlyDevice::set(slot)?;
    let node = slot.node.clone();
    let settings = settings.clone();
    // A thread of its own: unshare() changes the calling thread only, and the namespace ends with
    // the thread, mounts included.
    let worker = thread::Builder::new()
        .name("slot-view".to_owned())
        .spawn(move || collect_mounted(&node, &settings))
        .map_err(Error::io("start a thread for", &slot.node))?;
    let collected = worker.join().map_err(|_| {
        Error::Internal("the thread that looked into the slot panicked".to_owned())
    })??;
    Ok(SlotView::new(collected, &slot.node, Some(guard)))
}

fn collect_mounted(node: &Path, settings: &InspectSettings) -> Result<Collected> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(Error::sys("make a mount namespace for", node))?;
    let none: Option<&str> = None;
    // Private all the way down: no mount of ours may travel to the host.
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .map_err(Error::sys("make mounts private for", node))?;
    // Any directory serves as the mount point, since only this thread sees it.
    let target = ["/run", "/tmp", "/mnt"]
        .into_iter()
        .map(Path::new)
        .find(|path| path.is_dir())
        .unwrap_or(Path::new("/"));
    mount_image(node, target)?;
    let collected = collect(target, settings);
    // Detached, because the opened boot files keep it busy; they end it when they are closed.
    umount2(target, MntFlags::MNT_DETACH).map_err(Error::sys("unmount", target))?;
    collected
}

fn mount_image(node: &Path, target: &Path) -> Result<()> {
    let flags = MsFlags::MS_RDONLY | MsFlags::MS_NODEV | MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    let mut answers = Vec::new();
    // Every kind that the image engine takes for an image. `noload` keeps ext4, `norecovery` xfs and f2fs
    // from replaying a journal.
    for (kind, data) in [
        ("ext4", "noload"),
        ("ext4", ""),
        ("erofs", ""),
        ("squashfs", ""),
        ("xfs", "norecovery,nouuid"),
        ("btrfs", "rescue=nologreplay"),
        ("f2fs", "norecovery"),
    ] {
        match mount(Some(node), target, Some(kind), flags, Some(data)) {
            Ok(()) => return Ok(()),
            Err(errno) => answers.push(format!("{kind} {data}: {errno}")),
        }
    }
    Err(Error::Image {
        device: node.to_owned(),
        problem: format!(
            "no file system that can be mounted ({})",
            answers.join(", ")
        ),
    })
}

/// A device set read-only for as long as this lives, back to what it was afterwards.
#[derive(Debug)]
struct ReadOnlyDevice {
    device: File,
    node: PathBuf,
    was_read_only: bool,
}

impl ReadOnlyDevice {
    fn set(slot: &Partition) -> Result<Self> {
        let node = &slot.node;
        // O_EXCL proves that it is not mounted: setting a mounted device read-only would break it.
        let mut options = OpenOptions::new();
        options
            .read(true)
            .custom_flags(libc::O_EXCL | libc::O_CLOEXEC);
        let exclusive = exclusive::open(&options, "open", node)?;
        let rdev = exclusive
            .metadata()
            .map_err(Error::io("stat", node))?
            .rdev();
        let number = DeviceNumber::from_rdev(rdev);
        if number != slot.number {
            return Err(Error::Refused {
                reason: format!(
                    "{} is device {number}, expected {}",
                    node.display(),
                    slot.number
                ),
            });
        }
        let device = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_CLOEXEC)
            .open(node)
            .map_err(Error::io("open", node))?;
        let was_read_only =
            ioctl::read_only(&device).map_err(Error::sys("ask whether read-only", node))?;
        ioctl::set_read_only(&device, true).map_err(Error::sys("set read-only", node))?;
        Ok(Self {
            device,
            node: node.clone(),
            was_read_only,
        })
    }
}

impl Drop for ReadOnlyDevice {
    fn drop(&mut self) {
        if self.was_read_only {
            return;
        }
        // The writer takes a leftover flag off by itself, so a failure here stops nothing.
        if let Err(errno) = ioctl::set_read_only(&self.device, false) {
            tracing::warn!(device = %self.node.display(), %errno, "device stays read-only");
        }
    }
}
