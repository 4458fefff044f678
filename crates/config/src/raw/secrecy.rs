//! [`Secrecy`]: decides which values of a file messages may show.
//!
//! The decision is made while the text is parsed, by the keys above a value and by the value itself,
//! so that it also holds for a file that is not valid YAML and for options that nobody reads.

/// Secrecy of the values in a list or a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Secrecy {
    /// The keys are the sections of the file.
    Sections,
    /// Messages may show the values, except below keys that announce a secret.
    Visible,
    /// No message may show the values.
    Secret,
}

/// Sections whose values are visible. A section that is in neither list may be a misspelled `auth`.
const VISIBLE_SECTIONS: [&str; 17] = [
    "booking",
    "compat",
    "dimensions",
    "dispatch",
    "enabled",
    "limits",
    "listen",
    "log",
    "metrics",
    "outage",
    "prices",
    "queue",
    "rate_limits",
    "redis",
    "server",
    "store",
    "tests",
];
/// Sections whose values are visible, except for [`CREDENTIALS`].
const SECTIONS_WITH_CREDENTIALS: [&str; 3] = ["gateways", "traces", "workers"];
/// Options of gateways, handlers and traces that contain credentials. `headers`, `query` and `env`
/// have keys that the file chooses, so every value of them may be a credential.
const CREDENTIALS: [&str; 7] = ["auth", "basic", "bearer", "env", "headers", "login", "query"];

impl Secrecy {
    /// Returns the secrecy of the list or map of a key.
    pub(super) fn below(self, key: &str) -> Self {
        match self {
            Self::Sections if is_visible_section(key) => Self::Visible,
            Self::Sections if SECTIONS_WITH_CREDENTIALS.contains(&key) => Self::Visible,
            Self::Visible if !CREDENTIALS.contains(&key) && !announces_secret(key) => Self::Visible,
            Self::Sections | Self::Visible | Self::Secret => Self::Secret,
        }
    }

    /// Returns the secrecy of the scalar value of a key. A scalar `tokens` is an amount, as in
    /// `estimate`; the tokens of callers are a map.
    pub(super) fn of_scalar(self, key: &str) -> Self {
        match self {
            Self::Visible if key == "tokens" => Self::Visible,
            _ => self.below(key),
        }
    }
}

/// Returns true if a section has no options for credentials, or only options whose names announce a
/// secret.
pub(super) fn is_visible_section(key: &str) -> bool {
    VISIBLE_SECTIONS.contains(&key)
}

/// Returns true if the name of a key, or a line with a key in it, suggests a secret.
pub(super) fn announces_secret(text: &str) -> bool {
    // Amounts such as max_tokens.
    let text = text.to_ascii_lowercase().replace("_tokens", "");
    let words = [
        "password",
        "passwd",
        "secret",
        "token",
        "credential",
        "api_key",
        "api-key",
        "apikey",
        "connection_string",
        "authorization",
        "cookie",
    ];
    words.iter().any(|word| text.contains(word))
}

/// Returns true if a text looks like an address or a header field with a credential in it.
pub(super) fn has_credentials(text: &str) -> bool {
    let url = text.split_once("://").is_some_and(|(_, rest)| rest.contains('@'));
    let lower = text.to_ascii_lowercase();
    let words = [
        "password=",
        "key=",
        "token=",
        "secret=",
        "sig=",
        "signature=",
        "authorization:",
        "bearer ",
    ];
    url || words.iter().any(|word| lower.contains(word))
}
