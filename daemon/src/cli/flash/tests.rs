use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, raise};
use slotd_bootctl::fixture::FixtureNode;
use slotd_bootctl::{Booted, EspSetting, LoaderSetting, SlotName, SlotView};
use slotd_image::{Cancel, FetchSettings};

use super::{FlashArguments, ImageArguments, OutputFormat, chosen, flash_on, interruptible};
use crate::agent::RunFiles;
use crate::cli::error::CliError;
use crate::error::ErrorKind;
use crate::node::NodeSettings;

const MIB: usize = 1 << 20;

/// A node of plain files, and an image that lacks an agent.
struct Bench {
    root: tempfile::TempDir,
    node: FixtureNode,
}

impl Bench {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let node = FixtureNode::create(root.path()).unwrap();
        let bench = Self { root, node };
        let program = fs::read("/proc/self/exe").unwrap();
        for (file, bytes) in [
            ("etc/machine-id", FixtureNode::MACHINE_ID.as_bytes()),
            ("image/usr/lib/os-release", b"IMAGE_VERSION=2.0.0\n"),
            ("image/usr/lib/modules/6.1.0/vmlinuz", b"kernel"),
            ("image/usr/lib/systemd/systemd", &program[..4096]),
        ] {
            let path = bench.root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        bench
    }

    fn settings(&self) -> NodeSettings {
        let tree = self.root.path().join("image");
        NodeSettings {
            system: self.node.system(),
            run: RunFiles::at(self.root.path().join("run/slotd")),
            look: Box::new(move |_, settings| SlotView::of_tree(&tree, settings)),
            ..NodeSettings::new(
                LoaderSetting::auto(EspSetting::Path(self.node.esp())),
                Box::new(|| Ok(FetchSettings::default())),
            )
        }
    }

    fn image(&self) -> PathBuf {
        let path = self.root.path().join("rootfs.img");
        fs::write(&path, image()).unwrap();
        path
    }

    fn flash(&self, image: ImageArguments, cancel: &Cancel) -> Result<(), CliError> {
        let arguments = FlashArguments { image, slot: None };
        flash_on(&self.settings(), &arguments, OutputFormat::Table, cancel)
    }

    fn slot(&self) -> Vec<u8> {
        fs::read(self.root.path().join("dev/vda3")).unwrap()
    }

    fn marker(&self) -> PathBuf {
        self.node.esp().join("slotd/b/image.json")
    }

    fn assert_empty(&self) {
        assert!(self.slot()[..MIB].iter().all(|byte| *byte == 0));
        assert!(!self.marker().exists());
        assert_eq!(self.node.entries().unwrap(), ["slotd-a.conf"]);
    }
}

/// Two MiB with an ext4 superblock that says so.
fn image() -> Vec<u8> {
    let mut bytes = vec![0x5a; 2 * MIB];
    bytes[1024..2048].fill(0);
    bytes[1024 + 56..1024 + 58].copy_from_slice(&[0x53, 0xef]);
    bytes[1024 + 4..1024 + 8].copy_from_slice(&512_u32.to_le_bytes());
    bytes[1024 + 24..1024 + 28].copy_from_slice(&2_u32.to_le_bytes());
    bytes
}

fn asked(source: &str) -> ImageArguments {
    ImageArguments {
        source: source.to_owned(),
        checksum: None,
        expanded_checksum: None,
        size: None,
        image_version: None,
        allow_no_agent: true,
    }
}

#[test]
fn the_slot_is_asked_for_where_none_is_booted() {
    assert_eq!(
        chosen(None, Booted::Slot(SlotName::A)).unwrap(),
        SlotName::B
    );
    assert_eq!(chosen(Some("a"), Booted::Neither).unwrap(), SlotName::A);
    let error = chosen(None, Booted::Neither).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsafe);
    let error = chosen(Some("c"), Booted::Neither).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Reject);
}

