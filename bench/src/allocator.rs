//! A global allocator that measures how much memory a value uses.

#![expect(
    unsafe_code,
    reason = "implementing GlobalAlloc is unsafe, and nothing else sees every allocation"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

#[global_allocator]
static COUNTING: Counting = Counting;

static ON: AtomicBool = AtomicBool::new(false);
static BYTES: AtomicI64 = AtomicI64::new(0);
static BLOCKS: AtomicI64 = AtomicI64::new(0);

/// The system allocator, with counters that are updated only during [`weigh`]. The other sections
/// of the benchmark pay one predicted branch for it.
struct Counting;

/// Allocated memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weight {
    /// Requested bytes. glibc adds 8 to each block and rounds up to a multiple of 16.
    pub(crate) bytes: i64,
    /// Number of allocations.
    pub(crate) blocks: i64,
}

/// Calls `make`. Returns its result and the memory that it allocated and did not free.
pub(crate) fn weigh<T>(make: impl FnOnce() -> T) -> (T, Weight) {
    let before = (BYTES.load(Relaxed), BLOCKS.load(Relaxed));
    ON.store(true, Relaxed);
    let made = make();
    ON.store(false, Relaxed);
    let weight =
        Weight { bytes: BYTES.load(Relaxed) - before.0, blocks: BLOCKS.load(Relaxed) - before.1 };
    (made, weight)
}

fn count(bytes: i64, blocks: i64) {
    if ON.load(Relaxed) {
        BYTES.fetch_add(bytes, Relaxed);
        BLOCKS.fetch_add(blocks, Relaxed);
    }
}

fn size(layout: Layout) -> i64 {
    // A layout has at most isize::MAX bytes.
    layout.size() as i64
}

// SAFETY: every call is forwarded to `System` with unchanged arguments and an unchanged result;
// counting does not allocate and does not unwind.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(size(layout), 1);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`, which is that of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(size(layout), 1);
        // SAFETY: as for `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-size(layout), -1);
        // SAFETY: `pointer` came from `System` by way of `alloc`, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size as i64 - size(layout), 0);
        // SAFETY: `pointer` came from `System` by way of `alloc`, with this layout.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}
