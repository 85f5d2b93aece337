//! An image's unified kernel image: where it is looked for, and whether a loader could start it with other options.

use std::fs::File;

use super::tree::{Opened, Tree};
use super::{Architecture, BootFile};
use crate::entry::EntryName;
use crate::error::{Error, Result};
use crate::model::version_compare;
use crate::pe::{Image, PeError};

/// Where kernel packages and kernel-install have it, one directory for each version.
const MODULES: &str = "usr/lib/modules";
/// Where builders of images put it if `/boot` is not a partition of its own.
const BOOT: &str = "boot/EFI/Linux";
/// Name of a plain kernel in a version's directory.
const PLAIN: &str = "vmlinuz";

/// Machine numbers of the PE specification.
const X86_64: u16 = 0x8664;
const ARM64: u16 = 0xaa64;

/// A unified kernel image that was found.
#[derive(Debug)]
pub(crate) struct Unified {
    pub(crate) found: BootFile,
    pub(crate) file: File,
    /// Why it cannot be started as a slot's image.
    pub(crate) problem: Option<String>,
    /// Whether its headers lead nowhere.
    damaged: bool,
}

impl Tree {
    /// The newest of `/usr/lib/modules/*/*.efi` (or `vmlinuz` there, if that is one), else of
    /// `/boot/EFI/Linux/*.efi`. Other EFI programs are passed over.
    pub(super) fn unified(&self, architecture: Architecture) -> Result<Option<Unified>> {
        let mut versions = self.utf8_names(MODULES)?;
        versions.sort_by(|a, b| version_compare(b, a));
        let directories = versions
            .iter()
            .map(|version| format!("{MODULES}/{version}"))
            .chain([BOOT.to_owned()]);
        for directory in directories {
            let mut names = self.utf8_names(&directory)?;
            names.retain(|name| {
                EntryName::parse(name).is_some_and(|name| name.suffix.eq_ignore_ascii_case(".efi"))
            });
            names.sort_by(|a, b| version_compare(b, a));
            names.extend((directory != BOOT).then(|| PLAIN.to_owned()));
            for name in names {
                let Some(opened) = self.boot_file(format!("/{directory}/{name}"))? else {
                    continue;
                };
                match look(opened, architecture)? {
                    // A kernel need not be an EFI program at all.
                    Some(Unified { damaged: true, .. }) if name == PLAIN => {}
                    Some(unified) => return Ok(Some(unified)),
                    None => {}
                }
            }
        }
        Ok(None)
    }

    fn utf8_names(&self, inside: &str) -> Result<Vec<String>> {
        let names = self.names(inside)?;
        Ok(names
            .into_iter()
            .filter_map(|name| name.into_string().ok())
            .collect())
    }
}

/// `None` where it is whole and something else.
fn look((found, file): Opened, architecture: Architecture) -> Result<Option<Unified>> {
    let path = found.path.display().to_string();
    let (damaged, problem) = match Image::read(&mut &file) {
        Err(PeError::Io(source)) => return Err(Error::io("read", &found.path)(source)),
        Err(PeError::Malformed(problem)) => {
            let damage = format!("is no unified kernel image, or a damaged one ({problem})");
            (true, Some(damage))
        }
        Ok(image) if image.section(".linux").is_none() => return Ok(None),
        Ok(image) => (false, unsuitable(&image, architecture)),
    };
    Ok(Some(Unified {
        found,
        file,
        problem: problem.map(|problem| format!("{path} {problem}")),
        damaged,
    }))
}

