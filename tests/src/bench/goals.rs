//! What the benchmarks are to reach.

use super::{MIB, Report, mebibytes};

/// Which goals were missed, and by what figures.
pub(super) fn missed(report: &Report) -> Vec<String> {
    let mut missed = Vec::new();
    let mut goal = |reached: bool, what: String| {
        if !reached {
            missed.push(what);
        }
    };
    goal(
        report.ratio <= 1.0,
        format!("ratio {:.2} > 1.0", report.ratio),
    );
    for peak in &report.peaks {
        goal(
            peak.anonymous <= peak.window + 24 * MIB,
            format!(
                "peak of {:.1} MiB with a window of {:.1} MiB > window + 24 MiB",
                mebibytes(peak.anonymous),
                mebibytes(peak.window)
            ),
        );
    }
    // Bounded memory: what an image of eight times the size takes more is its window.
    if let [smallest, .., largest] = report.peaks.as_slice() {
        let windows = smallest.window.abs_diff(largest.window);
        let apart = smallest.anonymous.abs_diff(largest.anonymous);
        goal(
            apart <= windows + 2 * MIB,
            format!(
                "peaks of {:.1} MiB with an image of {:.0} MiB and {:.1} MiB with one of {:.0} MiB differ by more than their windows + 2 MiB",
                mebibytes(smallest.anonymous),
                mebibytes(smallest.image),
                mebibytes(largest.anonymous),
                mebibytes(largest.image)
            ),
        );
    }
    let cache = report.slotd.cache_growth;
    goal(
        cache <= 8 * MIB,
        format!("the page cache grew by {:.1} MiB > 8 MiB", mebibytes(cache)),
    );
    goal(
        report.idle.anonymous <= 8 * MIB,
        format!(
            "idle agent {:.1} MiB > 8 MiB",
            mebibytes(report.idle.anonymous)
        ),
    );
    goal(
        report.idle.switches_per_minute <= 2.0,
        format!(
            "idle agent {:.1} context switches a minute > 2",
            report.idle.switches_per_minute
        ),
    );
    missed
}

#[cfg(test)]
mod tests {
    use super::missed;
    use crate::bench::{Idle, MIB, Peak, Reading, Report};

    fn report(peaks: [(u64, u64, u64); 3]) -> Report {
        let reading = Reading {
            seconds: 1.0,
            cpu_seconds: 1.0,
            anonymous: 10 * MIB,
            cache_growth: 0,
        };
        Report {
            image: [1024 * MIB, 700 * MIB],
            slotd: reading,
            pipeline: reading,
            ratio: 1.0,
            peaks: peaks
                .map(|(image, window, anonymous)| Peak {
                    image: image * MIB,
                    window: window * MIB,
                    anonymous: anonymous * MIB,
                })
                .into(),
            idle: Idle {
                anonymous: 8 * MIB,
                switches_per_minute: 2.0,
            },
            missed: Vec::new(),
        }
    }

    #[test]
    fn the_peak_may_grow_with_the_window_but_not_with_the_image() {
        let same = report([(256, 2, 20), (1024, 2, 20), (2048, 2, 22)]);
        assert_eq!(missed(&same), Vec::<String>::new());
        let with_window = report([(256, 2, 20), (1024, 2, 20), (2048, 8, 28)]);
        assert_eq!(missed(&with_window), Vec::<String>::new());
        for with_image in [
            report([(256, 2, 20), (1024, 2, 20), (2048, 2, 23)]),
            report([(256, 2, 20), (1024, 2, 20), (2048, 8, 29)]),
            report([(256, 2, 23), (1024, 2, 20), (2048, 2, 20)]),
        ] {
            let missed = missed(&with_image);
            assert_eq!(missed.len(), 1, "{missed:?}");
            assert!(
                missed[0].ends_with("more than their windows + 2 MiB"),
                "{missed:?}"
            );
        }
    }
}
