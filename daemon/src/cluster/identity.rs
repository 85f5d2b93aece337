//! Who the node is in its cluster: the kubelet's kubeconfig, its client certificate, and the name in it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use kube::Client;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use x509_parser::pem::Pem;

use super::error::{ANSWER, ClusterError};

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
}

/// The bytes of the kubeconfig and of the files that it names.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Material(Vec<Vec<u8>>);

/// Reads the kubeconfig and makes a client. Reads the files anew each time, so that a renewed certificate is used.
///
/// # Errors
/// [`ClusterError`], with the file.
pub(super) async fn load(path: &Path) -> Result<Identity, ClusterError> {
    let trouble = |source| ClusterError::Kubeconfig {
        path: path.to_owned(),
        source: Box::new(source),
    };
    let kubeconfig = Kubeconfig::read_from(path).map_err(trouble)?;
    let user = user(&kubeconfig);
    let certificate = certificate(path, user.as_ref())?;
    let node = node_name(&certificate).map_err(|reason| ClusterError::NoNode {
        path: path.to_owned(),
        reason,
    })?;
    let material = material(path)?;
    let mut config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .map_err(trouble)?;
    config.connect_timeout = Some(ANSWER);
    // A 429 of the Eviction API is an answer, and pauses are ours.
    config.default_retry = false;
    let client = Client::try_from(config).map_err(ClusterError::api("make a client"))?;
    Ok(Identity {
        client,
        node,
        material,
    })
}

/// The bytes of the kubeconfig and of the files that it names, as they are now.
///
/// # Errors
/// When one of them cannot be read.
pub(super) fn material(path: &Path) -> Result<Material, ClusterError> {
    let mut bytes = vec![read(path)?];
    let kubeconfig = Kubeconfig::read_from(path).map_err(|source| ClusterError::Kubeconfig {
        path: path.to_owned(),
        source: Box::new(source),
    })?;
    let user = user(&kubeconfig).unwrap_or_default();
    let clusters = kubeconfig.clusters.into_iter();
    let authorities = clusters.filter_map(|named| named.cluster?.certificate_authority);
    for file in [user.client_certificate, user.client_key]
        .into_iter()
        .flatten()
        .chain(authorities)
    {
        bytes.push(read(&beside(path, &file))?);
    }
    Ok(Material(bytes))
}

/// The user of the current context.
fn user(kubeconfig: &Kubeconfig) -> Option<AuthInfo> {
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
    read(&beside(path, file))
}

fn decode(data: &str) -> Option<Vec<u8>> {
    use base64::Engine;
    let packed: String = data.split_whitespace().collect();
    base64::prelude::BASE64_STANDARD.decode(packed).ok()
}

/// A file as a kubeconfig names it: relative to the kubeconfig's own folder.
fn beside(kubeconfig: &Path, file: &str) -> PathBuf {
    kubeconfig.parent().unwrap_or(Path::new("/")).join(file)
}

fn read(path: &Path) -> Result<Vec<u8>, ClusterError> {
    fs::read(path).map_err(|source: io::Error| ClusterError::Credential {
        path: path.to_owned(),
        source,
    })
}

/// The node that a certificate speaks for: its common name is `system:node:NAME`.
fn node_name(pem: &[u8]) -> Result<String, String> {
    let certificate = Pem::iter_from_buffer(pem)
        .filter_map(Result::ok)
        .find(|block| block.label == "CERTIFICATE")
        .ok_or("there is no certificate in it")?;
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
        material: Material(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    use super::{load, material, node_name};

    fn certificate(name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
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
        assert!(identity.material == material(&path).unwrap());
        renew("system:node:n1");
        assert!(identity.material != material(&path).unwrap());
        // The cluster's own certificate may be another one, too.
        let identity = load(&path).await.unwrap();
        renew_authority();
        assert!(identity.material != material(&path).unwrap());
    }
}
