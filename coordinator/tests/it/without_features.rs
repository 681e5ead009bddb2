//! A node without the features `access` and `cluster`: what they would do is refused, and so are settings
//! that ask for it.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use std::time::Duration;

use rowlock_coordinator::{Instant, Node, NodeConfig, StartError};
use rowlock_frames::raw::RawClient;
use rowlock_proto::{ErrorCode, Request};

const SOON: Duration = Duration::from_secs(30);

#[tokio::test]
async fn reports_operations_and_changes_of_members_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = NodeConfig::single(folder.path());
    config.client.super_digest = Some("super:D/InIHSb7yEEbrWz8b9l71RjZJU=".to_owned());
    let node = Node::start(config).await.unwrap();
    node.serving(Instant::now() + SOON).await.unwrap();
    let mut client = RawClient::attach(node.addresses().client.to_string(), 30_000).await;
    let superuser = Request::Auth { auth_type: 0, scheme: "digest".to_owned(), auth: "super:test".into() };
    client.call(superuser).await.unwrap();
    let joining = Some("server.2=127.0.0.1:1:2:observer;127.0.0.1:3".to_owned());
    let reconfig = Request::Reconfig { joining, leaving: None, new_members: None, config_id: -1 };
    for (request, code) in [
        (Request::Report("/v1/locks".to_owned()), ErrorCode::Unimplemented),
        (Request::Operate("/v1/drain?node=1&on=true".to_owned()), ErrorCode::Unimplemented),
        (reconfig, ErrorCode::ReconfigDisabled),
    ] {
        let said = format!("{request:?}");
        assert_eq!(client.call(request).await, Err(code), "{said}");
    }
    assert!(client.call(Request::Sync("/".to_owned())).await.is_ok(), "the connection goes on");
    node.shutdown().await;
}

#[tokio::test]
async fn settings_that_need_a_feature_are_refused_at_the_start() {
    type Setting = (&'static str, fn(&mut NodeConfig));
    let settings: [Setting; 5] = [
        ("learner", |config| config.learner = true),
        ("[backup]", |config| config.backup.every_ms = Some(60_000)),
        ("api", |config| config.api_addr = Some("127.0.0.1:0".to_owned())),
        ("api in [http]", |config| config.http.api = true),
        ("token_file in [http]", |config| config.http.token_file = Some("tokens".into())),
    ];
    for (name, set) in settings {
        let folder = tempfile::tempdir().unwrap();
        let mut config = NodeConfig::single(folder.path());
        set(&mut config);
        let Err(error) = Node::start(config).await else { panic!("{name} must be refused") };
        assert!(matches!(error, StartError::NotBuilt { .. }), "{name}: {error}");
        assert!(error.to_string().contains(name), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{name}: nothing was touched");
    }
}
