//! Which nodes an upgrade is for.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use kube::core::{Expression, Selector};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A selector of Nodes as it was written: a plain map of labels, or `matchLabels` and `matchExpressions`.
///
/// Kept as it is, so that one which cannot be read is told apart from the empty one, which is the whole fleet. A selector that
/// is missing is one that cannot be read.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeSelector(Value);

/// Why a selector cannot be read, with the place in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("nodeSelector{place}: {problem}")]
pub struct UnreadableSelector {
    place: String,
    problem: String,
}

impl NodeSelector {
    /// The selector of every Node.
    #[must_use]
    pub fn everything() -> Self {
        Self(Value::Object(serde_json::Map::new()))
    }

    /// The selector, ready to be matched with the labels of Nodes. `{}` selects all.
    ///
    /// # Errors
    /// What cannot be read, with its place: no selector at all, a value that is no text, a key or value that no label can
    /// have, an unknown operator, values where the operator takes none or none where it needs some, and labels beside
    /// `matchLabels` or `matchExpressions`.
    pub fn read(&self) -> Result<Selector, UnreadableSelector> {
        let map = match &self.0 {
            Value::Object(map) => map,
            Value::Null => return Err(unreadable("", "it is missing; {} selects every node")),
            other => return Err(unreadable("", &format!("it is {}, not a map", kind(other)))),
        };
        let structured = ["matchLabels", "matchExpressions"]
            .into_iter()
            .any(|key| map.get(key).is_some_and(|value| !value.is_string()));
        if !structured {
            return Ok(labels(map, "")?.into_iter().collect());
        }
        let mut expressions = Vec::new();
        for (key, value) in map {
            match (key.as_str(), value) {
                ("matchLabels", Value::Object(map)) => {
                    expressions.extend(labels(map, ".matchLabels")?);
                }
                ("matchExpressions", Value::Array(list)) => {
                    for (index, requirement) in list.iter().enumerate() {
                        let place = format!(".matchExpressions[{index}]");
                        expressions.push(expression(requirement, &place)?);
                    }
                }
                ("matchLabels", other) => {
                    return Err(unreadable(
                        ".matchLabels",
                        &format!("it is {}, not a map", kind(other)),
                    ));
                }
                ("matchExpressions", other) => {
                    return Err(unreadable(
                        ".matchExpressions",
                        &format!("it is {}, not a list", kind(other)),
                    ));
                }
                (key, _) => {
                    return Err(unreadable(
                        &format!(".{key}"),
                        "a label cannot stand beside matchLabels or matchExpressions",
                    ));
                }
            }
        }
        Ok(expressions.into_iter().collect())
    }
}

impl From<BTreeMap<String, String>> for NodeSelector {
    fn from(labels: BTreeMap<String, String>) -> Self {
        Self(Value::Object(
            labels
                .into_iter()
                .map(|(key, value)| (key, Value::String(value)))
                .collect(),
        ))
    }
}

/// One requirement of `matchExpressions`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Requirement {
    key: String,
    operator: String,
    values: Option<BTreeSet<String>>,
}

fn expression(value: &Value, place: &str) -> Result<Expression, UnreadableSelector> {
    let Requirement {
        key,
        operator,
        values,
    } = Requirement::deserialize(value).map_err(|error| unreadable(place, &error.to_string()))?;
    let values = values.unwrap_or_default();
    check_key(&key, place)?;
    for value in &values {
        check_value(value, place)?;
    }
    match (operator.as_str(), values.is_empty()) {
        ("In", false) => Ok(Expression::In(key, values)),
        ("NotIn", false) => Ok(Expression::NotIn(key, values)),
        ("Exists", true) => Ok(Expression::Exists(key)),
        ("DoesNotExist", true) => Ok(Expression::DoesNotExist(key)),
        ("In" | "NotIn", true) => Err(unreadable(
            place,
            &format!("the operator {operator} needs values"),
        )),
        ("Exists" | "DoesNotExist", false) => Err(unreadable(
            place,
            &format!("the operator {operator} takes no values"),
        )),
        _ => Err(unreadable(
            place,
            &format!("{operator:?} is none of the operators In, NotIn, Exists and DoesNotExist"),
        )),
    }
}

fn labels(
    map: &serde_json::Map<String, Value>,
    place: &str,
) -> Result<Vec<Expression>, UnreadableSelector> {
    map.iter()
        .map(|(key, value)| {
            let place = format!("{place}[{key:?}]");
            check_key(key, &place)?;
            let Value::String(value) = value else {
                return Err(unreadable(
                    &place,
                    &format!(
                        "the value is {}, not a text: labels are texts, put it in quotes",
                        kind(value)
                    ),
                ));
            };
            check_value(value, &place)?;
            Ok(Expression::Equal(key.clone(), value.clone()))
        })
        .collect()
}

/// A key that no label can have selects nothing, or with `NotIn` and `DoesNotExist` everything.
fn check_key(key: &str, place: &str) -> Result<(), UnreadableSelector> {
    let (prefix, name) = key
        .split_once('/')
        .map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let prefix_is_valid = prefix.is_none_or(|prefix| {
        prefix.len() <= 253
            && prefix.split('.').all(|part| {
                part.bytes()
                    .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
                    && !part.is_empty()
                    && !part.starts_with('-')
                    && !part.ends_with('-')
            })
    });
    if prefix_is_valid && is_label_text(name) {
        Ok(())
    } else {
        Err(unreadable(
            place,
            &format!("{key:?} cannot be the key of a label"),
        ))
    }
}

fn check_value(value: &str, place: &str) -> Result<(), UnreadableSelector> {
    if value.is_empty() || is_label_text(value) {
        Ok(())
    } else {
        Err(unreadable(
            place,
            &format!("{value:?} cannot be the value of a label"),
        ))
    }
}

/// Whether a text can be a label's value, or the name in its key: at most 63 letters, digits, `-`, `_` and `.`, with a letter
/// or digit at both ends.
pub(crate) fn is_label_text(text: &str) -> bool {
    let end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && end(bytes.first())
        && end(bytes.last())
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

fn kind(value: &Value) -> String {
    match value {
        Value::Null => "empty (null)".to_owned(),
        Value::Bool(value) => format!("the truth value {value}"),
        Value::Number(value) => format!("the number {value}"),
        Value::String(_) => "a text".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a map".to_owned(),
    }
}

fn unreadable(place: &str, problem: &str) -> UnreadableSelector {
    UnreadableSelector {
        place: place.to_owned(),
        problem: problem.to_owned(),
    }
}

impl JsonSchema for NodeSelector {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "NodeSelector".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
    }
}

#[cfg(test)]
mod tests;
