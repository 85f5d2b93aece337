//! What this machine's kernel may lack, in a virtual machine: device mapper between root and slot, and disks on other buses.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::rig;
use crate::images::V1;
use crate::lab::{Lab, NodeOptions};
use crate::node::{FRESH, Node};
use crate::process;
use crate::vm::{Bus, MoreDisk, quote};

/// Size of the small root in MiB; its hash tree lies behind it.
const ROOT_MIB: u64 = 64;
const BLOCK: u64 = 4096;
const SECTOR: u64 = 512;
/// Slots A and B of the machine, without `/dev/`.
const SLOTS: [&str; 2] = ["nvme0n1p2", "nvme0n1p3"];
/// Key of the encrypted slot: 64 bytes in hex.
const KEY: &str = "5a";

/// Runs the slot tool, in the guest, with what the first argument mounts at `$ROOT` as its root and the second one as the kernel's
/// command line. No loader speaks.
const LOOK: &str = r#"#!/bin/sh
set -e
export ROOT=/run/look/root WORK=/run/look
mkdir -p $ROOT
mounts=$1
printf %s "$2" >$WORK/cmdline
shift 2
exec unshare --mount --propagation private sh -ec "$mounts"'
mount --rbind /sys $ROOT/sys
mount --rbind /dev $ROOT/dev
mount -t proc proc $ROOT/proc
mount --bind $WORK/cmdline $ROOT/proc/cmdline
mount -t tmpfs tmpfs $ROOT/sys/firmware
mkdir -p $ROOT/sys/firmware/efi/efivars
exec chroot $ROOT /slotd-bootctl status --output json "$@"' sh "$@"
"#;

pub(super) fn tests() -> Vec<crate::runner::Test> {
    vec![
        super::super::proved_in_machine("vm/discovery-through-device-mapper", device_mapper),
        super::super::proved_in_machine("vm/discovery-on-other-buses", buses),
    ]
}

/// A look from inside the guest.
struct Look<'a> {
    mount: String,
    options: String,
    slots: Option<&'a [String; 2]>,
}

impl<'a> Look<'a> {
    fn new(mount: impl Into<String>) -> Self {
        Self {
            mount: mount.into(),
            options: "quiet".to_owned(),
            slots: None,
        }
    }

    fn options(&self, options: &str) -> Self {
        Self {
            mount: self.mount.clone(),
            options: options.to_owned(),
            ..*self
        }
    }

    fn slots(mut self, slots: &'a [String; 2]) -> Self {
        self.slots = Some(slots);
        self
    }

    fn command(&self) -> String {
        let [mount, options] = [&self.mount, &self.options].map(|text| quote(text));
        let mut command = format!("/run/look.sh {mount} {options}");
        if let Some([a, b]) = self.slots {
            command += &format!(" --slot-a /dev/{a} --slot-b /dev/{b}");
        }
        command
    }

    /// That the tool finds the slots, and this one as booted.
    fn finds(&self, node: &mut Node, booted: &str) -> Result<Value> {
        let output = node.machine.try_run(&self.command())?;
        // Without a boot loader the slots are shown all the same.
        let found: Value = serde_json::from_str(&output.stdout)
            .with_context(|| format!("{self:?} shows no document: {output:?}"))?;
        let names = SLOTS.map(str::to_owned);
        let names = self.slots.unwrap_or(&names);
        let right = |at: usize| found["slots"][at]["device"] == format!("/dev/{}", names[at]);
        ensure!(
            found["booted"] == booted && right(0) && right(1),
            "{self:?} shows {found:#} instead of {names:?}, {booted} booted"
        );
        Ok(found)
    }

    /// That the command line and the root are told to disagree.
    fn disagrees(&self, node: &mut Node) -> Result<()> {
        node.refused(&self.command(), 5, &["command line root=", "mountinfo"])
            .map(drop)
    }
}

impl std::fmt::Debug for Look<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.command())
    }
}

fn start(lab: &Lab, disks: &[MoreDisk]) -> Result<Node> {
    let options = NodeOptions {
        disks,
        ..NodeOptions::new(&V1)
    };
    let mut node = Node::start_with(lab, &options)?;
    node.write_file("/run/look.sh", LOOK)?;
    node.machine.run("chmod +x /run/look.sh")?;
    Ok(node)
}

/// A root with its hash tree, and what opens it.
struct Verity {
    image: PathBuf,
    digest: String,
    salt: String,
}

