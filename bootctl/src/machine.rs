//! The machine's id.

use crate::block::command_line;
use crate::error::{Error, Result};
use crate::system::{System, read_text_if_present};

/// The machine id that PID 1 was given on the command line (`systemd.machine_id=`), else the one in
/// `/etc/machine-id`.
///
/// # Errors
/// When neither is 32 hexadecimal digits.
pub fn machine_id(system: &System) -> Result<String> {
    let given = command_line(system)?
        .iter()
        .rev()
        .find_map(|word| word.strip_prefix("systemd.machine_id=").map(str::to_owned));
    let path = system.path("/etc/machine-id");
    let id = match given {
        Some(id) => id,
        None => read_text_if_present(&path)?
            .unwrap_or_default()
            .trim()
            .to_owned(),
    };
    if id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(id.to_ascii_lowercase());
    }
    Err(Error::malformed(
        &path,
        format!("{id:?} is no machine id of 32 hexadecimal digits"),
    ))
}
