use std::cell::{Cell, RefCell};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use slotd_image::Cancel;

use super::round::tail;
use super::{
    HealthEvent, HealthSettings, HttpCheck, Node, Probed, Script, ScriptEnd, UnitState, Verdict,
    run_on,
};

/// A machine whose answers are given; each list's last answer stays.
#[derive(Default)]
struct Made {
    /// Unit states, one a look.
    units: Vec<&'static str>,
    failed: Vec<Vec<&'static str>>,
    probe: Vec<Probed>,
    script: Vec<ScriptEnd>,
    files: Vec<&'static str>,
    starting: Vec<&'static str>,
    looks: RefCell<std::collections::BTreeMap<&'static str, usize>>,
    stop_at_script: Option<Cancel>,
    scripts_run: Cell<usize>,
}

impl Made {
    fn next<T: Clone>(&self, what: &'static str, answers: &[T]) -> Option<T> {
        let mut looks = self.looks.borrow_mut();
        let at = looks.entry(what).or_default();
        let answer = answers.get(*at).or(answers.last()).cloned();
        *at += 1;
        answer
    }
}

impl Node for Made {
    fn unit(&self, unit: &str) -> Result<UnitState, String> {
        let active = if unit == "basic.target" {
            "active"
        } else {
            self.next("unit", &self.units).unwrap_or("active")
        };
        if active == "no answer" {
            return Err("no answer from PID 1".to_owned());
        }
        let load = if active == "missing" {
            "not-found"
        } else {
            "loaded"
        };
        Ok(UnitState::parse(&format!(
            "LoadState={load}\nActiveState={active}\nSubState=x\n"
        )))
    }

    fn failed_units(&self) -> Result<Vec<String>, String> {
        let failed = self.next("failed", &self.failed).unwrap_or_default();
        Ok(failed.into_iter().map(str::to_owned).collect())
    }

    fn starting_units(&self) -> Result<Vec<String>, String> {
        Ok(self
            .starting
            .iter()
            .map(|unit| (*unit).to_owned())
            .collect())
    }

    fn explain(&self, unit: &str) -> Option<String> {
        (!unit.is_empty()).then(|| format!("journal of {unit}"))
    }

    fn has(&self, file: &Path) -> bool {
        self.files.iter().any(|there| Path::new(there) == file)
    }

    fn probe(&self, _: &HttpCheck, _: Duration) -> Probed {
        self.next("probe", &self.probe).unwrap_or(Probed::Passed)
    }

    fn script(&self, _: &Script, _: Duration, _: &Cancel) -> ScriptEnd {
        self.scripts_run.set(self.scripts_run.get() + 1);
        if let Some(cancel) = &self.stop_at_script {
            cancel.cancel();
        }
        self.next("script", &self.script)
            .unwrap_or(ScriptEnd::Succeeded)
    }
}

fn settings(units: &[&str]) -> HealthSettings {
    HealthSettings {
        units: units.iter().map(|unit| (*unit).to_owned()).collect(),
        script_folders: Vec::new(),
        pauses: (Duration::from_millis(1), Duration::from_millis(2)),
        patience: Duration::from_millis(5),
        ..HealthSettings::default()
    }
}

fn with_scripts(kind: &str, names: &[&str]) -> (tempfile::TempDir, HealthSettings) {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join(kind)).unwrap();
    for name in names {
        fs::write(dir.path().join(kind).join(name), "").unwrap();
    }
    let settings = HealthSettings {
        script_folders: vec![PathBuf::from(dir.path())],
        ..settings(&[])
    };
    (dir, settings)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(200)
}

fn later() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn judged(node: &Made, settings: &HealthSettings, deadline: Instant) -> Verdict {
    run_on(node, settings, deadline, &Cancel::default(), &|_| {})
}

#[test]
fn a_machine_with_nothing_to_check_is_healthy() {
    assert_eq!(
        judged(&Made::default(), &settings(&[]), later()),
        Verdict::Healthy
    );
}

#[test]
fn a_unit_that_still_starts_is_waited_for() {
    let node = Made {
        units: vec!["no answer", "inactive", "activating", "active"],
        ..Made::default()
    };
    assert_eq!(
        judged(&node, &settings(&["a.service"]), later()),
        Verdict::Healthy
    );
}

#[test]
fn a_unit_that_never_starts_is_late_and_named() {
    let node = Made {
        units: vec!["activating"],
        ..Made::default()
    };
    let verdict = judged(&node, &settings(&["a.service"]), soon());
    assert_eq!(
        verdict,
        Verdict::Late {
            check: "unit a.service".to_owned(),
            output: "a.service is activating (x)\njournal of a.service".to_owned(),
        }
    );
}

#[test]
fn a_unit_that_stays_failed_is_not_waited_for_until_the_deadline() {
    let node = Made {
        units: vec!["failed"],
        ..Made::default()
    };
    let verdict = judged(&node, &settings(&["a.service"]), later());
    assert!(
        matches!(&verdict, Verdict::Unhealthy { check, output }
            if check == "unit a.service" && output.contains("a.service is failed")),
        "{verdict:?}"
    );
}

#[test]
fn a_unit_that_failed_and_started_again_is_healthy() {
    let node = Made {
        units: vec!["failed", "activating", "failed", "active"],
        ..Made::default()
    };
    assert_eq!(
        judged(&node, &settings(&["a.service"]), later()),
        Verdict::Healthy
    );
}

#[test]
fn a_unit_that_is_not_there_fails_at_once() {
    let node = Made {
        units: vec!["missing"],
        ..Made::default()
    };
    let verdict = judged(&node, &settings(&["a.service"]), later());
    assert!(matches!(verdict, Verdict::Unhealthy { .. }), "{verdict:?}");
}

