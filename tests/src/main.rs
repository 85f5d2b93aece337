//! The `lab` program: demo, tests, proofs, benchmarks, and a control plane and a machine to look at.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use slotd_tests::bench::Part;
use slotd_tests::build::{Profile, target_folder};
use slotd_tests::cross;
use slotd_tests::earlier::Earlier;
use slotd_tests::lab::Lab;
use slotd_tests::loader::{Architecture, Loader};
use slotd_tests::runner::{self, Outcome, Set, Test, Tier};
use slotd_tests::selection::Selection;
use slotd_tests::standin::{agent, controller};
use slotd_tests::vm::socket;
use slotd_tests::{fuzz, loopdisk, mutants, scenarios, setup, workspace};

/// slotd's lab: everything it does, on machines that may break.
#[derive(Debug, Parser)]
#[command(name = "lab")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show a good upgrade and one that is rolled back, in a virtual machine
    Demo {
        /// Show a roll-out instead: two virtual machines that are nodes of a Kubernetes cluster
        #[arg(long)]
        kubernetes: bool,
        /// The machine's boot loader: systemd-boot, grub, grub-bios or efi on amd64, uboot or uboot-raw on arm64
        #[arg(long, conflicts_with = "kubernetes")]
        loader: Option<Loader>,
        /// The machine's architecture; by default the loader's
        #[arg(long, value_enum, conflicts_with = "kubernetes")]
        arch: Option<Architecture>,
        /// Leave the machine running and say how to log in
        #[arg(long)]
        keep: bool,
    },
    /// Run the workspace's tests and the scenarios, fast ones first
    Test(TestArguments),
    /// Run everything, also what takes too long for each change
    Prove {
        #[command(flatten)]
        tests: TestArguments,
        /// Go on with a run that was interrupted: what passed with the very same commit is not run again
        #[arg(long)]
        go_on: bool,
    },
    /// Break a copy of slotd in small ways, one after the other, and see which test notices each
    Mutants {
        /// Only faults whose name, as `--list` prints it, contains this; may be given several times
        #[arg(long, value_name = "PATTERN")]
        only: Vec<String>,
        /// Print the faults instead of trying them
        #[arg(long)]
        list: bool,
        /// Go on with a run that was interrupted: what was caught with the very same commit is not tried again
        #[arg(long)]
        go_on: bool,
    },
    /// Try inputs that nobody thought of on everything that is read from disks, networks and other programs
    Fuzz {
        /// How long each fuzzer runs, two at a time; fractions are allowed
        #[arg(long, value_name = "N", default_value_t = 10.0)]
        minutes: f64,
        /// Only fuzzers whose name, as `--list` prints it, contains this; may be given several times
        #[arg(long, value_name = "PATTERN")]
        only: Vec<String>,
        /// Print the fuzzers instead of running them
        #[arg(long)]
        list: bool,
        /// How the figures are printed
        #[arg(long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Compare slotd's verified write with curl | zstd | dd, watch the idle agent, and measure a fleet at a Kubernetes API server
    Bench {
        /// Only this benchmark; may be given several times
        #[arg(long, value_enum, value_name = "BENCHMARK")]
        only: Vec<Part>,
        /// How the figures are printed
        #[arg(long, value_enum, default_value_t = Format::Table)]
        output: Format,
    },
    /// Start a Kubernetes control plane and leave it running until Ctrl-C
    Up {
        /// With so many nodes that stand in for machines, and a controller
        #[arg(long, value_name = "NUMBER", default_value_t = 0)]
        nodes: usize,
    },
    /// Boot the reference disk and leave it running until Ctrl-C
    Vm,
    /// Connect the terminal to a running machine's console; Ctrl-] leaves
    Console {
        /// The machine's folder, as `lab vm` and `lab demo --keep` print it
        folder: PathBuf,
    },
    /// Build slotd and slotd-bootctl for ARM64 with Debian's Rust and cross compiler
    Cross {
        /// Unoptimised, in half the time
        #[arg(long)]
        debug: bool,
    },
    /// Be the agent of a stand-in
    #[command(name = agent::COMMAND, hide = true)]
    StandInAgent(agent::Arguments),
    /// The controller of stand-ins, started by the lab itself
    #[command(name = controller::COMMAND, hide = true)]
    StandInController(controller::Arguments),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// For people
    Table,
    /// For programs
    Json,
}

