//! HTTP and HTTPS.
//!
//! The asynchronous client runs on a small runtime of its own, inside whichever thread pulls the
//! bytes: that way every wait for the network can also be ended by the cancel flag and by the
//! total deadline, which the blocking client cannot do.

use std::future::Future;
use std::time::{Duration, Instant};

use bytes::Bytes;
use reqwest::{Response, StatusCode, header};
use tokio::runtime::Runtime;
use url::Url;

use super::client::{self, ClientCache};
use super::failure::connection_failed;
use super::redirect::Trail;
use super::throttle::Throttle;
use super::{Published, shown};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::settings::FetchSettings;

/// How much of a `Retry-After` is honoured.
const LONGEST_RETRY_AFTER: u64 = 300;

/// The limits in time that hold for every wait.
#[derive(Debug, Clone, Copy)]
struct Limits {
    connect: Duration,
    idle: Duration,
    deadline: Instant,
}

/// The body of a final answer with status 200.
pub(super) struct HttpBody {
    /// `None` only while it is being dropped.
    runtime: Option<Runtime>,
    response: Response,
    url: String,
    total: Option<u64>,
    /// Whether the answer says where it ends.
    end_is_marked: bool,
    received: u64,
    limits: Limits,
    throttle: Throttle,
}

impl HttpBody {
    /// Connects, follows redirects, and checks the status of the final answer.
    pub(super) fn request(
        url: &Url,
        settings: &FetchSettings,
        protected: bool,
        deadline: Instant,
        cancel: &Cancel,
    ) -> Result<Self> {
        let limits = Limits {
            connect: settings.connect_timeout,
            idle: settings.idle_timeout,
            deadline,
        };
        let trail = Trail::new(url, protected, &settings.origins)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            // The size of a chunk may have leading zeros without end, and whoever reads them is always busy: limits are
            // looked at after each turn of it, not after the usual 61.
            .event_interval(1)
            .build()
            .map_err(|error| Error::Internal {
                what: format!("no runtime for HTTP: {error}"),
            })?;
        let answer = runtime.block_on(until_cancelled(cancel, ask(trail, settings, limits)));
        let (response, url) = match answer {
            Ok(answer) => answer,
            Err(error) => {
                // A name resolution may still be running on a thread of it: do not wait for that.
                runtime.shutdown_background();
                return Err(error);
            }
        };
        let total = response.content_length();
        let end_is_marked = total.is_some() || is_chunked(&response);
        let throttle = Throttle::new(settings.rate_limit, Instant::now());
        Ok(Self {
            runtime: Some(runtime),
            response,
            url,
            total,
            end_is_marked,
            received: 0,
            limits,
            throttle,
        })
    }
}

impl Drop for HttpBody {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Published for HttpBody {
    fn next(&mut self, cancel: &Cancel) -> Result<Option<Bytes>> {
        let Some(runtime) = &self.runtime else {
            return Err(Error::Internal {
                what: "read from a closed connection".to_owned(),
            });
        };
        let (url, received, limits) = (&self.url, self.received, self.limits);
        let now = Instant::now();
        let left = limits.deadline.saturating_duration_since(now);
        let wait = self.throttle.wait(now).min(left);
        let response = &mut self.response;
        let chunk = runtime.block_on(until_cancelled(cancel, async {
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
            let what = || format!("the server sent nothing after byte {received}");
            let chunk = within(limits.idle, limits.deadline, url, what, response.chunk()).await?;
            chunk.map_err(|error| connection_failed(url, error, Some(received)))
        }))?;
        match chunk {
            Some(chunk) => {
                self.received = self.received.saturating_add(chunk.len() as u64);
                self.throttle.received(chunk.len(), Instant::now());
                Ok(Some(chunk))
            }
            None => match self.total {
                Some(total) if total != received => Err(Error::Connection {
                    url: url.clone(),
                    problem: format!("the connection ended after {received} of {total} bytes"),
                    source: None,
                }),
                _ => Ok(None),
            },
        }
    }

    fn total(&self) -> Option<u64> {
        self.total
    }

