//! From the events of the parser to the tree.

use std::collections::HashMap;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span, Tag};

use super::open::{Kind, Open};
use super::{Node, Scalar, Value, announces_secret, has_credentials};
use crate::interpolate;
use crate::place::{Mark, Path};
use crate::report::{Report, Show};
use crate::source::{Hidden, LINE_BYTES_MAX, lines};

/// 10,000 rules take about 2 MB.
const TEXT_BYTES_MAX: usize = 8 << 20;
/// The format itself nests 6 deep.
const DEPTH_MAX: usize = 32;
/// What anchors and aliases may copy in all, by [`Open::bytes`].
const COPIED_BYTES_MAX: usize = 4 << 20;

/// The keys at the top of a file whose values a message may show. Below any other key (`auth`, or
/// a slip of the pen for it) there may be secrets.
const SHOWN: [&str; 12] = [
    "booking",
    "dimensions",
    "enabled",
    "limits",
    "listen",
    "log",
    "metrics",
    "outage",
    "prices",
    "queue",
    "server",
    "store",
];

/// The tree of a text, if it is YAML, and the parts that no message may show.
pub(crate) fn parse(text: &str, report: &mut Report) -> (Option<Node>, Vec<Hidden>) {
    if text.len() > TEXT_BYTES_MAX {
        let message = format!("has {} bytes, more than the 8 MB that are read", text.len());
        report.error_at(Mark::START, &Path::default(), message, "", Show::Nothing);
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
    // A file of comments, or of nothing, says nothing.
    let nothing = Node { at: Mark::START, value: Value::Map(Vec::new()) };
    (sound.then(|| builder.root.unwrap_or(nothing)), builder.hidden)
}

struct Builder<'b> {
    lines: Vec<&'b str>,
    report: &'b mut Report,
    /// The lists and maps around the next event.
    open: Vec<Open>,
    root: Option<Node>,
    anchors: HashMap<usize, Built>,
    copied_bytes: usize,
    hidden: Vec<Hidden>,
}

/// A finished node.
#[derive(Clone)]
pub(super) struct Built {
    pub(super) node: Node,
    /// What a copy of it costs.
    pub(super) bytes: usize,
    /// How many lists and maps are nested in it.
    pub(super) depth: usize,
}

