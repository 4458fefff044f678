//! [`Backlog`]: the requests that wait on one node, counted by flow. The nodes that share a limit
//! exchange their backlogs through the store, so that each knows how many requests wait in all.

use std::fmt;

use crate::id::Id;
use crate::time::Span;

/// Maximum number of flows that a backlog names.
pub const FLOWS_MAX: usize = 100;
/// Maximum length in bytes of the name of a flow in a backlog. Clients may choose these names.
pub const FLOW_NAME_MAX: usize = 128;
/// Version of the text form.
const VERSION: &str = "1";

/// The requests that wait on one node for turns under the same limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// The longest flows: name and number of waiting requests.
    pub flows: Vec<(String, u64)>,
    /// Number of flows that are not named.
    pub unnamed_flows: u64,
    /// Number of requests that wait in flows that are not named.
    pub unnamed_waiting: u64,
    /// Number of turns that are booked for these requests.
    pub booked: u64,
}

/// The backlog of a node, as the node reports it to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BacklogReport {
    /// The queue that reports. A second report replaces its first.
    pub queue: Id,
    /// Its backlog. An empty one removes the report.
    pub backlog: Backlog,
    /// Time after which the store forgets the report, by its own clock.
    pub expires_after: Span,
}

impl Backlog {
    /// Counts flows. Names the longest ones.
    pub fn new<'a>(flows: impl IntoIterator<Item = (&'a str, u64)>, booked: u64) -> Self {
        let mut backlog = Self { booked, ..Self::default() };
        for (name, waiting) in flows {
            if name.len() > FLOW_NAME_MAX || name.contains('\n') {
                backlog.unnamed_flows += 1;
                backlog.unnamed_waiting += waiting;
            } else {
                backlog.flows.push((name.to_owned(), waiting));
            }
        }
        if backlog.flows.len() > FLOWS_MAX {
            let longest_first = |(_, waiting): &(String, u64)| std::cmp::Reverse(*waiting);
            backlog.flows.select_nth_unstable_by_key(FLOWS_MAX, longest_first);
            for (_, waiting) in backlog.flows.drain(FLOWS_MAX..) {
                backlog.unnamed_flows += 1;
                backlog.unnamed_waiting += waiting;
            }
        }
        backlog
    }

    /// Returns true if no request waits and no turn is booked.
    pub fn is_empty(&self) -> bool {
        self.waiting() == 0 && self.booked == 0
    }

    /// Returns the number of waiting requests.
    pub fn waiting(&self) -> u64 {
        self.flows.iter().map(|(_, waiting)| waiting).sum::<u64>() + self.unnamed_waiting
    }

    /// Parses the text form. Returns `None` for a text of another version.
    pub fn parse(text: &str) -> Option<Self> {
        let mut lines = text.split('\n');
        let mut numbers = lines.next()?.strip_prefix(VERSION)?.strip_prefix(' ')?.split(' ');
        let mut number = || numbers.next()?.parse().ok();
        let (booked, unnamed_flows, unnamed_waiting) = (number()?, number()?, number()?);
        let flow = |line: &str| {
            let (waiting, name) = line.split_once(' ')?;
            Some((name.to_owned(), waiting.parse().ok()?))
        };
        let flows = lines.map(flow).collect::<Option<_>>()?;
        Some(Self { flows, unnamed_flows, unnamed_waiting, booked })
    }
}

/// The text form: a line with the version, the booked turns and the unnamed flows, then a line for
/// each named flow.
impl fmt::Display for Backlog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { flows, unnamed_flows, unnamed_waiting, booked } = self;
        write!(f, "{VERSION} {booked} {unnamed_flows} {unnamed_waiting}")?;
        flows.iter().try_for_each(|(name, waiting)| write!(f, "\n{waiting} {name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backlog_is_read_as_it_was_written() {
        let backlog = Backlog::new([("", 3), ("a b", 2), ("é", 1)], 7);
        assert_eq!(backlog.to_string(), "1 7 0 0\n3 \n2 a b\n1 é");
        assert_eq!(Backlog::parse(&backlog.to_string()), Some(backlog));
        assert_eq!(Backlog::parse(&Backlog::default().to_string()), Some(Backlog::default()));
    }

    #[test]
    fn a_text_of_another_version_is_no_backlog() {
        for text in ["", "1", "1 0 0", "2 0 0 0", "10 0 0", "1 0 0 0\n", "1 0 0 0\nx a", "1 -1 0 0"]
        {
            assert_eq!(Backlog::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_backlog_of_many_flows_names_the_longest_and_counts_all() {
        let names: Vec<String> = (0..150).map(|number| format!("flow{number}")).collect();
        let long = "x".repeat(FLOW_NAME_MAX + 1);
        let flows = names.iter().map(String::as_str).zip(1..);
        let backlog = Backlog::new(flows.chain([(long.as_str(), 1_000), ("a\nb", 1_000)]), 0);
        assert_eq!(backlog.flows.len(), FLOWS_MAX);
        assert!(backlog.flows.iter().all(|(_, waiting)| *waiting > 50));
        assert_eq!((backlog.unnamed_flows, backlog.unnamed_waiting), (52, 2_000 + 50 * 51 / 2));
        assert_eq!(backlog.waiting(), 2_000 + 150 * 151 / 2);
        assert!(!backlog.is_empty() && Backlog::default().is_empty());
    }
}
