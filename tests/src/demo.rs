//! `lab demo`: one good upgrade and one that has to be taken back, before one's eyes.

pub mod kubernetes;

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::artifacts::Image;
use crate::images::{PANICS, UNHEALTHY, V1, V2, V3, Variant};
use crate::lab::{DEMO_CONFIGURATION, Lab, NodeOptions};
use crate::loader::Loader;
use crate::node::Node;
use crate::vm::{Acceleration, Boot, End};

/// One row of the table at the end.
#[derive(Debug)]
struct Row {
    what: String,
    ended_on: String,
    result: String,
    seconds: f64,
}

/// Shows it all; with `keep` the machine stays until Ctrl-C.
pub fn run(lab: &Lab, loader: Loader, keep: bool) -> Result<()> {
    let architecture = loader.architecture();
    let artifacts = lab.artifacts_of(architecture)?;
    say("making the reference disk and two images");
    let good = artifacts.image(&V2)?;
    let bad = artifacts.image(&UNHEALTHY)?;
    let options = NodeOptions {
        configuration: DEMO_CONFIGURATION,
        loader,
        ..NodeOptions::new(&V1)
    };
    let mut node = Node::off(lab, &options)?;
    if lab.acceleration_of(architecture)? == Acceleration::Tcg {
        say("the guest is emulated, without KVM: everything takes longer");
    }

    say(&format!(
        "switching the machine on: firmware, {}, Linux, slotd",
        loader.name()
    ));
    node.machine.power_on()?;
    let boot = node.machine.wait_for_boot()?;
    say(&format!(
        "slot {} runs {} ({:.0} s)",
        letter(&boot),
        boot.version,
        boot.elapsed.as_secs_f64()
    ));
    show(&mut node, "slotd status")?;

    let mut rows = Vec::new();
    rows.push(upgrade(&mut node, &good, &V2, "an image that is good")?);
    ensure!(
        rows[0].result == "Completed",
        "the good upgrade ended as {}",
        rows[0].result
    );
    rows.push(upgrade(
        &mut node,
        &bad,
        &UNHEALTHY,
        "an image whose health check fails",
    )?);
    ensure!(
        rows[1].result == "RolledBack",
        "the bad upgrade ended as {}",
        rows[1].result
    );
    let failure = node.last_result()?["failure"].clone();
    if loader.backend() == "uboot" {
        let panics = artifacts.image(&PANICS)?;
        rows.push(upgrade(
            &mut node,
            &panics,
            &PANICS,
            "an image whose kernel panics",
        )?);
        ensure!(
            rows[2].result == "RolledBack",
            "the upgrade to an image that panics ended as {}",
            rows[2].result
        );
    }
    show(&mut node, "slotd status")?;
    show(&mut node, "slotd-bootctl status")?;
    show(&mut node, "slotd history")?;
    print_table(&rows);
    println!(
        "\nThe image was taken back because {} failed; it had printed:\n  {}",
        text(&failure["check"]),
        text(&failure["output"]).trim().replace('\n', "\n  ")
    );
    if keep {
        stay(&mut node, &artifacts.image(&V3)?)?;
    }
    Ok(())
}

/// Installs one image with its progress on the terminal and follows the boots until the node has settled.
fn upgrade(node: &mut Node, image: &Image, variant: &Variant, what: &str) -> Result<Row> {
    let began = Instant::now();
    let command = node.install_command(image, "");
    println!();
    say(&format!("installing {}, {what}", variant.version()));
    println!("node# {command}");
    match_terminal(node)?;
    let patience = node.machine.patience(120);
    let mut stdout = std::io::stdout();
    let end = node
        .machine
        .stream_until_reboot(&command, patience, |piece| {
            // A terminal that went away ends the demo soon enough.
            let _ = stdout.write_all(piece).and_then(|()| stdout.flush());
        })?;
    println!();
    if let End::Exit(code) = end {
        ensure!(code == 0, "slotd install ended with {code}");
    }
    let boot = follow(node)?;
    let result = node.last_result()?;
    let word = text(&result["result"]);
    say(&format!(
        "{word}: slot {} runs {}",
        letter(&boot),
        boot.version
    ));
    Ok(Row {
        what: format!("{} ({what})", variant.version()),
        ended_on: format!("{} with {}", letter(&boot), boot.version),
        result: word,
        seconds: began.elapsed().as_secs_f64(),
    })
}

