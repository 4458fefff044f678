//! The windows that have names in metrics and usage answers: minute, hour and day.

use sluicegate_core::limit::Period;
use sluicegate_core::{Limit, Span};

/// A minute, an hour or a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NamedWindow {
    Minute,
    Hour,
    Day,
}

impl NamedWindow {
    pub(crate) const ALL: [Self; 3] = [Self::Minute, Self::Hour, Self::Day];

    /// Returns the named window of a limit, if it has one.
    pub(crate) fn of(limit: &Limit) -> Option<Self> {
        const MINUTE: Span = Span::from_secs(60);
        const HOUR: Span = Span::from_secs(3_600);
        const DAY: Span = Span::from_secs(86_400);
        match limit {
            Limit::Calendar { calendar, .. } => {
                (calendar.period == Period::Day).then_some(Self::Day)
            }
            _ => match limit.window() {
                MINUTE => Some(Self::Minute),
                HOUR => Some(Self::Hour),
                DAY => Some(Self::Day),
                _ => None,
            },
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
        }
    }
}
