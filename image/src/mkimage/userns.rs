//! Root's ownership in images without being root.

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Set in the copy of this program that runs inside the namespace.
const INSIDE: &str = "SLOTD_MKIMAGE_IN_USER_NAMESPACE";

/// Starts this program again as root of a user namespace unless it runs as root already. Files of the image then belong to
/// whom they should; no privilege is needed beyond the subordinate ids that mmdebstrap needs as well.
pub(crate) fn enter_unless_root() -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    if std::env::var_os(INSIDE).is_some() {
        bail!("still not root inside the user namespace");
    }
    let program = std::env::current_exe().context("finding this program")?;
    let error = Command::new("unshare")
        .args(["--map-root-user", "--map-auto", "--"])
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .exec();
    Err(error).context(
        "starting unshare; run as root, or install util-linux and uidmap and give this user lines in /etc/subuid and /etc/subgid",
    )
}
