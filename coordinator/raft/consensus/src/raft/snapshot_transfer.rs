//! Transfer of a snapshot to a follower that is too far behind: in chunks, each acknowledged before the next
//! is read.
//!
//! So one snapshot costs one chunk of memory on either side. A failed transfer starts again from the
//! beginning.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use openraft::StorageError;
use openraft::errors::{ErrorSource, RPCError, StreamingError};
use rowlock_env::choice::{self, Choice};
use rowlock_env::{time, worker};
use rowlock_transport::limits::PEER_FRAME_MAX_BYTES;

use super::network::{Faults, unexpected};
use crate::limits::{PEER_SNAPSHOT_CHUNK_BYTES, PEER_SNAPSHOT_INSTALL_PER_MIB};
use crate::peer::{Lane, Peer, Request};
use crate::raft_types::messages::{RaftRequest, RaftResponse, Snapshot, SnapshotResponse, SnapshotStep};
use crate::raft_types::{TypeConfig, Vote};

// Checks that a chunk and its header fit into a frame.
const _: () = assert!(2 * PEER_SNAPSHOT_CHUNK_BYTES <= PEER_FRAME_MAX_BYTES);

/// Complete snapshot, readable in parts.
pub trait SnapshotSource: Send + Sync + 'static {
    fn total_bytes(&self) -> io::Result<u64>;

    /// Fills `buf` from `offset` on. Called on a thread that may block.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
}

/// Sends the snapshot and waits for its installation. Cancel safe: the follower drops the received part.
pub(super) async fn send<D: SnapshotSource>(
    peer: &Peer,
    faults: Faults,
    vote: Vote,
    snapshot: Snapshot<D>,
) -> Result<SnapshotResponse, StreamingError<TypeConfig>> {
    let Snapshot { meta, snapshot } = snapshot;
    let data = Arc::new(snapshot);
    let len = data.total_bytes().map_err(|error| unreadable(&error))?;
    let patience = faults.timeout();
    let begin = SnapshotStep::Begin { vote, meta: meta.clone(), len };
    proceed(step(peer, faults, begin, patience).await?)?;
    // Logged only now: an unreachable node is tried several times per second.
    tracing::info!(node = %peer.node(), %meta, bytes = len, "sending a snapshot");
    let piece = if choice::taken(Choice::SnapshotInPieces, 2) { len / 4 + 1 } else { len };
    let most = piece.min(PEER_SNAPSHOT_CHUNK_BYTES as u64);
    assert!(most > 0 || len == 0, "each chunk brings the transfer forward");
    let mut offset = 0;
    while offset < len {
        let size = (len - offset).min(most);
        let chunk = read(data.clone(), offset, size).await.map_err(|error| unreadable(&error))?;
        proceed(step(peer, faults, SnapshotStep::Chunk { offset, data: chunk }, patience).await?)?;
        offset += size;
        assert!(offset <= len, "a chunk ends in the snapshot");
    }
    assert_eq!(offset, len, "the whole snapshot is sent");
    // The follower reads the whole snapshot again, flushes, and builds its state: the time grows with the
    // size.
    let mebibytes = u32::try_from(len >> 20).unwrap_or(u32::MAX);
    let patience = patience + PEER_SNAPSHOT_INSTALL_PER_MIB.saturating_mul(mebibytes);
    match step(peer, faults, SnapshotStep::Install, patience).await? {
        RaftResponse::SnapshotInstalled(response) => Ok(response),
        other => Err(unexpected(&other).into()),
    }
}

async fn step(
    peer: &Peer,
    faults: Faults,
    step: SnapshotStep,
    patience: Duration,
) -> Result<RaftResponse, RPCError<TypeConfig>> {
    let request = Request::Raft(RaftRequest::Snapshot(step));
    faults.check(peer.call(Lane::Snapshot, &request, time::now() + patience).await)
}

fn proceed(response: RaftResponse) -> Result<(), RPCError<TypeConfig>> {
    match response {
        RaftResponse::SnapshotProceed => Ok(()),
        other => Err(unexpected(&other)),
    }
}

async fn read<D: SnapshotSource>(data: Arc<D>, offset: u64, size: u64) -> io::Result<Bytes> {
    worker::run_blocking("snapshot-read", move || {
        assert!(size > 0, "a chunk has bytes");
        let mut chunk = vec![0; usize::try_from(size).map_err(io::Error::other)?];
        data.read_exact_at(&mut chunk, offset)?;
        Ok(chunk.into())
    })
    .await
}

fn unreadable(error: &io::Error) -> StreamingError<TypeConfig> {
    StorageError::read_snapshot(None, ErrorSource::from_error(error)).into()
}
