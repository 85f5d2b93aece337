//! Completions and man pages, generated from the command line's definition.

use std::io::Write;
use std::path::Path;

use clap::CommandFactory;

use super::arguments::Cli;

/// Writes the completions for `shell` to `out`.
pub(super) fn completions(shell: clap_complete::Shell, out: &mut dyn Write) {
    clap_complete::generate(shell, &mut Cli::command(), "slotd", out);
}

/// Writes `slotd.8` and a page for each command into `dir`, which has to exist.
///
/// # Errors
/// When a page cannot be written.
pub(super) fn man(dir: &Path) -> std::io::Result<()> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    page(command.clone(), "slotd", dir)?;
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let name = format!("slotd-{}", sub.get_name());
        page(sub.clone(), &name, dir)?;
    }
    Ok(())
}

fn page(command: clap::Command, name: &str, dir: &Path) -> std::io::Result<()> {
    let man = clap_mangen::Man::new(command.display_name(name.to_owned()))
        .title(name)
        .section("8");
    let mut text = Vec::new();
    man.render(&mut text)?;
    std::fs::write(dir.join(format!("{name}.8")), text)
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_command_for_people_has_a_man_page() -> Result<(), Box<dyn std::error::Error>> {
        let dir = tempfile::tempdir()?;
        super::man(dir.path())?;
        let mut names: Vec<String> = std::fs::read_dir(dir.path())?
            .map(|entry| entry.map(|e| e.file_name().to_string_lossy().into_owned()))
            .collect::<Result<_, _>>()?;
        names.sort();
        assert_eq!(
            names,
            [
                "slotd-activate.8",
                "slotd-agent.8",
                "slotd-cancel.8",
                "slotd-config.8",
                "slotd-controller.8",
                "slotd-flash.8",
                "slotd-history.8",
                "slotd-install.8",
                "slotd-plan.8",
                "slotd-rollback.8",
                "slotd-status.8",
                "slotd.8",
            ]
        );
        let page = std::fs::read_to_string(dir.path().join("slotd.8"))?;
        assert!(page.contains("the daemon is not running"), "{page}");
        Ok(())
    }

    #[test]
    fn completions_know_the_commands() {
        let mut out = Vec::new();
        super::completions(clap_complete::Shell::Bash, &mut out);
        assert!(String::from_utf8_lossy(&out).contains("rollback"));
    }
}
