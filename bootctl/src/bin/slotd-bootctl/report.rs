//! What is printed: a table for people, a document for programs.
//!
//! The document's schema is described in the crate's README, and a golden file keeps it.

use std::fmt::Write;
use std::path::PathBuf;

use comfy_table::{Table, presets::NOTHING};
use serde::Serialize;
use slotd_bootctl::{
    Booted, Counting, Error, Evidence, LoaderState, NextBoot, PartUuid, Partition, Problem,
    SlotName, SlotState, SlotTable, StagedImage, Survey, System,
};

/// Version of the document. Fields may be added without raising it.
const VERSION: u32 = 1;

/// The boot loader as it was found.
#[derive(Debug)]
pub(crate) struct Loader {
    /// The directory, file or device of its data.
    pub(crate) location: String,
    /// What it holds.
    pub(crate) state: LoaderState,
}

/// The whole document.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    version: u32,
    booted: Option<SlotName>,
    evidence: Evidence,
    found_by: String,
    slots: Vec<SlotReport>,
    loader: Option<LoaderReport>,
    loader_error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    survey: Option<Survey>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SlotReport {
    slot: SlotName,
    booted: bool,
    #[serde(flatten)]
    state: Option<SlotState>,
    image: Option<StagedImage>,
    device: PathBuf,
    number: String,
    disk: String,
    partition: u32,
    label: String,
    part_uuid: Option<PartUuid>,
    size: u64,
    logical_block: u32,
    read_only: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct LoaderReport {
    backend: String,
    location: String,
    /// The location, where that is the mounted EFI system partition.
    #[serde(skip_serializing_if = "Option::is_none")]
    esp: Option<PathBuf>,
    next: NextBoot,
    staged: Option<SlotName>,
    trial_boot: bool,
    counting: Counting,
    problems: Vec<Problem>,
}

impl Report {
    /// With `verbose` also what discovery had to choose from.
    pub(crate) fn new(
        system: &System,
        table: &SlotTable,
        loader: Result<Loader, Error>,
        verbose: bool,
    ) -> Self {
        let (loader, loader_error) = match loader {
            Ok(loader) => (Some(loader), None),
            Err(error) => (None, Some(error.chain())),
        };
        let state = loader.as_ref().map(|loader| &loader.state);
        let slots = SlotName::BOTH
            .into_iter()
            .map(|slot| SlotReport::new(system, table, slot, state))
            .collect();
        Self {
            version: VERSION,
            booted: table.booted.slot(),
            evidence: table.evidence.clone(),
            found_by: table.found_by.clone(),
            slots,
            loader: loader.map(|loader| LoaderReport::new(loader.location, loader.state)),
            loader_error,
            survey: verbose.then(|| table.survey.clone()),
        }
    }

    /// The document.
    pub(crate) fn json(&self) -> String {
        rendered(self)
    }

    /// Only the slots.
    pub(crate) fn list_json(&self) -> String {
        rendered(&self.slots)
    }

    /// One line for each slot.
    pub(crate) fn list_table(&self) -> String {
        let mut table = plain();
        table.set_header([
            "SLOT", "STATE", "BOOTED", "VERSION", "IMAGE", "DEVICE", "LABEL",
        ]);
        for slot in &self.slots {
            let state = slot
                .state
                .map_or("unknown".to_owned(), |state| state.to_string());
            let image = slot.image.as_ref();
            let version = image.and_then(|image| image.version.clone());
            let digest = image.and_then(|image| image.expanded_sha256.get(..12).map(str::to_owned));
            table.add_row([
                slot.slot.to_string(),
                state,
                if slot.booted { "yes" } else { "no" }.to_owned(),
                version.unwrap_or_else(|| "-".to_owned()),
                digest.unwrap_or_else(|| "-".to_owned()),
                slot.device.display().to_string(),
                slot.label.clone(),
            ]);
        }
        format!("{table}\n")
    }

    /// Everything, with where it was learned.
    pub(crate) fn table(&self) -> String {
        let mut text = self.list_table();
        let mut line = |words: std::fmt::Arguments<'_>| {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{words}");
        };
        line(format_args!(""));
        match (&self.loader, &self.loader_error) {
            (Some(loader), _) => {
                let counting = match loader.counting {
                    Counting::Active => "boots of a trial are counted",
                    Counting::Inactive => "boots of a trial are NOT counted",
                    Counting::EveryBoot => "every boot takes a try, of a proven slot, too",
                    Counting::Unknown => "it did not say whether it counts boots",
                };
                line(format_args!("Next boot:   {}", loader.next));
                line(format_args!(
                    "Boot loader: {} at {}, {counting}",
                    loader.backend, loader.location
                ));
                if loader.trial_boot {
                    line(format_args!("This boot is a trial."));
                }
                if let Some(staged) = loader.staged {
                    line(format_args!(
                        "Staged:      slot {staged} holds a verified image"
                    ));
                }
            }
            (None, Some(error)) => line(format_args!("Boot loader: {error}")),
            (None, None) => {}
        }
        line(format_args!("Slots:       {}", self.found_by));
        let booted = self.booted.map_or(Booted::Neither, Booted::Slot);
        line(format_args!("Booted:      {booted}, because"));
        for witness in &self.evidence.0 {
            let says = match witness.says {
                Some(Booted::Slot(slot)) => format!("says {slot}"),
                Some(Booted::Neither) => "says neither".to_owned(),
                None => "does not say".to_owned(),
            };
            line(format_args!(
                "  {} {says}: {}",
                witness.source, witness.found
            ));
        }
        for problem in self.loader.iter().flat_map(|loader| &loader.problems) {
            line(format_args!("Problem:     {}", problem.message));
        }
        if let Some(survey) = &self.survey {
            text.push('\n');
            text.push_str(&crate::survey::lines(survey));
        }
        text
    }
}

impl SlotReport {
    fn new(
        system: &System,
        table: &SlotTable,
        slot: SlotName,
        loader: Option<&LoaderState>,
    ) -> Self {
        let partition: &Partition = table.get(slot);
        Self {
            slot,
            booted: table.booted == Booted::Slot(slot),
            state: loader.map(|loader| loader.slot(slot)),
            image: loader.and_then(|loader| loader.image(slot).cloned()),
            device: system.absolute(&partition.node),
            number: partition.number.to_string(),
            disk: partition.disk.clone(),
            partition: partition.index,
            label: partition.label.clone(),
            part_uuid: partition.part_uuid(),
            size: partition.size,
            logical_block: partition.logical_block,
            read_only: partition.read_only,
        }
    }
}

impl LoaderReport {
    fn new(location: String, state: LoaderState) -> Self {
        let esp = (state.backend == "systemd-boot").then(|| PathBuf::from(&location));
        Self {
            backend: state.backend,
            location,
            esp,
            next: state.next,
            staged: state.staged.map(|(slot, _)| slot),
            trial_boot: state.trial_boot,
            counting: state.counting,
            problems: state.problems,
        }
    }
}

/// The document of an error, in one line; `slotd` prints the same one.
pub(crate) fn error_json(error: &Error) -> String {
    let kind = error.kind().name();
    serde_json::json!({"error": {"kind": kind, "message": error.chain()}}).to_string()
}

fn plain() -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table
}

fn rendered(document: &impl Serialize) -> String {
    // Strings, numbers and lists only: serialisation cannot fail.
    let mut text = serde_json::to_string_pretty(document).unwrap_or_default();
    text.push('\n');
    text
}
