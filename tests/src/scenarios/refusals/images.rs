//! Bad images, bad servers, and requests that come at the wrong time.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};

use super::group::{Group, Leaves, TARGET, wait_for, wait_until_ready};
use super::material::{self, Contents, Published};
use crate::images::V1;
use crate::lab::Lab;
use crate::node::Node;
use crate::server::{Body, Fault};

const MIB: u64 = 1 << 20;
/// A slot of the reference disk holds so much.
const SLOT: u64 = 512 * MIB;

/// Options that get past everything but the image itself.
const STAGE: &str = "--stage-only --allow-no-agent";

pub(super) fn run(lab: &Lab) -> Result<()> {
    let mut group = Group::start(lab, "images")?;
    let small = Small::make(lab)?;
    requests(&mut group, &small)?;
    servers(&mut group, &small)?;
    encrypted(&mut group, &small)?;
    declared_sizes(&mut group, lab, &small)?;
    contents(&mut group, lab, &small)?;
    versions(&mut group, lab)?;
    while_one_runs(&mut group, &small)?;
    terminated(&mut group, &small)?;
    group.finish()
}

/// A good image of 48 MiB without an agent, as it is and compressed.
struct Small {
    raw: Published,
    zstd: Published,
}

impl Small {
    fn make(lab: &Lab) -> Result<Self> {
        let contents = Contents {
            version: "v9.0.0",
            kernel: true,
            noise: 32 << 20,
        };
        let image = material::filesystem(lab.folder(), "small", 48 * MIB, &contents)?;
        Ok(Self {
            raw: material::raw(&image)?,
            zstd: material::compressed(&image, true)?,
        })
    }
}

/// Serves a file with a fault and asks for it.
fn refused(
    node: &mut Node,
    served: &Published,
    fault: Fault,
    options: &str,
    code: u32,
    says: &[&str],
) -> Result<()> {
    let url = serve(node, served, fault);
    let command = format!(
        "slotd install {url} --checksum {} {STAGE} {options}",
        served.checksum
    );
    node.refused(&command, code, says).map(drop)
}

fn serve(node: &Node, served: &Published, fault: Fault) -> String {
    let name = served.path.file_name().unwrap_or_default();
    let path = format!("/{}", name.to_string_lossy());
    node.server
        .serve(&path, Body::File(served.path.clone()), fault);
    node.server.guest_url(&path)
}

fn requests(group: &mut Group, small: &Small) -> Result<()> {
    let good = &small.zstd.checksum;
    let short = good[..good.len() - 1].to_owned();
    let letter = format!("{short}x");
    let other = good.replacen("sha256:", "md5:", 1);
    for (name, checksum) in [
        ("a checksum that is too short", short.as_str()),
        ("a checksum with a letter that is no digit", &letter),
        ("a checksum of another kind", &other),
        ("a checksum that is empty", ""),
    ] {
        group.check(name, Leaves::Untouched, |node| {
            let url = serve(node, &small.zstd, Fault::None);
            let command = format!("slotd install {url} {STAGE} --checksum '{checksum}'");
            node.refused(&command, 4, &["checksum", "sha256:", "64"])
                .map(drop)
        })?;
    }
    group.check("no checksum at all", Leaves::Untouched, |node| {
        let url = serve(node, &small.zstd, Fault::None);
        node.refused(
            &format!("slotd install {url} {STAGE}"),
            4,
            &["checksum", "requireChecksum"],
        )
        .map(drop)
    })?;
    group.check("a file that is not there", Leaves::Untouched, |node| {
        let command = format!("slotd install /data/missing.zst {STAGE} --checksum {good}");
        node.refused(&command, 4, &["/data/missing.zst"]).map(drop)
    })?;
    ensure!(
        group.node.server.requests().is_empty(),
        "the server was asked for what was refused before"
    );
    Ok(())
}

