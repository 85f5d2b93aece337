//! The script itself, as it is shipped, run by bash with U-Boot's commands as functions. Its environment is U-Boot's own
//! place, so that `saveenv` is all that writes.

use std::process::Command;

use crate::facts::FIXED_KERNELS;

const SCRIPT: &str = include_str!("../../../../systemd/usr/lib/slotd/uboot/boot.cmd");

/// U-Boot's commands, as far as the script needs them there. `KERNELS` are the labels of the slots that have a kernel, `FILES`
/// what else both have, as ` name=size in hexadecimal `; what is loaded is told, and a kernel that is started says so and ends.
const COMMANDS: &str = r#"
set -f
setenv() { local name=$1; shift; printf -v "$name" %s "$*"; }
setexpr() { printf -v "$1" %x $(( $2 $3 $4 )); }
saveenv() { echo "saved a=$slotd_a_tries b=$slotd_b_tries"; }
part() {
  case "$1 $4" in
    "number root-a") setenv "$5" 2;;
    "number root-b") setenv "$5" 3;;
    "uuid slotd_uuid") setenv "$4" "uuid-$3";;
  esac
}
has_kernel() {
  case "$1" in *:2) [[ " $KERNELS " == *" root-a "* ]];; *:3) [[ " $KERNELS " == *" root-b "* ]];; *) false;; esac
}
load() {
  [[ $# == 4 ]] || { echo "load: $#"; return 1; }
  test -e "$1" "$2" "$4" || return
  if [[ $FILES =~ " $4="([0-9a-f]+) ]]; then filesize=${BASH_REMATCH[1]}; else filesize=1400000; fi
  echo "load $4 at $3"
}
test() {
  if [[ $1 == -e && $4 == /boot/vmlinuz ]]; then has_kernel "$3"
  elif [[ $1 == -e ]]; then [[ "$FILES" == *" $4="* ]]
  elif [[ ${2-} == -gt ]]; then (( $1 > $3 ))
  else builtin test "$@"
  fi
}
booti() { echo "booti $*"; echo "started $bootargs"; exit; }
sleep() { exit; }
devtype=mmc devnum=0 distro_bootpart=1 ramdisk_addr_r=0x4000000 kernel_addr_r=0x2000000 fdtcontroladdr=0x5edb6db0
"#;

/// What the script says where `variables` are set and these labels have a kernel.
fn said(variables: &str, kernels: &str) -> String {
    let own = "setenv slotd_store own\n\n# ---- Memory";
    let script = SCRIPT.replace("# ---- Memory", own);
    assert!(script.contains(own));
    let text = format!("KERNELS={kernels:?}\n{COMMANDS}\n{variables}\n{script}");
    let output = Command::new("bash").arg("-c").arg(text).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(errors, "");
    String::from_utf8(output.stdout).unwrap()
}

fn started(said: &str) -> Option<&str> {
    let (_, arguments) = said.split_once("started ")?;
    arguments
        .split_whitespace()
        .find_map(|word| word.strip_prefix("slotd.slot="))
}

#[test]
fn the_kernel_is_looked_for_where_images_are_checked_for_it() {
    let places = format!("for slotd_k in {}; do", FIXED_KERNELS.join(" "));
    assert!(SCRIPT.contains(&places), "{places}");
}

#[test]
fn where_the_environment_says_nothing_the_slot_that_has_a_kernel_is_started() {
    for (kernels, slot) in [
        ("root-a root-b", Some("a")),
        ("root-a", Some("a")),
        ("root-b", Some("b")),
        ("", None),
    ] {
        let said = said("", kernels);
        assert!(said.contains("says nothing of the slots"), "{said}");
        assert_eq!(started(&said), slot, "{said}");
        assert!(!said.contains("saved"), "{said}");
        assert!(!said.contains("slotd.trial"), "{said}");
    }
    // What it does say is kept to.
    let said = said("slotd_a_ok=1", "root-b");
    assert_eq!(started(&said), None, "{said}");
}

#[test]
fn a_trial_is_counted_before_it_is_started_and_a_proven_slot_is_not() {
    let trial = "slotd_order='B A' slotd_a_ok=1 slotd_b_ok=0 slotd_tries=3";
    let first = said(&format!("{trial} slotd_b_tries=3"), "root-a root-b");
    assert_eq!(started(&first), Some("b"), "{first}");
    let (before, after) = first.split_once("started").unwrap();
    assert!(before.contains("saved a= b=2"), "{first}");
    assert!(after.contains(" slotd.trial slotd.tries=3 "), "{first}");
    let spent = said(&format!("{trial} slotd_b_tries=0"), "root-a root-b");
    assert_eq!(started(&spent), Some("a"), "{spent}");
    assert!(!spent.contains("saved"), "{spent}");
}

#[test]
fn a_slots_own_device_tree_has_a_place_on_a_board_that_has_none_for_it() {
    const INITRD: &str = " /boot/initrd.img=1234567 ";
    const TREE: &str = " /boot/dtb=33cb ";
    const TREES: &str = " /boot/dtbs/vendor/board.dtb=33cb /boot/dtb=1 ";
    let place = "fdt_addr_r=0x1f00000";
    let named = "fdtfile=vendor/board.dtb";
    let with = |parts: &[&str]| parts.concat();
    for (variables, files, started) in [
        // U-Boot's own tree, with and without an initrd.
        (place.to_owned(), String::new(), "- 0x5edb6db0"),
        (
            place.to_owned(),
            with(&[INITRD]),
            "0x4000000:1234567 0x5edb6db0",
        ),
        // The slot's, at the board's place for it.
        (place.to_owned(), with(&[TREE]), "- 0x1f00000"),
        (
            place.to_owned(),
            with(&[INITRD, TREE]),
            "0x4000000:1234567 0x1f00000",
        ),
        (format!("{place} {named}"), with(&[TREES]), "- 0x1f00000"),
        // 0x4000000 + 0x1234567 = 0x5234567, which ends in the 64 KiB before 0x5240000.
        (String::new(), with(&[TREE]), "- 0x4010000"),
        (
            named.to_owned(),
            with(&[INITRD, TREES]),
            "0x4000000:1234567 0x5240000",
        ),
    ] {
        let variables = format!("slotd_a_ok=1 {variables} FILES='{files}'");
        let said = said(&variables, "root-a");
        let expected = format!("booti 0x2000000 {started}\n");
        assert!(said.contains(&expected), "{variables}: {said}");
        let tree = started.split(' ').next_back().unwrap();
        assert_eq!(
            said.contains(&format!(" at {tree}\n")),
            files.contains("dtb"),
            "{variables}: {said}"
        );
        assert_eq!(
            said.contains("load /boot/dtbs/vendor/board.dtb "),
            variables.contains("fdtfile"),
            "{variables}: {said}"
        );
    }
}
