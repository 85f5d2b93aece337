//! What the slot tool is run on, and what it finds.

use serde_json::Value;

/// What is looked at: how the root is mounted, and what the loader and the command line say.
#[derive(Debug, Clone)]
pub(in crate::scenarios) struct Look {
    pub(in crate::scenarios) mount: String,
    pub(in crate::scenarios) slots: Option<[String; 2]>,
    pub(in crate::scenarios) options: String,
    pub(in crate::scenarios) selected: Option<String>,
}

impl Look {
    /// `mount` is shell that puts the root at `$ROOT`; `$WORK` is an empty folder, `$TREE` the root's files.
    pub(in crate::scenarios) fn new(mount: impl Into<String>) -> Self {
        Self {
            mount: mount.into(),
            slots: None,
            options: "quiet".to_owned(),
            selected: None,
        }
    }

    /// With slots as configured.
    pub(in crate::scenarios) fn slots(mut self, slots: &Option<[String; 2]>) -> Self {
        self.slots.clone_from(slots);
        self
    }

    /// With these options of the kernel.
    pub(in crate::scenarios) fn options(mut self, options: impl Into<String>) -> Self {
        self.options = options.into();
        self
    }

    /// With an entry that systemd-boot says it has started.
    pub(in crate::scenarios) fn selected(mut self, entry: impl Into<String>) -> Self {
        self.selected = Some(entry.into());
        self
    }
}

/// What was found, as far as it counts here.
#[derive(Debug)]
pub(in crate::scenarios) struct Found {
    /// Kernel names of A and B.
    pub(in crate::scenarios) slots: [String; 2],
    /// The slot that runs.
    pub(in crate::scenarios) booted: Option<String>,
    pub(in crate::scenarios) evidence: Value,
}

impl Found {
    /// Whether a witness named that slot.
    pub(in crate::scenarios) fn says(&self, source: &str, slot: &str) -> bool {
        self.words_of(source).any(|says| says == slot)
    }

    /// Whether a witness named any slot.
    pub(in crate::scenarios) fn speaks(&self, source: &str) -> bool {
        self.words_of(source).any(|says| !says.is_null())
    }

    fn words_of(&self, source: &str) -> impl Iterator<Item = &Value> {
        let witnesses = self.evidence.as_array().into_iter().flatten();
        witnesses
            .filter(move |witness| witness["source"] == source)
            .map(|witness| &witness["says"])
    }
}
