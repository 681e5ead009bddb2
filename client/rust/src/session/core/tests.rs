//! The shared part of a session alone: what leaves when, and what its end says to whom.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use rowlock_env::net::{Listener, Stream};
use rowlock_env::time;
use rowlock_proto::Request;
use rowlock_proto::request::SetData;
use tokio::io::AsyncReadExt;
use tokio::sync::oneshot;

use super::super::machine::tests::Rig;
use super::super::znode_removal::ZnodeRemoval;
use super::*;
use crate::error::LostReason;

/// Nothing here takes so long.
const SOON: Duration = Duration::from_secs(30);

/// An attached session without a task, and the server's side of its connection.
async fn attached() -> (Arc<Core>, Stream) {
    attached_to(Rig::up()).await
}

async fn attached_to(rig: Rig) -> (Arc<Core>, Stream) {
    let listener = Listener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().to_string();
    let stream = Stream::connect(&address, Duration::from_secs(5)).await.unwrap();
    let server = listener.accept().await;
    let mut machine = rig.machine;
    machine.effects.out.clear();
    let core = Core::new(machine, Shared::new());
    core.lock().as_mut().unwrap().write = Some(stream.into_split().1);
    (core, server)
}

/// A call, and what it waits with: an abandoned one is not sent.
fn set(bytes: usize) -> (Box<Call>, oneshot::Receiver<Result<super::super::Reply, crate::error::Error>>) {
    let (reply, outcome) = oneshot::channel();
    let data = Some(Bytes::from(vec![7; bytes]));
    let request =
        Request::SetData(SetData { path: "/z".to_owned(), data, version: rowlock_proto::Version::ANY });
    (Box::new(Call { request, reply, watch: None, cells: Vec::new(), _permit: None }), outcome)
}

async fn next_frame(server: &mut Stream, received: &mut BytesMut) -> Bytes {
    loop {
        if let Some(frame) = frame::split(received, FRAME_BYTES).unwrap() {
            return frame;
        }
        assert!(server.read_buf(received).await.unwrap() > 0);
    }
}

fn has_pending_work(core: &Core) -> bool {
    core.lock().as_ref().unwrap().pending_work
}

#[tokio::test]
async fn a_call_that_is_alone_leaves_at_once_and_those_beside_it_are_left_to_the_task() {
    let (core, mut server) = attached().await;
    let [(first, _a), (second, _b), (third, _c)] = [100, 10, 20].map(set);
    core.call(first).unwrap();
    let mut received = BytesMut::new();
    assert!(next_frame(&mut server, &mut received).await.len() > 100);
    assert!(!has_pending_work(&core));
    core.call(second).unwrap();
    core.call(third).unwrap();
    assert!(has_pending_work(&core) && received.is_empty());
    core.turn(None, &mut Vec::new()).unwrap();
    let two = [next_frame(&mut server, &mut received).await, next_frame(&mut server, &mut received).await];
    assert_eq!(two[0].len() + 10, two[1].len());
}

#[tokio::test]
async fn a_call_leaves_at_once_behind_an_unwaited_release_and_not_behind_two() {
    let (core, mut server) = attached().await;
    let removal = || ZnodeRemoval::new("/l".into(), "a".into(), Some("/l/a1".into()), None);
    let [(first, _a), (second, _b)] = [10, 20].map(set);
    core.send(Action::Removal(removal())).unwrap();
    core.turn(None, &mut Vec::new()).unwrap();
    core.call(first).unwrap();
    assert!(!has_pending_work(&core), "the call waits for the task");
    let mut received = BytesMut::new();
    for expected in ["Delete", "SetData"] {
        let frame = next_frame(&mut server, &mut received).await;
        let request = rowlock_proto::decode::request(frame).unwrap().request;
        assert!(format!("{request:?}").starts_with(expected), "{request:?}");
    }
    core.call(second).unwrap();
    assert!(has_pending_work(&core) && received.is_empty());
}

