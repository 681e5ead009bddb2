//! Reads and changes of znodes.

use bytes::Bytes;
use rowlock_proto::{CreateMode, Stat, Version};

use super::*;

fn path(text: &str) -> ZnodePath {
    text.parse().unwrap()
}

fn create(data: &str, mode: CreateMode) -> Change {
    Change::Create { data: Bytes::from(data.to_owned()), mode, ttl_ms: None, acl: Vec::new() }
}

fn set(data: &str, version: i32) -> Change {
    Change::Set { data: Bytes::from(data.to_owned()), version: Version(version) }
}

fn by(secret: &Secret, id: Option<&str>) -> By {
    By { secret: Some(secret.clone()), request_id: id.map(str::to_owned), fence: None }
}

async fn change(api: &Api, at: &str, change: Change, by: By) -> Result<Changed, Refusal> {
    api.change(&caller(), &path(at), (change, by)).await
}

async fn read(api: &Api, at: &str) -> Result<(Bytes, Stat), Refusal> {
    api.znode(&caller(), &path(at), Consistency::Sync).await
}

#[tokio::test]
async fn change_with_wrong_version_has_no_effect() {
    let node = Node::start().await;
    let api = node.api();
    let nobody = By::default;
    assert_eq!(read(&api, "/a").await, Err(Refusal::NoZnode));
    let made = change(&api, "/a", create("1", CreateMode::Persistent), nobody()).await;
    let Ok(Changed::Created(at, first)) = made else { panic!("{made:?}") };
    assert_eq!((at.as_str(), first.version), ("/a", Version(0)));
    let again = change(&api, "/a", create("1", CreateMode::Persistent), nobody()).await;
    assert!(matches!(again, Err(Refusal::InTheWay(_))), "{again:?}");
    assert!(
        matches!(change(&api, "/a", set("2", 0), nobody()).await, Ok(Changed::Set(stat)) if stat.version.0 == 1)
    );
    assert_eq!(change(&api, "/a", set("3", 0), nobody()).await, Err(Refusal::OtherVersion));
    let (data, stat) = read(&api, "/a").await.unwrap();
    assert_eq!((&data[..], stat.version), (&b"2"[..], Version(1)));
    let local = api.znode(&caller(), &path("/a"), Consistency::Local).await;
    assert_eq!(local, Ok((data, stat)));
    let delete = |version| Change::Delete { version: Version(version) };
    assert_eq!(change(&api, "/a", delete(0), nobody()).await, Err(Refusal::OtherVersion));
    assert_eq!(change(&api, "/a", delete(1), nobody()).await, Ok(Changed::Deleted));
    assert_eq!(change(&api, "/a", delete(1), nobody()).await, Err(Refusal::NoZnode));
    assert_eq!(node.context.replica.state.read().counts().sessions, 0, "no session is left behind");
    drop(api);
    node.stop().await;
}

#[tokio::test]
async fn retried_change_takes_effect_once_through_any_node() {
    let node = Node::start().await;
    let (api, other) = (node.api(), node.api());
    let secret = open(&api).await;
    let job = ZnodePath::sequential("/job-").unwrap();
    let mut made = Vec::new();
    for api in [&api, &other, &api] {
        let wanted = create("x", CreateMode::PersistentSequential);
        made.push(api.change(&caller(), &job, (wanted, by(&secret, Some("1")))).await.unwrap());
    }
    assert!(made.iter().all(|it| *it == made[0]), "{made:?}");
    let wanted = create("x", CreateMode::PersistentSequential);
    let next = api.change(&caller(), &job, (wanted, by(&secret, Some("2")))).await.unwrap();
    assert_ne!(next, made[0], "another id is another change");
    let Changed::Created(at, _) = &made[0] else { panic!("{made:?}") };
    for _ in 0..3 {
        // Another kind of change may use the same id.
        let stat = change(&other, at, set("y", 0), by(&secret, Some("1"))).await;
        assert!(matches!(stat, Ok(Changed::Set(stat)) if stat.version == Version(1)), "{stat:?}");
    }
    let refused = change(
        &api,
        "/a",
        create("", CreateMode::Persistent),
        By { request_id: Some("1".to_owned()), ..By::default() },
    );
    assert!(matches!(refused.await, Err(Refusal::Bad(_))), "nothing remembers it without a lease");
    drop((api, other));
    node.stop().await;
}

