//! Measurements on a machine that may be busy with other work.

/// Maximum number of measurements.
const TRIES: usize = 5;

/// Measures until `reached` holds, at most five times, and returns the last result. The number of the
/// try is passed to `measure`.
///
/// Other work on the machine can only lower the use of a limit, so one undisturbed measurement is
/// enough. What must always hold is asserted by `measure` itself.
pub(crate) fn measured<T>(reached: impl Fn(&T) -> bool, mut measure: impl FnMut(usize) -> T) -> T {
    let mut result = measure(1);
    for number in 2..=TRIES {
        if reached(&result) {
            break;
        }
        result = measure(number);
    }
    result
}
