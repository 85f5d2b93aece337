//! A model of what systemd-boot starts next, from the files it reads. Pure.
//!
//! The rules are those of `config_entry_compare`, `config_default_entry_select` and
//! `config_entry_bump_counters` in `src/boot/efi/boot.c` and of `strverscmp_improved` in
//! `src/fundamental/string-util-fundamental.c`, systemd 252.

use std::cmp::Ordering;

/// Compares versions as systemd does (`strverscmp_improved`).
#[must_use]
pub fn version_compare(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.as_bytes(), b.as_bytes());
    loop {
        a = skip_while(a, |c| !is_version_char(c));
        b = skip_while(b, |c| !is_version_char(c));
        // A segment that begins with `~` is the oldest, older than the end.
        match strip_prefix(&mut a, &mut b, b'~') {
            Ordering::Equal => {}
            order => return order,
        }
        if a.is_empty() || b.is_empty() {
            return (!a.is_empty()).cmp(&!b.is_empty());
        }
        for separator in [b'-', b'^', b'.'] {
            match strip_prefix(&mut a, &mut b, separator) {
                Ordering::Equal => {}
                order => return order,
            }
        }
        let order = if starts_with_digit(a) || starts_with_digit(b) {
            compare_numbers(&mut a, &mut b)
        } else {
            compare_words(&mut a, &mut b)
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

fn is_version_char(c: u8) -> bool {
    c.is_ascii_alphanumeric() || b"~-^.".contains(&c)
}

fn starts_with_digit(text: &[u8]) -> bool {
    text.first().is_some_and(u8::is_ascii_digit)
}

fn skip_while(text: &[u8], skip: impl Fn(u8) -> bool) -> &[u8] {
    let end = text.iter().position(|&c| !skip(c)).unwrap_or(text.len());
    text.get(end..).unwrap_or_default()
}

/// Takes `prefix` off both; the one that has it alone is older.
fn strip_prefix(a: &mut &[u8], b: &mut &[u8], prefix: u8) -> Ordering {
    let has = |text: &[u8]| text.first() == Some(&prefix);
    let order = (!has(a)).cmp(&!has(b));
    if order == Ordering::Equal && has(a) {
        *a = a.get(1..).unwrap_or_default();
        *b = b.get(1..).unwrap_or_default();
    }
    order
}

fn take_while<'a>(text: &mut &'a [u8], take: impl Fn(u8) -> bool) -> &'a [u8] {
    let end = text.iter().position(|&c| !take(c)).unwrap_or(text.len());
    let (head, tail) = text.split_at(end);
    *text = tail;
    head
}

fn compare_numbers(a: &mut &[u8], b: &mut &[u8]) -> Ordering {
    let (left, right) = (
        take_while(a, |c| c.is_ascii_digit()),
        take_while(b, |c| c.is_ascii_digit()),
    );
    // A number is newer than no number.
    let order = (!left.is_empty()).cmp(&!right.is_empty());
    if order != Ordering::Equal {
        return order;
    }
    let (left, right) = (
        skip_while(left, |c| c == b'0'),
        skip_while(right, |c| c == b'0'),
    );
    left.len().cmp(&right.len()).then_with(|| left.cmp(right))
}

fn compare_words(a: &mut &[u8], b: &mut &[u8]) -> Ordering {
    let (left, right) = (
        take_while(a, |c| c.is_ascii_alphabetic()),
        take_while(b, |c| c.is_ascii_alphabetic()),
    );
    let shared = left.len().min(right.len());
    left.get(..shared)
        .cmp(&right.get(..shared))
        .then_with(|| left.len().cmp(&right.len()))
}

#[cfg(test)]
mod tests {
    use super::version_compare;

    #[test]
    fn versions_sort_as_the_loaders_own_comment_lists_them() {
        // The list in the comment of strverscmp_improved, oldest first.
        let sorted = [
            "122.1",
            "123~rc1-1",
            "123",
            "123-a",
            "123-a.1",
            "123-1",
            "123-1.1",
            "123^post1",
            "123.a-1",
            "123.1-1",
            "123a-1",
            "124-1",
        ];
        for (older, a) in sorted.iter().enumerate() {
            for (newer, b) in sorted.iter().enumerate() {
                assert_eq!(version_compare(a, b), older.cmp(&newer), "{a} and {b}");
            }
        }
    }
}
