//! Warden: second process that kills the command if `rowlock lock` itself cannot.
//!
//! `rowlock lock` may be killed, stopped or delayed. The warden reads the command's process group and the
//! lock's deadline from lines on stdin. When the deadline passes without extension, or stdin ends without
//! `done`, the warden kills the whole group, before the cluster grants the lock to the next client: the
//! deadline is earlier. The kernel also ties the command itself to `rowlock lock` (`exec.rs`); the warden
//! covers all children of the command, and a stopped `rowlock lock`. Once no process of the command is left,
//! the warden also ends the session of a vanished `rowlock lock`: the next client need not wait for the
//! session timeout.
//!
//! Deadlines are points of CLOCK_BOOTTIME, which all processes of a machine share and which continues during
//! suspend: a line written before a pause and read after the pause is still right. Invariant: the warden
//! never extends a deadline itself, and releases nothing before the command is gone.
//!
//! The warden may be stopped, too (`killall -STOP rowlock`): a timer of the kernel continues the process
//! (SIGCONT) at the deadline. The command starts only after the warden has set that timer and reported it by
//! one byte on its stdout.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::time::Duration;

use nix::sys::signal::{SigEvent, SigevNotify};
use nix::sys::time::TimeSpec;
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use rowlock_client::SessionTicket;
use rowlock_env::time::{self, Instant};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process_group};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, clock_gettime, timerfd_create,
    timerfd_settime,
};
use tokio::io::AsyncReadExt;
use tokio::process::ChildStdout;

use super::job::{SELF_EXE, runs_any};
use crate::cluster::Cluster;
use crate::exit::{Failure, SOFTWARE, UNAVAILABLE};

/// Size of a read: many lines of a word and a number or a path.
const READ_BYTES: usize = 4096;
/// Longest delay after a suspend until a passed deadline is noticed: a sleep does not count suspended time.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait for the end of killed processes, usually milliseconds. A process that survives waits for its
/// disk and may still write: then the warden releases nothing and leaves that to the end of the session.
const DYING_MAX: Duration = Duration::from_secs(2);
const DYING_POLL: Duration = Duration::from_millis(5);
/// Longest attempt to end the session; afterwards the session timeout releases the lock.
const END_SESSION_MAX: Duration = Duration::from_secs(5);

/// Handle of `rowlock lock` on the warden of one command. Dropping the handle before [`Warden::dismiss`]
/// kills the command.
pub struct Warden {
    process: Child,
    orders: Option<ChildStdin>,
    armed: ChildStdout,
    sent_deadline: Option<Instant>,
}

impl Warden {
    /// Starts the process, which does nothing until [`Warden::watch`]. `cluster_flags` let the warden reach
    /// the cluster to end the session.
    pub fn start(cluster_flags: &[String]) -> Result<Warden, Failure> {
        let failed = |e: io::Error| Failure::new(SOFTWARE, format!("cannot start the command's warden: {e}"));
        let mut command = Command::new(SELF_EXE);
        // A separate group: a signal that kills our group spares the warden. None of our outputs: their
        // readers need not wait for the warden.
        command
            .arg0("rowlock")
            .arg("__warden")
            .args(cluster_flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut process = command.process_group(0).spawn().map_err(failed)?;
        let orders = process.stdin.take().expect("stdin is piped");
        // A stopped warden must not block this process.
        let flags = fcntl_getfl(&orders).map_err(|e| failed(e.into()))?;
        fcntl_setfl(&orders, flags | OFlags::NONBLOCK).map_err(|e| failed(e.into()))?;
        let armed = process.stdout.take().expect("stdout is piped");
        let armed = ChildStdout::from_std(armed).map_err(failed)?;
        Ok(Warden { process, orders: Some(orders), armed, sent_deadline: None })
    }

    /// Sets the group to watch and the deadline. Returns whether the warden has set its timer before that
    /// deadline; fails if the warden has ended.
    pub async fn watch(&mut self, group: Pid, until: Instant) -> Result<bool, Failure> {
        self.send(&format!("group {group}\n"));
        self.extend(until);
        match time::timeout_at(until, self.armed.read_exact(&mut [0])).await {
            Ok(Ok(_)) => Ok(true),
            Ok(Err(_)) => {
                Err(Failure::new(SOFTWARE, "the command's warden has ended: the command is not started"))
            }
            Err(_) => Ok(false),
        }
    }

    /// Lets the warden end this session if this process dies. Only the owner of a session may end it, and
    /// delete its queue znodes where locks are guarded.
    pub fn set_session(&mut self, ticket: &SessionTicket) {
        self.send(&format!("session {}\n", ticket.reveal()));
    }

    pub fn extend(&mut self, until: Instant) {
        if self.sent_deadline != Some(until) {
            self.sent_deadline = Some(until);
            self.send(&format!("until {}\n", on_system_clock(until)));
        }
    }

    /// Ends the watch: the command has ended.
    pub fn dismiss(mut self) {
        self.send("done\n");
        self.orders = None;
        // The warden ends at once; a warden that cannot end does no harm any more.
        let _ = self.process.try_wait();
    }

    fn send(&mut self, line: &str) {
        if let Some(orders) = &mut self.orders {
            // A dead or full warden still leaves the kernel's tie and this process, and errs on the safe
            // side.
            let _ = orders.write_all(line.as_bytes());
        }
    }
}

/// Converts to nanoseconds of CLOCK_BOOTTIME, rounded to the past: reads the system's clock first.
fn on_system_clock(at: Instant) -> u64 {
    let system = system_clock();
    let ahead = at.saturating_since(time::now());
    system.saturating_add(u64::try_from(ahead.as_nanos()).unwrap_or(u64::MAX))
}

fn system_clock() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}

