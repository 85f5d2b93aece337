//! A small HTTP/1.1 server that answers wrongly when told to.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use slotd_image::ImageSource;
use url::Url;

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct Request {
    pub target: String,
    pub headers: Vec<(String, String)>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self
            .headers
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

/// What to send.
#[derive(Clone)]
pub enum Reply {
    /// Status 200 with its length.
    Content(Arc<Vec<u8>>),
    /// Status 200 with its length, but the connection breaks after so many bytes.
    BreaksAt(Arc<Vec<u8>>, usize),
    /// Status 200, so many bytes, and then nothing more while the connection stays.
    StallsAt(Arc<Vec<u8>>, usize),
    /// Status 200 without a length: the end of the connection is the end.
    Unframed(Vec<u8>),
    /// Another status.
    Status(&'static str),
    /// A redirect.
    To(String),
    /// Exactly these bytes.
    Bytes(Vec<u8>),
    /// Exactly these bytes, then a reset instead of an end.
    Reset(Vec<u8>),
    /// Nothing at all while the connection stays.
    Silence,
    /// These bytes, then a piece over and over until the client hangs up, with so long a pause before each.
    Endless {
        start: Vec<u8>,
        piece: Vec<u8>,
        pause: Duration,
    },
}

/// What the connection is behind its transport.
pub trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

type Accept = Arc<dyn Fn(TcpStream) -> Option<Box<dyn Stream>> + Send + Sync>;
type Handler = Arc<dyn Fn(usize, &Request) -> Reply + Send + Sync>;

pub struct Server {
    address: SocketAddr,
    scheme: &'static str,
    requests: Arc<Mutex<Vec<Request>>>,
    closing: Arc<AtomicBool>,
}

impl Server {
    /// Plain http; `handler` gets the number of the request, from 0.
    pub fn new(handler: impl Fn(usize, &Request) -> Reply + Send + Sync + 'static) -> Self {
        Self::over("http", Arc::new(|stream| Some(Box::new(stream))), handler)
    }

    /// Over another transport.
    pub fn over(
        scheme: &'static str,
        accept: Accept,
        handler: impl Fn(usize, &Request) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let closing = Arc::new(AtomicBool::new(false));
        let (log, stop) = (Arc::clone(&requests), Arc::clone(&closing));
        let handler: Handler = Arc::new(handler);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let (log, handler, accept) =
                    (Arc::clone(&log), Arc::clone(&handler), Arc::clone(&accept));
                let stop = Arc::clone(&stop);
                thread::spawn(move || {
                    let stream = stream.unwrap();
                    let raw = stream.try_clone().unwrap();
                    if let Some(stream) = accept(stream) {
                        // A client that hangs up is no fault of the test.
                        if let Ok(End::Reset) = serve(stream, &log, &*handler, &stop) {
                            // Closing a socket that lingers for no time resets it: socket(7).
                            let none = Some(Duration::ZERO);
                            rustix::net::sockopt::set_socket_linger(&raw, none).unwrap();
                            return;
                        }
                    }
                    let _ = raw.shutdown(Shutdown::Both);
                });
            }
        });
        Self {
            address,
            scheme,
            requests,
            closing,
        }
    }

    /// Always the same.
    pub fn always(reply: Reply) -> Self {
        Self::new(move |_, _| reply.clone())
    }

    pub fn url(&self, path: &str) -> String {
        let host = if self.scheme == "https" {
            "localhost"
        } else {
            "127.0.0.1"
        };
        format!("{}://{host}:{}{path}", self.scheme, self.address.port())
    }

    pub fn source(&self, path: &str) -> ImageSource {
        ImageSource::Http(Url::parse(&self.url(path)).unwrap())
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

/// How a connection ends.
enum End {
    Closed,
    Reset,
}

fn serve(
    mut stream: Box<dyn Stream>,
    log: &Mutex<Vec<Request>>,
    handler: &(dyn Fn(usize, &Request) -> Reply + Send + Sync),
    closing: &AtomicBool,
) -> std::io::Result<End> {
    let request = read_request(&mut stream)?;
    let number = {
        let mut log = log.lock().unwrap();
        log.push(request.clone());
        log.len() - 1
    };
    let head = |length: usize| {
        format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n")
    };
    let wait = || {
        while !closing.load(Ordering::SeqCst) {
            thread::park_timeout(Duration::from_millis(20));
        }
    };
    match handler(number, &request) {
        Reply::Content(body) => {
            stream.write_all(head(body.len()).as_bytes())?;
            stream.write_all(&body)?;
        }
        Reply::BreaksAt(body, at) => {
            stream.write_all(head(body.len()).as_bytes())?;
            stream.write_all(&body[..at])?;
        }
        Reply::StallsAt(body, at) => {
            stream.write_all(head(body.len()).as_bytes())?;
            stream.write_all(&body[..at])?;
            stream.flush()?;
            wait();
        }
        Reply::Unframed(body) => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
            stream.write_all(&body)?;
        }
        Reply::Status(status) => {
            let text =
                format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
            stream.write_all(text.as_bytes())?;
        }
        Reply::To(location) => {
            let text = format!(
                "HTTP/1.1 302 Found\r\nLocation: {location}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            );
            stream.write_all(text.as_bytes())?;
        }
        Reply::Bytes(bytes) => stream.write_all(&bytes)?,
        Reply::Reset(bytes) => {
            stream.write_all(&bytes)?;
            stream.flush()?;
            return Ok(End::Reset);
        }
        Reply::Silence => wait(),
        Reply::Endless {
            start,
            piece,
            pause,
        } => {
            stream.write_all(&start)?;
            while !closing.load(Ordering::SeqCst) {
                if !pause.is_zero() {
                    stream.flush()?;
                    thread::park_timeout(pause);
                }
                stream.write_all(&piece)?;
            }
        }
    }
    stream.flush()?;
    Ok(End::Closed)
}

fn read_request(stream: &mut Box<dyn Stream>) -> std::io::Result<Request> {
    // A GET has no body, so reading ahead takes nothing from anybody.
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let target = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) => headers.push((name.to_owned(), value.to_owned())),
            None => return Ok(Request { target, headers }),
        }
    }
}
