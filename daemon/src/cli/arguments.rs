//! The command line's definition: parser, help, completions and man pages all come from here.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// The exit codes, as `--help` and the man page list them.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  an internal error of slotd
  2  the command line cannot be understood
  3  the configuration is wrong
  4  the image or the request was rejected
  5  refused to protect the node
  6  a temporary failure, trying again may help
  7  something else is running
  8  the daemon is not running";

/// A/B operating-system upgrades for this node.
#[derive(Debug, Parser)]
#[command(name = "slotd", version, after_help = EXIT_CODES, max_term_width = 100)]
pub struct Cli {
    /// Read the configuration below DIR instead of /
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        default_value = "/",
        hide_default_value = true
    )]
    pub config_root: PathBuf,

    /// How results are printed
    #[arg(
        long,
        global = true,
        value_enum,
        value_name = "FORMAT",
        default_value_t
    )]
    pub output: OutputFormat,

    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// How results are printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// For people
    #[default]
    Table,
    /// For programs
    Json,
}

/// The commands of `slotd`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the node's agent; started by slotd.service
    Agent,
    /// Run the fleet's controller; started by slotd-controller.service, or in a pod
    Controller(ControllerArguments),
    /// Write an image to the inactive slot, boot it on trial, keep it if it proves healthy
    Install(InstallArguments),
    /// Show every write and variable that an install would change, and why; change nothing
    ///
    /// Connects to the source. Whether the boot loader's partition and the state directory can be written is tested by
    /// writing a small file there, which is removed again; a state directory that is missing is made.
    Plan(PlanArguments),
    /// Boot the staged slot on trial: changes the next boot and reboots
    Activate,
    /// Go back to the other slot, which has to be good, and reboot
    Rollback,
    /// Stop the upgrade that runs, or take a staged one back
    Cancel {
        /// Only if this is the upgrade that runs
        id: Option<u64>,
    },
    /// Show slots, what runs and what the last upgrade came to
    Status {
        /// Keep showing, as it changes
        #[arg(long)]
        watch: bool,
    },
    /// List past upgrades, the latest last
    History,
    /// Look at the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Write an image to a slot and nothing else; needs no daemon and works from a rescue system
    Flash(FlashArguments),
    /// Wait for the verdict on this boot; started by slotd-health.service
    #[command(hide = true)]
    Gate,
    /// Wait until the boot loader's data says that this slot is good; started by slotd-confirm.service
    #[command(hide = true)]
    Confirm,
    /// Print the completions for a shell
    #[command(hide = true)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the man pages to a directory
    #[command(hide = true)]
    Man {
        /// The directory, which has to exist
        dir: PathBuf,
    },
}

/// Commands on the configuration.
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum ConfigCommand {
    /// Print the merged configuration and where each value came from
    Show,
}

/// Arguments of `slotd controller`.
#[derive(Debug, Clone, Args)]
pub struct ControllerArguments {
    /// How the cluster is reached, whatever the configuration says in controller.kubeconfig
    ///
    /// Without that, /etc/slotd/controller.kubeconfig, and in a pod that has no such file, its service account.
    #[arg(long, value_name = "PATH")]
    pub kubeconfig: Option<PathBuf>,

    /// The cluster is reached by the service account of this pod
    #[arg(long, conflicts_with = "kubeconfig")]
    pub in_cluster: bool,

    /// The namespace of slotd's places, Lease and catalogs, whatever the configuration says in controller.namespace
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
}

/// An image and what is expected of it.
#[derive(Debug, Clone, Args)]
pub struct ImageArguments {
    /// The image: an http(s) URL, a path, or - for standard input
    #[arg(value_name = "SOURCE")]
    pub source: String,

    /// sha256: and 64 hex digits of the file as published (of the expanded image is accepted too)
    #[arg(long, value_name = "DIGEST")]
    pub checksum: Option<String>,

    /// sha256: and 64 hex digits of the expanded image
    #[arg(long, value_name = "DIGEST")]
    pub expanded_checksum: Option<String>,

    /// The expanded size in bytes
    #[arg(long, value_name = "BYTES")]
    pub size: Option<u64>,

    /// The version that the image has to be
    #[arg(long = "version", value_name = "VERSION")]
    pub image_version: Option<String>,

    /// Accept an image without an enabled slotd: nothing in it could confirm its trial boot
    #[arg(long)]
    pub allow_no_agent: bool,
}

/// Arguments of `slotd plan`, and what an install is.
#[derive(Debug, Clone, Args)]
pub struct PlanArguments {
    /// The image
    #[command(flatten)]
    pub image: ImageArguments,

    /// Write and verify only; leave the next boot as it is
    #[arg(long)]
    pub stage_only: bool,

    /// Accept an image that is older than what runs
    #[arg(long)]
    pub allow_downgrade: bool,

    /// Accept an image of the version that runs
    #[arg(long)]
    pub allow_same_version: bool,
}

/// Arguments of `slotd install`.
#[derive(Debug, Clone, Args)]
pub struct InstallArguments {
    /// What is to be installed
    #[command(flatten)]
    pub plan: PlanArguments,

    /// Return once the daemon has accepted the request
    #[arg(long)]
    pub no_wait: bool,
}

/// Arguments of `slotd flash`.
#[derive(Debug, Clone, Args)]
pub struct FlashArguments {
    /// The image
    #[command(flatten)]
    pub image: ImageArguments,

    /// The slot to write, A or B; needed where none of them is booted
    #[arg(long, value_name = "SLOT")]
    pub slot: Option<String>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Cli;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_lists_the_exit_codes() {
        let help = Cli::command().render_help().to_string();
        assert!(help.contains("8  the daemon is not running"), "{help}");
    }
}
