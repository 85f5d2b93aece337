//! Boot Loader Specification entries: file names with counters, and the text inside. Pure.

use std::fmt;

use crate::slot::SlotName;

/// Largest counter that systemd-boot accepts.
const COUNTER_MAX: u32 = 0x7fff_ffff;

/// The boots left and begun of an entry that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Counter {
    /// Boots left.
    pub left: u32,
    /// Boots begun.
    pub done: u32,
}

/// An entry's file name: `id[+LEFT[-DONE]].conf` (or `.efi`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EntryName {
    /// The name without counter and suffix.
    pub stem: String,
    /// The counter, where the entry is counted.
    pub counter: Option<Counter>,
    /// The suffix with its dot.
    pub suffix: String,
}

impl EntryName {
    /// Parses a file name as `config_entry_parse_tries` does: only the last `+`, directly before the
    /// suffix, begins a counter. `None` where the suffix is neither `.conf` nor `.efi`.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let dot = name
            .len()
            .checked_sub(5)
            .filter(|at| ends_with(name, *at, ".conf"));
        let dot = dot.or_else(|| {
            name.len()
                .checked_sub(4)
                .filter(|at| ends_with(name, *at, ".efi"))
        });
        let (stem, suffix) = name.split_at_checked(dot?)?;
        let counted = stem
            .rsplit_once('+')
            .and_then(|(stem, counter)| Some((stem, parse_counter(counter)?)));
        let (stem, counter) = match counted {
            Some((stem, counter)) => (stem, Some(counter)),
            None => (stem, None),
        };
        Some(Self {
            stem: stem.to_owned(),
            counter,
            suffix: suffix.to_owned(),
        })
    }

    /// The name of a slot's entry.
    #[must_use]
    pub fn of_slot(slot: SlotName, counter: Option<Counter>) -> Self {
        Self {
            stem: format!("slotd-{}", slot.lower()),
            counter,
            suffix: ".conf".to_owned(),
        }
    }

    /// The slot whose entry this is; `None` for entries that are not slotd's. Without regard to
    /// case, as on a FAT file system.
    #[must_use]
    pub fn slot(&self) -> Option<SlotName> {
        if !self.suffix.eq_ignore_ascii_case(".conf") {
            return None;
        }
        let own = |slot: &SlotName| {
            self.stem
                .eq_ignore_ascii_case(&Self::of_slot(*slot, None).stem)
        };
        SlotName::BOTH.into_iter().find(own)
    }

    /// The name that the loader gives the entry when it starts it.
    #[must_use]
    pub fn started(&self) -> Self {
        let counter = self.counter.map(|counter| Counter {
            left: counter.left.saturating_sub(1),
            done: counter.done.saturating_add(1).min(COUNTER_MAX),
        });
        Self {
            counter,
            ..self.clone()
        }
    }

    /// The entry's id without counter, with its suffix, in lower case.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{}{}", self.stem, self.suffix).to_ascii_lowercase()
    }
}

impl fmt::Display for EntryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.stem)?;
        match self.counter {
            None => {}
            Some(Counter { left, done: 0 }) => write!(f, "+{left}")?,
            Some(Counter { left, done }) => write!(f, "+{left}-{done}")?,
        }
        f.write_str(&self.suffix)
    }
}

fn ends_with(name: &str, at: usize, suffix: &str) -> bool {
    name.get(at..)
        .is_some_and(|tail| tail.eq_ignore_ascii_case(suffix))
}

fn parse_counter(text: &str) -> Option<Counter> {
    let (left, done) = match text.split_once('-') {
        Some((left, done)) => (left, parse_number(done)?),
        None => (text, 0),
    };
    Some(Counter {
        left: parse_number(left)?,
        done,
    })
}

fn parse_number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits
        .then(|| text.parse().ok())
        .flatten()
        .filter(|number| *number <= COUNTER_MAX)
}

