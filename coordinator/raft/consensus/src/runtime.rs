//! openraft's asynchronous runtime, on `rowlock_env`: openraft runs in any world behind env (tokio, a
//! simulator), without a type parameter in the rest of the code.
//!
//! This module only adapts. Channels independent of the runtime (mpsc, oneshot, mutex) come from openraft's
//! tokio adapters; watch is env's, because tokio's wakes its waiters in random order.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use openraft_rt::watch::{RecvError, SendError, WatchReceiver, WatchSender};
use openraft_rt::{AsyncRuntime, OptionalSend, OptionalSync, Watch};
use openraft_rt_tokio::{TokioMpsc, TokioMutex, TokioOneshot};
use rowlock_env::sync::watch;
use rowlock_env::{rng, task, time, worker};

#[derive(Debug)]
pub struct EnvRuntime {
    /// Only for `block_on`, used by openraft's own test suites and never by a node.
    blocking: tokio::runtime::Runtime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EnvInstant(time::Instant);

/// env's randomness as a generator of the `rand` crate.
#[derive(Clone, Copy, Debug)]
pub struct EnvRng;

#[derive(Debug)]
pub struct EnvWatch;

pub struct EnvWatchSender<T> {
    inner: watch::Sender<T>,
    receivers: Arc<AtomicUsize>,
}

/// The receiving half of [`EnvWatch`]. Counted, because openraft expects a send without receivers to fail.
pub struct EnvWatchReceiver<T> {
    inner: watch::Receiver<T>,
    receivers: Arc<AtomicUsize>,
}

impl AsyncRuntime for EnvRuntime {
    type JoinError = task::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = task::Task<T>;
    type Sleep = time::Sleep;
    type Instant = EnvInstant;
    type TimeoutError = time::Elapsed;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = time::Timeout<T>;
    type ThreadLocalRng = EnvRng;
    type Mpsc = TokioMpsc;
    type Watch = EnvWatch;
    type Oneshot = TokioOneshot;
    type Mutex<T: OptionalSend + 'static> = TokioMutex<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        task::spawn("openraft", future)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        time::sleep(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        time::sleep_until(deadline.0)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Self::Timeout<R, F> {
        time::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: Self::Instant,
        future: F,
    ) -> Self::Timeout<R, F> {
        time::timeout_at(deadline.0, future)
    }

    fn is_panic(join_error: &Self::JoinError) -> bool {
        matches!(join_error, task::JoinError::Panicked(_))
    }

    fn thread_rng() -> Self::ThreadLocalRng {
        EnvRng
    }

    fn new(threads: usize) -> Self {
        let blocking = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .enable_all()
            .build()
            .expect("a test can start a runtime");
        EnvRuntime { blocking }
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        self.blocking.block_on(future)
    }

    async fn spawn_blocking<F, T>(f: F) -> Result<T, io::Error>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        Ok(worker::run_blocking("openraft", f).await)
    }
}

impl openraft_rt::Instant for EnvInstant {
    fn now() -> Self {
        EnvInstant(time::now())
    }
}

impl From<EnvInstant> for time::Instant {
    fn from(instant: EnvInstant) -> Self {
        instant.0
    }
}

impl Add<Duration> for EnvInstant {
    type Output = Self;
    fn add(self, rhs: Duration) -> Self {
        EnvInstant(self.0 + rhs)
    }
}

impl AddAssign<Duration> for EnvInstant {
    fn add_assign(&mut self, rhs: Duration) {
        *self = *self + rhs;
    }
}

impl Sub<Duration> for EnvInstant {
    type Output = Self;
    fn sub(self, rhs: Duration) -> Self {
        EnvInstant(self.0 - rhs)
    }
}

impl SubAssign<Duration> for EnvInstant {
    fn sub_assign(&mut self, rhs: Duration) {
        *self = *self - rhs;
    }
}

impl Sub for EnvInstant {
    type Output = Duration;
    fn sub(self, rhs: Self) -> Duration {
        self.0 - rhs.0
    }
}

impl rand::TryRng for EnvRng {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(u32::try_from(rng::u64() >> 32).expect("Invariant: a shifted u64 has 32 bits"))
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(rng::u64())
    }

    fn try_fill_bytes(&mut self, dst: &mut [u8]) -> Result<(), Infallible> {
        rng::fill(dst);
        Ok(())
    }
}

impl Watch for EnvWatch {
    type Sender<T: OptionalSend + OptionalSync> = EnvWatchSender<T>;
    type Receiver<T: OptionalSend + OptionalSync> = EnvWatchReceiver<T>;
    type Ref<'a, T: OptionalSend + 'a> = watch::Ref<'a, T>;

    fn channel<T: OptionalSend + OptionalSync>(init: T) -> (Self::Sender<T>, Self::Receiver<T>) {
        let (sender, receiver) = watch::channel(init);
        let sender = EnvWatchSender { inner: sender, receivers: Arc::new(AtomicUsize::new(0)) };
        let receiver = EnvWatchReceiver::counted(receiver, &sender.receivers);
        (sender, receiver)
    }
}

impl<T> Clone for EnvWatchSender<T> {
    fn clone(&self) -> Self {
        EnvWatchSender { inner: self.inner.clone(), receivers: self.receivers.clone() }
    }
}

impl<T: OptionalSend + OptionalSync> WatchSender<EnvWatch, T> for EnvWatchSender<T> {
    fn send(&self, value: T) -> Result<(), SendError<T>> {
        if self.receivers.load(Ordering::Acquire) == 0 {
            return Err(SendError(value));
        }
        self.inner.send(value);
        Ok(())
    }

    fn send_if_modified<F>(&self, modify: F) -> bool
    where
        F: FnOnce(&mut T) -> bool,
    {
        self.inner.send_if_modified(modify)
    }

    fn borrow_watched(&self) -> watch::Ref<'_, T> {
        self.inner.borrow()
    }

    fn subscribe(&self) -> EnvWatchReceiver<T> {
        EnvWatchReceiver::counted(self.inner.subscribe(), &self.receivers)
    }
}

impl<T> EnvWatchReceiver<T> {
    fn counted(inner: watch::Receiver<T>, receivers: &Arc<AtomicUsize>) -> Self {
        receivers.fetch_add(1, Ordering::AcqRel);
        EnvWatchReceiver { inner, receivers: receivers.clone() }
    }
}

impl<T> Clone for EnvWatchReceiver<T> {
    fn clone(&self) -> Self {
        Self::counted(self.inner.clone(), &self.receivers)
    }
}

impl<T> Drop for EnvWatchReceiver<T> {
    fn drop(&mut self) {
        self.receivers.fetch_sub(1, Ordering::AcqRel);
    }
}

impl<T: OptionalSend + OptionalSync> WatchReceiver<EnvWatch, T> for EnvWatchReceiver<T> {
    async fn changed(&mut self) -> Result<(), RecvError> {
        self.inner.changed().await.map_err(|_| RecvError(()))
    }

    fn borrow_watched(&self) -> watch::Ref<'_, T> {
        self.inner.borrow()
    }

    fn borrow_and_update(&mut self) -> watch::Ref<'_, T> {
        self.inner.borrow_and_update()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_passes_openrafts_suite() {
        openraft_rt::testing::Suite::<EnvRuntime>::test_all();
    }
}
