use std::process::Command;
use std::thread;
use std::time::Duration;

use super::*;
use crate::fixture::FixtureNode;
use crate::slot::SlotSettings;

#[test]
fn the_lock_is_the_one_of_fw_setenv() {
    // On this machine itself, where the tool takes it, too.
    let dir = tempfile::tempdir().unwrap();
    let node = FixtureNode::create(dir.path()).unwrap();
    let table = SlotTable::discover(&node.system(), &SlotSettings::Auto, None).unwrap();
    let config = Path::new("/etc/fw_env.config");
    let store =
        |system: &System| UbootStore::new(system, config, &table, &UbootConvention::Slotd).unwrap();
    let file = dir.path().join("uboot.env");
    let mut data = b"a=1\0\0".to_vec();
    data.resize(1020, 0);
    let crc = crc32fast::hash(&data).to_le_bytes();
    fs::write(&file, [crc.as_slice(), &data].concat()).unwrap();
    let lines = dir.path().join("fw_env.config");
    fs::write(&lines, format!("{} 0 400\n", file.display())).unwrap();
    let lock = store(&System::host()).lock().unwrap();
    let mut tool = Command::new("fw_setenv")
        .args(["-c", lines.to_str().unwrap(), "a", "2"])
        .spawn()
        .unwrap();
    // It would be done by far.
    thread::sleep(Duration::from_millis(300));
    assert!(tool.try_wait().unwrap().is_none(), "it did not wait");
    drop(lock);
    assert!(tool.wait().unwrap().success());
    // And a node that has no such folder yet gets one.
    let _lock = store(&node.system()).lock().unwrap();
    assert!(node.system().path(LOCK).exists());
}

#[test]
fn a_slot_variable_that_cannot_tell_slots_is_refused() {
    for (variable, a, b) in [
        ("", "2", "3"),
        ("x", "2", "2"),
        ("x", "", "3"),
        ("a=b", "2", "3"),
    ] {
        let convention = UbootConvention::BootCount {
            variable: variable.to_owned(),
            a: a.to_owned(),
            b: b.to_owned(),
        };
        assert!(convention.convention().is_err(), "{convention:?}");
    }
}
