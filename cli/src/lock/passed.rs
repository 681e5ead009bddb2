//! The signals that this process receives and passes on to the command.

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::exit::Failure;
use crate::signals::hear_unless_ignored;

/// SIGTSTP and SIGWINCH have the same numbers on all of Linux's architectures but MIPS.
const TERMINAL_STOP: i32 = Signal::TSTP.as_raw();
const WINDOW_CHANGE: i32 = Signal::WINCH.as_raw();

/// The signals that are meant for the command and reach us.
pub struct Passed {
    heard: Vec<(Signal, unix::Signal)>,
}

impl Passed {
    /// From now on these signals no longer end the process. Those that were ignored stay ignored, in the
    /// command too.
    pub fn listen() -> Result<Passed, Failure> {
        let mut passed = Passed { heard: Vec::new() };
        for (signal, kind) in [
            (Signal::INT, SignalKind::interrupt()),
            (Signal::TERM, SignalKind::terminate()),
            (Signal::HUP, SignalKind::hangup()),
            (Signal::QUIT, SignalKind::quit()),
            (Signal::USR1, SignalKind::user_defined1()),
            (Signal::USR2, SignalKind::user_defined2()),
        ] {
            passed.add(signal, kind)?;
        }
        Ok(passed)
    }

    /// From now on also receives the signals of a terminal to its foreground job: Ctrl-Z no longer stops us
    /// but the command, and we stop after it.
    pub fn listen_to_terminal(&mut self) -> Result<(), Failure> {
        for (signal, number) in [(Signal::TSTP, TERMINAL_STOP), (Signal::WINCH, WINDOW_CHANGE)] {
            self.add(signal, SignalKind::from_raw(number))?;
        }
        Ok(())
    }

    fn add(&mut self, signal: Signal, kind: SignalKind) -> Result<(), Failure> {
        self.heard.extend(hear_unless_ignored(kind)?.map(|heard| (signal, heard)));
        Ok(())
    }

    /// The result of `work`, or the signal that came before its end.
    pub async fn unless<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Signal> {
        tokio::select! {
            biased;
            signal = self.next() => Err(signal),
            done = work => Ok(done),
        }
    }

    /// The next one. Cancel safe.
    pub async fn next(&mut self) -> Signal {
        std::future::poll_fn(|cx| {
            for (signal, heard) in &mut self.heard {
                if heard.poll_recv(cx).is_ready() {
                    return std::task::Poll::Ready(*signal);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}
