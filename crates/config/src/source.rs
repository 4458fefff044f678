//! The text of a configuration by lines, without what may be secret in it.

use std::sync::Arc;

use crate::diagnostic::Excerpt;
use crate::place::Mark;

/// How much of a long line is shown, in characters.
const WIDTH: usize = 100;
/// A longer line was written by a program, which does not look at it.
pub(crate) const LINE_BYTES_MAX: usize = 10_000;

/// A stretch of the text that no message may show, as far as but without its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hidden {
    pub(crate) from: Mark,
    pub(crate) to: Mark,
}

/// A named text.
pub(crate) struct Source<'t> {
    name: Arc<str>,
    lines: Vec<&'t str>,
    /// In the order of the text; they don't overlap.
    hidden: Vec<Hidden>,
}

impl<'t> Source<'t> {
    pub(crate) fn new(name: &str, text: &'t str, mut hidden: Vec<Hidden>) -> Self {
        hidden.sort_by_key(|hidden| hidden.from);
        Self { name: name.into(), lines: lines(text), hidden }
    }

    pub(crate) fn name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    /// The line of a mark, cut and cleaned for a terminal.
    pub(crate) fn excerpt(&self, at: Mark) -> Option<Excerpt> {
        let line =
            self.lines.get(at.line.checked_sub(1)?).filter(|line| line.len() <= LINE_BYTES_MAX)?;
        let mut text = Vec::new();
        let mut caret = None;
        let mut in_hidden = false;
        for (place, c) in line.trim_end().chars().enumerate() {
            let mark = Mark { line: at.line, column: place + 1 };
            if mark.column == at.column {
                caret = Some(text.len());
            }
            let hide = self.is_hidden(mark);
            match hide {
                true if !in_hidden => text.push('…'),
                true => {}
                false if c == '\t' => text.push(' '),
                false if c.is_control() => text.push('\u{fffd}'),
                false => text.push(c),
            }
            in_hidden = hide;
        }
        let caret = caret.unwrap_or(text.len());
        Some(cut(&text, caret))
    }

    fn is_hidden(&self, mark: Mark) -> bool {
        let after = self.hidden.partition_point(|hidden| hidden.from <= mark);
        after.checked_sub(1).is_some_and(|last| mark < self.hidden[last].to)
    }
}

/// The part of a line around the caret, with dots where something is left out.
fn cut(text: &[char], caret: usize) -> Excerpt {
    if text.len() <= WIDTH {
        return Excerpt { text: text.iter().collect(), caret };
    }
    let from = caret.saturating_sub(WIDTH / 2).min(text.len() - WIDTH);
    let mut shown: String = text[from..from + WIDTH].iter().collect();
    if from + WIDTH < text.len() {
        shown.push('…');
    }
    if from == 0 {
        return Excerpt { text: shown, caret };
    }
    Excerpt { text: format!("…{shown}"), caret: caret - from + 1 }
}

/// The lines as YAML counts them: a lone carriage return ends one, too.
pub(crate) fn lines(text: &str) -> Vec<&str> {
    let mut lines = Vec::new();
    for line in text.split('\n') {
        lines.extend(line.strip_suffix('\r').unwrap_or(line).split('\r'));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(line: usize, column: usize) -> Mark {
        Mark { line, column }
    }

    fn check(text: &str, hidden: &[(Mark, Mark)], at: Mark, expected: &str) {
        let hidden = hidden.iter().map(|&(from, to)| Hidden { from, to }).collect();
        let Excerpt { text, caret } = Source::new("f", text, hidden).excerpt(at).expect("a line");
        let shown: String = text.chars().take(caret).chain(['^']).collect();
        let rest: String = text.chars().skip(caret).collect();
        assert_eq!(shown + &rest, expected);
    }

    #[test]
    fn the_caret_stands_before_the_place() {
        check("a: 1\r\nb: 2\r\n", &[], mark(2, 4), "b: ^2");
        check("a: 1\rb:\t2", &[], mark(2, 4), "b: ^2");
        check("é: 1", &[], mark(1, 4), "é: ^1");
        check("a:", &[], mark(1, 9), "a:^");
    }

    #[test]
    fn what_is_hidden_is_one_mark_wherever_the_caret_is() {
        let secret = [(mark(1, 4), mark(1, 10))];
        check("a: secret, b: 1", &secret, mark(1, 4), "a: ^…, b: 1");
        check("a: secret, b: 1", &secret, mark(1, 12), "a: …, ^b: 1");
        let lines = [(mark(1, 4), mark(3, 3))];
        check("a: |\n  secret\n  x y", &lines, mark(2, 3), "…^");
    }

    #[test]
    fn a_long_line_is_cut_around_the_place() {
        let text = format!("{}X{}", "a".repeat(500), "b".repeat(500));
        let expected = format!("…{}^X{}…", "a".repeat(50), "b".repeat(49));
        check(&text, &[], mark(1, 501), &expected);
    }

    #[test]
    fn a_place_past_the_text_has_no_line() {
        assert_eq!(Source::new("f", "a", Vec::new()).excerpt(mark(9, 1)), None);
        assert_eq!(Source::new("f", "a", Vec::new()).excerpt(mark(0, 1)), None);
        assert_eq!(Source::new("f", &"a".repeat(10_001), Vec::new()).excerpt(mark(1, 1)), None);
    }
}
