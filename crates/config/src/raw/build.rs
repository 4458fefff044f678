//! [`Builder`]: builds the tree of [`Node`]s from the events of the YAML parser, and marks the
//! parts of the text that may be secret.

use std::collections::HashMap;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span, Tag};

use super::container::{Container, ContainerKind};
use super::secrecy::{Secrecy, announces_secret, has_credentials, is_visible_section};
use super::{Node, Scalar, Value};
use crate::interpolate;
use crate::location::{Path, Position};
use crate::report::{LineDisplay, Report};
use crate::source_text::{HiddenRange, LINE_BYTES_MAX, lines};

/// Maximum size of a file: 10,000 rules take about 2 MB.
const TEXT_BYTES_MAX: usize = 8 << 20;
/// Maximum nesting depth. The format itself nests 6 deep.
const DEPTH_MAX: usize = 32;
/// Maximum size of all copies that anchors and aliases make, as counted by [`Container::bytes`].
const COPIED_BYTES_MAX: usize = 4 << 20;

/// Parses a text. Returns its tree, if it is valid YAML, and the ranges that no message may show.
pub(crate) fn parse(text: &str, report: &mut Report) -> (Option<Node>, Vec<HiddenRange>) {
    if text.len() > TEXT_BYTES_MAX {
        let message = format!("the file has {} bytes: the maximum is 8 MB", text.len());
        report.error_at(Position::START, &Path::default(), message, "", LineDisplay::Hidden);
        return (None, Vec::new());
    }
    let mut builder = Builder {
        lines: lines(text),
        report,
        open: Vec::new(),
        root: None,
        anchors: HashMap::new(),
        copied_bytes: 0,
        hidden: Vec::new(),
    };
    let sound = builder.run(text);
    // A file without content is an empty map.
    let nothing = Node { at: Position::START, value: Value::Map(Vec::new()) };
    (sound.then(|| builder.root.unwrap_or(nothing)), builder.hidden)
}

struct Builder<'b> {
    lines: Vec<&'b str>,
    report: &'b mut Report,
    /// Lists and maps that contain the next event.
    open: Vec<Container>,
    root: Option<Node>,
    anchors: HashMap<usize, FinishedNode>,
    copied_bytes: usize,
    hidden: Vec<HiddenRange>,
}

/// A finished node.
#[derive(Clone)]
pub(super) struct FinishedNode {
    pub(super) node: Node,
    /// Cost of a copy of it.
    pub(super) bytes: usize,
    /// Number of nested lists and maps in it.
    pub(super) depth: usize,
}

