//! Operator's actions for a new cluster: saves a backup, and makes data folders from the backup or from the
//! last node. This is the code of `rowlock backup` and `rowlock recover`.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use parking_lot::Mutex;
use rowlock_backup::file::{self, Header, Writer};
use rowlock_backup::folder::{self, Identity, Member, NewCluster, Restored};
use rowlock_backup::survivor::{self, Survivor};
use rowlock_client::Client;
use rowlock_env::disk::Dir;
use rowlock_env::time;
use rowlock_proto::{ClusterId, NodeId, Stat, Zxid, path};
use rowlock_state::Machine;

use super::node::{CLUSTER, DATA_DIR, MAX_TIMEOUT_MS};
use super::operator::SECRET;
use super::record::Record;
use crate::history::Index;
use crate::history::client::DATA;
use crate::history::node::Position;

const SESSION_TIMEOUT: Duration = Duration::from_secs(6);
const CONNECT: Duration = Duration::from_secs(3);

/// A backup, present after a complete save.
pub type Shelf = Arc<Mutex<Option<Bytes>>>;

/// Saves a backup from the node with this address, as `rowlock backup save` does, and checks the content.
/// Gives up after `within`.
pub async fn save(endpoint: String, within: Duration, record: Record, shelf: Shelf) {
    if let Ok(Ok(bytes)) = time::timeout(within, fetch(&endpoint, &record)).await {
        *shelf.lock() = Some(bytes);
    }
}

async fn fetch(endpoint: &str, record: &Record) -> Result<Bytes, String> {
    let config = Client::builder()
        .endpoints(endpoint)
        .session_timeout(SESSION_TIMEOUT)
        .connect_timeout(CONNECT)
        .label("backup")
        .auth("digest", SECRET)
        .allow_plaintext_passwords(true);
    let client = config.connect().await.map_err(|e| e.to_string())?;
    let answered = record.answered();
    client.sync("/").await.map_err(|e| e.to_string())?;
    let saved = download(&client).await;
    let _ = time::timeout(CONNECT, client.close()).await; // it expires by itself
    let bytes = saved?;
    let (header, machine) = file::read(&mut &bytes[..]).map_err(|e| e.to_string())?;
    let zxid = Zxid(header.zxid);
    if zxid < answered {
        let what = format!("the backup ends at {zxid}, and {answered} had been answered before it was taken");
        record.break_promise("restored-cluster", what);
    }
    if !record.has_been(zxid, machine.digest()) {
        let what = format!("the backup is of no state that the log has led to at {zxid}");
        record.break_promise("restored-cluster", what);
    }
    Ok(bytes.into())
}

async fn download(client: &Client) -> Result<Vec<u8>, String> {
    let begun = report(client, "/v1/backup").await?;
    let backup = begun["backup"].as_str().unwrap_or_default();
    let header: Header = serde_json::from_value(begun["header"].clone()).map_err(|e| e.to_string())?;
    let mut writer = Writer::begin(Vec::new(), &header).map_err(|e| e.to_string())?;
    let mut offset = 0;
    while offset < header.state_bytes {
        let piece = report(client, &format!("/v1/backup?backup={backup}&offset={offset}")).await?;
        let data = piece["data"].as_str().and_then(|text| STANDARD.decode(text).ok());
        let data = data.filter(|data| !data.is_empty()).ok_or("the answer cannot be read")?;
        writer.write_all(&data).map_err(|e| e.to_string())?;
        offset += data.len() as u64;
    }
    writer.finish().map_err(|e| e.to_string())
}

async fn report(client: &Client, question: &str) -> Result<serde_json::Value, String> {
    let text = client.report(question).await.map_err(|e| e.to_string())?;
    serde_json::from_str(&text).map_err(|e| e.to_string())
}

#[derive(Clone, Debug)]
pub enum Source {
    /// Backup for all voters.
    Backup(Bytes),
    /// Data folder of the only voter.
    Survivor,
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub source: Source,
    pub id: ClusterId,
    /// Time of the making by the operator's clock, in milliseconds since 1970.
    pub at_ms: i64,
    pub voters: BTreeMap<NodeId, Member>,
}

pub struct Made {
    /// State of the old cluster.
    pub before: Machine,
    /// State of the new cluster.
    pub after: Machine,
    /// Last entry of the last node's log.
    pub last: Option<Position>,
}

/// First entry of a new cluster's log (`coordinator/storage/wal/src/open.rs`).
pub const BEGINNING: Position = Position { term: 0, leader: NodeId(0), index: Index(1) };

