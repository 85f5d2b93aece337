use slotd_engine::{Digest, Image, ImageRequest, Kind, Point, Record, Slot, Upgrade};

use super::text;
use crate::status::{
    Condition, FailureStatus, HistoryEntry, LoaderStatus, SlotLetter, SlotStatus, StatusDocument,
    UpgradeStatus,
};

fn slot(slot: SlotLetter, version: Option<&str>, state: &str, booted: bool) -> SlotStatus {
    let partition = match slot {
        SlotLetter::A => ("/dev/nvme0n1p2", "root-a"),
        SlotLetter::B => ("/dev/nvme0n1p3", "root-b"),
    };
    SlotStatus {
        slot,
        device: partition.0.into(),
        label: partition.1.to_owned(),
        size: 1 << 29,
        version: version.map(str::to_owned),
        state: state.to_owned(),
        tries_left: None,
        tries_done: None,
        booted,
        digest: None,
    }
}

/// A node that runs from A, which is what boots next, with a slot B.
fn node(b: SlotStatus, upgrade: UpgradeStatus) -> StatusDocument {
    StatusDocument {
        version: 1,
        daemon: "0.1.0".to_owned(),
        booted: Some(SlotLetter::A),
        slots: vec![slot(SlotLetter::A, Some("1.0"), "good", !b.booted), b],
        loader: Some(LoaderStatus {
            backend: "systemd-boot".to_owned(),
            next_slot: Some(SlotLetter::A),
            next_boot: "slot A".to_owned(),
            trial_boot: false,
            counting: "active".to_owned(),
            problems: Vec::new(),
        }),
        upgrade,
        last_result: None,
        conditions: Vec::new(),
    }
}

/// An install of 2.0 in slot B that stands at this point, as the agent shows it.
fn install(at: Point, message: &str) -> UpgradeStatus {
    let request = ImageRequest {
        source: "https://updates.example.com/v2.0.ext4.zst".to_owned(),
        locator: None,
        checksum: None,
        expanded_checksum: None,
        size: Some(1 << 28),
        version: None,
        stage_only: true,
        allow_downgrade: false,
        allow_same_version: false,
        allow_no_agent: false,
        asked_anew: true,
        task: None,
    };
    let image = Image {
        digest: Digest::new(&"ab".repeat(32)).unwrap(),
        published: None,
        size: 1 << 28,
        version: Some("2.0".to_owned()),
    };
    let upgrade = Upgrade {
        id: 1,
        kind: Kind::Install,
        target: Slot::B,
        request: Some(request),
        image: Some(image),
        left: None,
        back_to: None,
        drain: None,
        attempt: 1,
        tries: 0,
        restarts: 0,
        trials: 0,
        granted: 0,
        boot_id: None,
        failure: None,
        ending: None,
        started_at: 1_796_000_000,
        ended_at: None,
    };
    let record = Record {
        last_id: 1,
        at,
        upgrade: Some(upgrade),
        ..Record::default()
    };
    UpgradeStatus {
        message: Some(message.to_owned()),
        ..UpgradeStatus::of(&record, None)
    }
}

#[test]
fn a_fresh_node_has_an_empty_slot_and_no_upgrade() {
    let idle = UpgradeStatus::of(&Record::default(), None);
    let fresh = node(slot(SlotLetter::B, None, "empty", false), idle);
    insta::assert_snapshot!(text(&fresh), @r"
    SLOT  STATE  BOOTED  VERSION  DEVICE          LABEL   SIZE
    A     good   yes     1.0      /dev/nvme0n1p2  root-a  512.00 MiB
    B     empty  no      -        /dev/nvme0n1p3  root-b  512.00 MiB

    Boot loader  systemd-boot, next boot: slot A
    Upgrade      none
    ");
}

#[test]
fn a_staged_node_tells_what_waits_and_for_what() {
    let staged = node(
        slot(SlotLetter::B, Some("2.0"), "empty", false),
        install(Point::Staged, "waits for slotd activate"),
    );
    insta::assert_snapshot!(text(&staged), @r"
    SLOT  STATE  BOOTED  VERSION  DEVICE          LABEL   SIZE
    A     good   yes     1.0      /dev/nvme0n1p2  root-a  512.00 MiB
    B     empty  no      2.0      /dev/nvme0n1p3  root-b  512.00 MiB

    Boot loader  systemd-boot, next boot: slot A
    Upgrade      1: Staged 2.0 in slot B, read back and verified; waits for slotd activate
    ");
}

#[test]
fn a_trial_boot_tells_its_tries_and_what_is_proven_now() {
    let mut trial = node(
        slot(SlotLetter::B, Some("2.0"), "trial", true),
        install(Point::Check, "health checks run"),
    );
    trial.booted = Some(SlotLetter::B);
    for slot in trial.slots.iter_mut().filter(|slot| slot.booted) {
        (slot.tries_left, slot.tries_done) = (Some(2), Some(1));
    }
    if let Some(loader) = &mut trial.loader {
        loader.next_slot = Some(SlotLetter::B);
        loader.next_boot = "slot B, on trial".to_owned();
        loader.trial_boot = true;
    }
    insta::assert_snapshot!(text(&trial), @r"
    SLOT  STATE           BOOTED  VERSION  DEVICE          LABEL   SIZE
    A     good            no      1.0      /dev/nvme0n1p2  root-a  512.00 MiB
    B     trial (2 left)  yes     2.0      /dev/nvme0n1p3  root-b  512.00 MiB

    Boot loader  systemd-boot, next boot: slot B, on trial; this boot is a trial
    Upgrade      1: Checking the health of slot B; health checks run
    ");
}

#[test]
fn a_node_after_a_rollback_tells_the_check_and_its_output() {
    let rolled_back = UpgradeStatus {
        phase: "RolledBack".to_owned(),
        step: "rest".to_owned(),
        id: Some(2),
        target_slot: Some(SlotLetter::B),
        ..UpgradeStatus::default()
    };
    let mut document = node(slot(SlotLetter::B, Some("2.0"), "bad", false), rolled_back);
    document.last_result = Some(HistoryEntry {
        id: 2,
        kind: "install".to_owned(),
        result: "RolledBack".to_owned(),
        slot: SlotLetter::B,
        version: Some("2.0".to_owned()),
        digest: None,
        source: None,
        failure: Some(FailureStatus {
            kind: "Reject".to_owned(),
            reason: "a required check failed".to_owned(),
            code: None,
            check: Some("required.d/10-api".to_owned()),
            output: Some("no API\nexit status 1".to_owned()),
        }),
        started_at: jiff::Timestamp::UNIX_EPOCH,
        completed_at: jiff::Timestamp::UNIX_EPOCH,
    });
    document.conditions = vec![Condition::new("LoaderProblem", "something odd")];
    insta::assert_snapshot!(text(&document), @r"
    ! LoaderProblem: something odd

    SLOT  STATE  BOOTED  VERSION  DEVICE          LABEL   SIZE
    A     good   yes     1.0      /dev/nvme0n1p2  root-a  512.00 MiB
    B     bad    no      2.0      /dev/nvme0n1p3  root-b  512.00 MiB

    Boot loader  systemd-boot, next boot: slot A
    Upgrade      2: Rolled back from slot B
    Last result  2: install of 2.0 in slot B: RolledBack, 1970-01-01T00:00:00Z
                 a required check failed
                 check: required.d/10-api
                 | no API
                 | exit status 1
    ");
}
