//! Streams an operating-system image into a slot and proves that it arrived.
//!
//! [`open()`] connects to a source and looks at the first bytes; [`write()`] expands, digests, writes
//! and reads back in one pass, in bounded memory: the zstd frame's window and some 16 MiB, whatever
//! the image's size. [`verify_existing`] reads a slot back later. All of them block and use threads
//! of their own; what happens meanwhile is told as [`Event`]s.
//!
//! ```no_run
//! use slotd_image::{Cancel, Expectation, FetchSettings, ImageSource, WriteTarget, open, write};
//!
//! # fn main() -> slotd_image::Result<()> {
//! # let (fd, path) = (std::fs::File::open("/dev/null").unwrap().into(), "/dev/null".into());
//! let mut target = WriteTarget::from_exclusive(fd, path)?;
//! let expectation = Expectation { checksum: Some("sha256:…".parse()?), ..Default::default() };
//! let source = ImageSource::parse("https://updates.example.com/rootfs.ext4.zst")?;
//! let cancel = Cancel::new();
//! let events = |event| println!("{event:?}");
//! let image = open(
//!     source, &FetchSettings::default(), &expectation, target.capacity(), &cancel, &events,
//! )?;
//! let report = write(image, &mut target, &expectation, &cancel, &events)?;
//! println!("{} bytes, {}", report.expanded_size, report.expanded);
//! # Ok(())
//! # }
//! ```

mod buffer;
mod cache;
mod cancel;
mod checksum;
mod error;
mod event;
mod existing;
mod format;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod ioctl;
mod medium;
mod open;
mod secret;
mod settings;
mod source;
mod stream;
mod write;

pub use cache::build_cache;
pub use cancel::Cancel;
pub use checksum::Checksum;
pub use error::{Cause, Error, ErrorKind, Result};
pub use event::{Event, Opened, Progress};
pub use existing::verify_existing;
pub use format::{Filesystem, FilesystemKind, Format};
pub use medium::{Medium, WriteTarget};
pub use open::{OpenedImage, open};
pub use secret::Secret;
pub use settings::{DEFAULT_WINDOW_LIMIT, Expectation, FetchSettings};
pub use source::{ImageSource, Origin};
pub use write::{Matched, WriteReport, clear_head, write};
