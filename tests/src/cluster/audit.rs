//! The API server's audit log: who asked for what, and how often.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

/// A request that the API server answered; a watch is one, too, when it ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiRequest {
    /// Whose credential it came with; empty for one that was not accepted.
    pub user: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` and so on.
    pub verb: String,
    /// The kind, in the plural, such as `nodes`.
    pub resource: String,
    /// Such as `status`; empty for the object itself.
    pub subresource: String,
    /// Empty for what is in none.
    pub namespace: String,
    /// Empty where it is about no single object.
    pub name: String,
    /// The HTTP status of the answer.
    pub code: u16,
    /// When it came.
    pub received: Timestamp,
}

impl ApiRequest {
    /// Whether it asked for a change.
    pub fn is_write(&self) -> bool {
        !["get", "list", "watch"].contains(&self.verb.as_str())
    }

    fn read(line: &str) -> Result<Option<Self>> {
        let event: Value = serde_json::from_str(line).context("a line of the audit log")?;
        // A watch is told at its start, too; what comes with a credential that is not accepted, at its start only.
        let refused = event["responseStatus"]["code"] == 401;
        if event["stage"] != "ResponseComplete" && !refused {
            return Ok(None);
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let object = &event["objectRef"];
        Ok(Some(Self {
            user: text(&event["user"]["username"]),
            verb: text(&event["verb"]),
            resource: text(&object["resource"]),
            subresource: text(&object["subresource"]),
            namespace: text(&object["namespace"]),
            name: text(&object["name"]),
            code: event["responseStatus"]["code"]
                .as_u64()
                .and_then(|code| code.try_into().ok())
                .unwrap_or(0),
            received: text(&event["requestReceivedTimestamp"])
                .parse()
                .context("the time of a request")?,
        }))
    }
}

/// The audit log, read from where it was at some moment.
#[derive(Debug, Clone)]
pub struct AuditLog {
    path: PathBuf,
    from: u64,
}

impl AuditLog {
    /// The log in this file, from now on.
    pub(super) fn from_now(path: PathBuf) -> Result<Self> {
        let from = std::fs::metadata(&path)
            .with_context(|| format!("looking at {}", path.display()))?
            .len();
        Ok(Self { path, from })
    }

    /// What was answered since. The API server writes a line before it answers, so what a test has seen done is there.
    pub fn requests(&self) -> Result<Requests> {
        let mut text = String::new();
        let mut file =
            File::open(&self.path).with_context(|| format!("opening {}", self.path.display()))?;
        file.seek(SeekFrom::Start(self.from))
            .and_then(|_| file.read_to_string(&mut text))
            .with_context(|| format!("reading {}", self.path.display()))?;
        // What follows the last end of a line is being written.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let requests = whole
            .lines()
            .filter_map(|line| ApiRequest::read(line).transpose());
        Ok(Requests(requests.collect::<Result<_>>()?))
    }
}

/// Requests, to be counted.
#[derive(Debug, Clone)]
pub struct Requests(Vec<ApiRequest>);

impl Requests {
    /// These, as if they had been read.
    #[cfg(test)]
    pub(crate) fn of(requests: Vec<ApiRequest>) -> Self {
        Self(requests)
    }

    /// One by one, in the order in which they were answered.
    pub fn all(&self) -> &[ApiRequest] {
        &self.0
    }

    /// Those that are meant.
    #[must_use]
    pub fn filter(&self, meant: impl Fn(&ApiRequest) -> bool) -> Self {
        let meant = self.0.iter().filter(|request| meant(request));
        Self(meant.cloned().collect())
    }

    /// Those of one user.
    #[must_use]
    pub fn of_user(&self, user: &str) -> Self {
        self.filter(|request| request.user == user)
    }

    /// Those that asked for a change, renewals of Leases left out.
    #[must_use]
    pub fn writes(&self) -> Self {
        self.filter(|request| request.is_write() && request.resource != "leases")
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// How many of each user.
    pub fn by_user(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for request in &self.0 {
            *counts.entry(request.user.clone()).or_insert(0) += 1;
        }
        counts
    }

    /// How many of each kind, all nodes taken together: `nodes patch osupgradeprogresses/status`, and so on.
    pub fn by_kind(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for request in &self.0 {
            let user = if request.user.starts_with("system:node:") {
                "nodes"
            } else {
                &request.user
            };
            let mut kind = format!("{user} {} {}", request.verb, request.resource);
            if !request.subresource.is_empty() {
                kind = format!("{kind}/{}", request.subresource);
            }
            *counts.entry(kind).or_insert(0) += 1;
        }
        counts
    }

    /// The most requests that came within any span of this length.
    pub fn most_within(&self, span: Duration) -> usize {
        most_within(self.0.iter().map(|request| request.received), span)
    }
}

/// The most of these times that lie within any span of this length.
pub fn most_within(times: impl IntoIterator<Item = Timestamp>, span: Duration) -> usize {
    let mut times: Vec<Timestamp> = times.into_iter().collect();
    times.sort();
    let mut first = 0;
    let mut most = 0;
    for (index, time) in times.iter().enumerate() {
        while time.duration_since(times[first]).unsigned_abs() >= span {
            first += 1;
        }
        most = most.max(index + 1 - first);
    }
    most
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Duration;

    use serde_json::json;

    use super::AuditLog;

    fn line(user: &str, verb: &str, resource: &str, second: u32, stage: &str) -> String {
        let event = json!({
            "stage": stage,
            "verb": verb,
            "user": {"username": user},
            "objectRef": {"resource": resource, "name": "x", "apiVersion": "v1"},
            "responseStatus": {"metadata": {}, "code": 200},
            "requestReceivedTimestamp": format!("2026-12-01T10:00:{second:02}.500000Z"),
        });
        format!("{event}\n")
    }

    #[test]
    fn requests_are_counted_by_kind_whichever_node_they_come_from() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let done = "ResponseComplete";
        std::fs::write(&path, "").unwrap();
        let log = AuditLog::from_now(path.clone()).unwrap();
        let evict = |user| {
            let line = line(user, "create", "pods", 1, done);
            line.replace(r#""name":"x""#, r#""name":"x","subresource":"eviction""#)
        };
        let lines = [
            evict("system:node:a"),
            evict("system:node:b"),
            line("slotd-controller", "patch", "osupgrades", 2, done),
        ];
        std::fs::write(path, lines.concat()).unwrap();
        let kinds = log.requests().unwrap().by_kind();
        let kinds: Vec<(&str, usize)> = kinds.iter().map(|(kind, n)| (kind.as_str(), *n)).collect();
        assert_eq!(
            kinds,
            [
                ("nodes create pods/eviction", 2),
                ("slotd-controller patch osupgrades", 1)
            ]
        );
    }

    #[test]
    fn writes_are_counted_by_user_and_renewals_apart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let done = "ResponseComplete";
        std::fs::write(&path, line("a", "patch", "nodes", 0, done)).unwrap();
        let log = AuditLog::from_now(path.clone()).unwrap();
        let mut file = std::fs::File::options().append(true).open(path).unwrap();
        for line in [
            line("a", "patch", "nodes", 1, done),
            line("a", "get", "nodes", 1, done),
            line("a", "update", "leases", 2, done),
            line("b", "create", "pods", 3, done),
            line("b", "watch", "pods", 4, "ResponseStarted"),
            line("b", "delete", "pods", 5, done),
            "{\"half\": ".to_owned(),
        ] {
            file.write_all(line.as_bytes()).unwrap();
        }
        let requests = log.requests().unwrap();
        assert_eq!(requests.count(), 5);
        let writes = requests.writes();
        let by_user: Vec<(String, usize)> = writes.by_user().into_iter().collect();
        assert_eq!(by_user, [("a".to_owned(), 1), ("b".to_owned(), 2)]);
        assert_eq!(requests.of_user("a").count(), 3);
        assert_eq!(requests.most_within(Duration::from_secs(1)), 2);
        assert_eq!(requests.most_within(Duration::from_secs(3)), 4);
    }
}
