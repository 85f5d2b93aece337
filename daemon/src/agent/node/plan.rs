//! What an installation would change, and why. Changes nothing.

use serde::Serialize;
use slotd_bootctl::{PlannedChange, StagedImage, Transition};
use slotd_engine::Failure;
use slotd_image::{Cancel, ImageSource};

use super::super::error::{AgentError, kind_of};
use super::super::host::Trouble;
use super::super::machine::FAILED_BEFORE;
use super::super::request::{InstallRequest, wanted};
use super::{NodeHost, convert};
use crate::error::ErrorKind;
use crate::staging::{Site, boot_failure, kind_of_all};
use crate::status::SlotLetter;

/// The changes of an installation, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// The slot that would be written.
    pub slot: SlotLetter,
    /// The image, as it may be shown.
    pub source: String,
    /// Size of the expanded image in bytes, where it is known.
    pub size: Option<u64>,
    /// Why it would be refused; empty when it would go ahead.
    pub refusals: Vec<PlanRefusal>,
    /// The kind of all these reasons together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<ErrorKind>,
    /// Every write, rename and variable.
    pub steps: Vec<PlanStep>,
}

/// One reason against it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanRefusal {
    /// What to do about it.
    pub kind: ErrorKind,
    /// The reason, one sentence.
    pub reason: String,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanStep {
    /// When: `stage`, `activate` or `confirm`.
    pub moment: &'static str,
    /// The device, file or variable.
    pub target: String,
    /// What happens to it.
    pub change: String,
    /// The text of a file that is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// What for.
    pub why: String,
}

impl PlanStep {
    fn new(
        moment: &'static str,
        target: impl Into<String>,
        change: impl Into<String>,
        why: impl Into<String>,
    ) -> Self {
        Self {
            moment,
            target: target.into(),
            change: change.into(),
            content: None,
            why: why.into(),
        }
    }

    fn of(moment: &'static str, change: PlannedChange) -> Self {
        Self {
            moment,
            target: change.target,
            change: change.change,
            content: change.content,
            why: change.why,
        }
    }
}

impl NodeHost {
    /// What this installation would change. The source is connected to, so that what its first bytes and
    /// headers show is in the plan; what can be read only once is left alone. Two write tests touch a disk
    /// and leave nothing behind: the backend's beside its data, and one in the state directory, which is
    /// made where it is missing.
    ///
    /// # Errors
    /// When slots or loader cannot be read; reasons against the installation are in the plan.
    pub fn plan(&self, request: InstallRequest) -> Result<Plan, AgentError> {
        let failed = |failure: Failure| AgentError::new(kind_of(failure.kind), failure.reason);
        let site = Site::look(&self.settings).map_err(failed)?;
        let Some(booted) = site.table.booted.slot() else {
            let message = "this system runs from neither of the two slots";
            return Err(AgentError::new(ErrorKind::Unsafe, message));
        };
        let name = !booted;
        let slot = convert::slot(name);
        let partition = site.table.get(name);
        let image = request.to_engine();
        let wanted = wanted(&image);
        let mut reasons = self.refusals(&site, slot, &wanted);
        let mut size = request.size;
        if !matches!(request.source, ImageSource::Reader { .. }) {
            match site.open(name, request.source, &wanted, &Cancel::new(), &|_| ()) {
                Ok(opened) => size = size.or(opened.info().expanded_total),
                Err(Trouble::Failed(failure)) => reasons.push(failure),
                // Nobody holds the flag.
                Err(Trouble::Stopped) => {}
            }
        }
        let options = self.settings.boot_options().map_err(failed)?;
        let staged = StagedImage {
            expanded_size: size.unwrap_or(0),
            version: image.version.clone(),
            ..StagedImage::default()
        };
        let transitions = [
            ("stage", Transition::Invalidate { slot: name }),
            (
                "stage",
                Transition::InstallBootFiles {
                    slot: name,
                    image: staged,
                    kernel: None,
                    initrd: None,
                },
            ),
            (
                "activate",
                Transition::Arm {
                    slot: name,
                    options,
                },
            ),
            ("confirm", Transition::MarkGood { slot: name }),
        ];
        let state = self.settings.state_directory.display();
        let device = partition.node.display();
        let mut steps = vec![PlanStep::new(
            "stage",
            format!("{state}/state.json"),
            "replaced at every step, here and below",
            "a crash at any moment is answered from it",
        )];
        // Each prefix is planned, so that every transition is seen on top of those before it.
        let mut before = 0;
        for (count, (moment, transition)) in transitions.iter().enumerate() {
            if image.stage_only && *moment != "stage" {
                break;
            }
            if matches!(transition, Transition::InstallBootFiles { .. }) {
                steps.extend(device_steps(&device.to_string(), size));
            }
            let prefix: Vec<Transition> = transitions
                .iter()
                .take(count.saturating_add(1))
                .map(|(_, one)| one.clone())
                .collect();
            if *moment == "confirm" {
                steps.push(PlanStep::new(
                    "confirm",
                    format!("{state}/{FAILED_BEFORE}"),
                    "removed once the checks passed",
                    "a later trial is not held to it",
                ));
            }
            match site.backend.plan_sequence(&prefix) {
                Ok(changes) => {
                    let all = changes.len();
                    let new = changes.into_iter().skip(before);
                    steps.extend(new.map(|change| PlanStep::of(moment, change)));
                    before = all;
                }
                // Refused from here on: the reason belongs to the plan.
                Err(error) => {
                    reasons.push(boot_failure(&error));
                    break;
                }
            }
            if *moment == "activate" {
                steps.extend([
                    PlanStep::new(
                        "activate",
                        format!("{state}/{FAILED_BEFORE}"),
                        "replaced by the names of the units that failed until then",
                        "they do not count against the trial",
                    ),
                    PlanStep::new(
                        "activate",
                        "the machine",
                        "reboots, inhibitors honoured",
                        format!("slot {name} is tried"),
                    ),
                ]);
            }
        }
        steps.push(PlanStep::new(
            if image.stage_only { "stage" } else { "confirm" },
            format!("{state}/history.jsonl"),
            "one line is appended when the upgrade has ended",
            "what happened on this node stays known",
        ));
        let refused = kind_of_all(&reasons).map(kind_of);
        let mut refusals: Vec<PlanRefusal> = Vec::new();
        for failure in reasons {
            let refusal = PlanRefusal {
                kind: kind_of(failure.kind),
                reason: failure.reason,
            };
            if !refusals.contains(&refusal) {
                refusals.push(refusal);
            }
        }
        Ok(Plan {
            slot: slot.into(),
            source: image.source,
            size,
            refusals,
            refused,
            steps,
        })
    }
}

fn device_steps(device: &str, size: Option<u64>) -> [PlanStep; 3] {
    let bytes = size.map_or_else(|| String::from("the image"), |size| format!("{size} bytes"));
    [
        PlanStep::new(
            "stage",
            device,
            "the first MiB is zeroed and flushed",
            "an interrupted slot is never mistaken for an image",
        ),
        PlanStep::new(
            "stage",
            device,
            format!("{bytes} are written, flushed and read back past the page cache"),
            "the image",
        ),
        PlanStep::new(
            "stage",
            device,
            "the first MiB is written last",
            "the slot holds a complete image only now",
        ),
    ]
}
