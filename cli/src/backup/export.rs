//! `rowlock backup export`: writes a backup's tree as a snapshot of Apache ZooKeeper 3.8 (`snapshot.<zxid>`);
//! `import/snapshot.rs` describes and reads the format.
//!
//! The snapshot has no session and no ephemeral znode. Must never write a znode that ZooKeeper takes for an
//! ephemeral one: ZooKeeper would delete the znode with an unknown session.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rowlock_backup::file;
use rowlock_backup::file::Target;
use rowlock_proto::acl::Acl;
use rowlock_state::Machine;
use rowlock_state::{Exported, Lifetime};
use serde_json::json;
use simd_adler32::Adler32;

use super::{open, refused};
use crate::exit::{DATA_FOLDER, Failure, IO, USAGE};
use crate::print::{count, print};
use crate::znode::{Output, print_json};

/// Export a backup as a snapshot for Apache ZooKeeper 3.8
///
/// Exported: persistent znodes and containers with their data, ACLs and stats. Left out: sessions and
/// ephemeral znodes, and with them holders and waiters of locks. Works offline.
#[derive(clap::Args)]
pub struct Export {
    /// Path of the backup file
    file: PathBuf,
    /// Output file or its folder; its name is snapshot.ZXID, from which ZooKeeper takes the zxid
    #[arg(long, value_name = "FILE")]
    zookeeper: PathBuf,
    /// Keep times to live; needs a ZooKeeper with extendedTypesEnabled (others delete such znodes)
    #[arg(long)]
    keep_ttl: bool,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

impl Export {
    /// Exits with 64 if the name differs from the one ZooKeeper looks for, with 73 if the file exists.
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let read = file::read(open(&self.file)?);
        let (header, machine) = read.map_err(|e| refused(&self.file, &e))?;
        let name = format!("snapshot.{:x}", header.zxid);
        let path = if self.zookeeper.is_dir() { self.zookeeper.join(&name) } else { self.zookeeper.clone() };
        if path.file_name().and_then(|given| given.to_str()) != Some(&*name) {
            let problem = format!(
                "{}: ZooKeeper takes the zxid from the name; call it {name}, or name a folder",
                path.display()
            );
            return Err(Failure::new(USAGE, problem));
        }
        let done = self.write(&machine, &path)?;
        match self.output {
            Output::Simple => {
                let mut text = format!(
                    "{} written to {}\n{} left out\n",
                    count(done.znodes, "znode"),
                    path.display(),
                    count(done.ephemerals, "ephemeral znode")
                );
                if done.ttls > 0 {
                    text.push_str(&format!(
                        "made persistent: {}; see --keep-ttl\n",
                        count(done.ttls, "znode")
                    ));
                }
                print(text.as_bytes())?;
            }
            Output::Json => print_json(&json!({
                "file": path, "zxid": header.zxid, "znodes": done.znodes, "ephemerals_left_out": done.ephemerals,
                "ttls_dropped": done.ttls,
            }))?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn write(&self, machine: &rowlock_state::Machine, path: &Path) -> Result<Exports, Failure> {
        let mut target = Target::create(path, false).map_err(|e| {
            let code = if e.kind() == ErrorKind::AlreadyExists { DATA_FOLDER } else { IO };
            Failure::new(code, format!("{}: {e}", path.display()))
        })?;
        let ttl = if self.keep_ttl { Ttl::Kept } else { Ttl::Dropped };
        let written = write(machine, ttl, &mut target).and_then(|done| {
            target.flush()?;
            target.keep()?;
            Ok(done)
        });
        written.map_err(|e| Failure::new(IO, format!("{}: {e}", path.display())))
    }
}

const MAGIC: i32 = i32::from_be_bytes(*b"ZKSN");
const FORMAT: i32 = 2;
const DATABASE: i64 = -1;
/// Index of the ACL open to all, which is not in the table.
const OPEN_ACL_INDEX: i64 = -1;
const CONTAINER: i64 = i64::MIN;
/// Bits of the owner value of a znode with a time to live (`extendedTypesEnabled`).
const TTL_MARK: u64 = 0xff00_0000_0000_0000;
/// Largest time to live, in ms.
const TTL_BITS: u64 = 0xff_ffff_ffff;
/// ZooKeeper writes its own text here at its start.
const CONFIG: &str = "/zookeeper/config";

/// Treatment of times to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttl {
    /// Drops them: the znodes become persistent.
    Dropped,
    /// Keeps them, for a ZooKeeper with extended types. Without extended types, ZooKeeper takes such znodes
    /// for ephemerals.
    Kept,
}

/// Counts of written, omitted and changed znodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Exports {
    pub znodes: u64,
    pub ephemerals: u64,
    pub ttls: u64,
}

