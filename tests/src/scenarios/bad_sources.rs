//! Images and servers that are not what they should be: each is refused with an error that names the thing, and the node stays as it
//! was: before a byte is written where that can be known then, otherwise with the slot left empty.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};

use super::in_machine;
use crate::artifacts::Image;
use crate::images::{OLD, V1, V2};
use crate::lab::Lab;
use crate::node::Node;
use crate::runner::Test;
use crate::server::{Body, Fault};

/// Retries and deadlines that let hopeless downloads end soon.
const IMPATIENT: &str = "boot: {panic: 2}\ntrial: {tries: 2, deadline: 90s}\n\
    fetch: {connectTimeout: 3s, idleTimeout: 4s, deadline: 12s, retries: 1}\n";

pub(super) fn tests() -> Vec<Test> {
    vec![
        in_machine(
            "vm/bad-sources-are-refused-before-anything-is-written",
            before_writing,
        ),
        in_machine(
            "vm/bad-images-leave-the-slot-empty-and-the-node-as-it-was",
            while_writing,
        ),
    ]
}

const REJECTED: u32 = 4;
const TEMPORARY: u32 = 6;

fn before_writing(lab: &Lab) -> Result<()> {
    let mut node = Node::start_with(lab, IMPATIENT, &[])?;
    let v2 = lab.artifacts()?.image(&V2)?;
    let before = [
        node.machine.slot_digest('a')?,
        node.machine.slot_digest('b')?,
    ];
    let server = |node: &Node, path: &str, fault: Fault| {
        node.server.serve(path, Body::File(v2.path.clone()), fault);
        node.server.guest_url(path)
    };
    let checksum = &v2.checksum;

    let good = server(&node, "/good", Fault::None);
    for wrong in [
        "sha256:abc",
        "md5:00112233445566778899aabbccddeeff",
        "sha256:...",
    ] {
        let command = format!("slotd install {good} --checksum {wrong}");
        let output = node.machine.try_run(&command)?;
        ensure!(
            [2, REJECTED].contains(&output.code) && output.stderr.contains(wrong),
            "{command}: {output:?}"
        );
    }
    let refused = |node: &mut Node, url: &str, options: &str, code: u32, says: &[&str]| {
        node.refused(&format!("slotd install {url} {options}"), code, says)
            .map(drop)
    };
    let expected = format!("--checksum {checksum}");

    let url = server(&node, "/missing-on-purpose", Fault::Status(404));
    refused(
        &mut node,
        &url,
        &expected,
        REJECTED,
        &["404", "/missing-on-purpose"],
    )?;
    let url = server(&node, "/broken", Fault::Status(500));
    refused(&mut node, &url, &expected, TEMPORARY, &["500", "/broken"])?;
    let url = server(&node, "/loop", Fault::Redirect("/loop".to_owned()));
    refused(&mut node, &url, &expected, REJECTED, &["redirect"])?;
    let url = server(&node, "/silent", Fault::Silent);
    refused(&mut node, &url, &expected, TEMPORARY, &["/silent"])?;
    // Nobody listens there: the port was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port();
    let url = format!("http://10.0.2.2:{port}/image");
    refused(&mut node, &url, &expected, TEMPORARY, &[&port.to_string()])?;
    let url = server(&node, "/encoded", Fault::Encoding("gzip".to_owned()));
    refused(&mut node, &url, &expected, REJECTED, &["encoding"])?;

    let page = Body::Bytes(Arc::new(
        b"<!DOCTYPE html><html><body>Please log in</body></html>".to_vec(),
    ));
    node.server
        .serve_as("/login", page, Fault::None, "text/html");
    let url = node.server.guest_url("/login");
    refused(&mut node, &url, &expected, REJECTED, &["not an image"])?;

    let url = server(&node, "/good", Fault::None);
    refused(&mut node, &url, "", REJECTED, &["checksum"])?;
    let too_large = format!("{expected} --size 1073741824");
    refused(
        &mut node,
        &url,
        &too_large,
        REJECTED,
        &["1073741824", "536870912"],
    )?;
    let large = zeroes(lab.folder(), 600 << 20)?;
    node.server.serve("/large", Body::File(large), Fault::None);
    let url = node.server.guest_url("/large");
    refused(
        &mut node,
        &url,
        &expected,
        REJECTED,
        &["629145600", "536870912"],
    )?;
    refused(&mut node, "ftp://10.0.2.2/x", &expected, REJECTED, &["ftp"])?;
    refused(
        &mut node,
        "/nowhere/image.zst",
        &expected,
        REJECTED,
        &["/nowhere/image.zst"],
    )?;

    let after = [
        node.machine.slot_digest('a')?,
        node.machine.slot_digest('b')?,
    ];
    ensure!(before == after, "something was written");
    untouched(&mut node)
}

