//! [`Item`]: a node of the tree with its path, and [`Fields`]: the options in a map.

use crate::location::{Location, Path, shorten};
use crate::raw::{Key, Node, Scalar, Value};
use crate::report::{LineDisplay, Report};

/// A node with its path.
#[derive(Clone)]
pub(super) struct Item<'n> {
    pub(super) node: &'n Node,
    pub(super) path: Path,
}

impl<'n> Item<'n> {
    /// Returns the location of the node.
    pub(super) fn location(&self) -> Location {
        Location { position: self.node.at, path: self.path.clone() }
    }

    /// Reports an error at the node.
    pub(super) fn fail(&self, report: &mut Report, message: impl Into<String>, remedy: &str) {
        report.error(&self.location(), message, remedy);
    }

    /// Adds a warning at the node.
    pub(super) fn warn(&self, report: &mut Report, message: impl Into<String>, remedy: &str) {
        report.warning(&self.location(), message, remedy);
    }

    /// Returns the scalar, or reports an error; `form` tells the author what to write.
    pub(super) fn scalar(&self, report: &mut Report, form: &str) -> Option<&'n Scalar> {
        match &self.node.value {
            Value::Scalar(scalar) if !scalar.is_null() => return Some(scalar),
            Value::Broken => {}
            _ => self.wrong_kind(report, form),
        }
        None
    }

    /// Returns the items of a list, or reports an error.
    pub(super) fn list(&self, report: &mut Report, form: &str) -> Option<Vec<Item<'n>>> {
        let Value::List(list) = &self.node.value else {
            self.wrong_kind(report, form);
            return None;
        };
        let item = |(index, node)| Item { node, path: self.path.index(index) };
        Some(list.iter().enumerate().map(item).collect())
    }

    /// Returns the items of a list, or the item itself if it is not a list.
    pub(super) fn one_or_more(&self) -> Vec<Item<'n>> {
        match &self.node.value {
            Value::List(list) => {
                let item = |(index, node)| Item { node, path: self.path.index(index) };
                list.iter().enumerate().map(item).collect()
            }
            _ => vec![self.clone()],
        }
    }

    /// Returns the entries of a map whose keys are names that the file chooses.
    pub(super) fn entries(
        &self,
        report: &mut Report,
        form: &str,
    ) -> Option<Vec<(&'n Key, Item<'n>)>> {
        let Value::Map(entries) = &self.node.value else {
            self.wrong_kind(report, form);
            return None;
        };
        let item =
            |(key, node): &'n (Key, Node)| (key, Item { node, path: self.path.key(&key.text) });
        Some(entries.iter().map(item).collect())
    }

    /// Reports that the value is not of the expected kind.
    fn wrong_kind(&self, report: &mut Report, form: &str) {
        let message = match &self.node.value {
            Value::Broken => return,
            Value::Scalar(scalar) if scalar.is_null() => "missing value",
            Value::Scalar(_) => "a single value is not allowed here",
            Value::List(_) => "a list is not allowed here",
            Value::Map(_) => "a map is not allowed here",
        };
        self.fail(report, message, form);
    }
}

/// The options in a map.
pub(super) struct Fields<'n> {
    item: Item<'n>,
    entries: &'n [(Key, Node)],
}

impl<'n> Fields<'n> {
    /// Opens a map, and reports every key that is not in `known`.
    pub(super) fn open(item: Item<'n>, known: &[&str], report: &mut Report) -> Option<Self> {
        Self::open_with_misplaced(item, known, &[], report)
    }

