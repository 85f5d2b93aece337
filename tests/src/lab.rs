//! What a scenario gets: artifacts, machines, servers, and a folder for what it leaves.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use anyhow::{Context, Result, anyhow};

use crate::artifacts::{Artifacts, ReferenceDisk};
use crate::build::{self, Profile};
use crate::cluster::{ControlPlane, Options, Program, Programs};
use crate::images::{V1, Variant};
use crate::loader::{Architecture, Loader};
use crate::vm::{self, Acceleration, Machine, MoreDisk, Setup};

/// slotd's configuration on the lab's disks: few tries and short pauses, and time for a trial on the slowest machine.
pub const CONFIGURATION: &str = "boot: {panic: 2}\ntrial: {tries: 2, deadline: 10m}\n";

/// The demo's: everything as delivered, except that a panic would not take ten seconds.
pub const DEMO_CONFIGURATION: &str = "boot: {panic: 3}\n";

/// What a machine is made with.
#[derive(Debug, Clone, Copy)]
pub struct NodeOptions<'a> {
    /// The image in slot A.
    pub variant: &'a Variant,
    /// slotd's configuration.
    pub configuration: &'a str,
    /// Pairs of a port of this machine's loopback and the guest's port it leads to.
    pub forwards: &'a [(u16, u16)],
    /// The boot loader.
    pub loader: Loader,
    /// Disks beside the one it boots from.
    pub disks: &'a [MoreDisk],
    /// Whether everything is recorded that is written to the disk.
    pub recorded: bool,
    /// Bytes that the disk takes and gives in a second, where it is slower than it could be.
    pub disk_rate: Option<u64>,
}

impl<'a> NodeOptions<'a> {
    /// An image, systemd-boot, and the lab's configuration.
    pub const fn new(variant: &'a Variant) -> Self {
        Self {
            variant,
            configuration: CONFIGURATION,
            forwards: &[],
            loader: Loader::SystemdBoot,
            disks: &[],
            recorded: false,
            disk_rate: None,
        }
    }
}

/// Shared by all tests of a run; what is expensive is made when it is first asked for.
#[derive(Debug, Default)]
struct Shared {
    /// Where each test has its folder.
    folder: PathBuf,
    profile: Profile,
    programs: OnceLock<Result<PathBuf, String>>,
    artifacts: OnceLock<Result<Artifacts, String>>,
    arm64_artifacts: OnceLock<Result<Artifacts, String>>,
    acceleration: OnceLock<Result<Acceleration, String>>,
    control_plane: OnceLock<Result<ControlPlane, String>>,
}

/// The lab as one test sees it.
#[derive(Debug, Clone)]
pub struct Lab {
    folder: PathBuf,
    processors: u32,
    shared: Arc<Shared>,
    notes: Arc<Mutex<Vec<String>>>,
}

