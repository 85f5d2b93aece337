//! What the API server said, for people.

use kube::runtime::watcher;

/// An error of a request: the server's own sentence, where there is one.
pub(super) fn error(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => causes(other),
    }
}

/// An error of a watch.
pub(super) fn watch(failure: &watcher::Error) -> String {
    match failure {
        watcher::Error::InitialListFailed(cause)
        | watcher::Error::WatchStartFailed(cause)
        | watcher::Error::WatchFailed(cause) => error(cause),
        watcher::Error::WatchError(status) => status.message.clone(),
        other => causes(other),
    }
}

/// An error and what caused it, each said once.
fn causes(error: &dyn std::error::Error) -> String {
    let mut said = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_said = cause.to_string();
        if !said.ends_with(&cause_said) {
            said = format!("{said}: {cause_said}");
        }
        source = cause.source();
    }
    said
}
