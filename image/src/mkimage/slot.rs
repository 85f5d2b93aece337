//! A slot image: a tree made bootable, as an ext4 filesystem, published as it is or compressed.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};

use crate::catalog::{self, Entry};
use crate::ext4::{self, Journal};
use crate::recipe::Recipe;
use crate::size::Size;
use crate::slotd::{self, Installation};
use crate::tree::Tree;

/// Fast enough to make an image in a few seconds; the highest levels take minutes for a few percent.
const ZSTD_LEVEL: i32 = 3;

/// What to make a slot image of.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) recipe: &'a Recipe,
    pub(crate) rootfs: &'a Path,
    pub(crate) overlays: &'a [std::path::PathBuf],
    pub(crate) slotd: Option<&'a Installation>,
    pub(crate) version: &'a str,
    pub(crate) size: Size,
    pub(crate) output: &'a Path,
    pub(crate) url: Option<&'a str>,
}

/// Makes the image and returns its catalog entry.
pub(crate) fn make(request: &Request<'_>) -> Result<Entry> {
    let workplace = workplace(request.output)?;
    // Beside a rootfs folder, where hard links can be made, when that can be written to.
    let tree = match request.rootfs.parent().filter(|_| request.rootfs.is_dir()) {
        Some(beside) => Tree::from_rootfs(request.rootfs, beside)
            .or_else(|_| Tree::from_rootfs(request.rootfs, &workplace))?,
        None => Tree::from_rootfs(request.rootfs, &workplace)?,
    };
    for folder in &request.recipe.folders {
        tree.folder(folder)?;
    }
    for overlay in &request.recipe.overlays {
        tree.lay_over(overlay)?;
    }
    if let Some(installation) = request.slotd {
        slotd::install(&tree, installation)?;
    }
    for overlay in request.overlays {
        tree.lay_over(overlay)?;
    }
    for pattern in &request.recipe.remove {
        tree.remove(pattern)?;
    }
    stamp(&tree, request.version)?;
    link_kernel(&tree)?;

    let raw = tempfile::Builder::new()
        .prefix(".slotd-image-")
        .tempfile_in(&workplace)
        .with_context(|| format!("making a file in {}", workplace.display()))?;
    ext4::make(
        tree.root(),
        raw.path(),
        request.size,
        "slot",
        Journal::Without,
    )?;
    drop(tree);
    publish(raw, request.output)?;

    let mut entry = catalog::describe(request.output)?;
    if let Some(url) = request.url {
        entry.url = url.to_owned();
    }
    Ok(entry)
}

/// The folder that the output goes to, made if need be.
fn workplace(output: &Path) -> Result<std::path::PathBuf> {
    let folder = match output.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    Ok(folder.to_owned())
}

/// Gives the kernel and its initrd names that do not change, for loaders that read them in the slot: `/boot/vmlinuz` and
/// `/boot/initrd.img`. And the image's kernel options in the languages of GRUB and U-Boot, which cannot read a file's text.
fn link_kernel(tree: &Tree) -> Result<()> {
    let boot = tree.path("/boot");
    let names: Vec<String> = fs::read_dir(&boot)
        .with_context(|| format!("listing {}", boot.display()))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    for (prefix, link) in [("vmlinuz-", "vmlinuz"), ("initrd.img-", "initrd.img")] {
        let mut found = names.iter().filter(|name| name.starts_with(prefix));
        if let (Some(name), None) = (found.next(), found.next()) {
            tree.link(&format!("/boot/{link}"), name)?;
        }
    }
    let options = fs::read_to_string(tree.path("/usr/lib/kernel/cmdline")).unwrap_or_default();
    if options.trim().contains(['\'', '\n']) {
        anyhow::bail!("/usr/lib/kernel/cmdline is no single line without quotes: {options:?}");
    }
    refuse_reserved(&options)?;
    let text = format!(
        "# The image's kernel options, as in /usr/lib/kernel/cmdline.\nset slotd_options='{}'\n",
        options.trim()
    );
    tree.write("/usr/lib/slotd/grub.cfg", text.as_bytes())?;
    let text = format!("slotd_options={}\n", options.trim());
    tree.write("/usr/lib/slotd/uboot.env", text.as_bytes())
}

