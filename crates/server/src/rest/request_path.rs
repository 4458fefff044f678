//! Normalized paths of forwarded requests. Clients can write one path in many ways, and most applications
//! treat them alike, so rules must match all of them.

/// Returns the path of a request target as RFC 3986 normalizes it (section 6.2.2), with repeated slashes
/// as one.
///
/// | part | result |
/// |---|---|
/// | query string, fragment | removed |
/// | scheme and host of an absolute URL | removed |
/// | percent-encoded letter, digit, `-`, `.`, `_` or `~` | decoded |
/// | any other percent-encoded byte, such as `%2F` | stays encoded, in capitals |
/// | repeated slashes | one slash |
/// | the segments `.` and `..` | resolved, never above the root |
/// | slash at the end | stays |
pub(super) fn normalize(target: &str) -> String {
    let end = target.find(['?', '#']).unwrap_or(target.len());
    let path = match target[..end].split_once("://") {
        Some((scheme, rest)) if !scheme.contains('/') => {
            rest.find('/').map_or("", |start| &rest[start..])
        }
        _ => &target[..end],
    };
    let decoded = decode_unreserved(path);
    let (mut segments, mut is_folder) = (Vec::new(), true);
    for segment in decoded.split('/') {
        is_folder = matches!(segment, "" | "." | "..");
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            _ => segments.push(segment),
        }
    }
    let mut path = String::with_capacity(decoded.len() + 1);
    for segment in &segments {
        path.push('/');
        path.push_str(segment);
    }
    if is_folder {
        path.push('/');
    }
    path
}

/// Decodes the percent-encoded bytes that need no encoding, and writes the hex digits of the others in
/// capitals.
fn decode_unreserved(path: &str) -> String {
    let mut parts = path.split('%');
    let mut decoded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.get(..2).filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
        let Some(digits) = digits else {
            // Not an encoded byte: as it is.
            decoded.push('%');
            decoded.push_str(part);
            continue;
        };
        match u8::from_str_radix(digits, 16).map(char::from) {
            Ok(c) if c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | '~') => {
                decoded.push(c);
            }
            _ => {
                decoded.push('%');
                decoded.push_str(&digits.to_ascii_uppercase());
            }
        }
        decoded.push_str(&part[2..]);
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_path_has_one_form() {
        for (target, expected) in [
            ("/login", "/login"),
            ("/login?x=1", "/login"),
            ("/login?a=/b/..", "/login"),
            ("/login#x", "/login"),
            ("//login", "/login"),
            ("///a//b", "/a/b"),
            ("/%6cogin", "/login"),
            ("/%6Cogin", "/login"),
            ("/./login", "/login"),
            ("/a/../login", "/login"),
            ("/a//../login", "/login"),
            ("/%2e%2E/login", "/login"),
            ("/a/%2e%2e/login", "/login"),
            ("/../../login", "/login"),
            ("http://host/login?x", "/login"),
            ("http://host", "/"),
            ("http://host?x", "/"),
            ("login", "/login"),
            ("", "/"),
            ("?x=1", "/"),
            ("/", "/"),
            ("/..", "/"),
            // Other paths.
            ("/login/", "/login/"),
            ("/login/.", "/login/"),
            ("/login/..", "/"),
            ("/a%2flogin", "/a%2Flogin"),
            ("/a%252flogin", "/a%252flogin"),
            ("/login%3Fx=1", "/login%3Fx=1"),
            ("/a/http://b/login", "/a/http:/b/login"),
            ("/...", "/..."),
            ("/\u{e4}%c3%A4", "/\u{e4}%C3%A4"),
            // Not encodings.
            ("/%", "/%"),
            ("/%6", "/%6"),
            ("/%zz", "/%zz"),
            ("/%\u{e4}x", "/%\u{e4}x"),
            ("/%+1", "/%+1"),
        ] {
            assert_eq!(normalize(target), expected, "{target}");
        }
    }
}