fn unsuitable(image: &Image, architecture: Architecture) -> Option<String> {
    let expected = match architecture {
        Architecture::X86_64 => Some(X86_64),
        Architecture::Aarch64 => Some(ARM64),
        Architecture::Other(_) | Architecture::Unknown => None,
    };
    if let Some(expected) = expected.filter(|expected| *expected != image.machine) {
        return Some(format!(
            "is a unified kernel image for machine {:#06x}, the image's programs are for {expected:#06x}",
            image.machine
        ));
    }
    // systemd-stub ignores a loader's options under Secure Boot where there is this section.
    image.section(".cmdline").map(|_| {
        "is a unified kernel image with a command line of its own (section .cmdline): its options could not be \
         replaced, and it would not start its slot's root; build it without one (ukify: no --cmdline) and put its \
         options in /usr/lib/kernel/cmdline, or put kernel and initrd beside it (vmlinuz, initrd)"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use crate::facts::InspectSettings;
    use crate::inspect::SlotView;
    use crate::pe::tests::image;

    fn put(root: &Path, path: &str, content: impl AsRef<[u8]>) {
        let place = root.join(path);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::write(place, content).unwrap();
    }

    fn view(files: &[(&str, &[u8])]) -> SlotView {
        let dir = tempfile::tempdir().unwrap();
        for (path, content) in files {
            put(dir.path(), path, content);
        }
        SlotView::of_tree(dir.path(), &InspectSettings::default()).unwrap()
    }

    fn unified() -> Vec<u8> {
        image(0x8664, &[(".linux", b"kernel"), (".initrd", b"initrd")])
    }

    /// Path of what an EFI loader starts, and whether it is a unified image.
    fn started(files: &[(&str, &[u8])]) -> (String, bool) {
        let facts = view(files).facts;
        let unified = facts.starts_unified();
        let file = if unified { facts.unified } else { facts.kernel };
        (file.unwrap().path.display().to_string(), unified)
    }

    #[test]
    fn kernel_and_initrd_go_before_a_unified_image_and_that_before_a_kernel_alone() {
        let (new, old) = (&unified()[..], &unified()[..]);
        let program = image(0x8664, &[(".text", b"shell")]);
        let kernel: (&str, &[u8]) = ("usr/lib/modules/6.9/vmlinuz", b"kernel");
        let initrd: (&str, &[u8]) = ("usr/lib/modules/6.9/initrd", b"initrd");
        let images: [(&str, &[u8]); 4] = [
            ("usr/lib/modules/6.9/vmlinuz-virt.efi", old),
            ("usr/lib/modules/6.10/vmlinuz-virt.efi", new),
            ("usr/lib/modules/6.11/shell.efi", &program),
            ("boot/EFI/Linux/debian-7.0.efi", new),
        ];
        let newest = "/usr/lib/modules/6.10/vmlinuz-virt.efi".to_owned();
        assert_eq!(started(&images), (newest.clone(), true));
        let alone = [images.as_slice(), &[kernel]].concat();
        assert_eq!(started(&alone), (newest, true));
        let both = [images.as_slice(), &[kernel, initrd]].concat();
        assert_eq!(
            started(&both),
            ("/usr/lib/modules/6.9/vmlinuz".to_owned(), false)
        );
        let in_boot: [(&str, &[u8]); 3] = [
            ("boot/EFI/Linux/debian-6.9.efi", old),
            ("boot/EFI/Linux/debian-6.10.efi", new),
            ("boot/EFI/Linux/debian-6.11.txt", new),
        ];
        assert_eq!(
            started(&in_boot),
            ("/boot/EFI/Linux/debian-6.10.efi".to_owned(), true)
        );
    }

    #[test]
    fn a_unified_image_by_the_name_of_a_kernel_is_taken_for_what_it_is() {
        let bytes = unified();
        let name = "usr/lib/modules/6.9/vmlinuz";
        let files: [(&str, &[u8]); 2] = [(name, &bytes), ("usr/lib/modules/6.9/initrd", b"initrd")];
        assert_eq!(started(&files), (format!("/{name}"), true));
        let plain: [(&str, &[u8]); 1] = [(name, b"\x1f\x8b compressed")];
        assert_eq!(started(&plain), (format!("/{name}"), false));
    }

    #[test]
    fn what_could_not_be_started_as_it_should_be_is_named_with_what_to_do() {
        let path = "usr/lib/modules/6.9/x.efi";
        let own_line = image(
            0x8664,
            &[(".linux", b"kernel"), (".cmdline", b"root=/dev/sda1")],
        );
        let mut elf = vec![0_u8; 64];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        elf[18] = 62;
        let init: (&str, &[u8]) = ("sbin/init", &elf);
        let arm = image(0xaa64, &[(".linux", b"kernel")]);
        for (content, reason) in [
            (&own_line[..], "/usr/lib/kernel/cmdline"),
            (&unified()[..0x500], "section .linux ends at byte 1536"),
            (b"not a program", "damaged"),
            (
                &arm,
                "for machine 0xaa64, the image's programs are for 0x8664",
            ),
        ] {
            let view = view(&[(path, content), init]);
            let error = view.efi_program().err().unwrap().to_string();
            assert!(error.contains(path) && error.contains(reason), "{error}");
        }
        let whole = unified();
        assert!(view(&[(path, &whole), init]).efi_program().is_ok());
    }
}