/// Writes the tree. The caller flushes.
fn write(machine: &Machine, ttl: Ttl, out: impl Write) -> io::Result<Exports> {
    let mut out = Summed { out, adler: Adler32::new() };
    out.int(MAGIC)?;
    out.int(FORMAT)?;
    out.long(DATABASE)?;
    // Number of sessions.
    out.int(0)?;
    let lists = write_acls(machine, &mut out)?;
    let mut done = Exports::default();
    let mut failed = Ok(());
    machine.each_znode(|path, znode| {
        if failed.is_ok() {
            failed = write_znode(path, &znode, &lists, ttl, &mut out, &mut done);
        }
    });
    failed?;
    out.bytes(Some(b"/"))?;
    let sum = out.adler.finish();
    out.long(i64::from(sum))?;
    out.bytes(Some(b"/"))?;
    Ok(done)
}

/// Writes the table of ACLs, each once, and returns their indexes.
fn write_acls<'a>(
    machine: &'a Machine,
    out: &mut Summed<impl Write>,
) -> io::Result<BTreeMap<&'a [Acl], i64>> {
    let open = Acl::open();
    let mut lists: BTreeMap<&[Acl], i64> = BTreeMap::new();
    machine.each_znode(|_, znode| {
        let next = lists.len() as i64 + 1;
        if znode.lifetime != Lifetime::Session && *znode.acl != *open {
            lists.entry(znode.acl).or_insert(next);
        }
    });
    out.int(element_count(lists.len())?)?;
    for (list, index) in &lists {
        out.long(*index)?;
        out.int(element_count(list.len())?)?;
        for Acl { perms, id } in *list {
            out.int(*perms)?;
            out.bytes(Some(id.scheme.as_bytes()))?;
            out.bytes(Some(id.id.as_bytes()))?;
        }
    }
    Ok(lists)
}

fn write_znode(
    path: &str,
    znode: &Exported<'_>,
    lists: &BTreeMap<&[Acl], i64>,
    ttl: Ttl,
    out: &mut Summed<impl Write>,
    done: &mut Exports,
) -> io::Result<()> {
    let owner = match (znode.lifetime, ttl) {
        (Lifetime::Session, _) => {
            done.ephemerals += 1;
            return Ok(());
        }
        (Lifetime::Persistent, _) => 0,
        (Lifetime::Container, _) => CONTAINER,
        (Lifetime::Ttl(ms), Ttl::Kept) => {
            let ms = u64::try_from(ms).unwrap_or(0).min(TTL_BITS);
            (TTL_MARK | ms).cast_signed()
        }
        (Lifetime::Ttl(_), Ttl::Dropped) => {
            done.ttls += 1;
            0
        }
    };
    done.znodes += 1;
    // The root has an empty name in the file.
    out.bytes(Some(if path == "/" { b"" } else { path.as_bytes() }))?;
    out.bytes(if path == CONFIG { Some(b"") } else { znode.data })?;
    out.long(lists.get(znode.acl).copied().unwrap_or(OPEN_ACL_INDEX))?;
    let stat = &znode.stat;
    for stamp in [stat.czxid.0, stat.mzxid.0, stat.ctime_ms, stat.mtime_ms] {
        out.long(stamp)?;
    }
    for number in [stat.version.0, znode.creates, stat.aversion.0] {
        out.int(number)?;
    }
    out.long(owner)?;
    out.long(stat.pzxid.0)
}

fn element_count(elements: usize) -> io::Result<i32> {
    i32::try_from(elements).map_err(|_| io::Error::other("too many for the format of ZooKeeper"))
}

/// Writer of ZooKeeper's fields, with the checksum of the bytes written.
struct Summed<W> {
    out: W,
    adler: Adler32,
}

