//! Identities at the API server, with kubectl to speak for them.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::certificates::Authority;

/// Whom one API server knows.
#[derive(Debug)]
pub(super) struct Identities {
    pub(super) authority: Authority,
    /// Where the API server is reached.
    pub(super) url: String,
    pub(super) kubectl: PathBuf,
    /// Where kubeconfigs are written.
    pub(super) folder: PathBuf,
}

/// This machine's loopback, as QEMU's user network shows it to a guest.
const LOOPBACK_OF_GUESTS: &str = "10.0.2.2";

impl Identities {
    /// A kubeconfig for use in a virtual machine, of a user with a certificate of their own.
    pub(super) fn guest_kubeconfig(&self, user: &str, group: Option<&str>) -> Result<String> {
        let credential = self.authority.client(user, group)?;
        let url = self.url.replace("127.0.0.1", LOOPBACK_OF_GUESTS);
        Ok(self.authority.kubeconfig(&url, &credential))
    }

    /// A user with a certificate of their own, in one group or in none.
    pub(super) fn client(&self, user: &str, group: Option<&str>) -> Result<Client> {
        let credential = self.authority.client(user, group)?;
        let name = user.replace([':', '/'], "-");
        let kubeconfig = self.folder.join(format!("{name}.kubeconfig"));
        std::fs::write(
            &kubeconfig,
            self.authority.kubeconfig(&self.url, &credential),
        )
        .with_context(|| format!("writing {}", kubeconfig.display()))?;
        Ok(Client {
            kubectl: self.kubectl.clone(),
            kubeconfig,
            home: self.folder.join("home"),
        })
    }
}

/// kubectl with a kubeconfig.
#[derive(Debug, Clone)]
pub struct Client {
    kubectl: PathBuf,
    kubeconfig: PathBuf,
    /// In place of the user's: kubectl keeps a cache and settings there.
    home: PathBuf,
}

impl Client {
    /// The kubeconfig, which needs no other file.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// kubectl itself.
    pub fn program(&self) -> &Path {
        &self.kubectl
    }

    /// What kubectl answers, also when it fails.
    pub fn kubectl(&self, arguments: &[impl AsRef<OsStr>]) -> Result<Output> {
        self.command(arguments)
            .stdin(Stdio::null())
            .output()
            .context("starting kubectl")
    }

    /// kubectl on its way; nobody reads what it prints.
    pub fn spawn(&self, arguments: &[impl AsRef<OsStr>]) -> Result<Child> {
        self.command(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting kubectl")
    }

    /// What kubectl prints; an error carries what it said.
    pub fn run(&self, arguments: &[impl AsRef<OsStr>]) -> Result<String> {
        printed(&self.kubectl(arguments)?).with_context(|| format!("kubectl {}", shown(arguments)))
    }

    /// The same with `--output json`, read.
    pub fn json(&self, arguments: &[&str]) -> Result<Value> {
        let text = self.run(&[arguments, &["--output", "json"]].concat())?;
        serde_json::from_str(&text)
            .with_context(|| format!("kubectl {} printed no JSON", shown(arguments)))
    }

    /// What kubectl says when it fails; an error when it succeeds.
    pub fn refusal(&self, arguments: &[impl AsRef<OsStr>]) -> Result<String> {
        let output = self.kubectl(arguments)?;
        ensure!(
            !output.status.success(),
            "kubectl {} was not refused: {}",
            shown(arguments),
            String::from_utf8_lossy(&output.stdout)
        );
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Applies a folder: its kustomization where it has one, else every document in it.
    pub fn apply_folder(&self, folder: &Path) -> Result<String> {
        let option = if folder.join("kustomization.yaml").exists() {
            "--kustomize"
        } else {
            "--filename"
        };
        self.run(&["apply".as_ref(), option.as_ref(), folder.as_os_str()])
    }

    /// Applies documents.
    pub fn apply(&self, documents: &str) -> Result<String> {
        printed(&self.try_apply(documents)?).context("kubectl apply")
    }

    /// What kubectl answers when documents are applied, also when they are refused; warnings are on its standard error.
    pub fn try_apply(&self, documents: &str) -> Result<Output> {
        self.try_apply_with(&[], documents)
    }

    /// The same with more options.
    pub fn try_apply_with(&self, options: &[&str], documents: &str) -> Result<Output> {
        let mut child = self
            .command(&[&["apply", "--filename", "-"], options].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("starting kubectl")?;
        // kubectl reads all of it before it prints, and says itself why it stopped reading.
        let written = child
            .stdin
            .take()
            .context("kubectl's input")?
            .write_all(documents.as_bytes());
        let output = child.wait_with_output().context("waiting for kubectl")?;
        if output.status.success() {
            written.context("writing to kubectl")?;
        }
        Ok(output)
    }

    fn command(&self, arguments: &[impl AsRef<OsStr>]) -> Command {
        let mut command = Command::new(&self.kubectl);
        command
            .env("HOME", &self.home)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("LC_ALL", "C.UTF-8")
            .args(arguments);
        command
    }
}

fn printed(output: &Output) -> Result<String> {
    if !output.status.success() {
        bail!(
            "failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn shown(arguments: &[impl AsRef<OsStr>]) -> String {
    arguments
        .iter()
        .map(|argument| argument.as_ref().to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}
