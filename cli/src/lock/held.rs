//! What a command can run under: a lock, permits of a semaphore, a leadership. One trait for all of them.

use std::future::Future;

use rowlock_client::{
    FencingToken, Guard, Instant, Leadership, LostReason, Permits, Question, Questions, ReleaseError,
    WaitStats,
};
use rowlock_env::time;

use crate::moment::span;
use crate::print::{errln, safe};

/// Something that is held, and can be lost.
pub trait Held {
    /// The path of our queue znode.
    fn key(&self) -> String;
    /// The fencing token: larger than that of every earlier holder.
    fn token(&self) -> FencingToken;
    fn wait_stats(&self) -> WaitStats;
    fn valid_until(&self) -> Option<Instant>;
    fn lost(&self) -> impl Future<Output = LostReason>;
    fn asked(&self) -> Questions;
    fn release(self) -> impl Future<Output = Result<(), ReleaseError>>;
}

/// Each of them wraps a guard; only the release differs.
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

/// Tells the person at our standard error what another one asks.
pub fn tell_asked(name: &str, question: &Question) {
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
