//! What tokens cost.

use std::path::PathBuf;

/// Where prices come from besides the configuration itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prices {
    /// A file in the community format `model_prices_and_context_window`, for models that the
    /// configuration has no price for. Default: none.
    pub file: Option<PathBuf>,
}
