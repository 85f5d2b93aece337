//! Changes of names on the boot partition, in the order that FAT needs.
//!
//! vfat adds a new name without size and first cluster, and fills these in only when the inode is written:
//! a directory that is synced first holds a name that leads nowhere, and the old one is gone. Clusters are
//! freed as soon as the last user of an unlinked file closes it, whether or not the medium has lost the name by
//! then. And syncfs writes everything but, having no `sync_fs` there, leaves it in the disk's own cache, which
//! fsync flushes (`fs/fat/{namei_vfat,inode,file}.c`, Linux 6.1).
//!
//! On ext4 that syncfs is what lets GRUB, which replays no journal, find a new name: once the journal is committed, what
//! it holds is written to where it belongs (`sync_filesystem` of `fs/sync.c`). A sync of file and directory does not do that.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind as IoKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::libc;
use nix::unistd::syncfs;

use crate::error::{Error, Result};

/// Piece in which files are written, in bytes.
const PIECE: usize = 256 * 1024;

/// Writes a file that nothing leads to yet. Its content and size are durable when it returns; the caller
/// renames it. A crash in the middle leaves any part of it.
pub(crate) fn write(path: &Path, content: &mut dyn Read) -> Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(libc::O_CLOEXEC)
        .open(path)
        .map_err(Error::io("create", path))?;
    let mut piece = vec![0; PIECE];
    loop {
        let read = match content.read(&mut piece) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == IoKind::Interrupted => continue,
            Err(error) => return Err(Error::io("read the content of", path)(error)),
        };
        let bytes = piece.get(..read).unwrap_or_default();
        file.write_all(bytes).map_err(Error::io("write", path))?;
    }
    sync_file(&file, path)
}

/// Renames within a directory, over what is there. Durable when it returns.
///
/// A crash in the middle leaves the old name, the new one, or both, and each leads to whole content. Both lead
/// to the same clusters then: neither may be removed or written while the other is there. Should the kernel write
/// the directory by itself between the rename and the sync, a new name can be all that is left, and lead nowhere:
/// so a rename to a new name is only for a slot that the other one covers.
pub(crate) fn rename(from: &Path, to: &Path) -> Result<()> {
    let file = File::open(from).map_err(Error::io("open", from))?;
    sync_file(&file, from)?;
    // While the replaced file is open, FAT does not free its clusters: whichever of the
    // directory's writes reach the disk first, the name leads to whole content, old or new.
    let replaced = existing(to)?;
    fs::rename(from, to).map_err(Error::io("rename", from))?;
    note("renamed", to);
    sync_file(&file, to)?;
    sync_directory_of(to)?;
    drop(replaced);
    Ok(())
}

/// Exchanges two files of a directory. Durable when it returns. A crash in the middle leaves each name with the
/// whole content of one of them, perhaps both with the same. vfat can do it since Linux 6.0.
pub(crate) fn exchange(fresh: &Path, old: &Path) -> Result<()> {
    let [first, second] =
        [fresh, old].map(|path| File::open(path).map_err(Error::io("open", path)));
    let (first, second) = (first?, second?);
    renameat2(AT_FDCWD, fresh, AT_FDCWD, old, RenameFlags::RENAME_EXCHANGE).map_err(Error::sys(
        "exchange with a fresh file, for which vfat needs Linux 6.0,",
        old,
    ))?;
    note("exchanged", old);
    sync_file(&first, old)?;
    sync_file(&second, fresh)?;
    sync_directory_of(old)
}

/// Removes a file; nothing to do where there is none. Durable when it returns. A crash in the middle leaves
/// the file as it was, or no name and at most lost clusters.
pub(crate) fn remove(path: &Path) -> Result<()> {
    // Held until the name is gone from the medium: until then its clusters must not be anyone else's.
    let Some(file) = existing(path)? else {
        return Ok(());
    };
    fs::remove_file(path).map_err(Error::io("remove", path))?;
    note("removed", path);
    sync_directory_of(path)?;
    drop(file);
    Ok(())
}

