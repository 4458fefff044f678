//! [`LeaseHandle`]: the text with which a client names its lease.

use std::fmt;

use uuid::Uuid;

use super::LeaseError;

/// Maximum length of a handle. The longest part is a receipt handle of SQS, of about 400 bytes.
const LENGTH_MAX: usize = 4_096;

/// Maximum length of the name of a machine in the name of a node.
const HOST_MAX: usize = 40;

/// Returns the name of a node: that of its machine and a random part.
pub(super) fn node_name(host: &str) -> String {
    let random = Uuid::new_v4().simple().to_string();
    let valid = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let host: String = host.chars().take(HOST_MAX).map(valid).collect();
    format!("{}-{}", if host.is_empty() { "node" } else { &host }, &random[..8])
}

/// A handle: the node that received the message, the id of the lease, and the token of the broker
/// with which other nodes take over the delivery, if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseHandle {
    node: String,
    lease: Uuid,
    token: Option<String>,
}

impl LeaseHandle {
    pub(super) fn new(node: &str, token: Option<String>) -> Self {
        Self { node: node.to_owned(), lease: Uuid::new_v4(), token }
    }

    /// Parses a handle.
    pub fn parse(text: &str) -> Result<Self, LeaseError> {
        Self::read(text).ok_or(LeaseError::Malformed)
    }

    fn read(text: &str) -> Option<Self> {
        let text = Some(text).filter(|text| text.len() <= LENGTH_MAX)?;
        // The token is the rest, whatever it contains.
        let mut parts = text.splitn(3, '.');
        let (node, lease, token) = (parts.next()?, parts.next()?, parts.next()?);
        let lease = Some(lease).filter(|lease| lease.len() == 32)?;
        (!node.is_empty()).then_some(Self {
            node: node.to_owned(),
            lease: Uuid::try_parse(lease).ok()?,
            token: Some(token.to_owned()).filter(|token| !token.is_empty()),
        })
    }

    /// Returns the node that received the message.
    pub fn node(&self) -> &str {
        &self.node
    }

    pub(super) const fn lease(&self) -> Uuid {
        self.lease
    }

    pub(super) fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }
}

/// Prints `<node>.<lease>.<token>`.
impl fmt::Display for LeaseHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = self.token.as_deref().unwrap_or_default();
        write!(f, "{}.{}.{token}", self.node, self.lease.simple())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_read_back() {
        for token in [None, Some("17-123".to_owned()), Some("AQEB/x+.é==".to_owned())] {
            let handle = LeaseHandle::new("web-1-ab12", token);
            assert_eq!(LeaseHandle::parse(&handle.to_string()), Ok(handle));
        }
    }

    #[test]
    fn the_name_of_a_node_fits_into_a_handle() {
        for host in ["web-1.example.org", "", "größe", &"x".repeat(300)] {
            let handle = LeaseHandle::new(&node_name(host), None);
            assert_eq!(LeaseHandle::parse(&handle.to_string()), Ok(handle));
        }
        assert_ne!(node_name("a"), node_name("a"));
    }

    #[test]
    fn other_texts_are_malformed() {
        let long = format!("n.{}.{}", "0".repeat(32), "A".repeat(LENGTH_MAX));
        let id = "0".repeat(32);
        for text in ["", "a", "a.b", "a.b.c", &format!("n.{id}"), &format!(".{id}."), &long] {
            assert_eq!(LeaseHandle::parse(text), Err(LeaseError::Malformed), "{text}");
        }
    }
}
