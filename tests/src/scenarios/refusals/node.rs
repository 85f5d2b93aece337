//! Nodes that are not fit to be written: slots, disks and boot loader that are not as they should be.

use anyhow::{Context, Result, ensure};

use super::configuration;
use super::group::{Fault, Group, Leaves, TARGET, restart_agent, wait_for, wait_until_ready};
use super::material::{self, Contents, Published};
use crate::lab::Lab;
use crate::node::Node;
use crate::server::{Body, Fault as ServerFault};

const MIB: u64 = 1 << 20;

pub(super) fn run(lab: &Lab) -> Result<()> {
    let mut group = Group::start(lab, "node")?;
    let contents = Contents {
        version: "v9.0.0",
        kernel: true,
        noise: 32 << 20,
    };
    let image = material::filesystem(lab.folder(), "small", 48 * MIB, &contents)?;
    let image = material::compressed(&image, true)?;
    let install = Install::serve(&group.node, &image);
    slots(&mut group, &install)?;
    disk(&mut group, &install)?;
    boot_partition(&mut group, &install)?;
    loader(&mut group, &install)?;
    configuration::check(&mut group, &install)?;
    second_disk(&mut group, &install)?;
    group.finish()
}

/// An installation that would succeed if nothing were broken.
pub(super) struct Install {
    pub(super) command: String,
    image: Published,
}

impl Install {
    fn serve(node: &Node, image: &Published) -> Self {
        let install = Self {
            command: format!(
                "slotd install {} --checksum {} --stage-only --allow-no-agent",
                node.server.guest_url("/small.zst"),
                image.checksum
            ),
            image: image.clone(),
        };
        install.slow(node, u64::MAX);
        install
    }

    /// Serves so many bytes a second.
    fn slow(&self, node: &Node, rate: u64) {
        let fault = match rate {
            u64::MAX => ServerFault::None,
            rate => ServerFault::Slow(rate),
        };
        let body = Body::File(self.image.path.clone());
        node.server.serve("/small.zst", body, fault);
    }

    /// It has to be refused.
    pub(super) fn refused(&self, node: &mut Node, code: u32, says: &[&str]) -> Result<()> {
        node.refused(&self.command, code, says).map(drop)
    }
}

fn slots(group: &mut Group, install: &Install) -> Result<()> {
    let mounted = Fault {
        name: "the target is mounted",
        begin: "mke2fs -q -F /dev/nvme0n1p3 16M && mkdir -p /run/target && mount -o ro /dev/nvme0n1p3 /run/target",
        end: "umount /run/target",
    };
    group.under(&mounted, Leaves::Untouched, |node| {
        install.refused(node, 5, &[TARGET, "mounted"])?;
        let flash = install.command.replacen("slotd install", "slotd flash", 1);
        let flash = flash.replacen(" --stage-only --allow-no-agent", "", 1);
        node.refused(&flash, 5, &[TARGET, "mounted"]).map(drop)
    })?;
    let missing = Fault {
        name: "a slot is missing",
        begin: "sfdisk --quiet --no-reread --no-tell-kernel --force --part-label /dev/nvme0n1 3 spare",
        end: "sfdisk --quiet --no-reread --no-tell-kernel --force --part-label /dev/nvme0n1 3 root-b",
    };
    group.under(&missing, Leaves::Untouched, |node| {
        let says = &["no known label pair", "nvme0n1p3", "spare", "root-a/root-b"];
        install.refused(node, 3, says)?;
        node.refused("slotd-bootctl status", 3, says).map(drop)
    })?;
    for (name, slots, says) in [
        (
            "both slots are the same device",
            "{a: PARTLABEL=root-a, b: /dev/nvme0n1p2}",
            &["both slots are the same device", "nvme0n1p2"][..],
        ),
        (
            "a slot is a device that is not there",
            "{a: PARTLABEL=root-a, b: /dev/nvme0n1p9}",
            &["slot B", "/dev/nvme0n1p9"],
        ),
        (
            "the slots are the wrong way round and the booted one is to be written",
            "{a: PARTLABEL=root-b, b: PARTLABEL=root-a}",
            &["not certain which slot is booted", "nvme0n1p2"],
        ),
    ] {
        let begin = format!(
            "echo 'slots: {slots}' > /etc/slotd/config.d/50-slots.yaml; systemctl restart slotd.service"
        );
        let fault = Fault {
            name,
            begin: &begin,
            // The next check starts the agent anew anyway.
            end: "rm /etc/slotd/config.d/50-slots.yaml",
        };
        let code = if says[0].starts_with("not certain") {
            5
        } else {
            3
        };
        group.under(&fault, Leaves::Untouched, |node| {
            wait_until_ready(node)?;
            install.refused(node, code, says)
        })?;
    }
    group.restart_agent()
}

