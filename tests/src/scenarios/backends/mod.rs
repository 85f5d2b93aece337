//! The programs and each boot loader whose data a loop disk can hold: an image is flashed, tried, kept and given up, and
//! the loader's own tool says what it would start. systemd-boot and `efi` need an ESP and firmware: machines have those.

mod cut_off;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::discovery::look::Look;
use super::discovery::rig::{self, Kind, Rig};
use super::on_loop_disk;
use crate::lab::Lab;
use crate::loader::{Attributes, Held, UBOOT_COPY, held_by_grub, held_by_uboot};
use crate::loopdisk::Sector;
use crate::process;
use crate::runner::Test;

pub(super) fn tests() -> Vec<Test> {
    vec![
        on_loop_disk("loop/grub-is-driven-by-the-programs", |lab| {
            driven(lab, Kept::Grub)
        }),
        on_loop_disk("loop/uboot-is-driven-by-the-programs", |lab| {
            driven(lab, Kept::Uboot)
        }),
        on_loop_disk("loop/gptprio-is-driven-by-the-programs", |lab| {
            driven(lab, Kept::Attributes)
        }),
        cut_off::on_recorded_disk(
            "loop/any-power-cut-leaves-grub-on-ext4-a-whole-slot",
            |lab| cut_off::cut_off(lab, Kept::Grub),
        ),
        cut_off::on_recorded_disk("loop/any-power-cut-leaves-uboot-a-whole-slot", |lab| {
            cut_off::cut_off(lab, Kept::Uboot)
        }),
        cut_off::on_recorded_disk("loop/any-power-cut-leaves-gptprio-a-whole-slot", |lab| {
            cut_off::cut_off(lab, Kept::Attributes)
        }),
        on_loop_disk(
            "loop/grub-sees-a-block-that-was-just-made-after-a-power-cut",
            just_made,
        ),
    ]
}

/// Where a loader keeps what it knows of the slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    /// GRUB's environment block in a file system of its own.
    Grub,
    /// Two raw copies of U-Boot's environment in a partition.
    Uboot,
    /// The slots' attributes in the GUID partition table.
    Attributes,
}

/// Where a node's processes find the boot partition.
const BOOT: &str = "/efi";

/// The boots that a trial is given.
const TRIES: u32 = 2;

fn driven(lab: &Lab, kept: Kept) -> Result<()> {
    for sector in [Sector::B512, Sector::B4096] {
        through(lab, kept, sector)
            .with_context(|| format!("{kept:?}, sectors of {} bytes", sector.bytes()))?;
    }
    Ok(())
}

fn through(lab: &Lab, kept: Kept, sector: Sector) -> Result<()> {
    let node = Node::new(lab, kept, Rig::new, sector)?;
    lives(&node, &mut |left| node.count(left))
}

/// Everything that slots go through, with what the loader does at the boots of a trial: leave so many tries.
fn lives(node: &Node, count: &mut dyn FnMut(u32) -> Result<()>) -> Result<()> {
    let fresh = node.held()?;
    ensure!(
        fresh.states == ["good", "empty"] && fresh.next() == Some('A'),
        "a fresh disk holds {fresh:?}"
    );
    node.shows('A', ["good", "empty"], 'A', false)?;
    let running = digest(Path::new(&node.rig.device[0]))?;

    node.flash()?;
    ensure!(
        node.held()?.next() == Some('A'),
        "written and not activated, slot B is started: {:?}",
        node.held()?
    );
    node.bootctl('A', &format!("activate B --tries {TRIES}"))?;
    node.holds(["good", "trial"], 'B', Some(TRIES))?;
    node.shows('A', ["good", "trial"], 'B', true)?;

    // What the loader does when it starts it.
    count(TRIES - 1)?;
    node.holds(["good", "trial"], 'B', Some(TRIES - 1))?;
    let document = node.shows('B', ["good", "trial"], 'B', true)?;
    ensure!(
        document["loader"]["trialBoot"] == true
            && document["slots"][1]["left"] == TRIES - 1
            && document["slots"][1]["done"] == 1,
        "{document:#}"
    );
    node.bootctl('B', "mark-good")?;
    node.holds(["good", "good"], 'B', None)?;
    let document = node.shows('B', ["good", "good"], 'B', false)?;
    ensure!(
        document["slots"][1]["image"]["version"] == "v2.0.0",
        "{document:#}"
    );

    // Back to a proven slot without a trial, and the other one is given up for good.
    node.bootctl('B', "activate A")?;
    node.holds(["good", "good"], 'A', None)?;
    node.bootctl('A', "mark-bad B")?;
    node.holds(["good", "bad"], 'A', None)?;
    node.shows('A', ["good", "bad"], 'A', false)?;
    // It is tried anew when somebody asks for it, and spent when nobody confirms.
    node.bootctl('A', &format!("activate B --tries {TRIES}"))?;
    node.holds(["good", "trial"], 'B', Some(TRIES))?;
    count(0)?;
    node.holds(["good", "bad"], 'A', None)?;
    node.shows('A', ["good", "bad"], 'A', false)?;

    // The only slot that is left is not given up: nothing changes.
    let before = node.data()?;
    let refused = node.call('A', "/slotd-bootctl mark-bad A \"$@\"", Stdio::null())?;
    ensure!(
        refused.status.code() == Some(5),
        "the only good slot was given up: {refused:?}"
    );
    ensure!(
        node.data()? == before,
        "what was refused changed what the loader goes by"
    );
    ensure!(
        digest(Path::new(&node.rig.device[0]))? == running,
        "slot A was written to"
    );
    node.is_whole()
}

