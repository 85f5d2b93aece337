//! What the API server said, for people.

use kube::runtime::watcher;

use crate::error::causes;

/// An error of a request: the server's own sentence, where there is one.
pub(crate) fn error(error: &kube::Error) -> String {
    match error {
        // `Unauthorized` alone says little to who does not know the word.
        kube::Error::Api(status) if status.code == 401 => {
            "the credential is not accepted (401 Unauthorized)".to_owned()
        }
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => causes(other),
    }
}

/// An error of a watch.
pub(crate) fn watch(failure: &watcher::Error) -> String {
    match failure {
        watcher::Error::InitialListFailed(cause)
        | watcher::Error::WatchStartFailed(cause)
        | watcher::Error::WatchFailed(cause) => error(cause),
        watcher::Error::WatchError(status) => status.message.clone(),
        other => causes(other),
    }
}
