//! Rules for single lines and for the length of a file.
//!
//! Words that a rule searches are spelled with `concat!`, so that the rules pass on this file too.

use super::Finding;

const LINES_MAX: usize = 800;

const UNFINISHED: [&str; 2] = [concat!("TO", "DO"), concat!("FIX", "ME")];
const PLACEHOLDERS: [&str; 2] = [concat!("todo", "!("), concat!("unimplemented", "!(")];
const IGNORED: &str = concat!("#[", "ignore");
const CLOCKS: [&str; 2] = ["SystemTime::now", "Instant::now"];
const SLEEP: &str = "thread::sleep";
const DOUBLED_KEYS: [&str; 2] = [concat!("%", "message"), concat!("?", "message")];
const MACHINE_PATHS: [&str; 4] =
    [concat!("/", "work/"), concat!("/", "root/"), concat!("/", "home/"), concat!("/", "Users/")];

pub(super) fn check(path: &str, text: &str) -> Vec<Finding> {
    let rules = [clock_reads, unfinished, sleeping_tests, length, machine_paths, doubled_log_keys];
    rules.iter().flat_map(|rule| rule(path, text)).collect()
}

/// Finds clock reads outside of `clock.rs`: time is an argument.
fn clock_reads(path: &str, text: &str) -> Vec<Finding> {
    let exempt = path.starts_with("xtask/") || path.starts_with("bench/") || is_clock(path);
    if exempt || !is_rust(path) {
        return Vec::new();
    }
    lines_where(path, text, "take `now` as an argument, or read it in clock.rs", |line| {
        first_of(&CLOCKS, line).map(|call| format!("{call} outside of clock.rs"))
    })
}

/// Finds unfinished work that names no issue.
fn unfinished(path: &str, text: &str) -> Vec<Finding> {
    if path.ends_with(".md") {
        return Vec::new();
    }
    let mut findings = lines_where(path, text, "do it, or name its issue as #<number>", |line| {
        let word = UNFINISHED.iter().find(|word| has_word(line, word))?;
        (!names_issue(line)).then(|| format!("{word} without an issue"))
    });
    if is_rust(path) {
        findings.extend(lines_where(path, text, "write the code", |line| {
            first_of(&PLACEHOLDERS, line).map(|call| format!("{call}…) is a placeholder"))
        }));
        let remedy = "make it pass, or delete it: a test that never runs proves nothing";
        findings.extend(lines_where(path, text, remedy, |line| {
            line.contains(IGNORED).then(|| "ignored test".to_owned())
        }));
    }
    findings
}

/// Finds tests that sleep: they are slow and flaky. Tests advance an injected clock instead.
fn sleeping_tests(path: &str, text: &str) -> Vec<Finding> {
    if !is_rust(path) || !path.starts_with("crates/") {
        return Vec::new();
    }
    let mut in_tests = path.contains("/tests/") || path.ends_with("/tests.rs");
    lines_where(path, text, "advance the test clock, or wait for the event itself", |line| {
        // Unit tests come last in a file.
        in_tests |= line.trim_start().starts_with("#[cfg(test)]");
        (in_tests && line.contains(SLEEP)).then(|| format!("{SLEEP} in a test"))
    })
}

/// Finds files that are too long.
fn length(path: &str, text: &str) -> Vec<Finding> {
    let lines = text.lines().count();
    if !is_rust(path) || path.starts_with("bench/") || lines <= LINES_MAX {
        return Vec::new();
    }
    let what = format!("{lines} lines, more than {LINES_MAX}");
    vec![Finding::new(path, LINES_MAX + 1, what, "split it by what it is about")]
}

/// Finds paths of one machine: the repository has to work wherever it is cloned.
fn machine_paths(path: &str, text: &str) -> Vec<Finding> {
    lines_where(path, text, "use a path relative to the repository", |line| {
        let place = MACHINE_PATHS.iter().find(|place| {
            // `docs/work/` and `example.com/home/` are not absolute.
            line.match_indices(**place).any(|(at, _)| {
                let before = line[..at].chars().next_back();
                before.is_none_or(|c| !c.is_alphanumeric() && !"._-~*})>".contains(c))
            })
        })?;
        Some(format!("path {place}… of one machine"))
    })
}

/// Finds log fields called `message`: in JSON logs that key is the text of the event.
fn doubled_log_keys(path: &str, text: &str) -> Vec<Finding> {
    if !is_rust(path) {
        return Vec::new();
    }
    lines_where(path, text, "give the field another name, such as id", |line| {
        let is_field = |key: &&str| {
            line.match_indices(*key).any(|(at, _)| {
                let (before, after) = (line[..at].trim_end(), &line[at + key.len()..]);
                let alone = before.is_empty() || before.ends_with(['(', ',']);
                alone && after.starts_with([',', ')'])
            })
        };
        DOUBLED_KEYS.iter().any(is_field).then(|| "a log field called message".to_owned())
    })
}