fn while_writing(lab: &Lab) -> Result<()> {
    let mut node = Node::start_with(lab, IMPATIENT, &[])?;
    let artifacts = lab.artifacts()?;
    let v2 = artifacts.image(&V2)?;
    let before = node.machine.slot_digest('a')?;
    let length = std::fs::metadata(&v2.path)
        .context("the image's size")?
        .len();
    let checksum = format!("--checksum {}", v2.checksum);
    let refused =
        |node: &mut Node, body: Body, fault: Fault, options: &str, code, says: &[&str]| {
            node.server.serve("/image", body, fault);
            let url = node.server.guest_url("/image");
            node.refused(&format!("slotd install {url} {options}"), code, says)?;
            untouched(node).with_context(|| format!("after {says:?}"))
        };
    let whole = || Body::File(v2.path.clone());

    let other = format!("--checksum sha256:{}", "0".repeat(64));
    refused(
        &mut node,
        whole(),
        Fault::None,
        &other,
        REJECTED,
        &["checksum", &"0".repeat(64)],
    )?;
    let mut bytes = std::fs::read(&v2.path).context("reading the image")?;
    bytes.truncate(bytes.len() / 2);
    let half = Body::Bytes(Arc::new(bytes));
    refused(
        &mut node,
        half,
        Fault::None,
        &checksum,
        REJECTED,
        &["published byte"],
    )?;
    refused(
        &mut node,
        whole(),
        Fault::FlippedBit(length / 2),
        &checksum,
        REJECTED,
        &["byte"],
    )?;
    let wrong_size = format!("{checksum} --size 1048576");
    refused(
        &mut node,
        whole(),
        Fault::None,
        &wrong_size,
        REJECTED,
        &["1048576"],
    )?;
    let drop = Fault::DropAt {
        byte: length / 3,
        times: 10,
    };
    refused(&mut node, whole(), drop, &checksum, TEMPORARY, &["/image"])?;
    let wrong_version = format!("{checksum} --version v9.9.9");
    refused(
        &mut node,
        whole(),
        Fault::None,
        &wrong_version,
        REJECTED,
        &["v9.9.9", V2.version()],
    )?;

    // Versions are looked up in the image: the same and an older one have to be asked for by name.
    let refused_image = |node: &mut Node, image: &Image, says: &[&str]| {
        let command = node.install_command(image, "");
        node.refused(&command, REJECTED, says)?;
        untouched(node).with_context(|| format!("after {says:?}"))
    };
    refused_image(
        &mut node,
        &artifacts.image(&V1)?,
        &[V1.version(), "--allow-same-version"],
    )?;
    let old = artifacts.image(&OLD)?;
    refused_image(&mut node, &old, &[OLD.version(), "--allow-downgrade"])?;
    let command = node.install_command(&old, "--allow-downgrade --stage-only");
    let patience = node.machine.patience(120);
    let output = node.machine.try_run_within(&command, patience)?;
    ensure!(output.code == 0, "a downgrade by name: {output:?}");

    ensure!(
        node.machine.slot_digest('a')? == before,
        "slot A, which was booted, was written to"
    );
    node.power_cycles(1, 'A', V1.version())
}

/// Slot A runs and is next, B holds nothing that could be selected.
fn untouched(node: &mut Node) -> Result<()> {
    let loader = node.loader()?;
    ensure!(
        loader["slots"][1]["state"] == "empty"
            && loader["loader"]["next"]["slot"] == "A"
            && loader["loader"]["staged"].is_null(),
        "the loader holds {loader:#}"
    );
    let entries = node.machine.loader_entries()?;
    ensure!(entries == ["slotd-a.conf"], "the ESP holds {entries:?}");
    Ok(())
}

/// A zstd file that expands to so many zeroes, and says so.
fn zeroes(folder: &Path, size: u64) -> Result<std::path::PathBuf> {
    let raw = folder.join("zeroes");
    std::fs::File::create(&raw)
        .and_then(|file| file.set_len(size))
        .context("making a file of zeroes")?;
    let path = folder.join("zeroes.zst");
    crate::process::run("zstd", |command| {
        command.args(["-q", "-1", "-f", "-o"]).arg(&path).arg(&raw)
    })?;
    Ok(path)
}
