//! Floods: a client on a host of its own sends requests to one node without limit. A flood ends when its host
//! is killed, or after a number of requests far beyond the capacity of a run.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rowlock_env::net::{ReadHalf, WriteHalf};
use rowlock_env::{task, time};
use rowlock_frames::wire::{Wire, connect_request};
use rowlock_proto::request::{Create, PathWatch, SetData};
use rowlock_proto::{Acl, CreateMode, Request, SessionId, Version, Xid, encode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::node::address;
use super::rest_door::{self, frame};
use crate::fault::Torrent;

/// Flow-control window of each direction of a flooder's connections. Large, because reading and sending
/// overlap with a node's work: a node that accepts all available requests accepts a great many.
pub const WINDOW_BYTES: usize = 4 << 20;
/// Largest number of requests of one flood, by kind.
const READS_MAX: u64 = 1_200_000;
const WRITES_MAX: u64 = 30_000;
const LARGE_MAX: u64 = 60;
const OTHERS_MAX: u64 = 3_000;
/// Requests pipelined by one write call.
const CHUNK: u64 = 512;
const LARGE_BYTES: usize = 900 << 10;
const SMALL_BYTES: usize = 100;
const TIMEOUT_MS: i32 = 4_000;
const DIAL: Duration = Duration::from_millis(500);
/// Pause before a broken connection is replaced.
const AGAIN: Duration = Duration::from_millis(20);
const WATCHED: &str = "/flood";

pub async fn pour(torrent: Torrent, place: usize, connections: u16) {
    let most = match torrent {
        Torrent::Reads => READS_MAX,
        Torrent::Writes | Torrent::Events => WRITES_MAX,
        Torrent::LargeWrites => LARGE_MAX,
        _ => OTHERS_MAX,
    };
    let left = Arc::new(AtomicU64::new(most));
    let all: Vec<_> = (0..connections)
        .map(|number| {
            let source = Source { torrent, place, number, left: left.clone() };
            task::spawn("flood", source.flow())
        })
        .collect();
    for one in all {
        let _ = one.await;
    }
}

/// Opens one connection after another.
struct Source {
    torrent: Torrent,
    place: usize,
    number: u16,
    left: Arc<AtomicU64>,
}

impl Source {
    async fn flow(self) {
        while self.left.load(Relaxed) > 0 {
            let _ = match self.torrent {
                Torrent::Reads => self.read().await,
                Torrent::Writes => self.write(WATCHED, SMALL_BYTES).await,
                Torrent::LargeWrites => self.write(WATCHED, LARGE_BYTES).await,
                Torrent::Connections => self.connect().await,
                Torrent::Handshakes => self.shake_hands().await,
                Torrent::Events if self.number == 0 => self.write(WATCHED, SMALL_BYTES).await,
                Torrent::Events => self.watch().await,
                Torrent::Documents => self.fetch("GET /v1/openapi.json\n").await,
                Torrent::Streams => self.fetch("GET /v1/watch\n").await,
            };
            let is_pause = !matches!(self.torrent, Torrent::Connections | Torrent::Handshakes);
            time::sleep(if is_pause { AGAIN } else { Duration::from_micros(500) }).await;
        }
    }

    /// Reserves up to `many` further requests. Returns fewer at the bound.
    fn take(&self, many: u64) -> u64 {
        let before = self.left.fetch_update(Relaxed, Relaxed, |left| Some(left.saturating_sub(many)));
        before.unwrap_or(0).min(many)
    }

    async fn open(&self) -> io::Result<Wire> {
        let mut wire = Wire::connect(&format!("{}:2181", address(self.place)), DIAL).await?;
        let opened = wire.open(&connect_request(TIMEOUT_MS)).await?;
        if opened.session_id == SessionId::NONE {
            Err(io::ErrorKind::PermissionDenied.into())
        } else {
            Ok(wire)
        }
    }

    /// Sends one request and waits for the reply.
    async fn once(wire: &mut Wire, request: &Request) -> io::Result<()> {
        wire.queue_request(Xid(1), request);
        wire.flush().await?;
        wire.frame().await.map(drop)
    }

    /// Sends `request` repeatedly and discards the replies.
    async fn pipeline(&self, wire: Wire, request: &Request, chunk: u64) -> io::Result<()> {
        let (read, mut write) = wire.into_stream().into_split();
        let reading = task::spawn("flood", discard(read));
        let mut one = BytesMut::new();
        encode::request_of(Xid(2), request, &mut one);
        let sent = self.send_again_and_again(&mut write, &one, chunk).await;
        // Waits until the node has answered all requests before the connection closes.
        if sent.is_ok() {
            let _ = reading.await;
        }
        sent
    }

    async fn send_again_and_again(&self, write: &mut WriteHalf, one: &[u8], chunk: u64) -> io::Result<()> {
        loop {
            let many = self.take(chunk);
            if many == 0 {
                return Ok(());
            }
            let bytes = one.repeat(usize::try_from(many).expect("a chunk is small"));
            write.write_all(&bytes).await?;
        }
    }

    async fn read(&self) -> io::Result<()> {
        let wire = self.open().await?;
        let request = Request::GetData(PathWatch { path: WATCHED.to_owned(), watch: false });
        self.pipeline(wire, &request, CHUNK).await
    }

    async fn write(&self, below: &str, bytes: usize) -> io::Result<()> {
        let mut wire = self.open().await?;
        let path = if self.torrent == Torrent::Events {
            below.to_owned()
        } else {
            format!("{below}-{}", self.number)
        };
        let (acl, flags) = (Some(Acl::shared_open()), CreateMode::Ephemeral.flags());
        let create = Create { path: path.clone(), data: None, acl, flags };
        Self::once(&mut wire, &Request::Create(create)).await?;
        let data = Some(Bytes::from(vec![7; bytes]));
        let set = Request::SetData(SetData { path, data, version: Version::ANY });
        self.pipeline(wire, &set, if bytes > SMALL_BYTES { 1 } else { 64 }).await
    }

    async fn watch(&self) -> io::Result<()> {
        let mut wire = self.open().await?;
        let watch = Request::AddWatch { path: WATCHED.to_owned(), mode: 0 };
        Self::once(&mut wire, &watch).await?;
        loop {
            wire.frame().await?;
        }
    }

    async fn connect(&self) -> io::Result<()> {
        self.take(1);
        Wire::connect(&format!("{}:2181", address(self.place)), DIAL).await.map(drop)
    }

    async fn shake_hands(&self) -> io::Result<()> {
        self.take(1);
        self.open().await.map(drop)
    }

    async fn fetch(&self, request: &str) -> io::Result<()> {
        let door = format!("{}:{}", address(self.place), rest_door::PORT);
        let mut wire = Wire::connect(&door, DIAL).await?;
        while self.take(1) > 0 {
            wire.send(&frame(request)).await?;
            wire.frame().await?;
        }
        Ok(())
    }
}

async fn discard(mut read: ReadHalf) {
    let mut buf = vec![0; 64 << 10];
    while read.read(&mut buf).await.is_ok_and(|bytes| bytes > 0) {}
}
