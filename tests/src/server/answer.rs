//! One answer of the image server, and what goes wrong in it.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What is served.
#[derive(Debug, Clone)]
pub enum Body {
    /// A file.
    File(PathBuf),
    /// These bytes.
    Bytes(Arc<Vec<u8>>),
}

/// What goes wrong while it is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// The connection closes after so many bytes of the body; the first `times` requests only.
    DropAt {
        /// Bytes that are sent.
        byte: u64,
        /// How often.
        times: u32,
    },
    /// `Content-Length` is larger or smaller than the body by this.
    WrongLength(i64),
    /// No `Content-Length`; the body ends with the connection.
    NoLength,
    /// A redirect to this location.
    Redirect(String),
    /// Another status, with a short body of its own.
    Status(u16),
    /// The bytes come at this rate per second.
    Slow(u64),
    /// The bytes, those of the head too, come one by one, with this pause between them.
    Drip(Duration),
    /// The connection is accepted, and nothing is ever answered.
    Silent,
    /// So many bytes of the body come, then nothing, with the connection open.
    StallAt(u64),
    /// The byte at this place of the body has one bit flipped.
    FlippedBit(u64),
    /// Another `Content-Encoding` is declared.
    Encoding(String),
}

impl Fault {
    /// What of it concerns the head.
    fn of_head(&self) -> Self {
        match self {
            Self::Drip(pause) => Self::Drip(*pause),
            _ => Self::None,
        }
    }
}

/// One path of the server.
#[derive(Debug, Clone)]
pub(super) struct Route {
    pub(super) body: Body,
    pub(super) fault: Fault,
    pub(super) content_type: String,
    /// Requests so far, this one included.
    pub(super) hits: u32,
}

/// Answers one request for a path. `stopping` ends an answer that would take for ever.
pub(super) fn respond(
    stream: &mut TcpStream,
    route: &Route,
    head_only: bool,
    stopping: &AtomicBool,
) -> std::io::Result<()> {
    match &route.fault {
        Fault::Redirect(location) => {
            return write!(
                stream,
                "HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
        }
        Fault::Status(status) => {
            return write!(
                stream,
                "HTTP/1.1 {status} Fault\r\nContent-Length: 6\r\nConnection: close\r\n\r\nfault\n"
            );
        }
        Fault::Silent => return hold(stopping),
        _ => {}
    }
    let (mut body, length): (Box<dyn Read>, u64) = match &route.body {
        Body::File(path) => {
            let mut file = File::open(path)?;
            let length = file.seek(SeekFrom::End(0))?;
            file.seek(SeekFrom::Start(0))?;
            (Box::new(file), length)
        }
        Body::Bytes(bytes) => (
            Box::new(std::io::Cursor::new(bytes.as_ref().clone())),
            bytes.len() as u64,
        ),
    };
    let mut head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {}\r\n",
        route.content_type
    );
    match &route.fault {
        Fault::NoLength => {}
        Fault::WrongLength(by) => {
            head.push_str(&format!(
                "Content-Length: {}\r\n",
                length.saturating_add_signed(*by)
            ));
        }
        _ => head.push_str(&format!("Content-Length: {length}\r\n")),
    }
    if let Fault::Encoding(encoding) = &route.fault {
        head.push_str(&format!("Content-Encoding: {encoding}\r\n"));
    }
    head.push_str("Connection: close\r\n\r\n");
    let whole = head.len() as u64;
    send(stream, &mut head.as_bytes(), whole, &route.fault.of_head())?;
    if head_only {
        return Ok(());
    }
    let limit = match route.fault {
        Fault::DropAt { byte, times } if route.hits <= times => byte,
        Fault::StallAt(byte) => byte,
        _ => u64::MAX,
    };
    send(stream, &mut body, limit, &route.fault)?;
    if matches!(route.fault, Fault::StallAt(_)) {
        return hold(stopping);
    }
    Ok(())
}

fn send(
    stream: &mut TcpStream,
    body: &mut dyn Read,
    limit: u64,
    fault: &Fault,
) -> std::io::Result<()> {
    let chunk = match fault {
        Fault::Drip(_) => 1,
        Fault::Slow(_) => 8 << 10,
        _ => 256 << 10,
    };
    let mut buffer = vec![0; chunk];
    let began = Instant::now();
    let mut sent: u64 = 0;
    while sent < limit {
        let most = usize::try_from((limit - sent).min(chunk as u64)).unwrap_or(chunk);
        let count = body.read(&mut buffer[..most])?;
        if count == 0 {
            break;
        }
        let piece = &mut buffer[..count];
        match fault {
            Fault::FlippedBit(at) if (sent..sent + count as u64).contains(at) => {
                if let Ok(index) = usize::try_from(at - sent) {
                    piece[index] ^= 1;
                }
            }
            Fault::Slow(rate) => {
                let due = Duration::from_secs_f64(sent as f64 / (*rate).max(1) as f64);
                std::thread::sleep(due.saturating_sub(began.elapsed()));
            }
            Fault::Drip(pause) => std::thread::sleep(*pause),
            _ => {}
        }
        stream.write_all(piece)?;
        sent += count as u64;
    }
    Ok(())
}

/// Keeps a connection open until the server stops.
fn hold(stopping: &AtomicBool) -> std::io::Result<()> {
    while !stopping.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
