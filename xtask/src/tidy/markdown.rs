//! Rule for Markdown: a link into the repository leads to an existing file or folder.

use pulldown_cmark::{Event, Parser, Tag};

use super::{Files, Finding};

pub(super) fn broken_links(path: &str, text: &str, files: &Files) -> Vec<Finding> {
    if !path.ends_with(".md") {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (event, range) in Parser::new(text).into_offset_iter() {
        let (Event::Start(Tag::Link { dest_url, .. }) | Event::Start(Tag::Image { dest_url, .. })) =
            event
        else {
            continue;
        };
        // A colon means a URL scheme: links to the web are not checked.
        let target = dest_url.split(['#', '?']).next().unwrap_or_default();
        if target.is_empty() || target.contains(':') || leads_to_a_file(path, target, files) {
            continue;
        }
        let line = 1 + text[..range.start].matches('\n').count();
        let what = format!("link to {target}, which does not exist");
        findings.push(Finding::new(path, line, what, "correct the path or add the file"));
    }
    findings
}

/// Returns true if `target`, as written in the file `from`, is a file or a folder of the
/// repository.
fn leads_to_a_file(from: &str, target: &str, files: &Files) -> bool {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    if target.starts_with('/') {
        parts.clear();
    }
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.pop().is_none() => return false,
            ".." => {}
            name => parts.push(name),
        }
    }
    let file = parts.join("/");
    let folder = if file.is_empty() { String::new() } else { format!("{file}/") };
    files.contains_key(&file) || files.keys().any(|path| path.starts_with(&folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the findings in `text` as `docs/guide.md`, beside `docs/errors/limit.md` and
    /// `README.md`.
    fn found(text: &str) -> Vec<String> {
        let paths = ["README.md", "docs/guide.md", "docs/errors/limit.md"];
        let files = paths.iter().map(|path| ((*path).to_owned(), String::new())).collect();
        let findings = broken_links("docs/guide.md", text, &files);
        findings.iter().map(|finding| format!("{} {}", finding.line, finding.what)).collect()
    }

    #[test]
    fn links_to_files_folders_anchors_and_the_web_are_fine() {
        let text = "[a](errors/limit.md) [b](../README.md#top) [c](errors) [d](#here) [e](..)
                    [f](https://example.com/x.md) [g](mailto:a@example.com) [h](/docs/guide.md)";
        assert!(found(text).is_empty(), "{:?}", found(text));
    }

    #[test]
    fn a_link_to_nothing_is_found_with_its_line() {
        let text = "# Guide\n\nsee [it](errors/gone.md#why)\n\n![picture](no.png)";
        let gone = "3 link to errors/gone.md, which does not exist";
        assert_eq!(found(text), [gone, "5 link to no.png, which does not exist"]);
    }

    #[test]
    fn a_link_that_leaves_the_repository_is_found() {
        let expected = ["1 link to ../../README.md, which does not exist"];
        assert_eq!(found("[up](../../README.md)"), expected);
    }

    #[test]
    fn a_reference_to_nothing_is_found() {
        assert_eq!(found("see [it]\n\n[it]: gone.md"), ["1 link to gone.md, which does not exist"]);
    }

    #[test]
    fn code_is_not_a_link() {
        assert!(found("`[a](gone.md)`\n\n```\n[b](gone.md)\n```").is_empty());
    }
}
