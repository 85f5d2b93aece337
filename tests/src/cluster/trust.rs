//! Credentials that the API server does not accept for ever: their time ends, or their authority is taken away.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

use super::certificates::{Authority, Credential};
use super::control_plane::{CLIENTS_CA, ControlPlane};

/// What a credential is for.
#[derive(Debug, Clone, Copy)]
pub struct Holder<'a> {
    /// The user.
    pub user: &'a str,
    /// Their group, if they are in one.
    pub group: Option<&'a str>,
    /// For how long the certificate is valid; without one, longer than any test.
    pub lifetime: Option<Duration>,
}

impl ControlPlane {
    /// A kubeconfig that holds all it needs.
    pub fn kubeconfig(&self, whose: &Holder<'_>) -> Result<String> {
        let credential = self.credential(&self.identities.authority, whose)?;
        Ok(self.kubeconfig_with(&credential))
    }

    /// A kubeconfig that names a file for certificate and key, and what that file is to hold.
    pub fn kubeconfig_beside(&self, whose: &Holder<'_>, file: &str) -> Result<(String, String)> {
        let identities = &self.identities;
        let credential = self.credential(&identities.authority, whose)?;
        let kubeconfig = identities.authority.kubeconfig_beside(self.url(), file);
        Ok((kubeconfig, credential.certificate + &credential.key))
    }

    /// Lets the API server know the clients of another authority, too.
    pub fn trust_another(&self) -> Result<OtherAuthority<'_>> {
        let other = OtherAuthority {
            plane: self,
            authority: Authority::new()?,
        };
        self.trust(&[&self.identities.authority, &other.authority])?;
        Ok(other)
    }

    fn credential(&self, authority: &Authority, whose: &Holder<'_>) -> Result<Credential> {
        authority.client_for(whose.user, whose.group, whose.lifetime)
    }

    fn kubeconfig_with(&self, credential: &Credential) -> String {
        self.identities.authority.kubeconfig(self.url(), credential)
    }

    fn trust(&self, authorities: &[&Authority]) -> Result<()> {
        let all: String = authorities.iter().map(|one| one.certificate()).collect();
        let path = self.folder().join(CLIENTS_CA);
        let new = path.with_extension("new");
        fs::write(&new, all)
            .and_then(|()| fs::rename(&new, &path))
            .with_context(|| format!("writing {}", path.display()))
    }
}

/// An authority whose clients the API server knows until this goes; it takes some moments to notice.
#[derive(Debug)]
pub struct OtherAuthority<'a> {
    plane: &'a ControlPlane,
    authority: Authority,
}

impl OtherAuthority<'_> {
    /// A kubeconfig with a certificate of this authority.
    pub fn kubeconfig(&self, whose: &Holder<'_>) -> Result<String> {
        let credential = self.plane.credential(&self.authority, whose)?;
        Ok(self.plane.kubeconfig_with(&credential))
    }
}

impl Drop for OtherAuthority<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.plane.trust(&[&self.plane.identities.authority]) {
            eprintln!("lab: an authority is trusted still: {error:#}");
        }
    }
}
