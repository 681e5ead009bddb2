//! Documents of real queues, field by field.

mod clients;
mod contention;
mod frames;
mod past;

use rowlock_env::task::Shutdown;
use rowlock_env::time;
use rowlock_history::{HistorySink, Retention};
use rowlock_metrics::Metrics;
use rowlock_proto::Request;
use rowlock_proto::SessionId;
use rowlock_proto::acl::{Acl, Id, perms};
use rowlock_proto::lock::{Acquire, Attempt, Mode, Owner};
use rowlock_proto::request::Create;
use rowlock_proto::response::Response;
use rowlock_state::Proof;
use rowlock_state::command::{Attachment, Command, Origin, Proposal};
use rowlock_state::outcome::{Applied, Change, EventContext, EventSink, LockEvent, SessionEnd};
use serde_json::{Value, json};

use super::*;
use crate::limits::{REPORT_MAX_BYTES, REPORT_MAX_ITEMS, REPORTS_FOR_SUPERUSERS, REPORTS_MAX};

fn party(host: usize) -> Requester {
    Requester::Sessions([10, 0, 0, host as u8].into())
}

/// Passes lock events to a history.
struct Ears<'a>(&'a dyn HistorySink);

impl EventSink for Ears<'_> {
    fn changed(&mut self, _: &Change<'_>) {}
    fn session_opened(&mut self, _: SessionId, _: Attachment, _: u32) {}
    fn session_attached(&mut self, _: SessionId, _: Attachment, _: u32) {}
    fn session_ended(&mut self, _: SessionId, _: SessionEnd) {}
    fn lock(&mut self, event: &LockEvent<&str>, context: &EventContext<'_>) {
        self.0.lock(event, context);
    }
}

/// State with a history and a clock that advances a second per command.
struct World {
    machine: Machine,
    time_ms: i64,
    begun_ms: i64,
    reports: Reports,
    sink: Arc<dyn HistorySink>,
    _files: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        let files = tempfile::tempdir().unwrap();
        let retention = Retention { max_age_ms: 7 * 86_400_000, max_bytes: 256 << 20 };
        let (history, sink) = History::start(files.path(), retention, Arc::new(Metrics::default()));
        let reports = Reports::new(
            history,
            Arc::default(),
            Arc::new(LogClock::starting_now()),
            Backups::new(files.path().to_owned(), "test".to_owned()),
            TaskGroup::new(Shutdown::new()),
        );
        // Far ahead of this machine's clock: times in documents depend on this value alone.
        let begun_ms = time::wall_ms() + 3_600_000;
        World { machine: Machine::new(), time_ms: begun_ms, begun_ms, reports, sink, _files: files }
    }

    fn run_as(&mut self, session: SessionId, who: &[Id], command: Command) -> Result<Response, ErrorCode> {
        self.apply(session, who, command).result
    }

    fn apply(&mut self, session: SessionId, who: &[Id], command: Command) -> Applied {
        self.time_ms += 1_000;
        let proposal = Proposal {
            origin: Origin::default(),
            session,
            attachment: Attachment(1),
            identities: who.into(),
            command,
        };
        let applied = self.machine.apply(self.time_ms, &proposal, &mut Ears(&*self.sink));
        self.sink.applied();
        applied
    }

    fn run(&mut self, session: SessionId, command: Command) -> Response {
        let who = [Id { scheme: "ip".to_owned(), id: "10.0.0.7".to_owned() }];
        self.run_as(session, &who, command).unwrap()
    }

    fn open(&mut self) -> SessionId {
        let command = Command::OpenSession { proof: Proof::of(&[7; 16]), timeout_ms: 4_000 };
        let who = [Id { scheme: "ip".to_owned(), id: "10.0.0.7".to_owned() }];
        self.apply(SessionId::NONE, &who, command).attached.expect("a session opens").session
    }

    /// Runs attempt `n` of the session at the lock.
    fn acquire(&mut self, session: SessionId, lock: &str, n: u32, mode: Mode) {
        self.run(session, Command::Client(Request::Acquire([acquire(lock, n, mode)].into())));
    }

    fn abandon(&mut self, session: SessionId, lock: &str, n: u32) {
        let attempt = Attempt { lock: lock.to_owned(), prefix: prefix(n) };
        self.run(session, Command::Client(Request::Abandon(vec![attempt])));
    }

    async fn ask_as(&self, what: &str, who: &[Id]) -> Result<Value, Refusal> {
        self.ask_in(SessionId::NONE, what, who).await
    }

    async fn ask_in(&self, session: SessionId, what: &str, who: &[Id]) -> Result<Value, Refusal> {
        let place = self.reports.begin(&[], party(0)).unwrap();
        let reader = Viewer { who: who.to_vec(), session };
        let text = place.answer(self.machine.freeze(), what, reader).await?;
        Ok(serde_json::from_str(&text).unwrap())
    }

    async fn ask(&self, what: &str) -> Value {
        self.ask_as(what, &[]).await.unwrap()
    }

    /// Returns milliseconds since the beginning.
    fn since(&self, value: &Value) -> i64 {
        value.as_i64().unwrap() - self.begun_ms
    }
}

