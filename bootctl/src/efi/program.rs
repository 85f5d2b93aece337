//! Whether a kernel is a program that EFI firmware can start: a PE image, by the header of its file. Pure.

use std::io::Read;

use crate::facts::Architecture;

/// Bytes in which a kernel's or a unified image's headers are.
const HEADERS: u64 = 16 * 1024;
/// More sections than any image has.
const SECTION_LIMIT: u16 = 256;
/// Machine numbers of the PE specification.
const X86_64: u16 = 0x8664;
const ARM64: u16 = 0xaa64;

/// Why the firmware could not start `kernel`, or not with slotd's options; `None` where it can.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn problem(
    kernel: impl Read,
    architecture: Architecture,
) -> std::io::Result<Option<String>> {
    let mut head = Vec::new();
    kernel.take(HEADERS).read_to_end(&mut head)?;
    let Some((machine, sections)) = image(&head) else {
        let why = "the kernel is no EFI program (no PE image): it needs the EFI stub \
                   (CONFIG_EFI_STUB), uncompressed, or has to be a unified kernel image";
        return Ok(Some(why.to_owned()));
    };
    let expected = match architecture {
        Architecture::X86_64 => Some(X86_64),
        Architecture::Aarch64 => Some(ARM64),
        Architecture::Other(_) | Architecture::Unknown => None,
    };
    if let Some(expected) = expected.filter(|expected| *expected != machine) {
        return Ok(Some(format!(
            "the kernel is an EFI program for machine {machine:#06x}, the image is for {expected:#06x}"
        )));
    }
    if sections.iter().any(|name| name == b".cmdline") {
        let why = "the kernel is a unified image with a command line of its own, which wins over \
                   slotd's under Secure Boot: build it without one";
        return Ok(Some(why.to_owned()));
    }
    Ok(None)
}

/// Machine and names of the sections of a PE image.
fn image(head: &[u8]) -> Option<(u16, Vec<Vec<u8>>)> {
    if !head.starts_with(b"MZ") {
        return None;
    }
    let at = u32::from_le_bytes(*head.get(60..)?.first_chunk()?);
    // "PE\0\0", then the COFF header of 20 bytes.
    let pe = head.get(usize::try_from(at).ok()?..)?;
    if !pe.starts_with(b"PE\0\0") {
        return None;
    }
    let word = |at: usize| Some(u16::from_le_bytes(*pe.get(at..)?.first_chunk()?));
    let machine = word(4)?;
    let count = word(6)?.min(SECTION_LIMIT);
    let table = usize::from(word(20)?).saturating_add(24);
    let sections = pe.get(table..).unwrap_or_default().chunks_exact(40);
    let sections = sections.take(usize::from(count)).filter_map(|section| {
        let name = section.get(..8)?;
        Some(name.split(|byte| *byte == 0).next()?.to_vec())
    });
    Some((machine, sections.collect()))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::problem;
    use crate::facts::Architecture;

    /// Headers of a PE image by its specification, with sections of these names.
    pub(crate) fn program(machine: u16, sections: &[&str]) -> Vec<u8> {
        let mut bytes = vec![0_u8; 0x400];
        bytes[..2].copy_from_slice(b"MZ");
        bytes[60] = 0x80;
        bytes[0x80..0x84].copy_from_slice(b"PE\0\0");
        bytes[0x84..0x86].copy_from_slice(&machine.to_le_bytes());
        bytes[0x86] = u8::try_from(sections.len()).unwrap();
        bytes[0x80 + 20] = 16;
        for (number, name) in sections.iter().enumerate() {
            let at = 0x80 + 24 + 16 + number * 40;
            bytes[at..at + name.len()].copy_from_slice(name.as_bytes());
        }
        bytes
    }

    fn why(bytes: &[u8], architecture: Architecture) -> String {
        problem(bytes, architecture).unwrap().unwrap_or_default()
    }

    #[test]
    fn kernels_with_a_stub_and_unified_images_can_be_started() {
        let x86 = Architecture::X86_64;
        assert_eq!(why(&program(0x8664, &[".text"]), x86), "");
        assert_eq!(why(&program(0xaa64, &[".text"]), Architecture::Aarch64), "");
        assert_eq!(why(&program(0x8664, &[".osrel", ".linux"]), x86), "");
        assert_eq!(why(&program(0x1234, &[]), Architecture::Unknown), "");
    }

    #[test]
    fn others_are_named() {
        let x86 = Architecture::X86_64;
        assert!(why(b"\x1f\x8b gzip", x86).contains("no PE image"));
        assert!(why(b"", x86).contains("no PE image"));
        assert!(why(b"MZ only a DOS program", x86).contains("no PE image"));
        assert!(why(&program(0xaa64, &[]), x86).contains("0xaa64, the image is for 0x8664"));
        assert!(why(&program(0x8664, &[".linux", ".cmdline"]), x86).contains("Secure Boot"));
        let whole = program(0x8664, &[".text"]);
        for length in [60, 64, 0x82, 0x85, 0x90] {
            assert!(
                why(&whole[..length], x86).contains("no PE image"),
                "{length}"
            );
        }
    }
}
