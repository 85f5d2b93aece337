//! `slotd-bootctl`: shows the slots of an A/B node and changes what the boot loader holds of them.
//! Needs no daemon, no D-Bus and no configuration.

mod report;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use slotd_bootctl::{
    Backend, BootOptions, Error, EspSetting, PreflightRequest, RefusalCode, Result, SlotLocator,
    SlotName, SlotSettings, SlotState, SlotTable, System, SystemdBoot, machine_id,
    require_no_refusals,
};

use crate::report::{Loader, Report};

/// Shows and changes what the boot loader holds of an A/B node's slots.
///
/// Works without a daemon and without a configuration on a disk with a usual label pair
/// (root-a/root-b and the like).
#[derive(Debug, Parser)]
#[command(name = "slotd-bootctl", version, after_help = EXIT_CODES)]
struct Arguments {
    /// How to print what is found.
    #[arg(long, value_enum, default_value_t = Output::Table, global = true)]
    output: Output,
    /// Slot A: PARTLABEL=, PARTUUID= or a device path, instead of a known label pair.
    #[arg(long, value_name = "LOCATOR", requires = "slot_b", global = true)]
    slot_a: Option<SlotLocator>,
    /// Slot B, likewise.
    #[arg(long, value_name = "LOCATOR", requires = "slot_a", global = true)]
    slot_b: Option<SlotLocator>,
    /// Where the EFI system partition is mounted, instead of /efi, /boot/efi or /boot.
    #[arg(long, value_name = "DIR", global = true)]
    esp: Option<PathBuf>,
    /// A directory that stands for the node: sys/, proc/ and dev/ below it.
    #[arg(long, value_name = "DIR", hide = true, global = true)]
    system_root: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

const EXIT_CODES: &str = "Exit codes: 0 done, 1 internal error, 2 usage, 3 the configuration or the \
machine's layout has to change, 4 request rejected, 5 refused to protect the node, 6 temporary, a \
retry may help.";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// A table for people.
    Table,
    /// A document for programs; its schema is in the crate's README.
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show both slots, what boots next, and how that is known.
    Status,
    /// Show one line for each slot.
    List,
    /// Make the next boot a trial of a verified slot, or go back to a good one.
    Activate {
        /// A or B.
        slot: SlotName,
        #[command(flatten)]
        trial: Trial,
    },
    /// Record that the running system is proven.
    MarkGood {
        /// A or B; the booted slot if left out.
        slot: Option<SlotName>,
    },
    /// Give a slot up.
    MarkBad {
        /// A or B.
        slot: SlotName,
    },
}

#[derive(Debug, Args)]
struct Trial {
    /// Boots that the trial gets.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    tries: u32,
    /// Seconds that a trial boot gets to prove itself.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    deadline: u64,
    /// Seconds after which a panicked kernel reboots.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    panic: u32,
    /// Kernel options besides the image's own.
    #[arg(long, value_name = "OPTIONS", default_value = "")]
    options: String,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            // Nothing is left to tell anyone if standard error is closed.
            let _ = writeln!(std::io::stderr(), "slotd-bootctl: {}", error.chain());
            ExitCode::from(error.kind().exit_code())
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    let system = match &arguments.system_root {
        Some(root) => System::at(root),
        None => System::host(),
    };
    let settings = match (&arguments.slot_a, &arguments.slot_b) {
        (Some(a), Some(b)) => SlotSettings::Explicit {
            a: a.clone(),
            b: b.clone(),
        },
        _ => SlotSettings::Auto,
    };
    let table = SlotTable::discover(&system, &settings, None)?;
    let esp = arguments
        .esp
        .clone()
        .map_or(EspSetting::Auto, EspSetting::Path);
    let backend = SystemdBoot::open(&system, &table, &esp);
    let command = arguments.command.as_ref().unwrap_or(&Command::Status);
    match command {
        Command::Status | Command::List => {}
        command => change(&system, &table, backend.as_ref().map_err(copy)?, command)?,
    }
    let loader = backend.and_then(|backend| {
        let esp = system.absolute(backend.esp());
        Ok(Loader {
            esp,
            state: backend.state()?,
        })
    });
    let code = loader
        .as_ref()
        .err()
        .map_or(0, |error| error.kind().exit_code());
    let report = Report::new(&system, &table, loader);
    let text = match (arguments.output, command) {
        (Output::Json, Command::List) => report.list_json(),
        (Output::Json, _) => report.json(),
        (Output::Table, Command::List) => report.list_table(),
        (Output::Table, _) => report.table(),
    };
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(|source| Error::Io {
            action: "write",
            path: "standard output".into(),
            source,
        })?;
    Ok(ExitCode::from(code))
}

/// The error of a loader that could not be opened, for a command that needs it.
fn copy(error: &Error) -> Error {
    Error::NoLoader {
        problem: error.chain(),
    }
}

fn change(
    system: &System,
    table: &SlotTable,
    backend: &SystemdBoot,
    command: &Command,
) -> Result<()> {
    match command {
        Command::Activate { slot, trial } => activate(system, table, backend, *slot, trial),
        Command::MarkGood { slot } => match slot.or(table.booted.slot()) {
            Some(slot) => backend.mark_good(slot),
            None => Err(Error::Rejected {
                reason: "neither slot is booted; name the slot to mark".to_owned(),
            }),
        },
        Command::MarkBad { slot } => backend.mark_bad(*slot),
        Command::Status | Command::List => Ok(()),
    }
}

fn activate(
    system: &System,
    table: &SlotTable,
    backend: &SystemdBoot,
    slot: SlotName,
    trial: &Trial,
) -> Result<()> {
    if backend.state()?.slot(slot) == SlotState::Good {
        return backend.select(slot);
    }
    let Some(verified) = backend.verified(table, slot)? else {
        return Err(Error::Rejected {
            reason: format!("slot {slot} holds no verified image; install one first"),
        });
    };
    let request = PreflightRequest {
        slot,
        boot_files: Some(0),
        extra: trial.options.clone(),
    };
    let mut refusals = backend.preflight(&request);
    // The boot files are in place already.
    refusals.retain(|refusal| refusal.code != RefusalCode::NoSpace);
    require_no_refusals(&refusals)?;
    let machine_id = match backend.machine_id()? {
        Some(id) => id,
        None => machine_id(system)?,
    };
    let options = BootOptions {
        tries: trial.tries,
        extra: trial.options.clone(),
        machine_id,
        trial_deadline_seconds: trial.deadline,
        panic_seconds: trial.panic,
    };
    backend.arm(&verified, trial.tries, &options)
}
