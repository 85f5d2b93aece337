//! A root filesystem as a tree of files: unpacked or linked, laid over, trimmed.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::command::Tool;

/// A tree that this program may change, removed when it goes.
#[derive(Debug)]
pub(crate) struct Tree {
    root: PathBuf,
    _folder: tempfile::TempDir,
}

impl Tree {
    /// A tree from a tar file or a folder. Of a folder's files hard links are taken where that is possible, so files of the
    /// tree are only ever replaced, never written in place.
    pub(crate) fn from_rootfs(rootfs: &Path, workplace: &Path) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix(".slotd-tree-")
            .tempdir_in(workplace)
            .with_context(|| format!("making a folder in {}", workplace.display()))?;
        let root = folder.path().join("root");
        if rootfs.is_dir() {
            let linked = Tool::new("cp")
                .args(["-a", "--link"])
                .arg(rootfs)
                .arg(&root)
                .run();
            if linked.is_err() {
                remove(&root)?;
                Tool::new("cp")
                    .args(["-a", "--reflink=auto"])
                    .arg(rootfs)
                    .arg(&root)
                    .run()?;
            }
        } else {
            fs::create_dir(&root).with_context(|| format!("creating {}", root.display()))?;
            // Device nodes need more than a user namespace gives, and devtmpfs brings them.
            Tool::new("tar")
                .args([
                    "--extract",
                    "--numeric-owner",
                    "--preserve-permissions",
                    "--exclude=./dev/*",
                    "--file",
                ])
                .arg(rootfs)
                .arg("--directory")
                .arg(&root)
                .run()?;
        }
        Ok(Self {
            root,
            _folder: folder,
        })
    }

    /// An empty tree.
    pub(crate) fn empty(workplace: &Path) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix(".slotd-tree-")
            .tempdir_in(workplace)
            .with_context(|| format!("making a folder in {}", workplace.display()))?;
        let root = folder.path().join("root");
        fs::create_dir(&root).with_context(|| format!("creating {}", root.display()))?;
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755))
            .with_context(|| format!("setting the mode of {}", root.display()))?;
        Ok(Self {
            root,
            _folder: folder,
        })
    }

    /// Where the tree lies.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The place of an absolute path of the image in this tree.
    pub(crate) fn path(&self, absolute: &str) -> PathBuf {
        self.root.join(absolute.trim_start_matches('/'))
    }

    /// Makes an empty folder, and those above it.
    pub(crate) fn folder(&self, absolute: &str) -> Result<()> {
        make_folders(&self.root, &self.path(absolute))
    }

    /// Writes a file with mode 0644, replacing what is there.
    pub(crate) fn write(&self, absolute: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path(absolute);
        if let Some(parent) = path.parent() {
            make_folders(&self.root, parent)?;
        }
        remove(&path)?;
        fs::write(&path, bytes).with_context(|| format!("writing {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644))
            .with_context(|| format!("setting the mode of {}", path.display()))
    }

    /// Makes a symbolic link, replacing what is there.
    pub(crate) fn link(&self, absolute: &str, target: &str) -> Result<()> {
        let path = self.path(absolute);
        if let Some(parent) = path.parent() {
            make_folders(&self.root, parent)?;
        }
        remove(&path)?;
        symlink(target, &path).with_context(|| format!("linking {} to {target}", path.display()))
    }

    /// Lays the files and links of `overlay` over the tree. They belong to root; a file's mode is 0755 when its owner may
    /// execute it, else 0644, whatever the umask of the checkout was.
    pub(crate) fn lay_over(&self, overlay: &Path) -> Result<()> {
        if !overlay.is_dir() {
            bail!("the overlay {} is no folder", overlay.display());
        }
        self.lay_over_folder(overlay, &self.root)
    }

    fn lay_over_folder(&self, from: &Path, to: &Path) -> Result<()> {
        make_folders(&self.root, to)?;
        let entries = fs::read_dir(from).with_context(|| format!("reading {}", from.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("reading {}", from.display()))?;
            let source = entry.path();
            let kind = entry
                .file_type()
                .with_context(|| format!("looking at {}", source.display()))?;
            let target = to.join(entry.file_name());
            if kind.is_dir() {
                // A folder laid over a link to a folder (/lib, /sbin) goes where the link leads.
                let target = self.resolve_folder(&target)?;
                self.lay_over_folder(&source, &target)?;
            } else if kind.is_symlink() {
                let link = fs::read_link(&source)
                    .with_context(|| format!("reading the link {}", source.display()))?;
                remove(&target)?;
                symlink(&link, &target).with_context(|| format!("linking {}", target.display()))?;
            } else if kind.is_file() {
                let metadata = entry
                    .metadata()
                    .with_context(|| format!("looking at {}", source.display()))?;
                let mode = if metadata.mode() & 0o100 == 0 {
                    0o644
                } else {
                    0o755
                };
                install(&source, &target, mode)?;
            } else {
                bail!("{} is neither file, folder nor link", source.display());
            }
        }
        Ok(())
    }

    fn resolve_folder(&self, target: &Path) -> Result<PathBuf> {
        match fs::read_link(target) {
            Ok(link) if link.is_absolute() => {
                Ok(self.root.join(link.strip_prefix("/").unwrap_or(&link)))
            }
            Ok(link) => Ok(target.parent().unwrap_or(&self.root).join(link)),
            Err(_) => Ok(target.to_owned()),
        }
    }

    /// Removes what matches an absolute path whose last component may hold one `*`.
    pub(crate) fn remove(&self, pattern: &str) -> Result<()> {
        let (folder, name) = pattern
            .rsplit_once('/')
            .with_context(|| format!("{pattern:?} is no absolute path"))?;
        let folder = self.path(folder);
        let Ok(entries) = fs::read_dir(&folder) else {
            return Ok(());
        };
        for entry in entries {
            let entry = entry.with_context(|| format!("reading {}", folder.display()))?;
            if entry
                .file_name()
                .to_str()
                .is_some_and(|candidate| matches(name, candidate))
            {
                remove(&entry.path())?;
            }
        }
        Ok(())
    }
}

/// Copies a file, replacing the target rather than writing into it (it may be a hard link into another tree).
pub(crate) fn install(source: &Path, target: &Path, mode: u32) -> Result<()> {
    remove(target)?;
    fs::copy(source, target)
        .with_context(|| format!("copying {} to {}", source.display(), target.display()))?;
    fs::set_permissions(target, fs::Permissions::from_mode(mode))
        .with_context(|| format!("setting the mode of {}", target.display()))
}

/// Makes the folders between `root` and `path` that are missing, with mode 0755 whatever the umask is.
fn make_folders(root: &Path, path: &Path) -> Result<()> {
    if path == root || path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        make_folders(root, parent)?;
    }
    fs::create_dir(path).with_context(|| format!("creating {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("setting the mode of {}", path.display()))
}

/// Removes a file, link or folder, if it is there.
fn remove(path: &Path) -> Result<()> {
    let result = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    };
    result.with_context(|| format!("removing {}", path.display()))
}

/// Whether a name matches a pattern with at most one `*`.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, end)) => {
            name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::{Tree, matches};

    #[test]
    fn a_star_stands_for_any_part_of_a_name() {
        assert!(matches("initrd.img-*", "initrd.img-6.1.0"));
        assert!(matches("*.bin", "pkgcache.bin"));
        assert!(matches("*", "anything"));
        assert!(!matches("a*a", "a"));
        assert!(!matches("initrd", "initrd.img"));
    }

    #[test]
    fn an_overlay_replaces_files_and_leaves_the_tree_it_was_linked_from_alone() {
        let place = tempfile::tempdir().unwrap();
        let base = place.path().join("base");
        fs::create_dir_all(base.join("usr/lib")).unwrap();
        symlink("usr/lib", base.join("lib")).unwrap();
        fs::write(base.join("usr/lib/os-release"), "old").unwrap();
        let overlay = place.path().join("overlay");
        fs::create_dir_all(overlay.join("lib")).unwrap();
        fs::write(overlay.join("lib/os-release"), "new").unwrap();
        fs::set_permissions(
            overlay.join("lib/os-release"),
            fs::Permissions::from_mode(0o664),
        )
        .unwrap();

        let tree = Tree::from_rootfs(&base, place.path()).unwrap();
        tree.lay_over(&overlay).unwrap();

        assert_eq!(
            fs::read_to_string(tree.path("/usr/lib/os-release")).unwrap(),
            "new"
        );
        let mode = fs::metadata(tree.path("/usr/lib/os-release"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o644);
        assert_eq!(
            fs::read_to_string(base.join("usr/lib/os-release")).unwrap(),
            "old"
        );
    }

    #[test]
    fn removing_takes_only_what_matches() {
        let place = tempfile::tempdir().unwrap();
        let tree = Tree::empty(place.path()).unwrap();
        tree.write("/boot/initrd.img-1", b"x").unwrap();
        tree.write("/boot/vmlinuz-1", b"x").unwrap();
        tree.remove("/boot/initrd.img-*").unwrap();
        tree.remove("/nowhere/*").unwrap();
        assert!(!tree.path("/boot/initrd.img-1").exists());
        assert!(tree.path("/boot/vmlinuz-1").exists());
    }
}
