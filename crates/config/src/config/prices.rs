//! [`Prices`]: the source of token prices besides the configuration itself.

use std::path::PathBuf;

/// Source of token prices besides the configuration itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prices {
    /// File in the community format `model_prices_and_context_window`, for models without a price
    /// in the configuration. Default: none.
    pub file: Option<PathBuf>,
}