/// What the loader reads of an entry's text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EntryText {
    /// Title in the menu.
    pub title: Option<String>,
    /// First sort criterion.
    pub sort_key: Option<String>,
    /// Second sort criterion.
    pub machine_id: Option<String>,
    /// Third sort criterion, newest first; in ours an install sequence in decimal.
    pub version: Option<String>,
    /// Kernel, or EFI program, relative to the partition that holds the entry.
    pub kernel: Option<String>,
    /// Whether the kernel is named as an EFI program (`efi`), as a unified image is.
    pub efi: bool,
    /// Initrds, in order.
    pub initrds: Vec<String>,
    /// Kernel options.
    pub options: String,
    /// Whether it names an architecture.
    pub architecture: Option<String>,
}

impl EntryText {
    /// Parses an entry as `line_get_key_value` and `config_entry_add_type1` do.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut entry = Self::default();
        for (key, value) in key_values(text) {
            let value = value.to_owned();
            match key {
                "title" => entry.title = Some(value),
                "sort-key" => entry.sort_key = Some(value),
                "machine-id" => entry.machine_id = Some(value),
                "version" => entry.version = Some(value),
                "linux" | "efi" => {
                    entry.efi = key == "efi";
                    entry.kernel = Some(value);
                }
                "initrd" => entry.initrds.push(value),
                "architecture" => entry.architecture = Some(value),
                "options" => {
                    if !entry.options.is_empty() {
                        entry.options.push(' ');
                    }
                    entry.options.push_str(&value);
                }
                _ => {}
            }
        }
        entry
    }

    /// The text as it is written.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::new();
        let mut line = |key: &str, value: &str| {
            // A line break in a value would start a line of its own.
            let value: String = value
                .chars()
                .map(|c| if c.is_control() { ' ' } else { c })
                .collect();
            text.push_str(&format!("{key} {}\n", value.trim()));
        };
        for (key, value) in [
            ("title", &self.title),
            ("sort-key", &self.sort_key),
            ("machine-id", &self.machine_id),
            ("version", &self.version),
            ("architecture", &self.architecture),
            (if self.efi { "efi" } else { "linux" }, &self.kernel),
        ] {
            if let Some(value) = value {
                line(key, value);
            }
        }
        for initrd in &self.initrds {
            line("initrd", initrd);
        }
        line("options", &self.options);
        text
    }
}

/// Lines of `key value`, as systemd-boot splits them: blanks around are dropped, `#` begins a
/// comment line, one pair of double quotes around a value is taken off.
pub(crate) fn key_values(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split(['\n', '\r']).filter_map(|line| {
        let line = line.trim_matches([' ', '\t']);
        if line.is_empty() || line.starts_with('#') {
            return None;
        }
        let (key, value) = line.split_once([' ', '\t'])?;
        let value = value.trim_start_matches([' ', '\t']);
        let inner = value
            .strip_prefix('"')
            .and_then(|value| value.strip_suffix('"'));
        Some((key, inner.unwrap_or(value)))
    })
}

/// The same text with another `version`, everything else byte for byte.
pub(crate) fn with_version(text: &str, version: u64) -> String {
    let mut out = String::with_capacity(text.len());
    let mut replaced = false;
    let mut rest = text;
    while !rest.is_empty() {
        let (line, behind) = first_line(rest);
        rest = behind;
        let is_version = key_values(line)
            .next()
            .is_some_and(|(key, _)| key == "version");
        match (is_version, replaced) {
            (true, false) => {
                out.push_str(&format!("version {version}\n"));
                replaced = true;
            }
            (true, true) => {}
            (false, _) => out.push_str(line),
        }
    }
    if !replaced {
        if !out.is_empty() && !out.ends_with(['\n', '\r']) {
            out.push('\n');
        }
        out.push_str(&format!("version {version}\n"));
    }
    out
}

