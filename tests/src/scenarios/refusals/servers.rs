//! Bad servers: what they answer, where they lead, and when they say nothing.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};

use super::group::{Group, Leaves};
use super::images::{STAGE, Small, refused, serve};
use crate::server::{Body, Fault};

pub(super) fn check(group: &mut Group, small: &Small) -> Result<()> {
    plain(group, small)?;
    encrypted(group, small)
}

fn plain(group: &mut Group, small: &Small) -> Result<()> {
    let untouched = Leaves::Untouched;
    let zstd = &small.zstd;
    group.check("404, and nothing secret is shown", untouched, |node| {
        let address = node.server.guest_url("/nothing.zst");
        let address = address.replacen("http://", "http://user:hunter2@", 1);
        let command = format!(
            "slotd install '{address}?token=s3cret' {STAGE} --checksum {}",
            zstd.checksum
        );
        let output = node.refused(&command, 4, &["10.0.2.2", "/nothing.zst", "404"])?;
        let status = node
            .machine
            .run("slotd status; slotd history; journalctl --no-pager -u slotd")?;
        for text in [&output.stdout, &output.stderr, &status] {
            ensure!(
                !text.contains("hunter2") && !text.contains("s3cret"),
                "a secret is shown: {text}"
            );
        }
        Ok(())
    })?;
    group.check("500, again and again", untouched, |node| {
        let says = &["/small.ext4.zst", "500"];
        refused(node, zstd, Fault::Status(500), "", 6, says)
    })?;
    group.check("a server that refuses connections", untouched, |node| {
        // Port 9 of this machine's loopback: nothing has listened to "discard" for a long time.
        let command = format!(
            "slotd install http://10.0.2.2:9/x {STAGE} --checksum {}",
            zstd.checksum
        );
        node.refused(&command, 6, &["http://10.0.2.2:9/x", "refused"])
            .map(drop)
    })?;
    group.check("a server that never answers", untouched, |node| {
        let says = &["/small.ext4.zst", "does not answer"];
        refused(node, zstd, Fault::Silent, "", 6, says)
    })?;
    group.check("a redirect to itself", untouched, |node| {
        let fault = Fault::Redirect("/small.ext4.zst".to_owned());
        refused(
            node,
            zstd,
            fault,
            "",
            4,
            &["/small.ext4.zst", "redirect loop"],
        )
    })?;
    group.check("an HTML page with status 200", untouched, |node| {
        let page = b"<!DOCTYPE html>\n<html><title>Please log in</title></html>\n".to_vec();
        let body = Body::Bytes(Arc::new(page));
        node.server
            .serve_as("/portal", body, Fault::None, "text/html");
        let command = format!(
            "slotd install {} {STAGE} --checksum {}",
            node.server.guest_url("/portal"),
            zstd.checksum
        );
        node.refused(&command, 4, &["/portal", "not an image", "<!DOCTYPE html>"])
            .map(drop)
    })
}

/// A server with TLS in the guest itself: the reference image has openssl, which serves a whole answer from a file.
const TLS_SERVER: &str = "mkdir -p /run/tls && cd /run/tls && \
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=lab \
        -config /run/tls/openssl.cnf -keyout key.pem -out cert.pem 2>/dev/null && \
    { setsid openssl s_server -quiet -accept 127.0.0.1:8443 -cert cert.pem -key key.pem -HTTP >/dev/null 2>&1 & \
    echo $! > /run/tls/pid; } && \
    for i in $(seq 100); do nc -z 127.0.0.1 8443 && exit 0; sleep 0.1; done; exit 1";

const TLS_CONFIGURATION: &str = "[req]\ndistinguished_name=dn\nx509_extensions=leaf\n[dn]\n[leaf]\n\
    basicConstraints=critical,CA:FALSE\nsubjectAltName=IP:127.0.0.1\n";

fn encrypted(group: &mut Group, small: &Small) -> Result<()> {
    let target = serve(&group.node, &small.zstd, Fault::None);
    let node = &mut group.node;
    node.machine.run("mkdir -p /run/tls")?;
    node.write_file("/run/tls/openssl.cnf", TLS_CONFIGURATION)?;
    node.write_file(
        "/run/tls/moved",
        &format!("HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n"),
    )?;
    node.machine
        .run(TLS_SERVER)
        .context("starting openssl s_server")?;
    let asked = node.server.requests().len();
    let command = format!(
        "slotd install https://127.0.0.1:8443/moved {STAGE} --checksum {}",
        small.zstd.checksum
    );
    group.check(
        "a certificate that nobody vouches for",
        Leaves::Untouched,
        |node| {
            node.refused(
                &command,
                3,
                &["https://127.0.0.1:8443/moved", "certificate"],
            )
            .map(drop)
        },
    )?;
    let node = &mut group.node;
    node.machine
        .run("cp /run/tls/cert.pem /etc/slotd/lab.pem")?;
    node.write_file(
        "/etc/slotd/config.d/20-trust.yaml",
        "fetch: {caBundle: /etc/slotd/lab.pem}\n",
    )?;
    group.restart_agent()?;
    group.check("a redirect from https to http", Leaves::Untouched, |node| {
        let says = &["https://127.0.0.1:8443/moved", "from https to plain http"];
        node.refused(&command, 4, says)?;
        ensure!(
            node.server.requests().len() == asked,
            "the plain address was asked"
        );
        Ok(())
    })?;
    group
        .node
        .machine
        .run("kill $(cat /run/tls/pid); rm /etc/slotd/config.d/20-trust.yaml")?;
    group.restart_agent()
}
