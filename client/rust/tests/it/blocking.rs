//! The client for callers that block: it works without any runtime, and never blocks where it must not.

use std::sync::mpsc;
use std::time::Duration;

use rowlock_client::blocking::{Client, Guard};
use rowlock_client::{
    Acl, ConnectError, CreateMode, Error, EventType, Kept, LostReason, NameError, NameRule, Owner,
    ReleaseError, SessionState, Transaction, TransferError, Watched, Znode,
};
use rowlock_env::time;
use tokio::runtime::{Builder, Runtime};

use crate::fake::{Fake, Keeper, SHORT};
use crate::mutex::LOCK;

const SOON: Duration = Duration::from_secs(20);
const A_MOMENT: Duration = Duration::from_millis(10);

/// A fake server on threads of its own; the test's thread has no runtime.
struct Server {
    fake: Fake,
    runtime: Runtime,
}

impl Server {
    fn start() -> Server {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let fake = runtime.block_on(Fake::start());
        Server { fake, runtime }
    }

    fn client(&self) -> Client {
        Client::connect(self.fake.config()).unwrap()
    }

    fn until(&self, what: &str, condition: impl FnMut(&Keeper) -> bool) {
        self.runtime.block_on(self.fake.until(what, condition));
    }
}

/// Runs on a thread of its own; gives what it sends.
fn on_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> mpsc::Receiver<T> {
    let (done, result) = mpsc::channel();
    #[allow(clippy::disallowed_methods)] // what a program without async code does
    std::thread::spawn(move || drop(done.send(work())));
    result
}

fn assert_handle<T: Clone + Send + Sync + 'static>() {}

#[test]
fn a_program_without_a_runtime_takes_tries_and_gives_back_locks() {
    assert_handle::<Client>();
    let server = Server::start();
    let (one, two) = (server.client(), server.client());
    let guard = one.mutex("l").lock().unwrap();
    assert!(guard.is_held() && guard.valid_until().is_some() && guard.check().unwrap());
    assert!(two.mutex("l").try_lock().unwrap().is_none());
    assert!(matches!(two.mutex("l").lock_timeout(A_MOMENT), Err(Error::Timeout { .. })));
    let token = guard.token();
    let waiter = on_thread(move || two.mutex("l").request().label("waiter").lock().unwrap());
    server.until("the waiter stands in the queue", |world| world.children(LOCK).len() == 2);
    guard.release().unwrap();
    let next = waiter.recv().unwrap();
    assert!(next.token() > token);
    drop(next);
    server.until("released", |world| world.children(LOCK).is_empty());
}

#[test]
fn a_session_lives_on_while_the_program_does_something_else() {
    let server = Server::start();
    let client = Client::connect(server.fake.config().session_timeout(SHORT)).unwrap();
    let guard = client.mutex("l").lock().unwrap();
    server.until("five heartbeats", |world| world.pings >= 5);
    assert!(guard.is_held());
    assert_eq!((client.state(), client.session_timeout()), (SessionState::Connected, SHORT));
}

#[test]
fn a_loss_is_told_by_waiting_by_asking_and_by_a_callback_that_may_block() {
    let server = Server::start();
    let client = server.client();
    let guard = client.mutex("l").lock().unwrap();
    assert_eq!(guard.wait_lost(A_MOMENT), None);
    let (said, heard) = mpsc::channel();
    let (go_on, blocked) = mpsc::channel::<()>();
    guard.on_lost(move |reason| {
        said.send(reason).unwrap();
        let _ = blocked.recv();
    });
    server.fake.world().delete(guard.path()).unwrap();
    assert_eq!(guard.wait_lost(SOON), Some(LostReason::Deleted));
    assert_eq!(heard.recv_timeout(SOON), Ok(LostReason::Deleted));
    // The callback blocks, and the session goes on.
    client.sync("/").unwrap();
    assert!(!guard.is_held() && guard.valid_until().is_none());
    assert_eq!(guard.loss().reason(), Some(LostReason::Deleted));
    assert_eq!(guard.release(), Err(ReleaseError::NotHeld));
    drop(go_on);
}

