//! Facts from /proc about this process, groups and parents.

use std::fs::File;
use std::io::Read;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, test_kill_process_group};

/// The running program, even after an update has replaced or removed the file: a command may wait for hours.
pub const SELF_EXE: &str = "/proc/self/exe";

#[derive(Debug, PartialEq, Eq)]
struct ProcessStat {
    /// True for a zombie: ended, but not reaped by its parent.
    ended: bool,
    parent: Option<Pid>,
    group: Option<Pid>,
}

/// Returns true if any process of the group runs. A zombie does not run (the first process of a container
/// often never reaps its children).
pub fn runs_any(group: Pid) -> bool {
    if test_kill_process_group(group).is_err() {
        return false;
    }
    // Without a list of processes, assume a running one.
    let Ok(processes) = std::fs::read_dir("/proc") else { return true };
    let ids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter_map(|id| entry(Pid::from_raw(id)?)).any(|entry| entry.group == Some(group) && !entry.ended)
}

pub fn parent_of(pid: Pid) -> Option<Pid> {
    entry(pid)?.parent
}

fn entry(pid: Pid) -> Option<ProcessStat> {
    let stat = rustix::fs::open(format!("/proc/{pid}/stat"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let mut text = String::new();
    File::from(stat.ok()?).read_to_string(&mut text).ok()?;
    parse(&text)
}

fn parse(stat: &str) -> Option<ProcessStat> {
    // The name in parentheses may contain anything, even parentheses.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let ended = matches!(fields.next()?, "Z" | "X");
    let mut id = || Some(Pid::from_raw(fields.next()?.parse().ok()?));
    Some(ProcessStat { ended, parent: id()?, group: id()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_follow_any_process_name() {
        let pid = Pid::from_raw;
        let read = parse("7 (a) b (c) S 3 5 7 0");
        assert_eq!(read, Some(ProcessStat { ended: false, parent: pid(3), group: pid(5) }));
        assert_eq!(parse("7 (sh) Z 0 5 7 0"), Some(ProcessStat { ended: true, parent: None, group: pid(5) }));
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn own_group_runs() {
        assert!(runs_any(rustix::process::getpgrp()));
    }
}
