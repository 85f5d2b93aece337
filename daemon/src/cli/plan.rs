//! `slotd plan`: what an install would change.

use std::sync::Arc;

use indicatif::HumanBytes;

use super::arguments::{OutputFormat, PlanArguments};
use super::error::CliError;
use super::{image, print, print_json, table};
use crate::agent::{NodeHost, Plan};
use crate::config::Settings;
use crate::service::{HostMachine, node_settings};

/// Prints the plan. One that would be refused is printed too, and is an error.
pub(super) fn plan(
    settings: &Settings,
    arguments: &PlanArguments,
    output: OutputFormat,
) -> Result<(), CliError> {
    let request = image::options(arguments).request(image::source(&arguments.image.source)?)?;
    let host = NodeHost::new(
        node_settings(settings),
        Arc::new(HostMachine::new(settings)),
    );
    let plan = host.plan(request)?;
    match output {
        OutputFormat::Json => print_json(&plan)?,
        OutputFormat::Table => print(&text(&plan)),
    }
    match refusal(&plan) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// What the command ends with where the installation would be refused.
fn refusal(plan: &Plan) -> Option<CliError> {
    let kind = plan.refused?;
    let reasons: Vec<&str> = plan
        .refusals
        .iter()
        .map(|refusal| refusal.reason.as_str())
        .collect();
    let message = format!("this would be refused: {}", reasons.join("; "));
    Some(CliError::new(kind, message))
}

fn text(plan: &Plan) -> String {
    let size = plan.size.map_or_else(
        || "of unknown size".to_owned(),
        |size| HumanBytes(size).to_string(),
    );
    let mut table = table(&["WHEN", "WHAT", "CHANGE", "WHY"]);
    for step in &plan.steps {
        table.add_row([step.moment, &step.target, &step.change, &step.why]);
    }
    format!(
        "{} ({size}) into slot {}. Nothing was changed.\n\n{}",
        plan.source,
        plan.slot,
        table.trim_fmt()
    )
}

#[cfg(test)]
mod tests {
    use super::{refusal, text};
    use crate::agent::{Plan, PlanRefusal, PlanStep};
    use crate::error::ErrorKind;
    use crate::status::SlotLetter;

    #[test]
    fn a_plan_that_would_be_refused_ends_with_the_kind_of_its_reasons() {
        let mut plan = Plan {
            slot: SlotLetter::B,
            source: "/x".to_owned(),
            size: None,
            refusals: Vec::new(),
            refused: None,
            steps: Vec::new(),
        };
        assert!(refusal(&plan).is_none());
        plan.refused = Some(ErrorKind::Configuration);
        plan.refusals = vec![PlanRefusal {
            kind: ErrorKind::Configuration,
            reason: "/efi is read-only".to_owned(),
        }];
        let error = refusal(&plan).unwrap();
        assert_eq!(error.kind().exit_code(), 3);
        assert!(error.to_string().ends_with("/efi is read-only"), "{error}");
        let json = serde_json::to_value(&plan).unwrap();
        assert_eq!(json["refusals"][0]["kind"], "Configuration");
    }

    #[test]
    fn every_step_of_a_plan_is_printed_with_its_reason() {
        let text = text(&Plan {
            slot: SlotLetter::B,
            source: "https://host/x".to_owned(),
            size: Some(1 << 29),
            refusals: Vec::new(),
            refused: None,
            steps: vec![PlanStep {
                moment: "stage",
                target: "/dev/vda3".to_owned(),
                change: "written".to_owned(),
                why: "the image".to_owned(),
            }],
        });
        assert!(
            text.starts_with("https://host/x (512.00 MiB) into slot B."),
            "{text}"
        );
        for part in ["stage", "/dev/vda3", "written", "the image"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