impl<W: Write> Summed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.adler.write(bytes);
        self.out.write_all(bytes)
    }

    fn int(&mut self, number: i32) -> io::Result<()> {
        self.write(&number.to_be_bytes())
    }

    fn long(&mut self, number: i64) -> io::Result<()> {
        self.write(&number.to_be_bytes())
    }

    /// Null differs from empty.
    fn bytes(&mut self, bytes: Option<&[u8]>) -> io::Result<()> {
        let Some(bytes) = bytes else { return self.int(-1) };
        self.int(element_count(bytes.len())?)?;
        self.write(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rowlock_env::disk::Dir;
    use rowlock_proto::request::{Create, Request, SetData};
    use rowlock_proto::{CreateMode, Id, NodeId, SessionId, Version, perms};
    use rowlock_state::Proof;
    use rowlock_state::command::{Attachment, Command, Origin, Proposal};
    use rowlock_state::outcome::Attached;

    use super::*;
    use crate::import::record::{Lifetime, Record};
    use crate::import::snapshot::Snapshot;

    struct World {
        machine: Machine,
        session: SessionId,
        attachment: Attachment,
        request: u64,
    }

    impl World {
        fn new() -> World {
            let (machine, session) = (Machine::new(), SessionId::NONE);
            let mut world = World { machine, session, attachment: Attachment::default(), request: 0 };
            let open = Command::OpenSession { proof: Proof::of(&[7; 16]), timeout_ms: 10_000 };
            let Attached { session, attachment, .. } = world.run(open).expect("it opens");
            (world.session, world.attachment) = (session, attachment);
            world
        }

        fn run(&mut self, command: Command) -> Option<Attached> {
            self.request += 1;
            let origin = Origin { node: NodeId(1), incarnation: 1, request: self.request };
            let (session, attachment) = (self.session, self.attachment);
            let identities = Arc::new([Id { scheme: "digest".to_owned(), id: "u:h".to_owned() }]);
            let proposal = Proposal { origin, session, attachment, identities, command };
            let applied = self.machine.apply(1_700_000_000_000, &proposal, &mut ());
            applied.result.expect("is taken");
            applied.attached
        }

        fn create(&mut self, path: &str, data: Option<&'static [u8]>, mode: CreateMode, acl: Option<Acl>) {
            let data = data.map(bytes::Bytes::from_static);
            let acl = Some(acl.map_or_else(|| Acl::open().into(), |acl| [acl].into()));
            let create = Create { path: path.to_owned(), data, acl, flags: mode.flags() };
            self.run(Command::Client(Request::Create2(create)));
        }
    }

    fn exported(machine: &Machine, ttl: Ttl) -> (Vec<Record>, Exports) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("snapshot.1");
        let mut bytes = Vec::new();
        let done = write(machine, ttl, &mut bytes).unwrap();
        let file = Dir::open(folder.path()).unwrap().create_new("snapshot.1").unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        let snapshot = Snapshot::open(&path).unwrap();
        let (mut records, mut all) = (snapshot.records(), Vec::new());
        while let Some(record) = records.next().unwrap() {
            all.push(record);
        }
        (all, done)
    }

    #[test]
    fn an_exported_tree_reads_back_unchanged() {
        let mut world = World::new();
        let secret = Acl { perms: perms::READ, id: Id { scheme: "digest".to_owned(), id: "u:h".to_owned() } };
        world.create("/a", Some(b"data"), CreateMode::Persistent, Some(secret.clone()));
        world.create("/empty", Some(b""), CreateMode::Persistent, None);
        world.create("/null", None, CreateMode::Persistent, None);
        world.create("/e", Some(b"x"), CreateMode::Ephemeral, None);
        world.create("/box", None, CreateMode::Container, None);
        world.create("/queue", None, CreateMode::Persistent, None);
        for _ in 0..3 {
            world.create("/queue/n-", None, CreateMode::PersistentSequential, None);
        }
        world.create("/queue/e-", None, CreateMode::EphemeralSequential, None);
        let data = Some(bytes::Bytes::from_static(b"more"));
        world.run(Command::Client(Request::SetData(SetData {
            path: "/null".to_owned(),
            data,
            version: Version(0),
        })));
        let mut path = String::new();
        for _ in 0..500 {
            path.push_str("/deep");
            world.create(&path, None, CreateMode::Persistent, None);
        }
        let create = Create { path: "/ttl".to_owned(), data: None, acl: Some(Acl::open().into()), flags: 5 };
        world.run(Command::Client(Request::CreateTtl(create, 60_000)));

        let (all, done) = exported(&world.machine, Ttl::Dropped);
        assert_eq!((done.znodes, done.ephemerals, done.ttls), (all.len() as u64, 2, 1));
        let by_path = |path: &str| all.iter().find(|record| record.path == path);
        assert_eq!((by_path("/e"), by_path("/queue/e-0000000003")), (None, None));
        for record in &all {
            let stat = world.machine.stat(&record.path).unwrap();
            assert_eq!(record.version, stat.version.0, "{}", record.path);
            assert_eq!(&record.acl[..], world.machine.acl(&record.path).unwrap(), "{}", record.path);
            if record.path != CONFIG {
                let super_user = [Id { scheme: "super".to_owned(), id: String::new() }];
                let (data, _) = world.machine.get_data(&record.path, &super_user).unwrap();
                assert_eq!(record.data, data, "{}", record.path);
            }
        }
        let queue = by_path("/queue").unwrap();
        assert_eq!((queue.creates, &by_path("/box").unwrap().kind), (4, &Lifetime::Container));
        assert_eq!(by_path("/a").unwrap().acl[..], [secret]);
        assert_eq!(by_path("/ttl").unwrap().kind, Lifetime::Persistent);
        assert!(by_path(&path).is_some() && by_path("/zookeeper/quota").is_some());
        let (all, done) = exported(&world.machine, Ttl::Kept);
        let ttl = all.iter().find(|record| record.path == "/ttl").unwrap();
        assert_eq!((done.ttls, &ttl.kind), (0, &Lifetime::Ttl(std::time::Duration::from_secs(60))));
    }
}
