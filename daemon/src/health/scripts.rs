//! The check scripts: which ones there are, and which of two with one name counts.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// A script that is to be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    /// `required.d` or `wanted.d`.
    pub kind: String,
    /// Its file name.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
}

impl Script {
    /// Its name in verdicts, `required.d/NAME`.
    pub fn check(&self) -> String {
        format!("{}/{}", self.kind, self.name)
    }
}

/// A folder of scripts cannot be listed.
#[derive(Debug, thiserror::Error)]
#[error("cannot list {}: {source}", path.display())]
pub struct ScriptsError {
    path: PathBuf,
    source: io::Error,
}

/// The scripts of one kind, by name. Of two with one name the one in the later folder counts; a link to `/dev/null`
/// takes the name out. Hidden files and the backups of editors and packages are no scripts.
pub(super) fn collect(folders: &[PathBuf], kind: &str) -> Result<Vec<Script>, ScriptsError> {
    let mut found: BTreeMap<OsString, PathBuf> = BTreeMap::new();
    for folder in folders {
        let folder = folder.join(kind);
        let broken = |source| ScriptsError {
            path: folder.clone(),
            source,
        };
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(broken(error)),
        };
        for entry in entries {
            let entry = entry.map_err(broken)?;
            if !is_backup(&entry.file_name().to_string_lossy()) {
                found.insert(entry.file_name(), entry.path());
            }
        }
    }
    Ok(found
        .into_iter()
        .filter(|(_, path)| !is_masked(path))
        .map(|(name, path)| Script {
            kind: kind.to_owned(),
            name: name.to_string_lossy().into_owned(),
            path,
        })
        .collect())
}

fn is_masked(path: &Path) -> bool {
    std::fs::read_link(path).is_ok_and(|target| target == Path::new("/dev/null"))
}

fn is_backup(name: &str) -> bool {
    name.starts_with('.')
        || name.ends_with('~')
        || [".dpkg-", ".rpm", ".swp", ".bak"]
            .iter()
            .any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::collect;

    #[test]
    fn the_machines_script_wins_over_the_images_of_the_same_name() {
        let dir = tempfile::tempdir().unwrap();
        let (image, machine) = (dir.path().join("usr"), dir.path().join("etc"));
        for folder in [&image, &machine] {
            fs::create_dir_all(folder.join("required.d")).unwrap();
        }
        for path in [
            "usr/required.d/20-b",
            "usr/required.d/10-a",
            "usr/required.d/30-c",
        ] {
            fs::write(dir.path().join(path), "").unwrap();
        }
        fs::write(machine.join("required.d/20-b"), "").unwrap();
        fs::write(machine.join("required.d/20-b.dpkg-old"), "").unwrap();
        symlink("/dev/null", machine.join("required.d/30-c")).unwrap();
        let scripts = collect(&[image.clone(), machine.clone()], "required.d").unwrap();
        let seen: Vec<_> = scripts
            .iter()
            .map(|s| (s.check(), s.path.clone()))
            .collect();
        assert_eq!(
            seen,
            [
                ("required.d/10-a".to_owned(), image.join("required.d/10-a")),
                (
                    "required.d/20-b".to_owned(),
                    machine.join("required.d/20-b")
                ),
            ]
        );
        assert_eq!(collect(&[image, machine], "wanted.d").unwrap(), []);
    }
}