/// GRUB replays no journal, and a file that was just made is known to the journal alone unless slotd sees to it.
fn just_made(lab: &Lab) -> Result<()> {
    let mut node = Node::new(lab, Kept::Grub, Rig::new, Sector::B512)?;
    // Of a block that is missing it is known by its name only.
    node.loader = "grub";
    node.with_boot("rm $BOOT/grub/grubenv")?;
    let cut = node.folder.join("cut.img");
    // The boot partition is still mounted when its disk is copied: no unmount has written anything back.
    let program = format!(
        "{}\nchroot $ROOT /slotd-bootctl --loader grub activate B --tries {TRIES}\n\
         cp --sparse=always {} {}",
        node.flash_program()?,
        node.rig.disk_file().display(),
        cut.display()
    );
    let image = File::open(&node.images[1]).context("opening an image")?;
    succeeded(&program, node.call('A', &program, image.into())?)?;
    let read_by_grub = process::output("grub-fstest", |command| {
        command.arg(&cut).args(["cat", "(loop0,gpt1)/grub/grubenv"])
    })?;
    let held = held_by_grub(read_by_grub.trim_end_matches('#'))?;
    ensure!(
        held.states == ["good", "trial"] && held.tries_left[1] == Some(TRIES),
        "after a power cut GRUB finds {held:?}"
    );
    Ok(())
}

/// A disk, and what its machine keeps elsewhere.
struct Node {
    kept: Kept,
    /// The loader as its configuration names it.
    loader: &'static str,
    rig: Rig,
    folder: PathBuf,
    /// What slot A holds at first, and what slot B gets.
    images: [PathBuf; 2],
}

impl Node {
    fn new(
        lab: &Lab,
        kept: Kept,
        make: impl FnOnce(PathBuf, Kind, Sector, &Path) -> Result<Rig>,
        sector: Sector,
    ) -> Result<Self> {
        let folder = lab
            .folder()
            .join(format!("{kept:?}-{}", sector.bytes()).to_lowercase());
        let tree = rig::tree(lab, &folder, &["slotd-bootctl", "slotd"])?;
        for name in ["boot", "efi", "etc", "tmp", "var"] {
            fs::create_dir_all(tree.join(name)).context("making a folder")?;
        }
        rig::write(&tree, "usr/lib/modules/6.1.0/vmlinuz", "no kernel at all\n")?;
        symlink("/usr/lib/modules/6.1.0/vmlinuz", tree.join("boot/vmlinuz"))
            .context("linking a kernel")?;
        // By its first program it is told what an image is made for.
        fs::create_dir_all(tree.join("sbin"))
            .and_then(|()| fs::copy(tree.join("slotd-bootctl"), tree.join("sbin/init")))
            .context("copying a program")?;
        let images = ["v1.0.0", "v2.0.0"].map(|version| folder.join(format!("{version}.ext4")));
        for (image, version) in images.iter().zip(["v1.0.0", "v2.0.0"]) {
            rig::write(
                &tree,
                "usr/lib/os-release",
                &format!("ID=lab\nIMAGE_VERSION=\"{version}\"\n"),
            )?;
            rig::ext4(&tree, image, "96M")?;
        }
        let rig = make(folder.clone(), Kind::Gpt, sector, &images[0])?;
        let node = Self {
            kept,
            loader: "auto",
            rig,
            images,
            folder,
        };
        for name in ["state", "boot"] {
            fs::create_dir_all(node.folder.join(name)).context("making a folder")?;
        }
        node.prepare()?;
        Ok(node)
    }