fn prefix(n: u32) -> String {
    format!("_c_{n:08}-lock-")
}

fn acquire(lock: &str, n: u32, mode: Mode) -> Acquire {
    Acquire {
        data: Some(format!("worker-{n}").into()),
        mode,
        limit: if matches!(mode, Mode::Permits(_)) { 3 } else { 0 },
        owner: if n == 2 { Owner::Named(77) } else { Owner::Unnamed },
        max_hold_ms: if n == 1 { 60_000 } else { 0 },
        ..Acquire::exclusive(lock, prefix(n))
    }
}

fn private() -> (Vec<Id>, Vec<Acl>) {
    let bob = Id { scheme: "digest".to_owned(), id: "bob:hash".to_owned() };
    (vec![bob.clone()], vec![Acl { perms: perms::ALL, id: bob }])
}

#[tokio::test]
async fn a_queue_shows_who_holds_who_waits_and_for_whom() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.acquire(a, "/locks/x", 1, Mode::Exclusive);
    world.acquire(b, "/locks/x", 2, Mode::Shared);
    world.acquire(b, "/locks/x", 3, Mode::Shared);
    world.acquire(a, "/locks/x", 4, Mode::Exclusive);
    let mut found = world.ask("/v1/queue?lock=/locks/x").await;
    assert_eq!(world.since(&found["time_ms"]), 6_000);
    assert_eq!(world.since(&found["holders"][0]["since_ms"]), 3_000);
    assert_eq!(world.since(&found["waiters"][2]["since_ms"]), 6_000);
    // The server revokes an eighth of the hold time plus a session timeout after the holder's own deadline.
    assert_eq!(world.since(&found["holders"][0]["revoke_at_ms"]), 3_000 + 60_000 + 7_500 + 4_000);
    found["time_ms"] = json!(0);
    found["holders"][0]["since_ms"] = json!(0);
    found["holders"][0]["revoke_at_ms"] = json!(0);
    let owner = found["waiters"][0]["owner"].as_str().unwrap();
    assert!(owner != "77" && owner.parse::<u64>().is_ok(), "the number is of its user: {owner}");
    found["waiters"][0]["owner"] = json!("of a user");
    for waiter in found["waiters"].as_array_mut().unwrap() {
        waiter["since_ms"] = json!(0);
    }
    let path = |n: u32| format!("/locks/x/{}{:010}", prefix(n), n - 1);
    let place = |n: u32, session: SessionId, mode: &str| {
        json!({
            "position": n, "path": path(n), "session": session.to_string(), "token": (n + 2).to_string(),
            "label": format!("worker-{n}"), "address": "10.0.0.7", "mode": mode, "permits": null,
            "owner": if n == 2 { json!("of a user") } else { json!(null) }, "acquired": true, "since_ms": 0,
        })
    };
    let with = |mut place: Value, more: Value| {
        place.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        place
    };
    let expected = json!({
        "zxid": 6, "time_ms": 0, "lock": "/locks/x", "limit": null, "delayed_until_ms": null,
        "holder_count": 1, "waiter_count": 3, "more": false,
        "holders": [
            with(place(1, a, "exclusive"), json!({ "held_ms": 3_000, "waited_ms": 0, "revoke_at_ms": 0 })),
        ],
        "waiters": [
            with(place(2, b, "shared"), json!({ "waited_ms": 2_000, "waits_for": path(1) })),
            // Does not wait for the other reader: both are granted together.
            with(place(3, b, "shared"), json!({ "waited_ms": 1_000, "waits_for": path(1) })),
            with(place(4, a, "exclusive"), json!({ "waited_ms": 0, "waits_for": path(3) })),
        ],
    });
    assert_eq!(found, expected);

    let short = world.ask("/v1/queue?lock=/locks/x&limit=2").await;
    assert_eq!((&short["more"], short["waiters"].as_array().unwrap().len()), (&json!(true), 1));
    assert_eq!(short["waiter_count"], 3);
    let free = world.ask("/v1/queue?lock=/locks").await;
    assert_eq!((&free["holders"], &free["more"]), (&json!([]), &json!(false)));
}

