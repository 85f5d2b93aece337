//! The entry that starts a slot: what arms a trial. Pure.

use super::changes::{FileChange, Step};
use super::leftovers::discard;
use super::snapshot::{ENTRIES, Snapshot, entry_path, slot_path};
use super::transitions::{Circumstances, INTERRUPTED};
use crate::backend::BootOptions;
use crate::entry::{Counter, EntryName, EntryText};
use crate::error::{Error, Result};
use crate::marker::{BootRecord, Marker};
use crate::options::unreserved;
use crate::slot::SlotName;

/// Why slots that hold `/usr` are not armed: an entry binds the root.
pub(crate) const USR_SLOTS: &str =
    "the slots hold /usr only, and entries of this backend name the root, not /usr";

/// Without the look at what the loader would start then, which preflight takes by itself.
pub(crate) fn arm(
    circumstances: &Circumstances,
    snapshot: &Snapshot,
    slot: SlotName,
    options: &BootOptions,
) -> Result<Vec<Step>> {
    let findings = circumstances.findings(snapshot, slot);
    let Some(marker) = findings.marker else {
        return Err(Error::Rejected {
            reason: format!("slot {slot} holds no verified image"),
        });
    };
    check_boot_files(snapshot, slot, marker.boot.as_ref())?;
    let entries = snapshot.slot_entries(slot);
    let own = entries
        .iter()
        .filter_map(|entry| entry.text.version.as_ref()?.parse::<u64>().ok());
    // The sequence of an entry that is armed again stays if it is still the highest.
    let highest = snapshot.highest_sequence();
    let others = snapshot.slot_entries(!slot);
    let below = others
        .iter()
        .filter_map(|entry| entry.text.version.as_ref()?.parse::<u64>().ok())
        .max()
        .unwrap_or(0);
    let sequence = own
        .max()
        .filter(|own| *own > below)
        .unwrap_or(highest.saturating_add(1));

    let name = EntryName::of_slot(
        slot,
        Some(Counter {
            left: options.tries,
            done: 0,
        }),
    );
    let text = entry_text(circumstances, snapshot, slot, &marker, sequence, options)?.render();
    let armed_already = entries.len() == 1
        && entries
            .iter()
            .all(|entry| entry.name == name && entry.raw == text);
    let mut steps = Vec::new();
    if !armed_already {
        // Out of the way first: two entries of one id would leave open which one counts.
        let paths = entries.iter().map(|entry| entry.path.as_str());
        discard(
            snapshot,
            &mut steps,
            paths,
            "an earlier trial of the same slot",
        );
        let unfinished = findings.leftovers.iter().map(String::as_str);
        let unfinished = unfinished.filter(|path| entries.iter().all(|entry| entry.path != **path));
        discard(snapshot, &mut steps, unfinished, INTERRUPTED);
        if !snapshot.directories.contains(ENTRIES) {
            for path in ["loader".to_owned(), ENTRIES.to_owned()] {
                let change = FileChange::MakeDirectory { path };
                steps.push(Step::new(change, "place of the boot entries"));
            }
        }
        steps.push(Step::new(
            FileChange::Write {
                path: entry_path(&name),
                bytes: text.into_bytes(),
            },
            format!(
                "the next {} boots try slot {slot}: sorts first, counted down",
                options.tries
            ),
        ));
    }
    Ok(steps)
}

fn check_boot_files(snapshot: &Snapshot, slot: SlotName, boot: Option<&BootRecord>) -> Result<()> {
    let mut expected = vec![("linux", boot.map(|boot| boot.kernel.size))];
    if let Some(initrd) = boot.and_then(|boot| boot.initrd) {
        expected.push(("initrd", Some(initrd.size)));
    }
    for (file, size) in expected {
        let path = slot_path(slot, file);
        let found = snapshot.files.get(&path).map(|content| content.size);
        let whole = match (found, size) {
            (Some(found), Some(size)) => found == size,
            (found, None) => found.is_some_and(|size| size > 0),
            (None, Some(_)) => false,
        };
        if !whole {
            return Err(Error::Refused {
                reason: format!("boot file {path} of slot {slot} is not what was installed"),
            });
        }
    }
    Ok(())
}

fn entry_text(
    circumstances: &Circumstances,
    snapshot: &Snapshot,
    slot: SlotName,
    marker: &Marker,
    sequence: u64,
    options: &BootOptions,
) -> Result<EntryText> {
    if circumstances.usr_slots {
        return Err(Error::Slots {
            problem: USR_SLOTS.to_owned(),
        });
    }
    let Some(partition) = circumstances.partition(slot) else {
        return Err(Error::Slots {
            problem: format!("slot {slot} has no partition UUID that an entry could name as root"),
        });
    };
    let boot = marker.boot.clone().unwrap_or_default();
    let title = boot.title.unwrap_or_else(|| match &marker.image.version {
        Some(version) => format!("Linux {version}"),
        None => "Linux".to_owned(),
    });
    let initrd = slot_path(slot, "initrd");
    // A unified image has its initrd in it.
    let initrds = if snapshot.files.contains_key(&initrd) && !boot.unified {
        vec![format!("/{initrd}")]
    } else {
        Vec::new()
    };
    let mut words = vec![
        format!("root=PARTUUID={partition}"),
        "ro".to_owned(),
        format!("systemd.machine_id={}", options.machine_id),
        format!("panic={}", options.panic_seconds),
        format!("slotd.slot={}", slot.lower()),
        format!("slotd.trial_deadline={}", options.trial_deadline_seconds),
        // Tells a spent entry, which the loader starts as its last resort, from a trial.
        format!("slotd.tries={}", options.tries),
    ];
    words.extend(unreserved(boot.cmdline.as_deref().unwrap_or_default()));
    words.extend(unreserved(&options.extra));
    Ok(EntryText {
        title: Some(format!("{title} (slot {slot})")),
        sort_key: Some("slotd".to_owned()),
        machine_id: Some(options.machine_id.clone()),
        version: Some(sequence.to_string()),
        kernel: Some(format!("/{}", slot_path(slot, "linux"))),
        efi: boot.unified,
        initrds,
        options: words.join(" "),
        architecture: None,
    })
}
