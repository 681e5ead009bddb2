//! Time and machine of a run, for its results.

use std::process::Command;

use crate::results::About;

/// Returns the present time and machine. Missing facts appear as "unknown".
pub fn here() -> About {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    About {
        date: output_of("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
        command: std::env::args().collect::<Vec<_>>().join(" "),
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        machine: format!("{}, Linux {}", processor(), kernel.trim()),
        commit: commit(),
        versions: Default::default(),
    }
}

fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    model.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

fn commit() -> String {
    let commit = output_of("git", &["rev-parse", "--short=10", "HEAD"]);
    let changes = output_of("git", &["status", "--porcelain", "--untracked-files=no"]);
    if changes.is_empty() { commit } else { format!("{commit} and changes") }
}

fn output_of(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.ok().filter(|output| output.status.success());
    output.map_or_else(
        || "unknown".to_owned(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}