impl Verity {
    /// Made by `veritysetup`, in one file.
    fn make(lab: &Lab, folder: &Path) -> Result<Self> {
        let image = small_root(lab, folder)?;
        let printed = process::output("veritysetup", |command| {
            command
                .arg("format")
                .arg(format!("--hash-offset={}", ROOT_MIB << 20))
                .arg(format!("--data-blocks={}", (ROOT_MIB << 20) / BLOCK))
                .args([&image, &image])
        })?;
        let value = |name: &str| {
            printed
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .map(|rest| rest.trim().to_owned())
                .with_context(|| format!("veritysetup prints no {name:?}:\n{printed}"))
        };
        Ok(Self {
            image,
            digest: value("Root hash:")?,
            salt: value("Salt:")?,
        })
    }

    /// The device mapper's table over a device that holds it. One block of the tree's own header is passed over.
    fn table(&self, device: &str) -> String {
        let blocks = (ROOT_MIB << 20) / BLOCK;
        let sectors = (ROOT_MIB << 20) / SECTOR;
        format!(
            "0 {sectors} verity 1 {device} {device} {BLOCK} {BLOCK} {blocks} {} sha256 {} {}",
            blocks + 1,
            self.digest,
            self.salt
        )
    }
}

/// An ext4 in which there is nothing but the slot tool.
fn small_root(lab: &Lab, folder: &Path) -> Result<PathBuf> {
    let tree = rig::tree(lab, folder, rig::SLOT_TOOL)?;
    let image = folder.join("root.img");
    rig::ext4(&tree, &image, &format!("{ROOT_MIB}M"))?;
    Ok(image)
}

/// Roots on slot B with device mapper in between, while slot A runs.
fn device_mapper(lab: &Lab) -> Result<()> {
    let verity = Verity::make(lab, &lab.folder().join("root"))?;
    let mut node = start(lab, &[])?;
    let url = node.server.serve_file(&verity.image);
    let slot = format!("/dev/{}", SLOTS[1]);
    let sectors = fs::metadata(&verity.image)
        .context("looking at the image")?
        .len()
        / SECTOR;
    let size = node.machine.run(&format!("blockdev --getsz {slot}"))?;
    let size = size.trim();

    let create = |node: &mut Node, name: &str, table: &str, options: &str| {
        node.machine
            .run(&format!(
                "dmsetup create {name} {options} --table '{table}'"
            ))
            .map(drop)
    };
    let fill = |node: &mut Node, device: &str| {
        let patience = node.machine.patience(60);
        let command = format!("curl -fsS {url} | dd of={device} bs=1M conv=fsync status=none");
        let output = node.machine.try_run_within(&command, patience)?;
        ensure!(output.code == 0, "{command:?}: {output:?}");
        Ok(())
    };

    fill(&mut node, &slot)?;
    create(
        &mut node,
        "straight",
        &format!("0 {sectors} linear {slot} 0"),
        "--readonly",
    )?;
    sees_through(&mut node, "straight")?;
    node.machine.run("dmsetup remove straight")?;

    create(&mut node, "verified", &verity.table(&slot), "--readonly")?;
    sees_through(&mut node, "verified")?;
    node.machine.run("dmsetup remove verified")?;

    // Slots that are device mapper's, one behind the other.
    let slots = ["dm-0", "dm-1"].map(str::to_owned);
    for (name, start) in [("first", 0), ("second", sectors)] {
        let table = format!("0 {sectors} linear {slot} {start}");
        create(&mut node, name, &table, "")?;
        fill(&mut node, &format!("/dev/mapper/{name}"))?;
    }
    for (name, booted) in [("first", "A"), ("second", "B")] {
        let look = Look::new(format!("mount -o ro /dev/mapper/{name} $ROOT")).slots(&slots);
        look.finds(&mut node, booted)?;
        look.options(&format!("ro root=/dev/mapper/{name}"))
            .finds(&mut node, booted)?;
    }
    node.machine
        .run("dmsetup remove first; dmsetup remove second")?;

    let key = KEY.repeat(64);
    create(
        &mut node,
        "secret",
        &format!("0 {size} crypt aes-xts-plain64 {key} 0 {slot} 0"),
        "",
    )?;
    fill(&mut node, "/dev/mapper/secret")?;
    sees_through(&mut node, "secret")?;
    create(
        &mut node,
        "both",
        &verity.table("/dev/mapper/secret"),
        "--readonly",
    )?;
    sees_through(&mut node, "both")?;
    node.machine
        .run("dmsetup remove both; dmsetup remove secret")?;
    // slotd wrote nothing to slot B, and nothing says that an image is in it.
    node.expect(&FRESH)
}

