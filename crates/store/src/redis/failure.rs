//! Why Redis did not answer, and what that says about what was asked.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::server::Address;

/// How the scripts refuse a call on a connection older than one that took something back.
pub(super) const FENCED: &str = "FENCED";

/// Why a call was not answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Failure {
    /// Redis is known not to answer.
    #[error("Redis is down")]
    Down,
    /// It was certainly not executed, and may be soon.
    #[error("Redis is not ready: {0}")]
    NotReady(String),
    /// It may or may not have been executed.
    #[error("the connection to Redis was lost")]
    Cut,
    /// It may or may not have been executed.
    #[error("Redis did not answer in time")]
    Late,
    /// It was refused, and would be again.
    #[error("Redis refuses: {0}")]
    Refused(String),
    /// It was certainly not executed: the slot is at this server.
    #[error("the slot is at {0:?}")]
    Moved(Address),
    /// It was certainly not executed: the slot is on its way to this server, and so may the keys be.
    #[error("the slot is on its way to {0:?}")]
    Ask(Address),
}

impl Failure {
    /// Whether another attempt may succeed.
    pub(super) const fn retryable(&self) -> bool {
        !matches!(self, Self::Down | Self::Refused(_))
    }

    /// Whether it is certain that nothing was done.
    pub(super) const fn was_not_executed(&self) -> bool {
        matches!(self, Self::Down | Self::NotReady(_) | Self::Moved(_) | Self::Ask(_))
    }

    /// Whether it may have been done.
    pub(super) const fn leaves_doubt(&self) -> bool {
        matches!(self, Self::Cut | Self::Late)
    }

    /// What an error says about what was asked of a host.
    pub(super) fn of(error: &RedisError, host: &str) -> Self {
        use ServerErrorKind as Kind;
        let text = error.to_string();
        if let Some((address, _)) = error.redirect_node()
            && let Some(address) = Address::read(address, host)
        {
            return match error.kind() {
                ErrorKind::Server(Kind::Ask) => Self::Ask(address),
                _ => Self::Moved(address),
            };
        }
        if error.code() == Some(FENCED) {
            return Self::NotReady(text);
        }
        match error.kind() {
            ErrorKind::Server(
                Kind::NoScript
                | Kind::BusyLoading
                | Kind::Moved
                | Kind::Ask
                | Kind::TryAgain
                | Kind::ClusterDown
                | Kind::MasterDown
                | Kind::ReadOnly,
            ) => Self::NotReady(text),
            ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::AuthenticationFailed => {
                Self::Refused(text)
            }
            _ => Self::Cut,
        }
    }
}
