//! `/v1/queues`: sends messages to queues, receives them with leases, and settles the leases. The
//! leases are in [`RemoteQueues`]; this is their form in HTTP.

mod decode;
mod encode;
mod refusal;

use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRef, Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use futures_util::future::join_all;
use sluicegate_config::QueueApiOptions;
use sluicegate_queue::remote::{LeaseAction, LeaseActionKind, LeaseHandle, RemoteQueues};
use sluicegate_queue::{Error, MessageId, Queue};
use sluicegate_service::trace::{SpanKind, Tracer};

use super::decode::{BodyLimit, JsonBody, shaped};
use super::{HandlerResult, Problem, json, only};
use decode::{
    AckBody, BodyFormat, DeadLetterBody, DelayBody, ExtendBody, HandleBody, OutgoingPart,
    ReceiveBody, SendBatchBody, SendBody,
};

/// Returns the routes. `queues` is `None` if the configuration has no `queue` section.
pub fn router(
    queues: Option<Arc<RemoteQueues>>,
    options: QueueApiOptions,
    tracer: Tracer,
) -> Router {
    Router::new()
        .route("/v1/queues/{queue}", only(get(depth)))
        .route("/v1/queues/{queue}/send", only(post(send)))
        .route("/v1/queues/{queue}/send-batch", only(post(send_batch)))
        .route("/v1/queues/{queue}/receive", only(post(receive)))
        .route("/v1/queues/{queue}/ack", only(post(ack)))
        .route("/v1/queues/{queue}/defer", only(post(defer)))
        .route("/v1/queues/{queue}/retry", only(post(retry)))
        .route("/v1/queues/{queue}/requeue", only(post(requeue)))
        .route("/v1/queues/{queue}/extend", only(post(extend)))
        .route("/v1/queues/{queue}/dead-letter", only(post(dead_letter)))
        .with_state(QueuesState(Arc::new(QueueApi { queues, options, tracer })))
}

#[derive(Clone)]
struct QueuesState(Arc<QueueApi>);

struct QueueApi {
    queues: Option<Arc<RemoteQueues>>,
    options: QueueApiOptions,
    tracer: Tracer,
}

impl BodyLimit for QueuesState {
    fn body_limit(&self) -> usize {
        self.0.options.body_limit.as_usize()
    }

    fn option(&self) -> &'static str {
        "queue.api.body_limit"
    }
}

impl FromRef<QueuesState> for Arc<QueueApi> {
    fn from_ref(state: &QueuesState) -> Self {
        state.0.clone()
    }
}

type Shared = State<Arc<QueueApi>>;
type Name = Result<Path<String>, PathRejection>;

impl QueueApi {
    /// Returns the queues and the name of the one that a request is about, if clients may use it.
    fn queue(&self, name: Name) -> Result<(&RemoteQueues, String), Problem> {
        let Some(queues) = &self.queues else {
            let detail = "this service has no queues: add the section `queue` to its configuration";
            return Err(Problem::new(StatusCode::NOT_FOUND, detail).because("NO_QUEUES"));
        };
        let Ok(Path(name)) = name else {
            return Err(Problem::field("queue", "is not valid UTF-8: write the name of a queue"));
        };
        decode::check_name(&name)?;
        if !self.options.allows(&name) {
            let detail = format!("clients may not use queue {name}: see queue.api.queues");
            return Err(Problem::new(StatusCode::FORBIDDEN, detail).because("QUEUE_NOT_ALLOWED"));
        }
        Ok((queues, name))
    }

    /// Sends messages, whose receivers continue the trace of the request.
    async fn send(
        &self,
        queues: &RemoteQueues,
        name: &str,
        parts: Vec<OutgoingPart>,
    ) -> Result<Vec<Result<MessageId, Error>>, Error> {
        let span = self.tracer.child("send", SpanKind::Producer).about(name);
        span.set("messaging.destination.name", || name.to_owned());
        let message = |queue: &Queue, part: OutgoingPart| {
            let (mut message, when) = part.message(queue);
            // The producer may have a trace of its own.
            if !message.headers.contains_key("traceparent") {
                let fields = span.fields().map(|(name, value)| (name.to_owned(), value));
                message.headers.extend(fields);
            }
            (message, when)
        };
        span.run(queues.send(name, parts, message)).await
    }