/// Returns a finding for every line in which `what` sees something wrong.
fn lines_where(
    path: &str,
    text: &str,
    remedy: &str,
    mut what: impl FnMut(&str) -> Option<String>,
) -> Vec<Finding> {
    let numbered = (1..).zip(text.lines());
    numbered
        .filter_map(|(number, line)| Some(Finding::new(path, number, what(line)?, remedy)))
        .collect()
}

fn is_rust(path: &str) -> bool {
    path.ends_with(".rs")
}

fn is_clock(path: &str) -> bool {
    path == "clock.rs" || path.ends_with("/clock.rs")
}

fn first_of<'a>(needles: &[&'a str], line: &str) -> Option<&'a str> {
    needles.iter().find(|needle| line.contains(**needle)).copied()
}

fn has_word(line: &str, word: &str) -> bool {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|part| part == word)
}

fn names_issue(line: &str) -> bool {
    line.split('#').skip(1).any(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks `text` as the file `path` and compares `line what` of each finding.
    ///
    #[track_caller]
    fn expect(path: &str, text: &str, expected: &[&str]) {
        let findings = check(path, text);
        let found: Vec<_> =
            findings.iter().map(|finding| format!("{} {}", finding.line, finding.what)).collect();
        assert_eq!(found, expected, "{path}: {text}");
    }

    #[test]
    fn only_a_clock_reads_the_time() {
        let text = "fn f() {\n    let now = std::time::Instant::now();\n}";
        expect("crates/core/src/limiter.rs", text, &["2 Instant::now outside of clock.rs"]);
        let wall = "SystemTime::now()";
        expect("examples/a.rs", wall, &["1 SystemTime::now outside of clock.rs"]);
        for exempt in ["crates/store/src/clock.rs", "xtask/src/sh.rs", "bench/src/a.rs", "a.md"] {
            expect(exempt, text, &[]);
        }
    }

    #[test]
    fn unfinished_work_names_its_issue() {
        let word = UNFINISHED[0];
        let what = format!("1 {word} without an issue");
        expect("crates/core/src/a.rs", &format!("// {word}: later"), &[&what]);
        expect("crates/store/lua/a.lua", &format!("-- {word}(me) # later"), &[&what]);
        expect("crates/core/src/a.rs", &format!("// {word} #12: later"), &[]);
        expect("crates/core/src/a.rs", &format!("const {word}S: u8 = 1;"), &[]);
        expect("docs/a.md", &format!("no {word} here"), &[]);
    }

    #[test]
    fn placeholders_and_ignored_tests_are_found() {
        for call in PLACEHOLDERS {
            let text = format!("fn f() {{ {call}) }}");
            expect("crates/core/src/a.rs", &text, &[&format!("1 {call}…) is a placeholder")]);
        }
        let text = format!("#[test]\n{IGNORED} = \"slow\"]\nfn f() {{}}");
        expect("crates/core/tests/a.rs", &text, &["2 ignored test"]);
    }

    #[test]
    fn tests_do_not_sleep() {
        let sleep = "std::thread::sleep(pause);";
        let found = "1 thread::sleep in a test";
        expect("crates/store/tests/a.rs", sleep, &[found]);
        expect("crates/store/src/memory/tests.rs", sleep, &[found]);
        expect("crates/testkit/src/launch.rs", sleep, &[]);
        let unit = format!("fn wait() {{ {sleep} }}\n#[cfg(test)]\nmod tests {{ {sleep} }}");
        expect("crates/store/src/a.rs", &unit, &["3 thread::sleep in a test"]);
    }

    #[test]
    fn long_files_are_found() {
        let text = "\n".repeat(LINES_MAX);
        expect("crates/core/src/a.rs", &text, &[]);
        let text = text + "\n";
        expect("crates/core/src/a.rs", &text, &["801 801 lines, more than 800"]);
        expect("bench/src/a.rs", &text, &[]);
    }

    #[test]
    fn log_lines_with_the_key_message_twice_are_found() {
        let field = concat!("%", "message");
        let text = format!("fn f() {{\n    warn!({field}, \"it failed\");\n}}");
        expect("crates/a/src/lib.rs", &text, &["2 a log field called message"]);
        let text = text.replace(field, concat!("id = %", "message"));
        expect("crates/a/src/lib.rs", &text, &[]);
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        for place in MACHINE_PATHS {
            let what = format!("1 path {place}… of one machine");
            expect("README.md", &format!("run {place}a/run"), &[&what]);
            expect("deploy/a.yaml", &format!("dir: \"{place}a\""), &[&what]);
            expect("README.md", &format!("file://{place}a"), &[&what]);
            expect("README.md", &format!("see docs{place}a.md, ${{ROOT}}{place}"), &[]);
        }
    }
}
