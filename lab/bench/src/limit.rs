//! How many files this program and its servers may have open: each session takes one on each side.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Enough for 20,000 sessions.
const WANTED: u64 = 32_768;
/// Enough for all that is compared: 10,000 sessions. Below it is said.
const NEEDED: u64 = 12_000;

/// How many it may be now.
pub fn open_files() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Raises the limit as far as this user may; servers inherit it.
pub fn raise_open_files() {
    let hard = getrlimit(Resource::Nofile).maximum;
    // First beyond the hard limit, which the superuser may, then up to it.
    let limits = [(WANTED, hard.map(|hard| hard.max(WANTED))), (hard.unwrap_or(WANTED).min(WANTED), hard)];
    for (current, maximum) in limits {
        if open_files() < current {
            // Refused: what is possible is tried next, and what is left is said below.
            let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum });
        }
    }
    if open_files() < NEEDED {
        let limit = open_files();
        eprintln!(
            "only {limit} files may be open: trials with more sessions will fail (ulimit -Hn {WANTED})"
        );
    }
}
