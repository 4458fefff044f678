//! The configuration file: where it is, what it says.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use sluicegate_config::Loaded;

/// A file that may not be there: without one, the defaults apply.
#[derive(Clone, Debug)]
pub(crate) struct Source(Option<PathBuf>);

impl Source {
    pub(crate) fn new(path: Option<PathBuf>) -> Self {
        Self(path)
    }

    /// The file, if there is one.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.0.as_deref()
    }

    /// What messages and metrics call it.
    pub(crate) fn name(&self) -> String {
        self.0.as_ref().map_or_else(|| "defaults".to_owned(), |path| path.display().to_string())
    }

    /// Reads and checks it. The error is everything that is wrong with it.
    pub(crate) fn load(&self) -> anyhow::Result<Loaded> {
        let text = match &self.0 {
            None => String::new(),
            Some(path) => std::fs::read_to_string(path)
                .with_context(|| format!("can't read the configuration {}", path.display()))?,
        };
        let env = |name: &str| std::env::var(name).ok();
        sluicegate_config::load(&self.name(), &text, &env)
            .map_err(|diagnostics| anyhow::anyhow!("{diagnostics}"))
    }
}