/// A device of device mapper's over slot B is seen to be slot B, as a root of its own and below an overlay.
fn sees_through(node: &mut Node, name: &str) -> Result<()> {
    let mount = format!("mount -o ro /dev/mapper/{name} $ROOT");
    let overlay = format!(
        "mkdir -p $WORK/lower $WORK/rw; mount -o ro /dev/mapper/{name} $WORK/lower; mount -t tmpfs tmpfs $WORK/rw; \
         mkdir $WORK/rw/u $WORK/rw/w; \
         mount -t overlay -o lowerdir=$WORK/lower,upperdir=$WORK/rw/u,workdir=$WORK/rw/w overlay $ROOT; \
         mkdir -p $ROOT$WORK/lower; mount --rbind $WORK/lower $ROOT$WORK/lower"
    );
    for (case, mount) in [("root", mount), ("layer below the root", overlay)] {
        let look = Look::new(mount);
        (|| {
            look.finds(node, "B")?;
            look.options(&format!("ro root=/dev/mapper/{name}"))
                .finds(node, "B")?;
            look.options(&format!("ro root=/dev/{}", SLOTS[0]))
                .disagrees(node)
        })()
        .with_context(|| format!("{name} as {case}"))?;
    }
    Ok(())
}

/// Disks whose partitions are called otherwise.
fn buses(lab: &Lab) -> Result<()> {
    let root = small_root(lab, &lab.folder().join("root"))?;
    let cases = [
        (Bus::Virtio, "virtio_pci virtio_blk", "vda"),
        (Bus::Scsi, "virtio_pci virtio_scsi sd_mod", "sda"),
    ];
    let disks: Vec<MoreDisk> = cases
        .iter()
        .map(|(bus, ..)| {
            Ok(MoreDisk {
                bus: *bus,
                file: disk_with(&root, &lab.folder().join(format!("{bus:?}.img")))?,
            })
        })
        .collect::<Result<_>>()?;
    let mut node = start(lab, &disks)?;
    for (bus, modules, name) in cases {
        node.machine.run(&format!(
            "for module in {modules}; do modprobe $module; done; udevadm settle"
        ))?;
        let slots = [2, 3].map(|number| format!("{name}{number}"));
        for (at, booted) in [(0, "A"), (1, "B")] {
            let device = format!("/dev/{}", slots[at]);
            let look = Look::new(format!("mount -o ro {device} $ROOT")).slots(&slots);
            (|| {
                look.finds(&mut node, booted)?;
                look.options(&format!("ro root={device}"))
                    .finds(&mut node, booted)?;
                look.options(&format!("ro root=/dev/{}", slots[1 - at]))
                    .disagrees(&mut node)
            })()
            .with_context(|| format!("{bus:?}, slot {booted}"))?;
        }
    }
    // Each disk has the labels: the machine's own slots are those on the disk that it runs from.
    node.expect(&FRESH)
}

/// A disk with that root in both slots.
fn disk_with(root: &Path, file: &Path) -> Result<PathBuf> {
    const START: [u64; 3] = [1, 16, 16 + ROOT_MIB];
    fs::File::create(file)
        .and_then(|file| file.set_len(256 << 20))
        .with_context(|| format!("creating {}", file.display()))?;
    let script = format!(
        "label: gpt\nstart={}MiB, size=8MiB, name=other\nstart={}MiB, size={ROOT_MIB}MiB, name=root-a\n\
         start={}MiB, size={ROOT_MIB}MiB, name=root-b\n",
        START[0], START[1], START[2]
    );
    let input = tempfile::NamedTempFile::new().context("making a temporary file")?;
    fs::write(input.path(), script).context("writing a temporary file")?;
    process::run("sh", |command| {
        command
            .args(["-ec", "sfdisk --quiet --no-reread \"$1\" <\"$2\"", "sh"])
            .args([file, input.path()])
    })?;
    for start in &START[1..] {
        process::run("dd", |command| {
            command
                .arg(format!("if={}", root.display()))
                .arg(format!("of={}", file.display()))
                .args(["bs=1M", "conv=notrunc,sparse", "status=none"])
                .arg(format!("seek={start}"))
        })?;
    }
    Ok(file.to_owned())
}