#[test]
fn the_kubelet_is_asked_only_where_one_is_configured() {
    let refused = vec![Probed::NotYet("refused".to_owned())];
    let without = Made {
        probe: refused.clone(),
        files: vec!["/etc/kubernetes/manifests"],
        ..Made::default()
    };
    assert_eq!(judged(&without, &settings(&[]), soon()), Verdict::Healthy);
    let with = |file| Made {
        probe: refused.clone(),
        files: vec!["/etc/kubernetes/manifests", file],
        ..Made::default()
    };
    for sign in [
        "/var/lib/kubelet/config.yaml",
        "/etc/kubernetes/kubelet.conf",
    ] {
        assert_eq!(
            judged(&with(sign), &settings(&[]), soon()),
            Verdict::Late {
                check: "http kubelet".to_owned(),
                output: "refused".to_owned(),
            },
            "{sign}"
        );
    }
    // There was one before, and the image lost it.
    let lost = HealthSettings {
        kubelet_before: true,
        ..settings(&[])
    };
    let verdict = judged(&without, &lost, soon());
    assert!(
        matches!(&verdict, Verdict::Late { check, .. } if check == "http kubelet"),
        "{verdict:?}"
    );
    let with = with("/etc/kubernetes/kubelet.conf");
    let none = HealthSettings {
        http: Some(Vec::new()),
        ..lost
    };
    assert_eq!(judged(&with, &none, soon()), Verdict::Healthy);
}

#[test]
fn a_unit_that_starts_for_ever_does_not_take_the_time_of_the_scripts() {
    let (_dir, settings) = with_scripts("required.d", &["10-api"]);
    let node = Made {
        starting: vec!["slow.service"],
        ..Made::default()
    };
    assert_eq!(judged(&node, &settings, soon()), Verdict::Healthy);
    assert_eq!(node.scripts_run.get(), 1);
}

#[test]
fn a_failing_required_script_is_final_and_its_output_is_kept() {
    let (_dir, settings) = with_scripts("required.d", &["10-api", "20-never"]);
    let node = Made {
        script: vec![ScriptEnd::Failed {
            output: "no API\nexit status 1".to_owned(),
        }],
        ..Made::default()
    };
    assert_eq!(
        judged(&node, &settings, later()),
        Verdict::Unhealthy {
            check: "required.d/10-api".to_owned(),
            output: "no API\nexit status 1".to_owned(),
        }
    );
    assert_eq!(node.scripts_run.get(), 1);
}

#[test]
fn attempts_allow_a_script_to_fail_first() {
    let (_dir, mut settings) = with_scripts("required.d", &["10-api"]);
    settings.attempts = 3;
    let node = Made {
        script: vec![
            ScriptEnd::Failed {
                output: String::new(),
            },
            ScriptEnd::Succeeded,
        ],
        ..Made::default()
    };
    assert_eq!(judged(&node, &settings, later()), Verdict::Healthy);
}

#[test]
fn a_failing_wanted_script_is_told_and_decides_nothing() {
    let (_dir, settings) = with_scripts("wanted.d", &["nice"]);
    let node = Made {
        script: vec![ScriptEnd::Failed {
            output: "meh".to_owned(),
        }],
        ..Made::default()
    };
    let told = RefCell::new(Vec::new());
    let verdict = run_on(&node, &settings, later(), &Cancel::default(), &|event| {
        told.borrow_mut().push(event);
    });
    assert_eq!(verdict, Verdict::Healthy);
    assert!(told.borrow().contains(&HealthEvent::WantedFailed {
        check: "wanted.d/nice".to_owned(),
        output: "meh".to_owned(),
    }));
}

#[test]
fn only_units_that_did_not_fail_before_count() {
    let node = Made {
        failed: vec![vec!["old.service", "slotd-check-1-x-0.service"]],
        ..Made::default()
    };
    let mut settings = settings(&[]);
    settings.failed_before = Some(vec!["old.service".to_owned()]);
    assert_eq!(judged(&node, &settings, later()), Verdict::Healthy);

    let node = Made {
        failed: vec![vec!["old.service", "new.service"]],
        ..Made::default()
    };
    let verdict = judged(&node, &settings, later());
    assert!(
        matches!(&verdict, Verdict::Unhealthy { check, output }
            if check == "no newly failed units" && output.contains("new.service")
                && !output.contains("old.service")),
        "{verdict:?}"
    );
    settings.failed_before = None;
    assert_eq!(judged(&node, &settings, later()), Verdict::Healthy);
}

#[test]
fn being_told_to_stop_is_no_verdict() {
    let (_dir, settings) = with_scripts("required.d", &["10-api"]);
    let cancel = Cancel::default();
    let node = Made {
        stop_at_script: Some(cancel.clone()),
        script: vec![ScriptEnd::Failed {
            output: "killed".to_owned(),
        }],
        ..Made::default()
    };
    let verdict = run_on(&node, &settings, later(), &cancel, &|_| {});
    assert_eq!(verdict, Verdict::Cancelled);
}

#[test]
fn the_end_of_a_long_output_is_kept() {
    let long = format!("{}ä\nlast line", "ö".repeat(5000));
    let kept = tail(&long);
    assert!(
        kept.len() <= super::OUTPUT_LIMIT + "…".len(),
        "{}",
        kept.len()
    );
    assert!(
        kept.ends_with("last line") && kept.starts_with('…'),
        "{kept}"
    );
    assert_eq!(tail("short\n"), "short");
}
