//! State shared by the handles of a session and the session's task: the machine, and the connection.
//!
//! A call that would be alone on the connection goes out from the handle itself, which saves the way over the
//! session's task. Calls beside others are left to the task, which sends together what has come together.
//! Everything else, and all that servers say, is the task's.

#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use rowlock_env::mutant::{self, Mutant};
use rowlock_env::net::WriteHalf;
use rowlock_env::task::Home;
use rowlock_env::time::{self, Instant};
use rowlock_proto::{ClusterId, frame};
use tokio::io::AsyncWrite;

use super::machine::{Done, Fault, Machine};
use super::{Action, Call, SessionTicket, Shared, Vitals};
use crate::limits::FRAME_BYTES;
use crate::servers::Elsewhere;

/// The session's task has ended, and the session with it.
#[derive(Debug)]
pub(crate) struct SessionClosed;

/// The shared part of one session.
pub(crate) struct Core {
    /// `None`: the task has ended.
    inside: Mutex<Option<Inside>>,
    shared: Arc<Shared>,
    home: Home,
}

struct Inside {
    machine: Machine,
    write: Option<WriteHalf>,
    /// The vitals that were published last.
    published: Option<Vitals>,
    /// Handles have left work for the task.
    pending_work: bool,
    task: Option<Waker>,
}

/// The follow-up of a turn.
pub(crate) struct Turn {
    /// The session is over.
    pub has_ended: bool,
    /// The next turn, at the latest.
    pub timer: Option<Instant>,
}

impl Inside {
    fn publish(&mut self, shared: &Shared) {
        let vitals = self.machine.vitals();
        if self.published.as_ref() != Some(&vitals) {
            shared.publish(vitals.clone());
            self.published = Some(vitals);
        }
    }

    /// Writes what the socket takes without waiting. The task meets an error again, when it waits for the
    /// socket.
    fn write_at_once(&mut self) {
        let out = &mut self.machine.effects.out;
        if let Some(write) = &self.write
            && !out.is_empty()
            && let Ok(count) = write.try_write(out)
        {
            out.advance(count);
        }
    }

    /// Ready when there is work for the task, or when the socket fails.
    fn poll_pending_work(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.pending_work {
            return Poll::Ready(Ok(()));
        }
        match &mut self.task {
            Some(task) => task.clone_from(cx.waker()),
            None => self.task = Some(cx.waker().clone()),
        }
        let (Some(write), out) = (&mut self.write, &mut self.machine.effects.out) else {
            return Poll::Pending;
        };
        while !out.is_empty() {
            match ready!(Pin::new(&mut *write).poll_write(cx, out))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => out.advance(count),
            }
        }
        Poll::Pending
    }

    /// Gives the task work. Returns its waker, if it does not know of work yet.
    fn add_work(&mut self) -> Option<Waker> {
        let is_new = !std::mem::replace(&mut self.pending_work, true);
        self.task.clone().filter(|_| is_new)
    }
}

/// Calls of the handles, from any thread; these calls never wait.
impl Core {
    /// The right to the session; `None` before it is open and after its end.
    pub(crate) fn ticket(&self) -> Option<SessionTicket> {
        self.lock_here().ok()?.as_ref()?.machine.ticket()
    }

    /// The cluster of the servers; `None` before a server has reported one, and after the end.
    pub(crate) fn cluster(&self) -> Option<ClusterId> {
        self.lock_here().ok()?.as_ref()?.machine.cluster()
    }

    /// Ends the client's side of the session alone: see [`Machine::detach`].
    pub(crate) fn detach(&self) -> Option<SessionTicket> {
        let mut ticket = None;
        // An error means that it is over.
        let _ = self.with_machine(|machine| ticket = machine.detach());
        ticket
    }

    pub(crate) fn new(machine: Machine, shared: Arc<Shared>) -> Arc<Self> {
        let inside = Inside { machine, write: None, published: None, pending_work: false, task: None };
        Arc::new(Core { inside: Mutex::new(Some(inside)), shared, home: Home::here() })
    }

