//! Calls that run to their end, also if their caller is dropped.

use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use tokio::runtime::Handle as Runtime;

/// Runs a call to its end. If its caller is dropped, the call goes on in the background, and its
/// result is dropped: a result that holds an admission must end it when it is dropped.
///
/// The store or the service may have admitted the work of a caller that is dropped.
pub(crate) async fn to_the_end<T: Send + 'static>(
    call: impl Future<Output = T> + Send + 'static,
) -> T {
    let mut call: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(call);
    // A store in this process, or a cached denial, needs no task.
    let first = poll_fn(|context| match call.as_mut().poll(context) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending => Poll::Ready(None),
    });
    if let Some(result) = first.await {
        return result;
    }
    let Ok(runtime) = Runtime::try_current() else { return call.await };
    match runtime.spawn(call).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime shuts down, and will drop this future, too.
            Err(_) => pending().await,
        },
    }
}
