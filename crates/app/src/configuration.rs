//! The configuration file: where it is, what it says.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use sluicegate_config::{Format, LoadedConfig};

/// A file that may not be there: without one, the defaults apply.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    path: Option<PathBuf>,
    format: Option<Format>,
    read: Arc<Mutex<Vec<PathBuf>>>,
}

impl Source {
    pub(crate) fn new(path: Option<PathBuf>) -> Self {
        Self { path, format: None, read: Arc::default() }
    }

    /// The same file, in this format whatever it looks like.
    pub(crate) fn in_format(self, format: Option<Format>) -> Self {
        Self { format, ..self }
    }

    /// What messages and metrics call it.
    pub(crate) fn name(&self) -> String {
        self.path.as_ref().map_or_else(|| "defaults".to_owned(), |path| path.display().to_string())
    }

    /// Reads and checks it. The error is everything that is wrong with it.
    pub(crate) fn load(&self) -> anyhow::Result<LoadedConfig> {
        let text = match &self.path {
            None => String::new(),
            Some(path) => std::fs::read_to_string(path)
                .with_context(|| format!("can't read the configuration {}", path.display()))?,
        };
        let env = |name: &str| std::env::var(name).ok();
        let loaded = match self.format {
            None => sluicegate_config::load(&self.name(), &text, &env),
            Some(format) => sluicegate_config::load_from(format, &self.name(), &text, &env),
        };
        let mut loaded = loaded.map_err(|diagnostics| anyhow::anyhow!("{diagnostics}"))?;
        let prices = loaded.config.prices.file.clone();
        if let Some(path) = &prices {
            let named = || format!("prices.file {}", path.display());
            let text = std::fs::read_to_string(path).with_context(named)?;
            loaded.config.import_prices(&text).with_context(named)?;
        }
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        *read = self.path.iter().cloned().chain(prices).collect();
        Ok(loaded)
    }

    /// The files that the configuration was last read from.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
