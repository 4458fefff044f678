//! [`Failure`]: a failed request, and its conversion to an [`Error`].

use std::collections::BTreeMap;

use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use super::NAME;
use crate::Error;
use crate::broker::QueueName;

/// Beginning of the reason that Pub/Sub gives for a receipt that may be valid later.
const TRANSIENT: &str = "TRANSIENT_FAILURE";

/// The failure of a request.
pub(super) enum Failure {
    /// There is no access token.
    Login(Error),
    /// The answer of Pub/Sub, or of the connection.
    Status(Status),
}

impl Failure {
    pub(super) fn code(&self) -> Option<Code> {
        match self {
            Self::Login(_) => None,
            Self::Status(status) => Some(status.code()),
        }
    }

    /// Converts the failure of a request to a queue.
    pub(super) fn of_queue(&self, queue_name: &QueueName) -> Error {
        match self {
            Self::Login(error) => error.clone(),
            Self::Status(status) => of_status(status, queue_name),
        }
    }

    /// Returns the result of each receipt of a request that failed for some of them: subscriptions
    /// with exactly-once delivery name these.
    pub(super) fn of_receipts(
        &self,
        queue_name: &QueueName,
        ack_ids: &[String],
    ) -> Vec<Result<(), Error>> {
        let error = self.of_queue(queue_name);
        let named = match self {
            Self::Login(_) => None,
            Self::Status(status) => status.get_details_error_info(),
        };
        let named: BTreeMap<_, _> = named.into_iter().flat_map(|info| info.metadata).collect();
        let result = |ack_id: &String| match named.get(ack_id) {
            None if named.is_empty() => Err(error.clone()),
            None => Ok(()),
            Some(reason) if reason.starts_with(TRANSIENT) => {
                Err(Error::Unavailable { broker: NAME, detail: reason.clone() })
            }
            Some(_) => Err(Error::Lost),
        };
        ack_ids.iter().map(result).collect()
    }
}

fn of_status(status: &Status, queue_name: &QueueName) -> Error {
    let text = status.message();
    let refused =
        |remedy: &str| Error::Refused { broker: NAME, detail: format!("{text}; {remedy}") };
    let queue = || queue_name.name().to_owned();
    match status.code() {
        // Google answers this way also if the project exists and its access is not allowed.
        Code::NotFound if text.contains("project not found") => {
            refused("check queue.project: it is the id of the project, not its display name")
        }
        Code::NotFound => Error::NoQueue { queue: queue() },
        Code::Unauthenticated => refused(
            "the credential is invalid or expired: renew it, or write another queue.credentials",
        ),
        Code::PermissionDenied => refused(&format!(
            "grant the account the roles pubsub.publisher, pubsub.subscriber and pubsub.viewer for \
             {queue_name}, or pubsub.editor if it should create queues (docs/queues.md), and check \
             queue.project"
        )),
        Code::FailedPrecondition => Error::Unusable { queue: queue(), detail: text.to_owned() },
        Code::InvalidArgument => Error::Invalid(format!("{NAME} rejected the request: {text}")),
        code => {
            let detail = format!("{text} ({code:?}): check queue.endpoint and the network");
            Error::Unavailable { broker: NAME, detail }
        }
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}
