//! The agent on a bus, called as the command line calls it, over a connection without a bus daemon between.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot be set up has to fail"
)]

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use slotd::agent::{AgentHandle, Machine, NodeHost, RunFiles};
use slotd::dbus::client::{Client, ClientError};
use slotd::dbus::server::{Slotd1, emit};
use slotd::dbus::wire::InstallOptions;
use slotd::dbus::{NAME, PATH};
use slotd::error::ErrorKind;
use slotd::node::NodeSettings;
use slotd_bootctl::{LoaderSetting, System};
use slotd_engine::{Failure, Verdict};
use slotd_image::{Cancel, FetchSettings};
use zbus::object_server::Interface;
use zbus::{Guid, Variant, connection};

const XML: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../systemd/usr/share/dbus-1/interfaces/io.monok8s.Slotd1.xml"
);

struct NoMachine;

impl Machine for NoMachine {
    fn run_checks(&self, _: Instant, _: &Cancel) -> Verdict {
        Verdict::Healthy
    }

    fn reboot(&self, _: bool) -> Result<(), Failure> {
        Ok(())
    }

    fn reload_units(&self) -> Result<(), Failure> {
        Ok(())
    }
}

/// An agent on a machine without slots.
fn agent(root: &Path) -> AgentHandle {
    agent_with(root, Some("12.00 3.00\n"))
}

/// The same, on a machine whose clock is there already where none is given.
fn agent_with(root: &Path, uptime: Option<&str>) -> AgentHandle {
    let uptime = uptime.map(|text| ("proc/uptime", text));
    for (path, text) in uptime.into_iter().chain([
        (
            "proc/sys/kernel/random/boot_id",
            "9ec0ba1b-7c39-4a1c-8a27-5c8b2b4dc0b6\n",
        ),
        ("proc/cmdline", "ro\n"),
    ]) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let state = root.join("state");
    fs::create_dir_all(&state).unwrap();
    let settings = NodeSettings {
        system: System::at(root),
        state_directory: state,
        run: RunFiles::at(root.join("run")),
        ..NodeSettings::new(
            LoaderSetting::default(),
            Box::new(|| Ok(FetchSettings::default())),
        )
    };
    AgentHandle::start(Arc::new(NodeHost::new(settings, Arc::new(NoMachine)))).unwrap()
}

/// Both ends of one connection: the agent's and a client's.
async fn connected(agent: &AgentHandle) -> (zbus::Connection, Client) {
    let (server, client) = UnixStream::pair().unwrap();
    let server = connection::Builder::unix_stream(server)
        .server(Guid::generate())
        .p2p()
        .serve_at(PATH, Slotd1::new(agent.clone()))
        .build();
    let client = connection::Builder::unix_stream(client).p2p().build();
    let (server, client) = tokio::join!(server, client);
    (
        server.unwrap(),
        Client::over(client.unwrap()).await.unwrap(),
    )
}

fn on_a_runtime(test: impl Future<Output = ()>) {
    let limit = Duration::from_secs(60);
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(async { tokio::time::timeout(limit, test).await.unwrap() });
}

#[test]
fn the_interface_is_the_one_that_is_shipped() {
    let root = tempfile::tempdir().unwrap();
    let mut text = String::from(
        "<!DOCTYPE node PUBLIC \"-//freedesktop//DTD D-BUS Object Introspection 1.0//EN\"\n  \
         \"http://www.freedesktop.org/standards/dbus/1.0/introspect.dtd\">\n<node>\n",
    );
    Slotd1::new(agent(root.path())).introspect_to_writer(&mut text, 2);
    text.push_str("</node>\n");
    if std::env::var_os("SLOTD_UPDATE_FILES").is_some() {
        fs::write(XML, &text).unwrap();
    }
    let shipped = fs::read_to_string(XML).unwrap_or_default();
    assert_eq!(
        shipped, text,
        "the shipped interface differs; SLOTD_UPDATE_FILES=1 writes it anew"
    );
    assert!(text.contains(NAME));
}

