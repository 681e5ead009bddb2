//! Floods: several sessions send as many writes at once as their connections may have pending, without
//! waiting for replies. Each write is answered, in the order of sending; acknowledged writes stay; and all
//! promises hold meanwhile.

use std::time::Duration;

use bytes::Bytes;
use rowlock_env::task;
use rowlock_proto::request::{Create, PathWatch, SetData};
use rowlock_proto::response::Response;
use rowlock_proto::{Acl, CreateMode, Request, Version};

use super::super::chance::{between, millis};
use super::super::life::Place as Life;
use super::session::{Answered, Fate, Session};

/// Sessions that send at once.
const SESSIONS: (u64, u64) = (6, 16);
/// Writes of one session: up to the limit of pending requests of a connection.
const WRITES: (u64, u64) = (500, 1_024);
/// Number of rounds, and the longest pause before each, in milliseconds.
const ROUNDS: (u64, u64) = (1, 3);
const PAUSE_MS: u64 = 4_000;
const SESSION: Duration = Duration::from_secs(8);
const DATA: &[u8] = &[7; 100];

/// Floods one or more nodes, and deletes the written znodes.
pub(in super::super) async fn live(life: Life) {
    for _ in 0..between(ROUNDS.0, ROUNDS.1) {
        life.rest(millis(0, PAUSE_MS)).await;
        if life.is_over() {
            return;
        }
        // All sessions open first, so that all writes arrive at the same time.
        let mut sources = Vec::new();
        for _ in 0..between(SESSIONS.0, SESSIONS.1) {
            sources.extend(Source::open(&life).await);
        }
        let all: Vec<_> = sources.into_iter().map(|source| task::spawn("flood", source.flow())).collect();
        for one in all {
            one.await.expect("a flood ends by itself");
        }
    }
}

/// One session, with an ephemeral znode that no other client writes.
struct Source {
    session: Session,
    path: String,
}

impl Source {
    async fn open(life: &Life) -> Option<Source> {
        let (journal, membership) = (life.caller.journal(), &life.caller.profile().membership);
        let mut session = Session::open(journal, membership, SESSION).await?;
        let path = format!("/flood-{:x}", session.id().0);
        let (acl, flags) = (Some(Acl::shared_open()), CreateMode::Ephemeral.flags());
        let create = Create { path: path.clone(), data: None, acl, flags };
        let (_, created) = session.ask(Request::Create2(create)).await.ok()?;
        created.is_ok().then_some(Source { session, path })
    }

    async fn flow(mut self) {
        // A lost session takes its znode along; the outcome of its writes stays unknown.
        let _ = self.pour().await;
        self.session.close().await;
    }

    async fn pour(&mut self) -> Result<(), Fate> {
        let Source { session, path } = self;
        let data = || Some(Bytes::from_static(DATA));
        let set = |_| Request::SetData(SetData { path: path.clone(), data: data(), version: Version::ANY });
        let requests: Vec<Request> = (0..between(WRITES.0, WRITES.1)).map(set).collect();
        let mut answers = Vec::new();
        let poured = session.pour(&requests, &mut answers).await;
        let written = last_version(&answers);
        if poured.is_err() && !session.is_over() {
            session.attach().await?;
        }
        let look = PathWatch { path: path.clone(), watch: false };
        if let (_, Ok(Response::Stat(stat))) = session.ask(Request::Exists(look)).await? {
            assert!(stat.version >= written, "{:?}, and {written:?} was acknowledged", stat.version);
            assert!(stat.version.0 as usize <= requests.len(), "written more often than asked");
        }
        Ok(())
    }
}

/// Returns the version of the last acknowledged write. Each write makes the next version.
fn last_version(answers: &[Answered]) -> Version {
    let mut last = Version(0);
    let mut is_certain = true;
    for (_, answer) in answers {
        match answer {
            Ok(Response::Stat(stat)) if is_certain => {
                assert_eq!(
                    stat.version,
                    Version(last.0 + 1),
                    "of the write after the one that made {last:?}"
                );
                last = stat.version;
            }
            Ok(Response::Stat(stat)) => {
                assert!(stat.version > last, "{:?} after {last:?}", stat.version);
                (last, is_certain) = (stat.version, true);
            }
            Ok(other) => panic!("setData is answered {other:?}"),
            // The write may have happened.
            Err(_) => is_certain = false,
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use rowlock_proto::{ErrorCode, Stat, Zxid};

    use super::*;

    fn made(version: i32) -> Answered {
        (Zxid(0), Ok(Response::Stat(Stat { version: Version(version), ..Stat::default() })))
    }

    #[test]
    fn each_acknowledged_write_makes_the_next_version() {
        let lost = || (Zxid(0), Err(ErrorCode::OperationTimeout));
        assert_eq!(last_version(&[made(1), made(2), lost(), made(4)]), Version(4));
        assert_eq!(last_version(&[]), Version(0));
    }

    #[test]
    #[should_panic(expected = "of the write after")]
    fn a_write_that_happened_twice_fails_the_check() {
        last_version(&[made(1), made(3)]);
    }
}
