//! [`Upload`]: a request body on its way to the upstream.
//!
//! Until the response begins, the gateway waits either for the caller or for the upstream. Each has
//! its own timeout:
//!
//! | waiting for | timeout | the caller gets |
//! |---|---|---|
//! | the next bytes of the request body | `idle_timeout` | 408 |
//! | the upstream: it takes no bytes, or has all of them and does not answer | `timeout` | 504 |
//! | either of them | `deadline` | 408 or 504 |
//!
//! A body that can't be read is the caller's fault: the upload keeps the reason, because the
//! connection to the upstream only reports that it was aborted.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::BoxError;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use sluicegate_core::time::Timestamp;
use sluicegate_service::Service;
use tokio::time::{Sleep, sleep};

use super::buffered_body::BodyTooLarge;
use crate::refusal::Refusal;

/// The state of an upload, shared by its body and its request.
#[derive(Clone)]
pub(crate) struct Upload(Arc<UploadState>);

struct UploadState {
    service: Arc<Service>,
    /// Time at which the upstream took the last bytes, in microseconds.
    moved_at: AtomicU64,
    /// True if the caller has to send the next bytes.
    waits_for_caller: AtomicBool,
    /// True once the response has begun: from then on, a silent caller may just be listening.
    answered: AtomicBool,
    fault: OnceLock<Refusal>,
    /// True if there is a copy of the request, so that it can be sent again.
    is_repeatable: bool,
}

/// The timeouts of a request until its response begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UploadTimeouts {
    /// Maximum time without progress at the upstream.
    pub(crate) upstream: Duration,
    /// Maximum time in total, if there is one.
    pub(crate) total: Option<Duration>,
}

impl Upload {
    /// Begins an upload now. `is_repeatable` is true if there is a copy of the request.
    pub(crate) fn new(service: &Arc<Service>, is_repeatable: bool) -> Self {
        Self(Arc::new(UploadState {
            service: service.clone(),
            moved_at: service.now().as_micros().into(),
            waits_for_caller: false.into(),
            answered: false.into(),
            fault: OnceLock::new(),
            is_repeatable,
        }))
    }

    /// Returns true if there is a copy of the request, so that it can be sent again.
    pub(crate) fn is_repeatable(&self) -> bool {
        self.0.is_repeatable
    }

    /// Wraps the body to be sent. Its caller must not pause for longer than `idle_max`.
    pub(crate) fn track<B>(&self, body: B, idle_max: Duration) -> UploadBody<B> {
        UploadBody { body, idle_max, idle: None, upload: self.clone() }
    }

    /// Waits for the head of the response, the result of `response`. Returns a rejection if that
    /// takes too long.
    ///
    /// If the request could not be sent, this function may be called again for another attempt.
    pub(crate) async fn answered<T, E>(
        &self,
        timeouts: UploadTimeouts,
        response: impl Future<Output = Result<T, E>>,
    ) -> Result<Result<T, E>, Refusal> {
        let total = async {
            match timeouts.total {
                Some(total) => sleep(total).await,
                None => std::future::pending().await,
            }
        };
        let answered = tokio::select! {
            biased;
            answered = response => answered,
            () = self.upstream_stalls(timeouts.upstream) => return Err(Refusal::Timeout),
            () = total => return Err(match self.0.waits_for_caller.load(Relaxed) {
                true => Refusal::BodyTimeout,
                false => Refusal::Timeout,
            }),
        };
        self.0.answered.store(answered.is_ok(), Relaxed);
        Ok(answered)
    }

    /// Returns when the upstream has made no progress for `most`.
    async fn upstream_stalls(&self, most: Duration) {
        let mut left = most;
        loop {
            sleep(left).await;
            // Time spent waiting for the caller does not count: the caller has its own timeout.
            let now = self.0.service.now();
            if self.0.waits_for_caller.load(Relaxed) {
                self.0.moved_at.store(now.as_micros(), Relaxed);
            }
            let moved_at = Timestamp::from_micros(self.0.moved_at.load(Relaxed));
            left = most.saturating_sub(now.since(moved_at).into());
            if left.is_zero() {
                return;
            }
        }
    }

