//! With which credential the controller reaches its cluster.

use std::path::{Path, PathBuf};

use crate::config::ControllerSettings;

/// Where a host's controller has its credential.
const KUBECONFIG: &str = "/etc/slotd/controller.kubeconfig";

/// What the unit calls the credential that systemd hands over: [`KUBECONFIG`], which only root reads.
const CREDENTIAL: &str = "kubeconfig";

/// How the controller's cluster is to be reached, as the configuration says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControllerAccess {
    /// By the service account of the pod that this runs in.
    InCluster,
    /// As this kubeconfig says.
    Kubeconfig(PathBuf),
}

impl Default for ControllerAccess {
    fn default() -> Self {
        Self::Kubeconfig(PathBuf::from(KUBECONFIG))
    }
}

/// How the cluster is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// The kubeconfig; where there is none, the service account of the pod that this runs in.
    pub kubeconfig: Option<PathBuf>,
    /// The file that the kubeconfig is systemd's copy of: where there is another one, this process ends, to be started with a copy
    /// of that.
    pub copy_of: Option<PathBuf>,
    /// The namespace of slotd's own objects.
    pub namespace: String,
}

/// What the process finds around it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// Where systemd has put the unit's credentials.
    pub credentials: Option<PathBuf>,
    /// Whether this runs in a pod.
    pub pod: bool,
}

impl Surroundings {
    /// What this process finds around it.
    #[must_use]
    pub fn here() -> Self {
        Self {
            credentials: std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from),
            pod: std::env::var_os("KUBERNETES_SERVICE_HOST").is_some(),
        }
    }

    fn credential(&self) -> Option<PathBuf> {
        let path = self.credentials.as_ref()?.join(CREDENTIAL);
        path.exists().then_some(path)
    }
}

impl Connection {
    /// As the configuration says: the usual kubeconfig as systemd hands it over where it does, and in a pod the service
    /// account, unless a kubeconfig is there or asked for.
    #[must_use]
    pub fn configured(settings: &ControllerSettings, around: &Surroundings) -> Self {
        let (kubeconfig, copy_of) = match &settings.access {
            ControllerAccess::InCluster => (None, None),
            ControllerAccess::Kubeconfig(path) => {
                let usual = path == Path::new(KUBECONFIG);
                let in_vain = !settings.asked_for && around.pod && !path.exists();
                match around.credential().filter(|_| usual) {
                    Some(copy) => (Some(copy), Some(path.clone())),
                    None => ((!in_vain).then(|| path.clone()), None),
                }
            }
        };
        Self {
            kubeconfig,
            copy_of,
            namespace: settings.namespace.clone(),
        }
    }

    /// By this kubeconfig, whatever was configured; by the pod's service account where there is none.
    #[must_use]
    pub fn by(self, kubeconfig: Option<PathBuf>) -> Self {
        Self {
            kubeconfig,
            copy_of: None,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::{Connection, ControllerAccess, Surroundings};
    use crate::config::ControllerSettings;

    fn settings(access: ControllerAccess, asked_for: bool) -> ControllerSettings {
        ControllerSettings {
            access,
            asked_for,
            namespace: "ops".to_owned(),
        }
    }

    #[test]
    fn the_credential_is_the_one_that_was_asked_for_and_otherwise_what_there_is() {
        let folder = tempfile::tempdir().unwrap();
        let handed = folder.path().join("kubeconfig");
        std::fs::write(&handed, "").unwrap();
        let host = Surroundings::default();
        let unit = Surroundings {
            credentials: Some(folder.path().to_owned()),
            ..host.clone()
        };
        let unit_without = Surroundings {
            credentials: Some(folder.path().join("none")),
            ..host.clone()
        };
        let pod = Surroundings {
            pod: true,
            ..host.clone()
        };
        let usual = || ControllerAccess::default();
        let usual_path = || Some(PathBuf::from("/etc/slotd/controller.kubeconfig"));
        let other = || ControllerAccess::Kubeconfig(handed.clone());
        let gone = PathBuf::from("/nowhere/kubeconfig");
        for (access, asked_for, around, expected) in [
            (usual(), false, &host, usual_path()),
            (usual(), false, &unit, Some(handed.clone())),
            (usual(), true, &unit, Some(handed.clone())),
            (usual(), false, &unit_without, usual_path()),
            (other(), true, &unit_without, Some(handed.clone())),
            (usual(), false, &pod, None),
            (usual(), true, &pod, usual_path()),
            (
                ControllerAccess::Kubeconfig(gone.clone()),
                true,
                &unit,
                Some(gone),
            ),
            (ControllerAccess::InCluster, true, &unit, None),
        ] {
            assert!(!Path::new("/etc/slotd/controller.kubeconfig").exists());
            let connection = Connection::configured(&settings(access.clone(), asked_for), around);
            assert_eq!(connection.kubeconfig, expected, "{access:?} {around:?}");
            let copy = access == usual() && expected.as_ref() == Some(&handed);
            assert_eq!(
                connection.copy_of,
                usual_path().filter(|_| copy),
                "{access:?} {around:?}"
            );
            let other = connection.clone().by(Some(PathBuf::from("/other")));
            assert_eq!(
                (other.kubeconfig, other.copy_of),
                (Some(PathBuf::from("/other")), None)
            );
            assert_eq!(connection.namespace, "ops");
        }
    }
}