#[tokio::test]
async fn locks_are_listed_with_the_most_contended_first() {
    let mut world = World::new();
    let a = world.open();
    for n in 1..=2 {
        world.acquire(a, "/locks/idle", n, Mode::Shared);
    }
    for n in 3..=5 {
        world.acquire(a, "/locks/busy", n, Mode::Exclusive);
    }
    for n in 6..=8 {
        world.acquire(a, "/locks/sem", n, Mode::Permits(2));
    }
    let found = world.ask("/v1/locks?holders=true").await;
    let expected = json!([
        { "lock": "/locks/busy", "holders": 1, "holder": "worker-3", "held_ms": 5_000,
          "waiters": 2, "oldest_wait_ms": 4_000 },
        { "lock": "/locks/sem", "holders": 1, "holder": "worker-6", "held_ms": 2_000,
          "waiters": 2, "oldest_wait_ms": 1_000, "limit": 3 },
        { "lock": "/locks/idle", "holders": 2, "holder": "worker-1", "held_ms": 7_000, "waiters": 0 },
    ]);
    assert_eq!(found["locks"], expected);
    assert_eq!(found["more"], false);
    let with_s = world.ask("/v1/locks?contains=s&prefix=/locks/b&holders=true").await;
    assert_eq!(with_s["locks"], json!([expected[0]]), "both the beginning and a part count");
    let first = world.ask("/v1/locks?limit=1").await;
    assert_eq!((first["locks"].as_array().unwrap().len(), &first["more"]), (1, &json!(true)));
}

#[tokio::test]
async fn sessions_are_listed_with_what_they_have() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.acquire(a, "/locks/x", 1, Mode::Exclusive);
    world.acquire(b, "/locks/x", 2, Mode::Exclusive);
    world.acquire(b, "/locks/y", 3, Mode::Exclusive);
    let item = |id: SessionId, ephemerals: u32, held: u32, waiting: u32| {
        json!({
            "session": id.to_string(), "timeout_ms": 4_000, "attachment": 1, "address": null,
            "ephemerals": ephemerals, "locks_held": held, "locks_waiting": waiting,
        })
    };
    let superuser = [Id { scheme: "super".to_owned(), id: String::new() }];
    let found = world.ask_as("/v1/sessions", &superuser).await.unwrap();
    assert_eq!(found["sessions"], json!([item(a, 1, 1, 0), item(b, 2, 1, 1)]));
    assert_eq!((&found["session_count"], &found["more"]), (&json!(2), &json!(false)));
    let one = world.ask_as(&format!("/v1/sessions?session={b}"), &superuser).await.unwrap();
    let mut of_b = item(b, 2, 1, 1);
    of_b["znodes"] = json!([
        { "path": "/locks/x/_c_00000002-lock-0000000001", "czxid": 4, "place": "waits" },
        { "path": "/locks/y/_c_00000003-lock-0000000000", "czxid": 5, "place": "holds" },
    ]);
    assert_eq!(one["sessions"], json!([of_b]), "one that is asked for has its znodes");
    let own = world.ask_in(a, "/v1/sessions", &[]).await.unwrap();
    assert_eq!(own["sessions"], json!([item(a, 1, 1, 0)]));
    let own = world.ask_in(a, &format!("/v1/sessions?session={a}"), &[]).await.unwrap();
    assert_eq!(own["sessions"][0]["znodes"].as_array().unwrap().len(), 1, "{own}");
}

