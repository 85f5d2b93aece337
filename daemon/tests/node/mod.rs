//! A node of plain files with the agent's real host on it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use slotd::agent::{AgentHandle, InstallRequest, Machine, NodeHost, RunFiles, read_history};
use slotd::node::NodeSettings;
use slotd::status::HistoryEntry;
use slotd_bootctl::fixture::FixtureNode;
use slotd_bootctl::{EspSetting, LoaderSetting, SlotName, SlotView};
use slotd_engine::{Failure, Verdict};
use slotd_image::{Cancel, FetchSettings, ImageSource};

pub(crate) const SOON: Duration = Duration::from_secs(30);

/// What the machine was asked for, and what its checks say.
#[derive(Default)]
pub(crate) struct Recorder {
    pub(crate) reboots: Mutex<Vec<bool>>,
    pub(crate) verdict: Mutex<Option<Verdict>>,
    pub(crate) reloads: Mutex<u32>,
    /// Whether it keeps which units failed before a trial.
    pub(crate) remembers: Mutex<bool>,
}

impl Machine for Recorder {
    fn run_checks(&self, _deadline: Instant, _cancel: &Cancel) -> Verdict {
        self.verdict
            .lock()
            .unwrap()
            .clone()
            .unwrap_or(Verdict::Healthy)
    }

    fn remember_failed_units(&self) {
        *self.remembers.lock().unwrap() = true;
    }

    fn forget_failed_units(&self) {
        *self.remembers.lock().unwrap() = false;
    }

    fn reboot(&self, forced: bool) -> Result<(), Failure> {
        self.reboots.lock().unwrap().push(forced);
        Ok(())
    }

    fn reload_units(&self) -> Result<(), Failure> {
        *self.reloads.lock().unwrap() += 1;
        Ok(())
    }
}

pub(crate) struct Lab {
    pub(crate) root: tempfile::TempDir,
    pub(crate) node: FixtureNode,
    pub(crate) machine: Arc<Recorder>,
    pub(crate) boot: u32,
    /// Reboots that were carried out.
    pub(crate) reboots: usize,
}

