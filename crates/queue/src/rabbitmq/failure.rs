//! Converts errors of the AMQP client. No message repeats the address, because it contains a
//! password.

use lapin::ErrorKind;
use lapin::types::ShortString;

use super::NAME;
use crate::Error;

/// AMQP reply codes with a meaning of their own.
const ACCESS_REFUSED: u16 = 403;
const NOT_FOUND: u16 = 404;
const RESOURCE_LOCKED: u16 = 405;
const PRECONDITION_FAILED: u16 = 406;
const NOT_ALLOWED: u16 = 530;

/// A failed operation.
pub(super) enum Failure {
    /// An error of RabbitMQ or of the client.
    Client(lapin::Error),
    /// A timeout.
    Timeout,
}

impl Failure {
    /// Returns true if the error concerns one queue, and not the connection.
    pub(super) fn concerns_queue(&self) -> bool {
        let Self::Client(error) = self else { return false };
        let about = [NOT_FOUND, RESOURCE_LOCKED, PRECONDITION_FAILED];
        reply(error).is_some_and(|(code, _)| about.contains(&code))
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Timeout => unavailable("timeout"),
            Failure::Client(error) => match reply(&error) {
                Some((ACCESS_REFUSED, text)) => refused(&format!(
                    "{text}; check user and password in queue.url, and the permissions of the user"
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

/// Converts the failure of an operation on a queue.
pub(super) fn of_queue(queue: &str, failure: Failure) -> Error {
    let Failure::Client(error) = &failure else { return failure.into() };
    let queue = queue.to_owned();
    match reply(error) {
        Some((NOT_FOUND, _)) => Error::NoQueue { queue },
        Some((PRECONDITION_FAILED | RESOURCE_LOCKED, text)) => {
            let detail =
                format!("{text}; it exists with other arguments: delete it once it is empty");
            Error::Unusable { queue, detail }
        }
        _ => failure.into(),
    }
}

/// Converts the failure of connecting. RabbitMQ may close the connection of an unknown user without
/// an error message.
pub(super) fn of_connecting(host: &str, failure: Failure) -> Error {
    match failure {
        Failure::Timeout => unavailable(&format!(
            "timeout while connecting to {host}: check queue.url, and that RabbitMQ is running"
        )),
        Failure::Client(error) if error.to_string().contains("certificate") => {
            unavailable(&format!(
                "can't verify the certificate of {host} ({error}): set SSL_CERT_FILE to a file \
                 with the certificate of its authority"
            ))
        }
        Failure::Client(error) if error.is_io_error() => unavailable(&format!(
            "can't connect to {host} ({error}): check queue.url, and that RabbitMQ is running"
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

/// Returns the reply code and the text of RabbitMQ.
fn reply(error: &lapin::Error) -> Option<(u16, String)> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => {
            Some((error.get_id(), error.get_message().as_str().to_owned()))
        }
        _ => None,
    }
}

/// Checks the length of a queue name.
pub(super) fn name(text: &str) -> Result<ShortString, Error> {
    let long = || format!("{text:?} is not a valid RabbitMQ queue name: write 1 to 255 bytes");
    if text.is_empty() {
        return Err(Error::Invalid(long()));
    }
    ShortString::try_new(text).map_err(|_| Error::Invalid(long()))
}
