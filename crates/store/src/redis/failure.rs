//! The reasons why a call to Redis fails, and what each means for the call.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::server::ServerAddress;

/// Error code with which the scripts reject a call on a connection that is older than a rollback.
pub(super) const FENCED: &str = "FENCED";

/// A reason why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CallFailure {
    /// The link is down, so the call was not sent.
    #[error("Redis is down")]
    Down,
    /// The call was not executed; a retry may succeed soon.
    #[error("Redis is not ready: {0}")]
    NotReady(String),
    /// The call may or may not have been executed.
    #[error("the connection to Redis was lost")]
    ConnectionLost,
    /// The call may or may not have been executed.
    #[error("Redis did not answer in time")]
    Timeout,
    /// Redis rejected the call, and would again.
    #[error("Redis refused the call: {0}")]
    Refused(String),
    /// The call was not executed: the slot is on this server.
    #[error("the slot moved to {0:?}")]
    Moved(ServerAddress),
    /// The call was not executed: the slot is migrating to this server, and its keys may be there.
    #[error("the slot is migrating to {0:?}")]
    Ask(ServerAddress),
}

impl CallFailure {
    /// Returns true if a retry may succeed.
    pub(super) const fn retryable(&self) -> bool {
        !matches!(self, Self::Down | Self::Refused(_))
    }

    /// Returns true if the call was certainly not executed.
    pub(super) const fn was_not_executed(&self) -> bool {
        matches!(self, Self::Down | Self::NotReady(_) | Self::Moved(_) | Self::Ask(_))
    }

    /// Returns true if the call may have been executed.
    pub(super) const fn may_have_executed(&self) -> bool {
        matches!(self, Self::ConnectionLost | Self::Timeout)
    }

    /// Classifies an error of a call to `host`.
    pub(super) fn of(error: &RedisError, host: &str) -> Self {
        use ServerErrorKind as Kind;
        let text = error.to_string();
        if let Some((address, _)) = error.redirect_node()
            && let Some(address) = ServerAddress::read(address, host)
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
            _ => Self::ConnectionLost,
        }
    }
}

/// A reason why a server that answers rejects every write, and so every decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteRefusal {
    /// Its memory is full (`maxmemory`).
    OutOfMemory,
    /// It is a replica.
    ReadOnly,
    /// It can't write its dump or append-only file, and is configured to reject writes then.
    CannotPersist,
    /// It has fewer replicas than `min-replicas-to-write`.
    TooFewReplicas,
    /// The user has no permission for a command that the store needs.
    NotPermitted,
}

impl WriteRefusal {
    /// Every reason with its name in probes and metrics, and the error code of Redis.
    const ALL: [(Self, &'static str, &'static str); 5] = [
        (Self::OutOfMemory, "redis_out_of_memory", "OOM"),
        (Self::ReadOnly, "redis_read_only", "READONLY"),
        (Self::CannotPersist, "redis_cannot_persist", "MISCONF"),
        (Self::TooFewReplicas, "redis_too_few_replicas", "NOREPLICAS"),
        (Self::NotPermitted, "redis_not_permitted", "NOPERM"),
    ];

    /// Returns its name in probes and metrics.
    pub const fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Returns the reason that an error stands for, if it is one.
    pub(super) fn of(error: &RedisError) -> Option<Self> {
        Self::read(error.code()?, error.detail().unwrap_or_default())
    }

    /// Reads the reason from an error. Before Redis 7, the error of a command is part of the
    /// script's error text.
    fn read(code: &str, detail: &str) -> Option<Self> {
        let is_this = |name: &str| code == name || detail.contains(&format!("-{name} "));
        let found = Self::ALL.into_iter().find(|(_, _, name)| is_this(name));
        found.map(|(refusal, ..)| refusal)
    }

    /// Returns the reason with this discriminant.
    pub(super) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).map(|(refusal, ..)| *refusal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_read_from_the_errors_of_both_versions() {
        let inside = "Error running script (call to f_0): @user_script:31: @user_script: 31: -OOM \
                      command not allowed when used memory > 'maxmemory'.";
        for (code, detail, expected) in [
            ("OOM", "allow-oom flag is not set on the script", Some(WriteRefusal::OutOfMemory)),
            ("ERR", inside, Some(WriteRefusal::OutOfMemory)),
            (
                "READONLY",
                "You can't write against a read only replica",
                Some(WriteRefusal::ReadOnly),
            ),
            ("NOREPLICAS", "Not enough good replicas", Some(WriteRefusal::TooFewReplicas)),
            ("WRONGTYPE", "Operation against a key holding the wrong kind of value", None),
        ] {
            assert_eq!(WriteRefusal::read(code, detail), expected, "{code} {detail}");
        }
        for (number, (refusal, ..)) in (0..).zip(WriteRefusal::ALL) {
            assert_eq!((refusal as u8, WriteRefusal::from_number(number)), (number, Some(refusal)));
        }
    }
}