#[tokio::test]
async fn fenced_change_needs_a_token_that_holds_the_lock() {
    let node = Node::start().await;
    let api = node.api();
    let (first, second) = (open(&api).await, open(&api).await);
    let token = token(&api, &first, "fixed").await;
    let fenced = |token, id: Option<&str>| {
        let secret = id.map(|_| first.clone());
        By { secret, request_id: id.map(str::to_owned), fence: Some((lock(), token)) }
    };
    let made = change(&api, "/a", create("1", CreateMode::Persistent), fenced(token, None)).await;
    assert!(matches!(made, Ok(Changed::Created(..))), "{made:?}");
    assert_eq!(change(&api, "/a", set("2", 7), fenced(token, None)).await, Err(Refusal::OtherVersion));
    assert_eq!(change(&api, "/none", set("2", -1), fenced(token, None)).await, Err(Refusal::NoZnode));
    let kept = change(&api, "/a", set("2", 0), fenced(token, Some("k"))).await;
    assert!(matches!(kept, Ok(Changed::Set(stat)) if stat.version == Version(1)), "{kept:?}");
    assert_eq!(
        change(&api, "/a", set("3", -1), fenced(FencingToken(token.0 + 1), None)).await,
        Err(Refusal::Stale)
    );

    assert_eq!(api.release(&caller(), &lock(), (&first, &Which::Token(token))).await, Ok(true));
    // With the same request id the queue znode could have the same path.
    let next = super::token(&api, &second, "fixed").await;
    assert!(next > token);
    for id in [None, Some("late")] {
        assert_eq!(change(&api, "/a", set("late", -1), fenced(token, id)).await, Err(Refusal::Stale));
    }
    assert_eq!(
        change(&api, "/a", set("2", 0), fenced(token, Some("k"))).await,
        kept,
        "the first copy was in time"
    );
    let of_next = || fenced(next, None);
    assert!(matches!(change(&api, "/a", set("3", 1), of_next()).await, Ok(Changed::Set(_))));
    assert_eq!(read(&api, "/a").await.unwrap().0, "3");
    let delete = Change::Delete { version: Version(2) };
    assert_eq!(change(&api, "/a", delete, of_next()).await, Ok(Changed::Deleted));
    drop(api);
    node.stop().await;
}

#[tokio::test]
async fn ephemeral_znode_ends_with_its_lease() {
    let node = Node::start().await;
    let api = node.api();
    let alone = change(&api, "/a", create("", CreateMode::Ephemeral), By::default()).await;
    assert!(matches!(alone, Err(Refusal::Bad(_))), "{alone:?}");
    let secret = open(&api).await;
    let made = change(&api, "/a", create("", CreateMode::Ephemeral), by(&secret, None)).await;
    let Ok(Changed::Created(_, stat)) = made else { panic!("{made:?}") };
    assert_eq!(stat.ephemeral_owner, secret.session);
    let below = change(&api, "/a/b", create("", CreateMode::Persistent), By::default()).await;
    assert!(matches!(below, Err(Refusal::InTheWay(_))), "{below:?}");
    api.close(&caller(), &secret).await.unwrap();
    assert_eq!(read(&api, "/a").await, Err(Refusal::NoZnode));
    let over = change(&api, "/b", create("", CreateMode::Persistent), by(&secret, None)).await;
    assert_eq!(over, Err(Refusal::LeaseOver));
    drop(api);
    node.stop().await;
}

#[tokio::test]
async fn acl_checks_the_callers_address_and_operators_pass() {
    let node = Node::start().await;
    let api = node.api();
    let acl = vec![acl_entry("ip:10.0.0.0/8:cdrwa").unwrap(), acl_entry("world:anyone:r").unwrap()];
    let wanted =
        Change::Create { data: Bytes::new(), mode: CreateMode::Persistent, ttl_ms: None, acl: acl.clone() };
    change(&api, "/a", wanted, By::default()).await.unwrap();
    let may = async |scheme: &str, id: &str| {
        let id = rowlock_proto::acl::Id { scheme: scheme.to_owned(), id: id.to_owned() };
        let caller = Caller { identities: [id].into(), ..caller() };
        api.change(&caller, &path("/a"), (set("x", -1), By::default())).await
    };
    assert_eq!(may("ip", "192.168.0.1").await, Err(Refusal::NotPermitted));
    assert!(may("ip", "10.1.2.3").await.is_ok() && may("super", "").await.is_ok());
    let (shown, _) = api.acl(&caller(), &path("/a"), Consistency::Sync).await.unwrap();
    assert_eq!(shown, acl);
    let texts: Vec<String> = shown.iter().map(acl_text).collect();
    assert_eq!(texts, ["ip:10.0.0.0/8:cdrwa", "world:anyone:r"]);
    for wrong in ["", "r", "world:r", "world:anyone:x", "world:anyone"] {
        assert!(acl_entry(wrong).is_err(), "{wrong:?}");
    }
    let wanted = Change::Create {
        data: Bytes::new(),
        mode: CreateMode::Persistent,
        ttl_ms: None,
        acl: vec![acl_entry("nonsense:x:r").unwrap()],
    };
    assert!(matches!(change(&api, "/b", wanted, By::default()).await, Err(Refusal::Bad(_))));
    drop(api);
    node.stop().await;
}

