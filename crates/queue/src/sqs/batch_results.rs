//! [`results`]: the result of each entry of a batch request.

use super::NAME;
use crate::Error;

/// Returns the results of a request whose entries are identified by their index. SQS lists the
/// entries that succeeded and those that failed; an entry in neither list may have been executed.
pub(super) fn results<'a>(
    count: usize,
    done: impl Iterator<Item = &'a str>,
    failed: impl Iterator<Item = (&'a str, Error)>,
) -> Vec<Result<(), Error>> {
    let detail = "the response has no result for this message".to_owned();
    let mut results = vec![Err(Error::Unavailable { broker: NAME, detail }); count];
    let reported = done.map(|id| (id, Ok(()))).chain(failed.map(|(id, error)| (id, Err(error))));
    for (id, result) in reported {
        if let Some(entry) = id.parse().ok().and_then(|number: usize| results.get_mut(number)) {
            *entry = result;
        }
    }
    results
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_without_a_positive_result_is_an_error() {
        let failed = [("2", Error::Lost), ("9", Error::Lost), ("x", Error::Lost)];
        let results = results(4, ["0", "3"].into_iter(), failed.into_iter());
        assert_eq!((&results[0], &results[2], &results[3]), (&Ok(()), &Err(Error::Lost), &Ok(())));
        assert!(matches!(results[1], Err(Error::Unavailable { .. })));
    }
}
