//! [`Finding`]: the result of one check.

use serde_json::json;

/// The result of one check.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    /// Name of the check, such as `port`.
    check: &'static str,
    /// The state that was found.
    message: String,
    /// The step that solves the problem.
    remedy: Option<String>,
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    /// As it should be.
    Ok,
    /// The service runs, but may lose data or precision.
    Warning,
    /// The service does not start, or denies requests.
    Problem,
}

impl Finding {
    pub(super) fn ok(check: &'static str, message: impl Into<String>) -> Self {
        Self { severity: Severity::Ok, check, message: message.into(), remedy: None }
    }

    pub(super) fn warning(
        check: &'static str,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let (message, remedy) = (message.into(), Some(remedy.into()));
        Self { severity: Severity::Warning, check, message, remedy }
    }

    pub(super) fn problem(
        check: &'static str,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        let (message, remedy) = (message.into(), Some(remedy.into()));
        Self { severity: Severity::Problem, check, message, remedy }
    }

    /// Formats the finding for a person, with the remedy on a second line.
    pub(super) fn line(&self) -> String {
        let (colour, word) = match self.severity {
            Severity::Ok => ("32", "ok"),
            Severity::Warning => ("33", "warning"),
            Severity::Problem => ("31", "problem"),
        };
        let Self { check, message, .. } = self;
        let mut line = format!("\x1b[{colour}m{word:<8}\x1b[0m {check:<14} {message}");
        if let Some(remedy) = &self.remedy {
            line += &format!("\n{:24}{remedy}", "");
        }
        line
    }

    /// Formats the finding as one line of JSON.
    pub(super) fn json(&self) -> String {
        let result = match self.severity {
            Severity::Ok => "ok",
            Severity::Warning => "warning",
            Severity::Problem => "problem",
        };
        let Self { check, message, remedy, .. } = self;
        json!({ "check": check, "result": result, "message": message, "remedy": remedy })
            .to_string()
    }
}