#[test]
fn a_status_document_arrives() {
    on_a_runtime(async {
        let root = tempfile::tempdir().unwrap();
        let (_server, client) = connected(&agent(root.path())).await;
        let status = client.status().await.unwrap();
        assert_eq!(status.booted, None);
        assert!(!status.conditions.is_empty(), "{status:?}");
    });
}

#[test]
fn what_is_asked_of_an_agent_that_starts_waits_for_its_first_look_at_the_node() {
    on_a_runtime(async {
        let root = tempfile::tempdir().unwrap();
        let (uptime, later) = (root.path().join("proc/uptime"), root.path().join("later"));
        fs::create_dir_all(uptime.parent().unwrap()).unwrap();
        mkfifo(&uptime, Mode::S_IRWXU).unwrap();
        let agent = agent_with(root.path(), None);
        // Opening it waits for the agent, which now hangs in its look at the clock.
        let mut clock = fs::OpenOptions::new().write(true).open(&uptime).unwrap();
        let (_server, client) = connected(&agent).await;
        let released = async {
            // Answered in order: the other call has reached the agent by then, and had time to be refused.
            let peer = Some("org.freedesktop.DBus.Peer");
            let connection = client.connection();
            for _ in 0..200 {
                connection
                    .call_method(None::<&str>, PATH, peer, "Ping", &())
                    .await
                    .unwrap();
            }
            fs::write(&later, "12.00 3.00\n").unwrap();
            fs::rename(&later, &uptime).unwrap();
            clock.write_all(b"11.00 3.00\n").unwrap();
            drop(clock);
        };
        let (asked, ()) = tokio::join!(client.proxy().activate(), released);
        let error = ClientError::from(asked.unwrap_err());
        assert_eq!(error.kind(), ErrorKind::Reject, "{error}");
        assert_eq!(error.to_string(), "no image is staged");
    });
}

#[test]
fn what_is_wrong_with_a_request_comes_back_with_its_kind() {
    on_a_runtime(async {
        let root = tempfile::tempdir().unwrap();
        let (_server, client) = connected(&agent(root.path())).await;
        let relative = client
            .install("./x.img", &InstallOptions::default())
            .await
            .unwrap_err();
        assert_eq!(relative.kind(), ErrorKind::Reject);
        assert!(relative.to_string().contains("./x.img"), "{relative}");
        let kind = |error: ClientError| (error.kind(), error.to_string());

        let options = InstallOptions {
            checksum: Some("sha256:abc".to_owned()),
            ..InstallOptions::default()
        };
        let (refused, said) = kind(client.install("/image", &options).await.unwrap_err());
        assert_eq!(refused, ErrorKind::Reject);
        assert!(said.contains("sha256:abc"), "{said}");

        let none = InstallOptions::default();
        let (refused, said) = kind(client.install("-", &none).await.unwrap_err());
        assert_eq!(refused, ErrorKind::Reject, "{said}");

        let odd = HashMap::from([("what", Variant::from(1_u64))]);
        let error = client.proxy().install("/image", odd).await.unwrap_err();
        let (refused, said) = kind(error.into());
        assert_eq!(refused, ErrorKind::Reject);
        assert!(said.contains("`what`"), "{said}");

        for (slot, state) in [("C", "good"), ("A", "fine")] {
            let error = client.proxy().mark(slot, state).await.unwrap_err();
            assert_eq!(kind(error.into()).0, ErrorKind::Reject);
        }
    });
}

#[test]
fn progress_is_signalled() {
    on_a_runtime(async {
        let root = tempfile::tempdir().unwrap();
        let agent = agent(root.path());
        let (server, client) = connected(&agent).await;
        let mut progress = client.proxy().receive_progress().await.unwrap();
        let mut status = agent.upgrade();
        status.id = Some(5);
        status.phase = "Staging".to_owned();
        emit(&server, &status).await.unwrap();
        let signal = progress.next().await.unwrap();
        let args = signal.args().unwrap();
        assert_eq!(args.upgrade, 5);
        let phase = String::try_from(args.details["phase"].try_clone().unwrap()).unwrap();
        assert_eq!(phase, "Staging");
    });
}