/// Makes a directory if it is missing. Durable when it returns.
pub(crate) fn make_directory(path: &Path) -> Result<()> {
    match fs::create_dir(path) {
        Ok(()) => sync_directory_of(path),
        Err(error) if error.kind() == IoKind::AlreadyExists => Ok(()),
        Err(error) => Err(Error::io("make directory", path)(error)),
    }
}

fn note(what: &str, path: &Path) {
    tracing::trace!(file = %path.display(), "{what}");
    #[cfg(test)]
    tests::record(what, path);
}

fn existing(path: &Path) -> Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == IoKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("open", path)(error)),
    }
}

fn sync_file(file: &File, path: &Path) -> Result<()> {
    file.sync_all().map_err(Error::io("sync", path))?;
    note("synced", path);
    Ok(())
}

fn sync_directory_of(path: &Path) -> Result<()> {
    let parent = path.parent().unwrap_or(path);
    let directory = File::open(parent).map_err(Error::io("open", parent))?;
    syncfs(directory.as_fd()).map_err(Error::sys("sync the file system of", parent))?;
    match directory.sync_all() {
        Ok(()) => {}
        // Some file systems know no fsync of a directory; they were synced as a whole.
        Err(error) if error.kind() == IoKind::InvalidInput => {}
        Err(error) => return Err(Error::io("sync", parent)(error)),
    }
    note("synced", parent);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::fs;
    use std::path::Path;

    use super::{exchange, remove, rename, write};

    thread_local! {
        static RECORDED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn record(what: &str, path: &Path) {
        let name = path.file_name().unwrap().display();
        RECORDED.with_borrow_mut(|recorded| recorded.push(format!("{what} {name}")));
    }

    /// What a change does to a directory `entries`, in order.
    fn recorded(change: impl FnOnce(&Path)) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let entries = dir.path().join("entries");
        fs::create_dir(&entries).unwrap();
        fs::write(entries.join("b+2-1.conf"), "linux /b\n").unwrap();
        RECORDED.take();
        change(&entries);
        RECORDED.take()
    }

    #[test]
    fn a_renamed_file_is_synced_before_its_directory() {
        let order = recorded(|entries| {
            rename(&entries.join("b+2-1.conf"), &entries.join("b.conf")).unwrap();
        });
        assert_eq!(
            order,
            [
                "synced b+2-1.conf",
                "renamed b.conf",
                "synced b.conf",
                "synced entries"
            ]
        );
    }

    #[test]
    fn written_content_is_durable_before_a_name_leads_to_it() {
        let order = recorded(|entries| {
            write(&entries.join("b.conf.tmp"), &mut b"linux /b\n".as_slice()).unwrap();
            rename(&entries.join("b.conf.tmp"), &entries.join("b+2-1.conf")).unwrap();
        });
        assert_eq!(
            order,
            [
                "synced b.conf.tmp",
                "synced b.conf.tmp",
                "renamed b+2-1.conf",
                "synced b+2-1.conf",
                "synced entries"
            ]
        );
    }

    #[test]
    fn exchanged_files_are_synced_before_their_directory() {
        let order = recorded(|entries| {
            let (fresh, old) = (entries.join("b.conf.tmp"), entries.join("b+2-1.conf"));
            fs::write(&fresh, "linux /fresh\n").unwrap();
            exchange(&fresh, &old).unwrap();
            assert_eq!(fs::read_to_string(&old).unwrap(), "linux /fresh\n");
            assert_eq!(fs::read_to_string(&fresh).unwrap(), "linux /b\n");
        });
        assert_eq!(
            order,
            [
                "exchanged b+2-1.conf",
                "synced b+2-1.conf",
                "synced b.conf.tmp",
                "synced entries"
            ]
        );
    }

    #[test]
    fn a_removal_is_synced_and_one_of_nothing_is_done() {
        let order = recorded(|entries| {
            remove(&entries.join("b+2-1.conf")).unwrap();
            remove(&entries.join("b+2-1.conf")).unwrap();
        });
        assert_eq!(order, ["removed b+2-1.conf", "synced entries"]);
    }
}