impl Lab {
    /// A lab that leaves logs in `folder`, with slotd built like this.
    pub fn new(folder: &Path, processors: u32, profile: Profile) -> Result<Self> {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("creating {}", folder.display()))?;
        Ok(Self {
            folder: folder.to_owned(),
            processors,
            shared: Arc::new(Shared {
                folder: folder.to_owned(),
                profile,
                ..Shared::default()
            }),
            notes: Arc::default(),
        })
    }

    /// The same lab with an empty folder of its own for this test.
    pub fn for_test(&self, name: &str) -> Result<Self> {
        let folder = self.shared.folder.join(name);
        if folder.exists() {
            std::fs::remove_dir_all(&folder)
                .with_context(|| format!("removing {}", folder.display()))?;
        }
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("creating {}", folder.display()))?;
        Ok(Self {
            folder,
            processors: self.processors,
            shared: Arc::clone(&self.shared),
            notes: Arc::default(),
        })
    }

    /// Keeps a figure or a fact for the report, beside the test's verdict.
    pub fn note(&self, text: impl Into<String>) {
        self.notes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(text.into());
    }

    /// What this test has noted so far.
    pub fn notes(&self) -> Vec<String> {
        self.notes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Whether all is proven, not only what each change can wait for.
    pub fn proves(&self) -> bool {
        matches!(self.shared.profile, Profile::Release)
    }

    /// The folder of logs.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of slotd's programs for this machine, built when they are first asked for.
    pub fn programs(&self) -> Result<PathBuf> {
        self.shared
            .programs
            .get_or_init(|| {
                build::programs(self.shared.profile).map_err(|error| format!("{error:#}"))
            })
            .clone()
            .map_err(|error| anyhow!("{error}"))
    }

    /// Programs, images and disks, built when they are first asked for.
    pub fn artifacts(&self) -> Result<&Artifacts> {
        self.artifacts_of(Architecture::Amd64)
    }

    /// The same for machines of this architecture.
    pub fn artifacts_of(&self, architecture: Architecture) -> Result<&Artifacts> {
        let cell = match architecture {
            Architecture::Amd64 => &self.shared.artifacts,
            Architecture::Arm64 => &self.shared.arm64_artifacts,
        };
        let build = || Artifacts::build(architecture, &self.programs()?, self.shared.profile);
        cell.get_or_init(|| build().map_err(|error| format!("{error:#}")))
            .as_ref()
            .map_err(|error| anyhow!("{error}"))
    }

    /// How guests of this architecture are executed here.
    pub fn acceleration_of(&self, architecture: Architecture) -> Result<Acceleration> {
        match architecture {
            Architecture::Amd64 => self.acceleration(),
            // Always translated: the lab's own machine is an x86 one.
            Architecture::Arm64 => Ok(Acceleration::Tcg),
        }
    }

    /// How x86 guests are executed here.
    pub fn acceleration(&self) -> Result<Acceleration> {
        self.shared
            .acceleration
            .get_or_init(|| self.probe().map_err(|error| format!("{error:#}")))
            .clone()
            .map_err(|error| anyhow!("{error}"))
    }

    /// The control plane that tests share, started when it is first asked for; it dies with the thread that was the first. A
    /// test names its objects so that others do not meet them.
    pub fn control_plane(&self) -> Result<&ControlPlane> {
        let start = || {
            let programs = Programs::provide(&Program::CONTROL_PLANE)?;
            let folder = self.for_test("control-plane")?.folder;
            let plane = ControlPlane::start(&folder, &programs, Options { audit: true })?;
            eprintln!(
                "lab: the control plane is ready after {:.1} s, its logs are in {}",
                plane.elapsed().as_secs_f64(),
                plane.folder().display()
            );
            Ok(plane)
        };
        self.shared
            .control_plane
            .get_or_init(|| start().map_err(|error: anyhow::Error| format!("{error:#}")))
            .as_ref()
            .map_err(|error| anyhow!("{error}"))
    }

    fn probe(&self) -> Result<Acceleration> {
        let artifacts = self.artifacts()?;
        let disk = artifacts.disk(&V1, CONFIGURATION, Loader::SystemdBoot)?;
        let kernel = tempfile::NamedTempFile::new().context("making a temporary file")?;
        crate::esp::copy_out(&disk.path, "/slotd/a/linux", kernel.path())?;
        let memory = artifacts.folder().join("acceleration");
        let acceleration = vm::probe(kernel.path(), &memory)?;
        if acceleration == Acceleration::Tcg {
            eprintln!("lab: KVM does not work here, guests are emulated");
        }
        Ok(acceleration)
    }

    /// A control plane of this test's own, in a folder of that name.
    pub fn own_control_plane(&self) -> Result<ControlPlane> {
        let programs = Programs::provide(&Program::CONTROL_PLANE)?;
        let folder = self.folder.join("control-plane");
        ControlPlane::start(&folder, &programs, Options { audit: true })
    }

    /// A machine with a fresh reference disk whose slot A holds v1, switched off. Its files lie in a folder of this name.
    pub fn machine(&self, name: &str) -> Result<Machine> {
        self.machine_of(name, &NodeOptions::new(&V1))
    }

    /// The same with what these options say.
    pub fn machine_of(&self, name: &str, options: &NodeOptions<'_>) -> Result<Machine> {
        let variant = options.variant;
        let architecture = options.loader.architecture();
        let disk = self.artifacts_of(architecture)?.disk(
            variant,
            options.configuration,
            options.loader,
        )?;
        self.machine_on(name, disk, options)
    }

    /// The same with a copy of this disk.
    pub fn machine_on(
        &self,
        name: &str,
        disk: ReferenceDisk,
        options: &NodeOptions<'_>,
    ) -> Result<Machine> {
        let variant = options.variant;
        let architecture = options.loader.architecture();
        Machine::new(Setup {
            disk: disk.path,
            variables: disk.variables,
            folder: self.folder.join(name),
            acceleration: self.acceleration_of(architecture)?,
            processors: variant.flavour().processors().unwrap_or(self.processors),
            memory: variant.flavour().memory(),
            forwards: options.forwards.to_vec(),
            disks: options.disks.to_vec(),
            loader: options.loader,
            recorded: options.recorded,
            disk_rate: options.disk_rate,
        })
    }
}
