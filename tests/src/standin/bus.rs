//! The bus of a stand-in: its agent is asked as on any machine, by `busctl`, only at another address.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;
use slotd::dbus::{NAME, PATH};

use crate::cluster::Service;
use crate::process;

/// Everybody on this machine may own and call everything: there is nobody else on it.
const CONFIGURATION: &str = r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <listen>@address@</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <allow own="*"/>
    <allow send_type="method_call"/>
    <allow send_destination="*"/>
    <allow receive_sender="*"/>
  </policy>
</busconfig>
"#;

/// Starts a bus at an address; its configuration and log lie in `folder`.
pub(super) fn start(address: &str, folder: &Path) -> Result<Service> {
    let path = folder.join("bus.conf");
    std::fs::write(&path, CONFIGURATION.replace("@address@", address))
        .with_context(|| format!("writing {}", path.display()))?;
    let option = format!("--config-file={}", path.display());
    Service::start(
        "dbus-daemon",
        Path::new("dbus-daemon"),
        ["--nofork", "--nopidfile", &option],
        folder,
    )
}

/// A bus by its address.
#[derive(Debug, Clone, Copy)]
pub struct Bus<'a> {
    address: &'a str,
}

impl<'a> Bus<'a> {
    pub(super) fn at(address: &'a str) -> Self {
        Self { address }
    }

    /// Asks the agent for an image, as `slotd install` does; the upgrade's number.
    pub fn install(&self, url: &str, checksum: &str) -> Result<u64> {
        let answer = self.call(&["Install", "sa{sv}", url, "1", "checksum", "s", checksum])?;
        answer["data"][0]
            .as_u64()
            .with_context(|| format!("the agent's answer is {answer}"))
    }

    /// Stops the upgrade of this number.
    pub fn cancel(&self, upgrade: u64) -> Result<()> {
        self.call(&["Cancel", "t", &upgrade.to_string()]).map(drop)
    }

    /// The agent's status document.
    pub fn status(&self) -> Result<Value> {
        let answer = self.call(&["GetStatus"])?;
        let text = answer["data"][0]
            .as_str()
            .with_context(|| format!("the agent's answer is {answer}"))?;
        serde_json::from_str(text).context("the status is no JSON")
    }

    fn call(&self, arguments: &[&str]) -> Result<Value> {
        let text = process::output("busctl", |command| {
            command
                .arg(format!("--address={}", self.address))
                .args(["--json=short", "call", NAME, PATH, "io.monok8s.Slotd1"])
                .args(arguments)
        })?;
        if text.trim().is_empty() {
            // A call that returns nothing.
            return Ok(Value::Null);
        }
        serde_json::from_str(&text).with_context(|| format!("busctl printed {text}"))
    }
}
