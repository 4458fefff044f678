//! Loads a test file: the configuration it tests, and its test cases.
//!
//! A file without `config` contains the configuration itself: `limits` and related keys beside
//! `tests`. That part is parsed by the configuration loader.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use sluicegate_config::{Config, MapKey, Node, Position};
use sluicegate_core::{Group, Timestamp};

use super::problems::Problems;
use super::step::{Case, StepReader};
use super::yaml::{Fields, ReadNode as _};

/// Keys of a test file.
const OURS: [&str; 4] = ["config", "env", "start", "tests"];
/// Keys of a configuration that a test file may contain.
const INLINE: [&str; 4] = ["limits", "dimensions", "booking", "prices"];
/// Default start time: a Monday at midnight, the start of a week, a day and an hour.
const START: &str = "2026-01-05T00:00:00Z";

/// A loaded test file.
pub(super) struct File {
    pub(super) name: String,
    pub(super) config: Config,
    pub(super) cases: Vec<Case>,
}

impl File {
    /// Loads a test file and its configuration. The error lists all problems.
    pub(super) fn load(path: &Path) -> anyhow::Result<Self> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("can't read the test file {name}"))?;
        let mut problems = Problems::new(&name, &text);
        let root = sluicegate_config::parse_yaml(&name, &text)?;
        let outline = FileOutline::read(&root, &mut problems);
        let Some(outline) = outline.filter(|_| problems.is_empty()) else {
            bail!("{problems}");
        };
        let config = outline.config(path, &text, &mut problems)?;
        let cases = outline.cases(config.groups(), &mut problems);
        if !problems.is_empty() {
            bail!("{problems}");
        }
        Ok(Self { name, config, cases })
    }
}

/// The top level of a test file, before its tests are parsed.
struct FileOutline<'n> {
    fields: Fields<'n>,
    config: Option<(Position, PathBuf)>,
    env: HashMap<String, String>,
    start: Timestamp,
    tests: &'n [Node],
}

impl<'n> FileOutline<'n> {
    fn read(root: &'n Node, problems: &mut Problems<'_>) -> Option<Self> {
        let known: Vec<_> = OURS.into_iter().chain(INLINE).collect();
        let fields = root.fields(&known, problems)?;
        let config = fields.get("config").and_then(|node| {
            let path = node.text("write the path of a configuration file", problems)?;
            Some((node.at, PathBuf::from(path)))
        });
        let inline = INLINE.iter().find_map(|key| fields.entry(key));
        if let (Some(_), Some((at, _))) = (&config, inline) {
            problems.add(at, "this can't be combined with config", "remove it, or remove config");
        }
        let form = "write a list of tests, each with a name and steps";
        let tests = match fields.get("tests") {
            Some(node) => node.list(form, problems)?,
            None => &[],
        };
        if tests.is_empty() {
            problems.add(fields.at, "there are no tests in this file", form);
        }
        let start = instant(&fields, problems).unwrap_or_else(default_start);
        Some(Self { fields, config, env: env(&fields, problems), start, tests })
    }

    fn config(
        &self,
        path: &Path,
        text: &str,
        problems: &mut Problems<'_>,
    ) -> anyhow::Result<Config> {
        let look_up = |name: &str| self.env.get(name).cloned();
        let (name, text) = match &self.config {
            Some((at, config)) => {
                let folder = path.parent().unwrap_or(Path::new(""));
                let path = folder.join(config);
                match std::fs::read_to_string(&path) {
                    Ok(text) => (path.display().to_string(), text),
                    Err(error) => {
                        let remedy = "the path is relative to this file";
                        problems.add(
                            *at,
                            format!("can't read {}: {error}", path.display()),
                            remedy,
                        );
                        bail!("{problems}");
                    }
                }
            }
            None => {
                let Some(text) = only_configuration(text, self.fields.entries) else {
                    let remedy =
                        "write each top-level key on a line of its own, or use config: FILE";
                    problems.add(
                        self.fields.at,
                        "the configuration can't be separated from the tests",
                        remedy,
                    );
                    bail!("{problems}");
                };
                (path.display().to_string(), text)
            }
        };
        let config = sluicegate_config::load(&name, &text, &look_up)?.config;
        if !config.enabled {
            bail!("{name}: limits are disabled: set the variable of `enabled` in `env`");
        }
        Ok(config)
    }

    fn cases(&self, groups: &[Group], problems: &mut Problems<'_>) -> Vec<Case> {
        self.tests.iter().filter_map(|node| self.case(node, groups, problems)).collect()
    }

    fn case(&self, node: &Node, groups: &[Group], problems: &mut Problems<'_>) -> Option<Case> {
        let fields = node.fields(&["name", "start", "steps"], problems)?;
        let name = match fields.get("name") {
            Some(name) => name.text("write a name that says what the test shows", problems)?,
            None => {
                problems.add(fields.at, "this test has no name", "write name: what the test shows");
                ""
            }
        };
        let form = "write a list of steps, such as - send: {userId: u1, modelId: gpt4}";
        let steps = match fields.get("steps") {
            Some(steps) => steps.list(form, problems)?,
            None => &[],
        };
        if steps.is_empty() {
            problems.add(fields.at, "this test has no steps", form);
        }
        let start = instant(&fields, problems).unwrap_or(self.start);
        let mut reader = StepReader::new(groups, problems);
        let steps = steps.iter().filter_map(|step| reader.step(step)).collect();
        Some(Case { name: name.to_owned(), start, steps })
    }
}

fn env(fields: &Fields<'_>, problems: &mut Problems<'_>) -> HashMap<String, String> {
    let form = "write a map of variable names and values";
    let entries = fields.get("env").and_then(|node| node.entries(form, problems));
    let text = |(key, node): &(MapKey, Node)| {
        node.text("write a value", problems).map(|value| (key.text.clone(), value.to_owned()))
    };
    entries.unwrap_or_default().iter().filter_map(text).collect()
}

fn instant(fields: &Fields<'_>, problems: &mut Problems<'_>) -> Option<Timestamp> {
    let form = format!("write a time such as {START}");
    let at: jiff::Timestamp = fields.parse("start", &form, problems)?;
    timestamp(at).or_else(|| {
        let at = fields.entry("start").map_or(fields.at, |(at, _)| at);
        problems.add(at, "the start is before 1970", &form);
        None
    })
}

fn default_start() -> Timestamp {
    let at = START.parse().ok().and_then(timestamp);
    at.expect("the default start is a time after 1970")
}

fn timestamp(at: jiff::Timestamp) -> Option<Timestamp> {
    u64::try_from(at.as_microsecond()).ok().map(Timestamp::from_micros)
}

/// Returns the text with all lines blanked that are not part of the configuration, so that
/// messages about the rest have the right line. `None` if keys share lines.
fn only_configuration(text: &str, entries: &[(MapKey, Node)]) -> Option<String> {
    let in_lines = entries.windows(2).all(|pair| pair[0].0.at.line < pair[1].0.at.line);
    if !in_lines || entries.iter().any(|(key, _)| key.at.column != 1) {
        return None;
    }
    let mut kept = String::new();
    for (number, line) in (1..).zip(text.lines()) {
        let part = entries.iter().rfind(|(key, _)| key.at.line <= number);
        if part.is_some_and(|(key, _)| INLINE.contains(&key.text.as_str())) {
            kept.push_str(line);
        }
        kept.push('\n');
    }
    Some(kept)
}
