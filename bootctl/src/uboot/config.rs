//! `/etc/fw_env.config`: where the copies of the environment are.
//!
//! One line for each copy: device, offset, size, and where they are given sector size, number of sectors, and whether
//! MTD locks are left alone. As U-Boot's own tools and libubootenv read it, the offset is decimal, `0x` hexadecimal or
//! `0` octal, and the other numbers are hexadecimal with or without `0x` (`"%ms %lli %lx %lx %lx"` in
//! `tools/env/fw_env.c`). Where those pass over a line that they cannot read, it is an error here.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::system::System;

/// Largest environment that is believed, in bytes.
pub(crate) const LARGEST: u64 = 16 * 1024 * 1024;

/// Where one copy is said to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CopyLine {
    /// Line of the file, from 1.
    pub(crate) line: usize,
    /// Device or file, as the node names it.
    pub(crate) path: PathBuf,
    /// In bytes; a negative one counts from the end of the device.
    pub(crate) offset: i64,
    /// Bytes of the copy, CRC included.
    pub(crate) size: u64,
    /// Erase sector in bytes; 0 where it is not given.
    pub(crate) sector: u64,
    /// Sectors that the copy may lie in; 0 where it is not given.
    pub(crate) sectors: u64,
    /// Whether sectors of flash are not unlocked before and locked after a write.
    pub(crate) no_lock: bool,
}

/// The file: one copy, or two of the same size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) first: CopyLine,
    pub(crate) second: Option<CopyLine>,
}

impl Config {
    /// Reads it from the node's file system.
    pub(crate) fn read(system: &System, path: &Path) -> Result<Self> {
        let file = system.path(path);
        let text = std::fs::read_to_string(&file).map_err(Error::io("read", path))?;
        Self::parse(&text).map_err(|problem| Error::malformed(path, problem))
    }

    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut copies = Vec::new();
        for (line, content) in (1..).zip(text.lines()) {
            let columns: Vec<&str> = content
                .split_ascii_whitespace()
                .take_while(|column| !column.starts_with('#'))
                .collect();
            if columns.is_empty() {
                continue;
            }
            if is_yaml(&columns) {
                return Err(format!(
                    "line {line}: this is the YAML form of libubootenv, which slotd does not read; give it a \
                     file with one line for each copy: device, offset, size"
                ));
            }
            let copy = parse_line(line, &columns);
            copies.push(copy.map_err(|problem| format!("line {line}: {problem}"))?);
        }
        let mut copies = copies.into_iter();
        let first = copies
            .next()
            .ok_or("it names no environment: a line has device, offset and size")?;
        let second = copies.next();
        if let Some(third) = copies.next() {
            return Err(format!(
                "line {}: a third copy; an environment has one or two",
                third.line
            ));
        }
        if let Some(second) = second.as_ref().filter(|copy| copy.size != first.size) {
            return Err(format!(
                "line {}: a copy of {:#x} bytes, but line {} has {:#x}; both have one size",
                second.line, second.size, first.line, first.size
            ));
        }
        Ok(Self { first, second })
    }
}

/// libubootenv tries YAML first: a mapping with `name:`, or a list.
fn is_yaml(columns: &[&str]) -> bool {
    let first = columns.first().copied().unwrap_or_default();
    ["---", "-"].contains(&first) || first.ends_with(':') || columns.get(1) == Some(&":")
}

fn parse_line(line: usize, columns: &[&str]) -> Result<CopyLine, String> {
    let (path, offset, size, rest) = match columns {
        [path, offset, size, rest @ ..] => (path, offset, size, rest),
        _ => {
            return Err(format!(
                "{} is too few; a line has device, offset and size",
                columns.join(" ")
            ));
        }
    };
    if rest.len() > 3 {
        let last = columns.last().copied().unwrap_or_default();
        return Err(format!("{last:?} is one column too many"));
    }
    if !path.starts_with('/') {
        return Err(format!("{path:?} is no absolute path"));
    }
    let column = |at: usize, what: &str| match rest.get(at) {
        Some(text) => {
            hexadecimal(text).ok_or_else(|| format!("{text:?} is no {what} in hexadecimal"))
        }
        None => Ok(0),
    };
    let copy = CopyLine {
        line,
        path: PathBuf::from(path),
        offset: signed(offset).ok_or_else(|| format!("{offset:?} is no offset"))?,
        size: hexadecimal(size).ok_or_else(|| format!("{size:?} is no size in hexadecimal"))?,
        sector: column(0, "sector size")?,
        sectors: column(1, "number of sectors")?,
        no_lock: column(2, "number")? != 0,
    };
    if copy.size < 16 || copy.size > LARGEST {
        return Err(format!(
            "a size of {:#x} bytes is not possible; sizes are hexadecimal, with or without 0x",
            copy.size
        ));
    }
    Ok(copy)
}

/// As `%lli` reads it, but all of it.
fn signed(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (digits, radix) = if let Some(digits) = without_0x(digits) {
        (digits, 16)
    } else if digits.len() > 1 && digits.starts_with('0') {
        (digits, 8)
    } else {
        (digits, 10)
    };
    let value = i64::try_from(unsigned(digits, radix)?).ok()?;
    Some(if negative {
        value.saturating_neg()
    } else {
        value
    })
}

