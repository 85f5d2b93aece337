//! Who the node is in its cluster: the kubelet's kubeconfig, its client certificate, and the name in it.

use std::path::Path;

use jiff::Timestamp;
use kube::Client;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use x509_parser::pem::Pem;

use super::error::{ANSWER, ClusterError};
use crate::credential::{self, CredentialError, Material, beside, user};
use crate::pace;

/// What a node's user is called in front of its name (the Node authorizer's rule).
const NODE_USER: &str = "system:node:";

/// A client that speaks for this node.
#[derive(Clone)]
pub(super) struct Identity {
    pub(super) client: Client,
    /// The Node's name.
    pub(super) node: String,
    /// What the credential was made of, to be compared.
    pub(super) material: Material,
    /// Until when its certificate is valid.
    expires: Option<Timestamp>,
}

impl Identity {
    /// What went wrong, and what is known of the credential where it was not accepted.
    pub(super) fn explain(&self, error: &ClusterError) -> String {
        match self.expires {
            Some(end) if error.code() == Some(401) && end < Timestamp::now() => {
                format!("{error}: this node's client certificate expired at {end:.0}")
            }
            _ => error.to_string(),
        }
    }
}

/// Reads the kubeconfig and makes a client. Reads the files anew each time, so that a renewed certificate is used.
///
/// # Errors
/// [`ClusterError`], with the file.
pub(super) async fn load(path: &Path) -> Result<Identity, ClusterError> {
    let material = Material::read(path)?;
    let kubeconfig = Kubeconfig::read_from(path).map_err(CredentialError::kubeconfig(path))?;
    let user = user(&kubeconfig);
    let certificate = certificate(path, user.as_ref())?;
    let node = node_name(&certificate).map_err(|reason| ClusterError::NoNode {
        path: path.to_owned(),
        reason,
    })?;
    let mut config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .map_err(CredentialError::kubeconfig(path))?;
    config.connect_timeout = Some(ANSWER);
    let client = pace::client(config).map_err(ClusterError::api("make a client"))?;
    Ok(Identity {
        client,
        node,
        material,
        expires: expires(&certificate),
    })
}

/// The client certificate, PEM.
fn certificate(path: &Path, user: Option<&AuthInfo>) -> Result<Vec<u8>, ClusterError> {
    let none = |reason: &str| ClusterError::NoNode {
        path: path.to_owned(),
        reason: reason.to_owned(),
    };
    let user = user.ok_or_else(|| none("its current context has no user"))?;
    if let Some(data) = &user.client_certificate_data {
        return decode(data).ok_or_else(|| none("client-certificate-data is not base64"));
    }
    let file = user
        .client_certificate
        .as_ref()
        .ok_or_else(|| none("it has no client certificate, whose name would tell the node"))?;
    Ok(credential::read(&beside(path, file))?)
}

fn decode(data: &str) -> Option<Vec<u8>> {
    use base64::Engine;
    let packed: String = data.split_whitespace().collect();
    base64::prelude::BASE64_STANDARD.decode(packed).ok()
}

/// The end of a certificate's time.
fn expires(pem: &[u8]) -> Option<Timestamp> {
    let block = first(pem)?;
    let certificate = block.parse_x509().ok()?;
    Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
}

fn first(pem: &[u8]) -> Option<Pem> {
    Pem::iter_from_buffer(pem)
        .filter_map(Result::ok)
        .find(|block| block.label == "CERTIFICATE")
}

/// The node that a certificate speaks for: its common name is `system:node:NAME`.
fn node_name(pem: &[u8]) -> Result<String, String> {
    let certificate = first(pem).ok_or("there is no certificate in it")?;
    let parsed = certificate
        .parse_x509()
        .map_err(|error| format!("its certificate cannot be read: {error}"))?;
    let name = parsed
        .subject()
        .iter_common_name()
        .next()
        .and_then(|name| name.as_str().ok())
        .ok_or("its certificate has no common name")?;
    name.strip_prefix(NODE_USER)
        .filter(|node| !node.is_empty())
        .map(str::to_owned)
        .ok_or_else(|| format!("its certificate is {name}'s, not {NODE_USER}NAME's"))
}