#[test]
fn a_lock_that_is_given_back_calls_nobody() {
    let server = Server::start();
    let client = server.client();
    let (said, heard) = mpsc::channel();
    for drops in [false, true] {
        let guard = client.mutex("l").lock().unwrap();
        let said = said.clone();
        guard.on_lost(move |reason| said.send(reason).unwrap());
        if drops { drop(guard) } else { guard.release().unwrap() }
    }
    drop((client, said));
    assert!(heard.recv_timeout(SOON).is_err(), "called, or the callbacks are kept for ever");
}

#[test]
fn dropping_a_guard_never_blocks_and_the_last_handle_closes_the_session() {
    let server = Server::start();
    let client = server.client();
    let (session, guard) = (client.session_id(), client.mutex("l").lock().unwrap());
    server.fake.silence();
    let started = time::now();
    drop((client, guard));
    assert!(started.elapsed() < Duration::from_secs(2), "the server is silent, and the drop waited for it");
    let server = Server::start();
    let client = server.client();
    let guard = client.mutex("l").lock().unwrap();
    drop(client);
    assert!(guard.check().unwrap(), "a guard keeps its session and its thread");
    drop(guard);
    server.until("the session is closed", |world| {
        !world.has_session(session) && world.children(LOCK).is_empty()
    });
}

#[test]
fn calls_end_with_the_operation_timeout_and_may_have_happened() {
    let server = Server::start();
    let client = server.client();
    client.counter("n").set(1).unwrap();
    let client = client.operation_timeout(A_MOMENT);
    let (guard, counter) = (client.mutex("l").lock().unwrap(), client.counter("n"));
    server.fake.silence();
    let error = counter.add(1).unwrap_err();
    assert_eq!(error, Error::NoAnswer);
    assert!(error.may_have_happened() && error.is_retryable());
    assert_eq!(client.get("/"), Err(Error::NoAnswer));
    assert_eq!(guard.release(), Err(ReleaseError::Unknown));
}

#[test]
fn waiting_ends_with_the_session() {
    let server = Server::start();
    let (one, two) = (server.client(), server.client());
    let _guard: Guard = one.mutex("l").lock().unwrap();
    let waiting = two.clone();
    let waiter = on_thread(move || waiting.mutex("l").lock().map(drop));
    server.until("the waiter stands in the queue", |world| world.children(LOCK).len() == 2);
    server.runtime.block_on(async { server.fake.world().end_session(two.session_id()) });
    assert_eq!(waiter.recv().unwrap(), Err(Error::SessionExpired));
    assert_eq!(two.wait_state(|state| *state == SessionState::Expired, SOON), Some(SessionState::Expired));
    assert_eq!(one.wait_state(|state| *state == SessionState::Expired, A_MOMENT), None);
    let fresh = two.renew().unwrap();
    assert_eq!(fresh.state(), SessionState::Connected);
    fresh.close().unwrap();
    assert_eq!(fresh.mutex("l").lock().err(), Some(Error::Closed));
}

#[test]
fn owners_count_on_threads_too() {
    let server = Server::start();
    let client = server.client();
    let mutex = client.reentrant_mutex("l");
    let owner = Owner::named("job");
    let outer = mutex.lock(owner).unwrap();
    let inner = mutex.lock_timeout(owner, SOON).unwrap();
    assert_eq!((inner.shares(), inner.clone().shares(), inner.owner()), (2, 3, owner));
    let other = client.new_owner();
    let elsewhere = mutex.clone();
    assert!(on_thread(move || elsewhere.try_lock(other).unwrap().is_none()).recv().unwrap());
    outer.release().unwrap();
    assert!(inner.is_held());
    inner.release().unwrap();
    assert!(mutex.try_lock(other).unwrap().is_some());
}

