//! GRUB's environment block and U-Boot's environment, as text of a variable each line.

use anyhow::{Context, Result, ensure};

/// First line of GRUB's block (GRUB manual, "Environment block").
const SIGNATURE: &str = "# GRUB Environment Block\n";

/// Variables of a block: lines up to the first `#` behind the signature.
///
/// # Errors
/// When it is no block.
pub(super) fn of_grub(block: &[u8]) -> Result<String> {
    let text = block
        .strip_prefix(SIGNATURE.as_bytes())
        .context("no environment block of GRUB's")?;
    let lines: Vec<String> = text
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.starts_with(b"#"))
        .map(|line| String::from_utf8_lossy(line).into_owned())
        .collect();
    Ok(lines.join("\n"))
}

/// Variables of the copy of two that counts: the whole one, of two whole ones the newer (U-Boot's `env/common.c`: the number
/// follows on, 0 after 255).
///
/// # Errors
/// When neither copy is whole.
pub(super) fn of_pair(copies: &[Result<Vec<u8>>; 2]) -> Result<String> {
    let [first, second] = copies.each_ref().map(|copy| {
        let copy = copy.as_ref().ok()?;
        let (flag, data) = copy.get(4..)?.split_first()?;
        is_whole(copy, data).then_some((*flag, data))
    });
    let data = match (first, second) {
        (Some((0, first)), Some((255, _))) => first,
        (Some((255, _)), Some((0, second))) => second,
        (Some((a, first)), Some((b, second))) => {
            if b > a {
                second
            } else {
                first
            }
        }
        (Some((_, one)), None) | (None, Some((_, one))) => one,
        (None, None) => anyhow::bail!("neither copy of U-Boot's environment is whole"),
    };
    Ok(listing(data))
}

/// Variables of the only copy.
///
/// # Errors
/// When it is not whole.
pub(super) fn of_one(copy: &[u8]) -> Result<String> {
    let data = copy.get(4..).context("U-Boot's environment is too short")?;
    ensure!(is_whole(copy, data), "U-Boot's environment is not whole");
    Ok(listing(data))
}

/// Whether the CRC in the first four bytes is the one of the data.
fn is_whole(copy: &[u8], data: &[u8]) -> bool {
    let Some(crc) = copy.first_chunk().map(|crc| u32::from_le_bytes(*crc)) else {
        return false;
    };
    crc32fast::hash(data) == crc
}

/// Strings up to an empty one.
fn listing(data: &[u8]) -> String {
    let lines: Vec<String> = data
        .split(|byte| *byte == 0)
        .take_while(|string| !string.is_empty())
        .map(|string| String::from_utf8_lossy(string).into_owned())
        .collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::Command;

    use super::{of_grub, of_one, of_pair};

    fn run(program: &str, arguments: &[&str]) {
        let status = Command::new(program).args(arguments).status().unwrap();
        assert!(status.success(), "{program} {arguments:?}");
    }

    #[test]
    fn a_block_of_grub_editenv_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let block = folder.path().join("grubenv");
        let path = block.to_str().unwrap();
        run("grub-editenv", &[path, "create"]);
        run("grub-editenv", &[path, "set", "slotd_order=b a", "x=1"]);
        let text = of_grub(&fs::read(&block).unwrap()).unwrap();
        let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
        assert_eq!(lines, ["slotd_order=b a", "x=1"]);
        assert!(of_grub(&[0; 1024]).is_err());
    }

    #[test]
    fn environments_of_mkenvimage_are_read_and_torn_ones_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let text = folder.path().join("text");
        let made = |options: &[&str], lines: &str| {
            fs::write(&text, lines).unwrap();
            let image = folder.path().join("image");
            let rest = [
                "-s",
                "1024",
                "-o",
                image.to_str().unwrap(),
                text.to_str().unwrap(),
            ];
            run("mkenvimage", &[options, &rest].concat());
            fs::read(&image).unwrap()
        };
        let one = made(&[], "slotd_order=A B\nx=1\n");
        assert_eq!(of_one(&one).unwrap(), "slotd_order=A B\nx=1");
        let mut torn = one.clone();
        torn[20] ^= 1;
        assert!(of_one(&torn).is_err());

        // mkenvimage makes copies with the number 1.
        let mut older = made(&["-r"], "x=1\n");
        let mut newer = made(&["-r"], "x=2\n");
        assert_eq!((older[4], newer[4]), (1, 1));
        for (numbers, counts) in [
            ([1, 2], "x=2"),
            ([3, 2], "x=1"),
            ([255, 0], "x=2"),
            ([0, 255], "x=1"),
        ] {
            older[4] = numbers[0];
            newer[4] = numbers[1];
            let pair = [Ok(older.clone()), Ok(newer.clone())];
            assert_eq!(of_pair(&pair).unwrap(), counts, "{numbers:?}");
        }
        let mut torn = newer.clone();
        torn[9] ^= 1;
        let pair = [Ok(torn.clone()), Ok(older.clone())];
        assert_eq!(of_pair(&pair).unwrap(), "x=1");
        assert!(of_pair(&[Ok(torn.clone()), Ok(torn)]).is_err());
    }
}
