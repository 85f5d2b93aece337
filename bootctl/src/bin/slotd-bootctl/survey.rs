//! What `--verbose` prints: every candidate with the reason why it was taken or not, and the mounts that count.

use std::fmt::{self, Write};

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use slotd_bootctl::{Candidate, Survey, SurveyedDisk, SurveyedMount};

/// Lines for people.
pub(crate) fn lines(survey: &Survey) -> String {
    let mut text = String::new();
    for disk in &survey.disks {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "Disk {}", described(disk));
        if !disk.candidates.is_empty() {
            let _ = writeln!(text, "{}", candidates(disk));
        }
    }
    if survey.disks.is_empty() {
        text.push_str("No disk has partitions.\n");
    }
    text.push_str("Mounts:\n");
    for mount in &survey.mounts {
        let _ = writeln!(text, "  {}", Mount(mount));
    }
    for place in &survey.unresolved {
        let _ = writeln!(
            text,
            "Out of sight: {place}, under the running root: its device is not known"
        );
    }
    text
}

fn described(disk: &SurveyedDisk) -> String {
    let table = match (&disk.table, &disk.error) {
        (Some(table), _) => format!("partition table {table}"),
        (None, Some(error)) => format!("partition table not readable: {error}"),
        (None, None) => "no partition table".to_owned(),
    };
    let root = if disk.running_root {
        ", the running root stands on it"
    } else {
        ""
    };
    format!(
        "{}: {table}, blocks of {} bytes{root}",
        disk.name, disk.logical_block
    )
}

fn candidates(disk: &SurveyedDisk) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING);
    for candidate in &disk.candidates {
        table.add_row(row(candidate));
    }
    table
}

fn row(candidate: &Candidate) -> [String; 6] {
    [
        candidate
            .slot
            .map_or("-".to_owned(), |slot| slot.to_string()),
        candidate.name.clone(),
        format!("{:?}", candidate.label),
        candidate
            .part_uuid
            .map_or("-".to_owned(), |id| id.to_string()),
        format!("{} bytes", candidate.size),
        candidate.reason.clone(),
    ]
}

struct Mount<'a>(&'a SurveyedMount);

impl fmt::Display for Mount<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(mount) = self;
        write!(
            f,
            "{} is {} on {}",
            mount.point.display(),
            mount.kind,
            mount.source
        )?;
        match &mount.device {
            Some(device) if !mount.source.ends_with(device.as_str()) => write!(f, " ({device})")?,
            _ => {}
        }
        f.write_str(if mount.read_only {
            ", read-only"
        } else {
            ", writable"
        })
    }
}
