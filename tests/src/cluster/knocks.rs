//! Who knocks at the port of a server that is away, and how often.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use k8s_openapi::jiff::Timestamp;

/// A connection that one of the processes in question tried to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Knock {
    /// The process.
    pub process: u32,
    /// When it came.
    pub received: Timestamp,
}

/// Takes each connection to a port and drops it unanswered, until it goes.
#[derive(Debug)]
pub struct Knocks {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Knock>>>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Knocks {
    /// Listens at a port of loopback for what these processes ask of it. Others are turned away as well, uncounted.
    pub(super) fn listen(port: u16, processes: &[u32]) -> Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let listener =
            TcpListener::bind(address).with_context(|| format!("listening at {address}"))?;
        let address = listener.local_addr().context("a listener's address")?;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let over = Arc::new(AtomicBool::new(false));
        let processes = processes.to_vec();
        let thread = {
            let (seen, over) = (Arc::clone(&seen), Arc::clone(&over));
            std::thread::Builder::new()
                .name("knocks".to_owned())
                .spawn(move || turn_away(&listener, &processes, &seen, &over))
                .context("starting a thread")?
        };
        Ok(Self {
            address,
            seen,
            over,
            thread: Some(thread),
        })
    }

    /// What came so far.
    pub fn seen(&self) -> Vec<Knock> {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Drop for Knocks {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        // It waits for a connection, so it gets one. The port has to be free when this is gone.
        let woken = TcpStream::connect(self.address);
        if let (Ok(_), Some(thread)) = (woken, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

fn turn_away(
    listener: &TcpListener,
    processes: &[u32],
    seen: &Mutex<Vec<Knock>>,
    over: &AtomicBool,
) {
    while let Ok((_stream, peer)) = listener.accept() {
        if over.load(Ordering::Acquire) {
            return;
        }
        // The stream is kept open meanwhile: a socket that is closed is nobody's.
        if let Some(process) = holder(peer, processes) {
            let received = Timestamp::now();
            seen.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(Knock { process, received });
        }
    }
}

/// Which of these processes holds the socket with this address.
fn holder(socket: SocketAddr, processes: &[u32]) -> Option<u32> {
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    let link = PathBuf::from(format!("socket:[{}]", inode(&table, socket)?));
    processes.iter().copied().find(|process| {
        let descriptors = fs::read_dir(format!("/proc/{process}/fd"));
        descriptors
            .into_iter()
            .flatten()
            .flatten()
            .any(|entry| fs::read_link(entry.path()).is_ok_and(|descriptor| descriptor == link))
    })
}

/// The inode of the socket with this local address in a table of `/proc/net/tcp`, whose addresses are written as the
/// kernel's `tcp4_seq_show` does: four bytes as one number of the machine's own order, then the port, both in hex.
fn inode(table: &str, socket: SocketAddr) -> Option<u64> {
    let SocketAddr::V4(socket) = socket else {
        return None;
    };
    let address = u32::from_ne_bytes(socket.ip().octets());
    let local = format!("{address:08X}:{:04X}", socket.port());
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        (fields.get(1) == Some(&local.as_str()))
            .then(|| fields.get(9)?.parse().ok())
            .flatten()
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use anyhow::ensure;

    use super::{Knocks, inode};
    use crate::cluster::wait_until;

    #[test]
    fn a_socket_is_found_in_the_kernels_table() {
        // Of Linux 6.1 on a little-endian machine.
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   0: 0100007F:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 18301 1 0000000000000000 100 0 0 10 0\n   1: 0100007F:C350 0100007F:192B 01 00000000:00000000 02:00000A5C 00000000     0        0 20417 2 0000000000000000 20 4 30 10 -1\n";
        if cfg!(target_endian = "little") {
            assert_eq!(
                inode(table, "127.0.0.1:50000".parse().unwrap()),
                Some(20417)
            );
        }
        assert_eq!(inode(table, "127.0.0.1:50001".parse().unwrap()), None);
    }

    #[test]
    fn knocks_of_the_processes_in_question_are_counted_and_the_port_is_free_afterwards() {
        let own = std::process::id();
        for (processes, expected) in [(vec![own], 3), (vec![1], 0)] {
            let knocks = Knocks::listen(0, &processes).unwrap();
            let address = knocks.address;
            for _ in 0..3 {
                let mut stream = TcpStream::connect(address).unwrap();
                // Nothing comes, then the connection ends.
                assert_eq!(stream.read(&mut [0]).unwrap(), 0);
            }
            wait_until("three knocks", Duration::from_secs(20), || {
                let seen = knocks.seen();
                ensure!(seen.len() == expected, "{seen:?}");
                ensure!(seen.iter().all(|knock| knock.process == own), "{seen:?}");
                Ok(())
            })
            .unwrap();
            drop(knocks);
            TcpListener::bind(address).unwrap();
        }
    }
}
