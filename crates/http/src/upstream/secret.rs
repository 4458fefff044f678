//! [`Secret`]: a text that is never printed. [`Secrets`] removes such texts from messages of
//! others.

use std::fmt;
use std::path::PathBuf;

/// Minimum length of a secret that is removed; shorter ones may be ordinary words.
const CONCEALED_FROM: usize = 8;

/// A secret text, or the file that contains it.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    /// The text.
    Text(String),
    /// Path of the file; it is read at the start and at each reload.
    File(PathBuf),
}

impl Secret {
    /// Returns the text. A line break at the end of a file is not part of it.
    pub fn read(&self) -> Result<String, SecretError> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::File(path) => match std::fs::read_to_string(path) {
                Ok(text) => Ok(text.trim_end_matches(['\r', '\n']).to_owned()),
                Err(source) => Err(SecretError { path: path.clone(), source }),
            },
        }
    }
}

/// A secret file that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the secret in {}: {source}: check that it exists and that this user may read it", path.display())]
pub struct SecretError {
    path: PathBuf,
    source: std::io::Error,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Secrets that were sent to others, who may repeat them.
#[derive(Clone, Default)]
pub struct Secrets(Vec<String>);

impl Secrets {
    /// Adds a secret.
    pub fn add(&mut self, secret: &str) {
        if secret.len() >= CONCEALED_FROM {
            self.0.push(secret.to_owned());
            // Longer ones first: one may be part of another.
            self.0.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        }
    }

    /// Replaces all secrets in the text with `…`.
    pub fn conceal(&self, text: String) -> String {
        self.0.iter().fold(text, |text, secret| text.replace(secret.as_str(), "…"))
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_removed_from_texts() {
        let mut secrets = Secrets::default();
        for secret in ["12345678", "x12345678y", "key"] {
            secrets.add(secret);
        }
        let text = "key x12345678y, 12345678 and 1234567".to_owned();
        assert_eq!(secrets.conceal(text), "key …, … and 1234567");
        assert_eq!(
            format!("{secrets:?} {:?}", Secret::Text("abc".to_owned())),
            "Secrets(…) Secret(…)"
        );
    }
}
