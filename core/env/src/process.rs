//! Facts about this process from the operating system, for operators and monitoring. The code itself only
//! uses the process id: a forked child recognizes its parent's connections by the id.

#![allow(clippy::disallowed_methods)] // this module is the seam that the ban points to

use std::path::Path;
use std::time::Duration;

use crate::world;

/// Returns the id of this process. A forked child has another id.
pub fn id() -> u32 {
    std::process::id()
}

/// Returns the id of this run of the kernel, if the system provides an id. The id changes with each start of
/// the machine, and a process that is killed leaves the same id behind.
pub fn boot_id() -> Option<String> {
    if let Some(world) = world::current() {
        return world.boot_id();
    }
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let id = id.trim();
    (!id.is_empty() && id.bytes().all(|byte| byte.is_ascii_graphic())).then(|| id.to_owned())
}

/// Returns the number of open file descriptors, if the system provides the number.
pub fn open_files() -> Option<u64> {
    // The listing itself holds a descriptor.
    std::fs::read_dir("/proc/self/fd").ok().map(|fds| (fds.count() as u64).saturating_sub(1))
}

/// Returns the limit of file descriptors (the soft limit), if the system provides the limit.
pub fn max_open_files() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Times of a thread since its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadTimes {
    /// Time on a processor.
    pub ran: Duration,
    /// Time in the run queue while all processors ran other threads.
    pub waited: Duration,
}

impl ThreadTimes {
    /// Returns the time for the same work on an idle machine.
    pub fn total(&self) -> Duration {
        self.ran + self.waited
    }
}

/// Returns the times of the calling thread, if the system provides the times; `None` in a simulated world,
/// where each thread has its own processor.
pub fn thread_times() -> Option<ThreadTimes> {
    if world::current().is_some() {
        return None;
    }
    times_in(&std::fs::read_to_string("/proc/thread-self/schedstat").ok()?)
}

/// Parses the nanoseconds in a line of schedstat.
fn times_in(line: &str) -> Option<ThreadTimes> {
    let mut nanos = line.split_whitespace().map(|word| word.parse().ok().map(Duration::from_nanos));
    Some(ThreadTimes { ran: nanos.next()??, waited: nanos.next()?? })
}

/// Returns the memory available to this process in bytes, if the system provides the number: the machine's
/// memory, or the least limit of the process's cgroups (version 1 or 2) and their parents.
pub fn memory_bytes() -> Option<u64> {
    memory_in(Path::new("/"))
}

/// Does the work of [`memory_bytes`] on the system files below `root`.
fn memory_in(root: &Path) -> Option<u64> {
    let all = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = all.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let total = line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)?;
    let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap_or_default();
    let (groups, mounts) = (read("proc/self/cgroup"), read("proc/self/mountinfo"));
    let folders = mounts.lines().filter_map(|mount| cgroup_of_memory(mount, &groups));
    Some(folders.flat_map(|(folder, file)| limits_up_from(root, &folder, file)).fold(total, u64::min))
}

/// Finds the process's memory cgroup in a mount: the mount point, the path below the mount point, and the
/// file with the limit. Returns `None` for an unrelated mount.
fn cgroup_of_memory(mount: &str, groups: &str) -> Option<((String, String), &'static str)> {
    // "36 25 0:31 ROOT MOUNTPOINT rw,relatime shared:9 - cgroup cgroup rw,memory"
    let (front, back) = mount.split_once(" - ")?;
    let mut front = front.split(' ').skip(3);
    let (root, point) = (front.next()?, front.next()?);
    let mut back = back.split(' ');
    let (kind, options) = (back.next()?, back.nth(1)?);
    let (file, group) = match kind {
        "cgroup2" => ("memory.max", groups.lines().find_map(|line| line.strip_prefix("0::"))?),
        "cgroup" if options.split(',').any(|option| option == "memory") => {
            let of_memory = |line: &str| {
                let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
                controllers.split(',').any(|it| it == "memory").then(|| path.to_owned())
            };
            let group = groups.lines().find_map(of_memory)?;
            return Some(((point.to_owned(), below(root, &group)), "memory.limit_in_bytes"));
        }
        _ => return None,
    };
    Some(((point.to_owned(), below(root, group)), file))
}

/// Returns the path of a cgroup below a mount of `root`. A container may see its own cgroup as the root, but
/// the cgroup's path as on the host.
fn below(root: &str, group: &str) -> String {
    let rest = if root == "/" { Some(group) } else { group.strip_prefix(root) };
    rest.unwrap_or_default().trim_matches('/').to_owned()
}