#[tokio::test]
async fn children_pages_continue_after_the_last_name() {
    let node = Node::start().await;
    let api = node.api();
    let secret = open(&api).await;
    change(&api, "/a", create("", CreateMode::Container), by(&secret, None)).await.unwrap();
    for number in 0..10 {
        let at = format!("/a/{number}");
        change(&api, &at, create("", CreateMode::Persistent), by(&secret, None)).await.unwrap();
    }
    let (mut all, mut after) = (Vec::new(), String::new());
    loop {
        let page = Page { after: after.clone(), most: 4 };
        let found = api.children(&caller(), &path("/a"), (Consistency::Sync, &page)).await.unwrap();
        assert_eq!(found.stat.num_children, 10);
        after = found.names.last().unwrap().clone();
        all.push(found.names);
        if !found.is_more {
            break;
        }
    }
    assert_eq!(all, [vec!["0", "1", "2", "3"], vec!["4", "5", "6", "7"], vec!["8", "9"]]);
    drop(api);
    node.stop().await;
}

#[tokio::test]
async fn znode_bytes_in_transfer_are_bounded() {
    let node = Node::start().await;
    let api = node.api();
    let first = api.room(limits::API_ANSWERS_MAX_BYTES).unwrap();
    assert!(matches!(api.room(1), Err(Refusal::Full(_))));
    assert!(api.room(0).is_ok());
    drop(first);
    assert!(api.room(limits::API_ANSWERS_MAX_BYTES).is_ok(), "it is given back");
    drop(api);
    node.stop().await;
}

fn with_identity(name: &str) -> Caller {
    let id = rowlock_proto::acl::Id { scheme: "digest".to_owned(), id: name.to_owned() };
    Caller { identities: [id].into(), ..caller() }
}

#[tokio::test]
async fn guessed_token_of_a_hidden_lock_reveals_nothing() {
    let node = Node::start().await;
    let api = node.api();
    let private = || vec![acl_entry("digest:alice:hash:cdrwa").unwrap()];
    let alice = with_identity("alice:hash");
    for path in ["/locks", "/locks/ci"] {
        change(&api, path, create("", CreateMode::Persistent), By::default()).await.unwrap();
    }
    let lock_of_alice =
        Change::Create { data: Bytes::new(), mode: CreateMode::Persistent, ttl_ms: None, acl: private() };
    api.change(&alice, &path("/locks/ci/deploy"), (lock_of_alice, By::default())).await.unwrap();
    change(&api, "/a", create("1", CreateMode::Persistent), By::default()).await.unwrap();
    let secret = api.open(&alice, 10_000).await.unwrap().secret;
    let acquired = api.acquire(&alice, &[Part::exclusive(&lock())], wanted(&secret, "1", 0)).await.unwrap();
    let QueuePosition::Held(claim) = only(acquired) else { panic!("not held") };
    let fenced = |token, secret: Option<&Secret>| By {
        secret: secret.cloned(),
        request_id: None,
        fence: Some((lock(), token)),
    };
    let (right, wrong) = (claim.token, FencingToken(claim.token.0 + 1));
    for token in [right, wrong] {
        for stranger in [caller(), with_identity("bob:hash")] {
            let guess = api.change(&stranger, &path("/a"), (set("2", -1), fenced(token, None))).await;
            assert_eq!(guess, Err(Refusal::NotPermitted), "{token:?}");
            assert_eq!(api.verify(&stranger, &lock(), token).await, Err(Refusal::NotPermitted), "{token:?}");
        }
    }
    // The holder's lease is sufficient, regardless of further identities of the request.
    let own = api.change(&caller(), &path("/a"), (set("2", 0), fenced(right, Some(&secret)))).await;
    assert!(matches!(own, Ok(Changed::Set(_))), "{own:?}");
    let of_alice = api.change(&alice, &path("/a"), (set("3", 1), fenced(right, None))).await;
    assert!(matches!(of_alice, Ok(Changed::Set(_))), "{of_alice:?}");
    let stale = api.change(&alice, &path("/a"), (set("4", -1), fenced(wrong, None))).await;
    assert_eq!(stale, Err(Refusal::Stale));
    let mut text = secret.reveal();
    let last = if text.ends_with('0') { "1" } else { "0" };
    text.replace_range(text.len() - 1.., last);
    let forged: Secret = text.parse().unwrap();
    let forged = api.change(&caller(), &path("/a"), (set("4", -1), fenced(right, Some(&forged)))).await;
    assert_eq!(forged, Err(Refusal::WrongSecret));
    drop(api);
    node.stop().await;
}