impl Lab {
    pub(crate) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let node = FixtureNode::create(root.path()).unwrap();
        let mut lab = Self {
            root,
            node,
            machine: Arc::default(),
            boot: 0,
            reboots: 0,
        };
        write(&lab.path("etc/machine-id"), FixtureNode::MACHINE_ID);
        write(
            &lab.path("etc/os-release"),
            "ID=debian\nIMAGE_VERSION=1.0.0\nVERSION_ID=12\n",
        );
        write(&lab.path("proc/sys/kernel/panic"), "10\n");
        lab.new_boot();
        lab.image_tree("2.0.0", true);
        lab
    }

    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.root.path().join(relative)
    }

    pub(crate) fn new_boot(&mut self) {
        self.boot += 1;
        write(
            &self.path("proc/sys/kernel/random/boot_id"),
            &format!("boot-{}\n", self.boot),
        );
        write(&self.path("proc/uptime"), "30.25 55.00\n");
        let _ = fs::remove_dir_all(self.path("run/slotd"));
    }

    /// What the look into the slot will find.
    pub(crate) fn image_tree(&self, version: &str, agent: bool) {
        let tree = self.path("image");
        let _ = fs::remove_dir_all(&tree);
        let release = format!("ID=debian\nIMAGE_VERSION={version}\n");
        write(&tree.join("usr/lib/os-release"), &release);
        write(
            &tree.join("usr/lib/modules/6.1.0/vmlinuz"),
            "kernel of the image",
        );
        // The test's own program says which machine it is for.
        let program = fs::read("/proc/self/exe").unwrap();
        for name in ["usr/lib/systemd/systemd", "usr/bin/slotd"] {
            if agent || !name.ends_with("slotd") {
                place(&tree.join(name), &program[..4096], 0o755);
            }
        }
        if agent {
            let units = tree.join("usr/lib/systemd/system");
            for unit in [
                "slotd.service",
                "slotd-health.service",
                "slotd-confirm.service",
            ] {
                write(&units.join(unit), "[Unit]\n");
            }
            for (folder, unit) in [
                ("multi-user.target.wants", "slotd.service"),
                ("multi-user.target.wants", "slotd-confirm.service"),
                ("boot-complete.target.requires", "slotd-health.service"),
            ] {
                let link = tree.join("etc/systemd/system").join(folder).join(unit);
                fs::create_dir_all(link.parent().unwrap()).unwrap();
                let to = Path::new("/usr/lib/systemd/system").join(unit);
                std::os::unix::fs::symlink(to, link).unwrap();
            }
            let generator = tree.join("usr/lib/systemd/system-generators/slotd-boot-generator");
            place(&generator, &program[..4096], 0o755);
        }
    }

    /// A raw image: an ext4 superblock's magic, and bytes that are easy to recognise.
    pub(crate) fn image_file(&self, fill: u8) -> PathBuf {
        let mut bytes = vec![fill; 2 << 20];
        bytes[1024..2048].fill(0);
        // s_magic at 56 of the superblock; sizes that fit the file.
        bytes[1024 + 56..1024 + 58].copy_from_slice(&[0x53, 0xef]);
        bytes[1024 + 4..1024 + 8].copy_from_slice(&512_u32.to_le_bytes());
        bytes[1024 + 24..1024 + 28].copy_from_slice(&2_u32.to_le_bytes());
        let path = self.path(&format!("image-{fill}.img"));
        fs::write(&path, bytes).unwrap();
        path
    }

    pub(crate) fn host(&self) -> NodeHost {
        self.host_with(LoaderSetting::auto(EspSetting::Path(self.node.esp())))
    }

    pub(crate) fn host_with(&self, loader: LoaderSetting) -> NodeHost {
        let tree = self.path("image");
        let settings = NodeSettings {
            system: self.node.system(),
            state_directory: self.path("data/slotd"),
            run: RunFiles::at(self.path("run/slotd")),
            look: Box::new(move |_, settings| SlotView::of_tree(&tree, settings)),
            ..NodeSettings::new(loader, Box::new(|| Ok(FetchSettings::default())))
        };
        NodeHost::new(settings, Arc::clone(&self.machine) as Arc<dyn Machine>)
    }

    pub(crate) fn agent(&self) -> AgentHandle {
        let agent = AgentHandle::start(Arc::new(self.host())).unwrap();
        assert!(agent.wait_until_ready(SOON));
        agent
    }

    pub(crate) fn request(&self, fill: u8) -> InstallRequest {
        InstallRequest::new(ImageSource::File(self.image_file(fill)))
    }

    /// The machine goes down and comes up as the loader decides.
    pub(crate) fn reboot(&mut self, agent: AgentHandle) -> SlotName {
        if agent.upgrade().step == "reboot" {
            let deadline = Instant::now() + SOON;
            while self.machine.reboots.lock().unwrap().len() < self.reboots + 1 {
                assert!(Instant::now() < deadline, "it never reboots");
                std::thread::yield_now();
            }
        }
        assert!(agent.shutdown(SOON));
        self.reboots = self.machine.reboots.lock().unwrap().len();
        self.new_boot();
        self.node
            .power_cycle()
            .unwrap()
            .expect("a slot was started")
    }

    pub(crate) fn entries(&self) -> Vec<String> {
        self.node.entries().unwrap()
    }

    pub(crate) fn slot_bytes(&self, device: &str) -> Vec<u8> {
        fs::read(self.path("dev").join(device)).unwrap()
    }

    pub(crate) fn history(&self) -> Vec<HistoryEntry> {
        read_history(&self.path("data/slotd")).unwrap().entries
    }

    /// Waits until an upgrade is in the history.
    pub(crate) fn reported(&self) {
        let deadline = Instant::now() + SOON;
        while self.history().is_empty() {
            assert!(Instant::now() < deadline, "nothing is reported");
            std::thread::yield_now();
        }
    }

    /// Installs and waits for the reboot that follows.
    pub(crate) fn install(&self, fill: u8) -> AgentHandle {
        let agent = self.agent();
        agent.install(self.request(fill)).unwrap();
        assert!(agent.wait_for(SOON, |upgrade| {
            upgrade.step == "reboot" || upgrade.phase == "Failed"
        }));
        let status = agent.upgrade();
        assert_eq!(status.phase, "Activating", "{:?}", status.failure);
        agent
    }
}

pub(crate) fn write(path: &Path, text: &str) {
    place(path, text.as_bytes(), 0o644);
}

pub(crate) fn place(path: &Path, bytes: &[u8], mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}