    /// Hands a call over, and sends it if it would be alone.
    pub(crate) fn call(&self, call: Box<Call>) -> Result<(), SessionClosed> {
        let mut lock = self.lock_here()?;
        let inside = lock.as_mut().ok_or(SessionClosed)?;
        let now = time::now();
        let at_rest = inside.machine.is_at_rest(now);
        inside.machine.command(Action::Call(call));
        if at_rest {
            inside.machine.pump(now);
            inside.write_at_once();
        }
        let is_sent = at_rest && inside.machine.effects.out.is_empty();
        let task = if is_sent { None } else { inside.add_work() };
        if inside.machine.effects.done.is_empty() {
            // Nor is there anything to publish: neither a call nor its sending changes the session.
            drop(lock);
        } else {
            self.settle(lock, &mut Vec::new());
        }
        task.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Hands over what is for the task to do.
    pub(crate) fn send(&self, command: Action) -> Result<(), SessionClosed> {
        self.with_machine(|machine| machine.command(command))
    }

    /// No handle is left: the session is to be closed.
    pub(crate) fn leave(&self) {
        // An error means that it is over.
        let _ = self.with_machine(|machine| machine.close(None));
    }

    /// Off the task's runtime the bytes go to the socket at once: the call may come from a drop at the end of
    /// the program, and the task may never wake again. A runtime that ends drops the task: [`Core::end`].
    fn with_machine(&self, change: impl FnOnce(&mut Machine)) -> Result<(), SessionClosed> {
        let mut lock = self.lock_here()?;
        let inside = lock.as_mut().ok_or(SessionClosed)?;
        change(&mut inside.machine);
        if !self.home.is_here() {
            inside.machine.pump(time::now());
            inside.write_at_once();
        }
        let task = inside.add_work();
        self.settle(lock, &mut Vec::new());
        task.into_iter().for_each(Waker::wake);
        Ok(())
    }
}

/// Calls of the session's task.
impl Core {
    pub(crate) fn has_ended(&self) -> bool {
        self.lock().as_ref().is_none_or(|inside| inside.machine.ending().is_some())
    }

    /// Decides on a connection that can or cannot keep a secret.
    pub(crate) fn takes_connection(&self, keeps_secrets: bool) -> bool {
        self.change(|machine| machine.takes_connection(keeps_secrets))
    }

    /// No server can be reached over a connection that keeps a secret.
    pub(crate) fn reaches_no_private_connection(&self) {
        self.change(Machine::reaches_no_private_connection);
    }

    fn change<T>(&self, change: impl FnOnce(&mut Machine) -> T) -> T {
        let mut lock = self.lock();
        let inside = lock.as_mut().expect("the task lives");
        let changed = change(&mut inside.machine);
        self.settle(lock, &mut Vec::new());
        changed
    }

    pub(crate) fn connected(&self, write: WriteHalf, elsewhere: Elsewhere) {
        let mut lock = self.lock();
        let inside = lock.as_mut().expect("the task lives");
        inside.write = Some(write);
        inside.machine.connected(time::now(), elsewhere);
    }

    /// Lets the machine read what has come, if something has, and act on the clock; then does what it says.
    /// To be called on every wake-up, so that neither a flood of frames nor one of calls holds a deadline up.
    ///
    /// `done` is empty before and after: a reusable buffer for completions.
    ///
    /// # Errors
    /// The connection is of no more use.
    pub(crate) fn turn(&self, read: Option<&mut BytesMut>, done: &mut Vec<Done>) -> Result<Turn, Fault> {
        let mut lock = self.lock();
        let inside = lock.as_mut().expect("the task lives");
        // Not before: a handle that leaves more meanwhile need not wake the task.
        inside.pending_work = false;
        let (machine, now) = (&mut inside.machine, time::now());
        let digested = read.map_or(Ok(()), |inbox| digest(machine, inbox, now));
        let result = digested.and_then(|()| machine.tick(now));
        let has_ended = machine.ending().is_some();
        match &result {
            // At once, so that no call goes out over it any more.
            Err(_) => machine.disconnected(now),
            Ok(()) if !has_ended => inside.write_at_once(),
            // The final write sends what is left.
            Ok(()) => {}
        }
        let timer = inside.machine.next_timer();
        self.settle(lock, done);
        result.map(|()| Turn { has_ended, timer })
    }

