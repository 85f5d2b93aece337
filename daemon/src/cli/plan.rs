//! `slotd plan`: what an install would change.

use std::sync::Arc;

use indicatif::HumanBytes;

use super::arguments::{ImageArguments, OutputFormat};
use super::error::CliError;
use super::{image, print, print_json, table};
use crate::agent::{NodeHost, Plan};
use crate::config::Settings;
use crate::error::ErrorKind;
use crate::service::{HostMachine, node_settings};

/// Prints the plan. One that would be refused is printed too, and is an error.
pub(super) fn plan(
    settings: &Settings,
    arguments: &ImageArguments,
    output: OutputFormat,
) -> Result<(), CliError> {
    let request = image::options(arguments).request(image::source(&arguments.source)?)?;
    let host = NodeHost::new(
        node_settings(settings),
        Arc::new(HostMachine::new(settings)),
    );
    let plan = host.plan(request)?;
    match output {
        OutputFormat::Json => print_json(&plan)?,
        OutputFormat::Table => print(&text(&plan)),
    }
    if plan.refusals.is_empty() {
        Ok(())
    } else {
        let message = format!("this would be refused: {}", plan.refusals.join("; "));
        Err(CliError::new(ErrorKind::Reject, message))
    }
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
    use super::text;
    use crate::agent::{Plan, PlanStep};
    use crate::status::SlotLetter;

    #[test]
    fn every_step_of_a_plan_is_printed_with_its_reason() {
        let text = text(&Plan {
            slot: SlotLetter::B,
            source: "https://host/x".to_owned(),
            size: Some(1 << 29),
            refusals: Vec::new(),
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