#[tokio::test]
async fn an_unwaited_release_and_the_next_call_leave_in_one_write() {
    let (core, mut server) = attached().await;
    let removal = ZnodeRemoval::new("/l".into(), "a".into(), Some("/l/a1".into()), None);
    let (call, _outcome) = set(10);
    core.send(Action::Removal(removal)).unwrap();
    core.call(call).unwrap();
    let mut received = BytesMut::with_capacity(1 << 16);
    server.read_buf(&mut received).await.unwrap();
    let frames = [frame::split(&mut received, FRAME_BYTES), frame::split(&mut received, FRAME_BYTES)];
    assert!(frames.into_iter().all(|frame| frame.unwrap().is_some()), "the call came later");
}

#[tokio::test]
async fn all_that_is_asked_until_the_next_turn_wakes_the_task_once_and_leaves_together() {
    let (core, mut server) = attached().await;
    let wakes = Arc::new(CountedWakes::default());
    let waker = Waker::from(wakes.clone());
    let poll = || Box::pin(core.pending_work()).as_mut().poll(&mut Context::from_waker(&waker));
    let calls: Vec<_> = (0..50).map(|_| set(10)).collect();
    let (calls, _outcomes): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
    assert!(poll().is_pending());
    for (n, call) in calls.into_iter().enumerate() {
        core.call(call).unwrap();
        // The first one is alone, and gone. The task sees the next one, and lets others go before it acts.
        assert!(poll().is_ready() == (n > 0), "{n}");
    }
    assert_eq!(wakes.0.load(SeqCst), 1);
    core.turn(None, &mut Vec::new()).unwrap();
    assert!(poll().is_pending());
    let mut received = BytesMut::with_capacity(1 << 16);
    server.read_buf(&mut received).await.unwrap();
    assert!(frame::split(&mut received, FRAME_BYTES).unwrap().is_some(), "the first one");
    if received.is_empty() {
        server.read_buf(&mut received).await.unwrap();
    }
    for n in 1..50 {
        assert!(frame::split(&mut received, FRAME_BYTES).unwrap().is_some(), "{n} came later");
    }
}

/// Counts how often a task is woken.
#[derive(Default)]
struct CountedWakes(AtomicUsize);

impl Wake for CountedWakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[tokio::test]
async fn what_the_socket_does_not_take_at_once_is_left_to_the_task() {
    const BYTES: usize = 32 << 20;
    let (core, mut server) = attached_to(Rig::up_to("frame-bytes 67108864\n")).await;
    let [(first, _a), (second, _b)] = [BYTES, BYTES].map(set);
    core.call(first).unwrap();
    assert!(has_pending_work(&core));
    assert!(core.pending_work().await.is_ok(), "by the call");
    core.turn(None, &mut Vec::new()).unwrap();
    let mut received = 0;
    let mut room = vec![0; 1 << 20];
    while received < BYTES {
        tokio::select! {
            read = server.read(&mut room) => received += read.unwrap(),
            pending_work = core.pending_work() => panic!("{pending_work:?}"),
        }
    }
    assert!(core.lock().as_ref().unwrap().machine.effects.out.is_empty());
    drop(server);
    core.call(second).unwrap();
    core.turn(None, &mut Vec::new()).unwrap();
    // It has done what it was told of, and is told of the server's end.
    assert!(!has_pending_work(&core) && core.pending_work().await.is_err());
}

#[tokio::test]
async fn no_call_goes_out_over_a_connection_that_is_given_up() {
    let (core, mut server) = attached().await;
    let mut garbage = BytesMut::from(&[0xff; 4][..]);
    assert!(matches!(core.turn(Some(&mut garbage), &mut Vec::new()), Err(Fault::Frame(_))));
    let (call, _outcome) = set(1);
    core.call(call).unwrap();
    assert!(has_pending_work(&core), "it waits for the next connection");
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
    assert_eq!(core.shared.lost(), Some(LostReason::Stopped));
}

