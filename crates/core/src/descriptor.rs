//! Converts an Envoy rate limit descriptor to the dimensions of a query.
//!
//! Every entry becomes a dimension of the same name, so rules can use `userId` or `remote_address`
//! for all kinds of clients. Two more dimensions contain the rest:
//!
//! | dimension | value |
//! |---|---|
//! | `envoy.domain` | the domain of the call |
//! | `envoy.descriptor` | the keys of the entries in their order, joined by `/` |
//!
//! If a key is repeated in one descriptor, the repetitions become `key#2`, `key#3` and so on.

use std::borrow::Cow;

/// Prefix of the dimensions that only Envoy requests have.
pub const ENVOY: &str = "envoy.";
/// Name of the dimension that contains the domain.
pub const DOMAIN: &str = "envoy.domain";
/// Name of the dimension that contains the shape of the descriptor.
pub const SHAPE: &str = "envoy.descriptor";

/// Returns the keys of a descriptor in their order, as one text.
pub fn shape<'k>(keys: impl Iterator<Item = &'k str>) -> Cow<'k, str> {
    // Most descriptors have one entry.
    let mut shape = Cow::Borrowed("");
    for (place, key) in keys.enumerate() {
        let key = escaped(key);
        if place == 0 {
            shape = key;
        } else {
            let shape = shape.to_mut();
            shape.push('/');
            shape.push_str(&key);
        }
    }
    shape
}

/// Escapes `/` in a key, so that different lists of keys have different shapes.
fn escaped(key: &str) -> Cow<'_, str> {
    match key.contains(['/', '%']) {
        true => Cow::Owned(key.replace('%', "%25").replace('/', "%2F")),
        false => Cow::Borrowed(key),
    }
}

/// Returns the name of the dimension for an entry with this `key`, after entries with the keys
/// `before`.
pub fn dimension<'k>(before: impl Iterator<Item = &'k str>, key: &str) -> Cow<'_, str> {
    let reserved = key == DOMAIN || key == SHAPE;
    match before.filter(|other| *other == key).count() + usize::from(reserved) {
        0 => Cow::Borrowed(key),
        times => Cow::Owned(format!("{key}#{}", times + 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_depends_on_order_depth_and_keys() {
        for (keys, expected) in [
            (&["path"][..], "path"),
            (&["path", "user"], "path/user"),
            (&["path/user"], "path%2Fuser"),
            (&["path%2Fuser"], "path%252Fuser"),
            (&[], ""),
        ] {
            assert_eq!(shape(keys.iter().copied()), expected);
        }
    }

    #[test]
    fn a_key_that_comes_again_is_numbered() {
        assert_eq!(dimension(["a"].into_iter(), "b"), "b");
        assert_eq!(dimension(["a", "b", "a"].into_iter(), "a"), "a#3");
        assert_eq!(dimension([].into_iter(), DOMAIN), "envoy.domain#2");
    }
}