    fn may_end_early(&self) -> bool {
        !self.end_is_marked
    }
}

/// Sends the request along its redirects until a final answer comes, and returns it with the
/// address that gave it, as it may be shown.
async fn ask(
    mut trail: Trail,
    settings: &FetchSettings,
    limits: Limits,
) -> Result<(Response, String)> {
    let mut clients = ClientCache::new(settings);
    loop {
        let url = shown(trail.url());
        // Content is told by its bytes, and lengths must hold: no encoding on the way.
        let mut request = clients
            .get(&trail)?
            .get(trail.url().clone())
            .header(header::ACCEPT_ENCODING, "identity");
        match trail.withholds() {
            None => request = request.headers(client::credentials(settings)?),
            Some(why) if settings.has_credentials() => tracing::info!(%url, "{why}"),
            Some(_) => {}
        }
        // The connection has its own limit inside; the answer may be idle for so long after it.
        let patience = limits.connect.saturating_add(limits.idle);
        let what = || "the server does not answer".to_owned();
        let response = within(patience, limits.deadline, &url, what, request.send())
            .await?
            .map_err(|error| connection_failed(&url, error, None))?;
        if response.status() == StatusCode::OK {
            return Ok((response, url));
        }
        match (
            response.status().is_redirection(),
            response.headers().get(header::LOCATION),
        ) {
            (true, Some(location)) => {
                let location = location.to_str().map_err(|_| Error::Redirect {
                    url,
                    problem: "redirects to an address that is no text".to_owned(),
                })?;
                trail.follow(location)?;
                tracing::debug!(to = %shown(trail.url()), "redirected");
            }
            _ => {
                let withheld = trail.withholds().filter(|_| settings.has_credentials());
                return Err(refused(url, &response, withheld));
            }
        }
    }
}

/// Whether the body comes in chunks, the last of which is marked (RFC 9112, 6.3: where another coding is the last one,
/// the end of the connection is the end).
fn is_chunked(response: &Response) -> bool {
    response
        .headers()
        .get_all(header::TRANSFER_ENCODING)
        .iter()
        .next_back()
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.rsplit(',').next())
        .is_some_and(|coding| coding.trim().eq_ignore_ascii_case("chunked"))
}

/// The error for a final answer that is no image.
fn refused(url: String, response: &Response, withheld: Option<&'static str>) -> Error {
    let status = response.status();
    // Some servers hide what somebody without credentials may not see.
    let asks_for_credentials = matches!(
        status,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND
    );
    let temporary = status.is_server_error()
        || matches!(
            status,
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS
        );
    let retry_after = response
        .headers()
        .get(header::RETRY_AFTER)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.trim().parse::<u64>().ok())
        .map(|seconds| Duration::from_secs(seconds.min(LONGEST_RETRY_AFTER)));
    Error::Status {
        url,
        status: status.to_string(),
        temporary,
        retry_after,
        withheld: withheld.filter(|_| asks_for_credentials),
    }
}

async fn until_cancelled<T>(cancel: &Cancel, work: impl Future<Output = Result<T>>) -> Result<T> {
    cancel.check()?;
    tokio::select! {
        biased;
        () = cancel.cancelled() => Err(Error::Cancelled),
        outcome = work => outcome,
    }
}

/// Waits for `work` no longer than `patience`, and not beyond the total deadline.
async fn within<T>(
    patience: Duration,
    deadline: Instant,
    url: &str,
    what: impl Fn() -> String,
    work: impl Future<Output = T>,
) -> Result<T> {
    let left = deadline.saturating_duration_since(Instant::now());
    // A timeout lets through what is there already, and of an endless body there is always something.
    if left.is_zero() {
        return Err(Error::Connection {
            url: url.to_owned(),
            problem: "the total deadline is over".to_owned(),
            source: None,
        });
    }
    tokio::time::timeout(patience.min(left), work)
        .await
        .map_err(|_| Error::Connection {
            url: url.to_owned(),
            problem: if left < patience {
                format!("{}, and the total deadline is over", what())
            } else {
                format!("{} for {} seconds", what(), patience.as_secs_f32())
            },
            source: None,
        })
}
