//! The `slotd` program.

fn main() -> std::process::ExitCode {
    slotd::cli::run()
}
