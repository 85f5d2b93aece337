//! Health checks through the real systemd: units, a probe, scripts of the image's and of the machine's.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::node::Node;
use crate::server::{Body, Fault};

/// What a trial boot has to be judged by beside the image's scripts: a unit, a probe, and a script of the machine's.
pub(super) fn configure(node: &mut Node) -> Result<()> {
    let body = Body::Bytes(Arc::new(b"ok\n".to_vec()));
    node.server.serve("/healthz", body, Fault::None);
    let url = node.server.guest_url("/healthz");
    let folder = "/etc/slotd/health/required.d";
    node.machine
        .run(&format!("mkdir -p /etc/slotd/config.d {folder}"))?;
    node.write_file(
        "/etc/slotd/config.d/20-health.yaml",
        &format!(
            "health:\n  units: [systemd-networkd.service]\n  http: [{{name: lab, url: \"{url}\"}}]\n"
        ),
    )?;
    node.write_file(&format!("{folder}/50-app"), "#!/bin/sh\nexit 0\n")?;
    node.machine
        .run(&format!("chmod 755 {folder}/50-app; slotd config show"))
        .map(drop)
}

/// Each check left a line in the journal of V2's trial boot, which is this one, and the probe was asked.
pub(super) fn judged(node: &mut Node) -> Result<()> {
    let journal = node.machine.run(
        "journalctl --boot --unit slotd.service --no-pager --output json --output-fields MESSAGE,SLOTD_CHECK,SLOTD_OUTPUT",
    )?;
    let lines: Vec<Value> = journal
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()
        .context("reading the journal's lines")?;
    let said = |check: &str, message: &str, output: &str| {
        lines.iter().any(|line| {
            line["SLOTD_CHECK"] == check
                && line["MESSAGE"] == message
                && line["SLOTD_OUTPUT"].as_str().unwrap_or("").contains(output)
        })
    };
    for check in [
        "unit basic.target",
        "unit systemd-networkd.service",
        "http lab",
        "required.d/10-app",
        "required.d/50-app",
    ] {
        ensure!(
            said(check, "health: passed", ""),
            "the journal does not say that {check} passed:\n{journal}"
        );
    }
    ensure!(
        said(
            "wanted.d/10-cache",
            "health: a wanted check failed",
            "cache is cold"
        ),
        "the journal does not say that the wanted check failed:\n{journal}"
    );
    ensure!(
        node.server
            .requests()
            .iter()
            .any(|request| request.line == "GET /healthz HTTP/1.1"),
        "nobody asked for /healthz"
    );
    Ok(())
}
