mod reset;

use std::fs;
use std::path::Path;
use std::time::Duration;

use slotd_bootctl::SlotSettings;

use super::{ConfigError, Settings, load};
use crate::error::ErrorKind;

fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir
}

fn settings(files: &[(&str, &str)]) -> Settings {
    load(root(files).path()).unwrap()
}

/// The error's text, with the root's own path taken off.
fn refused(files: &[(&str, &str)]) -> String {
    let dir = root(files);
    let error = load(dir.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    error
        .to_string()
        .replace(&format!("{}/", dir.path().display()), "")
}

#[test]
fn without_any_file_everything_has_its_default() {
    let settings = settings(&[]);
    assert!(matches!(settings.slots, SlotSettings::Auto));
    assert_eq!(settings.state_directory, Path::new("/var/lib/slotd"));
    assert_eq!(settings.trial.tries, 3);
    assert_eq!(settings.trial.deadline, Duration::from_secs(600));
    assert_eq!(settings.boot.panic_seconds, 10);
    assert!(settings.install.require_agent && settings.install.require_checksum);
    assert_eq!(settings.fetch().unwrap().window_limit, 134_217_728);
    assert!(
        settings
            .shown()
            .iter()
            .all(|value| value.origin == "default")
    );
}

#[test]
fn a_file_of_comments_changes_nothing() {
    let settings = settings(&[("etc/slotd/config.yaml", "# nothing yet\n")]);
    assert_eq!(settings.trial.tries, 3);
}

#[test]
fn later_files_win_key_by_key_and_maps_are_merged() {
    let dir = root(&[
        (
            "usr/lib/slotd/config.yaml",
            "trial:\n  tries: 2\n  deadline: 5m\nfetch:\n  origins: ['https://h']\n  headers:\n    X-One: vendor\n    X-Two: vendor\n",
        ),
        (
            "etc/slotd/config.yaml",
            "trial: {deadline: 7m}\nversionKey: BUILD_ID\n",
        ),
        (
            "etc/slotd/config.d/20-b.yaml",
            "health: {units: [b.service]}\n",
        ),
        (
            "etc/slotd/config.d/10-a.yaml",
            "health:\n  units: [a.service, c.service]\nfetch:\n  headers: {X-Two: site}\n",
        ),
    ]);
    let settings = load(dir.path()).unwrap();
    assert_eq!(settings.trial.tries, 2);
    assert_eq!(settings.trial.deadline, Duration::from_secs(420));
    assert_eq!(settings.version_key, "BUILD_ID");
    assert_eq!(settings.health.units, ["b.service"]);
    let headers: Vec<(String, String)> = settings
        .fetch()
        .unwrap()
        .headers
        .into_iter()
        .map(|(name, value)| (name, value.expose().to_owned()))
        .collect();
    assert_eq!(
        headers,
        [("X-One", "vendor"), ("X-Two", "site")].map(|(a, b)| (a.to_owned(), b.to_owned()))
    );

    let origin = |key: &str| {
        let shown = settings
            .shown()
            .iter()
            .find(|value| value.key == key)
            .unwrap();
        shown
            .origin
            .replace(&format!("{}/", dir.path().display()), "")
    };
    assert_eq!(origin("trial.tries"), "usr/lib/slotd/config.yaml:2");
    assert_eq!(origin("trial.deadline"), "etc/slotd/config.yaml:1");
    assert_eq!(origin("health.units"), "etc/slotd/config.d/20-b.yaml:1");
    assert_eq!(
        origin("fetch.headers.X-Two"),
        "etc/slotd/config.d/10-a.yaml:4"
    );
    assert_eq!(origin("boot.panic"), "default");
}

#[test]
fn unknown_keys_are_errors_with_file_and_line() {
    let said = refused(&[("etc/slotd/config.yaml", "trial:\n  tries: 3\n  tires: 4\n")]);
    assert!(said.starts_with("etc/slotd/config.yaml:3: "), "{said}");
    assert!(said.contains("tires"), "{said}");
    let said = refused(&[("etc/slotd/config.yaml", "\nversionKeys: A\n")]);
    assert!(said.starts_with("etc/slotd/config.yaml:2: "), "{said}");
}

#[test]
fn wrong_types_are_errors_with_file_and_line() {
    for (text, line, says) in [
        ("trial:\n  tries: many\n", 2, "tries: a number"),
        ("trial:\n  tries: -1\n", 2, ""),
        ("trial:\n  deadline: 10\n", 2, "`10` is no duration"),
        ("trial: 3\n", 1, ""),
        ("health:\n  units: kubelet.service\n", 2, ""),
        (
            "health:\n  http:\n  - name: x\n    url: nonsense\n",
            4,
            "not a URL",
        ),
        ("health:\n  http:\n  - nam: x\n", 3, "nam"),
        ("slots:\n  a: LABEL=root\n  b: /dev/x\n", 2, ""),
        ("stateDirectory: lib\n", 1, "`lib` is not an absolute path"),
        ("loader: lilo\n", 1, "lilo"),
        ("trial: {tries: 3\n", 1, "unclosed"),
    ] {
        let said = refused(&[("etc/slotd/config.d/x.yaml", text)]);
        assert!(
            said.starts_with(&format!("etc/slotd/config.d/x.yaml:{line}: ")),
            "{text}: {said}"
        );
        assert!(said.contains(says), "{text}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn values_that_cannot_work_are_errors_with_their_place() {
    for (text, says) in [
        ("slots: {a: PARTLABEL=x}\n", "slots.b is missing"),
        (
            "slots: {a: PARTLABEL=x, b: PARTLABEL=x}\n",
            "both slots are the same",
        ),
        ("trial: {tries: 0}\n", "trial.tries: it has to be 1 to 15"),
        ("trial: {deadline: 3s}\n", "trial.deadline"),
        ("boot: {panic: 0}\n", "boot.panic"),
    ] {
        let said = refused(&[("etc/slotd/config.yaml", text)]);
        assert!(said.starts_with("etc/slotd/config.yaml:1: "), "{said}");
        assert!(said.contains(says), "{said}");
    }
}

#[test]
fn a_node_with_a_credential_for_its_cluster_is_taken_for_one_with_a_kubelet() {
    use std::path::Path;

    let path = "/etc/rancher/kubelet.kubeconfig";
    let text = format!("kubernetes: {{kubeconfig: {path}}}\n");
    for (files, asked) in [
        (vec![("etc/slotd/config.yaml", text.as_str())], true),
        (vec![], false),
    ] {
        let signs = settings(&files).health.kubelet;
        assert_eq!(signs.iter().any(|sign| sign == Path::new(path)), asked);
        assert!(signs.iter().any(|sign| sign.ends_with("kubelet.conf")));
    }
}

#[test]
fn headers_are_never_shown() {
    let settings = settings(&[(
        "etc/slotd/config.yaml",
        "fetch: {origins: ['https://h'], headers: {X-Key: hunter2}, proxy: 'http://me:hunter2@proxy:1'}\n",
    )]);
    let shown = format!("{:?} {settings:?}", settings.shown());
    assert!(!shown.contains("hunter2"), "{shown}");
    let shown = serde_json::to_string(settings.shown()).unwrap();
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn a_bearer_token_is_read_when_it_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    let text = format!(
        "fetch: {{origins: ['https://h'], bearerTokenFile: {}}}\n",
        token.display()
    );
    let settings = settings(&[("etc/slotd/config.yaml", &text)]);
    assert!(matches!(settings.fetch(), Err(ConfigError::Read { .. })));
    fs::write(&token, "first\n").unwrap();
    assert_eq!(
        settings.fetch().unwrap().bearer_token.unwrap().expose(),
        "first"
    );
    fs::write(&token, "second\n").unwrap();
    assert_eq!(
        settings.fetch().unwrap().bearer_token.unwrap().expose(),
        "second"
    );
}

#[test]
fn credentials_need_the_origins_that_they_belong_to() {
    for (text, key) in [
        (
            "\nfetch: {bearerTokenFile: /etc/token}\n",
            "fetch.bearerTokenFile",
        ),
        ("fetch:\n  headers: {X-Api-Key: hunter2}\n", "fetch.headers"),
        (
            "fetch:\n  clientCertificate: /etc/node.pem\n",
            "fetch.clientCertificate",
        ),
        (
            "fetch: {origins: [],\n  clientCertificate: /etc/node.pem}\n",
            "fetch.clientCertificate",
        ),
    ] {
        let said = refused(&[("etc/slotd/config.yaml", text)]);
        let start = format!("etc/slotd/config.yaml:2: {key}: fetch.origins is missing");
        assert!(said.starts_with(&start), "{text}: {said}");
        assert!(!said.contains("hunter2"), "{said}");
        let origins = "fetch: {origins: ['https://updates.example.com', 'https://[::1]:8443']}\n";
        let with = settings(&[
            ("etc/slotd/config.yaml", text),
            ("etc/slotd/config.d/10-origins.yaml", origins),
        ]);
        let shown = with
            .shown()
            .iter()
            .find(|shown| shown.key == "fetch.origins");
        assert_eq!(
            shown.unwrap().value,
            serde_json::json!(["https://updates.example.com", "https://[::1]:8443"])
        );
    }
    // None are needed where a credential was taken away again.
    let taken = "fetch: {headers: {X-Api-Key: null}}\n";
    settings(&[
        (
            "usr/lib/slotd/config.yaml",
            "fetch: {headers: {X-Api-Key: hunter2}}\n",
        ),
        ("etc/slotd/config.yaml", taken),
    ]);
}

#[test]
fn a_header_named_twice_in_one_file_is_an_error_that_names_both() {
    let start = "fetch:\n  origins: ['https://h']\n  headers:\n";
    for (headers, line, names) in [
        (
            "    x-key: hunter2\n    X-Other: x\n    X-Key: hunter3\n",
            6,
            "X-Key is the header x-key of line 4",
        ),
        (
            "    X-KEY: null\n    x-key: hunter2\n",
            5,
            "x-key is the header X-KEY of line 4",
        ),
        ("    X-Key: hunter2\n    X-Key: hunter3\n", 5, "X-Key"),
    ] {
        let said = refused(&[("etc/slotd/config.yaml", &format!("{start}{headers}"))]);
        let place = format!("etc/slotd/config.yaml:{line}: ");
        assert!(said.starts_with(&place) && said.contains(names), "{said}");
        assert!(!said.contains("hunter"), "{said}");
    }
    // In two files the later one wins.
    let one = format!("{start}    x-key: one\n");
    let settings = settings(&[
        ("usr/lib/slotd/config.yaml", &one),
        ("etc/slotd/config.yaml", "fetch: {headers: {X-Key: two}}\n"),
    ]);
    assert_eq!(settings.fetch().unwrap().headers[0].0, "X-Key");
}

#[test]
fn what_is_no_origin_is_an_error_with_its_line() {
    for wrong in [
        "https://me:hunter2@updates.example.com",
        "https://updates.example.com/hunter2",
        "https://*.example.com",
        "http://hunter2.example.com",
        "hunter2",
    ] {
        let text = format!("fetch:\n  origins:\n  - https://updates.example.com\n  - {wrong}\n");
        let said = refused(&[("etc/slotd/config.yaml", &text)]);
        assert!(said.starts_with("etc/slotd/config.yaml:4: "), "{said}");
        assert!(said.contains("not an origin"), "{said}");
        assert!(
            !said.contains("hunter2") && !said.contains("4: https: "),
            "{said}"
        );
    }
}

#[test]
fn the_controllers_keys_are_read_checked_and_shown() {
    use crate::controller::ControllerAccess;

    let usual = settings(&[]).controller;
    assert_eq!(usual.access, ControllerAccess::default());
    assert_eq!(usual.namespace, "kube-system");
    assert!(!usual.asked_for);
    let text = "controller: {kubeconfig: /etc/other.kubeconfig, namespace: ops-1}";
    let given = settings(&[("etc/slotd/config.yaml", text)]);
    let shown: Vec<_> = given
        .shown()
        .iter()
        .filter(|shown| shown.key.starts_with("controller."))
        .map(|shown| (shown.key.as_str(), shown.value.as_str().unwrap()))
        .collect();
    assert_eq!(
        shown,
        [
            ("controller.kubeconfig", "/etc/other.kubeconfig"),
            ("controller.namespace", "ops-1")
        ]
    );
    let given = given.controller;
    assert!(given.asked_for && given.namespace == "ops-1");
    let path = std::path::PathBuf::from("/etc/other.kubeconfig");
    assert_eq!(given.access, ControllerAccess::Kubeconfig(path));
    for (text, said) in [
        (
            "controller: {kubeconfig: here}",
            "`here` is not an absolute path",
        ),
        ("controller: {namespace: Ops}", "`Ops` is no namespace"),
        ("controller: {namespace: ''}", "`` is no namespace"),
        ("controller: {namespace: a-}", "`a-` is no namespace"),
        ("controller: {nodes: 1}", "nodes"),
    ] {
        let dir = root(&[("etc/slotd/config.yaml", text)]);
        let error = load(dir.path()).unwrap_err().to_string();
        assert!(
            error.contains("config.yaml:1: ") && error.contains(said),
            "{error}"
        );
    }
}