/// Returns the limits of a cgroup and its parents. An unlimited cgroup has a word, or a number above all
/// memory.
fn limits_up_from(root: &Path, (point, path): &(String, String), file: &'static str) -> Vec<u64> {
    let around = std::iter::successors(Some(path.as_str()), |path| {
        (!path.is_empty()).then(|| path.rsplit_once('/').map_or("", |(above, _)| above))
    });
    let limit = |path: &str| {
        let file = root.join(point.trim_start_matches('/')).join(path).join(file);
        std::fs::read_to_string(file).ok()?.trim().parse().ok()
    };
    around.filter_map(limit).collect()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_run_and_perhaps_waited() {
        let [ran, waited] = [120, 45].map(Duration::from_nanos);
        assert_eq!(times_in("120 45 7\n"), Some(ThreadTimes { ran, waited }));
        assert_eq!([times_in(""), times_in("120"), times_in("x 1 1")], [None; 3]);
        // The kernel adds a running thread's time at its ticks: a young thread has a time of zero until then.
        let ran = || thread_times().is_none_or(|times| !times.ran.is_zero());
        assert!(std::iter::repeat_with(ran).take(100_000).any(|it| it));
    }
    #[test]
    fn some_files_are_open_and_fewer_than_the_limit() {
        let open = super::open_files().unwrap();
        assert!(open > 0 && open <= super::max_open_files().unwrap());
    }

    #[expect(clippy::unwrap_used, reason = "the helpers of a test are part of the test")]
    /// Computes the memory of a machine with 8 GiB, given its cgroups, its mounts, and the limit of each
    /// cgroup.
    fn memory(groups: &str, mounts: &str, limits: &[(&str, &str)]) -> u64 {
        let temp = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = temp.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/meminfo", "MemTotal:        8388608 kB\nMemFree: 1 kB\n");
        write("proc/self/cgroup", groups);
        write("proc/self/mountinfo", mounts);
        limits.iter().for_each(|(name, text)| write(name, text));
        super::memory_in(temp.path()).unwrap()
    }

    const V1: &str = "36 25 0:31 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
                      37 25 0:32 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
                      38 25 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    const V2: &str = "29 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    const ALL: u64 = 8 << 30;

    #[test]
    fn the_least_cgroup_limit_counts_in_both_versions() {
        let nested = |low: &str, high: &str| {
            memory(
                "4:memory:/a/b\n1:cpu:/x\n0::/\n",
                V1,
                &[
                    ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
                    ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", high),
                    ("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", low),
                ],
            )
        };
        assert_eq!(nested("536870912\n", "9223372036854771712\n"), 512 << 20);
        assert_eq!(nested("536870912\n", "268435456\n"), 256 << 20);
        assert_eq!(nested("9223372036854771712\n", "9223372036854771712\n"), ALL);
        let two = |low: &str, high: &str| {
            let limits = [("sys/fs/cgroup/a/memory.max", high), ("sys/fs/cgroup/a/b/memory.max", low)];
            memory("0::/a/b\n", V2, &limits)
        };
        assert_eq!((two("max\n", "536870912\n"), two("268435456\n", "max\n")), (512 << 20, 256 << 20));
        assert_eq!(two("max\n", "max\n"), ALL);
    }

    /// The container's mount shows its own cgroup, although the cgroup has the path on the host.
    #[test]
    fn a_container_sees_its_limit_where_its_cgroup_is_mounted() {
        let mounts = V1.replace("0:31 / ", "0:31 /docker/c0ffee ");
        let limits = [("sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n")];
        for group in ["/docker/c0ffee", "/"] {
            assert_eq!(memory(&format!("7:cpu,memory:{group}\n"), &mounts, &limits), 512 << 20, "{group}");
        }
        let deeper = [("sys/fs/cgroup/memory/own/memory.limit_in_bytes", "268435456\n"), limits[0]];
        assert_eq!(memory("7:memory:/docker/c0ffee/own\n", &mounts, &deeper), 256 << 20);
    }

    #[test]
    fn without_cgroups_there_is_the_whole_machine() {
        assert_eq!(memory("", "", &[]), ALL);
        assert_eq!(memory("4:memory:/gone\n", V1, &[]), ALL);
    }

    #[test]
    fn the_process_may_have_some_memory() {
        let bytes = super::memory_bytes().unwrap();
        assert!((1 << 20..1 << 50).contains(&bytes), "{bytes}");
    }
}
