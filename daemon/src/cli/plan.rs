//! `slotd plan`: what an install would change.

use std::sync::Arc;

use indicatif::HumanBytes;

use super::arguments::{OutputFormat, PlanArguments};
use super::error::CliError;
use super::{image, print, print_json};
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
    let mut lines = vec![format!(
        "{} ({size}) into slot {}. Nothing was changed.",
        plan.source, plan.slot
    )];
    let (mut moment, mut target) = ("", "");
    for step in &plan.steps {
        if step.moment != moment {
            lines.extend([String::new(), format!("To {}:", step.moment)]);
            (moment, target) = (step.moment, "");
        }
        if step.target != target {
            lines.push(format!("  {}", step.target));
            target = &step.target;
        }
        lines.push(format!("    {}: {}", step.change, step.why));
        let content = step.content.iter().flat_map(|content| content.lines());
        lines.extend(content.map(|line| format!("      | {line}")));
    }
    lines.join("\n")
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
                content: Some("title x\nlinux y\n".to_owned()),
                why: "the image".to_owned(),
            }],
        });
        assert!(
            text.starts_with("https://host/x (512.00 MiB) into slot B."),
            "{text}"
        );
        let steps =
            "To stage:\n  /dev/vda3\n    written: the image\n      | title x\n      | linux y";
        assert!(text.ends_with(steps), "{text}");
    }
}
