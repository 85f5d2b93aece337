//! A node as it is configured: where its slots, its boot loader and its state are, and what holds for its images.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use slotd_bootctl::{
    Backend, BootOptions, InspectSettings, LoaderSetting, LoaderState, Partition, SlotName,
    SlotSettings, SlotTable, SlotView, System, inspect, parse_os_release, trial_announced,
};
use slotd_engine::Failure;
use slotd_image::FetchSettings;

use crate::agent::RunFiles;
use crate::staging::boot_failure;

/// Exists when systemd-boot counted this boot, that is when it started an entry with a counter; the name ends with the
/// vendor id of its variables. It outlives a confirmation until the next boot.
const COUNT_PATH: &str = "LoaderBootCountPath-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";

/// Whether the boot loader counted this boot: a trial, or the last resort of a slot that was given up.
pub(crate) fn boot_is_counted(system: &System) -> bool {
    system.efivars().join(COUNT_PATH).exists() || trial_announced(system)
}

/// Where the fetch settings come from: read anew for each fetch, since tokens and certificates change.
pub type FetchSettingsSource = Box<dyn Fn() -> Result<FetchSettings, Failure> + Send + Sync>;

/// Opens the boot loader's backend for a slot table.
pub type OpenBackend =
    Box<dyn Fn(&System, &SlotTable) -> slotd_bootctl::Result<Box<dyn Backend>> + Send + Sync>;

/// Looks into a written slot.
pub type LookInto =
    Box<dyn Fn(&Partition, &InspectSettings) -> slotd_bootctl::Result<SlotView> + Send + Sync>;

/// What the node's host has to know.
pub struct NodeSettings {
    /// Where kernel files are.
    pub system: System,
    /// Where the slots are.
    pub slots: SlotSettings,
    /// Which boot loader drives the slots, and where its data is.
    pub loader: LoaderSetting,
    /// How the boot loader is opened.
    pub backend: OpenBackend,
    /// How a written slot is looked into.
    pub look: LookInto,
    /// What must outlive a slot.
    pub state_directory: PathBuf,
    /// What ends with the boot.
    pub run: RunFiles,
    /// The os-release key that holds an image's version.
    pub version_key: String,
    /// Boots that a trial gets.
    pub tries: u32,
    /// How long after the kernel's start a trial boot has to be proven.
    pub deadline: Duration,
    /// Kernel options beside the image's own.
    pub boot_options: String,
    /// Seconds from a panic to the reboot on a trial boot.
    pub panic_seconds: u32,
    /// Refuse images without an enabled agent, unless asked otherwise.
    pub require_agent: bool,
    /// Refuse to fetch an image without a checksum.
    pub require_checksum: bool,
    /// How images are fetched.
    pub fetch: FetchSettingsSource,
}

impl NodeSettings {
    /// Settings of a host with this boot loader and all defaults.
    #[must_use]
    pub fn new(loader: LoaderSetting, fetch: FetchSettingsSource) -> Self {
        Self {
            system: System::host(),
            slots: SlotSettings::Auto,
            loader: loader.clone(),
            backend: Box::new(move |system, table| loader.open(system, table)),
            look: Box::new(inspect),
            state_directory: PathBuf::from("/var/lib/slotd"),
            run: RunFiles::default(),
            version_key: String::from("IMAGE_VERSION"),
            tries: 3,
            deadline: Duration::from_secs(600),
            boot_options: String::new(),
            panic_seconds: 10,
            require_agent: true,
            require_checksum: false,
            fetch,
        }
    }

    /// Slots as they are now.
    pub(crate) fn table(&self) -> Result<SlotTable, Failure> {
        SlotTable::discover(&self.system, &self.slots, None).map_err(|error| boot_failure(&error))
    }

    /// The boot loader of these slots.
    pub(crate) fn backend(&self, table: &SlotTable) -> Result<Box<dyn Backend>, Failure> {
        (self.backend)(&self.system, table).map_err(|error| boot_failure(&error))
    }

    /// What entries are made with.
    pub(crate) fn boot_options(&self) -> Result<BootOptions, Failure> {
        let machine_id =
            slotd_bootctl::machine_id(&self.system).map_err(|error| boot_failure(&error))?;
        Ok(BootOptions {
            tries: self.tries,
            extra: self.boot_options.clone(),
            machine_id,
            trial_deadline_seconds: self.deadline.as_secs(),
            panic_seconds: self.panic_seconds,
        })
    }

    /// The running system's os-release.
    fn os_release(&self, key: &str) -> Option<String> {
        let system = &self.system;
        let text = fs::read_to_string(system.path("/etc/os-release"))
            .or_else(|_| fs::read_to_string(system.path("/usr/lib/os-release")))
            .ok()?;
        parse_os_release(&text)
            .remove(key)
            .filter(|value| !value.is_empty())
    }

    /// The version that runs: what the image says, else what was recorded when it was staged, else
    /// `VERSION_ID`.
    pub(crate) fn running_version(
        &self,
        loader: Option<&LoaderState>,
        booted: SlotName,
    ) -> Option<String> {
        self.os_release(&self.version_key)
            .or_else(|| loader?.image(booted)?.version.clone())
            .or_else(|| self.os_release("VERSION_ID"))
    }
}

impl fmt::Debug for NodeSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeSettings")
            .field("state_directory", &self.state_directory)
            .finish_non_exhaustive()
    }
}
