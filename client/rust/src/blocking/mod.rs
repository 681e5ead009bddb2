//! The client for programs without async code: the same handles, with calls that block. (Feature `blocking`.)
//!
//! [`Client::connect`] starts one thread that serves the session: heartbeats, reconnects, watches. It does so
//! whatever the program does meanwhile, and ends when the last handle is gone.
//!
//! ```no_run
//! use std::time::Duration;
//! use rowlock_client::blocking::Client;
//!
//! # fn demo() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect("a:2181,b:2181,c:2181")?;
//! let guard = client.mutex("orders/42").lock_timeout(Duration::from_secs(5))?;
//! guard.on_lost(|reason| eprintln!("stop: {reason}"));
//! let token = guard.token(); // send it with every write: storage refuses lower ones
//! // ... before each step that matters: if !guard.is_held() { stop }
//! # let _ = token;
//! guard.release()?;
//! client.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! # What is different
//!
//! **Work cannot be stopped from outside.** No `run` drops the work at the loss of the lock: check
//! [`Held::is_held`] between steps of the work (the call reads the clock, hence right also after a pause),
//! register [`Held::on_lost`], and send the token along.
//!
//! **Only the timeout cancels a wait**: every call that waits for other clients has a form with a timeout.
//! Calls that wait only for the servers end with the answer, at the latest with the session; with
//! [`Client::operation_timeout`] earlier.
//!
//! **Dropping never blocks.** What a drop gives back, the thread gives back. A program that ends right after
//! may be faster than its thread: [`Held::release`] and [`Client::close`] wait.
//!
//! # Panics
//!
//! Every blocking call panics in async code ("Cannot start a runtime from within a runtime"), where a
//! blocking call would hold up everything else. Use the async client there, or `spawn_blocking`.

mod client;
mod handle;
mod held;
mod locks;

pub use client::{Client, OneshotWatch};
pub use handle::Handle;
pub use held::{Guard, Held, Leadership, MultiGuard, Permits, ReadGuard, ReentrantGuard, WriteGuard};
pub use locks::{
    AtomicCounter, Barrier, CountDownLatch, DoubleBarrier, Election, LeaderWatcher, LockRequest, Membership,
    MultiLock, Mutex, ReentrantMutex, RwLock, Semaphore,
};
