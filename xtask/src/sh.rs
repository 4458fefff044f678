//! Runs other programs. Each command is printed before it runs, so that a reader of the log can
//! repeat it by hand.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

/// Returns the command `line[0]` with the arguments `line[1..]`.
///
/// `cargo` is the cargo that runs us, because another version would rebuild everything. Variables
/// that describe our own package are removed: build scripts read them, so they would cause a
/// rebuild as well.
pub(crate) fn command(line: &[&str]) -> Command {
    let (program, args) = line.split_first().expect("a command line names a program");
    let mut command = match (*program, std::env::var_os("CARGO")) {
        ("cargo", Some(cargo)) => Command::new(cargo),
        _ => Command::new(program),
    };
    command.args(args);
    for (name, _) in std::env::vars_os() {
        let of_package =
            |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        if name.to_str().is_some_and(of_package) {
            command.env_remove(name);
        }
    }
    command
}

/// The place where a command and its output are written.
#[derive(Debug)]
pub(crate) enum Output {
    /// Our own output.
    Inherit,
    /// A file, for commands that run at the same time as others.
    File(File),
}

impl Output {
    /// Writes one line of our own.
    pub(crate) fn line(&self, text: &str) -> anyhow::Result<()> {
        match self {
            Self::Inherit => println!("{text}"),
            Self::File(file) => writeln!(&*file, "{text}")?,
        }
        Ok(())
    }

    /// Redirects both output streams of `command` to this place.
    fn attach(&self, command: &mut Command) -> anyhow::Result<()> {
        if let Self::File(file) = self {
            command.stdout(file.try_clone()?).stderr(file.try_clone()?).stdin(Stdio::null());
        }
        Ok(())
    }
}

/// Runs `line` with our own input and output. Returns true if it succeeded.
pub(crate) fn run(line: &[&str], env: &[(&str, &str)]) -> anyhow::Result<bool> {
    run_in(Path::new("."), line, env, &Output::Inherit)
}

/// Runs `line` in another folder, with its output in another place. Returns true if it succeeded.
pub(crate) fn run_in(
    folder: &Path,
    line: &[&str],
    env: &[(&str, &str)],
    output: &Output,
) -> anyhow::Result<bool> {
    let shown: Vec<String> = env.iter().map(|(name, value)| format!("{name}={value} ")).collect();
    let text = line.join(" ");
    output.line(&format!("$ {}{text}", shown.concat()))?;
    let mut command = command(line);
    command.current_dir(folder).envs(env.iter().copied());
    output.attach(&mut command)?;
    let status = command
        .status()
        .with_context(|| format!("can't start `{text}`: is {} installed?", line[0]))?;
    Ok(status.success())
}

/// Runs `line` and returns its standard output, or `None` if it failed. Its standard error is shown
/// as it comes.
pub(crate) fn run_and_read(line: &[&str]) -> anyhow::Result<Option<String>> {
    let text = line.join(" ");
    println!("$ {text}");
    let output = command(line)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("can't start `{text}`: is {} installed?", line[0]))?;
    let printed = String::from_utf8(output.stdout)
        .with_context(|| format!("`{text}` printed invalid UTF-8"))?;
    Ok(output.status.success().then_some(printed))
}

/// Runs `line` silently and returns its standard output. If it fails, the error contains its
/// standard error.
pub(crate) fn read(line: &[&str]) -> anyhow::Result<String> {
    let text = line.join(" ");
    let output = command(line)
        .output()
        .with_context(|| format!("can't start `{text}`: is {} installed?", line[0]))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{text}` failed: {}", stderr.trim());
    String::from_utf8(output.stdout).with_context(|| format!("`{text}` printed invalid UTF-8"))
}

/// Runs `work`. Returns its result and how long it took.
#[allow(clippy::disallowed_methods, reason = "prints durations; no decision depends on them")]
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let value = work();
    (value, start.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_a_command_is_returned() {
        assert_eq!(read(&["echo", "hello"]).unwrap(), "hello\n");
    }

    #[test]
    fn a_failing_command_shows_its_own_words() {
        let error = read(&["sh", "-c", "echo no such luck >&2; exit 3"]).unwrap_err();
        assert!(error.to_string().ends_with("failed: no such luck"), "{error}");
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = run(&["no-such-program", "--flag"], &[]).unwrap_err();
        assert!(error.to_string().contains("is no-such-program installed?"), "{error}");
    }
}