fn disk(group: &mut Group, install: &Install) -> Result<()> {
    let read_only = Fault {
        name: "the disk is read-only",
        begin: "sync; blockdev --setro /dev/nvme0n1",
        end: "blockdev --setrw /dev/nvme0n1",
    };
    group.under(&read_only, Leaves::Untouched, |node| {
        install.refused(node, 5, &["nvme0n1", "read-only"])
    })?;
    failing_disk(group, install)
}

/// Slot B on a disk whose medium fails behind the first 24 MiB of the slot: device-mapper's error target under a loop disk.
const FAILING: &str = "modprobe -q loop; modprobe -q dm-mod; truncate -s 128M /tmp/medium && \
    printf 'label: gpt\nstart=2048, size=200000, name=root-b\n' | sfdisk --quiet /tmp/medium && \
    losetup /dev/loop1 /tmp/medium && \
    printf '0 51200 linear /dev/loop1 0\n51200 210944 error\n' | dmsetup create failing && \
    losetup --direct-io=on --partscan /dev/loop2 /dev/mapper/failing && \
    echo 'slots: {a: PARTLABEL=root-a, b: /dev/loop2p1}' > /etc/slotd/config.d/50-slots.yaml";

fn failing_disk(group: &mut Group, install: &Install) -> Result<()> {
    let failing = Fault {
        name: "the device fails in the middle of the write",
        begin: FAILING,
        end: "rm /etc/slotd/config.d/50-slots.yaml; losetup -d /dev/loop2; dmsetup remove --retry failing; \
              losetup -d /dev/loop1; rm /tmp/medium; systemctl restart slotd.service",
    };
    group.under(&failing, Leaves::Untouched, |node| {
        restart_agent(node)?;
        let output = node.refused(&install.command, 6, &["/dev/loop2p1", "at byte", "failed"])?;
        let text = format!("{}{}", output.stdout, output.stderr);
        let at = text
            .split("at byte ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok())
            .with_context(|| format!("no offset in {text}"))?;
        // The table gives the slot 24 MiB of good medium; the pieces that are written are a few MiB long.
        ensure!(
            (20 * MIB..=24 * MIB).contains(&at),
            "the error is said to be at byte {at}, the medium fails from {}",
            24 * MIB
        );
        let head = node.machine.run(
            "dd if=/dev/loop2p1 bs=1M count=1 iflag=direct status=none | tr -d '\\000' | wc -c",
        )?;
        ensure!(
            head.trim() == "0",
            "the first MiB of the slot holds {head} bytes"
        );
        let status = node.status()?;
        ensure!(
            status["upgrade"]["phase"] == "Failed" && status["slots"][1]["state"] == "empty",
            "after the device failed: {status:#}"
        );
        Ok(())
    })?;
    wait_until_ready(&mut group.node)
}

fn boot_partition(group: &mut Group, install: &Install) -> Result<()> {
    let read_only = Fault {
        name: "the boot partition is read-only",
        begin: "mount -o remount,ro /efi",
        end: "mount -o remount,rw /efi",
    };
    group.under(&read_only, Leaves::Untouched, |node| {
        install.refused(node, 3, &["boot partition", "/efi", "read-only"])
    })?;
    let full = Fault {
        name: "the boot partition is full",
        begin: "dd if=/dev/zero of=/efi/filler bs=1M status=none 2>/dev/null; sync",
        // The next check takes something of it away.
        end: ":",
    };
    group.under(&full, Leaves::Untouched, |node| {
        install.refused(node, 3, &["/efi has room for 0 KiB", "need"])
    })?;
    let small = Fault {
        name: "the boot partition is too small for the kernel",
        begin: "truncate -s -1M /efi/filler; sync",
        end: ":",
    };
    group.under(&small, Leaves::Untouched, |node| {
        install.refused(node, 3, &["/efi has room for", "KiB", "need"])
    })?;
    filled_meanwhile(group, install)
}

/// What the check before the write could not know.
fn filled_meanwhile(group: &mut Group, install: &Install) -> Result<()> {
    let name = "the boot partition fills up during the write";
    let fault = Fault {
        name,
        // Enough room for a kernel, for now.
        begin: "truncate -s -15M /efi/filler; sync",
        end: "rm -f /efi/filler /efi/more; sync; slotd cancel >/dev/null 2>&1; true",
    };
    group.under(&fault, Leaves::Forgotten, |node| {
        // Slow enough for the filling to come first.
        install.slow(node, 5 << 20);
        node.machine.run(&format!(
            "rm -f /run/first.code; setsid sh -c '{} >/run/first.out 2>&1; echo $? >/run/first.code' >/dev/null 2>&1 &",
            install.command
        ))?;
        wait_for(node, "the write begins", |node| {
            Ok(node.status()?["upgrade"]["step"] == "write")
        })?;
        node.machine
            .run("dd if=/dev/zero of=/efi/more bs=1M status=none 2>/dev/null; sync")?;
        wait_for(node, "the installation ends", |node| {
            Ok(node.machine.try_run("test -s /run/first.code")?.code == 0)
        })?;
        let text = node.machine.run("cat /run/first.code /run/first.out")?;
        install.slow(node, u64::MAX);
        ensure!(
            text.starts_with("3\n") && text.contains("/efi") && text.contains("space"),
            "the installation ended with {text}"
        );
        Ok(())
    })
}

fn loader(group: &mut Group, install: &Install) -> Result<()> {
    let unmounted = Fault {
        name: "no boot loader is found",
        begin: "umount /efi",
        end: "mount /efi",
    };
    group.under(&unmounted, Leaves::Untouched, |node| {
        let says = &["no boot loader found", "/efi is not a mount point"];
        install.refused(node, 3, says)?;
        node.refused("slotd-bootctl activate B", 3, says)?;
        let status = node.machine.run("slotd status")?;
        ensure!(
            status.contains("no boot loader found"),
            "slotd status does not say that there is no boot loader:\n{status}"
        );
        Ok(())
    })?;
    for (name, begin, end, says) in [
        (
            "the loader's default was set by a variable",
            "bootctl set-default slotd-a.conf",
            "bootctl set-default ''",
            &["LoaderEntryDefault", "slotd-a.conf"][..],
        ),
        (
            "the loader's default was set in loader.conf",
            "cp /efi/loader/loader.conf /run/loader.conf; echo 'default slotd-a*' >> /efi/loader/loader.conf; sync",
            "cp /run/loader.conf /efi/loader/loader.conf; sync",
            &["loader.conf", "default slotd-a*"],
        ),
        (
            "another entry sorts first",
            "printf 'title Other\\nsort-key aaa\\nlinux /slotd/a/linux\\n' > /efi/loader/entries/other.conf; sync",
            "rm /efi/loader/entries/other.conf; sync",
            &["other.conf", "sorts first"],
        ),
    ] {
        group.under(&Fault { name, begin, end }, Leaves::Untouched, |node| {
            install.refused(node, 5, says)
        })?;
    }
    Ok(())
}

/// Two more disks with the usual labels, as a second installation or a backup leaves them.
const TWINS: &str = "for i in 3 4; do truncate -s 128M /tmp/twin$i && \
    printf 'label: gpt\nsize=100000, name=root-a\nsize=100000, name=root-b\n' | sfdisk --quiet /tmp/twin$i && \
    losetup --partscan /dev/loop$i /tmp/twin$i || exit 1; done";

/// Labels that occur twice: only the running root's own disk counts. The other disk stays, also while the good image is staged.
fn second_disk(group: &mut Group, install: &Install) -> Result<()> {
    group.node.machine.run(TWINS)?;
    group.check(
        "labels occur twice, on another disk",
        Leaves::Untouched,
        |node| {
            let plan = install.command.replacen("slotd install", "slotd plan", 1);
            let plan = node.machine.run(&format!("{plan} --output json"))?;
            ensure!(
                plan.contains(TARGET) && !plan.contains("/dev/loop"),
                "the plan is about another disk: {plan}"
            );
            Ok(())
        },
    )?;
    let candidates = Fault {
        name: "labels occur on two other disks, and no longer on this one",
        begin: "sfdisk --quiet --no-reread --no-tell-kernel --force --part-label /dev/nvme0n1 3 spare",
        end: "sfdisk --quiet --no-reread --no-tell-kernel --force --part-label /dev/nvme0n1 3 root-b",
    };
    group.under(&candidates, Leaves::Untouched, |node| {
        install.refused(node, 3, &["loop3p1", "loop3p2", "loop4p1", "loop4p2"])
    })?;
    let one = Fault {
        name: "labels occur on one other disk, and no longer on this one",
        begin: "losetup -d /dev/loop4; sfdisk --quiet --no-reread --no-tell-kernel --force --part-label /dev/nvme0n1 3 spare",
        ..candidates
    };
    group.under(&one, Leaves::Untouched, |node| {
        install.refused(node, 5, &["slot"])?;
        let writes = node
            .machine
            .run("cat /sys/class/block/loop3p1/stat /sys/class/block/loop3p2/stat")?;
        for line in writes.lines() {
            let written = line.split_whitespace().nth(4);
            ensure!(
                written == Some("0"),
                "the other disk was written to: {line}"
            );
        }
        Ok(())
    })
}