/// Something that is told, and looks at what the session shows by then.
struct Witness(Arc<Shared>, Mutex<Option<LostReason>>);

impl std::task::Wake for Witness {
    fn wake(self: Arc<Self>) {
        *self.1.lock().unwrap() = self.0.lost();
    }
}

#[tokio::test]
async fn a_task_that_ends_publishes_first_tells_the_calls_then_and_says_goodbye_last() {
    let (core, mut server) = attached().await;
    let (call, outcome) = set(1);
    core.call(call).unwrap();
    let mut received = BytesMut::new();
    next_frame(&mut server, &mut received).await;
    let mut outcome = std::pin::pin!(outcome);
    let witness = Arc::new(Witness(core.shared.clone(), Mutex::new(None)));
    let waker = Waker::from(witness.clone());
    assert!(outcome.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    core.turn(None, &mut Vec::new()).unwrap();
    assert_eq!(core.shared.lost(), None);
    core.end();
    assert_eq!(*witness.1.lock().unwrap(), Some(LostReason::Stopped), "when the call was answered");
    assert_eq!(outcome.await.unwrap().unwrap_err(), crate::error::Error::ConnectionLoss);
    let goodbye = rowlock_proto::decode::request(next_frame(&mut server, &mut received).await).unwrap();
    assert_eq!(goodbye.request, Request::CloseSession);
    assert_eq!(server.read(&mut [0; 100]).await.unwrap(), 0);
}

#[test]
fn what_is_dropped_outside_of_the_runtime_is_sent_without_it() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (task, other) = (runtime(), runtime());
    let (core, server) = task.block_on(attached());
    let removal = || Action::Removal(ZnodeRemoval::new("/l".into(), "a".into(), Some("/l/a1".into()), None));
    task.block_on(async { core.send(removal()).unwrap() });
    let mut room = [0; 100];
    assert!(server.try_read(&mut room).is_err(), "it is left to the task");
    core.send(removal()).unwrap();
    other.block_on(async { core.send(removal()).unwrap() });
    let mut received = BytesMut::new();
    for _ in 0..3 {
        let reading = async {
            loop {
                if let Some(frame) = frame::split(&mut received, FRAME_BYTES).unwrap() {
                    return frame;
                }
                match server.try_read(&mut room) {
                    Ok(0) => panic!("the connection has ended"),
                    Ok(count) => received.extend_from_slice(&room[..count]),
                    Err(_) => tokio::task::yield_now().await,
                }
            }
        };
        let frame = task.block_on(async { time::timeout(SOON, reading).await });
        let frame = frame.expect("it is sent without the task");
        let request = rowlock_proto::decode::request(frame).unwrap().request;
        assert!(matches!(request, Request::Delete { .. }), "{request:?}");
    }
}

#[tokio::test]
async fn a_forked_child_holds_nothing_and_leaves_its_parents_connection_alone() {
    let (core, server) = attached().await;
    let of_the_parent = Core { shared: Arc::new(Shared::of_process(0)), ..Arc::into_inner(core).unwrap() };
    let core = Arc::new(of_the_parent);
    assert_eq!(core.shared.lost(), Some(LostReason::Stopped));
    assert_eq!(core.shared.ended(), crate::error::Error::Forked);
    assert!(core.call(set(1).0).is_err());
    core.leave();
    core.end();
    drop(core);
    tokio::task::yield_now().await;
    let nothing = server.try_read(&mut [0; 100]).unwrap_err();
    assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock, "neither words nor an end");
}

#[tokio::test]
async fn whoever_waits_when_the_task_ends_learns_it() {
    let (core, _server) = attached().await;
    let (call, outcome) = set(1);
    core.call(call).unwrap();
    core.end();
    assert_eq!(outcome.await.unwrap().unwrap_err(), crate::error::Error::ConnectionLoss);
    assert!(core.call(set(1).0).is_err() && core.send(Action::Call(set(1).0)).is_err());
    assert!(core.has_ended());
    core.leave();
}
