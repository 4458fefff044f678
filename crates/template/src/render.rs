//! From templates to what a message makes of them.

use std::borrow::Cow;

use serde_json::Value;

use super::{Part, Place, Root, Text, Tree};

/// What places are filled from.
pub trait Scope {
    /// The value that this stands for; none if there is none, as for a message that is no JSON.
    fn value(&self, root: Root) -> Option<&Value>;
}

/// Why a place can't be filled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// Its root is not JSON.
    #[error("{{{{{place}}}}} can't be filled: the {root} is not JSON")]
    NotJson {
        /// The place.
        place: String,
        /// What is not.
        root: Root,
    },
    /// There is no such member.
    #[error("{{{{{0}}}}} can't be filled: it is missing")]
    Missing(String),
    /// It is null, and a text can't hold that.
    #[error("{{{{{0}}}}} can't be filled: it is null")]
    Null(String),
    /// Its value can't stand where it should.
    #[error("{{{{{place}}}}} can't be filled: its value {why}")]
    Refused {
        /// The place.
        place: String,
        /// What is wrong with the value.
        why: &'static str,
    },
}

impl Place {
    /// The value, or the default where it is missing or null.
    fn value<'a>(&'a self, scope: &'a dyn Scope) -> Result<&'a Value, RenderError> {
        let root = scope.value(self.root);
        let found = root.and_then(|value| self.member.of(value));
        match (found, &self.default) {
            (Some(Value::Null) | None, Some(default)) => Ok(default),
            (Some(value), _) => Ok(value),
            (None, None) if root.is_none() => {
                Err(RenderError::NotJson { place: self.to_string(), root: self.root })
            }
            (None, None) => Err(RenderError::Missing(self.to_string())),
        }
    }
}

impl Text {
    /// The text, with values as they are.
    pub fn render(&self, scope: &dyn Scope) -> Result<String, RenderError> {
        self.render_with(scope, |text, value| {
            text.push_str(&as_text(value));
            Ok(())
        })
    }

    /// The text, with each value put in by `put`, which says what it can't put.
    pub fn render_with(
        &self,
        scope: &dyn Scope,
        mut put: impl FnMut(&mut String, &Value) -> Result<(), &'static str>,
    ) -> Result<String, RenderError> {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Fixed(fixed) => text.push_str(fixed),
                Part::Place(place) => {
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
    /// The value.
    pub fn render(&self, scope: &dyn Scope) -> Result<Value, RenderError> {
        Ok(match self {
            Self::Fixed(value) => value.clone(),
            Self::Place(place) => place.value(scope)?.clone(),
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

/// A value as text: strings as they are, everything else as JSON.
pub fn as_text(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) => Cow::Borrowed(text),
        other => Cow::Owned(other.to_string()),
    }
}

/// The same for a single value, where a list or a map would make no sense.
pub fn scalar(value: &Value) -> Result<Cow<'_, str>, &'static str> {
    match value {
        Value::Array(_) => Err("is a list"),
        Value::Object(_) => Err("is a map"),
        other => Ok(as_text(other)),
    }
}
