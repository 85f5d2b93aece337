//! A kubeconfig and the files that it names as they lie on the disk, so that one that was renewed is noticed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use kube::config::{AuthInfo, Kubeconfig, KubeconfigError};
use thiserror::Error;

/// Why a credential cannot be read.
#[derive(Debug, Error)]
pub enum CredentialError {
    /// The kubeconfig cannot be read.
    #[error("cannot read the kubeconfig {path}: {source}", path = path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: Box<KubeconfigError>,
    },
    /// A file that the kubeconfig names cannot be read.
    #[error("cannot read {path}, which the kubeconfig names: {source}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl CredentialError {
    /// Something wrong with the kubeconfig itself.
    pub(crate) fn kubeconfig(path: &Path) -> impl FnOnce(KubeconfigError) -> Self {
        let path = path.to_owned();
        move |source| Self::Kubeconfig {
            path,
            source: Box::new(source),
        }
    }
}

/// What a credential is made of, to be compared: the bytes of the kubeconfig and of the files that it names.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Material(Vec<Vec<u8>>);

impl Material {
    /// As it is now. Whoever makes a client of it reads this first: what is renewed in between is then noticed, if once too
    /// often.
    ///
    /// # Errors
    /// When one of the files cannot be read.
    pub(crate) fn read(path: &Path) -> Result<Self, CredentialError> {
        let bytes = fs::read(path).map_err(|error| {
            CredentialError::kubeconfig(path)(KubeconfigError::ReadConfig(error, path.to_owned()))
        })?;
        let text = String::from_utf8_lossy(&bytes);
        let kubeconfig = Kubeconfig::from_yaml(&text).map_err(CredentialError::kubeconfig(path))?;
        let user = user(&kubeconfig).unwrap_or_default();
        let clusters = kubeconfig.clusters.into_iter();
        let authorities = clusters.filter_map(|named| named.cluster?.certificate_authority);
        let files = [user.client_certificate, user.client_key]
            .into_iter()
            .flatten()
            .chain(authorities)
            .map(|file| read(&beside(path, &file)));
        let mut all = vec![bytes];
        for file in files {
            all.push(file?);
        }
        Ok(Self(all))
    }

    /// Of nothing.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self(Vec::new())
    }
}

/// The user of the current context.
pub(crate) fn user(kubeconfig: &Kubeconfig) -> Option<AuthInfo> {
    let context = kubeconfig.current_context.as_ref()?;
    let context = kubeconfig
        .contexts
        .iter()
        .find(|named| named.name == *context)?;
    let name = context.context.as_ref()?.user.as_ref()?;
    let user = kubeconfig
        .auth_infos
        .iter()
        .find(|named| named.name == *name)?;
    user.auth_info.clone()
}

/// A file as a kubeconfig names it: relative to the kubeconfig's own folder.
pub(crate) fn beside(kubeconfig: &Path, file: &str) -> PathBuf {
    kubeconfig.parent().unwrap_or(Path::new("/")).join(file)
}

/// The bytes of a file that a kubeconfig names.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, CredentialError> {
    fs::read(path).map_err(|source| CredentialError::File {
        path: path.to_owned(),
        source,
    })
}
