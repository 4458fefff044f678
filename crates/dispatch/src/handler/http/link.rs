//! Reads the next page from `Link` header fields (RFC 8288).

use axum::http::{HeaderMap, header};
use percent_encoding::percent_decode_str;

/// Returns the address of `rel="next"`, if a response has one.
pub(super) fn next(headers: &HeaderMap) -> Option<String> {
    let fields = headers.get_all(header::LINK).into_iter();
    fields.filter_map(|value| value.to_str().ok()).find_map(next_in)
}

/// Finds `<address>; rel="next"` in a list of links.
fn next_in(field: &str) -> Option<String> {
    let mut rest = field;
    while let Some((_, after)) = rest.split_once('<') {
        let (address, after) = after.split_once('>')?;
        let end = end_of_link(after);
        if after[..end].split(';').any(is_next) {
            return Some(address.to_owned());
        }
        rest = &after[end..];
    }
    None
}

/// Returns the position of the comma after a link; a comma in quotes is a part of it.
fn end_of_link(text: &str) -> usize {
    let mut is_quoted = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'"' => is_quoted = !is_quoted,
            b',' if !is_quoted => return at,
            _ => {}
        }
    }
    text.len()
}

/// Returns true for `rel="next"`, also among several relations.
fn is_next(parameter: &str) -> bool {
    let Some((name, value)) = parameter.split_once('=') else { return false };
    let relations = value.trim().trim_matches('"');
    name.trim().eq_ignore_ascii_case("rel")
        && relations.split_ascii_whitespace().any(|word| word.eq_ignore_ascii_case("next"))
}

/// Returns a query parameter of an address, which may be relative.
pub(super) fn parameter(address: &str, name: &str) -> Option<String> {
    let query = address.split('#').next()?.split_once('?')?.1;
    query.split('&').find_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decoded(key)? == name).then(|| decoded(value)).flatten()
    })
}

fn decoded(text: &str) -> Option<String> {
    let text = text.replace('+', " ");
    Some(percent_decode_str(&text).decode_utf8().ok()?.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_is_found_among_the_links_of_github() {
        let links = r#"<https://api.github.com/organizations/9/repos?per_page=100&page=1>; rel="prev", <https://api.github.com/organizations/9/repos?per_page=100&page=3>; rel="next", <https://x/?page=6>; rel="last""#;
        let next = next_in(links).expect("a page");
        assert_eq!(next, "https://api.github.com/organizations/9/repos?per_page=100&page=3");
        assert_eq!(parameter(&next, "page").as_deref(), Some("3"));
        assert_eq!(parameter(&next, "per_page").as_deref(), Some("100"));
        assert_eq!(parameter(&next, "after"), None);
    }

    #[test]
    fn links_of_other_servers_are_read_or_skipped() {
        for (links, expected) in [
            ("<?page=2>; rel=next", Some("?page=2")),
            (r#"<a>; title="x, <b>"; rel="prev", <c>; REL="last NEXT""#, Some("c")),
            (r#"<a>; rel="nextish""#, None),
            (r#"<a>; rel="prev""#, None),
            ("<a", None),
            ("", None),
            ("rel=next", None),
        ] {
            assert_eq!(next_in(links).as_deref(), expected, "{links}");
        }
        assert_eq!(parameter("/x?a=b%20c+d&cursor=%3D%3D#page=9", "cursor").as_deref(), Some("=="));
        assert_eq!(parameter("/x?a=b%20c+d", "a").as_deref(), Some("b c d"));
    }
}
