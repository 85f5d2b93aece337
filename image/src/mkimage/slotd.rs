//! Installing slotd into a tree: programs, units, policy, and the units that presets enable.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::tree::{self, Tree};

/// The repository's tree of units, laid out as it is installed.
pub(crate) const DEFAULT_UNITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../systemd");

/// What to install.
#[derive(Debug)]
pub(crate) struct Installation {
    /// Folder with the programs.
    pub(crate) binaries: PathBuf,
    /// Tree of units, policy and presets.
    pub(crate) units: PathBuf,
}

/// Puts the programs to /usr/bin, lays the units over the tree and enables what the presets in them enable.
pub(crate) fn install(tree: &Tree, installation: &Installation) -> Result<()> {
    for name in ["slotd", "slotd-bootctl"] {
        let source = installation.binaries.join(name);
        if !source.is_file() {
            bail!("{} is not there: build it first", source.display());
        }
        tree::install(&source, &tree.path(&format!("/usr/bin/{name}")), 0o755)?;
    }
    tree.lay_over(&installation.units)?;
    create_groups(tree, &installation.units)?;
    enable_by_preset(tree, &installation.units)
}

/// What systemd-sysusers would do at the first boot, if it could write to the root: the groups that the tree's files declare.
fn create_groups(tree: &Tree, units: &Path) -> Result<()> {
    let folder = units.join("usr/lib/sysusers.d");
    let Ok(entries) = fs::read_dir(&folder) else {
        return Ok(());
    };
    for entry in entries {
        let path = entry
            .with_context(|| format!("reading {}", folder.display()))?
            .path();
        let text =
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        for name in groups(&text) {
            for (file, line) in [("/etc/group", "x:GID:"), ("/etc/gshadow", "!*::")] {
                let place = tree.path(file);
                let table = fs::read_to_string(&place)
                    .with_context(|| format!("reading {}", place.display()))?;
                if let Some(table) = with_group(&table, name, line) {
                    let before = fs::metadata(&place)
                        .with_context(|| format!("looking at {}", place.display()))?;
                    tree.write(file, table.as_bytes())?;
                    chown(&place, Some(before.uid()), Some(before.gid()))
                        .and_then(|()| fs::set_permissions(&place, before.permissions()))
                        .with_context(|| format!("setting the mode of {}", place.display()))?;
                }
            }
        }
    }
    Ok(())
}

/// Groups that a sysusers.d file declares with an id of systemd's choice.
fn groups(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("g "))
        .filter_map(|line| line.split_whitespace().next())
}

/// A table of groups with one more, unless it is there. `GID` in the line becomes the highest system id that is free.
fn with_group(table: &str, name: &str, line: &str) -> Option<String> {
    let fields = |line: &str| -> Vec<String> { line.split(':').map(str::to_owned).collect() };
    let rows: Vec<Vec<String>> = table.lines().map(fields).collect();
    if rows
        .iter()
        .any(|row| row.first().is_some_and(|first| first == name))
    {
        return None;
    }
    let taken = |id: u32| {
        rows.iter()
            .any(|row| row.get(2).is_some_and(|gid| *gid == id.to_string()))
    };
    let id = (100..1000).rev().find(|id| !taken(*id))?;
    Some(format!(
        "{}\n{name}:{}\n",
        table.trim_end(),
        line.replace("GID", &id.to_string())
    ))
}

/// What `systemctl preset` does, for the units that the presets of this tree name: links for WantedBy=, RequiredBy= and Alias=.
fn enable_by_preset(tree: &Tree, units: &Path) -> Result<()> {
    for folder in ["usr/lib/systemd/system-preset", "lib/systemd/system-preset"] {
        let folder = units.join(folder);
        let Ok(entries) = fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries {
            let path = entry
                .with_context(|| format!("reading {}", folder.display()))?
                .path();
            let text =
                fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
            for name in enabled(&text) {
                let unit = format!("/usr/lib/systemd/system/{name}");
                let text = fs::read_to_string(tree.path(&unit))
                    .with_context(|| format!("{} enables {name}", path.display()))?;
                for link in install_links(&text, name) {
                    tree.link(&format!("/etc/systemd/system/{link}"), &unit)?;
                }
            }
        }
    }
    Ok(())
}

/// The units that a preset file enables by name.
fn enabled(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("enable "))
        .map(str::trim)
        .filter(|name| !name.contains('*'))
}

/// The links below /etc/systemd/system that a unit's `[Install]` section asks for.
fn install_links(unit: &str, name: &str) -> Vec<String> {
    let mut links = Vec::new();
    let mut inside = false;
    for line in unit.lines().map(str::trim) {
        if line.starts_with('[') {
            inside = line == "[Install]";
            continue;
        }
        let Some((key, value)) = line.split_once('=').filter(|_| inside) else {
            continue;
        };
        for target in value.split_whitespace() {
            match key.trim() {
                "WantedBy" => links.push(format!("{target}.wants/{name}")),
                "RequiredBy" => links.push(format!("{target}.requires/{name}")),
                "Alias" => links.push(target.to_owned()),
                _ => {}
            }
        }
    }
    links
}

#[cfg(test)]
mod tests {
    use super::{enabled, groups, install_links, with_group};

    #[test]
    fn declared_groups_get_the_highest_free_system_id() {
        assert_eq!(
            groups("# x\ng slotd -\nu other -\n").collect::<Vec<_>>(),
            ["slotd"]
        );
        let table = "root:x:0:\nsystemd-network:x:999:\n";
        assert_eq!(
            with_group(table, "slotd", "x:GID:").unwrap(),
            "root:x:0:\nsystemd-network:x:999:\nslotd:x:998:\n"
        );
        assert_eq!(with_group(table, "root", "x:GID:"), None);
    }

    #[test]
    fn presets_name_the_units_to_enable() {
        let text = "# comment\nenable slotd.service\ndisable slotd-controller.service\nenable *\n";
        assert_eq!(enabled(text).collect::<Vec<_>>(), ["slotd.service"]);
    }

    #[test]
    fn the_install_section_says_where_links_go() {
        let unit = "[Unit]\nWantedBy=not.this\n[Install]\nWantedBy=multi-user.target\nRequiredBy=boot-complete.target\nAlias=dbus-io.monok8s.Slotd1.service\n";
        assert_eq!(
            install_links(unit, "slotd.service"),
            [
                "multi-user.target.wants/slotd.service",
                "boot-complete.target.requires/slotd.service",
                "dbus-io.monok8s.Slotd1.service",
            ]
        );
    }
}
