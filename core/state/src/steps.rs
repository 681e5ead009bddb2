//! Steps of single operations, the parts of a price. Sessions sum up the steps of their ends.
//!
//! The crate's own tests count the steps of operations: tests assert the cost of the largest requests without
//! a clock.

use rowlock_proto::path as paths;

#[cfg(test)]
thread_local! {
    static TAKEN: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Adds steps: a level walked, a key searched, eight words hashed, an ACL entry compared, or a queue position
/// visited by the deadlock search. Does nothing outside of tests.
#[inline(always)]
pub(crate) fn take(steps: usize) {
    #[cfg(test)]
    TAKEN.set(TAKEN.get() + steps as u64);
    #[cfg(not(test))]
    let _ = steps;
}

/// Runs `run` without counting its steps: assertions are no part of a command's cost.
#[inline(always)]
pub(crate) fn uncounted<R>(run: impl FnOnce() -> R) -> R {
    #[cfg(test)]
    let before = TAKEN.get();
    let result = run();
    #[cfg(test)]
    TAKEN.set(before);
    result
}

/// Returns the steps taken by `run` in this thread.
#[cfg(test)]
pub(crate) fn taken_by<R>(run: impl FnOnce() -> R) -> (R, u64) {
    let before = TAKEN.get();
    let result = run();
    (result, TAKEN.get() - before)
}

/// Steps of a znode's lookup.
pub(crate) const LOOK: u64 = 24;
/// Additional steps to change or delete a znode.
pub(crate) const CHANGE: u64 = 32;
/// Additional steps to create a znode.
pub(crate) const MAKE: u64 = 64;
/// Steps per level of a path for a lookup or change.
pub(crate) const LEVEL: u64 = 4;
/// Bytes per step: apply checks and hashes paths, and hashes data.
pub(crate) const BYTES_PER_STEP: u64 = 32;
/// Steps to delete a znode, leave a queue, or grant a lock.
pub(crate) const LEAVE: u64 = LOOK + CHANGE;
/// Length of the number behind a sequential znode's name.
pub(crate) const NUMBER_BYTES: usize = 11;

/// Returns the steps that the end of a session takes for one of its znodes.
pub(crate) fn end_steps(path: &str) -> u64 {
    end_steps_at(levels(path), path)
}

/// Returns [`end_steps`] of a path with this many levels.
#[inline]
pub(crate) fn end_steps_at(levels: u64, path: &str) -> u64 {
    LEAVE + LEVEL * levels + bytes_steps(path.len())
}

/// Returns [`end_steps`] of a sequential znode below `above`, with a name of `name` bytes in front of the
/// number.
pub(crate) fn place_end_steps(above: &str, name: usize) -> u64 {
    LEAVE + LEVEL * (levels(above) + 1) + bytes_steps(above.len() + 1 + name + NUMBER_BYTES)
}

pub(crate) fn levels(path: &str) -> u64 {
    paths::levels(path) as u64
}

pub(crate) fn bytes_steps(bytes: usize) -> u64 {
    bytes as u64 / BYTES_PER_STEP
}
