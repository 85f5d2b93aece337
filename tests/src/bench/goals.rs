//! What the benchmarks are to reach.

use super::{Cluster, Idle, MIB, Report, Write, mebibytes};

/// Which goals were missed, and by what figures.
pub(super) fn missed(report: &Report) -> Vec<String> {
    let mut missed = Vec::new();
    let mut goal = |reached: bool, what: String| {
        if !reached {
            missed.push(what);
        }
    };
    if let Some(write) = &report.write {
        of_write(write, &mut goal);
    }
    if let Some(idle) = &report.idle {
        of_idle(idle, &mut goal);
    }
    if let Some(cluster) = &report.cluster {
        of_cluster(cluster, &mut goal);
    }
    missed
}

fn of_write(write: &Write, goal: &mut impl FnMut(bool, String)) {
    goal(
        write.ratio <= 1.0,
        format!("ratio {:.2} > 1.0", write.ratio),
    );
    for peak in &write.peaks {
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
    if let [smallest, .., largest] = write.peaks.as_slice() {
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
    let cache = write.slotd.cache_growth;
    goal(
        cache <= 8 * MIB,
        format!("the page cache grew by {:.1} MiB > 8 MiB", mebibytes(cache)),
    );
}

fn of_idle(idle: &Idle, goal: &mut impl FnMut(bool, String)) {
    goal(
        idle.anonymous <= 8 * MIB,
        format!("idle agent {:.1} MiB > 8 MiB", mebibytes(idle.anonymous)),
    );
    goal(
        idle.switches_per_minute <= 2.0,
        format!(
            "idle agent {:.1} context switches a minute > 2",
            idle.switches_per_minute
        ),
    );
}

fn of_cluster(cluster: &Cluster, goal: &mut impl FnMut(bool, String)) {
    let each = cluster.writes.each();
    goal(
        each <= 20.0,
        format!("{each:.1} API writes for each node and upgrade > 20"),
    );
    let seconds = cluster.median_first_request();
    goal(
        seconds <= 2.0,
        format!("{seconds:.2} s from kubectl apply to the first byte asked for > 2 s"),
    );
    goal(
        cluster.idle_agent <= 16 * MIB,
        format!(
            "idle agent with a watch open {:.1} MiB > 16 MiB",
            mebibytes(cluster.idle_agent)
        ),
    );
    let crowd = &cluster.crowd;
    goal(
        crowd.most <= 64 * MIB,
        format!(
            "controller with {} progress objects {:.1} MiB > 64 MiB",
            crowd.objects,
            mebibytes(crowd.most)
        ),
    );
}

#[cfg(test)]
mod tests {
    use super::missed;
    use crate::bench::meter::Reading;
    use crate::bench::{Cluster, Crowd, Idle, MIB, Peak, Report, Write, Writes};

    fn report(peaks: [(u64, u64, u64); 3]) -> Report {
        let reading = Reading {
            seconds: 1.0,
            cpu_seconds: 1.0,
            anonymous: 10 * MIB,
            cache_growth: 0,
        };
        let write = Write {
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
        };
        Report {
            write: Some(write),
            idle: Some(Idle {
                anonymous: 8 * MIB,
                switches_per_minute: 2.0,
            }),
            cluster: Some(cluster()),
            missed: Vec::new(),
        }
    }

    /// One that reaches every goal just so.
    fn cluster() -> Cluster {
        Cluster {
            writes: Writes {
                upgrades: 15,
                agents: 180,
                controller: 120,
                evictions: 90,
                leases: 50,
            },
            first_request: vec![9.0, 1.0, 2.0],
            idle_agent: 16 * MIB,
            crowd: Crowd {
                objects: 500,
                settled: 40 * MIB,
                most: 64 * MIB,
            },
        }
    }

    #[test]
    fn each_goal_of_the_cluster_is_missed_by_its_own_figure() {
        let with = |change: fn(&mut Cluster)| {
            let mut cluster = cluster();
            change(&mut cluster);
            missed(&Report {
                cluster: Some(cluster),
                ..Report::default()
            })
        };
        assert_eq!(with(|_| ()), Vec::<String>::new());
        type Change = fn(&mut Cluster);
        let cases: [(Change, &str); 4] = [
            (
                |cluster| cluster.writes.controller += 1,
                "20.1 API writes for each node and upgrade > 20",
            ),
            (
                |cluster| cluster.first_request = vec![2.1, 2.1, 0.0],
                "2.10 s from kubectl apply to the first byte asked for > 2 s",
            ),
            (
                |cluster| cluster.idle_agent += MIB,
                "idle agent with a watch open 17.0 MiB > 16 MiB",
            ),
            (
                |cluster| cluster.crowd.most += MIB,
                "controller with 500 progress objects 65.0 MiB > 64 MiB",
            ),
        ];
        for (change, said) in cases {
            assert_eq!(with(change), [said]);
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