    /// Settles one lease.
    async fn settle(&self, name: Name, handle: &str, action: LeaseAction) -> HandlerResult {
        let (queues, name) = self.queue(name)?;
        let replayed = queues.settle(&name, &LeaseHandle::parse(handle)?, action).await?;
        Ok(json(encode::settled(replayed)))
    }
}

async fn depth(State(api): Shared, name: Name) -> HandlerResult {
    let (queues, name) = api.queue(name)?;
    Ok(json(encode::depths(&name, &queues.depths(&name).await?)))
}

async fn send(State(api): Shared, name: Name, JsonBody(body): JsonBody) -> HandlerResult {
    let (queues, name) = api.queue(name)?;
    let part = shaped::<SendBody>(&body)?.read(queues)?;
    let mut sent = api.send(queues, &name, vec![part]).await?;
    let id = sent.pop().unwrap_or_else(|| unreachable!("one message has one result"))?;
    let mut response = json(encode::sent(&id));
    *response.status_mut() = StatusCode::CREATED;
    Ok(response)
}

async fn send_batch(State(api): Shared, name: Name, JsonBody(body): JsonBody) -> HandlerResult {
    let (queues, name) = api.queue(name)?;
    let parts = shaped::<SendBatchBody>(&body)?.read(queues)?;
    let sent = api.send(queues, &name, parts).await?;
    let results = sent.iter().map(|result| match result {
        Ok(id) => encode::sent_value(id),
        Err(error) => encode::problem(&Problem::from(error.clone())),
    });
    Ok(json(encode::results(results.collect())))
}

async fn receive(State(api): Shared, name: Name, JsonBody(body): JsonBody) -> HandlerResult {
    let (queues, name) = api.queue(name)?;
    let (request, format) = shaped::<ReceiveBody>(&body)?.read()?;
    let received = queues.receive(&name, request).await?;
    let always_base64 = format == BodyFormat::Base64;
    Ok(json(encode::received(queues.node(), &received, always_base64)))
}

/// Acknowledges one lease, or several independently of each other.
async fn ack(State(api): Shared, name: Name, JsonBody(body): JsonBody) -> HandlerResult {
    let handles = match shaped::<AckBody>(&body)?.read()? {
        decode::Handles::One(handle) => return api.settle(name, &handle, LeaseAction::Ack).await,
        decode::Handles::Several(handles) => handles,
    };
    let (queues, name) = api.queue(name)?;
    let acks = handles.iter().map(|handle| async {
        let handle = LeaseHandle::parse(handle)?;
        queues.settle(&name, &handle, LeaseAction::Ack).await
    });
    let results = join_all(acks).await.into_iter().map(|result| match result {
        Ok(replayed) => encode::settled_value(replayed),
        Err(error) => encode::problem(&Problem::from(error)),
    });
    Ok(json(encode::results(results.collect())))
}

async fn defer(State(api): Shared, name: Name, JsonBody(body): JsonBody) -> HandlerResult {
    delayed(&api, name, &body, LeaseActionKind::Defer).await
}

async fn retry(State(api): Shared, name: Name, JsonBody(body): JsonBody) -> HandlerResult {
    delayed(&api, name, &body, LeaseActionKind::Retry).await
}

async fn delayed(api: &QueueApi, name: Name, body: &[u8], kind: LeaseActionKind) -> HandlerResult {
    let body: DelayBody = shaped(body)?;
    let when = body.when(api.queues.as_deref())?;
    let action = match kind {
        LeaseActionKind::Retry => LeaseAction::Retry(when),
        _ => LeaseAction::Defer(when),
    };
    api.settle(name, &body.handle, action).await
}

async fn requeue(State(api): Shared, name: Name, JsonBody(body): JsonBody) -> HandlerResult {
    let HandleBody { handle } = shaped(&body)?;
    api.settle(name, &handle, LeaseAction::Requeue).await
}

async fn extend(State(api): Shared, name: Name, JsonBody(body): JsonBody) -> HandlerResult {
    let (queues, name) = api.queue(name)?;
    let body: ExtendBody = shaped(&body)?;
    let handle = LeaseHandle::parse(&body.handle)?;
    let until = queues.extend(&name, &handle, body.lease()?).await?;
    Ok(json(encode::extended(until)))
}

async fn dead_letter(State(api): Shared, name: Name, JsonBody(body): JsonBody) -> HandlerResult {
    let DeadLetterBody { handle, error } = shaped(&body)?;
    api.settle(name, &handle, LeaseAction::DeadLetter(error.read()?)).await
}
