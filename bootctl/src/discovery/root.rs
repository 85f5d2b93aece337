//! What the running root stands on: through overlayfs, device-mapper, MD and loop devices down to disks.

use std::collections::BTreeSet;
use std::path::Path;

use super::node::Node;
use crate::error::Result;
use crate::mounts::Mount;
use crate::slot::DeviceNumber;

/// Kinds of file systems that lie on no device of this machine.
const WITHOUT_DEVICE: [&str; 10] = [
    "rootfs", "tmpfs", "ramfs", "nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "ceph",
];

/// What the running root stands on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Root {
    /// Every device under it.
    pub(crate) devices: BTreeSet<DeviceNumber>,
    /// Those that are mounted themselves.
    pub(crate) mounted: BTreeSet<DeviceNumber>,
    /// The disks of these devices, where they have a partition table.
    pub(crate) disks: BTreeSet<String>,
    /// Layers and files whose device could not be found.
    pub(crate) unresolved: Vec<String>,
    /// Whether `/usr` is a mount of its own.
    pub(crate) usr_apart: bool,
    /// What was read, for messages.
    pub(crate) found: String,
}

/// Goes down from mounts and devices to what they stand on.
pub(super) struct Walk<'a> {
    node: &'a Node,
    root: Root,
    found: Vec<String>,
    /// Devices between the start and where the walk is, those of file systems included. What leads back to one of them does
    /// not say where it lies: its own mount was left behind with the initrd.
    above: Vec<DeviceNumber>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(node: &'a Node) -> Self {
        Self {
            node,
            root: Root::default(),
            found: Vec::new(),
            above: Vec::new(),
        }
    }

    /// From a mount point of the running system.
    pub(super) fn point(&mut self, point: &str, mount: &Mount) -> Result<()> {
        self.found
            .push(format!("{point} is {} on {}", mount.kind, mount.source));
        self.root.usr_apart |= point == "/usr";
        self.mount(mount)
    }

    fn mount(&mut self, mount: &Mount) -> Result<()> {
        if mount.kind == "overlay" {
            self.above.push(mount.device);
            for key in ["lowerdir", "lowerdir+", "datadir+", "upperdir"] {
                let layers = mount.option_values(key).flat_map(|value| value.split(':'));
                for layer in layers.filter(|layer| !layer.is_empty()) {
                    let layer = Path::new(layer);
                    // What is left of a mount point once its mount is gone is an empty directory; an upper layer may be one.
                    let seen = self.node.shows(layer)
                        && (key == "upperdir" || self.node.holds_files(layer));
                    self.file(layer, seen)?;
                }
            }
            self.above.pop();
            return Ok(());
        }
        // btrfs and the like have an anonymous device number, but name their device.
        let device = match self.node.devices.by_number(mount.device) {
            Some(device) => Some(device),
            None if mount.source.starts_with("/dev/") => {
                self.node.resolve(Path::new(&mount.source))?
            }
            None => None,
        };
        match device {
            Some(device) => {
                self.root.mounted.insert(device.number);
                self.above.push(mount.device);
                self.device(device.number)?;
                self.above.pop();
            }
            // What has no device at all is no slot. Anything else stands on one that is not known.
            None if !WITHOUT_DEVICE.contains(&&*mount.kind) => {
                let source = format!("{} ({})", mount.source, mount.kind);
                self.root.unresolved.push(source);
            }
            None => {}
        }
        Ok(())
    }

    /// The file system that a layer or a loop device's file lies on. A path that shows nothing was named in another mount
    /// namespace, or its mount was left behind: what is mounted above it now says nothing.
    fn file(&mut self, file: &Path, seen: bool) -> Result<()> {
        match self.node.mounts.of(file) {
            Some(mount) if seen && !self.above.contains(&mount.device) => self.mount(mount),
            _ => {
                self.root.unresolved.push(file.display().to_string());
                Ok(())
            }
        }
    }

    pub(super) fn device(&mut self, number: DeviceNumber) -> Result<()> {
        if !self.root.devices.insert(number) {
            return Ok(());
        }
        let Some(device) = self.node.devices.by_number(number) else {
            return Ok(());
        };
        self.above.push(number);
        for below in self.node.below(device)? {
            self.device(below)?;
        }
        if let Some(file) = &device.backing_file
            && self.node.resolve(file)?.is_none()
        {
            self.file(file, self.node.shows(file))?;
        }
        self.above.pop();
        Ok(())
    }

    pub(super) fn done(mut self) -> Root {
        let devices: Vec<_> = self
            .root
            .devices
            .iter()
            .filter_map(|number| self.node.devices.by_number(*number))
            .collect();
        for device in &devices {
            let is_disk_of_another = device.partition.is_none()
                && devices
                    .iter()
                    .any(|other| other.partition.is_some() && other.disk == device.name);
            if !is_disk_of_another {
                self.found
                    .push(format!("{} is {}", device.name, device.number));
            }
            if device.partition.is_some() || self.node.tables.contains_key(&device.disk) {
                self.root.disks.insert(device.disk.clone());
            }
        }
        self.root.found = self.found.join(", ");
        self.root
    }
}
