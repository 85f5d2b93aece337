//! Layers and files under the running root whose own mount was left behind with the initrd.

use std::fs;

use slotd_bootctl::{ErrorKind, SlotName};

use super::common::Machine;
use super::{assert_booted, assert_refused};

#[test]
fn what_is_out_of_sight_may_be_a_slot() {
    let overlay = "22 1 0:31 / / rw - overlay overlay rw,lowerdir=/old/lower,upperdir=/old/up\n";
    let live = "21 22 7:0 / /run/lower ro - squashfs /dev/loop0 ro\n\
                22 1 0:31 / / rw - overlay overlay rw,lowerdir=/run/lower\n";
    let cases = [
        ("layers of an overlay", overlay),
        (
            "a loop device's file",
            "22 1 7:0 / / ro - squashfs /dev/loop0 ro\n",
        ),
        ("a loop device's file under an overlay", live),
        (
            "a btrfs without a device node",
            "22 1 0:33 / / rw - btrfs /dev/root rw\n",
        ),
    ];
    for (case, mounts) in cases {
        let machine = Machine::new();
        machine.silence();
        machine.node.add_loop(0, "/live/root.squashfs").unwrap();
        machine.mounts(mounts);
        assert_refused(case, machine.auto(), ErrorKind::Unsafe, &["not found: /"]);
        machine.options("root=PARTLABEL=root-b");
        assert_booted(case, machine.auto(), SlotName::B);
    }
}

#[test]
fn what_hides_the_place_of_a_layer_is_not_taken_for_it() {
    // The layers were mounted below the initrd's /run; the tmpfs that is there now has the same names in it, or not.
    let table = "21 22 0:30 / /run rw - tmpfs tmpfs rw\n\
                 22 1 0:31 / / rw - overlay overlay rw,lowerdir=/run/lower,upperdir=/run/rw/u\n";
    for left in [&[][..], &["run/lower"], &["run/lower", "run/rw/u"]] {
        let machine = Machine::new();
        machine.silence();
        machine.node.set_mounts(table).unwrap();
        for place in left {
            fs::create_dir_all(machine.dir.path().join(place)).unwrap();
        }
        let case = format!("{left:?} left behind");
        assert_refused(
            &case,
            machine.auto(),
            ErrorKind::Unsafe,
            &["not found: /run/lower"],
        );
    }
    // A loop device's file that was named in another place.
    let machine = Machine::new();
    machine.silence();
    machine.node.add_loop(0, "/somewhere/disk.img").unwrap();
    machine.mounts("22 1 254:2 / / rw - ext4 /dev/vda2 rw\n");
    machine.options("root=/dev/loop0");
    assert_booted("another's loop", machine.auto(), SlotName::A);
    let said = machine.auto().unwrap().evidence.0;
    assert_eq!(said.last().unwrap().says, None);
    // The same with a file that was deleted since.
    machine
        .node
        .set_backing_file("loop0", "/disk.img (deleted)")
        .unwrap();
    let said = machine.auto().unwrap().evidence.0;
    assert_eq!(said.last().unwrap().says, None);
}
