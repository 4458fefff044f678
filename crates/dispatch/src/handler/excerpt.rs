//! Short, printable excerpts of responses and error output, for dead letters.

use sluicegate_http::upstream::Secrets;

/// Maximum length of an excerpt, in bytes.
const BYTES_MAX: usize = 1 << 10;
/// Number of bytes that are searched for secrets: more than is kept, so that a secret at the cut is
/// found.
const SEEN_MAX: usize = 4 << 10;

/// Returns the beginning of a text; `None` if it is blank.
pub(super) fn beginning(bytes: &[u8], secrets: &Secrets) -> Option<String> {
    let text = printable(&bytes[..bytes.len().min(SEEN_MAX)], secrets);
    let cut = text.trim();
    let cut = &cut[..cut.floor_char_boundary(BYTES_MAX)];
    (!cut.is_empty()).then(|| cut.to_owned())
}

/// Returns the end of a text; `None` if it is blank.
pub(super) fn end(bytes: &[u8], secrets: &Secrets) -> Option<String> {
    let text = printable(&bytes[bytes.len().saturating_sub(SEEN_MAX)..], secrets);
    let cut = text.trim();
    let cut = &cut[cut.ceil_char_boundary(cut.len().saturating_sub(BYTES_MAX))..];
    (!cut.is_empty()).then(|| cut.to_owned())
}

/// Replaces secrets and control characters, except line breaks and tabs.
fn printable(bytes: &[u8], secrets: &Secrets) -> String {
    let text = secrets.conceal(String::from_utf8_lossy(bytes).into_owned());
    let harmless = |c: char| c == '\n' || c == '\t' || !c.is_control();
    text.chars().map(|c| if harmless(c) { c } else { '\u{fffd}' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_excerpt_is_short_and_printable() {
        let none = Secrets::default();
        assert_eq!(beginning(b" \n ", &none), None);
        assert_eq!(beginning(b"a\x1b[31m\r\nb", &none).unwrap(), "a\u{fffd}[31m\u{fffd}\nb");
        let long = "é".repeat(5_000);
        assert_eq!(beginning(long.as_bytes(), &none).unwrap(), "é".repeat(512));
        assert_eq!(end(format!("{long}!").as_bytes(), &none).unwrap().chars().last(), Some('!'));
    }

    #[test]
    fn a_secret_at_the_cut_is_not_shown_in_part() {
        let mut secrets = Secrets::default();
        secrets.add("the-secret-key");
        for before in 1_000..1_030 {
            let said = format!("{}the-secret-key{}", "x".repeat(before), "y".repeat(before));
            for shown in [beginning(said.as_bytes(), &secrets), end(said.as_bytes(), &secrets)] {
                assert!(!shown.unwrap().contains("the-"), "{before}");
            }
        }
    }

    proptest! {
        #[test]
        fn whatever_was_said_has_an_excerpt(bytes in prop::collection::vec(any::<u8>(), 0..6_000)) {
            for shown in [beginning(&bytes, &Secrets::default()), end(&bytes, &Secrets::default())] {
                prop_assert!(shown.is_none_or(|shown| shown.len() <= BYTES_MAX));
            }
        }
    }
}