    /// What the builder of a disk writes.
    fn prepare(&self) -> Result<()> {
        match self.kept {
            Kept::Grub => {
                process::run("mke2fs", |command| {
                    command
                        .args(["-q", "-t", "ext4"])
                        .arg(self.rig.boot_partition())
                })?;
                self.with_boot(
                    "mkdir $BOOT/grub; touch $BOOT/grub/grub.cfg; grub-editenv $BOOT/grub/grubenv create; \
                     grub-editenv $BOOT/grub/grubenv set slotd_order='a b' slotd_a_ok=1",
                )
                .map(drop)
            }
            Kept::Uboot => {
                let empty = self.folder.join("empty.env");
                fs::write(&empty, "slotd_order=A B\nslotd_a_ok=1\n").context("writing a file")?;
                let copy = self.folder.join("copy");
                process::run("mkenvimage", |command| {
                    command
                        .args(["-r", "-s", &UBOOT_COPY.to_string(), "-o"])
                        .args([&copy, &empty])
                })?;
                let bytes = fs::read(&copy).context("reading a copy")?;
                let partition = File::options()
                    .write(true)
                    .open(self.rig.boot_partition())
                    .context("opening a partition")?;
                for offset in [0, UBOOT_COPY] {
                    partition
                        .write_all_at(&bytes, offset)
                        .context("writing a copy")?;
                }
                partition.sync_all().context("writing a copy")?;
                let device = self.rig.boot_partition();
                let lines = [0, UBOOT_COPY]
                    .map(|offset| format!("{} {offset:#x} {UBOOT_COPY:#x}\n", device.display()));
                fs::write(self.environment(), lines.concat()).context("writing a file")
            }
            Kept::Attributes => self.set_attributes(2, Attributes::GOOD),
        }
    }

    /// The configuration of U-Boot's own tools.
    fn environment(&self) -> PathBuf {
        self.folder.join("fw_env.config")
    }

    /// Runs shell where the boot partition is at `$BOOT`.
    fn with_boot(&self, script: &str) -> Result<String> {
        let boot = self.folder.join("boot");
        let script = format!("set -e; mount \"$DEVICE\" \"$BOOT\"; {script}");
        process::output("unshare", |command| {
            command
                .args(["--mount", "--propagation", "private", "sh", "-c", &script])
                .env("DEVICE", self.rig.boot_partition())
                .env("BOOT", boot)
        })
    }

    /// What the loader's own tool says.
    fn held(&self) -> Result<Held> {
        match self.kept {
            Kept::Grub => held_by_grub(&self.with_boot("grub-editenv $BOOT/grub/grubenv list")?),
            Kept::Uboot => held_by_uboot(&process::output("fw_printenv", |command| {
                command.arg("--config").arg(self.environment())
            })?),
            Kept::Attributes => Ok(Attributes::held([self.attributes(2)?, self.attributes(3)?])),
        }
    }

    /// That this is what the loader goes by.
    fn holds(&self, states: [&str; 2], next: char, tries_of_b: Option<u32>) -> Result<()> {
        let held = self.held()?;
        ensure!(
            held.states == states && held.next() == Some(next),
            "the loader holds {held:?}, not {states:?} with {next} next"
        );
        ensure!(
            tries_of_b.is_none() || held.tries_left[1] == tries_of_b,
            "the loader holds {held:?}, not {tries_of_b:?} tries"
        );
        Ok(())
    }

    /// Digests of what the loader keeps its knowledge in, or of all of the disk where mounting changes nothing there.
    fn data(&self) -> Result<String> {
        match self.kept {
            Kept::Grub => self.with_boot("cd $BOOT; find . | sort; sha256sum grub/* | sort"),
            // Not through the device, whose cache knows nothing of what is written to its partitions.
            Kept::Uboot | Kept::Attributes => digest(self.rig.disk_file()),
        }
    }

    /// Takes tries from slot B, as the loader does when it starts it.
    fn count(&self, left: u32) -> Result<()> {
        match self.kept {
            // In place, as GRUB's save_env does it; its tool would truncate the file first.
            Kept::Grub => self
                .with_boot(&format!(
                    "cp $BOOT/grub/grubenv /tmp/counted.$$; grub-editenv /tmp/counted.$$ set slotd_b_tries={left}; \
                     dd if=/tmp/counted.$$ of=$BOOT/grub/grubenv conv=notrunc,fsync status=none; rm /tmp/counted.$$"
                ))
                .map(drop),
            Kept::Uboot => process::run("fw_setenv", |command| {
                command
                    .arg("--config")
                    .arg(self.environment())
                    .args(["slotd_b_tries", &left.to_string()])
            }),
            Kept::Attributes => {
                let attributes = self.attributes(3)?;
                self.set_attributes(
                    3,
                    Attributes {
                        tries: left,
                        ..attributes
                    },
                )
            }
        }
    }

    fn attributes(&self, partition: u32) -> Result<Attributes> {
        let text = process::output("sfdisk", |command| {
            command
                .arg("--part-attrs")
                .arg(self.rig.disk())
                .arg(partition.to_string())
        })?;
        Ok(Attributes::read(&text))
    }

