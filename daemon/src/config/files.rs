//! Which files are read, and what lies beside them unread.

use std::fs::DirEntry;
use std::io;
use std::path::{Path, PathBuf};

use super::ConfigError;

/// The files of the configuration.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// In the order in which they are read; the first two need not be there.
    pub(super) read: Vec<PathBuf>,
    /// What is not read although somebody may have meant it to be, each a sentence.
    pub(super) warnings: Vec<String>,
}

/// Finds the files below `root`.
///
/// # Errors
/// Where a folder cannot be read, and for a file that is one of ours but for its name's ending.
pub(super) fn find(root: &Path) -> Result<Files, ConfigError> {
    let mut files = Files::default();
    for folder in ["usr/lib/slotd", "etc/slotd"] {
        let folder = root.join(folder);
        files.read.push(folder.join("config.yaml"));
        for entry in entries(&folder)? {
            if is_yaml(&name(&entry), "config") {
                let expected = "the file is called config.yaml";
                let path = entry.path();
                return Err(ConfigError::Name { path, expected });
            }
        }
    }
    let folder = root.join("etc/slotd/config.d");
    let mut fragments = Vec::new();
    for entry in entries(&folder)? {
        let (path, name) = (entry.path(), name(&entry));
        let (stem, ending) = name.rsplit_once('.').unwrap_or((&name, ""));
        if is_leftover(&name, ending) {
            tracing::debug!(path = %path.display(), "not read");
        } else if ending == "yaml" {
            fragments.push(path);
        } else if is_yaml(&name, stem) {
            let expected = "fragments end in .yaml";
            return Err(ConfigError::Name { path, expected });
        } else {
            let warning = format!("{} is not read: fragments end in .yaml", path.display());
            files.warnings.push(warning);
        }
    }
    fragments.sort();
    files.warnings.sort();
    files.read.append(&mut fragments);
    let vendor = root.join("usr/lib/slotd/config.d");
    if vendor.exists() {
        let vendor = vendor.display();
        let warning = format!("{vendor} is not read: fragments lie in /etc/slotd/config.d");
        files.warnings.push(warning);
    }
    Ok(files)
}

/// What lies in a folder, which need not be there.
fn entries(folder: &Path) -> Result<Vec<DirEntry>, ConfigError> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.and_then(Iterator::collect),
    };
    entries.map_err(|error| ConfigError::read(folder, error))
}

fn name(entry: &DirEntry) -> String {
    entry.file_name().to_string_lossy().into_owned()
}

/// Whether `name` is `stem` with the ending of a YAML file, but not with the one that is read.
fn is_yaml(name: &str, stem: &str) -> bool {
    name.strip_prefix(stem)
        .and_then(|ending| ending.strip_prefix('.'))
        .is_some_and(|ending| {
            ending != "yaml"
                && (ending.eq_ignore_ascii_case("yaml") || ending.eq_ignore_ascii_case("yml"))
        })
}