/// As `%lx` reads it, but all of it, and without a sign.
fn hexadecimal(text: &str) -> Option<u64> {
    unsigned(without_0x(text).unwrap_or(text), 16)
}

fn without_0x(text: &str) -> Option<&str> {
    text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"))
}

/// Without the sign that the standard library would take.
fn unsigned(digits: &str, radix: u32) -> Option<u64> {
    if digits.starts_with(['+', '-']) {
        return None;
    }
    u64::from_str_radix(digits, radix).ok()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn parsed(text: &str) -> Config {
        Config::parse(text).unwrap()
    }

    #[test]
    fn all_columns_comments_and_blanks_are_read() {
        // The example of U-Boot's tools/env/fw_env.config, shortened.
        let config = parsed(
            "# Configuration file\n#\n# MTD device name\tDevice offset\n\n\
             /dev/mtd1\t\t0x0000\t\t0x4000\t\t0x4000\t0x2\n  # between\n\
             /dev/mtd2 0x10000 4000 # behind\r\n",
        );
        assert_eq!(
            config.first,
            CopyLine {
                line: 5,
                path: "/dev/mtd1".into(),
                offset: 0,
                size: 0x4000,
                sector: 0x4000,
                sectors: 2,
                no_lock: false
            }
        );
        let second = config.second.unwrap();
        assert_eq!(
            (second.line, second.offset, second.size, second.sector),
            (7, 0x10000, 0x4000, 0)
        );
        assert!(parsed("/dev/mtd0 0 1000 1000 1 1\n").first.no_lock);
    }

    #[test]
    fn offsets_have_any_base_and_a_sign_and_sizes_are_hexadecimal() {
        // As sscanf of the C library reads them with %lli and %lx.
        for (offset, wanted) in [
            ("0", 0),
            ("010", 8),
            ("10", 10),
            ("0x10", 16),
            ("0X1f", 31),
            ("-0x80000", -0x80000),
            ("-1024", -1024),
            ("-010", -8),
            ("+7", 7),
        ] {
            let config = parsed(&format!("/dev/mmcblk0 {offset} 2000"));
            assert_eq!(config.first.offset, wanted, "{offset}");
            assert_eq!(config.first.size, 0x2000);
        }
        assert_eq!(parsed("/dev/vda 0 16384").first.size, 0x16384);
        assert_eq!(parsed("/dev/vda 0 0X4000").first.size, 0x4000);
    }

    #[test]
    fn what_cannot_be_read_is_named_with_its_line() {
        for (text, problem) in [
            ("", "names no environment"),
            ("# nothing\n\n", "names no environment"),
            ("\n/dev/vda 0x0\n", "line 2: /dev/vda 0x0 is too few"),
            ("/dev/vda zero 0x2000", "line 1: \"zero\" is no offset"),
            ("/dev/vda 08 0x2000", "\"08\" is no offset"),
            ("/dev/vda 0x 0x2000", "\"0x\" is no offset"),
            ("/dev/vda --1 0x2000", "\"--1\" is no offset"),
            ("/dev/vda 0x0 8k", "\"8k\" is no size"),
            ("/dev/vda 0x0 -2000", "\"-2000\" is no size"),
            ("/dev/vda 0x0 0", "a size of 0x0 bytes"),
            ("/dev/vda 0 ffffffff", "a size of 0xffffffff bytes"),
            ("/dev/vda 0 2000 x", "\"x\" is no sector size"),
            ("/dev/vda 0 2000 200 y", "\"y\" is no number of sectors"),
            ("/dev/vda 0 2000 200 1 0 9", "\"9\" is one column too many"),
            ("mtd0 0 2000", "\"mtd0\" is no absolute path"),
            (
                "/dev/a 0 2000\n/dev/b 0 2000\n/dev/c 0 2000",
                "line 3: a third copy",
            ),
            (
                "/dev/a 0 2000\n/dev/b 0 4000",
                "line 2: a copy of 0x4000 bytes, but line 1 has 0x2000",
            ),
        ] {
            let error = Config::parse(text).unwrap_err();
            assert!(error.contains(problem), "{text:?}: {error}");
        }
    }

    #[test]
    fn the_yaml_form_of_libubootenv_is_refused_by_name() {
        // From libubootenv's own example.
        for text in [
            "uboot:\n  size : 0x4000\n  devices:\n    - path : /dev/mtd3\n",
            "---\nuboot:\n",
            "uboot : {size: 0x4000}\n",
        ] {
            let error = Config::parse(text).unwrap_err();
            assert!(
                error.contains("line 1") && error.contains("YAML"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error =
            Config::read(&System::at(dir.path()), Path::new("/etc/fw_env.config")).unwrap_err();
        assert!(
            error.chain().contains("/etc/fw_env.config"),
            "{}",
            error.chain()
        );
        assert_eq!(error.kind(), crate::error::ErrorKind::Configuration);
    }
}
