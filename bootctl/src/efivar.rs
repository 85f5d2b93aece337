//! Reads the variables that systemd-boot leaves for the running system. Never writes any.

use std::fs;
use std::io::ErrorKind as IoKind;
use std::path::Path;

use uuid::Uuid;

use crate::error::{Error, Result};
use crate::mounts::Mounts;
use crate::system::System;

/// Vendor GUID of the Boot Loader Interface.
const LOADER_VENDOR: &str = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";

/// `EFI_LOADER_FEATURE_BOOT_COUNTING` in LoaderFeatures.
const FEATURE_BOOT_COUNTING: u64 = 1 << 4;

/// Whether the firmware's variables can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum VariableStore {
    /// They can. Read-only is enough: none is written here.
    Mounted {
        /// Whether the mount table has them read-only.
        read_only: bool,
    },
    /// The firmware has them, but their file system is not mounted.
    NotMounted,
    /// Not started by EFI firmware.
    #[default]
    NoFirmware,
}

impl VariableStore {
    fn find(system: &System) -> Self {
        let place = system.efivars();
        if !place.parent().is_some_and(Path::is_dir) {
            return Self::NoFirmware;
        }
        // The kernel makes the directory; what is not mounted shows no variable.
        if fs::read_dir(&place).map_or(true, |mut files| files.next().is_none()) {
            return Self::NotMounted;
        }
        let mounts = Mounts::read(system).unwrap_or_default();
        let mount = mounts.at(Path::new("/sys/firmware/efi/efivars"));
        let read_only = mount.is_some_and(|mount| mount.read_only);
        Self::Mounted { read_only }
    }
}

/// The variables of the Boot Loader Interface that matter here, each `None` where it is not set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct LoaderVariables {
    /// Name and version of the loader that started this system.
    pub(crate) info: Option<String>,
    /// Id of the entry that was started.
    pub(crate) selected: Option<String>,
    /// Path of the entry whose counter was taken down for this boot. It outlives a confirmation.
    pub(crate) boot_count_path: Option<String>,
    /// Pattern of the default entry, set in the loader's menu or by `bootctl set-default`.
    pub(crate) default: Option<String>,
    /// The same in newer versions, where it outranks the sort order too.
    pub(crate) preferred: Option<String>,
    /// Entry for the next boot only; the loader deletes it when it reads it.
    pub(crate) one_shot: Option<String>,
    /// Entry that `@saved` stands for.
    pub(crate) last_booted: Option<String>,
    /// Partition that the loader was started from.
    pub(crate) device: Option<Uuid>,
    /// Whether the loader says that it counts boots; `None` where it says nothing.
    pub(crate) counts: Option<bool>,
    /// Whether they could be read at all.
    pub(crate) store: VariableStore,
}

impl LoaderVariables {
    /// Reads them all.
    pub(crate) fn read(system: &System) -> Result<Self> {
        Ok(Self {
            info: string(system, "LoaderInfo")?,
            selected: string(system, "LoaderEntrySelected")?,
            boot_count_path: string(system, "LoaderBootCountPath")?,
            default: string(system, "LoaderEntryDefault")?,
            preferred: string(system, "LoaderEntryPreferred")?,
            one_shot: string(system, "LoaderEntryOneShot")?,
            last_booted: string(system, "LoaderEntryLastBooted")?,
            device: string(system, "LoaderDevicePartUUID")?.and_then(|text| text.parse().ok()),
            counts: features(system)?.map(|bits| bits & FEATURE_BOOT_COUNTING != 0),
            store: VariableStore::find(system),
        })
    }

    /// systemd-boot's release, if it says one: `systemd-boot 252.39-1~deb12u1`.
    pub(crate) fn loader_version(&self) -> Option<u32> {
        let version = self.info.as_deref()?.strip_prefix("systemd-boot ")?;
        let digits = version.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok()
    }

    /// File name of the entry that this boot took a try from.
    pub(crate) fn boot_count_name(&self) -> Option<&str> {
        let path = self.boot_count_path.as_deref()?;
        path.rsplit(['\\', '/']).next()
    }
}

/// The data behind the four attribute bytes.
fn data(system: &System, name: &str) -> Result<Option<Vec<u8>>> {
    let path = system.efivars().join(format!("{name}-{LOADER_VENDOR}"));
    match fs::read(&path) {
        Ok(bytes) => match bytes.get(4..) {
            Some(data) => Ok(Some(data.to_vec())),
            None => Err(Error::malformed(
                &path,
                "shorter than its four attribute bytes",
            )),
        },
        Err(error) if error.kind() == IoKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", path)(error)),
    }
}

fn string(system: &System, name: &str) -> Result<Option<String>> {
    Ok(data(system, name)?.and_then(|data| text(&data)))
}

/// The text of UTF-16 data, up to its NUL. An empty one counts as unset, as it does for the loader.
pub(crate) fn text(data: &[u8]) -> Option<String> {
    let units: Vec<u16> = data
        .chunks_exact(2)
        .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
        .take_while(|unit| *unit != 0)
        .collect();
    let text = String::from_utf16_lossy(&units);
    (!text.is_empty()).then_some(text)
}

fn features(system: &System) -> Result<Option<u64>> {
    let Some(data) = data(system, "LoaderFeatures")? else {
        return Ok(None);
    };
    Ok(data.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{LOADER_VENDOR, LoaderVariables};
    use crate::system::System;

    #[test]
    fn variables_are_utf16_behind_four_attribute_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let system = System::at(dir.path());
        assert_eq!(
            LoaderVariables::read(&system).unwrap(),
            LoaderVariables::default()
        );

        fs::create_dir_all(system.efivars()).unwrap();
        let put = |name: &str, data: &[u8]| {
            let mut bytes = vec![6, 0, 0, 0];
            bytes.extend_from_slice(data);
            fs::write(
                system.efivars().join(format!("{name}-{LOADER_VENDOR}")),
                bytes,
            )
            .unwrap();
        };
        // "\l\s+2-1.conf" with NUL, and a features word with bit 4 only.
        put(
            "LoaderBootCountPath",
            b"\\\0l\0\\\0s\0+\x002\x00-\x001\x00.\0c\0o\0n\0f\0\0\0",
        );
        put("LoaderFeatures", &[0x10, 0, 0, 0, 0, 0, 0, 0]);
        let variables = LoaderVariables::read(&system).unwrap();
        assert_eq!(variables.boot_count_name(), Some("s+2-1.conf"));
        assert_eq!(variables.counts, Some(true));

        put("LoaderFeatures", &[0x0f, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(LoaderVariables::read(&system).unwrap().counts, Some(false));
    }

    #[test]
    fn a_variable_without_attributes_is_an_error_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let system = System::at(dir.path());
        fs::create_dir_all(system.efivars()).unwrap();
        fs::write(
            system.efivars().join(format!("LoaderInfo-{LOADER_VENDOR}")),
            [1],
        )
        .unwrap();
        let error = LoaderVariables::read(&system).unwrap_err();
        assert!(error.to_string().contains("LoaderInfo"), "{error}");
    }
}