impl Builder<'_> {
    /// Reads all events. Returns false if it stopped at an error.
    fn run(&mut self, text: &str) -> bool {
        let mut parser = Parser::new_from_str(text);
        while let Some(event) = parser.next_event() {
            let done = match event {
                Ok((event, span)) => self.event(event, span),
                Err(error) => {
                    self.syntax(position(*error.marker()), error.info());
                    None
                }
            };
            if done.is_none() {
                return false;
            }
        }
        true
    }

    /// Handles one event. Returns `None` if parsing has to stop.
    fn event(&mut self, event: Event<'_>, span: Span) -> Option<()> {
        let at = position(span.start);
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let scalar = Scalar::new(text.into_owned(), style == ScalarStyle::Plain);
                self.hide(&scalar, span);
                let bytes = Container::NODE_BYTES + scalar.text().len();
                self.check_tag(at, tag.as_deref());
                let node = Node { at, value: Value::Scalar(scalar) };
                self.close(anchor, FinishedNode { node, bytes, depth: 0 })
            }
            Event::SequenceStart(anchor, tag) => {
                self.check_tag(at, tag.as_deref());
                self.start(at, anchor, ContainerKind::list())
            }
            Event::MappingStart(anchor, tag) => {
                self.check_tag(at, tag.as_deref());
                self.start(at, anchor, ContainerKind::map())
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let open = self.open.pop()?;
                let anchor = open.anchor;
                self.close(anchor, open.finish())
            }
            Event::Alias(anchor) => self.alias(at, anchor),
            Event::DocumentStart(_) if self.root.is_some() => {
                self.error(at, "second YAML document", "write only one document in a file");
                None
            }
            _ => Some(()),
        }
    }

    fn start(&mut self, at: Position, anchor: usize, kind: ContainerKind) -> Option<()> {
        if self.open.len() == DEPTH_MAX {
            return self.too_deep(at);
        }
        let secrecy = match (self.open.last(), &kind) {
            (Some(open), _) => open.next_secrecy(),
            (None, ContainerKind::Map { .. }) => Secrecy::Sections,
            // Not a configuration, but maybe a file of secrets.
            (None, ContainerKind::List(_)) => Secrecy::Secret,
        };
        self.open.push(Container::new(at, self.path(), secrecy, anchor, kind));
        Some(())
    }

    fn alias(&mut self, at: Position, anchor: usize) -> Option<()> {
        let Some(built) = self.anchors.get(&anchor) else {
            self.error(at, "alias refers to a value that contains it", "write the value out");
            let node = Node { at, value: Value::Broken };
            return self.close(0, FinishedNode { node, bytes: Container::NODE_BYTES, depth: 0 });
        };
        if self.open.len() + built.depth > DEPTH_MAX {
            return self.too_deep(at);
        }
        self.copied_bytes += built.bytes;
        if self.copied_bytes > COPIED_BYTES_MAX {
            return self.copies(at);
        }
        let built = built.clone();
        self.close(0, built)
    }

    /// Adds a finished node to the list or map around it.
    fn close(&mut self, anchor: usize, built: FinishedNode) -> Option<()> {
        if anchor != 0 {
            self.copied_bytes += built.bytes;
            if self.copied_bytes > COPIED_BYTES_MAX {
                return self.copies(built.node.at);
            }
            self.anchors.insert(anchor, built.clone());
        }
        match self.open.last_mut() {
            Some(open) => open.add(built, self.report),
            None => self.root = Some(built.node),
        }
        Some(())
    }

    fn check_tag(&mut self, at: Position, tag: Option<&Tag>) {
        if tag.is_some() {
            let remedy = "remove the word that starts with `!`";
            self.error(at, "YAML tags are not supported", remedy);
        }
    }

    fn too_deep(&mut self, at: Position) -> Option<()> {
        let message = format!("nested more than {DEPTH_MAX} levels deep");
        self.error(at, &message, "check the indentation, no option is that deep");
        None
    }

    fn copies(&mut self, at: Position) -> Option<()> {
        let message = "anchors and aliases copy more than 4 MB";
        self.error(at, message, "write the values out, or nest fewer aliases");
        None
    }

    fn error(&mut self, at: Position, message: &str, remedy: &str) {
        let show = self.show(at);
        let path = self.path();
        self.report.error_at(at, &path, message.to_owned(), remedy, show);
    }

    fn syntax(&mut self, at: Position, info: &str) {
        let line = self.line(at);
        let in_brackets = line.replace("${", "").contains(['[', '{']);
        let has_tabs =
            || self.lines.iter().any(|line| line.trim_start_matches(' ').starts_with('\t'));
        let remedy = if line.contains("${") && in_brackets {
            "put quotes around a variable inside [ ] and { }: \"${NAME}\""
        } else if has_tabs() {
            "a line begins with a tab: indent with spaces"
        } else if info.contains("quoted scalar") {
            "close the quote"
        } else if info.contains("did not find expected") || info.contains("mapping values") {
            "check the indentation of this line and of the lines before it"
        } else {
            ""
        };
        self.error(at, &format!("invalid YAML: {info}"), remedy);
    }

    /// Returns the path of the next value.
    fn path(&self) -> Path {
        self.open.last().map(Container::next_path).unwrap_or_default()
    }

    /// Decides how much of the line with a syntax error is shown. The structure of the text is
    /// unknown there: a stray quotation mark may have hidden the keys before it. So the line is
    /// shown only in sections without options for credentials, judged both by the structure and by
    /// the text.
    fn show(&self, at: Position) -> LineDisplay {
        let line = self.line(at);
        let by_structure = match self.open.first() {
            None => false,
            Some(open) if open.wants_key() => true,
            Some(open) => open.key().is_some_and(|key| is_visible_section(&key.text)),
        };
        let lines = self.lines.iter().take(at.line).rev();
        let mut unindented =
            lines.filter(|line| !line.starts_with([' ', '\t', '#', '-']) && !line.is_empty());
        let section = unindented.next().and_then(|line| line.split_once(':'));
        let by_text = section.is_some_and(|(key, _)| is_visible_section(key));
        let harmless = by_structure && by_text && !has_credentials(line) && !announces_secret(line);
        if harmless { LineDisplay::Shown } else { LineDisplay::Hidden }
    }

    /// Returns the line at a position; empty if it is too long to be shown.
    fn line(&self, at: Position) -> &str {
        let line = self.lines.get(at.line.wrapping_sub(1)).copied().unwrap_or_default();
        if line.len() > LINE_BYTES_MAX { "" } else { line }
    }

    /// Keeps a value out of all messages if it may be secret.
    fn hide(&mut self, scalar: &Scalar, span: Span) {
        let is_secret = match self.open.last() {
            // A file that consists of one word is not a configuration, but may be a file with a
            // secret.
            None => true,
            Some(open) if open.wants_key() => false,
            Some(open) => open.hides_scalar() || has_credentials(scalar.text()),
        };
        if is_secret && !interpolate::is_one_variable(scalar.text()) {
            self.hidden.push(HiddenRange { from: position(span.start), to: position(span.end) });
        }
    }
}

