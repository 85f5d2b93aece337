//! Changes of names on the boot partition, in the order that FAT needs.
//!
//! vfat adds a new name without size and first cluster, and fills these in only when the inode is written:
//! a directory that is synced first holds a name that leads nowhere, and the old one is gone. Clusters are
//! freed as soon as the last user of an unlinked file closes it, whether or not the medium has lost the name by
//! then. An fsync writes a file's name, with its first cluster, before the table that says which clusters follow: a
//! name that leads to clusters that the table holds for free makes the kernel set the file system read-only when it
//! is removed, and no upgrade could go on after a power cut. And syncfs writes everything but, having no `sync_fs`
//! there, leaves it in the disk's own cache, which fsync flushes (`fs/fat/{namei_vfat,inode,file}.c`, Linux 6.1).
//!
//! On ext4 that syncfs is what lets GRUB, which replays no journal, find a new name: once the journal is committed, what
//! it holds is written to where it belongs (`sync_filesystem` of `fs/sync.c`). A sync of file and directory does not do that.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind as IoKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, FallocateFlags, RenameFlags, fallocate, renameat2};
use nix::libc;
use nix::sys::stat::{major, minor};
use nix::sys::statfs::{MSDOS_SUPER_MAGIC, statfs};
use nix::unistd::syncfs;

use crate::error::{Error, Result};

/// Piece in which files are written, in bytes.
const PIECE: usize = 256 * 1024;

/// Writes a file that nothing leads to yet, of so many bytes where that is known. Its content and size are durable
/// when it returns; the caller renames it. A crash in the middle leaves any part of it, and of what was there before
/// it all or nothing; on FAT a name that leads to anything leads to clusters of its own.
pub(crate) fn write(path: &Path, size: Option<u64>, content: &mut dyn Read) -> Result<()> {
    write_for(is_on_fat(path), path, size, content)
}

fn write_for(fat: bool, path: &Path, size: Option<u64>, content: &mut dyn Read) -> Result<()> {
    // Not truncated: its clusters must not be free before its name is gone.
    unlink(path)?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(libc::O_CLOEXEC)
        .open(path)
        .map_err(Error::io("create", path))?;
    // The name is on the medium with no cluster yet at the most: Linux writes it by itself after half a minute.
    let reserved = fat && reserve(&file, size, path)?;
    if reserved {
        sync_table(&file, path)?;
    }
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
    if fat && !reserved {
        sync_table(&file, path)?;
    }
    sync_file(&file, path)
}

/// As [`write()`], of these bytes.
pub(crate) fn write_bytes(path: &Path, bytes: &[u8]) -> Result<()> {
    write(path, Some(length(bytes)), &mut &*bytes)
}

/// How many bytes these are.
pub(crate) fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

/// Whether the directory that this is in, or is to be in, is on FAT.
fn is_on_fat(path: &Path) -> bool {
    statfs(path.parent().unwrap_or(path))
        .is_ok_and(|found| found.filesystem_type() == MSDOS_SUPER_MAGIC)
}

/// Gives a file its clusters before it has a size; whether it was done.
fn reserve(file: &File, size: Option<u64>, path: &Path) -> Result<bool> {
    let Some(size) = size.and_then(|size| i64::try_from(size).ok()) else {
        return Ok(false);
    };
    if size == 0 {
        return Ok(false);
    }
    match fallocate(file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, size) {
        Ok(()) => Ok(true),
        // vfat has it since Linux 4.6.
        Err(Errno::EOPNOTSUPP) => Ok(false),
        Err(errno) => Err(Error::sys("reserve the room of", path)(errno)),
    }
}

