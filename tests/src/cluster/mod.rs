//! A real Kubernetes control plane on this machine: etcd, API server, controller manager and scheduler on loopback, with certificates
//! of their own, and kubectl to speak with them.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

mod api_server;
mod audit;
mod certificates;
mod client;
mod control_plane;
mod go;
mod knocks;
pub(crate) mod node_image;
mod objects;
mod pause;
mod programs;
mod service;
mod trust;
pub mod up;

pub use api_server::Outage;
pub use audit::{ApiRequest, AuditLog, Requests, most_within};
pub use client::Client;
pub use control_plane::{ControlPlane, Options};
pub use knocks::{Knock, Knocks};
pub use node_image::APP;
pub(crate) use objects::{Workload, progress_of};
pub use pause::Paused;
pub use programs::{Program, Programs};
pub(crate) use service::Service;
pub use trust::{Holder, OtherAuthority};

/// Looks again and again until a look succeeds; the error of the last one says what was missing.
pub fn wait_until<T>(what: &str, patience: Duration, look: impl FnMut() -> Result<T>) -> Result<T> {
    wait_until_every(Duration::from_millis(50), what, patience, look)
}

/// The same with a pause between two looks, for those that take processor time from what is waited for.
pub fn wait_until_every<T>(
    pause: Duration,
    what: &str,
    patience: Duration,
    mut look: impl FnMut() -> Result<T>,
) -> Result<T> {
    let deadline = Instant::now() + patience;
    loop {
        match look() {
            Ok(seen) => return Ok(seen),
            Err(error) if Instant::now() > deadline => {
                return Err(error)
                    .with_context(|| format!("waited {} s in vain: {what}", patience.as_secs()));
            }
            Err(_) => std::thread::sleep(pause),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use anyhow::ensure;

    use super::wait_until;

    #[test]
    fn waiting_ends_with_the_first_success_or_says_what_was_seen_last() {
        let mut looks = 0;
        let mut look = || {
            looks += 1;
            ensure!(looks == 3, "{looks} looks");
            Ok(looks)
        };
        assert_eq!(
            wait_until("three", Duration::from_secs(20), &mut look).unwrap(),
            3
        );
        let error = wait_until("never", Duration::ZERO, look).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.starts_with("waited 0 s in vain: never: "), "{text}");
        assert!(text.ends_with(" looks"), "{text}");
    }
}
