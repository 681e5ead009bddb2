//! Interface between a simulator and this crate, in place of the operating system.
//!
//! A thread inside a world ([`enter`]) gets its clock, tasks, randomness, network and disks from the world;
//! all other threads use tokio and the operating system. The check is a relaxed load of a number without
//! changes in production, so the interface costs almost nothing there.
//!
//! The world knows its running host; every call here refers to this host.

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

pub type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskId(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimerId {
    /// Deadline on the clock of the host, in nanoseconds.
    pub deadline: u64,
    /// Distinguishes the timers of equal deadlines, and the hosts.
    pub serial: u64,
}

pub trait World: Send + Sync {
    /// Returns the monotonic clock in nanoseconds.
    fn now_ns(&self) -> u64;
    /// Returns the wall clock in milliseconds since 1970.
    fn wall_ms(&self) -> i64;
    /// Returns the time and the host for log lines, or `None` while no host runs.
    fn place(&self) -> Option<String> {
        None
    }
    /// Returns the accounted work of the host so far ([`busy::total`](crate::busy::total)).
    fn worked(&self) -> Duration {
        Duration::ZERO
    }
    /// Wakes `waker` once the monotonic clock reaches `deadline`.
    fn set_timer(&self, deadline: u64, waker: &Waker) -> TimerId;
    /// Removes a timer. Ignores a timer in the past.
    fn cancel_timer(&self, timer: TimerId);
    fn spawn(&self, name: &'static str, future: Boxed<()>) -> TaskId;
    /// Drops a task. Ignores an ended task. A task aborting itself is dropped at its next wait.
    fn abort(&self, task: TaskId);
    fn random(&self, bytes: &mut [u8]);
    /// Waits for the typical duration of the blocking work; the caller then does the work at once.
    fn blocking_work(&self, name: &str) -> Boxed<()>;
    fn connect(&self, addr: &str, timeout: Duration) -> Boxed<io::Result<Arc<dyn Conduit>>>;
    fn listen(&self, addr: &str) -> io::Result<Arc<dyn Port>>;
    fn disk(&self) -> Arc<dyn Disk>;
    /// Returns the id of this run of the host's kernel, if hosts have one.
    fn boot_id(&self) -> Option<String> {
        None
    }
}

/// An end of a connection.
pub trait Conduit: Debug + Send + Sync {
    fn peer_addr(&self) -> SocketAddr;
    /// Reads the available bytes; `Ok(0)` at the end of the stream. Keeps the waker of the last call only.
    fn poll_read(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>>;
    /// Writes as much as fits. Keeps the waker of the last call only.
    fn poll_write(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>>;
    /// Reads the available bytes; fails with `WouldBlock` if none are available.
    fn try_read(&self, buf: &mut [u8]) -> io::Result<usize>;
    /// Writes as much as fits; fails with `WouldBlock` if nothing fits.
    fn try_write(&self, buf: &[u8]) -> io::Result<usize>;
    /// Stops reading; arriving data is discarded (or answered with a reset).
    fn close_read(&self);
    /// Stops writing: the peer reads to the end of the stream.
    fn close_write(&self);
}

/// A listening socket. The drop of the last handle frees the address.
pub trait Port: Debug + Send + Sync {
    fn local_addr(&self) -> SocketAddr;
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Arc<dyn Conduit>>>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    New,
    Existing,
    /// Creates or truncates the file.
    Empty,
}

/// File systems of a host. Names and contents are durable only after [`Disk::sync_dir`] and
/// [`DiskFile::sync`].
pub trait Disk: Send + Sync {
    fn is_dir(&self, path: &Path) -> bool;
    /// Returns true for an existing file or directory.
    fn exists(&self, path: &Path) -> bool;
    /// Creates a directory in an existing parent.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn DiskFile>>;
    /// Renames a file and replaces an existing target.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    fn remove_all(&self, path: &Path) -> io::Result<()>;
    /// Returns the names in a directory, sorted.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
    /// Makes the names in a directory durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    fn free_bytes(&self, path: &Path) -> io::Result<u64>;
    /// Locks a file, created if absent, until the drop of the returned value; fails with `WouldBlock` on a
    /// locked file.
    fn lock(&self, path: &Path) -> io::Result<Arc<dyn Any + Send + Sync>>;
}

/// An open file, usable after the removal of its name.
pub trait DiskFile: Debug + Send + Sync {
    /// Returns the length in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Truncates the file, or extends the file with zeroes.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Reserves space and extends the file with zeroes; never truncates.
    fn allocate(&self, len: u64) -> io::Result<()>;
    /// Reads at `offset`; returns fewer bytes at the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    fn sync(&self) -> io::Result<()>;
}

static INHABITED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static WORLD: RefCell<Option<Arc<dyn World>>> = const { RefCell::new(None) };
}

/// Presence of a thread in a world, ended by the drop.
#[must_use]
pub struct Stay {
    before: Option<Arc<dyn World>>,
    // Not `Send`: the presence belongs to the current thread.
    _here: std::marker::PhantomData<*const ()>,
}

/// Puts this thread into `world`.
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

/// Returns true if this thread is in a simulated world. Only for code unable to run there; the caller
/// comments on the reason.
pub fn is_simulated() -> bool {
    INHABITED.load(Ordering::Relaxed) != 0 && WORLD.with(|slot| slot.borrow().is_some())
}

/// Returns the time and the running host of a simulated world, for log lines.
pub fn place() -> Option<String> {
    current()?.place()
}

/// Returns this thread's simulated world, if any.
#[inline]
pub(crate) fn current() -> Option<Arc<dyn World>> {
    if INHABITED.load(Ordering::Relaxed) == 0 {
        return None;
    }
    WORLD.with(|slot| slot.borrow().clone())
}
