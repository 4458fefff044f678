//! Pages of the documentation as shell scripts: reads the commands of a page and runs them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Words that begin a command. A block with such a line must be marked as `sh`.
const COMMANDS: [&str; 14] = [
    "sluicegate ",
    "curl ",
    "cargo ",
    "redis-cli ",
    "docker ",
    "kubectl ",
    "nginx ",
    "haproxy ",
    "npm ",
    "npx ",
    "pip ",
    "python3 ",
    "terraform ",
    "promtool ",
];

/// Returns the folder of the repository.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

/// Commands of a page and the reasons why others are not run.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Page {
    pub(crate) script: String,
    /// Number of blocks with commands that are run.
    pub(crate) blocks: usize,
    /// Reasons why other blocks are not run.
    pub(crate) skipped: Vec<String>,
}

impl Page {
    /// Reads a page. The error names a block that is not marked.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let mut page = Self::default();
        let mut comment = String::new();
        let mut lines = text.lines().enumerate();
        while let Some((number, line)) = lines.next() {
            let number = number + 1;
            if line == "<!-- test" {
                let inner = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "-->");
                inner.for_each(|line| page.script += &format!("{line}\n"));
            } else if let Some(kind) = line.strip_prefix("```") {
                let block = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
                let block: Vec<_> = block.collect();
                page.add(number, kind, &block, &comment)?;
                comment.clear();
            } else if let Some(rest) = line.strip_prefix("<!-- ") {
                rest.trim_end_matches(" -->").clone_into(&mut comment);
            } else if !line.is_empty() {
                comment.clear();
            }
        }
        Ok(page)
    }

    fn add(
        &mut self,
        line: usize,
        kind: &str,
        block: &[&str],
        comment: &str,
    ) -> Result<(), String> {
        if let Some(name) = comment.strip_prefix("file: ") {
            let text = block.join("\n");
            writeln!(self.script, "cat > {name} <<'END OF FILE'\n{text}\nEND OF FILE")
                .expect("a string takes every write");
        } else if kind != "sh" {
            let is_command = |line: &&&str| COMMANDS.iter().any(|word| line.starts_with(word));
            if let Some(command) =
                block.iter().find(is_command).filter(|_| matches!(kind, "" | "text"))
            {
                return Err(format!("line {line}: mark the block with {command:?} as sh"));
            }
        } else if let Some(reason) = comment.strip_prefix("not run: ") {
            self.skipped.push(format!("line {line}: {reason}"));
        } else {
            self.blocks += 1;
            let text = block.join("\n");
            writeln!(self.script, "echo '== line {line}'\n{text}")
                .expect("a string takes every write");
        }
        Ok(())
    }
}

/// Runs a script in a private network and process namespace, so that everything it started ends with
/// it. `bin` is the first folder in which programs are searched. The error contains output and logs.
pub(crate) fn run(name: &str, script: &str, bin: &Path) -> Result<String, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let work = folder.path().join("work");
    std::fs::create_dir(&work).expect("a folder");
    let path = folder.path().join("script");
    let script = format!("set -euo pipefail\nip link set lo up\n{script}\necho '== end'\n");
    std::fs::write(&path, script).expect("a file");
    let services = repository().join("target/services/nginx/usr/sbin");
    let path_variable = format!(
        "{}:{}:{}",
        bin.display(),
        services.display(),
        std::env::var("PATH").expect("PATH")
    );
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "900", "unshare", "--net", "--pid", "--fork", "--kill-child"]);
    command.args(["--mount-proc", "bash"]).arg(&path).current_dir(&work);
    command.env("PATH", path_variable).env("REPOSITORY", repository());
    for variable in ["SLUICEGATE_CONFIG", "SLUICEGATE_URL", "REDIS_URL", "REDIS_CLUSTER_MODE"] {
        command.env_remove(variable);
    }
    let output = command.output().expect("unshare, of the package util-linux");
    let [out, err] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    if output.status.success() && out.ends_with("== end\n") {
        return Ok(out);
    }
    let logs: String = std::fs::read_dir(&work)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .map(|path| {
            format!(
                "-- {}\n{}",
                path.display(),
                std::fs::read_to_string(path.clone()).unwrap_or_default()
            )
        })
        .collect();
    Err(format!("{name}: {}\n{out}\n{err}\n{logs}", output.status))
}