#[tokio::test]
async fn nobody_is_shown_another_session_or_told_whether_it_is_there() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    assert_eq!(world.ask("/v1/sessions").await["sessions"], json!([]));
    for id in [b, SessionId(0x1234)] {
        let asked = world.ask_in(a, &format!("/v1/sessions?session={id}"), &[]).await;
        assert_eq!(asked.unwrap_err().code(), ErrorCode::NoAuth, "{id}");
    }
}

#[tokio::test]
async fn a_place_shows_only_its_name_to_whom_may_not_read_it() {
    let mut world = World::new();
    let (bob, acl) = private();
    let (a, b) = (world.open(), world.open());
    let hidden = Acquire { acl: Some(acl.clone().into()), ..acquire("/locks/x", 1, Mode::Exclusive) };
    world.run_as(a, &bob, Command::Client(Request::Acquire([hidden].into()))).unwrap();
    // Queue znode of a plain client.
    let (path, data) = ("/locks/x/x-lock-".to_owned(), Some("secret".into()));
    let flags = rowlock_proto::CreateMode::EphemeralSequential.flags();
    let create = Create { path, data, acl: Some(acl.into()), flags };
    world.run_as(b, &bob, Command::Client(Request::Create2(create))).unwrap();
    let found = world.ask("/v1/queue?lock=/locks/x").await;
    let is_name_only = |place: &Value| {
        let shown = ["position", "path", "waits_for"];
        place.as_object().unwrap().iter().all(|(name, it)| shown.contains(&name.as_str()) != it.is_null())
    };
    assert!(is_name_only(&found["holders"][0]) && is_name_only(&found["waiters"][0]), "{found}");
    assert_eq!(found["waiters"][0]["waits_for"], found["holders"][0]["path"]);
    let listed = world.ask("/v1/locks?holders=true").await["locks"][0].clone();
    assert_eq!(listed, json!({ "lock": "/locks/x", "holders": 1, "waiters": 1 }));
    for token in [3, 4, 5] {
        let by_token = world.ask(&format!("/v1/queue?lock=/locks/x&token={token}")).await;
        assert_eq!((&by_token["holders"], &by_token["waiters"]), (&json!([]), &json!([])), "{token}");
    }
    assert_eq!(world.ask("/v1/history?lock=/locks/x").await["entries"], json!([]));
    let told = world.ask_as("/v1/queue?lock=/locks/x", &bob).await.unwrap();
    let labels = (&told["holders"][0]["label"], &told["waiters"][0]["label"]);
    assert_eq!(labels, (&json!("worker-1"), &json!("secret")));
}

#[tokio::test]
async fn the_history_of_a_private_lock_stays_private_when_others_make_the_lock_anew() {
    let mut world = World::new();
    let (bob, acl) = private();
    let a = world.open();
    let create = |acl: Vec<Acl>| {
        let create = Create { path: "/lock".to_owned(), data: None, acl: Some(acl.into()), flags: 0 };
        Command::Client(Request::Create2(create))
    };
    world.run_as(a, &bob, create(acl)).unwrap();
    // The queue znode itself is open: only the lock's own ACL protects the history.
    world
        .run_as(a, &bob, Command::Client(Request::Acquire([acquire("/lock", 1, Mode::Exclusive)].into())))
        .unwrap();
    let attempt = Attempt { lock: "/lock".to_owned(), prefix: prefix(1) };
    world.run_as(a, &bob, Command::Client(Request::Abandon(vec![attempt]))).unwrap();
    let delete =
        Command::Client(Request::Delete { path: "/lock".to_owned(), version: rowlock_proto::Version::ANY });
    world.run_as(a, &bob, delete).unwrap();
    let superuser = [Id { scheme: "super".to_owned(), id: String::new() }];
    for round in ["when it is gone", "when it is another's"] {
        for what in ["/v1/history", "/v1/history?lock=/lock", &format!("/v1/history?session={a}")] {
            let shown = world.ask(what).await;
            assert_eq!(shown["entries"], json!([]), "{what} {round}");
            for reader in [&bob[..], &superuser] {
                let shown = world.ask_as(what, reader).await.unwrap();
                assert_eq!(shown["entries"].as_array().unwrap().len(), 3, "{what} {round}");
            }
        }
        if round == "when it is gone" {
            world.run(a, create(Acl::open()));
        }
    }
}

