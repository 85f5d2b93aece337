//! The file of which systemd handed over a copy. Root alone reads it: this process sees no more than that another one is there,
//! and keeps its copy until it is started anew.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tracing::warn;

use crate::backoff::jittered;

/// Between two looks at the file.
const LOOK: Duration = Duration::from_secs(5);

/// The file, and how it looked when it was copied.
#[derive(Debug)]
pub(super) struct Original {
    path: PathBuf,
    /// None where it was another one before this process first looked.
    copied: Option<Sight>,
}

/// What is seen of a file that is not read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sight {
    device: u64,
    inode: u64,
    size: u64,
    /// Seconds and nanoseconds of the last change to content, owner or mode, which nobody sets back.
    changed: (i64, i64),
}

impl Sight {
    fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        Ok(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

impl Original {
    /// As it was when `copy` was made of it; to be called before the copy is used. A file that cannot be seen is told of and
    /// looked for.
    pub(super) fn of(path: &Path, copy: &Path) -> Self {
        let copied = Sight::of(path).inspect_err(|error| {
            let path = path.display();
            warn!(%path, %error, "another credential would not be noticed now");
        });
        Self {
            path: path.to_owned(),
            copied: copied.ok().filter(|sight| !later(sight, copy)),
        }
    }

    /// Waits until there is another one that nobody is writing any more. One that is gone is no other one.
    pub(super) async fn renewed(&self) {
        self.renewed_at(LOOK).await;
    }

    /// The same with another time between two looks.
    async fn renewed_at(&self, look: Duration) {
        let mut last = None;
        loop {
            let now = Sight::of(&self.path).ok().filter(|sight| sight.size > 0);
            if now.is_some() && now == last && now != self.copied {
                return;
            }
            last = now;
            tokio::time::sleep(jittered(look)).await;
        }
    }
}

/// Whether a file was changed after the copy was made and before now: between the copying and the first look of the process that
/// the copy was made for. Where the clock was set in between this may err, and costs one start.
fn later(sight: &Sight, copy: &Path) -> bool {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let copied = fs::metadata(copy).map(|copy| (copy.mtime(), copy.mtime_nsec()));
    copied.is_ok_and(|copied| copied <= sight.changed)
        && u64::try_from(sight.changed.0).is_ok_and(|changed| changed <= now.as_secs())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, FileTimes};
    use std::path::{Path, PathBuf};
    use std::time::{Duration, SystemTime};

    use super::Original;

    const LOOK: Duration = Duration::from_millis(10);
    /// Later than all that a test does.
    const LATER: Duration = Duration::from_secs(3600);

    async fn renewed(original: &Original, looks: u32) -> bool {
        let renewed = tokio::time::timeout(LOOK * looks, original.renewed_at(LOOK));
        renewed.await.is_ok()
    }

    /// A copy that was made this long after now.
    fn copy(folder: &Path, later: Duration) -> PathBuf {
        let path = folder.join("copy");
        let file = File::create(&path).unwrap();
        file.set_times(FileTimes::new().set_modified(SystemTime::now() + later))
            .unwrap();
        path
    }

    #[tokio::test]
    async fn another_file_is_noticed_once_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("original");
        fs::write(&path, "one").unwrap();
        let copy = copy(folder.path(), LATER);
        let original = Original::of(&path, &copy);
        assert!(!renewed(&original, 20).await);
        // Gone, or begun to be written: the copy is as good as before.
        fs::remove_file(&path).unwrap();
        assert!(!renewed(&original, 20).await);
        fs::write(&path, "").unwrap();
        assert!(!renewed(&original, 20).await);
        // Put in its place, of the same length; and written over.
        let new = folder.path().join("new");
        fs::write(&new, "two").unwrap();
        fs::rename(&new, &path).unwrap();
        assert!(renewed(&original, 3000).await);
        let original = Original::of(&path, &copy);
        assert!(!renewed(&original, 20).await);
        fs::write(&path, "333").unwrap();
        assert!(renewed(&original, 3000).await);
    }

    #[tokio::test]
    async fn a_file_that_grows_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("original");
        fs::write(&path, "one").unwrap();
        let original = Original::of(&path, &copy(folder.path(), LATER));
        let look = Duration::from_millis(400);
        let waiting = tokio::time::timeout(3 * look, original.renewed_at(look));
        let growing = async {
            for size in 1..=60 {
                fs::write(&path, "x".repeat(size)).unwrap();
                tokio::time::sleep(look / 20).await;
            }
        };
        let (early, ()) = tokio::join!(waiting, growing);
        assert!(early.is_err());
        assert!(renewed(&original, 3000).await);
    }

    #[tokio::test]
    async fn what_was_changed_between_the_copy_and_the_first_look_is_another_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("original");
        let before = copy(folder.path(), Duration::ZERO);
        tokio::time::sleep(Duration::from_millis(50)).await;
        fs::write(&path, "two").unwrap();
        assert!(renewed(&Original::of(&path, &before), 3000).await);
        let after = copy(folder.path(), LATER);
        assert!(!renewed(&Original::of(&path, &after), 20).await);
        // One that cannot be seen at the start, and one whose copy is gone.
        let nowhere = folder.path().join("none/original");
        assert!(!renewed(&Original::of(&nowhere, &after), 20).await);
        fs::remove_file(&after).unwrap();
        assert!(!renewed(&Original::of(&path, &after), 20).await);
    }
}
