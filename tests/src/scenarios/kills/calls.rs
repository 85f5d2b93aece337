//! The calls of an agent that change what outlives it, as strace sees them, and how it is killed at one of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

/// What changes files, folders and devices. Of opening and of ioctl only what [`changes`] takes.
const CALLS: &str = "write,writev,pwrite64,pwritev,fsync,fdatasync,syncfs,rename,renameat,renameat2,unlink,unlinkat,\
                     mkdir,mkdirat,link,linkat,symlink,symlinkat,truncate,ftruncate,fallocate,openat,ioctl";

/// A call, by its name and by how often the thread that makes it has made it then: so strace counts them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Call {
    name: String,
    nth: usize,
    /// As strace showed it.
    text: String,
}

impl fmt::Display for Call {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} number {}: {}",
            self.name, self.nth, self.text
        )
    }
}

/// The command under which calls are recorded in a file.
pub(super) fn recorder(output: &Path) -> Vec<String> {
    strace(CALLS, output)
}

/// The command under which a process is killed as it enters this call.
pub(super) fn killer(call: &Call, output: &Path) -> Vec<String> {
    let mut command = strace(&call.name, output);
    command.extend([
        "-e".to_owned(),
        format!("inject={}:signal=SIGKILL:when={}", call.name, call.nth),
    ]);
    command
}

fn strace(calls: &str, output: &Path) -> Vec<String> {
    let mut command: Vec<String> = ["strace", "-f", "-qqq", "-y", "-s", "0"]
        .map(str::to_owned)
        .to_vec();
    command.extend(["-e".to_owned(), format!("trace={calls}")]);
    command.extend(["-o".to_owned(), output.display().to_string()]);
    command
}

/// The calls in a recording that change something below a folder or on a device, in their order, each name and number once: of two
/// threads the one that comes first is killed.
pub(super) fn changes(recording: &str, root: &Path) -> Vec<Call> {
    let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
    let mut known = BTreeSet::new();
    let mut calls = Vec::new();
    for line in recording.lines() {
        let Some((thread, name, text)) = entered(line) else {
            continue;
        };
        let nth = counts
            .entry((thread.to_owned(), name.to_owned()))
            .or_default();
        *nth += 1;
        if known.insert((name.to_owned(), *nth)) && is_change(name, text, root) {
            calls.push(Call {
                name: name.to_owned(),
                nth: *nth,
                text: without_numbers(text, root),
            });
        }
    }
    calls
}

/// Thread, name and all of a call that was just entered.
fn entered(line: &str) -> Option<(&str, &str, &str)> {
    let (thread, text) = line.split_once(' ')?;
    let text = text.trim_start();
    let (name, _) = text.split_once('(')?;
    let is_name = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    (!name.is_empty() && is_name).then_some((thread, name, text))
}

fn is_change(name: &str, text: &str, root: &Path) -> bool {
    // The folder itself is where the process works, so it is named in each call by path.
    let here = text.contains(&format!("{}/", root.display())) || text.contains("</dev/loop");
    match name {
        "openat" => here && (text.contains("O_CREAT") || text.contains("O_TRUNC")),
        "ioctl" => here && text.contains("BLK") && !text.contains("GET"),
        _ => here,
    }
}

/// The last call that was entered, as far as it is the same in each run.
pub(super) fn last_entered(recording: &str, root: &Path) -> Option<String> {
    recording
        .lines()
        .rev()
        .find_map(entered)
        .map(|(_, _, text)| without_numbers(text, root))
}

/// A call without what differs from run to run: the folder, and the numbers of files and devices.
fn without_numbers(text: &str, root: &Path) -> String {
    let text = text.replace(&format!("{}/", root.display()), "");
    let end = text.find(" <unfinished").or_else(|| text.rfind(" = "));
    let text = &text[..end.unwrap_or(text.len())];
    let mut kept = String::new();
    let mut rest = text.trim_end();
    // `12<path>` is a file's number and its path.
    while let Some(at) = rest.find('<') {
        let (before, after) = rest.split_at(at);
        kept.push_str(before.trim_end_matches(|character: char| character.is_ascii_digit()));
        kept.push('<');
        rest = &after[1..];
    }
    kept.push_str(rest);
    kept.replace("/dev/loop", "loop")
}

/// All, or a sample of so many that are spread over all: the first one of it is chosen by the seed.
pub(super) fn spread<T>(all: &[T], sample: Option<usize>, seed: u64) -> Vec<&T> {
    let Some(wanted) = sample.filter(|wanted| *wanted > 0 && *wanted < all.len()) else {
        return all.iter().collect();
    };
    let start = usize::try_from(seed % all.len() as u64).unwrap_or_default();
    (0..wanted)
        .map(|index| &all[(start + index * all.len() / wanted) % all.len()])
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{changes, last_entered, spread};

    const RECORDING: &str = "\
10 openat(AT_FDCWD</n>, \"/n/data/state.json.new\", O_WRONLY|O_CREAT|O_TRUNC, 0600) = 4</n/data/state.json.new>
11 write(7<anon_inode:[eventfd]>, \"\"..., 8) = 8
10 write(4</n/data/state.json.new>, \"\"..., 120 <unfinished ...>
11 write(4</n/data/other>, \"\"..., 1) = 1
10 <... write resumed>)     = 120
10 openat(AT_FDCWD</n>, \"/n/data\", O_RDONLY) = 5</n/data>
10 fsync(4</n/data/state.json.new>) = 0
10 pwrite64(9</dev/loop3>, \"\"..., 1048576, 0) = 1048576
10 pwrite64(9</dev/loop3>, \"\"..., 1048576, 1048576) = ?
";

    #[test]
    fn what_changes_something_is_counted_by_name_and_thread() {
        let calls = changes(RECORDING, Path::new("/n"));
        let found: Vec<(&str, usize)> = calls
            .iter()
            .map(|call| (call.name.as_str(), call.nth))
            .collect();
        // The first `write` of any thread is the one of the other thread, which changes nothing; so is the second of any thread that
        // one's second.
        assert_eq!(
            found,
            [
                ("openat", 1),
                ("write", 2),
                ("fsync", 1),
                ("pwrite64", 1),
                ("pwrite64", 2)
            ]
        );
        assert_eq!(calls[2].text, "fsync(<data/state.json.new>)");
        assert_eq!(
            last_entered(RECORDING, Path::new("/n")).as_deref(),
            Some("pwrite64(<loop3>, \"\"..., 1048576, 1048576)")
        );
    }

    #[test]
    fn a_sample_is_spread_over_all() {
        let all: Vec<u32> = (0..10).collect();
        assert_eq!(spread(&all, Some(3), 12), [&2, &5, &8]);
        assert_eq!(spread(&all, None, 5).len(), 10);
        assert_eq!(spread(&all, Some(20), 5).len(), 10);
    }
}
