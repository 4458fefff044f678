//! Builds the job handlers of a configuration: HTTP calls, chat completions and commands.

use std::sync::Arc;

use sluicegate_config::{HandlerAction, HandlerOptions};
use sluicegate_dispatch::Handler;
use sluicegate_dispatch::handler::{CommandHandler, EmittingHandler, HttpHandler};
use sluicegate_queue::WallClock;

/// Builds a handler.
pub(crate) fn handler(handler: &HandlerOptions) -> anyhow::Result<Arc<dyn Handler>> {
    let made: Arc<dyn Handler> = match &handler.action {
        HandlerAction::Http(http) => {
            Arc::new(HttpHandler::new((**http).clone(), Arc::new(WallClock))?)
        }
        HandlerAction::Command(command) => Arc::new(CommandHandler::new(command.clone())?),
    };
    Ok(match handler.emit.is_empty() {
        true => made,
        false => Arc::new(EmittingHandler::new(made, handler.emit.clone())),
    })
}
