//! What was found so far.

use crate::config::{Config, Loaded};
use crate::diagnostic::{Diagnostic, Diagnostics, Severity};
use crate::place::{Mark, Path, Place};
use crate::source::Source;

/// The most mistakes of one severity that are kept: beyond that they are only counted, so that a
/// large file of nonsense costs no more memory than it has.
const KEPT_MAX: usize = 1_000;

/// Collects mistakes until all of a file are known.
#[derive(Debug, Default)]
pub(crate) struct Report {
    errors: Vec<Finding>,
    warnings: Vec<Finding>,
    omitted: usize,
    failures: usize,
}

#[derive(Debug)]
struct Finding {
    mark: Mark,
    path: String,
    message: String,
    remedy: Option<String>,
    excerpt: Show,
}

/// Whether a finding may show its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Show {
    Line,
    Nothing,
}

impl Report {
    /// Something that makes the configuration unusable.
    pub(crate) fn error(&mut self, place: &Place, message: impl Into<String>, remedy: &str) {
        self.error_at(place.mark, &place.path, message.into(), remedy, Show::Line);
    }

    /// The same, by the parts of a place.
    pub(crate) fn error_at(
        &mut self,
        mark: Mark,
        path: &Path,
        message: String,
        remedy: &str,
        excerpt: Show,
    ) {
        self.failures += 1;
        Self::push(&mut self.errors, &mut self.omitted, (mark, path), message, remedy, excerpt);
    }

    /// Something that is probably not meant.
    pub(crate) fn warning(&mut self, place: &Place, message: impl Into<String>, remedy: &str) {
        let at = (place.mark, &place.path);
        Self::push(&mut self.warnings, &mut self.omitted, at, message.into(), remedy, Show::Line);
    }

    fn push(
        list: &mut Vec<Finding>,
        omitted: &mut usize,
        (mark, path): (Mark, &Path),
        message: String,
        remedy: &str,
        excerpt: Show,
    ) {
        if list.len() == KEPT_MAX {
            *omitted += 1;
            return;
        }
        let remedy = (!remedy.is_empty()).then(|| remedy.to_owned());
        list.push(Finding { mark, path: path.to_string(), message, remedy, excerpt });
    }

    /// Whether further errors are only counted.
    pub(crate) fn is_full(&self) -> bool {
        self.errors.len() == KEPT_MAX
    }

    /// How many errors there were so far.
    pub(crate) fn errors(&self) -> usize {
        self.failures
    }

    /// The configuration if nothing is wrong with it.
    pub(crate) fn finish(
        self,
        source: &Source<'_>,
        config: Option<Config>,
    ) -> Result<Loaded, Diagnostics> {
        let errors = self.errors.into_iter().map(|finding| (Severity::Error, finding));
        let warnings = self.warnings.into_iter().map(|finding| (Severity::Warning, finding));
        let mut list: Vec<_> = errors.chain(warnings).collect();
        // Stable: of several findings at one place the first found stays first.
        list.sort_by_key(|(severity, finding)| (finding.mark, *severity));
        let list: Vec<_> =
            list.into_iter().map(|(severity, finding)| render(severity, finding, source)).collect();
        match config {
            Some(config) if self.failures == 0 => Ok(Loaded { config, warnings: list }),
            _ => Err(Diagnostics::new(list, self.omitted)),
        }
    }
}

fn render(severity: Severity, finding: Finding, source: &Source<'_>) -> Diagnostic {
    Diagnostic {
        source: source.name(),
        severity,
        line: finding.mark.line,
        column: finding.mark.column,
        path: finding.path,
        message: finding.message,
        remedy: finding.remedy,
        excerpt: (finding.excerpt == Show::Line).then(|| source.excerpt(finding.mark)).flatten(),
    }
}
