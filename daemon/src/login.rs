//! Reboots: politely where that may wait, by force where the boot is given up.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::reboot::{RebootMode, reboot as reboot_now};

use crate::error::ErrorKind;

/// How a reboot is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reboot {
    /// Through login1; whoever inhibits shutdowns is heard.
    Normal,
    /// Whatever anybody says: services are killed, filesystems are unmounted.
    Forced,
}

/// Why a reboot was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum RebootError {
    /// A program holds an inhibitor; asking again later may help.
    #[error("the reboot is inhibited: {said}")]
    Inhibited {
        /// By whom, as `systemctl` says it.
        said: String,
    },
    /// No way to reboot worked.
    #[error("cannot reboot: {said}")]
    Failed {
        /// What each way answered.
        said: String,
        /// The last answer, where it was the system's.
        source: Option<io::Error>,
    },
}

impl RebootError {
    /// The kind: both may be over later.
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::Retry
    }
}

/// Asks for a reboot, and returns once that is accepted. What was written and synced before is durable; a normal
/// reboot stops services first, a forced one kills them.
///
/// # Errors
/// [`RebootError::Inhibited`] for a normal reboot only. Where login1 does not answer, a normal reboot is asked of
/// PID 1 itself.
pub fn reboot(how: Reboot) -> Result<(), RebootError> {
    match how {
        Reboot::Normal => normal(&systemctl),
        Reboot::Forced => forced(&systemctl, &|| {
            nix::unistd::sync();
            reboot_now(RebootMode::RB_AUTOBOOT)
                .map(|_| ())
                .map_err(io::Error::from)
        }),
    }
}

/// Runs `systemctl` with these arguments; its words where it fails.
pub(crate) fn systemctl(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("systemctl")
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("systemctl: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failure(arguments, &String::from_utf8_lossy(&output.stderr)))
}

fn failure(arguments: &[&str], said: &str) -> String {
    format!("systemctl {}: {}", arguments.join(" "), said.trim())
}

type Systemctl<'a> = &'a dyn Fn(&[&str]) -> Result<(), String>;

fn normal(systemctl: Systemctl<'_>) -> Result<(), RebootError> {
    // Root is not asked about inhibitors unless it wants to be. Without a bus nobody can be asked, and that fails.
    let Err(said) = systemctl(&["reboot", "--check-inhibitors=yes", "--no-wall"]) else {
        return Ok(());
    };
    if is_inhibited(&said) {
        return Err(RebootError::Inhibited { said });
    }
    systemctl(&[
        "start",
        "--no-block",
        "--job-mode=replace-irreversibly",
        "reboot.target",
    ])
    .map_err(|second| RebootError::Failed {
        said: format!("{said}; {second}"),
        source: None,
    })
}

/// By systemctl's own sentence (`src/systemctl/systemctl-logind.c`), since the arguments are among the words, too.
fn is_inhibited(said: &str) -> bool {
    said.contains("Operation inhibited")
}

fn forced(
    systemctl: Systemctl<'_>,
    kernel: &dyn Fn() -> io::Result<()>,
) -> Result<(), RebootError> {
    let Err(said) = systemctl(&["reboot", "--force", "--no-wall"]) else {
        return Ok(());
    };
    kernel().map_err(|source| RebootError::Failed {
        said: format!("{said}; reboot(2): {source}"),
        source: Some(source),
    })
}

/// Whether PID 1 is systemd, without which only the kernel can be asked.
pub fn booted_with_systemd() -> bool {
    Path::new("/run/systemd/system").exists()
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::{RebootError, failure, forced, normal};

    #[test]
    fn a_normal_reboot_asks_about_inhibitors_and_stops_there() {
        let asked = RefCell::new(Vec::new());
        let error = normal(&|arguments| {
            asked.borrow_mut().push(arguments.join(" "));
            let said = "Operation inhibited by \"backup\" (PID 7), reason is \"nightly\".";
            Err(failure(arguments, said))
        })
        .unwrap_err();
        assert!(matches!(&error, RebootError::Inhibited { said } if said.contains("backup")));
        assert_eq!(*asked.borrow(), ["reboot --check-inhibitors=yes --no-wall"]);
    }

    #[test]
    fn without_login1_a_normal_reboot_is_asked_of_pid_1() {
        let asked = RefCell::new(Vec::new());
        normal(&|arguments| {
            asked.borrow_mut().push(arguments.join(" "));
            if arguments.contains(&"start") {
                Ok(())
            } else {
                Err(failure(arguments, "Failed to connect to bus"))
            }
        })
        .unwrap();
        assert_eq!(asked.borrow().len(), 2);
    }

    #[test]
    fn a_forced_reboot_falls_back_to_the_kernel() {
        let kernel = Cell::new(false);
        forced(&|_| Err("no".to_owned()), &|| {
            kernel.set(true);
            Ok(())
        })
        .unwrap();
        assert!(kernel.get());

        let kernel = Cell::new(false);
        forced(
            &|arguments| {
                assert_eq!(arguments, ["reboot", "--force", "--no-wall"]);
                Ok(())
            },
            &|| {
                kernel.set(true);
                Ok(())
            },
        )
        .unwrap();
        assert!(!kernel.get());
    }
}
