//! The command line: what each command does, and the exit code that it ends with.

pub mod arguments;
mod generate;

use std::process::ExitCode;

use clap::Parser;

use arguments::{Cli, Command};

/// Runs the program: parses the arguments, does what they say, prints an error if there is one.
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    match dispatch(cli) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("slotd: {error:#}");
            ExitCode::from(1)
        }
    }
}

fn dispatch(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Completions { shell } => {
            generate::completions(shell, &mut std::io::stdout().lock());
            Ok(ExitCode::SUCCESS)
        }
        Command::Man { dir } => {
            generate::man(&dir)?;
            Ok(ExitCode::SUCCESS)
        }
        _ => anyhow::bail!("not available yet"),
    }
}
