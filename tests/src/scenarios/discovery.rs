//! Which slots the released tool finds, and which one runs, on real disks, file systems and mounts: it runs with a slot of a
//! loop disk as its root, in a mount namespace and a chroot. The whole matrix is in the crate's own tests, on trees that look
//! like machines; here the kernel itself says what there is, and `partx` what partitions are called.

mod guest;
pub(super) mod look;
pub(super) mod rig;

use anyhow::{Context, Result, ensure};

use self::look::{Found, Look};
use self::rig::{FILE_SYSTEM_LABEL, FILE_SYSTEM_UUID, Kind, LABELS, Rig};
use super::on_loop_disk;
use crate::lab::Lab;
use crate::loopdisk::Sector;
use crate::runner::Test;

pub(super) fn tests() -> Vec<Test> {
    let mut tests = vec![
        on_loop_disk("loop/discovery-on-a-guid-table", guid_table),
        on_loop_disk("loop/discovery-on-a-dos-table", dos_table),
        on_loop_disk("loop/discovery-with-labels-that-differ-in-case", case_twins),
        Test {
            unavailable: without_btrfs,
            ..on_loop_disk("loop/discovery-of-twins-on-btrfs", btrfs)
        },
    ];
    tests.extend(guest::tests());
    tests
}

fn without_btrfs() -> Option<&'static str> {
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let loadable = crate::process::run("modprobe", |command| command.arg("btrfs")).is_ok();
    crate::loopdisk::unavailable()
        .or_else(|| (!loadable && !known.contains("btrfs")).then_some("this kernel has no btrfs"))
}

fn matrix(lab: &Lab, kind: Kind, sector: Sector) -> Result<()> {
    let rig = Rig::with_ext4(lab, kind, sector)?;
    let of = |case: &str| format!("{case}, {kind:?}, sectors of {} bytes", sector.bytes());
    plain(&rig).with_context(|| of("a slot as root"))?;
    layered(&rig).with_context(|| of("layers over the slot"))?;
    disagreeing(&rig).with_context(|| of("evidence that disagrees"))?;
    neither(&rig).with_context(|| of("neither slot as root"))?;
    twins(&rig).with_context(|| of("two disks that are one another's copy"))
}

/// Labels are compared as they are written: what differs in case is another one, and is named where it is all that there is.
fn case_twins(lab: &Lab) -> Result<()> {
    let rig = Rig::with_ext4(lab, Kind::CaseTwins, Sector::B512)?;
    plain(&rig)?;
    let slots = ["PARTLABEL=ROOT-a", "PARTLABEL=root-b"].map(str::to_owned);
    let look = Look::new(mount(&rig.device[0])).slots(&Some(slots));
    rig.refuses(&look, 3, &["PARTLABEL=ROOT-a", "differs in case"])
}

fn guid_table(lab: &Lab) -> Result<()> {
    matrix(lab, Kind::Gpt, Sector::B512)?;
    matrix(lab, Kind::Gpt, Sector::B4096)
}

/// With sectors of 4096 bytes partx can add no extended partition: it wants one of 1024 bytes.
fn dos_table(lab: &Lab) -> Result<()> {
    matrix(lab, Kind::Dos, Sector::B512)?;
    matrix(lab, Kind::Logical, Sector::B512)?;
    matrix(lab, Kind::Dos, Sector::B4096)
}

/// Mounts a slot as the root.
fn mount(device: &str) -> String {
    format!("mount -o ro {device} \"$ROOT\"")
}

/// The forms in which the command line can name a slot's partition, by the kernel's and `partx`'s words.
fn roots(rig: &Rig, slot: usize) -> Vec<String> {
    let mut roots = vec![
        format!("PARTUUID={}", rig.part_uuid[slot]),
        rig.device[slot].clone(),
        rig.number[slot].clone(),
    ];
    if matches!(rig.kind, Kind::Gpt | Kind::CaseTwins) {
        roots.push(format!("PARTLABEL={}", LABELS[slot]));
    }
    roots
}