    /// Opens a map whose keys in `misplaced` are valid in other sections only, and reports these as
    /// such.
    pub(super) fn open_with_misplaced(
        item: Item<'n>,
        known: &[&str],
        misplaced: &[&str],
        report: &mut Report,
    ) -> Option<Self> {
        let Value::Map(entries) = &item.node.value else {
            item.wrong_kind(report, &format!("write a map with the keys {}", join_words(known)));
            return None;
        };
        for (key, _) in entries {
            let name = key.text.as_str();
            if known.contains(&name) {
                continue;
            }
            let location = Location { position: key.at, path: item.path.key(name) };
            if misplaced.contains(&name) {
                let message = "only routes of gateways have this option";
                report.error(&location, message, "remove it");
                continue;
            }
            // Comparing takes time that a file of nonsense does not deserve.
            let near = (!report.is_full()).then(|| nearest(name, known.iter().copied()));
            let remedy = match near.flatten() {
                Some(near) => format!("did you mean {near}?"),
                None => format!("known keys: {}", join_words(known)),
            };
            let message = "unknown key".to_owned();
            let display = LineDisplay::UpToKey(name.chars().count());
            report.error_at(location.position, &location.path, message, &remedy, display);
        }
        Some(Self { item, entries })
    }

    /// Returns the location of the map.
    pub(super) fn location(&self) -> Location {
        self.item.location()
    }

    /// Returns the location to report for a missing option: the line of the option `near` that
    /// requires it, or else of the map.
    pub(super) fn missing(&self, key: &str, near: &str) -> Location {
        let near = self.get(near).map_or(self.item.node.at, |item| item.node.at);
        Location { position: near, path: self.item.path.key(key) }
    }

    /// Returns an option, unless it is left out.
    pub(super) fn get(&self, key: &str) -> Option<Item<'n>> {
        let (_, node) = self.entries.iter().find(|(other, _)| other.text == key)?;
        match &node.value {
            Value::Scalar(scalar) if scalar.is_omitted() => None,
            _ => Some(Item { node, path: self.item.path.key(key) }),
        }
    }

    /// Returns an option, or reports that it is missing.
    pub(super) fn require(&self, key: &str, remedy: &str, report: &mut Report) -> Option<Item<'n>> {
        let found = self.get(key);
        if found.is_none() {
            report.error(&self.location(), format!("missing {key}"), remedy);
        }
        found
    }

    /// Reads an option. Returns `default` if it is left out or has an error.
    pub(super) fn read<T>(
        &self,
        key: &str,
        default: T,
        report: &mut Report,
        read: impl FnOnce(&Item<'n>, &mut Report) -> Option<T>,
    ) -> T {
        self.get(key).and_then(|item| read(&item, report)).unwrap_or(default)
    }

    /// Reads an option. Returns `None` if it is left out or has an error.
    pub(super) fn read_some<T>(
        &self,
        key: &str,
        report: &mut Report,
        read: impl FnOnce(&Item<'n>, &mut Report) -> Option<T>,
    ) -> Option<T> {
        self.get(key).and_then(|item| read(&item, report))
    }
}

/// Joins words as in `a, b and c`.
pub(super) fn join_words(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [word] => (*word).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// Returns the word that a misspelled word probably means.
pub(super) fn nearest<'w>(written: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    // A long text is not a misspelling of a short word, and comparing takes time.
    if written.len() > 40 {
        return None;
    }
    let written = shorten(written).to_lowercase();
    let distance = |word: &str| strsim::osa_distance(&written, &word.to_lowercase());
    let near = words.map(|word| (distance(word), word)).min_by_key(|(distance, _)| *distance);
    let far = written.chars().count() / 3 + 1;
    near.filter(|(distance, _)| *distance <= far.min(3)).map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_found_if_it_is_near() {
        let words = ["limit", "lease", "name", "on_expiry", "per"];
        for (written, near) in [
            ("limt", Some("limit")),
            ("Limit", Some("limit")),
            ("limits", Some("limit")),
            ("nmae", Some("name")),
            ("on-expiry", Some("on_expiry")),
            ("onExpiry", Some("on_expiry")),
            ("pre", Some("per")),
            ("x", None),
            ("colour", None),
        ] {
            assert_eq!(nearest(written, words.into_iter()), near, "{written}");
        }
        assert_eq!(nearest(&"limit".repeat(100_000), words.into_iter()), None);
    }
}
