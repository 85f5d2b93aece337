//! A disk that the firmware starts by itself, without a loader: the slots' kernels, and the commands that tell the firmware of
//! them. Its options lie in the machine, not on the disk.

use std::fmt::{self, Display, Formatter};

use anyhow::{Result, bail};

use crate::esp::{BootImage, Esp};

/// Number of the ESP among the disk's partitions.
const ESP: u32 = 1;

/// What the firmware has to know to start a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BootOption {
    /// The slot's letter in lower case.
    slot: char,
    /// The kernel's command line.
    arguments: String,
}

impl Display for BootOption {
    /// The command that makes the option the first of `BootOrder`; `$DISK` is the disk in its machine.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { slot, arguments } = self;
        write!(
            f,
            "efibootmgr --quiet --create --disk \"$DISK\" --part {ESP} --label 'slotd {}' \
             --loader '\\EFI\\slotd\\{slot}\\linux.efi' --unicode '{arguments}'",
            slot.to_ascii_uppercase()
        )
    }
}

/// Makes the slots bootable as far as the disk goes: kernels and markers. Returns the options in the order in which they are to
/// be made: the slot that is named first last, so that it comes before the other in `BootOrder`.
pub(crate) fn install(
    esp: &Esp<'_>,
    images: &[BootImage],
    machine_id: &str,
    extra: &str,
) -> Result<Vec<BootOption>> {
    for folder in ["/EFI", "/EFI/slotd"] {
        esp.folder(folder)?;
    }
    let mut options = Vec::new();
    for image in images {
        let folder = format!("/EFI/slotd/{}", image.slot);
        esp.folder(&folder)?;
        esp.write(&format!("{folder}/linux.efi"), &image.kernel)?;
        esp.write(&format!("{folder}/image.json"), image.marker.as_bytes())?;
        options.push(option(image, machine_id, extra)?);
    }
    options.reverse();
    Ok(options)
}

fn option(image: &BootImage, machine_id: &str, extra: &str) -> Result<BootOption> {
    let slot = image.slot;
    let arguments = image.command_line(machine_id, &[], extra);
    if arguments.contains('\'') || arguments.chars().any(char::is_control) {
        bail!(
            "options of slot {slot} with a quote or a control character cannot stand in a command: {arguments:?}"
        );
    }
    Ok(BootOption { slot, arguments })
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::option;
    use crate::esp::BootImage;

    fn image(options: &str) -> BootImage {
        BootImage {
            slot: 'a',
            partition: Uuid::from_u128(0xa),
            sequence: 1,
            pretty_name: "Linux".to_owned(),
            kernel: Vec::new(),
            options: options.to_owned(),
            marker: String::new(),
        }
    }

    #[test]
    fn the_firmware_is_told_of_a_slot_by_efibootmgr() {
        let option = option(&image("console=ttyS0 "), "0123456789abcdef", "quiet").unwrap();
        assert_eq!(
            option.to_string(),
            "efibootmgr --quiet --create --disk \"$DISK\" --part 1 --label 'slotd A' \
             --loader '\\EFI\\slotd\\a\\linux.efi' --unicode 'root=PARTUUID=00000000-0000-0000-0000-00000000000a ro \
             systemd.machine_id=0123456789abcdef panic=10 slotd.slot=a console=ttyS0 quiet'"
        );
    }

    #[test]
    fn options_that_a_shell_would_take_apart_are_refused() {
        for options in ["a'b", "a\nb"] {
            assert!(option(&image(options), "id", "").is_err(), "{options:?}");
        }
    }
}
