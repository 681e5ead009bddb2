//! Shared code of the fuzz targets: their entry point, and a meter of the memory that a reader takes for an
//! input.
//!
//! libFuzzer's own limit covers the whole process only. A reader must not take more memory than the size of
//! its input justifies: each target states its bound.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

#[cfg(feature = "libfuzzer")]
pub use libfuzzer_sys::fuzz_target;

/// Defines the target without libFuzzer: a program that reads the files named as arguments.
#[cfg(not(feature = "libfuzzer"))]
#[macro_export]
macro_rules! fuzz_target {
    ($(init: $init:expr,)? |$input:tt $(: $type:ty)?| $body:block) => {
        fn main() -> std::io::Result<()> {
            $($init;)?
            let target: fn(&[u8]) = |$input $(: $type)?| $body;
            std::env::args_os().skip(1).try_for_each(|file| Ok(target(&std::fs::read(file)?)))
        }
    };
}

/// Counts allocated bytes. Each target has one thread.
struct Meter;

#[global_allocator]
static METER: Meter = Meter;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn grown(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Relaxed).wrapping_add(bytes);
    PEAK.fetch_max(live, Relaxed);
}

fn shrunk(bytes: usize) {
    LIVE.fetch_sub(bytes, Relaxed);
}

// SAFETY: every call goes to the system's allocator unchanged; the meter only counts.
unsafe impl GlobalAlloc for Meter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        shrunk(layout.size());
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        grown(size);
        shrunk(layout.size());
        unsafe { System.realloc(block, layout, size) }
    }
}

/// Runs `operation` and panics if its peak memory exceeds `bytes_max`. The result counts as well.
pub fn within<T>(bytes_max: usize, operation: impl FnOnce() -> T) -> T {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let result = operation();
    let taken = PEAK.load(Relaxed).saturating_sub(before);
    assert!(taken <= bytes_max, "{taken} bytes of memory exceed the bound of {bytes_max}");
    result
}

/// Runs `operation` with a bound of `at_least` bytes, and `per_byte` bytes of memory for each byte of
/// `input`.
pub fn within_worth<T>(input: &[u8], at_least: usize, per_byte: usize, operation: impl FnOnce() -> T) -> T {
    within(at_least + per_byte * input.len(), operation)
}

/// Returns a new folder for files that a reader opens: in memory, if the system supports this.
pub fn folder() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let above = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let folder = above.join(format!("rowlock-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("cannot create a folder in the folder for temporary files");
    folder
}
