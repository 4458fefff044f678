//! Locates and loads the configuration file and the price file that it names.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use sluicegate_config::{Format, LoadedConfig};

/// The source of the configuration: a file, or the built-in defaults if there is none.
#[derive(Clone, Debug)]
pub(crate) struct ConfigSource {
    path: Option<PathBuf>,
    format: Option<Format>,
    read: Arc<Mutex<Vec<PathBuf>>>,
}

impl ConfigSource {
    pub(crate) fn new(path: Option<PathBuf>) -> Self {
        Self { path, format: None, read: Arc::default() }
    }

    /// Sets the format, instead of detecting it from the content.
    pub(crate) fn in_format(self, format: Option<Format>) -> Self {
        Self { format, ..self }
    }

    /// Returns the name for messages and metrics: the path, or `defaults`.
    pub(crate) fn name(&self) -> String {
        self.path.as_ref().map_or_else(|| "defaults".to_owned(), |path| path.display().to_string())
    }

    /// Loads and validates the configuration. The error lists all problems.
    pub(crate) fn load(&self) -> anyhow::Result<LoadedConfig> {
        let env = |name: &str| std::env::var(name).ok();
        let Some(path) = &self.path else { return Ok(sluicegate_config::load_defaults(&env)?) };
        let text = std::fs::read_to_string(path).with_context(|| {
            format!(
                "can't read the configuration file {} (`sluicegate init` writes one)",
                path.display()
            )
        })?;
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

    /// Returns the files that the configuration was last loaded from.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
