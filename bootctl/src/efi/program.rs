//! Whether a kernel is a program that EFI firmware can start: a PE image, by the first bytes of its file. What a unified
//! image must be besides is looked at where it is found.

use std::io::Read;

use crate::facts::Architecture;

/// Bytes in which a kernel's headers are.
const HEADERS: u64 = 16 * 1024;
/// Machine numbers of the PE specification.
const X86_64: u16 = 0x8664;
const ARM64: u16 = 0xaa64;

/// Why the firmware could not start `kernel`; `None` where it can.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn problem(
    kernel: impl Read,
    architecture: Architecture,
) -> std::io::Result<Option<String>> {
    let mut head = Vec::new();
    kernel.take(HEADERS).read_to_end(&mut head)?;
    let Some(machine) = machine(&head) else {
        let why = "the kernel is no EFI program (no PE image): it needs the EFI stub \
                   (CONFIG_EFI_STUB), uncompressed, or a unified kernel image in its place";
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
    Ok(None)
}

/// Machine of a PE image.
fn machine(head: &[u8]) -> Option<u16> {
    if !head.starts_with(b"MZ") {
        return None;
    }
    let at = u32::from_le_bytes(*head.get(60..)?.first_chunk()?);
    let pe = head.get(usize::try_from(at).ok()?..)?;
    if !pe.starts_with(b"PE\0\0") {
        return None;
    }
    Some(u16::from_le_bytes(*pe.get(4..)?.first_chunk()?))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::problem;
    use crate::facts::Architecture;

    /// The first headers of a PE image, by its specification.
    pub(crate) fn program(machine: u16) -> Vec<u8> {
        let mut bytes = vec![0_u8; 0x200];
        bytes[..2].copy_from_slice(b"MZ");
        bytes[60] = 0x80;
        bytes[0x80..0x84].copy_from_slice(b"PE\0\0");
        bytes[0x84..0x86].copy_from_slice(&machine.to_le_bytes());
        bytes
    }

    fn why(bytes: &[u8], architecture: Architecture) -> String {
        problem(bytes, architecture).unwrap().unwrap_or_default()
    }

    #[test]
    fn kernels_with_a_stub_can_be_started() {
        assert_eq!(why(&program(0x8664), Architecture::X86_64), "");
        assert_eq!(why(&program(0xaa64), Architecture::Aarch64), "");
        assert_eq!(why(&program(0x1234), Architecture::Unknown), "");
    }

    #[test]
    fn others_are_named() {
        let x86 = Architecture::X86_64;
        assert!(why(b"\x1f\x8b gzip", x86).contains("no PE image"));
        assert!(why(b"", x86).contains("no PE image"));
        assert!(why(b"MZ only a DOS program", x86).contains("no PE image"));
        assert!(why(&program(0xaa64), x86).contains("0xaa64, the image is for 0x8664"));
        let whole = program(0x8664);
        for length in [60, 64, 0x82, 0x85] {
            assert!(
                why(&whole[..length], x86).contains("no PE image"),
                "{length}"
            );
        }
    }
}
