//! The slot's device, before anything is changed for it.

use std::fs::{File, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use slotd_bootctl::{DeviceNumber, Partition, System, check_free};
use slotd_engine::{ErrorKind, Failure};
use slotd_image::ImageSource;

/// What is known of the device before anything is changed for it.
pub(super) fn device_trouble(system: &System, partition: &Partition) -> Option<Failure> {
    let node = &partition.node;
    // A partition of its own may have been left read-only by a look into it; a whole disk is so because
    // somebody or its hardware wants it.
    let disk = system.sys(format!("class/block/{}/ro", partition.disk));
    if std::fs::read_to_string(disk).is_ok_and(|text| text.trim() == "1") {
        let reason = format!("disk {} of {} is read-only", partition.disk, node.display());
        return Some(Failure::new(ErrorKind::Unsafe, reason));
    }
    // Busy while the device is mounted or held: now rather than once the loader has forgotten the slot.
    let error = check_free(node).err()?;
    let (kind, what) = match &error {
        slotd_bootctl::Error::InUse { .. } => (
            ErrorKind::Unsafe,
            String::from("mounted or held by another program"),
        ),
        _ => (ErrorKind::Retry, error.to_string()),
    };
    Some(Failure::new(
        kind,
        format!("{} cannot be written: {what}", node.display()),
    ))
}

/// Refuses a slot as the source of its own image: it would be emptied before it is read.
pub(super) fn source_trouble(source: &ImageSource, partition: &Partition) -> Option<Failure> {
    let metadata: Option<Metadata> = match source {
        ImageSource::Http(_) => None,
        // What cannot be looked at is refused when it is opened.
        ImageSource::File(path) => std::fs::metadata(path).ok(),
        ImageSource::Reader { fd, .. } => fd
            .try_clone()
            .ok()
            .and_then(|fd| File::from(fd).metadata().ok()),
    };
    let metadata = metadata?;
    let same = if metadata.file_type().is_block_device() {
        DeviceNumber::from_rdev(metadata.rdev()) == partition.number
    } else {
        // Slots are plain files in tests only.
        std::fs::metadata(&partition.node).is_ok_and(|slot| {
            slot.is_file() && (slot.dev(), slot.ino()) == (metadata.dev(), metadata.ino())
        })
    };
    same.then(|| {
        let node = partition.node.display();
        Failure::new(
            ErrorKind::Unsafe,
            format!("{node} is the slot that is to be written, it cannot be the source too"),
        )
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use slotd_bootctl::fixture::FixtureNode;
    use slotd_bootctl::{SlotName, SlotSettings, SlotTable};
    use slotd_engine::ErrorKind;
    use slotd_image::ImageSource;

    use super::source_trouble;

    #[test]
    fn a_slot_is_no_source_of_its_own_image() {
        let root = tempfile::tempdir().unwrap();
        let node = FixtureNode::create(root.path()).unwrap();
        let table = SlotTable::discover(&node.system(), &SlotSettings::Auto, None).unwrap();
        let slot = table.get(SlotName::B);
        let itself = [
            ImageSource::File(slot.node.clone()),
            ImageSource::Reader {
                label: "standard input".to_owned(),
                fd: File::open(&slot.node).unwrap().into(),
            },
        ];
        for source in &itself {
            let failure = source_trouble(source, slot).unwrap();
            assert_eq!(failure.kind, ErrorKind::Unsafe);
        }
        let other = ImageSource::File(table.get(SlotName::A).node.clone());
        assert!(source_trouble(&other, slot).is_none());
    }
}
