//! What the operating system tells about this process, for people and monitoring. Only its id matters to the
//! code: a forked child learns from it that connections belong to its parent.

#![allow(clippy::disallowed_methods)] // this module is the seam that the ban points to

/// The id of this process. A forked child has another one.
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

/// What this process may have of the machine's memory, in bytes, where the system tells: all of it, or what
/// the innermost of its cgroups (version 2) allows.
pub fn memory_bytes() -> Option<u64> {
    let all = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = all.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let total = line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)?;
    Some(cgroup_limits().fold(total, u64::min))
}

/// Of the process's cgroup and of those around it.
fn cgroup_limits() -> impl Iterator<Item = u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).map(str::to_owned);
    let around = std::iter::successors(own, |path| {
        (!path.is_empty()).then(|| path.rsplit_once('/').map_or("", |(above, _)| above).to_owned())
    });
    around.filter_map(|path| {
        std::fs::read_to_string(format!("/sys/fs/cgroup/{path}/memory.max")).ok()?.trim().parse().ok()
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #[test]
    fn some_files_are_open_and_fewer_than_the_limit() {
        let open = super::open_files().unwrap();
        assert!(open > 0 && open <= super::max_open_files().unwrap());
    }

    #[test]
    fn the_process_may_have_some_memory() {
        let bytes = super::memory_bytes().unwrap();
        assert!((1 << 20..1 << 50).contains(&bytes), "{bytes}");
    }
}