fn plain(rig: &Rig) -> Result<()> {
    for (slot, name) in [(0, "A"), (1, "B")] {
        for slots in rig.settings() {
            let look = Look::new(mount(&rig.device[slot])).slots(&slots);
            rig.finds(&look, name)?;
            for root in roots(rig, slot) {
                let look = look.clone().options(format!("ro root={root}"));
                let found = rig.finds(&look, name)?;
                ensure!(found.says("command line root=", name), "{found:?}");
            }
            for root in roots(rig, 1 - slot) {
                let look = look.clone().options(format!("ro root={root}"));
                rig.refuses(&look, 5, &["command line root=", "mountinfo", &root])?;
            }
            // Both slots hold the same bytes.
            for root in [
                format!("UUID={FILE_SYSTEM_UUID}"),
                format!("LABEL={FILE_SYSTEM_LABEL}"),
            ] {
                let found = rig.finds(&look.clone().options(format!("root={root}")), name)?;
                ensure!(!found.speaks("command line root="), "{found:?}");
            }
        }
        links(rig, slot, name)?;
        let twice = [
            rig.device[slot].clone(),
            format!("PARTUUID={}", rig.part_uuid[slot]),
        ];
        let look = Look::new(mount(&rig.device[slot])).slots(&Some(twice));
        rig.refuses(&look, 3, &["both slots are the same device"])?;
    }
    Ok(())
}

/// Slots that are named by links of the machine's own.
fn links(rig: &Rig, slot: usize, name: &str) -> Result<()> {
    let [a, b] = &rig.device;
    let mount = format!(
        "{}; mount -t tmpfs tmpfs $ROOT/run; ln -s {a} $ROOT/run/slot-a; ln -s slot-c $ROOT/run/slot-b; \
         ln -s ..{b} $ROOT/run/slot-c; ln -s /dev/nothing $ROOT/run/broken",
        mount(&rig.device[slot])
    );
    let linked = |b: &str| {
        let slots = ["slot-a", b].map(|link| format!("/run/{link}"));
        Look::new(&mount).slots(&Some(slots))
    };
    rig.finds(&linked("slot-b"), name)?;
    rig.refuses(&linked("slot-a"), 3, &["both slots are the same device"])?;
    rig.refuses(
        &linked("broken"),
        3,
        &["/run/broken", "no block device is there"],
    )
}

fn layered(rig: &Rig) -> Result<()> {
    let slots = &rig.settings()[0];
    for (slot, name) in [(0, "A"), (1, "B")] {
        let device = &rig.device[slot];
        let overlay = format!(
            "mkdir -p $WORK/lower $WORK/rw; mount -o ro {device} $WORK/lower; mount -t tmpfs tmpfs $WORK/rw; \
             mkdir $WORK/rw/u $WORK/rw/w; \
             mount -t overlay -o lowerdir=$WORK/lower,upperdir=$WORK/rw/u,workdir=$WORK/rw/w overlay $ROOT"
        );
        let shown = |place: &str| {
            format!(
                "; mkdir -p $ROOT/$WORK/{place}; mount --rbind $WORK/{place} $ROOT/$WORK/{place}"
            )
        };
        let visible = format!("{overlay}{}{}", shown("lower"), shown("rw"));
        rig.finds(&Look::new(visible).slots(slots), name)?;
        // As it is after an initrd that moved nothing along: the layers are out of sight.
        let hidden = Look::new(overlay).slots(slots);
        rig.refuses(&hidden, 5, &["not found: ", "/lower"])?;
        let named = hidden.options(format!("root=PARTUUID={}", rig.part_uuid[slot]));
        rig.finds(&named, name)?;

        let looped = format!(
            "over=$(losetup --find --show --read-only {device}); trap 'losetup -d $over' EXIT; \
             mount -o ro $over $ROOT"
        );
        rig.finds(&Look::new(looped).slots(slots), name)?;

        let file = format!(
            "mkdir -p $WORK/slot; mount -o ro {device} $WORK/slot; \
             over=$(losetup --find --show --read-only $WORK/slot/inner.img); \
             trap 'losetup -d $over' EXIT; mount -o ro $over $ROOT"
        );
        let visible = format!(
            "{file}; mount -t tmpfs tmpfs $ROOT/run; mkdir $ROOT/run/slot; mount --bind $WORK/slot $ROOT/run/slot"
        );
        // The loop device's file has the name that it was made by, which is another one in there.
        rig.refuses(&Look::new(visible).slots(slots), 5, &["not found: "])?;
        let named = Look::new(file)
            .slots(slots)
            .options(format!("root=PARTUUID={}", rig.part_uuid[slot]));
        rig.finds(&named, name)?;
    }
    Ok(())
}

