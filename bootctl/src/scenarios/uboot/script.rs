//! The script itself, as it is shipped, run by bash with U-Boot's commands as functions. Its environment is U-Boot's own
//! place, so that `saveenv` is all that writes.

use std::process::Command;

use crate::facts::FIXED_KERNELS;

const SCRIPT: &str = include_str!("../../../../systemd/usr/lib/slotd/uboot/boot.cmd");

/// U-Boot's commands, as far as the script needs them there. `KERNELS` are the labels of the slots that have a kernel; a kernel
/// that is started says so and ends.
const COMMANDS: &str = r#"
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
load() { [[ $4 == /boot/vmlinuz ]] && has_kernel "$2"; }
test() {
  if [[ $1 == -e ]]; then [[ $4 == /boot/vmlinuz ]] && has_kernel "$3"
  elif [[ ${2-} == -gt ]]; then (( $1 > $3 ))
  else builtin test "$@"
  fi
}
booti() { echo "started $bootargs"; exit; }
sleep() { exit; }
devtype=mmc devnum=0 distro_bootpart=1 ramdisk_addr_r=0x1000000 kernel_addr_r=0x2000000
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
