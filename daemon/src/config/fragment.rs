//! The first stage: one file, as it was written. Every key is optional, none is unknown, each value knows its line.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, de};
use serde_saphyr::Spanned;
use slotd_bootctl::{GrubConvention, LoaderKind, UbootConvention};
use slotd_image::Secret;

use crate::cluster::ClusterAccess;
use crate::controller::ControllerAccess;

use super::scalar::{AutoPath, Bytes, FilePath, HttpProbe, Locator, Namespace, Span, WebUrl, Word};

/// What a file says of a key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Leaf<T> {
    /// Nothing.
    #[default]
    Absent,
    /// `null` on this line: what earlier files said does not count.
    Reset(u64),
    /// A value, on this line.
    Value(T, u64),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Leaf<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Spanned {
            value, referenced, ..
        } = Spanned::<Option<T>>::deserialize(deserializer)?;
        match value {
            Some(value) => Ok(Self::Value(value, referenced.line())),
            // YAML takes it for null too, but a key above commented-out lines is not meant to change anything.
            None if referenced.span().is_empty() => Err(de::Error::custom(
                "the key has no value: write null to go back to the default, or take the key away",
            )),
            None => Ok(Self::Reset(referenced.line())),
        }
    }
}

impl<T> Leaf<T> {
    /// The line on which the file speaks of the key; 0 where it does not.
    pub(super) fn line(&self) -> u64 {
        match self {
            Self::Absent => 0,
            Self::Reset(line) | Self::Value(_, line) => *line,
        }
    }
}

/// Keys below one key.
pub(super) trait Section: Default {
    /// All of them reset by a `null` on this line in place of the section.
    fn reset(line: u64) -> Self;
}

impl<T: Section> Leaf<T> {
    /// What the file says of the keys in it.
    pub(super) fn section(self) -> T {
        match self {
            Self::Absent => T::default(),
            Self::Reset(line) => T::reset(line),
            Self::Value(section, _) => section,
        }
    }
}

macro_rules! sections {
    ($($(#[$doc:meta])* $name:ident { $($key:ident: $kind:ty,)* })*) => { $(
        $(#[$doc])*
        #[derive(Debug, Default, Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields, default)]
        pub(super) struct $name {
            $(pub(super) $key: Leaf<$kind>,)*
        }

        impl Section for $name {
            fn reset(line: u64) -> Self {
                Self { $($key: Leaf::Reset(line),)* }
            }
        }
    )* };
}

sections! {
    /// One configuration file.
    Fragment {
        slots: SlotsFragment,
        loader: Word<LoaderKind>,
        esp: AutoPath,
        grub: GrubFragment,
        uboot: UbootFragment,
        state_directory: FilePath,
        version_key: String,
        trial: TrialFragment,
        boot: BootFragment,
        health: HealthFragment,
        fetch: FetchFragment,
        install: InstallFragment,
        kubernetes: KubernetesFragment,
        controller: ControllerFragment,
    }

    /// `slots:`
    SlotsFragment {
        a: Locator,
        b: Locator,
    }

    /// `grub:`
    GrubFragment {
        environment: AutoPath,
        convention: Word<GrubConvention>,
    }

    /// `uboot:`
    UbootFragment {
        config: FilePath,
        convention: Word<UbootConvention>,
    }

    /// `trial:`
    TrialFragment {
        tries: u32,
        deadline: Span,
    }

    /// `boot:`
    BootFragment {
        options: String,
        panic: u32,
    }

    /// `health:`
    HealthFragment {
        units: Vec<String>,
        http: Vec<HttpProbe>,
        script_timeout: Span,
        attempts: u32,
    }

    /// `fetch:`
    FetchFragment {
        ca_bundle: FilePath,
        origins: Vec<slotd_image::Origin>,
        bearer_token_file: FilePath,
        headers: BTreeMap<String, Leaf<Secret>>,
        client_certificate: FilePath,
        proxy: WebUrl,
        connect_timeout: Span,
        idle_timeout: Span,
        deadline: Span,
        retries: u32,
        rate_limit: Bytes,
        window_limit: Bytes,
    }

    /// `kubernetes:`
    KubernetesFragment {
        kubeconfig: ClusterAccess,
    }

    /// `controller:`
    ControllerFragment {
        kubeconfig: ControllerAccess,
        namespace: Namespace,
    }

    /// `install:`
    InstallFragment {
        require_agent: bool,
        require_checksum: bool,
    }
}
