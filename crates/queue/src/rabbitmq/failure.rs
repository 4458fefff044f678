//! What an error of the client means to our callers. No message repeats the address: it has a
//! password in it.

use lapin::ErrorKind;
use lapin::types::ShortString;

use super::NAME;
use crate::Error;

/// The replies of AMQP that we tell apart.
const ACCESS_REFUSED: u16 = 403;
const NOT_FOUND: u16 = 404;
const RESOURCE_LOCKED: u16 = 405;
const PRECONDITION_FAILED: u16 = 406;
const NOT_ALLOWED: u16 = 530;

/// An operation that did not succeed.
pub(super) enum Failure {
    /// RabbitMQ or the client said why.
    Client(lapin::Error),
    /// There was no answer in time.
    Late,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Late => unavailable("no answer in time"),
            Failure::Client(error) => match reply(&error) {
                Some((ACCESS_REFUSED, text)) => refused(&format!(
                    "{text}; check user and password in queue.url, and what the user may do"
                )),
                Some((NOT_ALLOWED, text)) => {
                    refused(&format!("{text}; check the virtual host in queue.url"))
                }
                Some((_, text)) => unavailable(&text),
                None => unavailable(&error.to_string()),
            },
        }
    }
}

/// An operation on a queue that did not succeed.
pub(super) fn of_queue(queue: &str, failure: Failure) -> Error {
    let Failure::Client(error) = &failure else { return failure.into() };
    let queue = queue.to_owned();
    match reply(error) {
        Some((NOT_FOUND, _)) => Error::NoQueue { queue },
        Some((PRECONDITION_FAILED | RESOURCE_LOCKED, text)) => {
            let detail =
                format!("{text}; it exists with other arguments: delete it, or use it as it is");
            Error::Unusable { queue, detail }
        }
        _ => failure.into(),
    }
}

/// Connecting that did not succeed. RabbitMQ closes the connection of a stranger with or without a
/// word.
pub(super) fn of_connecting(host: &str, failure: Failure) -> Error {
    match failure {
        Failure::Late => unavailable(&format!(
            "no answer from {host} in time: is queue.url right, and is RabbitMQ there?"
        )),
        Failure::Client(error) if error.to_string().contains("certificate") => {
            unavailable(&format!(
                "can't trust {host} ({error}): SSL_CERT_FILE names a file with the certificates of \
             authorities that this system does not know"
            ))
        }
        Failure::Client(error) if error.is_io_error() => unavailable(&format!(
            "can't connect to {host} ({error}): is queue.url right, and is RabbitMQ running?"
        )),
        failure => failure.into(),
    }
}

pub(super) fn unavailable(detail: &str) -> Error {
    Error::Unavailable { broker: NAME, detail: detail.to_owned() }
}

fn refused(detail: &str) -> Error {
    Error::Refused { broker: NAME, detail: detail.to_owned() }
}

/// The code and the words of RabbitMQ.
fn reply(error: &lapin::Error) -> Option<(u16, String)> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => {
            Some((error.get_id(), error.get_message().as_str().to_owned()))
        }
        _ => None,
    }
}

/// A name that fits into the protocol.
pub(super) fn name(text: &str) -> Result<ShortString, Error> {
    let long = || format!("{text:?} can't name a queue of RabbitMQ: write 1 to 255 bytes");
    if text.is_empty() {
        return Err(Error::Invalid(long()));
    }
    ShortString::try_new(text).map_err(|_| Error::Invalid(long()))
}
