//! Common trait of everything a command can run under: a lock, permits of a semaphore, a leadership.

use std::future::Future;

use rowlock_client::{
    FencingToken, Guard, Instant, Leadership, LostReason, Permits, Question, Questions, ReleaseError,
    WaitStats,
};
use rowlock_env::time;

use crate::moment::span;
use crate::print::{errln, safe};

/// Lock, permits or leadership, all of which can be lost.
pub trait Held {
    /// Returns the path of the own queue znode.
    fn key(&self) -> String;
    /// Returns the fencing token, larger than the token of every earlier holder.
    fn token(&self) -> FencingToken;
    fn wait_stats(&self) -> WaitStats;
    fn valid_until(&self) -> Option<Instant>;
    fn lost(&self) -> impl Future<Output = LostReason>;
    fn asked(&self) -> Questions;
    fn release(self) -> impl Future<Output = Result<(), ReleaseError>>;
}

/// All implementations wrap a guard; only the release differs.
macro_rules! held {
    ($($kind:ty),*) => {$(
        impl Held for $kind {
            fn key(&self) -> String {
                self.path().to_owned()
            }

            fn token(&self) -> FencingToken {
                Guard::token(self)
            }

            fn wait_stats(&self) -> WaitStats {
                Guard::wait_stats(self)
            }

            fn valid_until(&self) -> Option<Instant> {
                Guard::valid_until(self)
            }

            fn lost(&self) -> impl Future<Output = LostReason> {
                Guard::lost(self)
            }

            fn asked(&self) -> Questions {
                Guard::asked(self)
            }

            fn release(self) -> impl Future<Output = Result<(), ReleaseError>> {
                <$kind>::release(self)
            }
        }
    )*};
}

held!(Guard, Permits, Leadership);

/// Prints a question from another client to stderr.
pub fn print_question(name: &str, question: &Question) {
    let (by, reason) = (safe(&question.by), safe(&question.reason));
    match question.deadline {
        None => errln!("rowlock: {name}: {by} asks for the lock: {reason}"),
        Some(deadline) => {
            let left_ms = deadline.saturating_since(time::now()).as_millis();
            let left = span(i64::try_from(left_ms).unwrap_or(i64::MAX));
            errln!("rowlock: {name}: {by} asks for the lock: {reason}; it is lost in {left}");
        }
    }
}
