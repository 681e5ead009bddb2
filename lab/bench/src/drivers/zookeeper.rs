//! Plain ZooKeeper client with the sequential recipe for locks, the same code on ZooKeeper and on Rowlock.

mod session;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use rowlock_proto::request::{Create, PathWatch};
use rowlock_proto::{Acl, CreateMode, ErrorCode, Request, Response, Version};

use super::{Settings, spread};
pub use session::{ReplyFrame, Session, next_reply, reply};

/// Parent of all znodes of the bench.
pub const BASE: &str = "/bench";
/// Pause between two tries to open a session.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Digits that the server appends to the names of sequential znodes.
const DIGITS: usize = 10;

pub struct Client {
    /// Session for calls beyond locks.
    pub session: Session,
    /// Znode of the last acquired lock, which exists.
    parent: String,
    held: Option<String>,
}

impl Client {
    pub async fn connect(addresses: &[String], n: usize, settings: Settings) -> Result<Self> {
        let (address, begun) = (spread(addresses, n), Instant::now());
        let session = loop {
            match Session::open(address, settings.ttl).await {
                Ok(session) => break session,
                Err(error) if begun.elapsed() >= settings.retry_for => return Err(error),
                Err(_) => tokio::time::sleep(RETRY_PAUSE).await,
            }
        };
        Ok(Client { session, parent: String::new(), held: None })
    }

    pub async fn acquire(&mut self, lock: &str) -> Result<()> {
        self.make_parent(lock).await?;
        let prefix = format!("{}/n-", self.parent);
        let request = create(prefix, Bytes::new(), CreateMode::EphemeralSequential);
        let Response::Path(own) = self.session.call(request).await?.context("taking a place")? else {
            bail!("create was answered with something else than a path")
        };
        loop {
            let children = Request::GetChildren(PathWatch { path: self.parent.clone(), watch: false });
            let Response::Children(names) = self.session.call(children).await?.context("listing")? else {
                bail!("getChildren was answered with something else than names")
            };
            let Some(before) = predecessor(&own[self.parent.len() + 1..], &names)? else { break };
            let path = format!("{}/{before}", self.parent);
            let exists = Request::Exists(PathWatch { path: path.clone(), watch: true });
            match self.session.call(exists).await? {
                Ok(_) => self.session.deleted(&path).await?,
                Err(ErrorCode::NoNode) => {}
                Err(code) => bail!("watching the predecessor: {code}"),
            }
        }
        self.held = Some(own);
        Ok(())
    }

    pub async fn release(&mut self) -> Result<()> {
        let request = self.removal()?;
        self.session.call(request).await?.context("deleting")?;
        Ok(())
    }

    pub fn post_release(&mut self) -> Result<()> {
        let request = self.removal()?;
        self.session.post(request);
        Ok(())
    }

    fn removal(&mut self) -> Result<Request> {
        let path = self.held.take().context("nothing is held")?;
        Ok(Request::Delete { path, version: Version::ANY })
    }

    pub async fn close(self) -> Result<()> {
        self.session.close().await
    }

    /// Creates persistent znodes below [`BASE`] with this data.
    ///
    /// # Errors
    /// The server refused, or the connection broke.
    pub async fn make_all(&mut self, paths: &[String], data: &Bytes) -> Result<()> {
        make(&mut self.session, BASE, Bytes::new()).await?;
        for path in paths {
            make(&mut self.session, path, data.clone()).await?;
        }
        Ok(())
    }

    /// Creates the znode of a lock, once.
    async fn make_parent(&mut self, lock: &str) -> Result<()> {
        if self.parent.strip_prefix(BASE).and_then(|rest| rest.strip_prefix('/')) == Some(lock) {
            return Ok(());
        }
        let parent = format!("{BASE}/{lock}");
        for path in [BASE, &parent] {
            make(&mut self.session, path, Bytes::new()).await?;
        }
        self.parent = parent;
        Ok(())
    }
}

/// Creates a persistent znode, if missing.
async fn make(session: &mut Session, path: &str, data: Bytes) -> Result<()> {
    match session.call(create(path.to_owned(), data, CreateMode::Persistent)).await? {
        Ok(_) | Err(ErrorCode::NodeExists) => Ok(()),
        Err(code) => bail!("making {path}: {code}"),
    }
}

/// Returns a request to create a znode with an open ACL.
pub fn create(path: String, data: Bytes, mode: CreateMode) -> Request {
    Request::Create(Create { path, data: Some(data), acl: Some(Acl::shared_open()), flags: mode.flags() })
}

/// Returns the name with the largest number below `own`'s number; `None` if `own` is the lowest and holds the
/// lock.
///
/// # Errors
/// `own` is not among the names.
pub fn predecessor<'a>(own: &str, names: &'a [String]) -> Result<Option<&'a str>> {
    if !names.iter().any(|name| name == own) {
        bail!("{own} is gone: the session has ended");
    }
    let before = names.iter().filter(|name| number(name) < number(own));
    Ok(before.max_by_key(|name| number(name)).map(String::as_str))
}

/// Returns the digits at the end, which compare like the number: all names have equally many.
fn number(name: &str) -> &[u8] {
    &name.as_bytes()[name.len().saturating_sub(DIGITS)..]
}

#[cfg(test)]
mod tests {
    use super::predecessor;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn the_predecessor_is_the_nearest_lower_number() {
        let all = names(&["n-0000000010", "n-0000000002", "n-0000000007", "n-0000000009"]);
        assert_eq!(predecessor("n-0000000009", &all).unwrap(), Some("n-0000000007"));
        assert_eq!(predecessor("n-0000000010", &all).unwrap(), Some("n-0000000009"));
        assert_eq!(predecessor("n-0000000002", &all).unwrap(), None, "the lowest holds");
    }

    #[test]
    fn names_of_other_clients_are_compared_by_their_number_alone() {
        let all = names(&["_c_77-lock-0000000004", "n-0000000005"]);
        assert_eq!(predecessor("n-0000000005", &all).unwrap(), Some("_c_77-lock-0000000004"));
    }

    #[test]
    fn a_place_that_is_gone_is_an_error_and_not_a_lock() {
        assert!(predecessor("n-0000000001", &names(&["n-0000000002"])).is_err());
    }
}
