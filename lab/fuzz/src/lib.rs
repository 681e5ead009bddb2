//! What the fuzz targets share: their entry, and a meter of the memory that an input makes a reader take.
//!
//! libFuzzer's own limit sees only the whole process. A reader must not take more than its input's size
//! justifies, however small that is: each target says how much.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

#[cfg(feature = "libfuzzer")]
pub use libfuzzer_sys::fuzz_target;

/// The target without libFuzzer: a program that reads the files it is given.
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

/// Counts the bytes that are allocated. The targets are one thread.
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

// SAFETY: every call goes to the system's allocator unchanged; only numbers are kept beside it.
unsafe impl GlobalAlloc for Meter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        shrunk(layout.size());
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        grown(size);
        shrunk(layout.size());
        unsafe { System.realloc(place, layout, size) }
    }
}

/// Does `what` and panics if it has taken more memory at a time than this. What it returns is counted.
pub fn within<T>(bytes_max: usize, what: impl FnOnce() -> T) -> T {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let done = what();
    let taken = PEAK.load(Relaxed).saturating_sub(before);
    assert!(taken <= bytes_max, "{taken} bytes of memory where {bytes_max} are the bound");
    done
}

/// Whether `what` is worth at most `per_byte` bytes of memory for each of these, and `at_least` at any rate.
pub fn within_worth<T>(input: &[u8], at_least: usize, per_byte: usize, what: impl FnOnce() -> T) -> T {
    within(at_least + per_byte * input.len(), what)
}

/// Where files that a reader wants to open are put: in memory, if the system has a place for that.
pub fn folder() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let above = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let folder = above.join(format!("rowlock-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the folder for temporary files takes another");
    folder
}