#[derive(Debug, clap::Args)]
struct TestArguments {
    /// Only tests whose name, as `--list` and results print it, contains this; may be given several times
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    /// Print the names of the tests instead of running them
    #[arg(long)]
    list: bool,
    /// Write a report as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Machines that run at a time
    #[arg(long, default_value_t = 2)]
    parallel: usize,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Command::StandInController(arguments) = &cli.command {
        return controller::main(arguments);
    }
    if let Command::StandInAgent(arguments) = &cli.command {
        return agent::main(arguments);
    }
    match run(cli) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<bool> {
    match cli.command {
        Command::Demo {
            kubernetes,
            loader,
            arch,
            keep,
        } => {
            let loader =
                loader.unwrap_or_else(|| arch.unwrap_or(Architecture::Amd64).usual_loader());
            if arch.is_some_and(|arch| arch != loader.architecture()) {
                bail!(
                    "{} is a loader of {} machines here",
                    loader.name(),
                    loader.architecture().name()
                );
            }
            setup::ensure_packages()?;
            let lab = Lab::new(&lab_folder()?, 2, Profile::Release)?.for_test("demo")?;
            if kubernetes {
                slotd_tests::demo::kubernetes::run(&lab, keep)?;
            } else {
                slotd_tests::demo::run(&lab, loader, keep)?;
            }
            Ok(true)
        }
        Command::Test(arguments) => test(&arguments, Set::Test, None),
        Command::Prove { tests, go_on } => {
            let earlier = if tests.list {
                None
            } else {
                earlier("prove", &tests.only, go_on)?
            };
            test(&tests, Set::Prove, earlier.as_ref())
        }
        Command::Mutants { only, list, go_on } => {
            let selection = Selection::new(&only);
            if list {
                return mutants::list(&selection).map(|()| true);
            }
            setup::ensure_packages()?;
            let earlier = earlier("mutants", &only, go_on)?;
            mutants::run(&selection, earlier.as_ref())
        }
        Command::Fuzz {
            minutes,
            only,
            list,
            output,
        } => {
            let names = fuzz::names(&Selection::new(&only))?;
            if list {
                for name in names {
                    println!("{name}");
                }
                return Ok(true);
            }
            fuzz(&names, minutes, output)
        }
        Command::Bench { only, output } => bench(&only, output),
        Command::Up { nodes } => {
            if nodes > 0 {
                setup::ensure_packages()?;
            }
            let lab = Lab::new(&lab_folder()?, 1, Profile::Release)?.for_test("up")?;
            slotd_tests::cluster::up::run(&lab, nodes).map(|()| true)
        }
        Command::Vm => machine().map(|()| true),
        Command::Console { folder } => console(&folder).map(|()| true),
        Command::Cross { debug } => {
            cross::run(if debug {
                Profile::Debug
            } else {
                Profile::Release
            })?;
            Ok(true)
        }
        Command::StandInAgent(_) | Command::StandInController(_) => {
            bail!("a part of a stand-in was started as something else")
        }
    }
}

/// Where logs and machines lie.
fn lab_folder() -> Result<PathBuf> {
    Ok(target_folder()?.join("lab/runs"))
}

/// Results to go on with, or to be gone on with later; a part that is run by itself begins none anew.
fn earlier(command: &str, only: &[String], go_on: bool) -> Result<Option<Earlier>> {
    if go_on || only.is_empty() {
        Earlier::open(&target_folder()?, command, go_on)
    } else {
        Ok(None)
    }
}

fn test(arguments: &TestArguments, set: Set, earlier: Option<&Earlier>) -> Result<bool> {
    let selection = Selection::new(&arguments.only);
    let mut own = Vec::new();
    if selection.may_take_workspace() {
        own = workspace::build()?;
        own.retain(|test| selection.takes(&test.name));
    }
    let (tests, only_proved): (Vec<Test>, Vec<Test>) = scenarios::all()
        .into_iter()
        .filter(|test| selection.takes(test.name))
        .partition(|test| set == Set::Prove || test.set == Set::Test);
    let mut taken: Vec<&str> = own.iter().map(|test| test.name.as_str()).collect();
    taken.extend(tests.iter().map(|test| test.name));
    let left_out: Vec<&str> = only_proved.iter().map(|test| test.name).collect();
    if arguments.list {
        for name in &taken {
            println!("{name}");
        }
        for name in &left_out {
            println!("{name} (lab prove)");
        }
        taken.extend(&left_out);
        return selection.check(&taken, &[]).map(|()| true);
    }
    selection.check(&taken, &left_out)?;
    setup::ensure_packages()?;
    let known = |name: &str| earlier.and_then(|earlier| earlier.of(name));
    let names = own.iter().map(|test| test.name.as_str());
    let names = names.chain(tests.iter().map(|test| test.name));
    let mut outcomes: Vec<Outcome> = names.filter_map(known).cloned().collect();
    own.retain(|test| known(&test.name).is_none());
    let tests: Vec<Test> = tests
        .into_iter()
        .filter(|test| known(test.name).is_none())
        .collect();
    if !outcomes.is_empty() {
        println!("{} passed earlier with this commit", outcomes.len());
    }
    if !own.is_empty() {
        let ran = workspace::run(&own);
        if let Some(earlier) = earlier {
            ran.iter().for_each(|outcome| earlier.keep(outcome));
        }
        outcomes.extend(ran);
    }
    // Two machines of one processor do more in the same time than one of two; a single one is faster with both.
    let machines = tests
        .iter()
        .filter(|test| test.tier == Tier::Machine)
        .count();
    let parallel = arguments.parallel.min(machines.max(1));
    let processors = if parallel > 1 { 1 } else { 2 };
    // Building a release takes longer than all that is quicker with it. What is proven is what is released.
    let profile = match set {
        Set::Test => Profile::Debug,
        Set::Prove => Profile::Release,
    };
    let lab = Lab::new(&lab_folder()?, processors, profile)?;
    outcomes.extend(runner::run(&lab, &tests, parallel, earlier));
    if let Some(path) = &arguments.report {
        runner::write_report(&outcomes, path)?;
    }
    if !left_out.is_empty() {
        println!("\nonly with `lab prove`:");
        for name in &left_out {
            println!("  {name}");
        }
    }
    let ci = std::env::var("CI").ok();
    let skips_fail = runner::skips_fail(ci.as_deref(), loopdisk::unavailable());
    Ok(runner::summarise(&outcomes, skips_fail))
}

fn fuzz(names: &[String], minutes: f64, output: Format) -> Result<bool> {
    setup::ensure_packages()?;
    let report = fuzz::run(names, minutes)?;
    match output {
        Format::Table => report.print(),
        Format::Json => println!("{}", serde_json::to_string_pretty(&report)?),
    }
    Ok(report.clean)
}

fn bench(only: &[Part], output: Format) -> Result<bool> {
    setup::ensure_packages()?;
    let lab = Lab::new(&lab_folder()?, 2, Profile::Release)?.for_test("bench")?;
    let report = slotd_tests::bench::run(&lab, only)?;
    match output {
        Format::Table => report.print(),
        Format::Json => println!("{}", serde_json::to_string_pretty(&report)?),
    }
    Ok(report.missed.is_empty())
}

fn machine() -> Result<()> {
    setup::ensure_packages()?;
    let lab = Lab::new(&lab_folder()?, 2, Profile::Release)?.for_test("vm")?;
    let mut machine = lab.machine("machine")?;
    machine.power_on()?;
    let boot = machine.wait_for_boot()?;
    println!(
        "slot {} runs {} after {:.1} s",
        boot.slot,
        boot.version,
        boot.elapsed.as_secs_f64()
    );
    machine.open_console()?;
    println!(
        "log in from another terminal:\n  cargo lab console {}",
        machine.folder().display()
    );
    println!("Ctrl-C ends the machine");
    loop {
        std::thread::park();
    }
}

fn console(folder: &Path) -> Result<()> {
    let mut stream = socket::connect(folder, socket::LOGIN).context("is the machine running?")?;
    let mut output = stream.try_clone().context("the console's connection")?;
    let raw = RawTerminal::enter()?;
    eprint!("connected; Ctrl-] leaves\r\n");
    stream.write_all(b"\n").context("writing to the console")?;
    let reader = std::thread::spawn(move || {
        let mut stdout = std::io::stdout();
        let mut buffer = [0; 4096];
        while let Ok(count) = output.read(&mut buffer) {
            if count == 0
                || stdout
                    .write_all(&buffer[..count])
                    .and_then(|()| stdout.flush())
                    .is_err()
            {
                break;
            }
        }
    });
    let mut stdin = std::io::stdin();
    let mut key = [0; 64];
    while !reader.is_finished() {
        let count = stdin.read(&mut key).context("reading the keyboard")?;
        if count == 0 || key[..count].contains(&0x1d) {
            break;
        }
        if stream.write_all(&key[..count]).is_err() {
            break;
        }
    }
    drop(raw);
    println!();
    Ok(())
}

/// The terminal in raw mode, put back when this goes.
struct RawTerminal {
    before: String,
}

impl RawTerminal {
    fn enter() -> Result<Self> {
        let before = stty(&["-g"])?;
        stty(&["raw", "-echo"])?;
        Ok(Self {
            before: before.trim().to_owned(),
        })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // The shell's `reset` is what is left when this fails.
        let _ = stty(&[&self.before]);
    }
}

fn stty(arguments: &[&str]) -> Result<String> {
    let output = std::process::Command::new("stty")
        .args(arguments)
        .stdin(std::process::Stdio::inherit())
        .output()
        .context("starting stty")?;
    if !output.status.success() {
        bail!("standard input is no terminal");
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
