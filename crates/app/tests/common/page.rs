//! Pages of the documentation: reads the commands, JSON blocks, links and headings of a page, and
//! runs the commands.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

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
    /// Blocks marked as `json`, with the line at which each begins.
    pub(crate) json: Vec<(usize, String)>,
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
        if kind == "json" && !comment.starts_with("excerpt: ") {
            self.json.push((line, block.join("\n")));
        }
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

/// Parses the JSON values of a block, one after the other. `…` outside of a string stands for
/// members that the page leaves out.
pub(crate) fn parse_json(text: &str) -> Result<Vec<Value>, serde_json::Error> {
    let (mut json, mut in_string, mut is_escaped, mut drops_comma) =
        (String::new(), false, false, false);
    for c in text.chars() {
        if in_string {
            in_string = c != '"' || is_escaped;
            is_escaped = c == '\\' && !is_escaped;
        } else if c == '…' {
            // One of the commas around the members goes with them.
            json.truncate(json.trim_end().len());
            drops_comma = !json.ends_with(',');
            if !drops_comma {
                json.pop();
            }
            continue;
        } else if c == ',' && drops_comma {
            drops_comma = false;
            continue;
        } else if !c.is_whitespace() {
            drops_comma = false;
            in_string = c == '"';
        }
        json.push(c);
    }
    serde_json::Deserializer::from_str(&json).into_iter().collect()
}

/// Returns the lines of a page outside of code blocks and comments, with their numbers.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let (mut found, mut end) = (Vec::new(), None);
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        match end {
            Some(mark) if trimmed.ends_with(mark) => end = None,
            Some(_) => {}
            None if trimmed.starts_with("```") => end = Some("```"),
            None if trimmed.starts_with("<!--") && trimmed.ends_with("-->") => {}
            None if trimmed.starts_with("<!--") => end = Some("-->"),
            None => found.push((number + 1, line)),
        }
    }
    found
}

/// Returns the targets of the links of a page, with their lines.
pub(crate) fn links(text: &str) -> Vec<(usize, String)> {
    let (mut links, mut in_code) = (Vec::new(), false);
    for (number, line) in prose(text) {
        // Inline code may continue on the next line, but ends with its paragraph.
        in_code &= !line.is_empty();
        for (part_number, part) in line.split('`').enumerate() {
            in_code ^= part_number > 0;
            if in_code {
                continue;
            }
            let targets = part.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
            links.extend(targets.map(|target| (number, target.to_owned())));
        }
        let definition = line.strip_prefix('[').and_then(|line| line.split_once("]: "));
        links.extend(definition.map(|(_, target)| (number, target.trim().to_owned())));
    }
    links
}

/// Returns the anchors of the headings of a page, by the rules of GitHub and mdBook.
pub(crate) fn anchors(text: &str) -> BTreeSet<String> {
    let (mut anchors, mut uses) = (BTreeSet::new(), BTreeMap::new());
    for (_, line) in prose(text) {
        let heading = line.trim_start_matches('#');
        if !(1..=6).contains(&(line.len() - heading.len())) || !heading.starts_with(' ') {
            continue;
        }
        let anchor = anchor(heading.trim());
        let count: &mut usize = uses.entry(anchor.clone()).or_default();
        anchors.insert(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
        *count += 1;
    }
    anchors
}

/// Returns the anchor of the first heading with this text: lower case, without punctuation, with
/// hyphens for spaces.
fn anchor(heading: &str) -> String {
    let mut parts = heading.split("](");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    // The target of a link is not shown.
    parts.for_each(|rest| shown += rest.split_once(')').map_or("", |(_, rest)| rest));
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, '-' | '_' | ' ');
    let hyphenated = |c| if c == ' ' { '-' } else { c };
    shown.to_lowercase().chars().filter(kept).map(hyphenated).collect()
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
