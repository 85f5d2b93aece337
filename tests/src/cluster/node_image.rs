//! What an image needs to be a node of the lab's clusters, beside the recipe's Kubernetes flavour: a kubelet of its version, and
//! container images, since no registry is asked.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::programs::Programs;
use crate::artifacts::hex;
use crate::process;

/// The image of the container that holds a pod's namespaces; the recipe's containerd is set up for it.
const SANDBOX: &str = "slotd.invalid/pause:1";

/// The image that the lab's pods run.
pub const APP: &str = "slotd.invalid/app:1";

/// Imports the images once for each store, which outlives a change of slot.
const IMPORT: &str = "[Unit]
Description=The lab's container images
Requires=containerd.service
After=containerd.service
Before=kubelet.service
ConditionPathExists=!/var/lib/containerd/lab-images-are-here

[Service]
Type=oneshot
RemainAfterExit=yes
TimeoutStartSec=5min
ExecStart=/bin/sh -c 'for image in /usr/lib/lab/images/*.tar; do ctr -n k8s.io images import \"$image\" || exit; done'
ExecStart=/usr/bin/touch /var/lib/containerd/lab-images-are-here

[Install]
WantedBy=multi-user.target
";

/// Writes the kubelet, the container images and the unit that imports them to a folder that is laid over the tree.
pub(crate) fn write_overlay(folder: &Path, version: &str) -> Result<()> {
    let programs = folder.join("usr/bin");
    let images = folder.join("usr/lib/lab/images");
    let units = folder.join("etc/systemd/system");
    let wants = units.join("multi-user.target.wants");
    for folder in [&programs, &images, &wants] {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    }
    let kubelet = Programs::kubelet(version)?;
    let target = programs.join("kubelet");
    fs::copy(&kubelet, &target)
        .and_then(|_| fs::set_permissions(&target, fs::Permissions::from_mode(0o755)))
        .with_context(|| format!("copying {}", kubelet.display()))?;
    let pause = Programs::pause()?;
    for (name, image) in [("pause.tar", SANDBOX), ("app.tar", APP)] {
        write_container_image(&images.join(name), image, &pause)?;
    }
    const UNIT: &str = "lab-images.service";
    fs::write(units.join(UNIT), IMPORT)
        .and_then(|()| std::os::unix::fs::symlink(format!("../{UNIT}"), wants.join(UNIT)))
        .with_context(|| format!("writing {UNIT}"))
}

/// Writes an archive as `ctr images import` reads it (OCI image layout 1.0), of an image with one program that takes no arguments.
fn write_container_image(archive: &Path, name: &str, program: &Path) -> Result<()> {
    const MEDIA: &str = "application/vnd.oci.image";
    let workplace = tempfile::tempdir().context("making a temporary folder")?;
    let tree = workplace.path().join("tree");
    let layout = workplace.path().join("layout");
    let blobs = layout.join("blobs/sha256");
    for folder in [&tree, &blobs] {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    }
    fs::copy(program, tree.join("app"))
        .with_context(|| format!("copying {}", program.display()))?;
    let layer_file = workplace.path().join("layer.tar");
    tar(&tree, &layer_file)?;
    let blob = |media: &str, bytes: &[u8]| -> Result<Value> {
        let digest = hex(&Sha256::digest(bytes));
        fs::write(blobs.join(&digest), bytes).context("writing a blob")?;
        Ok(json!({
            "mediaType": format!("{MEDIA}.{media}"),
            "digest": format!("sha256:{digest}"),
            "size": bytes.len(),
        }))
    };
    let layer = fs::read(&layer_file).context("reading a layer")?;
    let layer = blob("layer.v1.tar", &layer)?;
    // Not compressed, so the layer is known by one digest.
    let config = json!({
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": ["/app"]},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    });
    let config = blob("config.v1+json", config.to_string().as_bytes())?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": format!("{MEDIA}.manifest.v1+json"),
        "config": config,
        "layers": [layer],
    });
    let mut manifest = blob("manifest.v1+json", manifest.to_string().as_bytes())?;
    manifest["annotations"] = json!({"io.containerd.image.name": name});
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    fs::write(layout.join("index.json"), index.to_string())
        .and_then(|()| {
            fs::write(
                layout.join("oci-layout"),
                r#"{"imageLayoutVersion":"1.0.0"}"#,
            )
        })
        .context("writing an image layout")?;
    tar(&layout, archive)
}

/// The content of a folder, the same bytes each time.
fn tar(folder: &Path, archive: &Path) -> Result<()> {
    process::run("tar", |command| {
        command
            .args(["--create", "--sort=name", "--mtime=@0", "--numeric-owner"])
            .args(["--owner=0", "--group=0", "--mode=a+rX,u+w"])
            .arg("--file")
            .arg(archive)
            .arg("--directory")
            .arg(folder)
            .arg(".")
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::{APP, write_container_image};

    #[test]
    fn an_image_is_named_and_each_of_its_blobs_has_the_digest_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("app.tar");
        write_container_image(&archive, APP, Path::new("/bin/true")).unwrap();
        let run = |command: &str| {
            let output = Command::new("sh")
                .args(["-euc", command])
                .current_dir(folder.path())
                .output()
                .unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        run("tar xf app.tar");
        assert!(run("cat index.json").contains(APP));
        let sums = run("cd blobs/sha256; sha256sum *");
        assert_eq!(sums.lines().count(), 3);
        for line in sums.lines() {
            let (sum, name) = line.split_once("  ").unwrap();
            assert_eq!(sum, name);
        }
        let layer = run("for f in blobs/sha256/*; do tar tf $f 2>/dev/null || true; done");
        assert!(layer.lines().any(|line| line == "./app"), "{layer}");
    }
}