impl Builder<'_> {
    /// Whether the text was read to its end.
    fn run(&mut self, text: &str) -> bool {
        let mut parser = Parser::new_from_str(text);
        while let Some(event) = parser.next_event() {
            let done = match event {
                Ok((event, span)) => self.event(event, span),
                Err(error) => {
                    self.syntax(mark(*error.marker()), error.info());
                    None
                }
            };
            if done.is_none() {
                return false;
            }
        }
        true
    }

    /// `None` if there is no use in going on.
    fn event(&mut self, event: Event<'_>, span: Span) -> Option<()> {
        let at = mark(span.start);
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let scalar = Scalar::new(text.into_owned(), style == ScalarStyle::Plain);
                self.hide(&scalar, span);
                let bytes = Open::NODE_BYTES + scalar.text().len();
                self.check_tag(at, tag.as_deref());
                let node = Node { at, value: Value::Scalar(scalar) };
                self.close(anchor, Built { node, bytes, depth: 0 })
            }
            Event::SequenceStart(anchor, tag) => {
                self.check_tag(at, tag.as_deref());
                self.start(at, anchor, Kind::list())
            }
            Event::MappingStart(anchor, tag) => {
                self.check_tag(at, tag.as_deref());
                self.start(at, anchor, Kind::map())
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let open = self.open.pop()?;
                let anchor = open.anchor;
                self.close(anchor, open.finish())
            }
            Event::Alias(anchor) => self.alias(at, anchor),
            Event::DocumentStart(_) if self.root.is_some() => {
                self.error(at, "a second document begins here", "write one document in a file");
                None
            }
            _ => Some(()),
        }
    }

    fn start(&mut self, at: Mark, anchor: usize, kind: Kind) -> Option<()> {
        if self.open.len() == DEPTH_MAX {
            return self.too_deep(at);
        }
        let path = self.path();
        self.open.push(Open::new(at, path, anchor, kind));
        Some(())
    }

    fn alias(&mut self, at: Mark, anchor: usize) -> Option<()> {
        let Some(built) = self.anchors.get(&anchor) else {
            self.error(at, "refers to what it is a part of", "write it out");
            let node = Node { at, value: Value::Broken };
            return self.close(0, Built { node, bytes: Open::NODE_BYTES, depth: 0 });
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

    /// Puts a finished node where it belongs.
    fn close(&mut self, anchor: usize, built: Built) -> Option<()> {
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

    fn check_tag(&mut self, at: Mark, tag: Option<&Tag>) {
        if tag.is_some() {
            let remedy = "remove the word that begins with `!`";
            self.error(at, "has a tag, and tags are not read", remedy);
        }
    }

    fn too_deep(&mut self, at: Mark) -> Option<()> {
        let message = format!("nests more than {DEPTH_MAX} levels deep");
        self.error(at, &message, "no option is that deep: check the indentation");
        None
    }

    fn copies(&mut self, at: Mark) -> Option<()> {
        let message = "anchors and aliases copy more than 4 MB";
        self.error(at, message, "write the rules out, or let fewer aliases contain aliases");
        None
    }

    fn error(&mut self, at: Mark, message: &str, remedy: &str) {
        let show = self.show(at);
        let path = self.path();
        self.report.error_at(at, &path, message.to_owned(), remedy, show);
    }

    fn syntax(&mut self, at: Mark, info: &str) {
        let line = self.line(at);
        let in_brackets = line.replace("${", "").contains(['[', '{']);
        let remedy = match line.contains("${") && in_brackets {
            true => "inside [ ] and { } put quotes around a value with a variable: \"${NAME}\"",
            false => "",
        };
        self.error(at, &format!("not YAML: {info}"), remedy);
    }

    /// What this place is called.
    fn path(&self) -> Path {
        self.open.last().map(Open::next_path).unwrap_or_default()
    }

    fn show(&self, at: Mark) -> Show {
        let line = self.line(at);
        let harmless = self.is_shown() && !has_credentials(line) && !announces_secret(line);
        if harmless { Show::Line } else { Show::Nothing }
    }

    /// The line of a mark; empty if it is longer than what is shown.
    fn line(&self, at: Mark) -> &str {
        let line = self.lines.get(at.line.wrapping_sub(1)).copied().unwrap_or_default();
        if line.len() > LINE_BYTES_MAX { "" } else { line }
    }

    /// Whether the next value stands where there are no secrets.
    fn is_shown(&self) -> bool {
        match self.open.first() {
            None => true,
            Some(open) if open.wants_key() => true,
            Some(open) => open.key().is_some_and(|key| SHOWN.contains(&key.text.as_str())),
        }
    }

    /// Keeps a value out of all messages if it may be secret.
    fn hide(&mut self, scalar: &Scalar, span: Span) {
        let harmless = match self.open.last() {
            // A file of one word is not a configuration, but it may be a file of a secret.
            None => false,
            Some(open) if open.wants_key() => true,
            Some(open) => {
                let announced = open.key().is_some_and(|key| announces_secret(&key.text));
                self.is_shown() && !announced && !has_credentials(scalar.text())
            }
        };
        if !harmless && !interpolate::is_one_variable(scalar.text()) {
            self.hidden.push(Hidden { from: mark(span.start), to: mark(span.end) });
        }
    }
}

fn mark(marker: Marker) -> Mark {
    Mark { line: marker.line().max(1), column: marker.col() + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (Option<Node>, String) {
        let mut report = Report::default();
        let (node, hidden) = parse(text, &mut report);
        let failed = report.finish(&crate::source::Source::new("f", text, hidden), None);
        (node, failed.expect_err("no configuration was given").to_string())
    }

    fn refused(text: &str, expected: &str) {
        let (node, message) = parsed(text);
        assert!(node.is_none() && message.contains(expected), "{message}");
    }

    #[test]
    fn every_node_knows_its_place() {
        let (node, _) = parsed("a:\n  - b: 1\n    c: [x, \"y\"]\n");
        let Some(Node { value: Value::Map(entries), .. }) = node else { panic!("a map") };
        let Value::List(list) = &entries[0].1.value else { panic!("a list") };
        let Value::Map(map) = &list[0].value else { panic!("a map") };
        assert_eq!((map[0].0.at, map[0].1.at), (place(2, 5), place(2, 8)));
        let Value::List(list) = &map[1].1.value else { panic!("a list") };
        assert_eq!((list[0].at, list[1].at), (place(3, 9), place(3, 12)));
    }

    fn place(line: usize, column: usize) -> Mark {
        Mark { line, column }
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
        refused(&nested, "nests more than 32 levels deep");
    }

    #[test]
    fn aliases_do_not_hide_depth() {
        let mut text = "a0: &a0 [x]\n".to_owned();
        for n in 1..40 {
            text += &format!("a{n}: &a{n} [*a{}]\n", n - 1);
        }
        refused(&text, "nests more than 32 levels deep");
    }

    #[test]
    fn depth_is_bounded_in_every_notation() {
        for text in ["[".repeat(100_000), "- ".repeat(100_000), "{a: ".repeat(10_000)] {
            let (node, message) = parsed(&text);
            assert!(node.is_none() && !message.is_empty());
        }
        refused(&"- ".repeat(100), "nests more than 32 levels deep");
    }

    #[test]
    fn a_text_that_is_too_long_is_not_read() {
        refused(&"#".repeat(TEXT_BYTES_MAX + 1), "more than the 8 MB");
    }
}