#[test]
fn readers_writers_permits_and_several_locks_are_held_from_threads() {
    let server = Server::start();
    let (one, two) = (server.client(), server.client());
    let reader = one.rwlock("rw").read().unwrap();
    assert!(two.rwlock("rw").try_write().unwrap().is_none());
    assert!(two.rwlock("rw").read_timeout(SOON).unwrap().is_held());
    server.until("the other reader has gone", |world| world.children("/locks/rw").len() == 1);
    let Ok(writer) = reader.try_upgrade() else { panic!("nobody is in the way") };
    assert!(matches!(two.rwlock("rw").write_timeout(A_MOMENT), Err(Error::Timeout { .. })));
    server.until("the waiter has gone", |world| world.children("/locks/rw").len() == 1);
    let Ok(reader) = writer.downgrade() else { panic!("nobody waits") };
    assert!(two.rwlock("rw").try_read().unwrap().is_some());
    reader.release().unwrap();
    let mut semaphore = one.semaphore("s", 2);
    let permits = semaphore.acquire_many(2).unwrap();
    assert_eq!((permits.count(), semaphore.available()), (2, Ok(0)));
    assert!(two.semaphore("s", 2).try_acquire().unwrap().is_none());
    assert!(matches!(two.semaphore("s", 3).try_acquire(), Err(Error::LimitConflict { actual: 2 })));
    semaphore.resize(3).unwrap();
    assert!(two.semaphore("s", 3).acquire_timeout(1, SOON).unwrap().is_held());
    permits.release().unwrap();
    let several = one.multi(["a", "b"]).lock_timeout(SOON).unwrap();
    assert!(two.multi(["b", "c"]).try_lock().unwrap().is_none());
    let (said, heard) = mpsc::channel();
    several.on_lost(move |reason| said.send(reason).unwrap());
    server.fake.world().delete(several.guards()[1].path()).unwrap();
    assert_eq!(heard.recv_timeout(SOON), Ok(LostReason::Deleted));
    assert!(!several.is_held());
    assert_eq!(several.release(), Err(ReleaseError::NotHeld));
    assert!(two.multi(["b", "c"]).lock().unwrap().is_held());
    assert!(!one.extensions().unwrap().has_locks());
    let guard = one.mutex("forced").lock().unwrap();
    assert_eq!(two.force_release(&guard.claim()), Ok(true));
    assert!(guard.wait_lost(SOON).is_some());
}

#[test]
fn counters_latches_and_barriers_work_from_threads() {
    let server = Server::start();
    let client = server.client();
    let counter = client.counter("n");
    assert_eq!((counter.add(5), counter.compare_and_set(5, 7), counter.get()), (Ok(5), Ok(true), Ok(7)));
    counter.remove().unwrap();
    let (latch, opened) = (client.latch("l", 1), client.latch("l", 1));
    assert_eq!(latch.wait_timeout(A_MOMENT), Ok(false));
    let waiter = on_thread(move || opened.wait());
    assert_eq!((latch.count(), latch.count_down()), (Ok(1), Ok(0)));
    assert_eq!(waiter.recv().unwrap(), Ok(()));
    latch.remove().unwrap();
    let (barrier, removed) = (client.barrier("b"), client.barrier("b"));
    barrier.raise().unwrap();
    assert_eq!((barrier.is_raised(), barrier.wait_timeout(A_MOMENT)), (Ok(true), Ok(false)));
    let waiter = on_thread(move || removed.wait());
    barrier.remove().unwrap();
    assert_eq!(waiter.recv().unwrap(), Ok(()));
    let (first, second) = (client.double_barrier("d", 2), server.client().double_barrier("d", 2));
    assert!(first.enter_timeout(A_MOMENT).unwrap().is_none());
    let member = on_thread(move || second.enter().and_then(|inside| inside.leave()));
    let inside = first.enter().unwrap();
    assert_eq!(inside.leave_timeout(SOON), Ok(true));
    assert_eq!(member.recv().unwrap(), Ok(()));
}

#[test]
fn elections_are_won_watched_and_handed_over() {
    let server = Server::start();
    let (one, two) = (server.client(), server.client());
    let election = one.election("e");
    let mut observer = two.election("e").observe();
    assert_eq!((observer.wait(), observer.wait_timeout(A_MOMENT)), (Ok(None), Ok(None)));
    let leads = election.campaign("one").unwrap();
    leads.set_value("one leads").unwrap();
    while observer.wait().unwrap().unwrap().value != "one leads" {}
    let ourselves = election.leader().unwrap().unwrap();
    let Err(TransferError::Kept(Kept { guard: leads, error: Error::NotWaiting })) =
        leads.transfer_to(&ourselves)
    else {
        panic!("to itself")
    };
    let candidate = two.election("e");
    assert!(matches!(candidate.campaign_timeout("two", A_MOMENT), Err(Error::Timeout { .. })));
    server.until("it has gone", |world| world.children("/locks/@elections/e").len() == 1);
    let waiter = on_thread(move || candidate.campaign("two").unwrap());
    let successor = loop {
        if let [_, successor] = &election.candidates().unwrap()[..] {
            break successor.clone();
        }
    };
    leads.transfer_to(&successor).unwrap();
    let leads = waiter.recv().unwrap();
    assert_eq!(leads.token(), successor.token);
    let told = observer.by_ref().find_map(|news| news.unwrap().filter(|leader| leader.value == "two"));
    assert_eq!(told.map(|leader| leader.token), Some(leads.token()));
    leads.resign().unwrap();
    two.close().unwrap();
    assert!(observer.any(|news| news == Err(Error::Closed)));
    assert!(observer.next().is_none());
}

