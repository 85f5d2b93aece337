//! Waiting for as long as the API server asks for, with 429 or 503 and `Retry-After`.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::header::RETRY_AFTER;
use http::{Request, Response, StatusCode};
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use tokio::time::{Instant, Sleep, sleep_until};
use tower::{Layer, Service};

/// The longest pause: a request waits no longer for its turn than for its answer. Who wants more is asked again later by those
/// whose own pauses grow.
const LONGEST: Duration = Duration::from_secs(20);

/// A client that asks nothing more for as long as it was told to, and tries nothing again by itself.
///
/// # Errors
/// When the credential cannot be used.
pub(crate) fn client(config: Config) -> kube::Result<Client> {
    client_within(config, LONGEST)
}

/// The same with another longest pause. Each client pauses for itself.
///
/// # Errors
/// When the credential cannot be used.
pub(crate) fn client_within(mut config: Config, longest: Duration) -> kube::Result<Client> {
    config.default_retry = false;
    let builder = ClientBuilder::try_from(config)?;
    Ok(builder.with_layer(&RetryAfter { longest }).build())
}

struct RetryAfter {
    longest: Duration,
}

impl<S> Layer<S> for RetryAfter {
    type Service = Paced<S>;

    fn layer(&self, inner: S) -> Paced<S> {
        Paced {
            inner,
            longest: self.longest,
            until: Arc::default(),
            pause: None,
        }
    }
}

/// A service that is ready again when the last pause that was asked for is over.
struct Paced<S> {
    inner: S,
    longest: Duration,
    until: Arc<Mutex<Option<Instant>>>,
    pause: Option<Pin<Box<Sleep>>>,
}

impl<S, B> Service<Request<Body>> for Paced<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            let until = *self.until.lock().unwrap_or_else(PoisonError::into_inner);
            match until.filter(|until| *until > Instant::now()) {
                Some(until) => self.pause = Some(Box::pin(sleep_until(until))),
                None => return self.inner.poll_ready(context),
            }
        }
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // There 429 says that a budget keeps the pod, which is no reason to be silent about it.
        let eviction = request.uri().path().ends_with("/eviction");
        let until = Arc::clone(&self.until);
        let longest = self.longest;
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            if !eviction && let Some(pause) = asked_for(&answer) {
                let end = Instant::now() + pause.min(longest);
                let mut until = until.lock().unwrap_or_else(PoisonError::into_inner);
                *until = Some(until.map_or(end, |known| known.max(end)));
            }
            Ok(answer)
        })
    }
}

/// The pause that an answer asks for.
fn asked_for<B>(answer: &Response<B>) -> Option<Duration> {
    let busy = matches!(
        answer.status(),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
    );
    let seconds = answer.headers().get(RETRY_AFTER).filter(|_| busy)?;
    let seconds = seconds.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::{Duration, Instant};

    use http::Request;
    use kube::Config;

    use super::client;

    /// Time between two requests of which the first is answered so.
    async fn pause(path: &str, head: &'static str) -> Duration {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let asked = std::thread::spawn(move || {
            let times: Vec<Instant> = [head, "200 OK"]
                .into_iter()
                .map(|head| {
                    let (mut connection, _) = listener.accept().unwrap();
                    let time = Instant::now();
                    let _ = connection.read(&mut [0; 8192]).unwrap();
                    write!(
                        connection,
                        "HTTP/1.1 {head}\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{{}}"
                    )
                    .unwrap();
                    time
                })
                .collect();
            times[1] - times[0]
        });
        let client = client(Config::new(server.parse().unwrap())).unwrap();
        for _ in 0..2 {
            let request = Request::post(path).body(Vec::new()).unwrap();
            let _ = client.request_text(request).await;
        }
        asked.join().unwrap()
    }

    #[tokio::test]
    async fn nothing_is_asked_before_the_server_wants_to_be_asked() {
        let second = Duration::from_secs(1);
        for head in [
            "429 Too Many Requests\r\nretry-after: 1",
            "503 Service Unavailable\r\nretry-after: 1",
        ] {
            let pause = pause("/x", head).await;
            assert!(pause >= second, "{head}: {pause:?}");
        }
        for (path, head) in [
            ("/x", "429 Too Many Requests"),
            ("/x", "500 Internal Server Error\r\nretry-after: 60"),
            ("/x", "429 Too Many Requests\r\nretry-after: soon"),
            ("/x/eviction", "429 Too Many Requests\r\nretry-after: 60"),
        ] {
            let pause = pause(path, head).await;
            assert!(pause < 15 * second, "{path} {head}: {pause:?}");
        }
    }
}
