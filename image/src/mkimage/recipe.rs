//! The recipe: what the reference system consists of, read from files (see `image/recipe/README.md`).

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::architecture::Architecture;

/// The recipe beside this program's sources.
pub(crate) const DEFAULT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/recipe");

/// The folder of a recipe in which each of its flavours has a folder.
const FLAVOURS: &str = "flavours";
/// And the one in which each architecture has one.
const ARCHITECTURES: &str = "architectures";

/// A recipe as read from its folder.
#[derive(Debug)]
pub(crate) struct Recipe {
    /// What it is made for.
    pub(crate) architecture: Architecture,
    /// The Debian release.
    pub(crate) suite: String,
    /// Packages installed beyond the minimal base.
    pub(crate) packages: Vec<String>,
    /// Paths that dpkg never unpacks.
    pub(crate) path_excludes: Vec<String>,
    /// Paths removed from the tree, with `*` in the last component.
    pub(crate) remove: Vec<String>,
    /// Empty folders of the tree.
    pub(crate) folders: Vec<String>,
    /// Empty folders of the data partition.
    pub(crate) data_folders: Vec<String>,
    /// Folders of files and links, laid over the tree one after the other.
    pub(crate) overlays: Vec<PathBuf>,
}

impl Recipe {
    /// Reads the recipe in `folder`, and adds what the architecture and these flavours of it bring.
    pub(crate) fn load(
        folder: &Path,
        architecture: Architecture,
        flavours: &[String],
    ) -> Result<Self> {
        let suite = lines(&folder.join("suite"))?;
        let [suite] = suite.as_slice() else {
            bail!("{}/suite does not hold one line", folder.display());
        };
        let mut recipe = Self {
            architecture,
            suite: suite.clone(),
            packages: lines(&folder.join("packages"))?,
            path_excludes: lines(&folder.join("path-excludes"))?,
            remove: lines(&folder.join("remove"))?,
            folders: lines(&folder.join("folders"))?,
            data_folders: lines(&folder.join("data-folders"))?,
            overlays: vec![folder.join("overlay")],
        };
        recipe
            .add(&folder.join(ARCHITECTURES).join(architecture.name()))
            .with_context(|| format!("the architecture {}", architecture.name()))?;
        for flavour in flavours {
            recipe
                .add(&folder.join(FLAVOURS).join(flavour))
                .with_context(|| format!("the flavour {flavour:?}"))?;
        }
        Ok(recipe)
    }

    /// Adds the lists and the overlay of an architecture or a flavour, which need not have all of them.
    fn add(&mut self, addition: &Path) -> Result<()> {
        if !addition.is_dir() {
            bail!("{} is no folder", addition.display());
        }
        for (name, list) in [
            ("packages", &mut self.packages),
            ("path-excludes", &mut self.path_excludes),
            ("remove", &mut self.remove),
            ("folders", &mut self.folders),
            ("data-folders", &mut self.data_folders),
        ] {
            let path = addition.join(name);
            if path.exists() {
                list.extend(lines(&path)?);
            }
        }
        let overlay = addition.join("overlay");
        if overlay.exists() {
            self.overlays.push(overlay);
        }
        Ok(())
    }

    /// A short digest of all that decides what mmdebstrap makes. The overlay is not part of it: it is laid over later.
    pub(crate) fn rootfs_key(&self) -> String {
        let mut hasher = Sha256::new();
        hasher.update(format!(
            "{:?}",
            (
                self.architecture.name(),
                &self.suite,
                &self.packages,
                &self.path_excludes
            )
        ));
        let digest = hasher.finalize();
        digest
            .iter()
            .take(8)
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}

/// The lines of a file without comments and blanks.
fn lines(path: &Path) -> Result<Vec<String>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(str::to_owned)
        .collect())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{DEFAULT, Recipe};
    use crate::architecture::Architecture;

    fn load(flavours: &[String]) -> anyhow::Result<Recipe> {
        Recipe::load(Path::new(DEFAULT), Architecture::Amd64, flavours)
    }

    #[test]
    fn the_recipe_in_the_repository_can_be_read() {
        let recipe = load(&[]).unwrap();
        assert!(recipe.packages.contains(&"systemd-boot".to_owned()));
        assert!(recipe.folders.contains(&"/efi".to_owned()));
        assert_eq!(recipe.rootfs_key().len(), 16);
    }

    #[test]
    fn each_architecture_has_its_kernel_and_its_loader() {
        let amd64 = load(&[]).unwrap();
        let arm64 = Recipe::load(Path::new(DEFAULT), Architecture::Arm64, &[]).unwrap();
        let has = |recipe: &Recipe, name: &str| recipe.packages.contains(&name.to_owned());
        assert!(has(&amd64, "linux-image-cloud-amd64") && !has(&amd64, "linux-image-cloud-arm64"));
        assert!(has(&arm64, "linux-image-cloud-arm64") && !has(&arm64, "linux-image-cloud-amd64"));
        // It starts nothing on a board with U-Boot.
        assert!(!has(&arm64, "systemd-boot"));
        assert!(has(&arm64, "fdisk") && has(&arm64, "kmod"));
        assert_ne!(amd64.rootfs_key(), arm64.rootfs_key());
    }

    #[test]
    fn another_package_makes_another_root_filesystem() {
        let mut recipe = load(&[]).unwrap();
        let before = recipe.rootfs_key();
        recipe.packages.push("tree".to_owned());
        assert_ne!(recipe.rootfs_key(), before);
    }

    #[test]
    fn a_flavour_adds_to_the_recipe_and_one_that_is_not_there_is_named() {
        let plain = load(&[]).unwrap();
        let flavours = ["kubernetes".to_owned()];
        let node = load(&flavours).unwrap();
        assert!(node.packages.starts_with(&plain.packages));
        assert!(node.packages.contains(&"containerd".to_owned()));
        assert!(
            node.data_folders
                .contains(&"/var-lib-containerd".to_owned())
        );
        assert_eq!(node.overlays.len(), plain.overlays.len() + 1);
        assert_ne!(node.rootfs_key(), plain.rootfs_key());

        let error = load(&["desktop".to_owned()]).unwrap_err();
        assert!(format!("{error:#}").contains("\"desktop\""), "{error:#}");
    }
}
