//! The warden: a second process that kills the command when `rowlock lock` itself cannot.
//!
//! `rowlock lock` may be killed, stopped or delayed. Its warden is a process beside it that learns the
//! command's process group and the lock's deadline from lines on its stdin. When the deadline passes without
//! extension, or stdin ends without `done`, it kills the whole group. That is before the cluster grants the
//! lock to the next, as the deadline is earlier. The kernel also ties the command itself to `rowlock lock`
//! (`exec.rs`); the warden covers all that the command started, and a `rowlock lock` that is stopped. Once no
//! process of the command is left, the warden also ends the session of a `rowlock lock` that is gone,
//! so that the next client need not wait for its timeout.
//!
//! Deadlines are points of CLOCK_BOOTTIME, which all processes of a machine share and which continues during
//! suspend. So a line that is written before a pause and read after it is still right. Invariant: the warden
//! never extends a deadline itself, and releases nothing before the command is gone.
//!
//! The warden may be stopped, too (`killall -STOP rowlock`). So a timer of the kernel continues it (SIGCONT)
//! at the deadline. The command starts only after the warden has set that timer and reported it by one byte
//! on its stdout.

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

use super::processes::{OURSELVES, runs_any};
use crate::cluster::Cluster;
use crate::exit::{Failure, SOFTWARE, UNAVAILABLE};

/// A line is a word and a number or a path; this is many lines.
const READ_BYTES: usize = 4096;
/// A sleep does not count the time of a suspended machine: a deadline is noticed at most this late after
/// that.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// A killed process is gone in milliseconds. One that is not waits for its disk, and may yet write. Then the
/// warden releases nothing, and the end of the session does.
const DYING_MAX: Duration = Duration::from_secs(2);
const DYING_POLL: Duration = Duration::from_millis(5);
/// After this the end of the session releases the lock: the warden must not try for ever.
const GIVING_BACK_MAX: Duration = Duration::from_secs(5);

/// The warden of one command, as `rowlock lock` sees it. Dropping it before [`Warden::dismiss`] has the
/// command killed.
pub struct Warden {
    process: Child,
    orders: Option<ChildStdin>,
    armed: ChildStdout,
    told: Option<Instant>,
}

impl Warden {
    /// Starts the process. It does nothing until it is told a group. `way`: the flags by which it reaches
    /// the cluster, to which it may have to release.
    pub fn start(way: &[String]) -> Result<Warden, Failure> {
        let failed = |e: io::Error| Failure::new(SOFTWARE, format!("cannot start the command's warden: {e}"));
        let mut command = Command::new(OURSELVES);
        // Of its own group, so that what kills our group leaves it; with none of our outputs, so that their
        // readers need not wait for the warden.
        command
            .arg0("rowlock")
            .arg("__warden")
            .args(way)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut process = command.process_group(0).spawn().map_err(failed)?;
        let orders = process.stdin.take().expect("asked for a pipe");
        // A warden that does not read (it was stopped) must not stop us.
        let flags = fcntl_getfl(&orders).map_err(|e| failed(e.into()))?;
        fcntl_setfl(&orders, flags | OFlags::NONBLOCK).map_err(|e| failed(e.into()))?;
        let armed = process.stdout.take().expect("asked for a pipe");
        let armed = ChildStdout::from_std(armed).map_err(failed)?;
        Ok(Warden { process, orders: Some(orders), armed, told: None })
    }

    /// Hands over the group to watch and the deadline. Returns whether the warden has set its timer before
    /// that deadline; fails if the warden has ended.
    pub async fn watch(&mut self, group: Pid, until: Instant) -> Result<bool, Failure> {
        self.tell(&format!("group {group}\n"));
        self.extend(until);
        match time::timeout_at(until, self.armed.read_exact(&mut [0])).await {
            Ok(Ok(_)) => Ok(true),
            Ok(Err(_)) => {
                Err(Failure::new(SOFTWARE, "the command's warden has ended: the command is not started"))
            }
            Err(_) => Ok(false),
        }
    }

    /// Has it end this session if we are gone. Only the owner of a session may: others may not delete its
    /// places where locks are guarded.
    pub fn give_back(&mut self, ticket: &SessionTicket) {
        self.tell(&format!("session {}\n", ticket.reveal()));
    }

    pub fn extend(&mut self, until: Instant) {
        if self.told != Some(until) {
            self.told = Some(until);
            self.tell(&format!("until {}\n", on_system_clock(until)));
        }
    }

