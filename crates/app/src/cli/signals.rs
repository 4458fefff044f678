//! Handles the signals that end a command.

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

/// Calls `react` at the first SIGINT, SIGTERM or SIGHUP, on a thread of its own. From then on these
/// signals do not end the process by themselves.
pub(super) fn on_end_signal(react: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("can't start the async runtime")?;
    let mut signals = {
        let _context = runtime.enter();
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let mut signals = Vec::new();
        for kind in kinds {
            signals.push(signal(kind).context("can't handle signals")?);
        }
        signals
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            let received = signals.iter_mut().map(|signal| Box::pin(signal.recv()));
            futures_util::future::select_all(received).await;
        });
        react();
    });
    Ok(())
}