/// Writes what is changed of the file system's tables, but no inode: on FAT this is the table of clusters. Durable when
/// it returns. Where the device has no node it is left to the sync of the file.
fn sync_table(file: &File, path: &Path) -> Result<()> {
    let device = file.metadata().map_err(Error::io("stat", path))?.dev();
    let node = format!("/dev/block/{}:{}", major(device), minor(device));
    match File::open(&node) {
        Ok(node) => node
            .sync_all()
            .map_err(Error::io("sync the table of clusters for", path))?,
        Err(error) => tracing::debug!(%node, %error, "the table of clusters is not synced first"),
    }
    note("synced the table for", path);
    Ok(())
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

/// Removes a file; one that is not there is removed. Durable when it returns, also where an earlier removal of it was
/// not. A crash in the middle leaves the file as it was, or no name and at most lost clusters.
pub(crate) fn remove(path: &Path) -> Result<()> {
    if unlink(path)? {
        return Ok(());
    }
    let parent = path.parent().unwrap_or(path);
    if !parent.try_exists().map_err(Error::io("stat", parent))? {
        return Ok(());
    }
    sync_directory_of(path)?;
    is_not_listed(path)
}

/// Removes a file; whether there was one. As [`remove()`], but where there was none, a removal that failed before may
/// not be on the medium.
fn unlink(path: &Path) -> Result<bool> {
    // Held until the name is gone from the medium: until then its clusters must not be anyone else's.
    let Some(file) = existing(path)? else {
        return Ok(false);
    };
    fs::remove_file(path).map_err(Error::io("remove", path))?;
    note("removed", path);
    sync_directory_of(path)?;
    drop(file);
    Ok(true)
}

/// Refuses a name that the kernel no longer looks up, but finds in its directory: when the directory's block could not
/// be written, Linux forgets that it was changed and reads it from the medium again (`end_buffer_write_sync` of
/// `fs/buffer.c`), while what it knows of single names stays.
fn is_not_listed(path: &Path) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let listed = names_in(path.parent().unwrap_or(path))?;
    if listed.contains(&name.to_ascii_lowercase()) {
        return Err(Error::ReadBack {
            path: path.to_owned(),
            problem: "it was removed, but the disk did not take that and still has it; \
                      mount its file system anew, or reboot"
                .to_owned(),
        });
    }
    Ok(())
}

/// Makes a directory if it is missing. Durable when it returns.
///
/// A crash in the middle leaves it, or not. On FAT it is made under a name that nothing else has, and renamed once all of
/// it is on the medium: until then its name may lead to a cluster that the table holds for free, or that holds what was
/// there before, and Linux sets the file system read-only as soon as it looks such a name up. That name is never looked
/// up again.
pub(crate) fn make_directory(path: &Path) -> Result<()> {
    make_directory_for(is_on_fat(path), path)
}

fn make_directory_for(fat: bool, path: &Path) -> Result<()> {
    if fat && !path.is_dir() {
        let temporary = unused_name(path, &names_in(path.parent().unwrap_or(path))?);
        create_directory(&temporary)?;
        return rename(&temporary, path);
    }
    create_directory(path)
}

fn create_directory(path: &Path) -> Result<()> {
    match fs::create_dir(path) {
        Ok(()) => {
            note("made", path);
            sync_directory_of(path)
        }
        // The sync of an earlier one may have failed.
        Err(error) if error.kind() == IoKind::AlreadyExists => sync_directory_of(path),
        Err(error) => Err(Error::io("make directory", path)(error)),
    }
}

/// Names in a directory, without a look at what they lead to.
fn names_in(directory: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(directory).map_err(Error::io("list", directory))?;
    entries
        .map(|entry| {
            let entry = entry.map_err(Error::io("list", directory))?;
            Ok(entry.file_name().to_string_lossy().to_ascii_lowercase())
        })
        .collect()
}

