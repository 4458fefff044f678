//! Shared by the tests that measure the memory of their own process.

/// Returns the resident memory of this process, in KiB.
pub(crate) fn resident_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a size");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
}
