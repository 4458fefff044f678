//! Texts that do not print, and what is done about those who repeat them.

use std::fmt;
use std::path::PathBuf;

/// Shorter ones are words that a text may hold anyway.
const CONCEALED_FROM: usize = 8;

/// A text that does not print, or the file that holds it.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    /// The text.
    Text(String),
    /// The file, read when whoever needs it starts and when its configuration is read again.
    File(PathBuf),
}

impl Secret {
    /// The text. A line break at the end of a file is not part of it.
    pub fn read(&self) -> Result<String, Unreadable> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::File(path) => match std::fs::read_to_string(path) {
                Ok(text) => Ok(text.trim_end_matches(['\r', '\n']).to_owned()),
                Err(source) => Err(Unreadable { path: path.clone(), source }),
            },
        }
    }
}

/// A secret that can't be read.
#[derive(Debug, thiserror::Error)]
#[error("can't read the secret in {}: {source}: does it exist, and may this user read it?", path.display())]
pub struct Unreadable {
    path: PathBuf,
    source: std::io::Error,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Secrets that others were given, and may repeat.
#[derive(Clone, Default)]
pub struct Secrets(Vec<String>);

impl Secrets {
    /// Adds one.
    pub fn add(&mut self, secret: &str) {
        if secret.len() >= CONCEALED_FROM {
            self.0.push(secret.to_owned());
            // One may be a part of another.
            self.0.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        }
    }

    /// The text without them.
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
    fn what_was_given_is_not_repeated() {
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
