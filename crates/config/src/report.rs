//! [`Report`]: collects errors and warnings while a configuration is read.

use crate::diagnostic::{Diagnostic, Diagnostics, Excerpt, Severity};
use crate::location::{Location, Path, Position};
use crate::source_text::SourceText;

/// Maximum number of errors, and of warnings, that are kept; further ones are only counted, so that
/// a large file of nonsense uses no more memory than its own size.
const KEPT_MAX: usize = 1_000;

/// Errors and warnings found so far.
#[derive(Debug, Default)]
pub(crate) struct Report {
    errors: Vec<Finding>,
    warnings: Vec<Finding>,
    omitted: usize,
    failures: usize,
}

/// An error or a warning.
#[derive(Debug)]
struct Finding {
    position: Position,
    path: String,
    message: String,
    remedy: Option<String>,
    excerpt: LineDisplay,
}

/// Display mode of the line that a mistake is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineDisplay {
    Shown,
    /// Only up to the end of the key at the position, which has this number of characters: the value
    /// of an unknown key may be a credential.
    UpToKey(usize),
    Hidden,
}

impl Report {
    /// Adds an error, which makes the configuration unusable.
    pub(crate) fn error(&mut self, location: &Location, message: impl Into<String>, remedy: &str) {
        self.error_at(
            location.position,
            &location.path,
            message.into(),
            remedy,
            LineDisplay::Shown,
        );
    }

    /// Adds an error at a position and a path.
    pub(crate) fn error_at(
        &mut self,
        position: Position,
        path: &Path,
        message: String,
        remedy: &str,
        excerpt: LineDisplay,
    ) {
        self.failures += 1;
        Self::push(&mut self.errors, &mut self.omitted, (position, path), message, remedy, excerpt);
    }

    /// Adds a warning about something that is probably a mistake.
    pub(crate) fn warning(
        &mut self,
        location: &Location,
        message: impl Into<String>,
        remedy: &str,
    ) {
        let at = (location.position, &location.path);
        Self::push(
            &mut self.warnings,
            &mut self.omitted,
            at,
            message.into(),
            remedy,
            LineDisplay::Shown,
        );
    }

    fn push(
        list: &mut Vec<Finding>,
        omitted: &mut usize,
        (position, path): (Position, &Path),
        message: String,
        remedy: &str,
        excerpt: LineDisplay,
    ) {
        if list.len() == KEPT_MAX {
            *omitted += 1;
            return;
        }
        let remedy = (!remedy.is_empty()).then(|| remedy.to_owned());
        list.push(Finding { position, path: path.to_string(), message, remedy, excerpt });
    }

    /// Returns true if further errors are only counted.
    pub(crate) fn is_full(&self) -> bool {
        self.errors.len() == KEPT_MAX
    }

    /// Returns the number of errors so far.
    pub(crate) fn errors(&self) -> usize {
        self.failures
    }

    /// Returns what was read, with all warnings, if there are no errors.
    pub(crate) fn finish<T>(
        self,
        source: &SourceText<'_>,
        read: Option<T>,
    ) -> Result<(T, Vec<Diagnostic>), Diagnostics> {
        let errors = self.errors.into_iter().map(|finding| (Severity::Error, finding));
        let warnings = self.warnings.into_iter().map(|finding| (Severity::Warning, finding));
        let mut list: Vec<_> = errors.chain(warnings).collect();
        // The sort is stable: of several mistakes at one position, the one found first stays first.
        list.sort_by_key(|(severity, finding)| (finding.position, *severity));
        let list: Vec<_> =
            list.into_iter().map(|(severity, finding)| render(severity, finding, source)).collect();
        match read {
            Some(read) if self.failures == 0 => Ok((read, list)),
            _ => Err(Diagnostics::new(list, self.omitted)),
        }
    }
}

fn up_to_key(excerpt: Excerpt, chars: usize) -> Excerpt {
    let shown: String = excerpt.text.chars().take(excerpt.caret + chars).collect();
    Excerpt { text: format!("{shown}: …"), ..excerpt }
}

fn render(severity: Severity, finding: Finding, source: &SourceText<'_>) -> Diagnostic {
    Diagnostic {
        source: source.name(),
        severity,
        line: finding.position.line,
        column: finding.position.column,
        path: finding.path,
        message: finding.message,
        remedy: finding.remedy,
        excerpt: match finding.excerpt {
            LineDisplay::Shown => source.excerpt(finding.position),
            LineDisplay::UpToKey(chars) => {
                source.excerpt(finding.position).map(|excerpt| up_to_key(excerpt, chars))
            }
            LineDisplay::Hidden => None,
        },
    }
}
