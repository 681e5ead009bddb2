//! The znode calls and watches.

use bytes::Bytes;
use rowlock_client::{Acl, CreateMode, Created, Error, ErrorCode, EventType, Version, Watched, Znode};

use crate::fake::Fake;

#[tokio::test]
async fn a_znode_is_created_read_changed_and_deleted() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    let Created { path, stat } =
        client.create("/a", None, CreateMode::Persistent, Acl::open()).await.unwrap();
    assert_eq!(path, "/a");
    assert_eq!(client.get("/a").await.unwrap(), Znode { data: None, stat }, "null data stay null");
    client.set("/a", Some(Bytes::new()), Some(Version(0))).await.unwrap();
    assert_eq!(client.get("/a").await.unwrap().data, Some(Bytes::new()), "empty data stay empty");
    let conflict = client.set("/a", None, Some(Version(0))).await.unwrap_err();
    assert_eq!(conflict.code(), Some(ErrorCode::BadVersion));
    client.create("/a/b", None, CreateMode::Persistent, Acl::open()).await.unwrap();
    assert_eq!(client.get_children("/a").await.unwrap().names, ["b"]);
    client.delete("/a/b", None).await.unwrap();
    client.delete("/a", None).await.unwrap();
    assert_eq!(client.exists("/a").await.unwrap(), None);
    assert_eq!(client.get("/a").await.unwrap_err(), Error::Rejected(ErrorCode::NoNode));
}

#[tokio::test]
async fn watches_fire_once_with_the_event_and_its_position() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    let Watched { value: absent, watch: mut created } = client.exists_watched("/a").await.unwrap();
    assert_eq!(absent, None);
    let stat = client.create("/a", None, CreateMode::Persistent, Acl::open()).await.unwrap().stat;
    let event = created.changed().await.unwrap();
    assert_eq!(
        (event.event_type, event.path.as_str(), event.zxid),
        (EventType::NodeCreated, "/a", stat.czxid)
    );
    assert_eq!(created.changed().await.unwrap(), event, "asked again, it says the same");
    let mut data = client.get_watched("/a").await.unwrap().watch;
    let mut children = client.get_children_watched("/a").await.unwrap().watch;
    client.create("/a/b", None, CreateMode::Persistent, Acl::open()).await.unwrap();
    assert_eq!(children.changed().await.unwrap().event_type, EventType::NodeChildrenChanged);
    client.set("/a", None, None).await.unwrap();
    assert_eq!(data.changed().await.unwrap().event_type, EventType::NodeDataChanged);
}

#[tokio::test]
async fn watches_survive_a_reconnect_and_tell_what_was_missed() {
    let fake = Fake::start().await;
    let client = fake.client().await;
    for path in ["/changed", "/deleted", "/kept"] {
        client.create(path, None, CreateMode::Persistent, Acl::open()).await.unwrap();
    }
    let mut changed = client.get_watched("/changed").await.unwrap().watch;
    let mut deleted = client.get_watched("/deleted").await.unwrap().watch;
    let mut kept = client.get_watched("/kept").await.unwrap().watch;
    let mut created = client.exists_watched("/created").await.unwrap().watch;
    let other = fake.client().await;
    {
        // While no client is connected.
        let mut world = fake.world();
        world.drop_connections();
        world.delete("/deleted").unwrap();
    }
    assert_eq!(deleted.changed().await.unwrap().event_type, EventType::NodeDeleted);
    let write = async || other.set("/changed", None, None).await;
    while write().await.is_err() {}
    assert_eq!(changed.changed().await.unwrap().event_type, EventType::NodeDataChanged);
    other.create("/created", None, CreateMode::Persistent, Acl::open()).await.unwrap();
    assert_eq!(created.changed().await.unwrap().event_type, EventType::NodeCreated);
    other.set("/kept", None, None).await.unwrap();
    assert_eq!(kept.changed().await.unwrap().event_type, EventType::NodeDataChanged);
}

#[tokio::test]
async fn a_chroot_is_invisible_to_the_application() {
    let fake = Fake::start().await;
    let outside = fake.client().await;
    let client = fake.config().chroot("/app").connect().await.unwrap();
    outside.create("/app", None, CreateMode::Persistent, Acl::open()).await.unwrap();
    let path = client.create("/x", None, CreateMode::Persistent, Acl::open()).await.unwrap().path;
    assert_eq!(path, "/x");
    let mut watch = client.get_watched("/x").await.unwrap().watch;
    outside.set("/app/x", None, None).await.unwrap();
    assert_eq!(watch.changed().await.unwrap().path, "/x");
    assert_eq!(client.get_children("/").await.unwrap().names, ["x"]);
    let guard = client.mutex("l").lock().await.unwrap();
    assert!(guard.path().starts_with("/locks/l/"));
    assert_eq!(outside.get_children("/app/locks/l").await.unwrap().names.len(), 1);
}
