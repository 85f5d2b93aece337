//! A catalog on a server, fetched again and again.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{ETAG, HeaderValue, IF_NONE_MATCH};
use reqwest::{Client, StatusCode, redirect};
use slotd_crds::catalog::{Catalog, LIMIT};
use slotd_crds::image::shown_url as shown;
use slotd_crds::resolve::Rejection;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tracing::{debug, info, warn};

use super::kept::{Keeper, Kept};
use super::{Reading, Trouble, unreadable};
use crate::backoff::{Backoff, jittered};
use crate::error::causes;
use crate::said;

/// How often it is looked for a new one.
const INTERVAL: Duration = Duration::from_secs(300);
/// One answer, its body included.
const PATIENCE: Duration = Duration::from_secs(20);
const CONNECTING: Duration = Duration::from_secs(10);

/// Fetches one catalog until it is dropped.
pub(super) struct Fetcher {
    reading: watch::Receiver<Reading>,
    task: JoinHandle<()>,
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Fetcher {
    /// Begins with what `keeper` has, and lets it keep each good catalog.
    pub(super) fn start(url: &str, changed: Arc<Notify>, keeper: Keeper) -> Self {
        let (sender, reading) = watch::channel(Reading::Unknown);
        let task = tokio::spawn(poll(url.to_owned(), sender, changed, keeper));
        Self { reading, task }
    }

    /// What it has.
    pub(super) fn reading(&self) -> Reading {
        self.reading.borrow().clone()
    }
}

/// What a server answered.
enum Answer {
    Unchanged,
    New(Vec<u8>, Option<HeaderValue>),
}

async fn poll(url: String, reading: watch::Sender<Reading>, changed: Arc<Notify>, keeper: Keeper) {
    let client = match client() {
        Ok(client) => client,
        Err(error) => {
            let message = error.without_url().to_string();
            reading.send_replace(Reading::Unreachable(Trouble {
                reason: "ClientFailed",
                message,
            }));
            changed.notify_one();
            return;
        }
    };
    let mut backoff = Backoff::new(Duration::from_secs(5), INTERVAL);
    let mut tag = None;
    let mut good: Option<Arc<Catalog>> = None;
    let mut known = false;
    // What is not kept yet.
    let mut unkept = None;
    loop {
        // Before the server has answered, which it may do late or never.
        if !known && good.is_none() {
            match keeper.load(&url).await {
                Ok(kept) => {
                    known = true;
                    if let Some((catalog, kept)) = kept.and_then(usable) {
                        info!(url = shown(&url), "the last good catalog is known");
                        good = Some(catalog.clone());
                        tag = kept.tag.and_then(|tag| HeaderValue::from_str(&tag).ok());
                        reading.send_replace(Reading::Kept(catalog));
                        changed.notify_one();
                    }
                }
                Err(error) => debug!(
                    error = said::error(&error),
                    "the catalogs that were kept cannot be read"
                ),
            }
        }
        let answer = fetch(&client, &url, tag.as_ref()).await;
        let mut failed = answer.is_err();
        let next = match answer {
            Ok(Answer::Unchanged) => good
                .clone()
                .map_or(Reading::Unknown, |catalog| Reading::Read(catalog, None)),
            Ok(Answer::New(body, new)) => match Catalog::parse(&body, LIMIT) {
                Ok(catalog) => {
                    let catalog = Arc::new(catalog);
                    good = Some(catalog.clone());
                    tag = new;
                    let text = String::from_utf8_lossy(&body).into_owned();
                    let named = tag.as_ref().and_then(|tag| tag.to_str().ok());
                    unkept = Some(Kept::new(text, named.map(str::to_owned)));
                    Reading::Read(catalog, None)
                }
                Err(error) => {
                    let rejection = Rejection::from(error);
                    match good.clone() {
                        Some(catalog) => Reading::Read(catalog, Some(unreadable(&rejection))),
                        None => Reading::Unusable(rejection),
                    }
                }
            },
            Err(trouble) => match good.clone() {
                Some(catalog) => Reading::Read(catalog, Some(trouble)),
                None => Reading::Unreachable(trouble),
            },
        };
        if reading.send_if_modified(|held| {
            let differs = !same(held, &next);
            *held = next;
            differs
        }) {
            tell(&url, &reading.borrow());
            changed.notify_one();
        }
        if let Some(kept) = &unkept {
            match keeper.store(&url, kept).await {
                Ok(()) => unkept = None,
                Err(error) => {
                    failed = true;
                    warn!(
                        error = said::error(&error),
                        "a catalog cannot be kept for the next leader"
                    );
                }
            }
        }
        let pause = if failed {
            backoff.failed()
        } else {
            backoff.succeeded();
            jittered(INTERVAL)
        };
        tokio::time::sleep(pause).await;
    }
}

/// What was kept, where it is a catalog by the rules of now.
fn usable(kept: Kept) -> Option<(Arc<Catalog>, Kept)> {
    let catalog = Catalog::parse(kept.text.as_bytes(), LIMIT).ok()?;
    Some((Arc::new(catalog), kept))
}

fn tell(url: &str, reading: &Reading) {
    let url = shown(url);
    match reading {
        Reading::Read(_, None) => info!(url, "the catalog was read"),
        Reading::Read(_, Some(trouble)) | Reading::Unreachable(trouble) => {
            warn!(
                url,
                reason = trouble.reason,
                "the catalog cannot be read: {}",
                trouble.message
            );
        }
        Reading::Unusable(rejection) => warn!(url, "this is no catalog: {}", rejection.message),
        Reading::Unknown | Reading::Kept(_) => {}
    }
}

fn same(one: &Reading, other: &Reading) -> bool {
    match (one, other) {
        (Reading::Unknown, Reading::Unknown) => true,
        (Reading::Read(one, first), Reading::Read(other, second)) => {
            one == other && first == second
        }
        (Reading::Kept(one), Reading::Kept(other)) => one == other,
        (Reading::Unreachable(one), Reading::Unreachable(other)) => one == other,
        (Reading::Unusable(one), Reading::Unusable(other)) => one == other,
        _ => false,
    }
}

fn client() -> reqwest::Result<Client> {
    // https never goes to http.
    let redirects = redirect::Policy::custom(|attempt| {
        let secure = attempt.previous().iter().any(|url| url.scheme() == "https");
        if attempt.previous().len() > 5 {
            attempt.error("too many redirects")
        } else if secure && attempt.url().scheme() != "https" {
            attempt.error("a redirect from https to http")
        } else {
            attempt.follow()
        }
    });
    Client::builder()
        .user_agent(concat!("slotd/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECTING)
        .timeout(PATIENCE)
        .redirect(redirects)
        .build()
}

async fn fetch(client: &Client, url: &str, tag: Option<&HeaderValue>) -> Result<Answer, Trouble> {
    let mut request = client.get(url);
    if let Some(tag) = tag {
        request = request.header(IF_NONE_MATCH, tag);
    }
    let mut response = request.send().await.map_err(unreachable)?;
    match response.status() {
        StatusCode::OK => {}
        StatusCode::NOT_MODIFIED if tag.is_some() => return Ok(Answer::Unchanged),
        status => {
            return Err(Trouble {
                reason: "HTTPStatus",
                message: format!("{} answers {status}", shown(url)),
            });
        }
    }
    let tag = response.headers().get(ETAG).cloned();
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
        body.extend_from_slice(&chunk);
        // One byte more is enough to know.
        if body.len() > LIMIT {
            break;
        }
    }
    Ok(Answer::New(body, tag))
}

fn unreachable(error: reqwest::Error) -> Trouble {
    let reason = if error.is_timeout() {
        "Timeout"
    } else {
        "Unreachable"
    };
    // The reason is in the sources.
    let message = causes(&error.without_url());
    Trouble { reason, message }
}

#[cfg(test)]
mod tests;