#[test]
fn an_image_is_written_looked_into_and_recorded_and_the_next_boot_stays() {
    let bench = Bench::new();
    let source = bench.image().display().to_string();
    bench.flash(asked(&source), &Cancel::new()).unwrap();
    assert_eq!(bench.slot()[..2 * MIB], image());
    let marker = fs::read_to_string(bench.marker()).unwrap();
    assert!(marker.contains("2.0.0"), "{marker}");
    assert_eq!(bench.node.entries().unwrap(), ["slotd-a.conf"]);
}

#[test]
fn what_the_look_refuses_leaves_an_empty_slot() {
    let bench = Bench::new();
    let source = bench.image().display().to_string();
    let strict = ImageArguments {
        allow_no_agent: false,
        ..asked(&source)
    };
    let other = ImageArguments {
        image_version: Some("3.0.0".to_owned()),
        ..asked(&source)
    };
    let damaged = ImageArguments {
        expanded_checksum: Some("0".repeat(64)),
        ..asked(&source)
    };
    for (arguments, expected) in [
        (strict, "--allow-no-agent"),
        (other, "VersionMismatch"),
        (damaged, "sha256:"),
    ] {
        bench.flash(asked(&source), &Cancel::new()).unwrap();
        let error = bench.flash(arguments, &Cancel::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Reject, "{error}");
        let message = error.to_string();
        assert!(message.contains(expected), "{message}");
        assert!(message.ends_with("slot B is empty"), "{message}");
        bench.assert_empty();
    }
    fs::remove_file(
        bench
            .root
            .path()
            .join("image/usr/lib/modules/6.1.0/vmlinuz"),
    )
    .unwrap();
    let error = bench.flash(asked(&source), &Cancel::new()).unwrap_err();
    assert!(error.to_string().contains("no kernel"), "{error}");
    bench.assert_empty();
}

#[test]
fn an_interrupted_write_ends_soon_and_leaves_an_empty_slot() {
    let bench = Bench::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/rootfs.img", listener.local_addr().unwrap());
    let (done, ended) = channel::<()>();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0_u8; 4096];
        assert!(stream.read(&mut request).unwrap() > 0);
        let bytes = image();
        let length = bytes.len() + MIB;
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"
        )
        .unwrap();
        stream.write_all(&bytes).unwrap();
        // The last MiB never comes.
        let _ = ended.recv();
    });
    let cancel = Cancel::new();
    let flag = cancel.clone();
    let device = bench.root.path().join("dev/vda3");
    let operator = std::thread::spawn(move || {
        let deadline = Instant::now() + Duration::from_secs(30);
        // The second MiB is written once the third one is waited for.
        while fs::read(&device).unwrap()[MIB] != 0x5a {
            assert!(Instant::now() < deadline, "nothing is written");
            std::thread::sleep(Duration::from_millis(5));
        }
        flag.cancel();
        Instant::now()
    });
    let arguments = ImageArguments {
        checksum: Some("1".repeat(64)),
        ..asked(&url)
    };
    let error = bench.flash(arguments, &cancel).unwrap_err();
    let took = operator.join().unwrap().elapsed();
    drop(done);
    server.join().unwrap();
    // Within a second on a machine that has one to spare; the source's own timeout is half a minute.
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert_eq!(error.to_string(), "interrupted: slot B is empty");
    assert_ne!(error.kind().exit_code(), 0);
    bench.assert_empty();
}

#[test]
fn being_told_to_stop_before_the_slot_is_touched_changes_nothing() {
    let bench = Bench::new();
    let source = bench.image().display().to_string();
    bench.flash(asked(&source), &Cancel::new()).unwrap();
    let cancel = Cancel::new();
    cancel.cancel();
    let error = bench.flash(asked(&source), &cancel).unwrap_err();
    assert_eq!(error.to_string(), "interrupted: nothing was changed");
    assert!(bench.marker().exists());
}

#[test]
fn a_signal_raises_the_flag_instead_of_ending_the_process() {
    let cancel = interruptible().unwrap();
    assert!(!cancel.is_cancelled());
    raise(Signal::SIGTERM).unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while !cancel.is_cancelled() {
        assert!(Instant::now() < deadline, "nobody heard the signal");
        std::thread::yield_now();
    }
}