fn disagreeing(rig: &Rig) -> Result<()> {
    let slots = &rig.settings()[0];
    let name = |slot: usize| ["a", "b"][slot];
    for device in [0, 1] {
        for loader in [0, 1] {
            for line in [0, 1] {
                let look = Look::new(mount(&rig.device[device]))
                    .slots(slots)
                    .selected(format!("slotd-{}.conf", name(loader)))
                    .options(format!("root=PARTUUID={}", rig.part_uuid[line]));
                if device == loader && loader == line {
                    rig.finds(&look, ["A", "B"][device])?;
                    continue;
                }
                let said =
                    |source: &str, slot: usize| format!("{source} says slot {} ", ["A", "B"][slot]);
                let all = [
                    said("(/proc/self/mountinfo)", device),
                    said("LoaderEntrySelected", loader),
                    said("command line root=", line),
                ];
                rig.refuses(&look, 5, &[&all[0], &all[1], &all[2]])?;
            }
        }
    }
    Ok(())
}

/// A live system that runs from memory.
const IN_MEMORY: &str = "mount -t tmpfs tmpfs $ROOT; cp -a $TREE/. $ROOT";

fn neither(rig: &Rig) -> Result<()> {
    let slots = Some(rig.device.clone());
    let found = rig.look(&Look::new(IN_MEMORY).slots(&slots))?;
    ensure!(
        found.booted.is_none() && found.slots == rig.names(),
        "{found:?}"
    );
    let claimed = Look::new(IN_MEMORY).slots(&slots).selected("slotd-b.conf");
    rig.finds(&claimed, "B")
        .context("nothing but the loader speaks")?;
    Ok(())
}

fn twins(rig: &Rig) -> Result<()> {
    let twin = rig.twin()?;
    for (slot, name) in [(0, "A"), (1, "B")] {
        for one in [rig, &twin] {
            for slots in one.settings_by_name() {
                let look = Look::new(mount(&one.device[slot])).slots(&slots);
                one.finds(&look, name)?;
                let root = format!("root=PARTUUID={}", one.part_uuid[slot]);
                one.finds(&look.options(root), name)?;
            }
        }
    }
    for slots in rig.settings_by_name().into_iter().flatten() {
        let [a, b] = [rig.names(), twin.names()].map(|names| names[0].clone());
        let look = Look::new(IN_MEMORY).slots(&Some(slots));
        rig.refuses(&look, 3, &[&a, &b])?;
    }
    Ok(())
}

/// Both slots hold the same btrfs: of two devices with one file system id the kernel could take one for the other.
fn btrfs(lab: &Lab) -> Result<()> {
    let rig = Rig::with_btrfs(lab)?;
    for (slot, name) in [(0, "A"), (1, "B"), (0, "A")] {
        let found: Found = rig.finds(&Look::new(mount(&rig.device[slot])), name)?;
        ensure!(found.slots == rig.names(), "{found:?}");
        let subvolume = format!("mount -o ro,subvol=/ {} $ROOT", rig.device[slot]);
        rig.finds(&Look::new(subvolume), name)?;
        let wrong = format!("root={}", rig.device[1 - slot]);
        let look = Look::new(mount(&rig.device[slot])).options(wrong);
        rig.refuses(&look, 5, &["command line root=", "mountinfo"])?;
    }
    Ok(())
}
