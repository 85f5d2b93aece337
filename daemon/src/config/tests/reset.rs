//! `null` in a later file.

use super::{load, refused, root, settings};

/// Values of all kinds, in the vendor's file.
const EVERYTHING: &str = "
slots: {a: PARTLABEL=x, b: PARTLABEL=y}
loader: systemd-boot
esp: /efi
grub: {environment: /efi/grub/grubenv, convention: rauc}
uboot: {config: /etc/other.config, convention: 'bootcount:mender_boot_part=2,3'}
stateDirectory: /data/slotd
versionKey: BUILD_ID
trial: {tries: 2, deadline: 5m}
boot: {options: quiet, panic: 3}
health:
  units: [a.service]
  http: [{name: x, url: 'http://localhost'}]
  scriptTimeout: 5s
  attempts: 4
fetch:
  caBundle: /etc/ca.pem
  origins: ['https://updates.example.com', 'http://localhost:8000']
  bearerTokenFile: /etc/token
  headers: {X-One: one, X-Two: two}
  clientCertificate: /etc/node.pem
  proxy: http://proxy:3128
  connectTimeout: 1s
  idleTimeout: 2s
  deadline: 1h
  retries: 1
  rateLimit: 1MiB
  windowLimit: 8MiB
install: {requireAgent: false, requireChecksum: false}
kubernetes: {kubeconfig: none}
controller: {kubeconfig: in-cluster, namespace: ops}
";

/// Key, value and origin of all that is shown, with `text` behind [`EVERYTHING`].
fn shown_after(text: &str) -> Vec<(String, serde_json::Value, String)> {
    let dir = root(&[
        ("usr/lib/slotd/config.yaml", EVERYTHING),
        ("etc/slotd/config.yaml", text),
    ]);
    let settings = load(dir.path()).unwrap();
    let place = format!("{}/", dir.path().display());
    let shown = settings.shown().iter();
    shown
        .map(|shown| {
            let origin = shown.origin.replace(&place, "");
            (shown.key.clone(), shown.value.clone(), origin)
        })
        .collect()
}

fn default_of(key: &str) -> serde_json::Value {
    let shown = settings(&[]).shown().to_vec();
    let known = shown.into_iter().find(|shown| shown.key == key);
    known.map_or(serde_json::Value::Null, |shown| shown.value)
}

#[test]
fn null_takes_every_key_back_to_its_default_and_touches_no_other() {
    let before = shown_after("");
    // Keys that make no sense without each other go together.
    let alone = |key: &&(String, _, _)| !["slots.a", "slots.b", "fetch.origins"].contains(&&*key.0);
    assert_eq!(
        before.iter().filter(alone).count(),
        settings(&[]).shown().len() - 1
    );
    for (key, value, origin) in before.iter().filter(alone) {
        assert!(
            origin.starts_with("usr/lib/slotd/config.yaml:"),
            "{key}: {origin}"
        );
        assert_ne!(*value, default_of(key), "{key}");
        let parts: Vec<&str> = key.split('.').collect();
        let (last, sections) = parts.split_last().unwrap();
        let mut text = "# a comment\n".to_owned();
        for (depth, section) in sections.iter().enumerate() {
            text += &format!("{}{section}:\n", "  ".repeat(depth));
        }
        text += &format!("{}{last}: null\n", "  ".repeat(sections.len()));
        let line = text.lines().count();
        let expected: Vec<_> = before
            .iter()
            .map(|other| match other.0 == *key {
                true => (
                    key.clone(),
                    default_of(key),
                    format!("etc/slotd/config.yaml:{line} (default)"),
                ),
                false => other.clone(),
            })
            .collect();
        assert_eq!(shown_after(&text), expected, "{text}");
    }
}

#[test]
fn null_for_a_map_takes_back_all_that_is_in_it() {
    for (text, prefix) in [
        ("slots: null\n", "slots."),
        ("trial: ~\n", "trial."),
        ("boot: null\n", "boot."),
        ("health: null\n", "health."),
        ("fetch: null\n", "fetch."),
        ("fetch: {headers: null}\n", "fetch.headers."),
        ("install: null\n", "install."),
    ] {
        for ((key, value, origin), before) in shown_after(text).into_iter().zip(shown_after("")) {
            if key.starts_with(prefix) {
                assert_eq!(value, default_of(&key), "{key}");
                assert_eq!(origin, "etc/slotd/config.yaml:1 (default)", "{key}");
            } else {
                assert_eq!((key, value, origin), before);
            }
        }
    }
    let settings = settings(&[
        ("usr/lib/slotd/config.yaml", EVERYTHING),
        ("etc/slotd/config.yaml", "fetch: null\n"),
        (
            "etc/slotd/config.d/a.yaml",
            "fetch: {headers: {X-Three: three}, origins: ['https://h']}\n",
        ),
    ]);
    let fetch = settings.fetch().unwrap();
    assert_eq!(fetch.headers.len(), 1);
    assert_eq!(fetch.headers[0].0, "X-Three");
    assert!(fetch.bearer_token.is_none() && fetch.proxy.is_none());
}

#[test]
fn a_header_is_overridden_whatever_its_case() {
    let shown = shown_after("fetch: {headers: {x-one: null, X-TWO: other}}\n");
    let headers: Vec<_> = shown
        .iter()
        .filter_map(|(key, value, _)| Some((key.strip_prefix("fetch.headers.")?, value.is_null())))
        .collect();
    assert_eq!(headers, [("X-TWO", false), ("x-one", true)]);
}

#[test]
fn a_key_without_any_value_is_an_error() {
    for (line, text) in [
        (1, "trial:\n"),
        (2, "\ntrial:\n#  tries: 2\nboot: {panic: 5}\n"),
        (2, "fetch:\n  proxy:\n"),
        (3, "fetch:\n  headers:\n    X-One:\n  retries: 3\n"),
        (1, "health: {units: }\n"),
        (2, "health:\n  units: # none\n"),
    ] {
        let said = refused(&[("etc/slotd/config.yaml", text)]);
        let start = format!("etc/slotd/config.yaml:{line}: ");
        assert!(said.starts_with(&start), "{text}: {said}");
        assert!(said.contains("has no value"), "{text}: {said}");
    }
}
