//! Signals that this process receives and forwards to the command.

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::exit::Failure;
use crate::signals::listen_unless_ignored;

/// SIGTSTP and SIGWINCH have the same numbers on all of Linux's architectures but MIPS.
const TERMINAL_STOP: i32 = Signal::TSTP.as_raw();
const WINDOW_CHANGE: i32 = Signal::WINCH.as_raw();

/// Receiver of the signals meant for the command.
pub struct ForwardedSignals {
    receivers: Vec<(Signal, unix::Signal)>,
}

impl ForwardedSignals {
    /// Starts to receive the signals, which no longer end this process. Ignored signals stay ignored, in the
    /// command too.
    pub fn listen() -> Result<ForwardedSignals, Failure> {
        let mut signals = ForwardedSignals { receivers: Vec::new() };
        for (signal, kind) in [
            (Signal::INT, SignalKind::interrupt()),
            (Signal::TERM, SignalKind::terminate()),
            (Signal::HUP, SignalKind::hangup()),
            (Signal::QUIT, SignalKind::quit()),
            (Signal::USR1, SignalKind::user_defined1()),
            (Signal::USR2, SignalKind::user_defined2()),
        ] {
            signals.add(signal, kind)?;
        }
        Ok(signals)
    }

    /// Also receives the terminal's signals to its foreground job: Ctrl-Z stops the command instead of this
    /// process, which stops afterwards.
    pub fn listen_to_terminal(&mut self) -> Result<(), Failure> {
        for (signal, number) in [(Signal::TSTP, TERMINAL_STOP), (Signal::WINCH, WINDOW_CHANGE)] {
            self.add(signal, SignalKind::from_raw(number))?;
        }
        Ok(())
    }

    fn add(&mut self, signal: Signal, kind: SignalKind) -> Result<(), Failure> {
        self.receivers.extend(listen_unless_ignored(kind)?.map(|receiver| (signal, receiver)));
        Ok(())
    }

    /// Returns the result of `work`, or the first signal before its end.
    pub async fn unless<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Signal> {
        tokio::select! {
            biased;
            signal = self.next() => Err(signal),
            done = work => Ok(done),
        }
    }

    /// Returns the next signal. Cancel safe.
    pub async fn next(&mut self) -> Signal {
        std::future::poll_fn(|cx| {
            for (signal, receiver) in &mut self.receivers {
                if receiver.poll_recv(cx).is_ready() {
                    return std::task::Poll::Ready(*signal);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}