    /// Reports that the present or last connection answered a request.
    pub(crate) fn was_of_use(&self) -> bool {
        self.lock().as_ref().is_some_and(|inside| inside.machine.was_of_use())
    }

    /// The present connection stands, and nothing has failed on it.
    pub(crate) fn is_sound(&self) -> bool {
        self.lock().as_ref().is_some_and(|inside| inside.machine.is_sound())
    }

    /// Remaining time of the session until the local deadline. `None`: no session yet.
    pub(crate) fn left(&self) -> Option<Duration> {
        let lock = self.lock();
        let valid_until = lock.as_ref().and_then(|inside| inside.machine.vitals().valid_until)?;
        Some(valid_until.saturating_since(time::now()))
    }

    /// Waits until a handle has left work for the task, or the socket fails. Meanwhile it sends what the
    /// socket did not take at once.
    ///
    /// Cancel safe: nothing is lost.
    pub(crate) async fn pending_work(&self) -> io::Result<()> {
        poll_fn(|cx| self.lock().as_mut().expect("the task lives").poll_pending_work(cx)).await
    }

    /// The bytes that are still to be sent at the end of the session, and the connection for them.
    pub(crate) fn final_write(&self) -> (WriteHalf, BytesMut) {
        let mut lock = self.lock();
        let inside = lock.as_mut().expect("the task lives");
        let write = inside.write.take().expect("it is connected");
        (write, std::mem::take(&mut inside.machine.effects.out))
    }

    /// The connection is gone.
    pub(crate) fn disconnected(&self) {
        let mut lock = self.lock();
        let inside = lock.as_mut().expect("the task lives");
        // The clock is read before the socket is closed.
        inside.machine.disconnected(time::now());
        let write = inside.write.take();
        self.settle(lock, &mut Vec::new());
        drop(write);
    }

    /// The task ends: in good order, or because its runtime does, or by a panic.
    ///
    /// Not in a forked child, where the end of the connection would be that of the parent's.
    ///
    /// Invariant: a user of the session learns of its end before the server can: before the last
    /// write, and before the socket closes, which may set a disconnect grace going.
    pub(crate) fn end(&self) {
        if self.shared.is_forked() {
            // A thread that this process does not have may hold it for ever.
            if let Ok(mut inside) = self.inside.try_lock() {
                std::mem::forget(inside.take());
            }
            return;
        }
        let Some(mut inside) = self.lock().take() else { return };
        inside.machine.stop();
        if !mutant::is(Mutant::StopUnseen) {
            inside.publish(&self.shared);
        }
        inside.machine.effects.done.drain(..).for_each(Done::complete);
        inside.write_at_once();
    }
}

impl Core {
    /// Locks for a handle. In a forked child the connection, and maybe the lock, is in the middle of the
    /// parent's work.
    fn lock_here(&self) -> Result<MutexGuard<'_, Option<Inside>>, SessionClosed> {
        if self.shared.is_forked() { Err(SessionClosed) } else { Ok(self.lock()) }
    }

    /// A panic in the machine, wherever it was called from, ends the task: nothing that it says can be relied
    /// on.
    fn lock(&self) -> MutexGuard<'_, Option<Inside>> {
        self.inside.lock().unwrap_or_else(|poisoned| {
            let mut inside = poisoned.into_inner();
            // Before the socket closes.
            self.shared.stop();
            *inside = None;
            inside
        })
    }

    /// Publishes first, tells the waiting calls then: without the lock, since a woken caller may come back
    /// here.
    fn settle(&self, mut lock: MutexGuard<'_, Option<Inside>>, all: &mut Vec<Done>) {
        let Some(inside) = lock.as_mut() else { return };
        inside.publish(&self.shared);
        std::mem::swap(all, &mut inside.machine.effects.done);
        drop(lock);
        all.drain(..).for_each(Done::complete);
    }
}

/// Gives the machine every whole frame there is.
fn digest(machine: &mut Machine, inbox: &mut BytesMut, now: Instant) -> Result<(), Fault> {
    machine.heard(now);
    while let Some(frame) = frame::split(inbox, FRAME_BYTES)? {
        machine.frame(frame, now)?;
    }
    Ok(())
}
