//! Reads secrets from their files, and removes secrets from messages of others: [`Secrets`].

use std::fmt;
use std::path::PathBuf;

use sluicegate_config::SecretSource;

/// Minimum length of a secret that is removed; shorter ones may be ordinary words.
const CONCEALED_FROM: usize = 8;

/// Returns a secret, from its file if it has one. Line breaks at the end of a file are not part of
/// it.
pub fn read_secret(source: &SecretSource) -> Result<String, SecretError> {
    let path = match source {
        SecretSource::Value(secret) => return Ok(secret.expose().to_owned()),
        SecretSource::File(path) => path,
    };
    match std::fs::read_to_string(path) {
        Ok(text) => match text.trim_end_matches(['\r', '\n']) {
            "" => Err(SecretError::Empty { path: path.clone() }),
            secret => Ok(secret.to_owned()),
        },
        Err(source) => Err(SecretError::Unreadable { path: path.clone(), source }),
    }
}

/// A secret file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// It cannot be read.
    #[error("cannot read the secret in {}: {source}: check that it exists and that this user may read it", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// It contains nothing.
    #[error("the secret file {} is empty: write the secret into it", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// Secrets that were sent to other systems, whose responses may repeat them.
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
    fn a_file_without_a_secret_is_refused_instead_of_sending_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        for (content, expected) in
            [("s3cret\r\n\n", Some("s3cret")), (" a\nb ", Some(" a\nb ")), ("\n", None), ("", None)]
        {
            std::fs::write(&path, content).expect("a file");
            let read = read_secret(&SecretSource::File(path.clone()));
            match expected {
                Some(expected) => assert_eq!(read.expect("a secret"), expected),
                None => assert!(
                    read.expect_err("empty")
                        .to_string()
                        .ends_with("is empty: write the secret into it")
                ),
            }
        }
    }

    #[test]
    fn secrets_are_removed_from_texts() {
        let mut secrets = Secrets::default();
        for secret in ["12345678", "x12345678y", "key"] {
            secrets.add(secret);
        }
        let text = "key x12345678y, 12345678 and 1234567".to_owned();
        assert_eq!(secrets.conceal(text), "key …, … and 1234567");
        assert_eq!(format!("{secrets:?}"), "Secrets(…)");
    }
}
