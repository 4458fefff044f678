//! [`CommandHandler`]: runs a program for each job. The message is its standard input, and its
//! standard output is the result. No shell is used, and no part of a message becomes an argument.
//!
//! | exit code | outcome of the job |
//! |---|---|
//! | 0 | done; standard output is the result |
//! | 65 (`EX_DATAERR`) | dead-lettered at once: the message is invalid |
//! | 75 (`EX_TEMPFAIL`), any other code, or a signal | retried |

mod child;

use std::ffi::OsString;
use std::process::{ExitStatus, Stdio};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde::de::IgnoredAny;
use sluicegate_config::CommandOptions;
use sluicegate_http::upstream::{SecretError, Secrets, read_secret};
use sluicegate_service::trace::{self, TraceContext};
use tokio::process::Command;

use self::child::CommandResult;
use super::{FailureKind, Handler, HandlerResult, Job, JobFailure, JobSuccess, Output, excerpt};

/// Exit code for an invalid message (`sysexits.h`).
const EX_DATAERR: i32 = 65;
/// Environment variables that a program inherits. No others, because the environment of this
/// process contains secrets.
const INHERITED: [&str; 9] =
    ["PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR"];

/// A handler that runs a program for each job.
#[derive(Debug)]
pub struct CommandHandler {
    options: CommandOptions,
    env: Vec<(OsString, OsString)>,
    /// Secrets to remove from its error output.
    secrets: Secrets,
}

impl CommandHandler {
    /// Creates the handler and reads the environment variables, also those that are stored in
    /// files.
    pub fn new(options: CommandOptions) -> Result<Self, SecretError> {
        let inherited = INHERITED.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
        let mut env: Vec<_> = inherited.map(|(name, value)| (name.into(), value)).collect();
        let mut secrets = Secrets::default();
        for (name, secret) in &options.env {
            let text = read_secret(secret)?;
            secrets.add(&text);
            env.push((name.into(), text.into()));
        }
        Ok(Self { options, env, secrets })
    }

    async fn run(&self, job: &Job) -> Result<JobSuccess, JobFailure> {
        let program = &self.options.program;
        let mut command = Command::new(program);
        command.args(&self.options.args).env_clear().envs(self.env.iter().map(|(n, v)| (n, v)));
        command.envs(about(job)?);
        if let Some(dir) = &self.options.dir {
            command.current_dir(dir);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let limit = self.options.output_limit;
        if job.is_late() {
            return Err(JobFailure::late());
        }
        let result = child::run(command, &job.message.body, limit.as_usize()).await;
        let CommandResult { status, output, stderr } = result.map_err(|error| {
            let message =
                format!("can't run {program}: {error}: check that it exists and is executable");
            JobFailure::transient(message).caused_by(&error)
        })?;
        let failure = match (output, status.success()) {
            (None, _) => {
                let max = limit.0;
                let message =
                    format!("the output of {program} exceeds {max} bytes: raise output_limit");
                JobFailure::permanent(message)
            }
            (Some(output), true) => {
                return Ok(JobSuccess { result: Some(typed(output)), ..JobSuccess::default() });
            }
            (Some(_), false) => self.failed(status),
        };
        Err(self.with_stderr(failure, &stderr))
    }

    fn failed(&self, status: ExitStatus) -> JobFailure {
        let kind = match status.code() {
            Some(EX_DATAERR) => FailureKind::Permanent,
            _ => FailureKind::Transient,
        };
        // Shows "exit status: 3", or the signal.
        let message = format!("{} failed with {status}", self.options.program);
        JobFailure { kind, ..JobFailure::transient(message) }
    }

    /// Adds the end of standard error to a failure.
    fn with_stderr(&self, mut failure: JobFailure, stderr: &[u8]) -> JobFailure {
        failure.response = excerpt::end(stderr, &self.secrets);
        // A stack trace is among the last lines of standard error.
        failure
            .causes
            .extend(failure.response.iter().map(|text| format!("standard error: {text}")));
        let last = failure.response.as_deref().and_then(|text| text.lines().next_back());
        if let Some(last) = last {
            failure.message = format!("{}: {last}", failure.message);
        }
        failure
    }
}

impl Handler for CommandHandler {
    fn handle<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, HandlerResult> {
        Box::pin(async move {
            let outcome = self.run(job).await;
            HandlerResult { outcome, rate_limit_info: None, usage: None }
        })
    }
}

/// Returns the environment variables that describe the job.
fn about(job: &Job) -> Result<Vec<(&'static str, String)>, JobFailure> {
    let mut about = vec![
        ("SLUICEGATE_JOB_ID", job.key().to_owned()),
        ("SLUICEGATE_JOB_ATTEMPT", job.message.meta.attempt.to_string()),
        ("SLUICEGATE_JOB_PROVIDER", job.provider.clone()),
    ];
    about.extend(job.message.kind.clone().map(|kind| ("SLUICEGATE_JOB_TYPE", kind)));
    // The names that tools of OpenTelemetry read.
    let context = trace::current();
    about.extend(context.iter().flat_map(TraceContext::fields).map(|(name, value)| match name {
        "traceparent" => ("TRACEPARENT", value),
        _ => ("TRACESTATE", value),
    }));
    match about.iter().find(|(_, value)| value.contains('\0')) {
        Some((name, _)) => Err(JobFailure::permanent(format!("{name} contains a NUL byte"))),
        None => Ok(about),
    }
}

/// Returns the output of a program with its guessed content type.
fn typed(output: Bytes) -> Output {
    let content_type = if serde_json::from_slice::<IgnoredAny>(&output).is_ok() {
        "application/json"
    } else if std::str::from_utf8(&output).is_ok() {
        "text/plain; charset=utf-8"
    } else {
        "application/octet-stream"
    };
    Output { body: output, content_type: Some(content_type.to_owned()) }
}
