//! [`JsonPath`]: a path in a JSON value, such as `data.items.0.name`, or `.` for the whole value.

use std::fmt;

use serde_json::Value;

use super::parse::{self, PlaceholderProblem};

/// A path in a JSON value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JsonPath(Vec<String>);

impl JsonPath {
    /// Parses `data.items.0.name`; `.` is the whole value.
    pub fn parse(text: &str) -> Result<Self, PlaceholderProblem> {
        if text.trim() == "." {
            return Ok(Self::default());
        }
        let steps = parse::steps(text)?;
        Ok(Self(steps.into_iter().map(|step| step.name).collect()))
    }

    pub(super) fn new(steps: Vec<String>) -> Self {
        Self(steps)
    }

    /// Returns the value at this path, if there is one.
    pub fn of<'v>(&self, value: &'v Value) -> Option<&'v Value> {
        self.0.iter().try_fold(value, |value, step| match value {
            Value::Object(members) => members.get(step),
            Value::Array(items) => items.get(index(step)?),
            _ => None,
        })
    }

    /// Returns true if it is the whole value.
    pub fn is_whole(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn only(&self) -> Option<&str> {
        match self.0.as_slice() {
            [one] => Some(one),
            _ => None,
        }
    }
}

/// Parses a list index in its usual form: `+1` and `01` are names.
fn index(step: &str) -> Option<usize> {
    let number: usize = step.parse().ok()?;
    (number.to_string() == step).then_some(number)
}

impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_whole() {
            return f.write_str(".");
        }
        for (number, step) in self.0.iter().enumerate() {
            if number > 0 {
                f.write_str(".")?;
            }
            match !step.is_empty() && step.chars().all(parse::in_word) {
                true => f.write_str(step)?,
                false => write!(f, "{}", Value::from(step.as_str()))?,
            }
        }
        Ok(())
    }
}