    /// Returns the rejection of a request whose own body failed.
    pub(crate) fn fault(&self) -> Option<&Refusal> {
        self.0.fault.get()
    }
}

pin_project! {
    /// The body of an [`Upload`].
    pub(crate) struct UploadBody<B> {
        #[pin]
        body: B,
        idle_max: Duration,
        // Created at the first wait: most bodies arrive together with their head.
        #[pin]
        idle: Option<Sleep>,
        upload: Upload,
    }
}

/// An error: the caller stopped sending in the middle of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the caller sent nothing for {0:?}")]
struct CallerSilent(Duration);

impl<B: Body<Data = Bytes, Error = BoxError>> Body for UploadBody<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut this = self.project();
        let state = &this.upload.0;
        let polled = this.body.poll_frame(cx);
        state.waits_for_caller.store(polled.is_pending(), Relaxed);
        if let Poll::Ready(frame) = polled {
            this.idle.set(None);
            state.moved_at.store(state.service.now().as_micros(), Relaxed);
            if let Some(Err(error)) = &frame {
                let _ = state.fault.set(body_refusal(error));
            }
            return Poll::Ready(frame);
        }
        if state.answered.load(Relaxed) {
            return Poll::Pending;
        }
        if this.idle.is_none() {
            this.idle.set(Some(sleep(*this.idle_max)));
        }
        ready!(this.idle.as_mut().as_pin_mut().expect("it was made above").poll(cx));
        if state.answered.load(Relaxed) {
            return Poll::Pending;
        }
        let _ = state.fault.set(Refusal::BodyTimeout);
        Poll::Ready(Some(Err(CallerSilent(*this.idle_max).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Returns the rejection for a request body that can't be read: it is too large, invalid, or its
/// caller is gone.
pub(crate) fn body_refusal(error: &BoxError) -> Refusal {
    let mut source: Option<&dyn std::error::Error> = Some(&**error);
    while let Some(error) = source {
        if let Some(BodyTooLarge(limit)) = error.downcast_ref() {
            return Refusal::TooLarge(*limit);
        }
        if let Some(error) = error.downcast_ref::<std::io::Error>()
            && matches!(
                error.kind(),
                std::io::ErrorKind::InvalidInput | std::io::ErrorKind::InvalidData
            )
        {
            return Refusal::BadRequest("the chunks of the request body are not valid HTTP");
        }
        source = error.source();
    }
    Refusal::ClientClosed
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{BodyExt as _, StreamBody};
    use sluicegate_core::ruleset::Settings;
    use sluicegate_core::{Limiter, Ruleset};
    use sluicegate_store::memory::Capacity;
    use sluicegate_store::{Memory, MonotonicClock};

    const TIMEOUTS: UploadTimeouts =
        UploadTimeouts { upstream: Duration::from_secs(1), total: None };

    fn upload() -> Upload {
        let rules = Ruleset::new(Vec::new(), Settings::default()).expect("no rules");
        let limiter = Limiter::new(rules, Memory::new(Capacity::default()).into());
        let service = Service::new(limiter, MonotonicClock::new(), Vec::new());
        Upload::new(&Arc::new(service), false)
    }

    /// Returns the body of a caller that sends nothing.
    fn silent() -> impl Body<Data = Bytes, Error = BoxError> {
        StreamBody::new(futures_util::stream::pending::<Result<Frame<Bytes>, BoxError>>())
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_caller_times_out_after_a_request_that_could_not_be_sent() {
        let upload = upload();
        let sent = upload.answered(TIMEOUTS, async { Err::<(), _>("the connection was closed") });
        assert!(sent.await.is_ok_and(|sent| sent.is_err()));
        let mut body = std::pin::pin!(upload.track(silent(), Duration::from_secs(1)));
        let frame = body.frame().await;
        assert!(frame.is_some_and(|frame| frame.is_err()));
        assert_eq!(upload.fault(), Some(&Refusal::BodyTimeout));
    }
}