    fn set_attributes(&self, partition: u32, attributes: Attributes) -> Result<()> {
        process::run("sfdisk", |command| {
            command
                .args(["--quiet", "--no-reread", "--no-tell-kernel", "--part-attrs"])
                .arg(self.rig.disk())
                .args([partition.to_string(), attributes.words()])
        })
    }

    /// That other tools find nothing wrong with what holds the data.
    fn is_whole(&self) -> Result<()> {
        match self.kept {
            Kept::Grub => process::run("e2fsck", |command| {
                command.args(["-f", "-n"]).arg(self.rig.boot_partition())
            }),
            Kept::Uboot => Ok(()),
            Kept::Attributes => {
                let said = process::output("sgdisk", |command| {
                    command.arg("--verify").arg(self.rig.disk())
                })?;
                ensure!(said.contains("No problems found"), "sgdisk says {said}");
                Ok(())
            }
        }
    }

    /// Runs a program of the node's with `booted` as its root.
    fn call(&self, booted: char, program: &str, input: Stdio) -> Result<Output> {
        let index = usize::from(booted == 'B');
        let state = self.folder.join("state");
        let mut mount = format!(
            "mount -o ro {} $ROOT\n\
             for name in etc run tmp var; do mount -t tmpfs tmpfs $ROOT/$name; done\n\
             mkdir -p $ROOT/var/lib/slotd $ROOT/var/lock $ROOT/etc/slotd\n\
             mount --bind {} $ROOT/var/lib/slotd\n\
             echo 0123456789abcdef0123456789abcdef >$ROOT/etc/machine-id\n\
             echo 'install: {{requireAgent: false}}' >$ROOT/etc/slotd/config.yaml\n\
             echo 'loader: {}' >>$ROOT/etc/slotd/config.yaml\n",
            self.rig.device[index],
            state.display(),
            self.loader,
        );
        match self.kept {
            Kept::Grub => mount.push_str(&format!(
                "mount {} $ROOT{BOOT}\n",
                self.rig.boot_partition().display()
            )),
            Kept::Uboot => mount.push_str(&format!(
                "cp {} $ROOT/etc/fw_env.config\n",
                self.environment().display()
            )),
            Kept::Attributes => {}
        }
        let look = Look::new(mount).options(format!(
            "root=PARTUUID={} ro slotd.slot={}",
            self.rig.part_uuid[index],
            booted.to_ascii_lowercase()
        ));
        self.rig.call(&look, program, input)
    }

    /// Runs the slot tool, which has to succeed.
    fn bootctl(&self, booted: char, command: &str) -> Result<String> {
        let program = format!("/slotd-bootctl {command} \"$@\"");
        succeeded(&program, self.call(booted, &program, Stdio::null())?)
    }

    /// Writes the image that comes in to slot B.
    fn flash_program(&self) -> Result<String> {
        let digest = digest(&self.images[1])?;
        Ok(format!("/slotd flash - --checksum sha256:{digest}"))
    }

    /// Writes the image to slot B.
    fn flash(&self) -> Result<()> {
        let program = self.flash_program()?;
        let input = File::open(&self.images[1]).context("opening an image")?;
        succeeded(&program, self.call('A', &program, input.into())?)?;
        let written = File::open(&self.rig.device[1]).context("opening slot B")?;
        let image = fs::read(&self.images[1]).context("reading an image")?;
        let mut bytes = vec![0; image.len()];
        written
            .read_exact_at(&mut bytes, 0)
            .context("reading slot B")?;
        ensure!(bytes == image, "slot B does not hold the image");
        Ok(())
    }

    /// That the slot tool says this.
    fn shows(&self, booted: char, states: [&str; 2], next: char, trial: bool) -> Result<Value> {
        let text = self.bootctl(booted, "status --output json")?;
        let document: Value = serde_json::from_str(&text).context("reading the status")?;
        ensure!(
            document["booted"] == booted.to_string()
                && document["slots"][0]["state"] == states[0]
                && document["slots"][1]["state"] == states[1]
                && document["loader"]["next"]["slot"] == next.to_string()
                && document["loader"]["next"]["trial"] == trial,
            "with {booted} running the status is not {states:?} with {next} next: {document:#}"
        );
        Ok(document)
    }
}

fn succeeded(program: &str, output: Output) -> Result<String> {
    ensure!(
        output.status.success(),
        "{program} ended with {}:\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).context("reading what was printed")
}

fn digest(path: &Path) -> Result<String> {
    let said = process::output("sha256sum", |command| command.arg(path))?;
    let digest = said.split_whitespace().next().context("a digest")?;
    Ok(digest.to_owned())
}
