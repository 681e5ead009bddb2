use rowlock_proto::lock::Mode;
use rowlock_proto::{SessionId, Zxid};

use super::*;

#[test]
fn an_idle_lock_is_hidden_and_rereads_its_limit() {
    let mut locks = Locks::default();
    let path: std::sync::Arc<str> = "/sem/place-0000000000".into();
    for (czxid, limit) in [(5, Some(3)), (6, Some(7)), (7, None)] {
        let contender = Contender::plain(Mode::Exclusive, SessionId(1), "".into(), 0);
        let key = Key { czxid: Zxid(czxid), path: path.clone() };
        locks.enter(("/sem", Number::default()), key.clone(), contender, limit);
        locks.check().unwrap_err();
        let found = locks.find("/sem").unwrap();
        locks.grant_next(found, |waiter| waiter.granted_ms = Some(1)).unwrap();
        locks.check().unwrap();
        assert_eq!(locks.get("/sem").unwrap().limit, limit);
        assert_eq!(locks.counts(), (1, 1, 0));
        locks.leave(found, key.as_ref()).unwrap();
        assert!(locks.get("/sem").is_none() && locks.iter().next().is_none());
        assert_eq!((locks.counts(), locks.digest()), ((0, 0, 0), 0));
        assert_eq!(locks.idle().collect::<Vec<_>>(), ["/sem"]);
        locks.check().unwrap();
    }
    locks.forget_if_idle("/sem");
    assert_eq!(locks.idle().count(), 0);
}