/// Whether a name is one that editors and package managers leave behind, or that says that it is not to be read:
/// hidden files, backups, what dpkg, ucf, rpm and pacman put beside a changed file, a README.
fn is_leftover(name: &str, ending: &str) -> bool {
    const ENDINGS: [&str; 12] = [
        "bak", "backup", "disabled", "ignore", "old", "orig", "pacnew", "pacsave", "rej", "save",
        "swp", "tmp",
    ];
    const TOOLS: [&str; 3] = ["dpkg-", "rpm", "ucf-"];
    name.starts_with('.')
        || name.ends_with(['~', '#'])
        || (name.starts_with("README") && ending != "yaml")
        || ENDINGS.contains(&ending)
        || TOOLS.iter().any(|tool| ending.starts_with(tool))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Makes these empty files, and tells what is read, beside the two that always are, and what is warned of.
    fn found(names: &[&str]) -> Result<(Vec<String>, Vec<String>), String> {
        let root = tempfile::tempdir().unwrap();
        for name in names {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let place = format!("{}/", root.path().display());
        let files = find(root.path()).map_err(|error| error.to_string().replace(&place, ""))?;
        let read = files.read.iter().map(|path| path.display().to_string());
        let always = ["usr/lib/slotd/config.yaml", "etc/slotd/config.yaml"];
        let read: Vec<_> = read.map(|path| path.replace(&place, "")).collect();
        assert_eq!(read[..2], always);
        let warnings = files.warnings.iter();
        Ok((
            read[2..].to_vec(),
            warnings.map(|text| text.replace(&place, "")).collect(),
        ))
    }

    #[test]
    fn fragments_are_read_by_name() {
        let (read, warnings) = found(&[
            "etc/slotd/config.d/20-b.yaml",
            "etc/slotd/config.d/10-a.b.yaml",
            "etc/slotd/keys/a.pub",
            "usr/lib/slotd/health/x",
        ])
        .unwrap();
        assert_eq!(
            read,
            [
                "etc/slotd/config.d/10-a.b.yaml",
                "etc/slotd/config.d/20-b.yaml"
            ]
        );
        assert!(warnings.is_empty(), "{warnings:?}");
    }

    #[test]
    fn a_file_of_ours_with_another_ending_is_an_error() {
        for name in [
            "etc/slotd/config.yml",
            "etc/slotd/config.YAML",
            "usr/lib/slotd/config.yml",
            "etc/slotd/config.d/x.yml",
            "etc/slotd/config.d/x.Yaml",
            "etc/slotd/config.d/x.y.YML",
        ] {
            // Also beside one that is read.
            for others in [
                &[][..],
                &["etc/slotd/config.yaml", "etc/slotd/config.d/x.yaml"],
            ] {
                let said = found(&[others, &[name]].concat()).unwrap_err();
                assert!(
                    said.starts_with(&format!("{name} would be ignored: ")),
                    "{said}"
                );
                assert!(said.ends_with(".yaml"), "{said}");
            }
        }
    }

    #[test]
    fn other_files_among_the_fragments_are_warned_of() {
        for name in [
            "10-fetch.conf",
            "10-fetch",
            "10-fetch.json",
            "10-fetch.yaml.txt",
            "yaml",
            "more/10.yaml",
        ] {
            let path = format!("etc/slotd/config.d/{name}");
            let (read, warnings) = found(&[&path, "etc/slotd/config.d/x.yaml"]).unwrap();
            assert_eq!(read, ["etc/slotd/config.d/x.yaml"]);
            let path = path.trim_end_matches("/10.yaml");
            assert_eq!(
                warnings,
                [format!("{path} is not read: fragments end in .yaml")]
            );
        }
        let (_, warnings) = found(&["usr/lib/slotd/config.d/10-vendor.yaml"]).unwrap();
        assert_eq!(
            warnings,
            ["usr/lib/slotd/config.d is not read: fragments lie in /etc/slotd/config.d"]
        );
    }

    #[test]
    fn what_editors_and_package_managers_leave_behind_is_no_news() {
        for name in [
            "x.yaml~",
            ".x.yaml.swp",
            ".x.yaml",
            "#x.yaml#",
            "x.yaml.bak",
            "x.yaml.orig",
            "x.yaml.dpkg-old",
            "x.yaml.dpkg-dist",
            "x.yaml.ucf-dist",
            "x.yaml.rpmsave",
            "x.yaml.rpmnew",
            "x.yaml.pacnew",
            "x.yaml.disabled",
            "README",
            "README.md",
            ".gitkeep",
        ] {
            let (read, warnings) = found(&[&format!("etc/slotd/config.d/{name}")]).unwrap();
            assert!(
                read.is_empty() && warnings.is_empty(),
                "{name}: {read:?} {warnings:?}"
            );
        }
    }

    #[test]
    fn what_has_the_right_ending_is_read_whatever_its_name() {
        let path = "etc/slotd/config.d/README-site.yaml";
        let (read, warnings) = found(&[path]).unwrap();
        assert_eq!(read.len(), 1, "{read:?}");
        assert!(read[0].ends_with("README-site.yaml") && warnings.is_empty());
    }
}
