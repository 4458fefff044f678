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

/// Why a server that answers writes nothing, so that every decision is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its memory is full (`maxmemory`).
    OutOfMemory,
    /// It is a replica.
    ReadOnly,
    /// It can't write its dump or its log, and is told to refuse writes then.
    CannotPersist,
    /// Fewer replicas than `min-replicas-to-write` follow it.
    TooFewReplicas,
    /// The user may not run what has to be run.
    NotPermitted,
}

impl Refusal {
    /// Every refusal with the word that probes and metrics use, and the code of Redis for it.
    const ALL: [(Self, &'static str, &'static str); 5] = [
        (Self::OutOfMemory, "redis_out_of_memory", "OOM"),
        (Self::ReadOnly, "redis_read_only", "READONLY"),
        (Self::CannotPersist, "redis_cannot_persist", "MISCONF"),
        (Self::TooFewReplicas, "redis_too_few_replicas", "NOREPLICAS"),
        (Self::NotPermitted, "redis_not_permitted", "NOPERM"),
    ];

    /// The word for it.
    pub const fn word(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Whether an error is one of them.
    pub(super) fn of(error: &RedisError) -> Option<Self> {
        Self::read(error.code()?, error.detail().unwrap_or_default())
    }

    /// Before 7, the error of a command is inside that of its script.
    fn read(code: &str, detail: &str) -> Option<Self> {
        let is_this = |name: &str| code == name || detail.contains(&format!("-{name} "));
        let found = Self::ALL.into_iter().find(|(_, _, name)| is_this(name));
        found.map(|(refusal, ..)| refusal)
    }

    /// From the number by which an atomic keeps it.
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
            ("OOM", "allow-oom flag is not set on the script", Some(Refusal::OutOfMemory)),
            ("ERR", inside, Some(Refusal::OutOfMemory)),
            ("READONLY", "You can't write against a read only replica", Some(Refusal::ReadOnly)),
            ("NOREPLICAS", "Not enough good replicas", Some(Refusal::TooFewReplicas)),
            ("WRONGTYPE", "Operation against a key holding the wrong kind of value", None),
        ] {
            assert_eq!(Refusal::read(code, detail), expected, "{code} {detail}");
        }
        for (number, (refusal, ..)) in (0..).zip(Refusal::ALL) {
            assert_eq!((refusal as u8, Refusal::from_number(number)), (number, Some(refusal)));
        }
    }
}