/// The first line with its end, and what follows. The loader ends one at a carriage return, too.
fn first_line(text: &str) -> (&str, &str) {
    let length = text.find(['\n', '\r']).map_or(text.len(), |at| {
        let end = text.get(at..).unwrap_or_default();
        at.saturating_add(if end.starts_with("\r\n") { 2 } else { 1 })
    });
    text.split_at_checked(length).unwrap_or((text, ""))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Strategy, any, prop_assert_eq, proptest};

    use super::{Counter, EntryName, EntryText, key_values, with_version};
    use crate::slot::SlotName;

    #[test]
    fn only_the_last_plus_directly_before_the_suffix_counts() {
        let counter = |name: &str| EntryName::parse(name).unwrap().counter;
        assert_eq!(counter("slotd-b.conf"), None);
        assert_eq!(
            counter("slotd-b+3.conf"),
            Some(Counter { left: 3, done: 0 })
        );
        assert_eq!(
            counter("slotd-b+2-1.conf"),
            Some(Counter { left: 2, done: 1 })
        );
        assert_eq!(counter("a+1+0-3.efi"), Some(Counter { left: 0, done: 3 }));
        for odd in [
            "a+3x.conf",
            "a+.conf",
            "a+3-.conf",
            "a+-1.conf",
            "a+2147483648.conf",
            "a+3.b.conf",
        ] {
            assert_eq!(counter(odd), None, "{odd}");
        }
        assert_eq!(EntryName::parse("slotd-b.conf.tmp"), None);
        assert_eq!(EntryName::parse(""), None);
    }

    #[test]
    fn the_loader_counts_as_its_own_comment_says() {
        let series = |first: &str| {
            let mut name = EntryName::parse(first).unwrap();
            let mut names = Vec::new();
            for _ in 0..3 {
                name = name.started();
                names.push(name.to_string());
            }
            names
        };
        assert_eq!(
            series("foobar+3.efi"),
            ["foobar+2-1.efi", "foobar+1-2.efi", "foobar+0-3.efi"]
        );
        assert_eq!(
            series("foobar+4-0.efi"),
            ["foobar+3-1.efi", "foobar+2-2.efi", "foobar+1-3.efi"]
        );
        assert_eq!(series("foobar.conf"), ["foobar.conf"; 3]);
    }

    #[test]
    fn slots_are_told_without_regard_to_case() {
        let slot = |name: &str| EntryName::parse(name).unwrap().slot();
        assert_eq!(slot("SLOTD-B+2-1.CONF"), Some(SlotName::B));
        assert_eq!(slot("slotd-c.conf"), None);
        assert_eq!(slot("slotd-a.efi"), None);
        assert_eq!(
            EntryName::parse("Slotd-A+3.conf").unwrap().id(),
            "slotd-a.conf"
        );
    }

    #[test]
    fn text_is_split_as_the_loader_splits_it() {
        let text =
            "# comment\n  title\t \"Slot \\\"B\"  \r\nversion 7\nlonely\noptions a\noptions  b c\n";
        let pairs: Vec<_> = key_values(text).collect();
        assert_eq!(
            pairs,
            [
                ("title", "Slot \\\"B"),
                ("version", "7"),
                ("options", "a"),
                ("options", "b c")
            ]
        );
        assert_eq!(EntryText::parse(text).options, "a b c");
    }

    #[test]
    fn a_new_version_changes_that_line_only() {
        let text = "title x\nversion 1\r\nlinux /slotd/a/linux\n# version 3\n";
        assert_eq!(
            with_version(text, 12),
            "title x\nversion 12\nlinux /slotd/a/linux\n# version 3\n"
        );
        assert_eq!(with_version("title x", 2), "title x\nversion 2\n");
        // The loader takes a carriage return alone for the end of a line.
        assert_eq!(
            with_version("version 1\rlinux /a\rversion 3", 2),
            "version 2\nlinux /a\r"
        );
        assert_eq!(
            with_version("title x\rversion 1\r", 2),
            "title x\rversion 2\n"
        );
    }

    #[test]
    fn a_line_break_in_a_value_starts_no_new_line() {
        let entry = EntryText {
            title: Some("x\noptions evil".to_owned()),
            ..EntryText::default()
        };
        assert_eq!(entry.render(), "title x options evil\noptions \n");
    }

    proptest! {
        #[test]
        fn names_print_as_they_parse(name in "[a-z+.-]{0,8}", left in 0_u32..100, done in 1_u32..100) {
            let text = format!("{name}+{left}-{done}.conf");
            prop_assert_eq!(EntryName::parse(&text).unwrap().to_string(), text);
        }

        #[test]
        fn any_text_parses_and_rendering_is_stable(text in any::<String>().prop_map(|s| s.replace('"', ""))) {
            let once = EntryText::parse(&text).render();
            let again = EntryText::parse(&once).render();
            prop_assert_eq!(once, again);
        }
    }
}
