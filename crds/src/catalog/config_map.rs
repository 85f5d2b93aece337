//! Catalogs in ConfigMaps.

use k8s_openapi::api::core::v1::ConfigMap;

use super::CatalogError;
use crate::names::CATALOG_KEY;

/// Which ConfigMap holds a catalog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigMapName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl ConfigMapName {
    /// Reads `name`, which is in slotd's own namespace, or `namespace/name`.
    #[must_use]
    pub fn read(text: &str, own_namespace: &str) -> Self {
        let (namespace, name) = text.split_once('/').unwrap_or((own_namespace, text));
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }
}

/// The catalog in a ConfigMap: the key [`CATALOG_KEY`], or else its only one.
///
/// # Errors
/// [`CatalogError::WrongKeys`].
pub fn content(config_map: &ConfigMap) -> Result<&[u8], CatalogError> {
    let texts = config_map
        .data
        .iter()
        .flatten()
        .map(|(key, text)| (key.as_str(), text.as_bytes()));
    let bytes = config_map.binary_data.iter().flatten();
    let all: Vec<_> = texts
        .chain(bytes.map(|(key, bytes)| (key.as_str(), bytes.0.as_slice())))
        .collect();
    if let Some((_, content)) = all.iter().find(|(key, _)| *key == CATALOG_KEY) {
        return Ok(content);
    }
    match all.as_slice() {
        [(_, content)] => Ok(content),
        [] => Err(CatalogError::WrongKeys {
            found: "no key".to_owned(),
        }),
        several => {
            let keys: Vec<_> = several.iter().map(|(key, _)| *key).collect();
            Err(CatalogError::WrongKeys {
                found: format!("the keys {}", keys.join(", ")),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ConfigMapName, content};
    use k8s_openapi::ByteString;
    use k8s_openapi::api::core::v1::ConfigMap;

    fn config_map(texts: &[(&str, &str)], bytes: &[(&str, &[u8])]) -> ConfigMap {
        ConfigMap {
            data: (!texts.is_empty()).then(|| {
                texts
                    .iter()
                    .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                    .collect()
            }),
            binary_data: (!bytes.is_empty()).then(|| {
                bytes
                    .iter()
                    .map(|(k, v)| ((*k).to_owned(), ByteString(v.to_vec())))
                    .collect()
            }),
            ..ConfigMap::default()
        }
    }

    #[test]
    fn the_only_key_or_images_yaml_is_read() {
        assert_eq!(
            content(&config_map(&[("any", "a")], &[])),
            Ok(b"a".as_slice())
        );
        assert_eq!(
            content(&config_map(&[("any", "a"), ("images.yaml", "b")], &[])),
            Ok(b"b".as_slice())
        );
        assert_eq!(
            content(&config_map(&[], &[("any", b"a")])),
            Ok(b"a".as_slice())
        );
        let several = content(&config_map(&[("one", "a")], &[("two", b"b")])).unwrap_err();
        assert_eq!(
            several.to_string(),
            "the ConfigMap has the keys one, two; it needs the key images.yaml, or one key alone"
        );
        assert!(
            content(&config_map(&[], &[]))
                .unwrap_err()
                .to_string()
                .contains("has no key")
        );
    }

    #[test]
    fn a_name_alone_is_in_our_own_namespace() {
        let read = |text| ConfigMapName::read(text, "kube-system");
        assert_eq!(
            (
                read("images-cm").namespace.as_str(),
                read("images-cm").name.as_str()
            ),
            ("kube-system", "images-cm")
        );
        assert_eq!(
            (
                read("os/images").namespace.as_str(),
                read("os/images").name.as_str()
            ),
            ("os", "images")
        );
    }
}
