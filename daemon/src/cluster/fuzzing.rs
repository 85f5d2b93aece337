//! See [`crate::fuzzing`].

use slotd_crds::api::OSUpgradeProgress;
use slotd_engine::Record;

use super::wish::{Judgement, Running, choose, judge};

/// A progress object as the API server sends it.
pub(crate) fn progress(input: &[u8]) -> bool {
    let Ok(object) = serde_json::from_slice::<OSUpgradeProgress>(input) else {
        return false;
    };
    let record = Record::default();
    for version in [None, Some("v1.2.3".to_owned())] {
        let running = Running {
            version,
            good: true,
        };
        match judge(&object, &record, &running) {
            Judgement::Take(assignment) => {
                // Only what is bound by a digest, and only from the web.
                let image = &assignment.image;
                assert!(image.checksum.is_some(), "{}", image.source);
                assert!(image.source.starts_with("http"), "{}", image.source);
                assert!(!image.source.contains(['?', '#']), "{}", image.source);
            }
            Judgement::Reject { code, message } => {
                assert!(!code.is_empty() && !message.is_empty());
            }
            Judgement::Runs | Judgement::Forgotten | Judgement::Wait(_) => {}
        }
    }
    let counts = choose(&[&object], "node", &record).is_some();
    assert!(!counts || object.metadata.deletion_timestamp.is_none());
    true
}