    /// The command has ended, or has been ended: nothing is watched any more.
    pub fn dismiss(mut self) {
        self.tell("done\n");
        self.orders = None;
        // It ends at once; if it cannot, that does no harm any more.
        let _ = self.process.try_wait();
    }

    fn tell(&mut self, line: &str) {
        if let Some(orders) = &mut self.orders {
            // A warden that is gone or full leaves the kernel's tie and ourselves; and it errs to the safe
            // side.
            let _ = orders.write_all(line.as_bytes());
        }
    }
}

/// The point on CLOCK_BOOTTIME in nanoseconds, rounded to the past: the system's clock is read first.
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
    /// Returns when the command has ended or was killed.
    pub fn run(self) -> Result<ExitCode, Failure> {
        let mut orders = Orders::default();
        match watch(&mut orders) {
            StopCause::Ended => {}
            StopCause::DeadlinePassed => kill(&orders),
            StopCause::Orphaned => {
                kill(&orders);
                if is_gone(&orders) {
                    self.give_back(&orders);
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Takes the session over and closes it, and with it the place in the queue. If that fails, the session
    /// ends by itself.
    fn give_back(&self, orders: &Orders) {
        let Some(ticket) = orders.session.clone() else { return };
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
        runtime.block_on(async {
            let giving_back = async {
                let builder = self.cluster.client()?.take_over(ticket);
                let client = builder.connect().await.map_err(|e| Failure::new(UNAVAILABLE, e.to_string()))?;
                client.close().await.map_err(|e| crate::cluster::failed("the session", &e))
            };
            // The outcome cannot be reported to anybody any more.
            let _ = time::timeout(GIVING_BACK_MAX, giving_back).await;
        });
    }
}

enum StopCause {
    /// The command has ended, and `rowlock lock` has seen it.
    Ended,
    /// The deadline has come, and `rowlock lock` is silent: it may be stopped.
    DeadlinePassed,
    /// `rowlock lock` is gone.
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
        // Orders that wait are read before the clock decides: there may be a later deadline among them.
        let left = orders.until.map(|until| Duration::from_nanos(until.saturating_sub(system_clock())));
        if !readable(left.map(|left| left.min(LOOK_AGAIN)), &alarm) {
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

/// Timers of the kernel for the deadline: one continues this process if it is stopped then, and one ends its
/// wait, which would go on with the time that was left when it was stopped. A system that has none leaves a
/// stopped warden stopped.
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
        // Without them the clock is looked at again soon.
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

/// Waits for orders, at most for `wait_max`, or until the alarm goes off.
fn readable(wait_max: Option<Duration>, alarm: &Alarm) -> bool {
    let stdin = rustix::stdio::stdin();
    let mut fds = vec![PollFd::new(&stdin, PollFlags::IN)];
    fds.extend(alarm.wake.iter().map(|wake| PollFd::new(wake, PollFlags::IN)));
    let wait_max = wait_max.and_then(|p| Timespec::try_from(p).ok());
    poll(&mut fds, wait_max.as_ref()).is_ok_and(|_| !fds[0].revents().is_empty())
}

fn kill(orders: &Orders) {
    if let Some(group) = orders.group.and_then(Pid::from_raw) {
        // An error means that no process is left, as intended.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// Waits until nothing of the command runs any more.
fn is_gone(orders: &Orders) -> bool {
    let Some(group) = orders.group.and_then(Pid::from_raw) else { return true };
    let start = time::now();
    while runs_any(group) {
        if start.elapsed() > DYING_MAX {
            return false;
        }
        // This process waits for nothing else; there is no runtime to keep going.
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
        for line in ["group 42", "until 7", "nonsense", "until 9", "session 1ab.00ff"] {
            orders.read(line);
        }
        let session = "1ab.00ff".parse().ok();
        assert_eq!(orders, Orders { group: Some(42), until: Some(9), session, done: false });
        orders.read("done");
        assert!(orders.done);
    }

    #[test]
    fn deadline_on_the_system_clock_is_never_later_than_ours() {
        let at = time::now() + Duration::from_secs(5);
        let told = on_system_clock(at);
        let left = at.saturating_since(time::now());
        assert!(u128::from(told) <= u128::from(system_clock()) + left.as_nanos() + 1_000_000);
        assert!(u128::from(told) + 1_000_000_000 > u128::from(system_clock()) + left.as_nanos());
    }
}