#[test]
fn znodes_and_their_watches() {
    let server = Server::start();
    let client = server.client();
    let Watched { value: none, mut watch } = client.exists_watched("/a").unwrap();
    assert_eq!((none, watch.changed_timeout(A_MOMENT)), (None, Ok(None)));
    client.create("/a", None, CreateMode::Persistent, Acl::open()).unwrap();
    assert_eq!(watch.changed().unwrap().event_type, EventType::NodeCreated);
    let mut watch = client.get_children_watched("/a").unwrap().watch;
    client.create("/a/b", Some("x".into()), CreateMode::Ephemeral, Acl::open()).unwrap();
    assert_eq!(watch.changed().unwrap().event_type, EventType::NodeChildrenChanged);
    let Watched { value: Znode { data, stat }, mut watch } = client.get_watched("/a/b").unwrap();
    assert_eq!(data, Some("x".into()));
    client.set("/a/b", None, Some(stat.version)).unwrap();
    assert_eq!(watch.changed().unwrap().event_type, EventType::NodeDataChanged);
    assert_eq!(client.get_children("/a").unwrap().names, ["b"]);
    client.commit(Transaction::new().delete("/a/b", None).delete("/a", None)).unwrap();
    assert_eq!(client.exists("/a"), Ok(None));
    client.add_auth("digest", "user:secret").unwrap();
    assert_eq!(client.run(client.async_client().exists("/a")), Ok(None));
}

#[test]
fn every_handle_has_a_path_and_is_found_at_it() {
    let server = Server::start();
    let client = server.client();
    assert_eq!(client.mutex("a/b c").path(), "/locks/a/b%20c");
    assert_eq!(client.latch("l", 1).path(), "/locks/@latches/l");
    assert_eq!(client.multi(["a", "b"]).paths().collect::<Vec<_>>(), ["/locks/a", "/locks/b"]);
    let both = client.multi_at(["/locks/a", "/b"]).lock().unwrap();
    assert!(client.mutex("a").try_lock().unwrap().is_none());
    assert!(client.reentrant_mutex_at("/b").try_lock(client.new_owner()).unwrap().is_none());
    both.release().unwrap();
    let guard = client.mutex_at("/locks/a").request().label("job").try_lock().unwrap().unwrap();
    guard.release().unwrap();
    assert_eq!(client.latch_at("/locks/@latches/l", 1).count_down(), Ok(0));
    assert_eq!(client.latch("l", 1).wait_timeout(A_MOMENT), Ok(true));
    assert!(client.election("e").try_campaign("me").unwrap().is_some());
    assert_eq!(client.mutex("").validate(), Err(Error::InvalidName(NameError::Rule(NameRule::Empty))));
}

#[test]
fn a_cluster_that_cannot_be_reached_is_an_error() {
    let config = rowlock_client::Client::builder().endpoints("127.0.0.1:1").connect_timeout(A_MOMENT);
    assert!(matches!(Client::connect(config), Err(ConnectError::Unreachable { .. })));
    assert!(matches!(Client::connect(rowlock_client::Client::builder()), Err(ConnectError::Config(_))));
}

#[tokio::test]
#[should_panic(expected = "within a runtime")]
async fn blocking_in_async_code_panics_at_once_instead_of_holding_everything_up() {
    drop(Client::connect(rowlock_client::Client::builder().endpoints("127.0.0.1:1")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocking_is_fine_on_threads_that_a_runtime_keeps_for_it() {
    let fake = Fake::start().await;
    let config = fake.config();
    let is_held = rowlock_env::worker::run_blocking("test", move || {
        Client::connect(config).unwrap().mutex("l").lock().unwrap().is_held()
    });
    assert!(is_held.await);
}
