//! The command line: what each command does, and the exit code that it ends with.

mod activation;
pub mod arguments;
mod error;
mod flash;
mod follow;
mod generate;
mod history;
mod image;
mod install;
mod plan;
mod report;
mod settings;
mod status;
mod trial;

use std::future::Future;
use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use arguments::{Cli, Command, ConfigCommand, ControllerArguments, OutputFormat};
use error::CliError;

use crate::agent::{AgentLife, RunFiles};
use crate::config::ControllerSettings;
use crate::controller::{Connection, Surroundings};

/// Runs the program: parses the arguments, does what they say, prints an error if there is one.
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    let output = cli.output;
    match dispatch(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error.print(output);
            ExitCode::from(error.kind().exit_code())
        }
    }
}

fn dispatch(cli: Cli) -> Result<(), CliError> {
    let output = cli.output;
    let settings = || crate::config::load(&cli.config_root).map_err(CliError::from);
    match cli.command {
        Command::Agent => {
            crate::journal::start("info").map_err(CliError::internal)?;
            let _life = AgentLife::claim(&RunFiles::default().agent())?;
            crate::service::run(&settings()?).map_err(CliError::internal)
        }
        Command::Controller(arguments) => {
            crate::journal::start("info").map_err(CliError::internal)?;
            let connection = connection(arguments, &settings()?.controller);
            crate::controller::run(&connection).map_err(CliError::internal)
        }
        Command::Install(arguments) => wait(install::install(&arguments, output)),
        Command::Activate => wait(install::activate(output)),
        Command::Rollback => wait(install::rollback(output)),
        Command::Cancel { id } => wait(install::cancel(id, output)),
        Command::Plan(arguments) => plan::plan(&settings()?, &arguments, output),
        Command::Status { watch: false } => wait(status::show(&cli.config_root, output)),
        Command::Status { watch: true } => wait(status::watch(output)),
        Command::History => history::show(&settings()?, output),
        Command::Config(ConfigCommand::Show) => settings::show(&settings()?, output),
        Command::Flash(arguments) => flash::flash(&settings()?, &arguments, output),
        Command::Gate => trial::gate(&cli.config_root),
        Command::Confirm => trial::confirm(&cli.config_root),
        Command::Completions { shell } => {
            generate::completions(shell, &mut std::io::stdout().lock());
            Ok(())
        }
        Command::Man { dir } => generate::man(&dir).map_err(|source| CliError::io(&dir, source)),
    }
}

/// The controller's connection: the configuration's, where no argument says otherwise.
fn connection(arguments: ControllerArguments, settings: &ControllerSettings) -> Connection {
    let mut connection = Connection::configured(settings, &Surroundings::here());
    if arguments.in_cluster || arguments.kubeconfig.is_some() {
        connection = connection.by(arguments.kubeconfig);
    }
    if let Some(namespace) = arguments.namespace {
        connection.namespace = namespace;
    }
    connection
}

/// Waits for what speaks with the bus.
fn wait<T>(work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(CliError::internal)?
        .block_on(work)
}

/// Prints a result, whole lines. A reader that went away (`slotd status | head -1`) is no failure.
fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush());
}

/// Prints a result as JSON.
fn print_json(value: &impl serde::Serialize) -> Result<(), CliError> {
    print(&serde_json::to_string_pretty(value).map_err(CliError::internal)?);
    Ok(())
}

/// Says on standard error what does not keep a command from its result.
fn warn(message: &str, output: OutputFormat) {
    match output {
        OutputFormat::Table => eprintln!("slotd: warning: {message}"),
        OutputFormat::Json => {
            eprintln!("{}", serde_json::json!({"warning": {"message": message}}));
        }
    }
}

/// A table as it is printed everywhere here: no lines, aligned columns.
fn table(head: &[&str]) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_content_arrangement(comfy_table::ContentArrangement::Disabled);
    table.set_header(head);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}