fn servers(group: &mut Group, small: &Small) -> Result<()> {
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

fn declared_sizes(group: &mut Group, lab: &Lab, small: &Small) -> Result<()> {
    let untouched = Leaves::Untouched;
    let slot = SLOT.to_string();
    group.check("a declared size beyond the slot", untouched, |node| {
        let options = format!("--size {}", SLOT + 1);
        let says = &["declared size", "536870913", &slot];
        refused(node, &small.zstd, Fault::None, &options, 4, says)
    })?;
    let contents = Contents {
        version: "v9.0.0",
        kernel: true,
        noise: 1 << 20,
    };
    let large = material::filesystem(lab.folder(), "large", SLOT + 64 * MIB, &contents)?;
    for (name, published) in [
        (
            "a frame that names a size beyond the slot",
            material::compressed(&large, true)?,
        ),
        (
            "a file system beyond the slot",
            material::compressed(&large, false)?,
        ),
        ("a file beyond the slot", material::raw(&large)?),
    ] {
        group.check(name, untouched, |node| {
            let says = &["603979776", &slot];
            refused(node, &published, Fault::None, "", 4, says)
        })?;
    }
    Ok(())
}

fn contents(group: &mut Group, lab: &Lab, small: &Small) -> Result<()> {
    let empty = Leaves::Empty;
    let zstd = &small.zstd;
    let length = std::fs::metadata(&zstd.path)?.len();
    let middle = length / 2;
    group.check("a wrong checksum", empty, |node| {
        let url = serve(node, zstd, Fault::None);
        let wrong = format!("sha256:{}", "5".repeat(64));
        let command = format!("slotd install {url} --checksum {wrong} {STAGE}");
        let says = &["wrong checksum", wrong.as_str(), zstd.checksum.as_str()];
        node.refused(&command, 4, says).map(drop)
    })?;
    group.check("a truncated image", empty, |node| {
        let part = Published {
            path: material::first_part(zstd, middle)?,
            checksum: zstd.checksum.clone(),
        };
        let says = &["ends too early", &middle.to_string()];
        refused(node, &part, Fault::None, "", 4, says)
    })?;
    group.check("a connection that breaks each time", empty, |node| {
        let fault = Fault::DropAt {
            byte: middle,
            times: u32::MAX,
        };
        let says = &["/small.ext4.zst", "broke after", &middle.to_string()];
        refused(node, zstd, fault, "", 6, says)
    })?;
    group.check("a server that falls silent in the middle", empty, |node| {
        let says = &["/small.ext4.zst", "sent nothing after byte"];
        refused(node, zstd, Fault::StallAt(middle), "", 6, says)
    })?;
    group.check("a bit flipped in the middle of a frame", empty, |node| {
        let says = &["/small.ext4.zst", "at published byte"];
        refused(node, zstd, Fault::FlippedBit(middle), "", 4, says)
    })?;
    group.check("a bit flipped in a raw image", empty, |node| {
        let says = &["wrong checksum", small.raw.checksum.as_str()];
        refused(node, &small.raw, Fault::FlippedBit(24 * MIB), "", 4, says)
    })?;
    group.check("another size than the declared one", empty, |node| {
        let url = serve(node, zstd, Fault::NoLength);
        let command = format!(
            "slotd install {url} --checksum {} {STAGE} --size {}",
            zstd.checksum,
            40 * MIB
        );
        node.refused(&command, 4, &["50331648", "41943040"])
            .map(drop)
    })?;
    let small_system = material::filesystem(
        lab.folder(),
        "short",
        8 * MIB,
        &Contents {
            version: "v9.0.0",
            kernel: false,
            noise: 1 << 20,
        },
    )?;
    let endless = material::grown(&small_system, "endless.ext4", SLOT + MIB)?;
    let endless = material::compressed(&endless, false)?;
    group.check("more content than the slot holds", empty, |node| {
        let says = &["endless.ext4", "more than", &SLOT.to_string()];
        refused(node, &endless, Fault::None, "", 4, says)
    })?;
    let no_kernel = material::compressed(&small_system, true)?;
    group.check("an image without a kernel", Leaves::Forgotten, |node| {
        refused(node, &no_kernel, Fault::None, "", 4, &["no kernel"])
    })?;
    group.check(
        "an image that could not confirm itself",
        Leaves::Forgotten,
        |node| {
            let url = serve(node, zstd, Fault::None);
            let command = format!(
                "slotd install {url} --checksum {} --stage-only",
                zstd.checksum
            );
            let says = &[
                "could not confirm itself",
                "slotd.service",
                "--allow-no-agent",
            ];
            node.refused(&command, 4, says).map(drop)
        },
    )?;
    group.check(
        "an image of another version than asked for",
        Leaves::Forgotten,
        |node| {
            let says = &["VersionMismatch", "v9.0.0", "v9.0.1"];
            refused(node, zstd, Fault::None, "--version v9.0.1", 4, says)
        },
    )
}

/// Older and same versions: refused before the write where they are declared, after it where only the image tells, and staged
/// when they are allowed by name.
fn versions(group: &mut Group, lab: &Lab) -> Result<()> {
    for (word, version, allow, other) in [
        (
            "older",
            "v0.9.0",
            "--allow-downgrade",
            "--allow-same-version",
        ),
        (
            "that runs already",
            V1.version(),
            "--allow-same-version",
            "--allow-downgrade",
        ),
    ] {
        let contents = Contents {
            version,
            kernel: true,
            noise: 1 << 20,
        };
        let image = material::filesystem(lab.folder(), version, 8 * MIB, &contents)?;
        let image = material::compressed(&image, true)?;
        let says = &[word, version, allow];
        group.check(
            &format!("{version} declared over v1.0.0"),
            Leaves::Untouched,
            |node| {
                let options = format!("--version {version} {other}");
                refused(node, &image, Fault::None, &options, 4, says)
            },
        )?;
        group.check(
            &format!("{version} found over v1.0.0"),
            Leaves::Forgotten,
            |node| refused(node, &image, Fault::None, other, 4, says),
        )?;
        group.check(
            &format!("{version} over v1.0.0 when allowed by name"),
            Leaves::Forgotten,
            |node| {
                let url = serve(node, &image, Fault::None);
                node.machine.run(&format!(
                    "slotd install {url} --checksum {} {STAGE} {allow}",
                    image.checksum
                ))?;
                let loader = node.loader()?;
                ensure!(
                    loader["loader"]["staged"] == "B"
                        && loader["slots"][1]["image"]["version"] == version,
                    "{version} is not staged: {loader:#}"
                );
                cancel(node)
            },
        )?;
    }
    Ok(())
}

/// Takes a staged image back: the slot ends empty.
fn cancel(node: &mut Node) -> Result<()> {
    node.machine.run("slotd cancel").map(drop)
}

/// Begins an installation in the background that stalls half way, and waits until bytes reached the slot.
fn stalled(node: &mut Node, small: &Small) -> Result<()> {
    let length = std::fs::metadata(&small.zstd.path)?.len();
    let url = serve(node, &small.zstd, Fault::StallAt(length / 2));
    node.machine.run(&format!(
        "rm -f /run/first.code; setsid sh -c 'slotd install {url} --checksum {} {STAGE} >/run/first.out 2>&1; \
         echo $? >/run/first.code' >/dev/null 2>&1 &",
        small.zstd.checksum
    ))?;
    wait_for(node, "half of the image is written", |node| {
        let status = node.status()?;
        let written = status["upgrade"]["progress"]["bytesWritten"].as_u64();
        Ok(written.is_some_and(|bytes| bytes >= 8 * MIB))
    })
}

/// The exit code and the words of the installation in the background.
fn first_one(node: &mut Node) -> Result<(String, String)> {
    wait_for(node, "the first installation returns", |node| {
        Ok(node.machine.try_run("test -s /run/first.code")?.code == 0)
    })?;
    let code = node.machine.run("cat /run/first.code")?;
    let text = node.machine.run("cat /run/first.out")?;
    Ok((code.trim().to_owned(), text))
}

/// A server that is slow is waited for in these.
fn patient(group: &mut Group, patient: bool) -> Result<()> {
    let path = "/etc/slotd/config.d/30-patient.yaml";
    if patient {
        group
            .node
            .write_file(path, "fetch: {idleTimeout: 60s, deadline: 5m}\n")?;
    } else {
        group.node.machine.run(&format!("rm {path}"))?;
    }
    group.restart_agent()
}

fn while_one_runs(group: &mut Group, small: &Small) -> Result<()> {
    patient(group, true)?;
    group.check(
        "install while one runs, then cancelled",
        Leaves::Empty,
        |node| {
            stalled(node, small)?;
            let id = node.status()?["upgrade"]["id"].to_string();
            let says = &[format!("upgrade {id} is under way"), "Staging".to_owned()];
            let says: Vec<&str> = says.iter().map(String::as_str).collect();
            for command in [
                format!(
                    "slotd install {} --checksum {} {STAGE}",
                    node.server.guest_url("/other"),
                    small.zstd.checksum
                ),
                "slotd rollback".to_owned(),
            ] {
                // A rollback is refused for the empty slot first.
                let code = if command == "slotd rollback" { 5 } else { 7 };
                let says: &[&str] = if code == 7 {
                    &says
                } else {
                    &["slot B is empty"]
                };
                node.refused(&command, code, says)?;
            }
            // `slotd flash` needs no agent, and may not come between.
            let flash = format!(
                "slotd flash {} --checksum {}",
                node.server.guest_url("/small.ext4.zst"),
                small.zstd.checksum
            );
            node.refused(&flash, 7, &["another slotd"])?;
            node.machine.run("slotd cancel")?;
            let (code, text) = first_one(node)?;
            ensure!(
                code == "4" && text.contains("cancelled"),
                "the cancelled installation ended with {code}:\n{text}"
            );
            Ok(())
        },
    )
}

/// The agent is stopped in the middle of a write: it goes at once, the slot is empty, and started again it begins anew by itself.
fn terminated(group: &mut Group, small: &Small) -> Result<()> {
    group.check(
        "SIGTERM in the middle of the write",
        Leaves::Forgotten,
        |node| {
            stalled(node, small)?;
            node.machine
                .run("kill -TERM $(systemctl show --property=MainPID --value slotd.service)")?;
            wait_for(node, "the agent ends", |node| {
                let state = node.machine.try_run("systemctl is-active slotd.service")?;
                Ok(state.stdout.trim() == "inactive")
            })?;
            let (code, text) = first_one(node)?;
            ensure!(
                code == "8" && text.contains("daemon went away"),
                "the client of the stopped agent ended with {code}:\n{text}"
            );
            let loader = node.loader()?;
            ensure!(
                loader["slots"][1]["state"] == "empty",
                "slot B is not empty once the agent was stopped: {loader:#}"
            );
            let head = node.machine.run(&format!(
                "dd if={TARGET} bs=1M count=1 iflag=direct status=none | tr -d '\\000' | wc -c"
            ))?;
            ensure!(
                head.trim() == "0",
                "the first MiB of slot B holds {head} bytes"
            );
            serve(node, &small.zstd, Fault::None);
            node.machine.run("systemctl start slotd.service")?;
            wait_until_ready(node)?;
            wait_for(node, "the agent stages the image by itself", |node| {
                Ok(node.status()?["upgrade"]["phase"] == "Staged")
            })?;
            cancel(node)
        },
    )?;
    patient(group, false)
}
