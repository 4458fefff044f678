//! A program that works on a job: the message comes on its standard input, what it prints is the
//! result. There is no shell, and nothing of a message is an argument.
//!
//! | it ends with | the job |
//! |---|---|
//! | 0 | done; standard output is the result |
//! | 65 (`EX_DATAERR`) | dead letter at once: the message is wrong |
//! | 75 (`EX_TEMPFAIL`), any other code, or a signal | tried again |

mod child;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde::de::IgnoredAny;
use sluicegate_http::upstream::{Secret, SecretError, Secrets};
use tokio::process::Command;

use self::child::Ran;
use super::{Done, Failure, FailureKind, Handled, Handler, Job, Output, excerpt};

/// The message is wrong (`sysexits.h`).
const EX_DATAERR: i32 = 65;
/// What a program may know of where it runs. Nothing else: our own environment holds secrets.
const INHERITED: [&str; 9] =
    ["PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR"];

/// What is run.
#[derive(Clone, Debug)]
pub struct CommandOptions {
    /// The program: a path, or a name to look for in `PATH`.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Where it runs.
    pub dir: Option<PathBuf>,
    /// Variables that it is given besides those of the job.
    pub env: Vec<(String, Secret)>,
    /// The most that it may print.
    pub output_bytes_max: usize,
}

/// Runs a program for each job.
#[derive(Debug)]
pub struct CommandHandler {
    options: CommandOptions,
    env: Vec<(OsString, OsString)>,
    /// What its complaints may repeat and nobody should read.
    secrets: Secrets,
}

impl CommandHandler {
    /// Reads the variables, whichever files they are in.
    pub fn new(options: CommandOptions) -> Result<Self, SecretError> {
        let inherited = INHERITED.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
        let mut env: Vec<_> = inherited.map(|(name, value)| (name.into(), value)).collect();
        let mut secrets = Secrets::default();
        for (name, secret) in &options.env {
            let text = secret.read()?;
            secrets.add(&text);
            env.push((name.into(), text.into()));
        }
        Ok(Self { options, env, secrets })
    }

    async fn run(&self, job: &Job) -> Result<Done, Failure> {
        let program = &self.options.program;
        let mut command = Command::new(program);
        command.args(&self.options.args).env_clear().envs(self.env.iter().map(|(n, v)| (n, v)));
        command.envs(about(job)?);
        if let Some(dir) = &self.options.dir {
            command.current_dir(dir);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let ran = child::run(command, &job.message.body, self.options.output_bytes_max).await;
        let Ran { status, output, complaints } = ran.map_err(|error| {
            Failure::transient(format!(
                "{program} can't be run: {error}: is it there, and may this user run it?"
            ))
        })?;
        let failure = match (output, status.success()) {
            (None, _) => {
                let max = self.options.output_bytes_max;
                let message =
                    format!("{program} printed more than {max} bytes: raise output_limit");
                Failure::permanent(message)
            }
            (Some(output), true) => {
                return Ok(Done { result: Some(typed(output)), further: Vec::new() });
            }
            (Some(_), false) => self.failed(status),
        };
        Err(self.with_complaints(failure, &complaints))
    }

    fn failed(&self, status: ExitStatus) -> Failure {
        let kind = match status.code() {
            Some(EX_DATAERR) => FailureKind::Permanent,
            _ => FailureKind::Transient,
        };
        // "exit status: 3", or the signal.
        let message = format!("{} ended with {status}", self.options.program);
        Failure { kind, message, response: None }
    }

    /// Its last words.
    fn with_complaints(&self, mut failure: Failure, complaints: &[u8]) -> Failure {
        failure.response = excerpt::end(complaints, &self.secrets);
        let last = failure.response.as_deref().and_then(|text| text.lines().next_back());
        if let Some(last) = last {
            failure.message = format!("{}: {last}", failure.message);
        }
        failure
    }
}

impl Handler for CommandHandler {
    fn handle<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, Handled> {
        Box::pin(async move { Handled { outcome: self.run(job).await, heard: None } })
    }
}

/// What a program is told of its job.
fn about(job: &Job) -> Result<Vec<(&'static str, String)>, Failure> {
    let mut about = vec![
        ("SLUICEGATE_JOB_ID", job.key().to_owned()),
        ("SLUICEGATE_JOB_ATTEMPT", job.message.meta.attempt.to_string()),
        ("SLUICEGATE_JOB_PROVIDER", job.provider.clone()),
    ];
    about.extend(job.message.kind.clone().map(|kind| ("SLUICEGATE_JOB_TYPE", kind)));
    match about.iter().find(|(_, value)| value.contains('\0')) {
        Some((name, _)) => Err(Failure::permanent(format!("{name} would have a NUL in it"))),
        None => Ok(about),
    }
}

/// What a program printed, and what it looks like.
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
