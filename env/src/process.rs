//! What the operating system tells about this process. For people and monitoring, but for its number: a forked child finds
//! out by it that connections are its parent's.

#![allow(clippy::disallowed_methods)] // this module is the seam that the ban points to

/// The number of this process. A child that was forked has another one.
pub fn id() -> u32 {
    std::process::id()
}

/// Open file descriptors, where the system tells.
pub fn open_files() -> Option<u64> {
    // The listing itself holds one open.
    std::fs::read_dir("/proc/self/fd").ok().map(|fds| (fds.count() as u64).saturating_sub(1))
}

/// How many file descriptors the process may open (the soft limit), where the system tells.
pub fn max_open_files() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #[test]
    fn some_files_are_open_and_fewer_than_the_limit() {
        let open = super::open_files().unwrap();
        assert!(open > 0 && open <= super::max_open_files().unwrap());
    }
}
