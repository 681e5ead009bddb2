//! What the handles of a session and its task share: the machine, and the connection that it speaks over.
//!
//! A call that would be alone on the connection goes out from the handle itself, which saves the way over the session's
//! task. Calls beside others are left to the task, which sends together what has come together. Everything else, and all
//! that servers say, is the task's.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, BytesMut};
use rowlock_env::net::WriteHalf;
use rowlock_env::time::{self, Instant};
use rowlock_proto::frame;
use tokio::io::AsyncWrite;

use super::machine::{Done, Fault, Machine};
use super::{Call, Command, Shared, Vitals};
use crate::limits::FRAME_BYTES;
use crate::servers::Elsewhere;

/// The session's task has ended, and the session with it.
#[derive(Debug)]
pub(crate) struct Gone;

/// The shared part of one session.
pub(crate) struct Core {
    /// `None`: the task has ended.
    inside: Mutex<Option<Inside>>,
    shared: Arc<Shared>,
}

struct Inside {
    machine: Machine,
    write: Option<WriteHalf>,
    /// What `shared` was told last.
    published: Option<Vitals>,
    /// Handles have left something for the task to do.
    stirred: bool,
    /// Wakes the task.
    task: Option<Waker>,
}

/// What comes after a turn.
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

    /// Writes what the socket takes without waiting. The task meets an error again, when it waits for the socket.
    fn write_at_once(&mut self) {
        let out = &mut self.machine.effects.out;
        if let Some(write) = &self.write
            && !out.is_empty()
            && let Ok(count) = write.try_write(out)
        {
            out.advance(count);
        }
    }

    /// Until there is something to do for the task, or the socket has taken what it did not take at once.
    fn poll_stirred(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if std::mem::take(&mut self.stirred) {
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

    /// Gives the task something to do; what wakes it, if it does not know yet.
    fn stir(&mut self) -> Option<Waker> {
        let is_new = !std::mem::replace(&mut self.stirred, true);
        self.task.clone().filter(|_| is_new)
    }
}

/// For handles, from wherever they are; they never wait.
impl Core {
    pub(crate) fn new(machine: Machine, shared: Arc<Shared>) -> Arc<Self> {
        let inside = Inside { machine, write: None, published: None, stirred: false, task: None };
        Arc::new(Core { inside: Mutex::new(Some(inside)), shared })
    }

    /// Hands a call over, and sends it if it would be alone.
    pub(crate) fn call(&self, call: Box<Call>) -> Result<(), Gone> {
        let mut lock = self.lock();
        let inside = lock.as_mut().ok_or(Gone)?;
        let now = time::now();
        let at_rest = inside.machine.is_at_rest(now);
        inside.machine.command(Command::Call(call));
        if at_rest {
            inside.machine.pump(now);
            inside.write_at_once();
        }
        let is_sent = at_rest && inside.machine.effects.out.is_empty();
        let task = if is_sent { None } else { inside.stir() };
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
    pub(crate) fn tell(&self, command: Command) -> Result<(), Gone> {
        self.with_machine(|machine| machine.command(command))
    }

    /// No handle is left: the session is to be closed.
    pub(crate) fn leave(&self) {
        // An error means that it is over.
        let _ = self.with_machine(|machine| machine.close(None));
    }

    fn with_machine(&self, change: impl FnOnce(&mut Machine)) -> Result<(), Gone> {
        let mut lock = self.lock();
        let inside = lock.as_mut().ok_or(Gone)?;
        change(&mut inside.machine);
        let task = inside.stir();
        self.settle(lock, &mut Vec::new());
        task.into_iter().for_each(Waker::wake);
        Ok(())
    }
}

/// For the session's task.
impl Core {
    pub(crate) fn has_ended(&self) -> bool {
        self.lock().as_ref().is_none_or(|inside| inside.machine.ending().is_some())
    }

    /// A connection stands.
    pub(crate) fn connected(&self, write: WriteHalf, elsewhere: Elsewhere) {
        let mut lock = self.lock();
        let inside = lock.as_mut().expect("the task lives");
        inside.write = Some(write);
        inside.machine.connected(time::now(), elsewhere);
    }

    /// Lets the machine read what has come, if something has, and act on the clock; then does what it says. To be called
    /// on every wake-up, so that neither a flood of frames nor one of calls holds a deadline up.
    ///
    /// `done` is empty, before and after: room for what is to be told.
    ///
    /// # Errors
    /// The connection is of no more use.
    pub(crate) fn turn(&self, read: Option<&mut BytesMut>, done: &mut Vec<Done>) -> Result<Turn, Fault> {
        let mut lock = self.lock();
        let inside = lock.as_mut().expect("the task lives");
        let (machine, now) = (&mut inside.machine, time::now());
        let digested = read.map_or(Ok(()), |inbox| digest(machine, inbox, now));
        let result = digested.and_then(|()| machine.tick(now));
        let has_ended = machine.ending().is_some();
        match &result {
            // At once, so that no call goes out over it any more.
            Err(_) => machine.disconnected(now),
            Ok(()) if !has_ended => inside.write_at_once(),
            // What is left to say is for the farewell.
            Ok(()) => {}
        }
        let timer = inside.machine.next_timer();
        self.settle(lock, done);
        result.map(|()| Turn { has_ended, timer })
    }

    /// Until a handle has left something to do, or the socket does not take what is to be sent.
    ///
    /// Cancel safe.
    pub(crate) async fn stirred(&self) -> io::Result<()> {
        poll_fn(|cx| self.lock().as_mut().expect("the task lives").poll_stirred(cx)).await
    }

    /// What the session still has to say at its end, and where.
    pub(crate) fn farewell(&self) -> (WriteHalf, BytesMut) {
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

    /// The task ends: whoever still waits learns it.
    pub(crate) fn end(&self) {
        let inside = self.lock().take();
        drop(inside);
    }
}

impl Core {
    /// A panic in the machine, wherever it was called from, ends the task: nothing that it says can be relied on.
    fn lock(&self) -> MutexGuard<'_, Option<Inside>> {
        self.inside.lock().unwrap_or_else(|poisoned| {
            let mut inside = poisoned.into_inner();
            *inside = None;
            inside
        })
    }

    /// Publishes first, tells the waiting calls then: without the lock, for whoever is woken may come back here.
    fn settle(&self, mut lock: MutexGuard<'_, Option<Inside>>, all: &mut Vec<Done>) {
        let Some(inside) = lock.as_mut() else { return };
        inside.publish(&self.shared);
        std::mem::swap(all, &mut inside.machine.effects.done);
        drop(lock);
        all.drain(..).for_each(Done::tell);
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use rowlock_env::net::{Listener, Stream};
    use rowlock_proto::Request;
    use rowlock_proto::request::SetData;
    use tokio::io::AsyncReadExt;
    use tokio::sync::oneshot;

    use super::super::machine::tests::Rig;
    use super::*;

    /// An attached session without a task, and the server's side of its connection.
    async fn attached() -> (Arc<Core>, Stream) {
        let listener = Listener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().to_string();
        let stream = Stream::connect(&address, Duration::from_secs(5)).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        let mut machine = Rig::up().machine;
        machine.effects.out.clear();
        let core = Core::new(machine, Shared::new());
        core.lock().as_mut().unwrap().write = Some(stream.into_split().1);
        (core, server)
    }

    /// A call, and what it waits with: one that nobody waits for is not sent.
    fn set(bytes: usize) -> (Box<Call>, oneshot::Receiver<Result<super::super::Reply, crate::error::Error>>) {
        let (reply, outcome) = oneshot::channel();
        let data = Some(Bytes::from(vec![7; bytes]));
        let request =
            Request::SetData(SetData { path: "/z".to_owned(), data, version: rowlock_proto::Version::ANY });
        (Box::new(Call { request, reply, watch: None, fates: Vec::new(), _permit: None }), outcome)
    }

    async fn next_frame(server: &mut Stream, received: &mut BytesMut) -> Bytes {
        loop {
            if let Some(frame) = frame::split(received, FRAME_BYTES).unwrap() {
                return frame;
            }
            assert!(server.read_buf(received).await.unwrap() > 0);
        }
    }

    fn is_stirred(core: &Core) -> bool {
        core.lock().as_ref().unwrap().stirred
    }

    #[tokio::test]
    async fn a_call_that_is_alone_leaves_at_once_and_those_beside_it_are_left_to_the_task() {
        let (core, mut server) = attached().await;
        let [(first, _a), (second, _b), (third, _c)] = [100, 10, 20].map(set);
        core.call(first).unwrap();
        let mut received = BytesMut::new();
        assert!(next_frame(&mut server, &mut received).await.len() > 100);
        assert!(!is_stirred(&core));
        core.call(second).unwrap();
        core.call(third).unwrap();
        assert!(is_stirred(&core) && received.is_empty());
        core.turn(None, &mut Vec::new()).unwrap();
        let two =
            [next_frame(&mut server, &mut received).await, next_frame(&mut server, &mut received).await];
        assert_eq!(two[0].len() + 10, two[1].len());
    }

    #[tokio::test]
    async fn what_the_socket_does_not_take_at_once_is_left_to_the_task() {
        const BYTES: usize = 32 << 20;
        let (core, mut server) = attached().await;
        let [(first, _a), (second, _b)] = [BYTES, BYTES].map(set);
        core.call(first).unwrap();
        assert!(is_stirred(&core));
        assert!(core.stirred().await.is_ok(), "by the call");
        let mut received = 0;
        let mut room = vec![0; 1 << 20];
        while received < BYTES {
            tokio::select! {
                read = server.read(&mut room) => received += read.unwrap(),
                stirred = core.stirred() => panic!("{stirred:?}"),
            }
        }
        assert!(core.lock().as_ref().unwrap().machine.effects.out.is_empty());
        drop(server);
        core.call(second).unwrap();
        core.turn(None, &mut Vec::new()).unwrap();
        // Once it has done what it was told of, it is told of the server's end.
        while core.stirred().await.is_ok() {}
    }

    #[tokio::test]
    async fn no_call_goes_out_over_a_connection_that_is_given_up() {
        let (core, mut server) = attached().await;
        let mut garbage = BytesMut::from(&[0xff; 4][..]);
        assert!(matches!(core.turn(Some(&mut garbage), &mut Vec::new()), Err(Fault::Frame(_))));
        let (call, _outcome) = set(1);
        core.call(call).unwrap();
        assert!(is_stirred(&core), "it waits for the next connection");
        core.disconnected();
        assert_eq!(server.read(&mut [0; 100]).await.unwrap(), 0, "nothing came before the end");
    }

    #[tokio::test]
    async fn whoever_waits_when_the_machine_panics_learns_it() {
        let (core, _server) = attached().await;
        let (call, outcome) = set(1);
        core.call(call).unwrap();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _lock = core.lock();
            panic!("as an assertion in the machine would");
        }));
        assert!(panicked.is_err() && core.has_ended());
        assert!(outcome.await.is_err());
        assert!(core.call(set(1).0).is_err());
    }

    #[tokio::test]
    async fn whoever_waits_when_the_task_ends_learns_it() {
        let (core, _server) = attached().await;
        let (call, outcome) = set(1);
        core.call(call).unwrap();
        core.end();
        assert!(outcome.await.is_err());
        assert!(core.call(set(1).0).is_err() && core.tell(Command::Call(set(1).0)).is_err());
        assert!(core.has_ended());
        core.leave();
    }
}
