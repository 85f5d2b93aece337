//! Connecting to a source until it answers with an image.

use std::time::{Duration, Instant};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::event::{Event, Opened};
use crate::settings::{Expectation, FetchSettings};
use crate::source::{self, ImageSource};
use crate::stream::{ImageStream, Sizes};

/// An image that was found at its source, with its first bytes looked at and nothing written.
pub struct OpenedImage {
    source: ImageSource,
    settings: FetchSettings,
    pub(crate) expectation: Expectation,
    pub(crate) capacity: u64,
    persistence: Persistence,
    stream: ImageStream,
}

impl OpenedImage {
    /// What is known of it.
    #[must_use]
    pub fn info(&self) -> &Opened {
        &self.stream.info
    }

    /// Takes it apart into the stream and what it takes to connect again.
    pub(crate) fn into_parts(self) -> (ImageStream, Reconnect) {
        let Self {
            source,
            settings,
            expectation,
            capacity,
            persistence,
            stream,
        } = self;
        (
            stream,
            Reconnect {
                source,
                settings,
                expectation,
                capacity,
                persistence,
            },
        )
    }
}

impl std::fmt::Debug for OpenedImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("OpenedImage").field(self.info()).finish()
    }
}

/// Connects, checks status and redirects, tells the format by content, and compares every length
/// that is known by then with the `capacity` of the slot in bytes. Nothing is written anywhere.
///
/// Failures of the network that may pass are retried as the settings say, each told as
/// [`Event::Retrying`]. Blocks; it must not be called on a thread of an asynchronous runtime that
/// is not meant for blocking.
///
/// # Errors
///
/// [`ErrorKind::Reject`](crate::ErrorKind::Reject) for whatever is wrong with the image,
/// `Configuration` for settings and certificates, `Retry` once attempts or time are used up.
pub fn open(
    source: ImageSource,
    settings: &FetchSettings,
    expectation: &Expectation,
    capacity: u64,
    cancel: &Cancel,
    events: &dyn Fn(Event),
) -> Result<OpenedImage> {
    let location = source.to_string();
    if let Some(size) = expectation.size {
        let sizes = Sizes {
            location: &location,
            expected: None,
            capacity,
        };
        sizes.check_fits("declared size", size)?;
    }
    let mut reconnect = Reconnect {
        source,
        settings: settings.clone(),
        expectation: *expectation,
        capacity,
        persistence: Persistence::new(settings),
    };
    let stream = reconnect.connect(cancel, events)?;
    let Reconnect {
        source,
        settings,
        expectation,
        capacity,
        persistence,
    } = reconnect;
    Ok(OpenedImage {
        source,
        settings,
        expectation,
        capacity,
        persistence,
        stream,
    })
}

/// What it takes to start a transfer again from the beginning.
pub(crate) struct Reconnect {
    source: ImageSource,
    settings: FetchSettings,
    pub(crate) expectation: Expectation,
    pub(crate) capacity: u64,
    persistence: Persistence,
}

impl Reconnect {
    /// Connects, as often as the settings allow.
    fn connect(&mut self, cancel: &Cancel, events: &dyn Fn(Event)) -> Result<ImageStream> {
        loop {
            match self.connect_once(cancel) {
                Err(error) => self.persistence.wait(error, cancel, events)?,
                connected => return connected,
            }
        }
    }

    /// Holds what follows to `expectation` and to the target that is really there.
    pub(crate) fn narrow(&mut self, expectation: &Expectation, capacity: u64) -> Result<()> {
        let location = self.source.to_string();
        self.expectation = *expectation;
        self.capacity = self.capacity.min(capacity);
        let sizes = Sizes {
            location: &location,
            expected: None,
            capacity: self.capacity,
        };
        expectation
            .size
            .map_or(Ok(()), |size| sizes.check_fits("declared size", size))
    }

    /// Waits after `error` and connects again; returns the error where that cannot help.
    pub(crate) fn again(
        &mut self,
        error: Error,
        cancel: &Cancel,
        events: &dyn Fn(Event),
    ) -> Result<ImageStream> {
        self.persistence.wait(error, cancel, events)?;
        self.connect(cancel, events)
    }

    fn connect_once(&self, cancel: &Cancel) -> Result<ImageStream> {
        let protected = self.expectation.is_bound();
        let deadline = self.persistence.deadline;
        let body = source::start(&self.source, &self.settings, protected, deadline, cancel)?;
        ImageStream::begin(
            body,
            &self.source.to_string(),
            &self.expectation,
            self.capacity,
            self.settings.window_limit,
            cancel,
        )
    }
}

/// How long and how often failures are put up with.
struct Persistence {
    started: Instant,
    deadline: Instant,
    attempts: u32,
    delays: ExponentialBackoff,
}

impl Persistence {
    fn new(settings: &FetchSettings) -> Self {
        let started = Instant::now();
        // A duration beyond what a clock can hold is no deadline; a century stands for that.
        let century = Duration::from_secs(100 * 365 * 86_400);
        let delays = ExponentialBuilder::default()
            .with_jitter()
            .with_min_delay(settings.backoff_min)
            .with_max_delay(settings.backoff_max)
            .with_max_times(usize::try_from(settings.retries).unwrap_or(usize::MAX))
            .build();
        Self {
            started,
            deadline: started + settings.total_deadline.min(century),
            attempts: 0,
            delays,
        }
    }

    /// Sleeps before the next attempt, or returns the error where there is none to be made.
    fn wait(&mut self, error: Error, cancel: &Cancel, events: &dyn Fn(Event)) -> Result<()> {
        self.attempts = self.attempts.saturating_add(1);
        if !error.is_transient_fetch() {
            return Err(error);
        }
        let asked_for = match &error {
            Error::Status { retry_after, .. } => *retry_after,
            _ => None,
        };
        let now = Instant::now();
        let delay = self
            .delays
            .next()
            .map(|delay| delay.max(asked_for.unwrap_or_default()))
            .filter(|delay| now + *delay < self.deadline);
        let Some(delay) = delay else {
            return Err(if self.attempts == 1 {
                error
            } else {
                Error::GaveUp {
                    attempts: self.attempts,
                    seconds: now.duration_since(self.started).as_secs(),
                    source: Box::new(error),
                }
            });
        };
        tracing::warn!(attempt = self.attempts, ?delay, %error, "fetching starts again");
        events(Event::Retrying {
            attempt: self.attempts,
            error: error.to_string(),
            delay,
        });
        cancel.sleep(delay)
    }
}
