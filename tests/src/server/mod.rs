//! An image server with faults, on this machine's loopback (10.0.2.2 in a guest).

mod answer;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Context, Result};

pub use answer::{Body, Fault};
use answer::{Route, respond};

/// A request as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Method and path.
    pub line: String,
    /// Header lines, names in lower case.
    pub headers: Vec<(String, String)>,
    /// When it had come.
    pub received: Instant,
}

#[derive(Debug, Default)]
struct Shared {
    routes: Mutex<HashMap<String, Route>>,
    requests: Mutex<Vec<Request>>,
    stopping: AtomicBool,
}

/// A server that runs until it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts on a free port.
    pub fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("binding the image server")?;
        let address = listener
            .local_addr()
            .context("the image server's address")?;
        let shared = Arc::new(Shared::default());
        let acceptor = {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || accept(&listener, &shared))
        };
        Ok(Self {
            address,
            shared,
            acceptor: Some(acceptor),
        })
    }

    /// Serves a body at `path` (which begins with `/`), replacing what was there.
    pub fn serve(&self, path: &str, body: Body, fault: Fault) {
        self.serve_as(path, body, fault, "application/octet-stream");
    }

    /// The same with a content type.
    pub fn serve_as(&self, path: &str, body: Body, fault: Fault, content_type: &str) {
        let route = Route {
            body,
            fault,
            content_type: content_type.to_owned(),
            hits: 0,
        };
        lock(&self.shared.routes).insert(path.to_owned(), route);
    }

    /// Serves a file under its own name and returns the URL for a guest.
    pub fn serve_file(&self, file: &Path) -> String {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let path = format!("/{name}");
        self.serve(&path, Body::File(file.to_owned()), Fault::None);
        self.guest_url(&path)
    }

    /// The URL of a path for this machine.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The URL of a path for a guest, whose 10.0.2.2 is this machine's loopback.
    pub fn guest_url(&self, path: &str) -> String {
        format!("http://10.0.2.2:{}{path}", self.address.port())
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<Request> {
        lock(&self.shared.requests).clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        // Wakes the acceptor; if it is gone already, so much the better.
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

/// A poisoned lock only means that another connection's thread died; its data are whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        if let Ok(stream) = stream {
            let shared = Arc::clone(shared);
            // A client that goes away in the middle is none of the server's business.
            std::thread::spawn(move || drop(answer(stream, &shared)));
        }
    }
}

fn answer(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let Some(line) = lines.next().transpose()? else {
        return Ok(());
    };
    let mut headers = Vec::new();
    for line in lines {
        let line = line?;
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':') {
            headers.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    let mut words = line.split(' ');
    let head_only = words.next() == Some("HEAD");
    let path = words
        .next()
        .unwrap_or("/")
        .split('?')
        .next()
        .unwrap_or("/")
        .to_owned();
    lock(&shared.requests).push(Request {
        line,
        headers,
        received: Instant::now(),
    });
    let route = lock(&shared.routes).get_mut(&path).map(|route| {
        route.hits += 1;
        route.clone()
    });
    let Some(route) = route else {
        return stream.write_all(
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 10\r\nConnection: close\r\n\r\nnot here.\n",
        );
    };
    respond(&mut stream, &route, head_only, &shared.stopping)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use super::{Body, Fault, Server};

    fn get(server: &Server, path: &str) -> (String, Vec<u8>) {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        write!(
            stream,
            "GET {path}?secret=1 HTTP/1.1\r\nHost: x\r\nX-Key: v\r\n\r\n"
        )
        .unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer
            .windows(4)
            .position(|window| window == b"\r\n\r\n")
            .unwrap();
        (
            String::from_utf8(answer[..end].to_vec()).unwrap(),
            answer[end + 4..].to_vec(),
        )
    }

    fn serve(server: &Server, fault: Fault) {
        server.serve("/x", Body::Bytes(Arc::new(vec![7; 1000])), fault);
    }

    #[test]
    fn a_body_arrives_whole_and_requests_are_kept() {
        let server = Server::start().unwrap();
        serve(&server, Fault::None);
        let (head, body) = get(&server, "/x");
        assert!(head.starts_with("HTTP/1.1 200") && head.contains("Content-Length: 1000"));
        assert_eq!(body, vec![7; 1000]);
        let requests = server.requests();
        assert_eq!(requests[0].line, "GET /x?secret=1 HTTP/1.1");
        assert!(
            requests[0]
                .headers
                .contains(&("x-key".to_owned(), "v".to_owned()))
        );
    }

    #[test]
    fn a_connection_drops_where_it_should_and_as_often() {
        let server = Server::start().unwrap();
        serve(
            &server,
            Fault::DropAt {
                byte: 300,
                times: 1,
            },
        );
        assert_eq!(get(&server, "/x").1.len(), 300);
        assert_eq!(get(&server, "/x").1.len(), 1000);
    }

    #[test]
    fn lengths_statuses_redirects_and_bits_are_wrong_on_demand() {
        let server = Server::start().unwrap();
        serve(&server, Fault::WrongLength(-1));
        assert!(get(&server, "/x").0.contains("Content-Length: 999"));
        serve(&server, Fault::NoLength);
        assert!(!get(&server, "/x").0.contains("Content-Length"));
        serve(&server, Fault::Status(500));
        assert!(get(&server, "/x").0.starts_with("HTTP/1.1 500"));
        serve(&server, Fault::Redirect("/y".to_owned()));
        assert!(get(&server, "/x").0.contains("Location: /y"));
        serve(&server, Fault::FlippedBit(999));
        let body = get(&server, "/x").1;
        assert_eq!((body[998], body[999]), (7, 6));
        assert!(get(&server, "/nothing").0.starts_with("HTTP/1.1 404"));
    }

    #[test]
    fn an_answer_that_drips_is_whole_and_slow() {
        let server = Server::start().unwrap();
        serve(&server, Fault::Drip(Duration::from_millis(1)));
        let began = Instant::now();
        let (head, body) = get(&server, "/x");
        assert!(head.starts_with("HTTP/1.1 200") && body == vec![7; 1000]);
        assert!(began.elapsed() > Duration::from_millis(1000));
    }

    #[test]
    fn a_silent_server_says_nothing_and_still_stops() {
        let server = Server::start().unwrap();
        serve(&server, Fault::Silent);
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        stream.write_all(b"GET /x HTTP/1.1\r\n\r\n").unwrap();
        assert!(stream.read(&mut [0; 1]).is_err());
    }
}