impl Plan {
    /// Makes the data folder of a voter. Runs on the voter's host, while no node runs there; blocks on the
    /// disk.
    pub fn make_folder(&self, node: NodeId) -> Result<Made, String> {
        let identity = Identity { cluster: CLUSTER.to_owned(), node };
        let dir = Path::new(DATA_DIR);
        match &self.source {
            Source::Backup(bytes) => {
                let (header, machine) = file::read(&mut &bytes[..]).map_err(|e| e.to_string())?;
                let before = copy(&machine)?;
                let restored = self.restored(machine, header.longest_timeout_ms)?;
                restored.make_folder(dir, &identity, &self.voters).map_err(|e| e.to_string())?;
                Ok(Made { before, after: copy(restored.machine())?, last: None })
            }
            Source::Survivor => {
                // The command refuses to run while the previous folder of an earlier recovery exists.
                if let Ok(former) = Dir::open(&folder::before(dir)) {
                    former.remove_all().map_err(|e| e.to_string())?;
                }
                let Survivor { machine, last, stopped } = survivor::read(dir).map_err(|e| e.to_string())?;
                let before = copy(&machine)?;
                let timeouts = machine.sessions().map(|(_, session)| session.longest_timeout_ms());
                let longest = timeouts.max().unwrap_or(0);
                let restored = self.restored(machine, longest)?;
                let made = restored.make_folder(&folder::beside(dir), &identity, &self.voters);
                made.map_err(|e| e.to_string())?;
                drop(stopped);
                folder::exchange(dir).map_err(|e| e.to_string())?;
                let last = last.map(|at| Position {
                    term: at.leader_id.term,
                    leader: NodeId(at.leader_id.node_id),
                    index: Index(at.index),
                });
                Ok(Made { before, after: copy(restored.machine())?, last })
            }
        }
    }

    fn restored(&self, machine: Machine, longest_timeout_ms: u32) -> Result<Restored, String> {
        let grace_ms = longest_timeout_ms.max(MAX_TIMEOUT_MS);
        Restored::new(machine, NewCluster { id: self.id, grace_ms }, self.at_ms).map_err(|e| e.to_string())
    }
}

fn copy(machine: &Machine) -> Result<Machine, String> {
    let mut bytes = Vec::new();
    machine.freeze().encode(&mut bytes).map_err(|e| e.to_string())?;
    Machine::decode(&mut &bytes[..]).map_err(|e| e.to_string())
}

/// Checks the first state of a new cluster: the znodes of the old state, except ephemerals.
pub fn check_folder(record: &Record, node: NodeId, made: &Made) {
    let broken = |what: String| record.break_promise("restored-cluster", what);
    if let Some(last) = made.last {
        let digest = record.digest_behind(last);
        if digest.is_some_and(|digest| digest != made.before.digest()) {
            broken(format!(
                "the state made from the log of node {node} up to {last:?} differs from the applied state"
            ));
        }
        let told = record.told(node);
        if last.index < told {
            broken(format!("node {node} acknowledged entries up to {told:?}, but its log ends at {last:?}"));
        }
    }
    if made.after.cluster() == made.before.cluster() {
        broken(format!("the new cluster has the id of the old one, {:?}", made.after.cluster()));
    }
    let (before, after) = (znodes(&made.before), znodes(&made.after));
    for (path, (data, stat)) in &before {
        let stays = after.get(path).map(|(data, stat)| (data, stat.czxid, stat.mzxid, stat.version));
        let expected = (data, stat.czxid, stat.mzxid, stat.version);
        let is_ephemeral = made.before.sessions().any(|(id, _)| id == stat.ephemeral_owner);
        if stays != (!is_ephemeral).then_some(expected) {
            broken(format!("{path} was {expected:?} in the old cluster, and is {stays:?} in the new one"));
        }
    }
    if let Some(path) = after.keys().find(|path| !before.contains_key(*path)) {
        broken(format!("{path} is in the new cluster, and was not in the old one"));
    }
}

/// Returns the znodes of the workload.
fn znodes(machine: &Machine) -> BTreeMap<String, (Option<Bytes>, Stat)> {
    let (mut all, mut left) = (BTreeMap::new(), vec![DATA.to_owned()]);
    while let Some(path) = left.pop() {
        let Some(stat) = machine.stat(&path) else { continue };
        let data = machine.get_data(&path, &[]).ok().and_then(|(data, _)| data);
        let children = machine.get_children(&path, &[]).map(|(names, _)| names).unwrap_or_default();
        left.extend(children.iter().map(|name| path::join(&path, name)));
        all.insert(path, (data, stat));
    }
    all
}