/// A node of that API server, without a credential.
#[cfg(test)]
pub(super) fn for_tests(server: &str) -> Identity {
    let config = kube::Config::new(server.parse().unwrap());
    Identity {
        client: Client::try_from(config).unwrap(),
        node: "n1".to_owned(),
        material: Material::none(),
        expires: None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    use super::{Identity, expires, for_tests, load, node_name};
    use crate::cluster::error::ClusterError;
    use crate::credential::Material;

    fn certificate(name: &str) -> (String, String) {
        certificate_until(name, 2100)
    }

    fn certificate_until(name: &str, year: i32) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        parameters.not_after = rcgen::date_time_ymd(year, 1, 1);
        parameters.distinguished_name = DistinguishedName::new();
        parameters.distinguished_name.push(DnType::CommonName, name);
        let certificate = parameters.self_signed(&key).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    #[test]
    fn the_name_of_a_node_is_in_its_certificate_and_nowhere_else() {
        let (pem, key) = certificate("system:node:rack-1.example");
        assert_eq!(node_name(pem.as_bytes()).unwrap(), "rack-1.example");
        // As the kubelet keeps it: both in one file, whatever comes first.
        let both = format!("{key}{pem}");
        assert_eq!(node_name(both.as_bytes()).unwrap(), "rack-1.example");
        for (name, reason) in [
            ("kubernetes-admin", "is kubernetes-admin's"),
            ("system:node:", "not system:node:NAME's"),
        ] {
            let error = node_name(certificate(name).0.as_bytes()).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        assert!(
            node_name(key.as_bytes())
                .unwrap_err()
                .contains("no certificate")
        );
    }

    #[tokio::test]
    async fn why_a_credential_is_not_accepted_is_said_where_it_is_known() {
        let refused = |code: u16| {
            let text =
                format!(r#"{{"status": "Failure", "message": "Unauthorized", "code": {code}}}"#);
            let status = serde_json::from_str(&text).unwrap();
            ClusterError::api("write")(kube::Error::Api(status))
        };
        let said = |year: i32, code: u16| {
            let pem = certificate_until("system:node:n1", year).0;
            let identity = Identity {
                expires: expires(pem.as_bytes()),
                ..for_tests("http://127.0.0.1:1")
            };
            identity.explain(&refused(code))
        };
        let end = "this node's client certificate expired at 2020-01-01T00:00:00Z";
        assert!(said(2020, 401).ends_with(end), "{}", said(2020, 401));
        for (year, code) in [(2100, 401), (2020, 403)] {
            assert!(!said(year, code).contains("expired"), "{year} {code}");
        }
    }

    #[tokio::test]
    async fn a_renewed_certificate_beside_the_kubeconfig_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubelet.conf");
        let text = r#"{"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1", "certificate-authority": "ca.pem"}}],
            "users": [{"name": "u", "user": {"client-certificate": "current.pem", "client-key": "current.pem"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}"#;
        fs::write(&path, text).unwrap();
        let missing = load(&path).await.err().unwrap().to_string();
        assert!(missing.contains("current.pem"), "{missing}");
        let renew = |name: &str| {
            let (pem, key) = certificate(name);
            fs::write(folder.path().join("current.pem"), format!("{pem}{key}")).unwrap();
        };
        let renew_authority =
            || fs::write(folder.path().join("ca.pem"), certificate("ca").0).unwrap();
        renew_authority();
        renew("system:node:n1");
        let identity = load(&path).await.unwrap();
        assert_eq!(identity.node, "n1");
        assert!(identity.material == Material::read(&path).unwrap());
        renew("system:node:n1");
        assert!(identity.material != Material::read(&path).unwrap());
        // The cluster's own certificate may be another one, too.
        let identity = load(&path).await.unwrap();
        renew_authority();
        assert!(identity.material != Material::read(&path).unwrap());
    }
}