/// What slotd sets on every boot, or on a trial's: an image that sets it too would not be started as slotd counts on. What
/// stands behind `--` is not the kernel's, and would take along what slotd sets behind it.
fn refuse_reserved(options: &str) -> Result<()> {
    const RESERVED: [&str; 7] = [
        "root=",
        "slotd.slot=",
        "slotd.trial",
        "slotd.tries=",
        "slotd.trial_deadline=",
        "systemd.machine_id=",
        "panic=",
    ];
    for word in options.split_whitespace() {
        // The kernel takes off quotes around a word.
        let bare = word.trim_matches('"');
        if bare == "--" {
            anyhow::bail!("/usr/lib/kernel/cmdline has {word:?}: what follows would be the init's");
        }
        if let Some(reserved) = RESERVED
            .iter()
            .find(|reserved| bare.starts_with(**reserved))
        {
            anyhow::bail!(
                "/usr/lib/kernel/cmdline sets {word:?}, but {reserved} is slotd's to set"
            );
        }
    }
    Ok(())
}

/// Writes the image's version into its os-release.
fn stamp(tree: &Tree, version: &str) -> Result<()> {
    const PATH: &str = "/usr/lib/os-release";
    let path = tree.path(PATH);
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    tree.write(PATH, with_version(&text, version).as_bytes())
}

/// An os-release with this IMAGE_VERSION and no other.
fn with_version(os_release: &str, version: &str) -> String {
    let mut text = String::new();
    for line in os_release.lines() {
        if !line.starts_with("IMAGE_VERSION=") && !line.starts_with("IMAGE_ID=") {
            let _ = writeln!(text, "{line}");
        }
    }
    let _ = writeln!(
        text,
        "IMAGE_ID=slotd-reference\nIMAGE_VERSION=\"{version}\""
    );
    text
}

/// Moves the raw image to its place, or its compressed form when the place ends in `.zst`. The file appears whole or not at all.
fn publish(raw: tempfile::NamedTempFile, output: &Path) -> Result<()> {
    let context = || format!("writing {}", output.display());
    if output
        .extension()
        .is_none_or(|extension| extension != "zst")
    {
        raw.persist(output).with_context(context)?;
        return Ok(());
    }
    let folder = output
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let compressed = tempfile::Builder::new()
        .prefix(".slotd-image-")
        .tempfile_in(folder.unwrap_or(Path::new(".")))
        .with_context(context)?;
    let source = File::open(raw.path()).with_context(context)?;
    let mut encoder =
        zstd::stream::write::Encoder::new(BufWriter::new(compressed.as_file()), ZSTD_LEVEL)
            .with_context(context)?;
    // A flipped bit is found by the decoder already, and readers learn the size before the first block.
    encoder.include_checksum(true).with_context(context)?;
    encoder
        .set_pledged_src_size(Some(source.metadata().with_context(context)?.len()))
        .with_context(context)?;
    io::copy(&mut BufReader::with_capacity(1 << 20, source), &mut encoder).with_context(context)?;
    encoder
        .finish()
        .and_then(|mut writer| writer.flush())
        .with_context(context)?;
    let file = compressed.persist(output).with_context(context)?;
    // Temporary files are private; an image is to be served.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    file.set_permissions(mode).with_context(context)
}

#[cfg(test)]
mod tests {
    use super::{refuse_reserved, with_version};

    #[test]
    fn options_that_are_slotds_are_refused_by_name() {
        for word in [
            "--",
            "\"--\"",
            "root=/dev/vda2",
            "\"root=/dev/vda2\"",
            "slotd.slot=a",
            "slotd.trial",
            "slotd.tries=3",
            "slotd.trial_deadline=60",
            "systemd.machine_id=0",
            "panic=1",
        ] {
            let error = refuse_reserved(&format!("quiet {word} ro")).unwrap_err();
            assert!(error.to_string().contains(&format!("{word:?}")), "{error}");
        }
        refuse_reserved("console=ttyS0 rootwait rootfstype=ext4 panic_on_oops=1 rd.--x=1\n")
            .unwrap();
    }

    #[test]
    fn the_version_is_stamped_once() {
        let once = with_version("ID=debian\nIMAGE_VERSION=v1\n", "v2");
        assert_eq!(
            once,
            "ID=debian\nIMAGE_ID=slotd-reference\nIMAGE_VERSION=\"v2\"\n"
        );
        assert_eq!(with_version(&once, "v2"), once);
    }
}
