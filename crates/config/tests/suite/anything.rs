//! Property tests: every text is either loaded or refused, without a panic.

use proptest::prelude::*;
use sluicegate_config::load;

/// Pieces of configurations, so that some generated texts are almost valid.
const PIECES: [&str; 66] = [
    "\n",
    "\n  ",
    "\n    ",
    "\n      ",
    "\n        ",
    "- ",
    "  ",
    " ",
    ": ",
    ":",
    "[",
    "]",
    "{",
    "}",
    ", ",
    "\"",
    "'",
    "|",
    ">",
    "#",
    "&a ",
    "*a",
    "!!str ",
    "? ",
    "<<",
    "---",
    "...",
    "\t",
    "\r",
    "%",
    "\u{feff}",
    "é",
    "\0",
    "${N}",
    "${N:-5}",
    "${NO:?x}",
    "$",
    "$$",
    "${",
    "limits",
    "rules",
    "name",
    "per",
    "limit",
    "when",
    "key",
    "store",
    "kind",
    "redis",
    "url",
    "auth",
    "tokens",
    "listen",
    "http",
    "0.0.0.0:80",
    "5/s",
    "100/h",
    "5 USD/day",
    "9 concurrent",
    "true",
    "userId",
    "prices",
    "default",
    "input",
    "0.2 USD/1M",
    "redis://:pw@h/1",
];

fn env(name: &str) -> Option<String> {
    (name == "N").then(|| "25".to_owned())
}

fn check(text: &str) {
    match load("f", text, &env) {
        Ok(loaded) => {
            let _ = loaded.config.ruleset();
        }
        Err(errors) => {
            assert!(errors.iter().next().is_some());
            let mut last = (0, 0);
            for diagnostic in errors.iter() {
                let position = (diagnostic.line, diagnostic.column);
                assert!(position >= last, "in the order of the text");
                last = position;
                let _ = diagnostic.to_string();
            }
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_loaded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        check(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn any_text_is_loaded_or_refused(text in "(?s).{0,200}") {
        check(&text);
    }

    #[test]
    fn anything_like_yaml_is_loaded_or_refused(
        pieces in prop::collection::vec(prop::sample::select(&PIECES[..]), 0..80),
    ) {
        check(&pieces.concat());
    }

    #[test]
    fn any_change_of_a_good_file_is_loaded_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0..PIECES.len(), 0..4usize), 1..4),
    ) {
        let mut text: Vec<char> = include_str!("../good/every_option.yaml").chars().collect();
        for (index, piece, removed) in changes {
            let position = index.index(text.len());
            let end = (position + removed).min(text.len());
            text.splice(position..end, PIECES[piece].chars());
        }
        check(&text.into_iter().collect::<String>());
    }
}
