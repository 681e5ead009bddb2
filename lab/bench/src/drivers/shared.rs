//! One client shared by many tasks, with one connection to each server, as in a program with many threads.
//! Every task has its own lock, so no task waits for another.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use bytes::{Bytes, BytesMut};
use rowlock_proto::request::PathWatch;
use rowlock_proto::{CreateMode, ErrorCode, Request, RequestFrame, Response, Version, Xid, encode};

use super::pipe::Pipe;
use super::redis::{Tokens, is_taken, load_script, release_words, was_held};
use super::resp::{Connection, Reply, command};
use super::zookeeper::{BASE, create, predecessor};
use super::{Settings, TTL, etcd, redlock, zookeeper};
use crate::grpc;

pub enum Handle {
    /// A plain ZooKeeper session that pipelines, on ZooKeeper or on Rowlock.
    Zookeeper(Zookeeper),
    /// One channel, and one lease for all locks.
    Etcd(Etcd),
    /// A multiplexed connection to one Redis, or to each of five.
    Redis(Box<Redis>),
}

pub struct Zookeeper {
    pipe: Pipe<zookeeper::ReplyFrame>,
    xids: Arc<AtomicI32>,
    /// Znode of this task's lock, once created.
    parent: Option<String>,
    held: Option<String>,
}

pub struct Etcd {
    channel: grpc::Shared,
    lease: i64,
    held: Option<Bytes>,
}

pub struct Redis {
    masters: Vec<Pipe<Reply>>,
    script: String,
    tokens: Tokens,
    held: Option<(String, String)>,
}

impl Handle {
    pub async fn acquire(&mut self, lock: &str) -> Result<()> {
        match self {
            Handle::Zookeeper(task) => task.acquire(lock).await,
            Handle::Etcd(task) => task.acquire(lock).await,
            Handle::Redis(task) => task.acquire(lock).await,
        }
    }

    pub async fn release(&mut self) -> Result<()> {
        match self {
            Handle::Zookeeper(task) => task.release().await,
            Handle::Etcd(task) => task.release().await,
            Handle::Redis(task) => task.release().await,
        }
    }
}

impl Zookeeper {
    /// Opens a session for `tasks` tasks. Their requests keep the session alive: the client sends no pings.
    pub async fn share(addresses: &[String], tasks: usize, settings: Settings) -> Result<Vec<Handle>> {
        let client = zookeeper::Client::connect(addresses, 0, settings).await?;
        let pipe = Pipe::over(client.session.into_stream()?, zookeeper::next_reply);
        let xids = Arc::new(AtomicI32::new(1));
        let handle = |_| Zookeeper { pipe: pipe.clone(), xids: xids.clone(), parent: None, held: None };
        Ok((0..tasks).map(handle).map(Handle::Zookeeper).collect())
    }

    async fn call(&self, request: Request) -> Result<Result<Response, ErrorCode>> {
        let (xid, opcode) = (Xid(self.xids.fetch_add(1, Ordering::Relaxed)), request.opcode());
        let mut bytes = BytesMut::with_capacity(128);
        encode::request(&RequestFrame { xid, request }, &mut bytes);
        let (header, body) = self.pipe.call(bytes.into()).await?;
        ensure!(header.xid == xid, "the reply to request {} came instead of that to {xid}", header.xid);
        zookeeper::reply(header, body, opcode)
    }

    async fn make(&self, path: &str) -> Result<()> {
        match self.call(create(path.to_owned(), Bytes::new(), CreateMode::Persistent)).await? {
            Ok(_) | Err(ErrorCode::NodeExists) => Ok(()),
            Err(code) => bail!("making {path}: {code}"),
        }
    }