/// The first of the temporary names beside a directory that is not taken. All are lowercase.
fn unused_name(path: &Path, taken: &[String]) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = name.to_ascii_lowercase();
    let mut names = (0_u32..).map(|number| format!("slotd-new-{name}.{number}.tmp"));
    let unused = names.find(|name| !taken.contains(name));
    path.with_file_name(unused.unwrap_or_default())
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

    use super::{
        exchange, is_not_listed, make_directory, make_directory_for, remove, rename, unused_name,
        write, write_for,
    };
    use crate::error::ErrorKind;

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
            let text = b"linux /b\n";
            write(&entries.join("b.conf.tmp"), Some(9), &mut text.as_slice()).unwrap();
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

    /// The sync of a first removal may have failed, so that of nothing is one too.
    #[test]
    fn a_removal_is_synced_also_where_nothing_is_there_any_more() {
        let order = recorded(|entries| {
            remove(&entries.join("b+2-1.conf")).unwrap();
            remove(&entries.join("b+2-1.conf")).unwrap();
            remove(&entries.join("never/was.conf")).unwrap();
        });
        assert_eq!(
            order,
            ["removed b+2-1.conf", "synced entries", "synced entries"]
        );
    }

    #[test]
    fn a_name_that_its_directory_still_lists_is_not_taken_for_removed() {
        recorded(|entries| {
            is_not_listed(&entries.join("b+3.conf")).unwrap();
            for name in ["b+2-1.conf", "B+2-1.CONF"] {
                let error = is_not_listed(&entries.join(name)).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unsafe);
                assert!(error.to_string().contains(name), "{error}");
            }
        });
    }

    /// A name that leads to clusters that the table holds for free cannot be removed any more.
    #[test]
    fn on_fat_the_table_is_durable_before_a_name_leads_to_its_clusters() {
        let text = b"linux /b\n";
        for size in [Some(9), None] {
            let order = recorded(|entries| {
                let path = entries.join("b.conf.tmp");
                write_for(true, &path, size, &mut text.as_slice()).unwrap();
                assert_eq!(fs::read(&path).unwrap(), text);
            });
            assert_eq!(
                order,
                ["synced the table for b.conf.tmp", "synced b.conf.tmp"],
                "{size:?}"
            );
        }
    }

    #[test]
    fn what_was_there_is_gone_from_the_medium_before_it_is_written_anew() {
        let order = recorded(|entries| {
            let path = entries.join("b+3.conf");
            write(&path, Some(3), &mut b"old".as_slice()).unwrap();
            write(&path, Some(3), &mut b"new".as_slice()).unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"new");
        });
        assert_eq!(
            order,
            [
                "synced b+3.conf",
                "removed b+3.conf",
                "synced entries",
                "synced b+3.conf",
            ]
        );
    }

    #[test]
    fn on_fat_a_directory_is_whole_before_its_name_leads_to_it() {
        let order = recorded(|entries| {
            make_directory_for(true, &entries.join("b")).unwrap();
            make_directory_for(true, &entries.join("b")).unwrap();
            assert!(entries.join("b").is_dir());
        });
        assert_eq!(
            order,
            [
                "made slotd-new-b.0.tmp",
                "synced entries",
                "synced slotd-new-b.0.tmp",
                "renamed b",
                "synced b",
                "synced entries",
                "synced entries",
            ]
        );
    }

    #[test]
    fn a_directory_is_made_once_and_synced() {
        let order = recorded(|entries| {
            make_directory(&entries.join("b")).unwrap();
            make_directory(&entries.join("b")).unwrap();
        });
        assert_eq!(order, ["made b", "synced entries", "synced entries"]);
    }

    #[test]
    fn a_name_that_a_directory_was_made_under_before_is_not_used_again() {
        let place = Path::new("/efi/slotd/B");
        let first = unused_name(place, &[]);
        assert_eq!(first, Path::new("/efi/slotd/slotd-new-b.0.tmp"));
        let taken = ["b.tmp", "slotd-new-b.0.tmp"].map(str::to_owned);
        let second = unused_name(place, &taken);
        assert_eq!(second, Path::new("/efi/slotd/slotd-new-b.1.tmp"));
    }
}
