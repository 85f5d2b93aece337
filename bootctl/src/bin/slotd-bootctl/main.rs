//! `slotd-bootctl`: shows the slots of an A/B node and changes what the boot loader holds of them.
//! Needs no daemon, no D-Bus and no configuration.

mod arguments;
mod report;
mod survey;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use slotd_bootctl::{
    Backend, BootOptions, Error, PreflightRequest, RefusalCode, Result, SlotName, SlotSettings,
    SlotState, SlotTable, Survey, System, machine_id, require_no_refusals,
};

use crate::arguments::{Arguments, Command, Output, Trial};
use crate::report::{Loader, Report};

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            let text = match arguments.output {
                Output::Table => format!("slotd-bootctl: {}", error.chain()),
                Output::Json => report::error_json(&error),
            };
            // Nothing is left to tell anyone if standard error is closed.
            let _ = writeln!(std::io::stderr(), "{text}");
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
    let table = SlotTable::discover(&system, &settings, None)
        .inspect_err(|_| explain(arguments, &system, &settings))?;
    let backend = arguments.loader_setting().open(&system, &table);
    let command = arguments.command.as_ref().unwrap_or(&Command::Status);
    match command {
        Command::Status | Command::List => {}
        command => change(&system, &table, &**backend.as_ref().map_err(copy)?, command)?,
    }
    let loader = backend.and_then(|backend| {
        Ok(Loader {
            location: backend.location(),
            state: backend.state()?,
        })
    });
    let code = loader
        .as_ref()
        .err()
        .map_or(0, |error| error.kind().exit_code());
    let report = Report::new(&system, &table, loader, arguments.verbose);
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

/// Shows what there was to choose from, before the error that says why nothing was chosen.
fn explain(arguments: &Arguments, system: &System, settings: &SlotSettings) {
    if !arguments.verbose || arguments.output != Output::Table {
        return;
    }
    // Where this fails too, the error that follows says enough.
    if let Ok(survey) = Survey::read(system, settings) {
        let _ = write!(std::io::stderr(), "{}", survey::lines(&survey));
    }
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
    backend: &dyn Backend,
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
    backend: &dyn Backend,
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
