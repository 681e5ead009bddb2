//! Limit of open files of this program and its servers: each session takes one file on each side.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Limit that suffices for 20,000 sessions.
const WANTED: u64 = 32_768;
/// Limit that suffices for the comparison: 10,000 sessions. The program warns below this limit.
const NEEDED: u64 = 12_000;

/// Returns the current limit.
pub fn open_files() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Raises the limit as far as this user may; servers inherit the limit.
pub fn raise_open_files() {
    let hard = getrlimit(Resource::Nofile).maximum;
    // First beyond the hard limit, as only the superuser may, then up to the hard limit.
    let limits = [(WANTED, hard.map(|hard| hard.max(WANTED))), (hard.unwrap_or(WANTED).min(WANTED), hard)];
    for (current, maximum) in limits {
        if open_files() < current {
            // A refusal is expected: the loop tries the lower limit, and the check below warns.
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
