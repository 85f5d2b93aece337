//! Bad images: wrong by their checksum, their size, their content or their version.

use anyhow::{Result, ensure};

use super::group::{Group, Leaves};
use super::material::{self, Contents, Published};
use super::{interruptions, servers};
use crate::images::V1;
use crate::lab::Lab;
use crate::node::Node;
use crate::server::{Body, Fault};

pub(super) const MIB: u64 = 1 << 20;
/// A slot of the reference disk holds so much.
const SLOT: u64 = 512 * MIB;

/// Options that get past everything but the image itself.
pub(super) const STAGE: &str = "--stage-only --allow-no-agent";

pub(super) fn run(lab: &Lab) -> Result<()> {
    let mut group = Group::start(lab, "images")?;
    let small = Small::make(lab)?;
    requests(&mut group, &small)?;
    servers::check(&mut group, &small)?;
    declared_sizes(&mut group, lab, &small)?;
    contents(&mut group, lab, &small)?;
    versions(&mut group, lab)?;
    interruptions::check(&mut group, &small)?;
    group.finish()
}

/// A good image of 48 MiB without an agent, as it is and compressed.
pub(super) struct Small {
    pub(super) raw: Published,
    pub(super) zstd: Published,
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
pub(super) fn refused(
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

pub(super) fn serve(node: &Node, served: &Published, fault: Fault) -> String {
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
                node.machine.run("slotd cancel").map(drop)
            },
        )?;
    }
    Ok(())
}