fn position(marker: Marker) -> Position {
    Position { line: marker.line().max(1), column: marker.col() + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (Option<Node>, String) {
        let mut report = Report::default();
        let (node, hidden) = parse(text, &mut report);
        let source = crate::source_text::SourceText::new("f", text, hidden);
        let failed = report.finish(&source, None::<()>);
        (node, failed.expect_err("no configuration was given").to_string())
    }

    fn refused(text: &str, expected: &str) {
        let (node, message) = parsed(text);
        assert!(node.is_none() && message.contains(expected), "{message}");
    }

    #[test]
    fn every_node_has_its_position() {
        let (node, _) = parsed("a:\n  - b: 1\n    c: [x, \"y\"]\n");
        let Some(Node { value: Value::Map(entries), .. }) = node else { panic!("a map") };
        let Value::List(list) = &entries[0].1.value else { panic!("a list") };
        let Value::Map(map) = &list[0].value else { panic!("a map") };
        assert_eq!((map[0].0.at, map[0].1.at), (position_at(2, 5), position_at(2, 8)));
        let Value::List(list) = &map[1].1.value else { panic!("a list") };
        assert_eq!((list[0].at, list[1].at), (position_at(3, 9), position_at(3, 12)));
    }

    fn position_at(line: usize, column: usize) -> Position {
        Position { line, column }
    }

    #[test]
    fn a_file_of_comments_is_an_empty_map() {
        for text in ["", "# nothing\n", "---\n", "\u{feff}", "---\n...\n"] {
            let (node, message) = parsed(text);
            let map = node.map(|node| node.value);
            let empty = match &map {
                Some(Value::Map(entries)) => entries.is_empty(),
                Some(Value::Scalar(scalar)) => scalar.is_null(),
                _ => false,
            };
            assert!(empty && message.is_empty(), "{text:?} {map:?} {message}");
        }
    }

    #[test]
    fn aliases_that_would_fill_the_memory_are_refused() {
        let mut laughs = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n".to_owned();
        for n in 1..20 {
            let before = format!("*a{},", n - 1).repeat(9);
            laughs += &format!("a{n}: &a{n} [{before}]\n");
        }
        refused(&laughs, "anchors and aliases copy more than 4 MB");
        let long = format!("a: &a {}\nb: [{}]", "x".repeat(100_000), "*a,".repeat(100_000));
        refused(&long, "anchors and aliases copy more than 4 MB");
        let nested = format!("{}x", "&a [ ".repeat(40));
        refused(&nested, "nested more than 32 levels deep");
    }

    #[test]
    fn aliases_do_not_hide_depth() {
        let mut text = "a0: &a0 [x]\n".to_owned();
        for n in 1..40 {
            text += &format!("a{n}: &a{n} [*a{}]\n", n - 1);
        }
        refused(&text, "nested more than 32 levels deep");
    }

    #[test]
    fn depth_is_bounded_in_every_notation() {
        for text in ["[".repeat(100_000), "- ".repeat(100_000), "{a: ".repeat(10_000)] {
            let (node, message) = parsed(&text);
            assert!(node.is_none() && !message.is_empty());
        }
        refused(&"- ".repeat(100), "nested more than 32 levels deep");
    }

    #[test]
    fn a_text_that_is_too_long_is_not_read() {
        refused(&"#".repeat(TEXT_BYTES_MAX + 1), "the maximum is 8 MB");
    }
}