/// Be the warden of a command that runs under a lock
#[derive(clap::Args)]
pub struct Watch {
    #[command(flatten)]
    cluster: Cluster,
}

#[derive(Default, Debug, PartialEq, Eq)]
struct Orders {
    group: Option<i32>,
    until: Option<u64>,
    session: Option<SessionTicket>,
    done: bool,
}

impl Orders {
    fn read(&mut self, line: &str) {
        match line.split_once(' ').unwrap_or((line, "")) {
            ("group", id) => self.group = id.parse().ok(),
            ("until", at) => self.until = at.parse().ok(),
            ("session", ticket) => self.session = ticket.parse().ok(),
            ("done", _) => self.done = true,
            _ => {}
        }
    }
}

impl Watch {
    /// Returns after the command has ended or was killed.
    pub fn run(self) -> Result<ExitCode, Failure> {
        let mut orders = Orders::default();
        match watch(&mut orders) {
            StopCause::Ended => {}
            StopCause::DeadlinePassed => kill(&orders),
            StopCause::Orphaned => {
                kill(&orders);
                if is_gone(&orders) {
                    self.end_session(&orders);
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Takes the session over and closes it, which deletes the queue znode. On failure the session ends by
    /// its timeout.
    fn end_session(&self, orders: &Orders) {
        let Some(ticket) = orders.session.clone() else { return };
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(async {
            let closing = async {
                let builder = self.cluster.client()?.take_over(ticket);
                let client = builder.connect().await.map_err(|e| Failure::new(UNAVAILABLE, e.to_string()))?;
                client.close().await.map_err(|e| crate::cluster::failed("the session", &e))
            };
            // No process is left to report the result to.
            let _ = time::timeout(END_SESSION_MAX, closing).await;
        });
    }
}

enum StopCause {
    /// `rowlock lock` has reported the end of the command.
    Ended,
    /// The deadline has passed without a line from `rowlock lock`, which may be stopped.
    DeadlinePassed,
    Orphaned,
}

fn watch(orders: &mut Orders) -> StopCause {
    let (mut partial, mut reported) = (Vec::new(), false);
    let mut alarm = Alarm::new();
    while !orders.done {
        alarm.set(orders.until);
        if orders.group.is_some() && orders.until.is_some() && !std::mem::replace(&mut reported, true) {
            // An error means that `rowlock lock` is gone, as the end of stdin reports.
            let _ = rustix::io::write(rustix::stdio::stdout(), b"+");
        }
        // Reads pending lines before the clock decides: a line may have a later deadline.
        let left = orders.until.map(|until| Duration::from_nanos(until.saturating_sub(system_clock())));
        if !readable(left.map(|left| left.min(CHECK_INTERVAL)), &alarm) {
            if orders.until.is_some_and(|until| system_clock() >= until) {
                return StopCause::DeadlinePassed;
            }
            continue;
        }
        let mut bytes = [0; READ_BYTES];
        match rustix::io::read(rustix::stdio::stdin(), &mut bytes) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(0) | Err(_) => return StopCause::Orphaned,
            Ok(n) => {
                partial.extend_from_slice(&bytes[..n]);
                while let Some(end) = partial.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = partial.drain(..=end).collect();
                    orders.read(String::from_utf8_lossy(&line).trim_end_matches('\n'));
                }
            }
        }
    }
    StopCause::Ended
}

/// Kernel timers for the deadline: one continues this process if stopped, and one ends its wait, which would
/// resume with the remaining time from before the stop. Without such timers a stopped warden stays stopped.
struct Alarm {
    cont: Option<Timer>,
    wake: Option<OwnedFd>,
    at: Option<u64>,
}

impl Alarm {
    fn new() -> Alarm {
        let event =
            SigEvent::new(SigevNotify::SigevSignal { signal: nix::sys::signal::SIGCONT, si_value: 0 });
        let cont = Timer::new(nix::time::ClockId::CLOCK_BOOTTIME, event).ok();
        let wake = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC).ok();
        Alarm { cont, wake, at: None }
    }

    fn set(&mut self, until: Option<u64>) {
        let Some(at) = until.filter(|_| until != self.at) else { return };
        self.at = until;
        // Without a timer the periodic check notices the deadline.
        let after_boot = Duration::from_nanos(at.max(1));
        if let Some(cont) = &mut self.cont {
            let at = Expiration::OneShot(TimeSpec::from_duration(after_boot));
            let _ = cont.set(at, TimerSetTimeFlags::TFD_TIMER_ABSTIME);
        }
        if let (Some(wake), Ok(at)) = (&self.wake, Timespec::try_from(after_boot)) {
            let once = Itimerspec { it_interval: Timespec::default(), it_value: at };
            let _ = timerfd_settime(wake, TimerfdTimerFlags::ABSTIME, &once);
        }
    }
}

/// Waits for lines, at most `wait_max` or until the alarm.
fn readable(wait_max: Option<Duration>, alarm: &Alarm) -> bool {
    let stdin = rustix::stdio::stdin();
    let mut fds = vec![PollFd::new(&stdin, PollFlags::IN)];
    fds.extend(alarm.wake.iter().map(|wake| PollFd::new(wake, PollFlags::IN)));
    let wait_max = wait_max.and_then(|p| Timespec::try_from(p).ok());
    poll(&mut fds, wait_max.as_ref()).is_ok_and(|_| !fds[0].revents().is_empty())
}

fn kill(orders: &Orders) {
    if let Some(group) = orders.group.and_then(Pid::from_raw) {
        // An error means: no process is left, as intended.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// Waits until nothing of the command runs; returns false after [`DYING_MAX`].
fn is_gone(orders: &Orders) -> bool {
    let Some(group) = orders.group.and_then(Pid::from_raw) else { return true };
    let start = time::now();
    while runs_any(group) {
        if start.elapsed() > DYING_MAX {
            return false;
        }
        // Blocks the process, which has no runtime and nothing else to do.
        let pause = Timespec::try_from(DYING_POLL).ok();
        let _ = poll(&mut [], pause.as_ref());
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_lines_and_the_last_deadline_counts() {
        let mut orders = Orders::default();
        for line in ["group 42", "until 7", "nonsense", "until 9", "session 1ab.00ff.2"] {
            orders.read(line);
        }
        let session = "1ab.00ff.2".parse().ok();
        assert_eq!(orders, Orders { group: Some(42), until: Some(9), session, done: false });
        orders.read("done");
        assert!(orders.done);
    }

    #[test]
    fn a_deadline_on_the_system_clock_is_never_too_late() {
        let at = time::now() + Duration::from_secs(5);
        let deadline = on_system_clock(at);
        let left = at.saturating_since(time::now());
        assert!(u128::from(deadline) <= u128::from(system_clock()) + left.as_nanos() + 1_000_000);
        assert!(u128::from(deadline) + 1_000_000_000 > u128::from(system_clock()) + left.as_nanos());
    }
}