/// Says what the console tells of boots until the node has settled.
fn follow(node: &mut Node) -> Result<Boot> {
    let patience = node.machine.patience(200);
    let deadline = Instant::now() + patience;
    loop {
        let boot = node.machine.wait_for_boot_telling(patience, say)?;
        say(&format!(
            "slot {} runs {}, phase {}",
            letter(&boot),
            boot.version,
            phase(node)
        ));
        let mut last = String::new();
        loop {
            ensure!(Instant::now() < deadline, "the node did not settle");
            match node.status() {
                Ok(status) => {
                    let phase = text(&status["upgrade"]["phase"]);
                    if phase != last {
                        say(&format!("phase {phase}"));
                    }
                    if !["Activating", "Confirming", "Staging"].contains(&phase.as_str()) {
                        return Ok(boot);
                    }
                    last = phase;
                }
                // Early in the boot, or the machine goes down again.
                Err(_) if node.machine.is_rebooting()? => break,
                Err(_) => {}
            }
            std::thread::sleep(Duration::from_millis(500));
        }
        say("the machine goes down again");
    }
}

/// Gives the guest's terminal the size of this one, so that the progress bar fits.
fn match_terminal(node: &mut Node) -> Result<()> {
    let output = std::process::Command::new("stty")
        .arg("size")
        .stdin(std::process::Stdio::inherit())
        .output();
    let text = output
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .unwrap_or_default();
    let size: Vec<u16> = text
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    if let [rows, columns] = size[..]
        && rows > 0
        && columns > 0
    {
        node.machine
            .run(&format!("stty -F /dev/hvc0 rows {rows} columns {columns}"))?;
    }
    Ok(())
}

fn phase(node: &mut Node) -> String {
    node.status().map_or_else(
        |_| "not known yet".to_owned(),
        |status| text(&status["upgrade"]["phase"]),
    )
}

fn show(node: &mut Node, command: &str) -> Result<()> {
    println!("node# {command}");
    println!("{}", node.machine.run(command)?.trim_end());
    Ok(())
}

/// Leaves the machine running, with one more image to try.
fn stay(node: &mut Node, image: &Image) -> Result<()> {
    node.machine.open_console()?;
    println!("\nThe machine keeps running. Log in from another terminal:");
    println!("  cargo lab console {}", node.machine.folder().display());
    println!("and try there:");
    let arguments = format!(
        "{} --checksum {}",
        node.server.serve_file(&image.path),
        image.checksum
    );
    println!("  slotd plan {arguments}");
    println!("  slotd install {arguments}");
    println!("  slotd status --watch");
    println!("  slotd rollback");
    println!("  slotd-bootctl status");
    println!("  journalctl -u slotd -f");
    println!("Ctrl-C here ends the machine.");
    loop {
        std::thread::park();
    }
}

fn print_table(rows: &[Row]) {
    println!();
    let width = |value: fn(&Row) -> &str, title: &str| {
        rows.iter()
            .map(|row| value(row).len())
            .chain([title.len()])
            .max()
            .unwrap_or(0)
    };
    let what = width(|row| &row.what, "IMAGE");
    let ended = width(|row| &row.ended_on, "RUNS NOW");
    println!(
        "{:what$}  {:10}  {:ended$}  SECONDS",
        "IMAGE", "RESULT", "RUNS NOW"
    );
    for row in rows {
        println!(
            "{:what$}  {:10}  {:ended$}  {:7.0}",
            row.what, row.result, row.ended_on, row.seconds
        );
    }
}

fn say(what: &str) {
    println!("== {what}");
}

fn letter(boot: &Boot) -> String {
    boot.slot.to_ascii_uppercase()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}