    async fn acquire(&mut self, lock: &str) -> Result<()> {
        if self.parent.is_none() {
            let parent = format!("{BASE}/{lock}");
            for path in [BASE, &parent] {
                self.make(path).await?;
            }
            self.parent = Some(parent);
        }
        let parent = self.parent.as_deref().expect("Invariant: the parent was just made");
        let place = create(format!("{parent}/n-"), Bytes::new(), CreateMode::EphemeralSequential);
        let Response::Path(own) = self.call(place).await?.context("taking a place")? else {
            bail!("create was answered with something else than a path")
        };
        let children = Request::GetChildren(PathWatch { path: parent.to_owned(), watch: false });
        let Response::Children(names) = self.call(children).await?.context("listing")? else {
            bail!("getChildren was answered with something else than names")
        };
        let before = predecessor(&own[parent.len() + 1..], &names)?;
        ensure!(before.is_none(), "the lock {lock} of one task alone is held by {before:?}");
        self.held = Some(own);
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        let path = self.held.take().context("nothing is held")?;
        self.call(Request::Delete { path, version: Version::ANY }).await?.context("deleting")?;
        Ok(())
    }
}

impl Etcd {
    /// Opens a channel and a lease for `tasks` tasks.
    pub async fn share(addresses: &[String], tasks: usize, settings: Settings) -> Result<Vec<Handle>> {
        let (channel, lease) = etcd::Client::connect(addresses, 0, settings).await?.into_shared();
        let handle = |_| Handle::Etcd(Etcd { channel: channel.clone(), lease, held: None });
        Ok((0..tasks).map(handle).collect())
    }

    async fn acquire(&mut self, lock: &str) -> Result<()> {
        let answer = self.channel.call(etcd::LOCK, &etcd::lock_request(lock, self.lease)).await?;
        self.held = Some(etcd::held(&answer)?);
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        let key = self.held.take().context("nothing is held")?;
        self.channel.call(etcd::UNLOCK, &etcd::unlock_request(&key)).await?;
        Ok(())
    }
}

impl Redis {
    /// Opens one connection to each master for `tasks` tasks.
    pub async fn share(masters: &[String], tasks: usize) -> Result<Vec<Handle>> {
        let (mut pipes, mut script) = (Vec::new(), String::new());
        for address in masters {
            let mut connection = Connection::open(address).await?;
            script = load_script(&mut connection).await?;
            pipes.push(Pipe::over(connection.into_stream()?, super::resp::reply));
        }
        let handle = |task| Redis {
            masters: pipes.clone(),
            script: script.clone(),
            tokens: Tokens::new(task),
            held: None,
        };
        Ok((0..tasks).map(handle).map(|task| Handle::Redis(Box::new(task))).collect())
    }

    async fn acquire(&mut self, lock: &str) -> Result<()> {
        let (token, ttl_ms, begun) = (self.tokens.next(), TTL.as_millis().to_string(), Instant::now());
        let words: [&[u8]; 6] = [b"SET", lock.as_bytes(), token.as_bytes(), b"NX", b"PX", ttl_ms.as_bytes()];
        let mut taken = 0;
        for reply in self.call_all(&words).await? {
            taken += usize::from(is_taken(reply)?);
        }
        let is_held = match self.masters.len() {
            1 => taken == 1,
            masters => redlock::is_held(taken, masters, begun.elapsed(), TTL),
        };
        ensure!(is_held, "the lock {lock} of one task alone was not free on all masters: {taken}");
        self.held = Some((lock.to_owned(), token));
        Ok(())
    }

    async fn release(&mut self) -> Result<()> {
        let (lock, token) = self.held.take().context("nothing is held")?;
        let replies = self.call_all(&release_words(&self.script, &lock, &token)).await?;
        if let [reply] = &replies[..] {
            return was_held(reply);
        }
        let deleted = replies.iter().filter(|reply| **reply == Reply::Integer(1)).count();
        redlock::was_held(deleted, self.masters.len())
    }

    /// Sends a command to all masters at once and receives the replies.
    async fn call_all(&self, words: &[&[u8]]) -> Result<Vec<Reply>> {
        let mut bytes = BytesMut::with_capacity(128);
        command(words, &mut bytes);
        let asked: Vec<_> =
            self.masters.iter().map(|master| master.send(bytes.to_vec())).collect::<Result<_>>()?;
        let mut replies = Vec::with_capacity(asked.len());
        for reply in asked {
            replies.push(reply.await.context("the shared connection broke")?);
        }
        Ok(replies)
    }
}
