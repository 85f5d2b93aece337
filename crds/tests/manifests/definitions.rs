//! The definitions of both kinds, as the API server is to have them.

use kube::CustomResourceExt;
use serde_json::{Map, Value};
use slotd_crds::api::{OSUpgrade, OSUpgradeProgress};

/// Both CustomResourceDefinitions.
pub(crate) fn definitions() -> [Value; 2] {
    [OSUpgrade::crd(), OSUpgradeProgress::crd()].map(|definition| {
        let mut definition = serde_json::to_value(definition).unwrap();
        let version = &mut definition["spec"]["versions"][0];
        for (path, description) in [
            (
                "spec",
                "What is asked. Written by people, or by the controller; never by a node.",
            ),
            ("status", "What became of it. Written by slotd."),
        ] {
            let property = &mut version["schema"]["openAPIV3Schema"]["properties"][path];
            if property.get("description").is_none() {
                property["description"] = description.into();
            }
        }
        adjust(&mut version["schema"]["openAPIV3Schema"]);
        definition
    })
}

/// The schema of a definition.
pub(crate) fn schema(definition: &Value) -> &Value {
    &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
}

/// What the derive makes of Rust's types, in the words of the API server.
///
/// An optional field is left out, not null: without `nullable` the server drops a null, and every rule may take a field that is
/// there for one that has a value. Its integers are signed. Descriptions are paragraphs, without the line ends of the source.
fn adjust(schema: &mut Value) {
    let Some(schema) = schema.as_object_mut() else {
        return;
    };
    schema.remove("nullable");
    schema.remove("title");
    if let Some(Value::Array(words)) = schema.get_mut("enum") {
        words.retain(|word| !word.is_null());
    }
    let unsigned = match schema.get("format").and_then(Value::as_str) {
        Some("uint32") => Some(("int32", Some(i32::MAX))),
        Some("uint64") => Some(("int64", None)),
        _ => None,
    };
    if let Some((format, maximum)) = unsigned {
        schema.insert("format".to_owned(), format.into());
        if let Some(maximum) = maximum {
            schema.entry("maximum").or_insert_with(|| maximum.into());
        }
        schema.entry("minimum").or_insert_with(|| 0.into());
    }
    for bound in ["minimum", "maximum"] {
        if let Some(number) = schema.get_mut(bound)
            && let Some(float) = number.as_f64()
            && float.fract() == 0.0
        {
            *number = format!("{float:.0}").parse::<i64>().unwrap().into();
        }
    }
    if let Some(Value::String(text)) = schema.get_mut("description") {
        let paragraphs: Vec<_> = text
            .split("\n\n")
            .map(|paragraph| paragraph.replace('\n', " "))
            .collect();
        *text = paragraphs.join("\n\n");
    }
    for child in children(schema) {
        adjust(child);
    }
}

fn children(schema: &mut Map<String, Value>) -> impl Iterator<Item = &mut Value> {
    schema
        .iter_mut()
        .flat_map(|(key, value)| -> Vec<&mut Value> {
            match (key.as_str(), value) {
                ("properties", Value::Object(properties)) => properties.values_mut().collect(),
                ("items" | "additionalProperties" | "not", value) => vec![value],
                ("allOf" | "anyOf" | "oneOf", Value::Array(list)) => list.iter_mut().collect(),
                _ => Vec::new(),
            }
        })
}
