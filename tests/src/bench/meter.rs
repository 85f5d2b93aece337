//! Measuring one process with all its children.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::resource::{UsageWho, getrusage};
use serde::Serialize;

/// What one run took.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Reading {
    /// Wall time.
    pub seconds: f64,
    /// CPU time of user and kernel, children included.
    pub cpu_seconds: f64,
    /// Most anonymous memory at any time, of the process tree, in bytes.
    pub anonymous: u64,
    /// Most by which the machine's page cache grew, in bytes.
    pub cache_growth: u64,
}

impl Reading {
    /// The median of each figure.
    pub(super) fn median(readings: &[Self]) -> Self {
        let middle = |value: fn(&Self) -> f64| {
            let mut values: Vec<f64> = readings.iter().map(value).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
        };
        let count = |value: fn(&Self) -> u64| {
            let mut values: Vec<u64> = readings.iter().map(value).collect();
            values.sort_unstable();
            values.get(values.len() / 2).copied().unwrap_or(0)
        };
        Self {
            seconds: middle(|reading| reading.seconds),
            cpu_seconds: middle(|reading| reading.cpu_seconds),
            anonymous: count(|reading| reading.anonymous),
            cache_growth: count(|reading| reading.cache_growth),
        }
    }
}

/// Runs a program to its end and measures it.
pub(super) fn run(
    program: &Path,
    build: impl FnOnce(&mut Command) -> &mut Command,
) -> Result<Reading> {
    super::settle_caches()?;
    let mut command = Command::new(program);
    let errors = tempfile::NamedTempFile::new().context("making a temporary file")?;
    let stderr = errors.reopen().context("opening a temporary file")?;
    build(&mut command)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr);
    let cpu_before = cpu_of_children()?;
    let cache_before = page_cache()?;
    let began = Instant::now();
    let mut child = command
        .spawn()
        .with_context(|| format!("starting {}", program.display()))?;
    let mut anonymous = 0;
    let mut cache = cache_before;
    let status = loop {
        if let Some(status) = child.try_wait().context("waiting for a contender")? {
            break status;
        }
        anonymous = anonymous.max(anonymous_of_tree(child.id()));
        cache = cache.max(page_cache()?);
        std::thread::sleep(Duration::from_millis(5));
    };
    let seconds = began.elapsed().as_secs_f64();
    if !status.success() {
        let text = std::fs::read_to_string(errors.path()).unwrap_or_default();
        bail!("{} failed ({status}): {text}", program.display());
    }
    Ok(Reading {
        seconds,
        cpu_seconds: cpu_of_children()? - cpu_before,
        anonymous,
        cache_growth: cache.saturating_sub(cache_before),
    })
}

fn cpu_of_children() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("the CPU time of children")?;
    let seconds =
        |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// Anonymous memory of a process and its children; what has ended meanwhile counts nothing.
pub(super) fn anonymous_of_tree(id: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let own = kibibytes(&status, "RssAnon:").unwrap_or(0) << 10;
    let children =
        std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
    let children = children
        .split_whitespace()
        .filter_map(|child| child.parse().ok());
    own + children.map(anonymous_of_tree).sum::<u64>()
}

/// Pages of files and block devices that the machine keeps, without shared memory.
fn page_cache() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").context("reading /proc/meminfo")?;
    let value = |key| kibibytes(&text, key).with_context(|| format!("{key} in /proc/meminfo"));
    let cached = value("Cached:")? + value("Buffers:")?;
    Ok(cached.saturating_sub(value("Shmem:")?) << 10)
}

fn kibibytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{Reading, kibibytes, run};

    #[test]
    fn a_figure_is_read_from_its_line() {
        let text = "SwapCached: 7 kB\nCached:   12 kB\n";
        assert_eq!(kibibytes(text, "Cached:"), Some(12));
        assert_eq!(kibibytes(text, "Missing:"), None);
    }

    #[test]
    fn the_median_is_taken_of_each_figure() {
        let reading = |seconds, anonymous| Reading {
            seconds,
            cpu_seconds: 0.0,
            anonymous,
            cache_growth: 0,
        };
        let median = Reading::median(&[reading(3.0, 1), reading(1.0, 3), reading(2.0, 2)]);
        assert_eq!((median.seconds, median.anonymous), (2.0, 2));
    }

    #[test]
    fn a_process_is_measured_and_its_failure_told() {
        let path = std::path::Path::new("/bin/sh");
        let reading = run(path, |command| command.args(["-c", "sleep 0.1"])).unwrap();
        assert!(reading.seconds >= 0.1 && reading.anonymous > 0);
        let error = run(path, |command| command.args(["-c", "echo why >&2; exit 3"])).unwrap_err();
        assert!(format!("{error:#}").contains("why"));
    }
}
