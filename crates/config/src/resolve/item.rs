//! A node on its way to being typed, and the maps that options are read from.

use crate::place::{Path, Place, brief};
use crate::raw::{Key, Node, Scalar, Value};
use crate::report::Report;

/// A node with the path that leads to it.
#[derive(Clone)]
pub(super) struct Item<'n> {
    pub(super) node: &'n Node,
    pub(super) path: Path,
}

impl<'n> Item<'n> {
    pub(super) fn place(&self) -> Place {
        Place { mark: self.node.at, path: self.path.clone() }
    }

    pub(super) fn fail(&self, report: &mut Report, message: impl Into<String>, remedy: &str) {
        report.error(&self.place(), message, remedy);
    }

    /// The text of a scalar; `form` says what to write where it is none.
    pub(super) fn scalar(&self, report: &mut Report, form: &str) -> Option<&'n Scalar> {
        match &self.node.value {
            Value::Scalar(scalar) if !scalar.is_null() => return Some(scalar),
            Value::Broken => {}
            _ => self.wrong_kind(report, form),
        }
        None
    }

    /// The items of a list.
    pub(super) fn list(&self, report: &mut Report, form: &str) -> Option<Vec<Item<'n>>> {
        let Value::List(list) = &self.node.value else {
            self.wrong_kind(report, form);
            return None;
        };
        let item = |(index, node)| Item { node, path: self.path.index(index) };
        Some(list.iter().enumerate().map(item).collect())
    }

    /// The items of a list, or the item itself where one is enough.
    pub(super) fn one_or_more(&self) -> Vec<Item<'n>> {
        match &self.node.value {
            Value::List(list) => {
                let item = |(index, node)| Item { node, path: self.path.index(index) };
                list.iter().enumerate().map(item).collect()
            }
            _ => vec![self.clone()],
        }
    }

    /// The entries of a map whose keys are names that the file chooses.
    pub(super) fn names(
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

    /// Says that this is not the kind of value that is wanted.
    fn wrong_kind(&self, report: &mut Report, form: &str) {
        let message = match &self.node.value {
            Value::Broken => return,
            Value::Scalar(scalar) if scalar.is_null() => "has no value",
            Value::Scalar(_) => "is a single value",
            Value::List(_) => "is a list",
            Value::Map(_) => "is a map",
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
    /// Opens a map whose keys are all `known`, and reports those that are not.
    pub(super) fn open(item: Item<'n>, known: &[&str], report: &mut Report) -> Option<Self> {
        Self::open_besides(item, known, &[], report)
    }

    /// The same, where some further keys are reported as a part that this version does not read.
    pub(super) fn open_besides(
        item: Item<'n>,
        known: &[&str],
        elsewhere: &[&str],
        report: &mut Report,
    ) -> Option<Self> {
        let Value::Map(entries) = &item.node.value else {
            item.wrong_kind(report, &format!("write a map of {}", listed(known)));
            return None;
        };
        for (key, _) in entries {
            let name = key.text.as_str();
            if known.contains(&name) {
                continue;
            }
            let place = Place { mark: key.at, path: item.path.key(name) };
            if elsewhere.contains(&name) {
                let message =
                    "is not read by this version, which reads the limiter's part of a file";
                report.error(&place, message, "remove it");
                continue;
            }
            // Comparing takes time that a file of nonsense is not worth.
            let near = (!report.is_full()).then(|| nearest(name, known.iter().copied()));
            let remedy = match near.flatten() {
                Some(near) => format!("did you mean {near}?"),
                None => format!("the keys here are {}", listed(known)),
            };
            report.error(&place, "unknown key", &remedy);
        }
        Some(Self { item, entries })
    }

    pub(super) fn place(&self) -> Place {
        self.item.place()
    }

    /// An option, unless it is left out.
    pub(super) fn get(&self, key: &str) -> Option<Item<'n>> {
        let (_, node) = self.entries.iter().find(|(other, _)| other.text == key)?;
        match &node.value {
            Value::Scalar(scalar) if scalar.is_left_out() => None,
            _ => Some(Item { node, path: self.item.path.key(key) }),
        }
    }

    /// An option that has to be there.
    pub(super) fn require(&self, key: &str, remedy: &str, report: &mut Report) -> Option<Item<'n>> {
        let found = self.get(key);
        if found.is_none() {
            report.error(&self.place(), format!("has no {key}"), remedy);
        }
        found
    }

    /// An option in its type, or `default` where it is left out or was reported.
    pub(super) fn read<T>(
        &self,
        key: &str,
        default: T,
        report: &mut Report,
        read: impl FnOnce(&Item<'n>, &mut Report) -> Option<T>,
    ) -> T {
        self.get(key).and_then(|item| read(&item, report)).unwrap_or(default)
    }

    /// An option in its type, if it is there.
    pub(super) fn read_some<T>(
        &self,
        key: &str,
        report: &mut Report,
        read: impl FnOnce(&Item<'n>, &mut Report) -> Option<T>,
    ) -> Option<T> {
        self.get(key).and_then(|item| read(&item, report))
    }
}

/// `a, b and c`.
pub(super) fn listed(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [word] => (*word).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// The word that was probably meant.
pub(super) fn nearest<'w>(written: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    // Nobody means a short word by a long one, and comparing takes time.
    if written.len() > 40 {
        return None;
    }
    let written = brief(written).to_lowercase();
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
