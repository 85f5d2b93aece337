//! Certificates of a control plane, and kubeconfigs made of them.

use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use serde_json::{Value, json};

/// The names that the API server is reached by: from this machine, and from a virtual machine with QEMU's user network.
const SERVER_NAMES: [&str; 3] = ["127.0.0.1", "localhost", "10.0.2.2"];

/// A certification authority: servers and clients of one control plane.
#[derive(Debug)]
pub(super) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, both PEM.
#[derive(Debug)]
pub(super) struct Credential {
    pub(super) certificate: String,
    pub(super) key: String,
}

impl Authority {
    pub(super) fn new() -> Result<Self> {
        let mut parameters = parameters("the lab's authority", &[])?;
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(parameters, generate_key()?)
            .context("making a certification authority")?;
        Ok(Self { issuer })
    }

    /// The authority's own certificate, PEM.
    pub(super) fn certificate(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate for servers on this machine.
    pub(super) fn server(&self) -> Result<Credential> {
        let mut parameters = parameters("kube-apiserver", &SERVER_NAMES)?;
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(parameters)
    }

    /// A certificate by which the API server knows a user, and the group that they are in.
    pub(super) fn client(&self, user: &str, group: Option<&str>) -> Result<Credential> {
        self.client_for(user, group, None)
    }

    /// The same, valid for so long from now on; without a length, longer than any test.
    pub(super) fn client_for(
        &self,
        user: &str,
        group: Option<&str>,
        lifetime: Option<Duration>,
    ) -> Result<Credential> {
        let mut parameters = parameters(user, &[])?;
        if let Some(group) = group {
            let name = &mut parameters.distinguished_name;
            name.push(DnType::OrganizationName, group);
        }
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if let Some(lifetime) = lifetime {
            parameters.not_after = (SystemTime::now() + lifetime).into();
        }
        self.sign(parameters)
    }

    fn sign(&self, mut parameters: CertificateParams) -> Result<Credential> {
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = generate_key()?;
        let certificate = parameters
            .signed_by(&key, &self.issuer)
            .context("signing a certificate")?;
        Ok(Credential {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }

    /// A kubeconfig that holds all it needs, so that it can be copied into a machine. JSON, which is YAML too.
    pub(super) fn kubeconfig(&self, server: &str, credential: &Credential) -> String {
        let user = json!({
            "client-certificate-data": encode(&credential.certificate),
            "client-key-data": encode(&credential.key),
        });
        self.kubeconfig_of(server, &user)
    }

    /// A kubeconfig whose certificate and key are both in this file, as the kubelet keeps them.
    pub(super) fn kubeconfig_beside(&self, server: &str, file: &str) -> String {
        let user = json!({"client-certificate": file, "client-key": file});
        self.kubeconfig_of(server, &user)
    }

    fn kubeconfig_of(&self, server: &str, user: &Value) -> String {
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": {
                "server": server,
                "certificate-authority-data": encode(&self.certificate()),
            }}],
            "users": [{"name": "lab", "user": user}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
            "current-context": "lab",
        });
        format!("{kubeconfig:#}\n")
    }
}

fn encode(pem: &str) -> String {
    BASE64_STANDARD.encode(pem)
}

fn parameters(common_name: &str, names: &[&str]) -> Result<CertificateParams> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut parameters = CertificateParams::new(names).context("naming a certificate")?;
    // Not the crate's own common name.
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters
        .distinguished_name
        .push(DnType::CommonName, common_name);
    Ok(parameters)
}

/// A key for a certificate, or for the tokens of service accounts.
pub(super) fn generate_key() -> Result<KeyPair> {
    KeyPair::generate().context("generating a key")
}
