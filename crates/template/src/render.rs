//! Renders templates with the values of a message.

use std::borrow::Cow;

use serde_json::Value;

use super::{Placeholder, Root, TemplatePart, Text, Tree};

/// Source of the values of placeholders.
pub trait ValueSource {
    /// Returns an object, or `None` if it is missing, such as for a message that is not JSON.
    fn value(&self, root: Root) -> Option<&Value>;

    /// Returns the reason why [`ValueSource::value`] has no object.
    fn missing_because(&self, _root: Root) -> &'static str {
        "is not JSON"
    }
}

/// Error of rendering a placeholder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// The object is not JSON that can be read.
    #[error("{{{{{place}}}}} can't be filled: the {root} {why}")]
    NotJson {
        /// The placeholder.
        place: String,
        /// The object.
        root: Root,
        /// The problem with the object.
        why: &'static str,
    },
    /// The member is missing.
    #[error("{{{{{0}}}}} can't be filled: it is missing")]
    Missing(String),
    /// The value is null, which a text can't contain.
    #[error("{{{{{0}}}}} can't be filled: it is null")]
    Null(String),
    /// The value is not allowed at this position.
    #[error("{{{{{place}}}}} can't be filled: its value {why}")]
    Refused {
        /// The placeholder.
        place: String,
        /// The problem with the value.
        why: &'static str,
    },
}

impl Placeholder {
    /// Returns the value, or the default if it is missing or null.
    fn value<'a>(&'a self, scope: &'a dyn ValueSource) -> Result<&'a Value, RenderError> {
        let root = scope.value(self.root);
        let found = root.and_then(|value| self.member.of(value));
        match (found, &self.default) {
            (Some(Value::Null) | None, Some(default)) => Ok(default),
            (Some(value), _) => Ok(value),
            (None, None) if root.is_none() => {
                let why = scope.missing_because(self.root);
                Err(RenderError::NotJson { place: self.to_string(), root: self.root, why })
            }
            (None, None) => Err(RenderError::Missing(self.to_string())),
        }
    }
}

impl Text {
    /// Renders the text, with values as they are.
    pub fn render(&self, scope: &dyn ValueSource) -> Result<String, RenderError> {
        self.render_with(scope, |text, value| {
            text.push_str(&as_text(value));
            Ok(())
        })
    }

    /// Renders the text. `put` appends each value, or returns the reason why it can't.
    pub fn render_with(
        &self,
        scope: &dyn ValueSource,
        mut put: impl FnMut(&mut String, &Value) -> Result<(), &'static str>,
    ) -> Result<String, RenderError> {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                TemplatePart::Fixed(fixed) => text.push_str(fixed),
                TemplatePart::Placeholder(place) => {
                    let value = place.value(scope)?;
                    if value.is_null() {
                        return Err(RenderError::Null(place.to_string()));
                    }
                    put(&mut text, value).map_err(|why| {
                        let place = place.to_string();
                        RenderError::Refused { place, why }
                    })?;
                }
            }
        }
        Ok(text)
    }
}

impl Tree {
    /// Renders the value.
    pub fn render(&self, scope: &dyn ValueSource) -> Result<Value, RenderError> {
        Ok(match self {
            Self::Fixed(value) => value.clone(),
            Self::Placeholder(place) => place.value(scope)?.clone(),
            Self::Text(text) => Value::String(text.render(scope)?),
            Self::List(items) => {
                Value::Array(items.iter().map(|item| item.render(scope)).collect::<Result<_, _>>()?)
            }
            Self::Map(members) => {
                let member =
                    |(name, tree): &(String, Self)| Ok((name.clone(), tree.render(scope)?));
                Value::Object(members.iter().map(member).collect::<Result<_, _>>()?)
            }
        })
    }
}

/// Converts a value to text: strings as they are, everything else as JSON.
pub fn as_text(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) => Cow::Borrowed(text),
        other => Cow::Owned(other.to_string()),
    }
}

/// Converts a single value to text; a list or a map is an error.
pub fn scalar(value: &Value) -> Result<Cow<'_, str>, &'static str> {
    match value {
        Value::Array(_) => Err("is a list"),
        Value::Object(_) => Err("is a map"),
        other => Ok(as_text(other)),
    }
}