#[tokio::test]
async fn the_history_tells_every_step_of_a_lock_newest_last() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    world.acquire(a, "/locks/x", 1, Mode::Exclusive);
    world.acquire(b, "/locks/x", 2, Mode::Exclusive);
    world.acquire(b, "/locks/x", 3, Mode::Exclusive);
    world.abandon(b, "/locks/x", 3);
    world.run(SessionId::NONE, Command::ExpireSession { session: a, attachment: Attachment(1) });
    world.abandon(b, "/locks/x", 2);
    let found = world.ask("/v1/history?lock=/locks/x").await;
    let steps: Vec<Value> = found["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| {
            json!([e["zxid"], e["event"], e["token"], e["ahead"], e["waited_ms"], e["held_ms"], e["reason"]])
        })
        .collect();
    let expected = json!([
        [3, "requested", "3", 0, null, null, null],
        [3, "granted", "3", null, 0, null, null],
        [4, "requested", "4", 1, null, null, null],
        [5, "requested", "5", 2, null, null, null],
        [6, "abandoned", "5", null, 1_000, null, "released"],
        [7, "lost", "3", null, 0, 4_000, "session-expired"],
        [7, "granted", "4", null, 3_000, null, null],
        [8, "released", "4", null, 3_000, 1_000, "released"],
    ]);
    assert_eq!(json!(steps), expected);
    let mut last = found["entries"][7].clone();
    assert_eq!(world.since(&last["time_ms"]), 8_000);
    last["time_ms"] = json!(0);
    let path = format!("/locks/x/{}0000000001", prefix(2));
    let released = json!({
        "time_ms": 0, "zxid": 8, "event": "released", "reason": "released", "waited_ms": 3_000, "held_ms": 1_000,
        "lock": "/locks/x", "path": path, "token": "4", "session": b.to_string(), "label": "worker-2",
        "address": "10.0.0.7", "mode": "exclusive", "permits": null, "acquired": true,
    });
    assert_eq!(last, released);
    assert_eq!((&found["more"], &found["before"]), (&json!(false), &json!(null)));
}

#[tokio::test]
async fn a_long_history_comes_in_pages_and_by_session_and_time() {
    let mut world = World::new();
    let (a, b) = (world.open(), world.open());
    for n in 1..=20 {
        let session = if n % 2 == 0 { a } else { b };
        world.acquire(session, "/locks/x", n, Mode::Shared);
    }
    let (mut before, mut zxids) = (String::new(), Vec::new());
    loop {
        let page = world.ask(&format!("/v1/history?limit=7{before}")).await;
        let entries = page["entries"].as_array().unwrap();
        zxids.splice(0..0, entries.iter().map(|entry| entry["zxid"].as_i64().unwrap()));
        match page["before"].as_str() {
            Some(cursor) => before = format!("&before={cursor}"),
            None => break,
        }
    }
    let expected: Vec<i64> = (3..=22).flat_map(|zxid| [zxid, zxid]).collect();
    assert_eq!(zxids, expected);
    let of_a = world.ask(&format!("/v1/history?session={a}&since_ms={}", world.begun_ms + 20_000)).await;
    let of_a: Vec<&Value> = of_a["entries"].as_array().unwrap().iter().map(|entry| &entry["zxid"]).collect();
    assert_eq!(json!(of_a), json!([20, 20, 22, 22]));
}

