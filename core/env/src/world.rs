//! What a simulator implements in place of the operating system, and how a thread enters it.
//!
//! A thread inside a world ([`enter`]) gets its clock, tasks, randomness, network and disks from there; all
//! other threads use tokio and the operating system. The test for it is one relaxed load of a number that
//! never changes in a production process, so the seam costs almost nothing there.
//!
//! The world knows which of its hosts is running; every call here refers to that host.

use std::any::Any;
use std::cell::RefCell;
use std::fmt::Debug;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A future of any kind.
pub type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskId(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimerId {
    /// On the clock of the host that set it, nanoseconds.
    pub deadline: u64,
    /// Distinguishes timers of one deadline, and hosts.
    pub serial: u64,
}

/// The services of a simulated world.
pub trait World: Send + Sync {
    /// The monotonic clock, nanoseconds.
    fn now_ns(&self) -> u64;
    /// The wall clock, milliseconds since 1970.
    fn wall_ms(&self) -> i64;
    /// The moment and the host, for log lines. `None`: nothing of a host runs now.
    fn place(&self) -> Option<String> {
        None
    }
    /// Accounted work of the host so far ([`busy::total`](crate::busy::total)).
    fn worked(&self) -> Duration {
        Duration::ZERO
    }
    /// Wakes `waker` once the monotonic clock shows `deadline` or more.
    fn set_timer(&self, deadline: u64, waker: &Waker) -> TimerId;
    /// Forgets a timer that has not rung; one that has is fine.
    fn cancel_timer(&self, timer: TimerId);
    fn spawn(&self, name: &'static str, future: Boxed<()>) -> TaskId;
    /// Drops a task that has not ended; one that has is fine. A task that aborts itself is dropped when it
    /// next waits.
    fn abort(&self, task: TaskId);
    /// Fills `bytes` with randomness.
    fn random(&self, bytes: &mut [u8]);
    /// Waits as long as the blocking work would take; the caller then does it at once.
    fn blocking_work(&self, name: &str) -> Boxed<()>;
    /// Connects to `host:port` within `timeout`.
    fn connect(&self, addr: &str, timeout: Duration) -> Boxed<io::Result<Arc<dyn Conduit>>>;
    fn listen(&self, addr: &str) -> io::Result<Arc<dyn Port>>;
    fn disk(&self) -> Arc<dyn Disk>;
}

/// One end of a connection.
pub trait Conduit: Debug + Send + Sync {
    fn peer_addr(&self) -> SocketAddr;
    /// Reads what is there; `Ok(0)` at the end of the stream. Remembers the waker of the last call only.
    fn poll_read(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>>;
    /// Writes what fits. Remembers the waker of the last call only.
    fn poll_write(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>>;
    /// Reads what is there; `WouldBlock` if nothing is.
    fn try_read(&self, buf: &mut [u8]) -> io::Result<usize>;
    /// Writes what fits; `WouldBlock` if nothing does.
    fn try_write(&self, buf: &[u8]) -> io::Result<usize>;
    /// Stops reading; arriving data is discarded (or answered with a reset).
    fn close_read(&self);
    /// Stops writing: the other side reads to the end of the stream.
    fn close_write(&self);
}

/// A listening socket. Dropping the last handle frees the address.
pub trait Port: Debug + Send + Sync {
    fn local_addr(&self) -> SocketAddr;
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Arc<dyn Conduit>>>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    New,
    Existing,
    /// It is there or not, and is empty afterwards.
    Empty,
}

/// A host's file systems. Names and contents are durable after [`Disk::sync_dir`] and [`DiskFile::sync`], and
/// after nothing else.
pub trait Disk: Send + Sync {
    fn is_dir(&self, path: &Path) -> bool;
    /// It exists, as a file or a directory.
    fn exists(&self, path: &Path) -> bool;
    /// Creates one directory; its parent exists.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn DiskFile>>;
    /// Renames a file; an existing target is replaced.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes a directory with everything in it.
    fn remove_all(&self, path: &Path) -> io::Result<()>;
    /// The names in a directory, sorted.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
    /// Makes the names in a directory durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    fn free_bytes(&self, path: &Path) -> io::Result<u64>;
    /// Takes a file as a lock, created if absent, until the returned value is dropped; `WouldBlock` if it is
    /// taken.
    fn lock(&self, path: &Path) -> io::Result<Arc<dyn Any + Send + Sync>>;
}

/// An open file. It stays usable after its name is gone.
pub trait DiskFile: Debug + Send + Sync {
    /// Returns the length in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Cuts it, or extends it with zeroes.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Reserves room and extends it with zeroes; never cuts.
    fn allocate(&self, len: u64) -> io::Result<()>;
    /// Reads; fewer bytes than asked for at its end.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    /// Makes content and length durable.
    fn sync(&self) -> io::Result<()>;
}

static INHABITED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static WORLD: RefCell<Option<Arc<dyn World>>> = const { RefCell::new(None) };
}

/// A thread's stay in a world. It ends when this is dropped.
#[must_use]
pub struct Stay {
    before: Option<Arc<dyn World>>,
    // Belongs to the thread that it was made on.
    _here: std::marker::PhantomData<*const ()>,
}

/// This thread is in `world` from now on.
pub fn enter(world: Arc<dyn World>) -> Stay {
    INHABITED.fetch_add(1, Ordering::Relaxed);
    let before = WORLD.with(|slot| slot.borrow_mut().replace(world));
    Stay { before, _here: std::marker::PhantomData }
}

impl Drop for Stay {
    fn drop(&mut self) {
        let before = self.before.take();
        let ours = WORLD.with(|slot| std::mem::replace(&mut *slot.borrow_mut(), before));
        INHABITED.fetch_sub(1, Ordering::Relaxed);
        drop(ours); // outside the borrow: it may be the last one, and its end may look at the clock
    }
}

/// Whether this thread is in a simulated world. Only for code that cannot work there; the caller says why.
pub fn is_simulated() -> bool {
    INHABITED.load(Ordering::Relaxed) != 0 && WORLD.with(|slot| slot.borrow().is_some())
}

/// Which moment of a simulated world it is, and which of its hosts runs, for log lines.
pub fn place() -> Option<String> {
    current()?.place()
}

/// The world that this thread is in, if it is not the real one.
#[inline]
pub(crate) fn current() -> Option<Arc<dyn World>> {
    if INHABITED.load(Ordering::Relaxed) == 0 {
        return None;
    }
    WORLD.with(|slot| slot.borrow().clone())
}
