//! Damaged backups: a reader returns the written state or refuses the file.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use bytes::Bytes;
use rowlock_backup::file::{self, BackupError, Header};
use rowlock_backup::folder::{Member, NewCluster, Restored};
use rowlock_backup::survivor;
use rowlock_proto::Request;
use rowlock_proto::acl::Acl;
use rowlock_proto::request::Create;
use rowlock_proto::{ClusterId, NodeId, SessionId};
use rowlock_state::command::{Attachment, Command, Origin, Proposal};
use rowlock_state::outcome::Attached;
use rowlock_state::{Machine, Proof};
use rowlock_wal::{Identity, StorageError};

fn run(machine: &mut Machine, session: SessionId, command: Command) -> Option<Attached> {
    let origin = Origin { node: NodeId(1), incarnation: 1, request: 1 };
    let (attachment, identities) = (Attachment(1), Default::default());
    let proposal = Proposal { origin, session, attachment, identities, command };
    let applied = machine.apply(1_000, &proposal, &mut ());
    applied.result.unwrap();
    applied.attached
}

fn state(znodes: usize) -> Machine {
    let mut machine = Machine::new();
    run(&mut machine, SessionId::NONE, Command::Found { cluster: ClusterId(77) });
    let open = Command::OpenSession { proof: Proof::of(b"p"), timeout_ms: 4_000 };
    let session = run(&mut machine, SessionId::NONE, open).expect("a session opens").session;
    for number in 0..znodes {
        let data = Some(Bytes::from(vec![number as u8; 100]));
        let create = Create { path: format!("/z{number}"), data, acl: Some(Acl::shared_open()), flags: 0 };
        run(&mut machine, session, Command::Client(Request::Create2(create)));
    }
    machine
}

fn backup(machine: &Machine) -> Vec<u8> {
    file::write(&machine.freeze(), "test", Vec::new()).unwrap()
}

#[test]
fn a_backup_is_read_back_as_written() {
    let machine = state(50);
    let bytes = backup(&machine);
    let (header, again) = file::read(&bytes[..]).unwrap();
    assert_eq!(again.digest(), machine.digest());
    assert_eq!(header, file::inspect(&bytes[..]).unwrap());
    assert_eq!((header.id(), header.zxid, header.sessions), (Some(ClusterId(77)), machine.last_zxid().0, 1));
    assert_eq!((header.znodes, header.longest_timeout_ms), (machine.counts().znodes, 4_000));
}

#[test]
fn the_lock_of_a_state_does_not_extend_the_grace() {
    let mut machine = state(0);
    let timeout_ms = rowlock_state::STATE_LOCK_MS;
    let open = Command::OpenSession { proof: Proof::of(b"p"), timeout_ms };
    run(&mut machine, SessionId::NONE, open);
    let (header, _) = file::read(&backup(&machine)[..]).unwrap();
    assert_eq!((header.sessions, header.longest_timeout_ms), (2, 4_000));
}

#[test]
fn a_flipped_bit_anywhere_is_found() {
    let bytes = backup(&state(5));
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        assert!(file::read(&damaged[..]).is_err(), "byte {at}");
    }
}

#[test]
fn a_truncated_or_extended_backup_is_refused() {
    let bytes = backup(&state(5));
    for cut in 0..bytes.len() {
        assert!(matches!(file::read(&bytes[..cut]), Err(BackupError::Truncated)), "cut at {cut}");
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(matches!(file::read(&longer[..]), Err(BackupError::Damaged(_))));
}

#[test]
fn other_files_and_other_versions_are_named() {
    assert!(matches!(file::read(&b"ZKSN this is a snapshot of ZooKeeper"[..]), Err(BackupError::NotABackup)));
    let mut later = backup(&state(1));
    later[8] = 9;
    assert!(matches!(file::read(&later[..]), Err(BackupError::Version(9))));
    let bytes = backup(&state(1));
    let at = bytes.windows(10).position(|bytes| bytes == b"  \"layout\"").expect("the header has it");
    let width = bytes[at..].iter().position(|byte| *byte == b'\n').expect("a line ends");
    let with = |new: &str| [&bytes[..at], format!("{new:<width$}").as_bytes(), &bytes[at + width..]].concat();
    // Keeps the length of the header. Refuses an unnamed build as another build.
    let (other, none) = ("  \"layout\": 7,", "");
    for new in [other, none] {
        let error = file::read(&with(new)[..]).expect_err("is not read");
        assert!(matches!(error, BackupError::OtherBuild(_)), "{error}");
        assert!(error.to_string().contains("not damaged"), "{error}");
    }
}

/// Before the fix, the error named a damaged file.
#[test]
fn another_builds_state_in_a_backup_is_named() {
    let state = state(3);
    let mut body = Vec::new();
    state.freeze().encode(&mut body).unwrap();
    // Changes the fingerprint of the state's format.
    body[12] ^= 1;
    let header = Header::of(&state, "test", body.len() as u64);
    let mut writer = file::Writer::begin(Vec::new(), &header).unwrap();
    std::io::Write::write_all(&mut writer, &body).unwrap();
    let error = file::read(&writer.finish().unwrap()[..]).expect_err("is not read");
    assert!(matches!(&error, BackupError::OtherBuild(_)), "{error}");
}

#[test]
fn another_states_header_is_refused() {
    let (of, other) = (state(3), state(4));
    let mut body = Vec::new();
    of.freeze().encode(&mut body).unwrap();
    let header = Header::of(&other, "test", body.len() as u64);
    let mut writer = file::Writer::begin(Vec::new(), &header).unwrap();
    std::io::Write::write_all(&mut writer, &body).unwrap();
    let bytes = writer.finish().unwrap();
    assert!(matches!(file::read(&bytes[..]), Err(BackupError::Damaged(_))));
}

#[test]
fn a_folder_is_made_once_and_one_with_content_is_not_touched() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("node");
    let new = NewCluster { id: ClusterId(5), grace_ms: 1_000 };
    let restored = Restored::new(state(3), new, 1_000).unwrap();
    let identity = Identity { cluster: "test".to_owned(), node: NodeId(1) };
    let member = Member { peer_addr: "a:1".to_owned(), client_addr: "a:2".to_owned() };
    let voters = BTreeMap::from([(NodeId(1), member)]);
    restored.make_folder(&path, &identity, &voters).unwrap();
    let before = fingerprint(&path);
    let again = restored.make_folder(&path, &identity, &voters);
    assert!(matches!(again, Err(StorageError::NotEmpty(_))));
    assert_eq!(fingerprint(&path), before);
    let stopped = rowlock_wal::verify(&path).unwrap();
    assert_eq!((&stopped.identity, stopped.report.snapshot.map(|end| end.index)), (&identity, Some(1)));
    drop(stopped);
    assert_eq!(survivor::read(&path).unwrap().machine.digest(), restored.machine().digest());
}

/// Returns the names, lengths and contents of all files.
#[expect(clippy::disallowed_methods, reason = "the test looks at files behind env's back")]
fn fingerprint(path: &std::path::Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(path).unwrap().map(Result::unwrap) {
        let name = entry.path().display().to_string();
        if entry.file_type().unwrap().is_dir() {
            found.extend(fingerprint(&entry.path()));
        } else {
            found.insert(name, std::fs::read(entry.path()).unwrap());
        }
    }
    found
}
