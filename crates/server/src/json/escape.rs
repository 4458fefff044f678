//! Escapes text from clients, so that it cannot forge log lines or control a terminal.

use std::fmt::{self, Write as _};

/// Appends a text as a JSON string.
///
/// In addition to what JSON requires, it escapes line ends of some readers (U+0085, U+2028),
/// terminal control characters (U+009B) and characters that reverse the text direction (U+202E).
pub(crate) fn quote(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    escape(text, out);
    out.push(b'"');
}

/// Appends a displayed value as a JSON string.
pub(crate) fn quote_display(value: &impl fmt::Display, out: &mut Vec<u8>) {
    out.push(b'"');
    write!(EscapingWriter(out), "{value}").expect("a buffer takes every write");
    out.push(b'"');
}

/// Appends a plain word without quotes, and any other text as a JSON string.
pub(crate) fn word(text: &str, out: &mut Vec<u8>) {
    let ordinary = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:/@+".contains(&byte);
    if !text.is_empty() && text.bytes().all(ordinary) {
        out.extend_from_slice(text.as_bytes());
    } else {
        quote(text, out);
    }
}

struct EscapingWriter<'o>(&'o mut Vec<u8>);

impl fmt::Write for EscapingWriter<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        escape(text, self.0);
        Ok(())
    }
}

fn escape(text: &str, out: &mut Vec<u8>) {
    // Nearly all text is plain; checking first makes it one copy.
    if text.bytes().all(is_plain_ascii) {
        out.extend_from_slice(text.as_bytes());
        return;
    }
    let mut rest = 0;
    for (at, c) in text.char_indices().filter(|&(_, c)| !is_plain(c)) {
        out.extend_from_slice(&text.as_bytes()[rest..at]);
        rest = at + c.len_utf8();
        match c {
            '"' => out.extend_from_slice(br#"\""#),
            '\\' => out.extend_from_slice(br"\\"),
            '\n' => out.extend_from_slice(br"\n"),
            '\r' => out.extend_from_slice(br"\r"),
            '\t' => out.extend_from_slice(br"\t"),
            c => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| code_unit(*unit, out)),
        }
    }
    out.extend_from_slice(&text.as_bytes()[rest..]);
}

const fn is_plain_ascii(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\'
}

fn is_plain(c: char) -> bool {
    match c {
        '"' | '\\' => false,
        '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' => false,
        '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}' => false,
        c => !c.is_control(),
    }
}

fn code_unit(unit: u16, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.extend_from_slice(br"\u");
    for shift in [12, 8, 4, 0] {
        out.push(HEX[usize::from(unit >> shift & 15)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quoted(text: &str) -> String {
        let mut out = Vec::new();
        quote(text, &mut out);
        String::from_utf8(out).expect("text stays text")
    }

    #[test]
    fn what_could_be_mistaken_is_escaped() {
        for (text, expected) in [
            ("", r#""""#),
            ("plain é 日本 😀", r#""plain é 日本 😀""#),
            (r#"a"b\c"#, r#""a\"b\\c""#),
            ("a\nb\r\tc", r#""a\nb\r\tc""#),
            ("\0\u{1b}[2J\u{7f}", r#""\u0000\u001b[2J\u007f""#),
            ("\u{85}\u{9b}2J", r#""\u0085\u009b2J""#),
            ("\u{2028}\u{2029}", r#""\u2028\u2029""#),
            ("\u{202e}txt\u{2066}", r#""\u202etxt\u2066""#),
            ("\u{feff}\u{e0041}", r#""\ufeff\udb40\udc41""#),
        ] {
            assert_eq!(quoted(text), expected);
        }
    }

    #[test]
    fn an_ordinary_word_needs_no_quotes() {
        for (text, expected) in [
            ("gpt-4.1_x", "gpt-4.1_x"),
            ("a@b.c/d:e+f", "a@b.c/d:e+f"),
            ("", r#""""#),
            ("a b", r#""a b""#),
            ("x=y", r#""x=y""#),
            ("#a", r##""#a""##),
        ] {
            let mut out = Vec::new();
            word(text, &mut out);
            assert_eq!(String::from_utf8(out).expect("text stays text"), expected);
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_one_line_that_reads_back(text in proptest::prelude::any::<String>()) {
            let quoted = quoted(&text);
            proptest::prop_assert!(!quoted.chars().any(char::is_control));
            let back: String = serde_json::from_str(&quoted).expect("a JSON string");
            proptest::prop_assert_eq!(back, text);
        }
    }
}