#[tokio::test]
async fn nobody_is_shown_a_lock_that_he_may_not_read() {
    let mut world = World::new();
    let (bob, acl) = private();
    let a = world.open();
    for path in ["/secret", "/secret/x"] {
        let create = Create { path: path.to_owned(), data: None, acl: Some(acl.clone().into()), flags: 0 };
        world.run_as(a, &bob, Command::Client(Request::Create2(create))).unwrap();
    }
    let acquired = Acquire { acl: Some(acl.into()), ..acquire("/secret/x", 1, Mode::Exclusive) };
    world.run_as(a, &bob, Command::Client(Request::Acquire([acquired].into()))).unwrap();
    world.acquire(a, "/open", 2, Mode::Exclusive);

    let gone = |world: &mut World| {
        let attempt = Attempt { lock: "/secret/x".to_owned(), prefix: prefix(1) };
        world.run_as(a, &private().0, Command::Client(Request::Abandon(vec![attempt]))).unwrap();
        let delete = Command::Client(Request::Delete {
            path: "/secret/x".to_owned(),
            version: rowlock_proto::Version::ANY,
        });
        world.run_as(a, &private().0, delete).unwrap();
    };
    for round in ["while it is there", "when it is gone"] {
        if round == "when it is gone" {
            gone(&mut world);
        }
        for what in ["/v1/queue?lock=/secret/x", "/v1/history?lock=/secret/x"] {
            let refused = world.ask_as(what, &[]).await;
            let no = Refusal::NotPermitted("/secret/x may not be read".to_owned());
            assert_eq!(refused, Err(no.clone()), "{round}");
            assert_eq!(no.code(), ErrorCode::NoAuth);
        }
        for what in ["/v1/locks", "/v1/history"] {
            let shown = world.ask(what).await.to_string();
            assert!(shown.contains("/open") && !shown.contains("/secret"), "{what} {round}: {shown}");
            assert_eq!(world.ask(what).await["more"], false, "{what} {round}");
        }
        let all = world.ask_as("/v1/history", &bob).await.unwrap().to_string();
        assert!(all.contains("/secret/x") && all.contains("/open"), "{round}: {all}");
        world.ask_as("/v1/history?lock=/secret/x", &bob).await.unwrap();
    }
    assert!(matches!(world.ask_as("/v1/queue?lock=/secret/x", &bob).await, Err(Refusal::NotThere(_))));
}

#[tokio::test]
async fn as_many_locks_as_a_report_may_have_fit_into_it() {
    let mut world = World::new();
    let a = world.open();
    for n in 0..REPORT_MAX_ITEMS as u32 {
        world.acquire(a, &format!("/locks/m/{n:05}"), 10 + n, Mode::Exclusive);
    }
    let found = world.ask(&format!("/v1/locks?limit={REPORT_MAX_ITEMS}")).await;
    assert_eq!((found["locks"].as_array().unwrap().len(), &found["more"]), (REPORT_MAX_ITEMS, &json!(false)));
}

#[tokio::test]
async fn a_queue_of_very_many_is_shown_up_to_a_bound() {
    let mut world = World::new();
    let a = world.open();
    for n in 10..4_010 {
        world.acquire(a, "/locks/x", n, Mode::Exclusive);
    }
    let what = format!("/v1/queue?lock=/locks/x&limit={REPORT_MAX_ITEMS}");
    let place = world.reports.begin(&[], party(0)).unwrap();
    let text = place.answer(world.machine.freeze(), &what, Viewer::anyone()).await.unwrap();
    assert!(text.len() < REPORT_MAX_BYTES + 1_000, "{}", text.len());
    let found: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&found["more"], &found["waiter_count"]), (&json!(true), &json!(3_999)));
    assert!(found["waiters"].as_array().unwrap().len() > 1_000);
}

#[tokio::test]
async fn so_many_reports_are_made_at_once_and_no_more() {
    let world = World::new();
    let most = REPORTS_FOR_SUPERUSERS..REPORTS_MAX;
    let places: Vec<ReportSlot> = most.map(|host| world.reports.begin(&[], party(host)).unwrap()).collect();
    let refused = world.reports.begin(&[], party(0)).map(drop).unwrap_err();
    assert_eq!((refused.code(), refused.to_string().contains("try again")), (ErrorCode::ThrottledOp, true));
    drop(places);
    assert_eq!(world.ask("/v1/locks").await["locks"], json!([]));
}
