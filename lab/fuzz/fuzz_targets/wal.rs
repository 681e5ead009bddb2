//! The write-ahead log at a node's start: a segment of arbitrary bytes, and a segment of records with right
//! checksums and chain but arbitrary kinds and bodies.
//!
//! Nothing may panic or take more memory than the file's size justifies. A recovered log can be queried and
//! its records encoded again.

#![cfg_attr(feature = "libfuzzer", no_main)]

use std::path::PathBuf;
use std::sync::OnceLock;

use rowlock_env::disk::Dir;
use rowlock_fuzz::{fuzz_target, within_worth};
use rowlock_proto::NodeId;
use rowlock_wal::log::record::Record;
use rowlock_wal::log::record::{self, FrameContext};
use rowlock_wal::log::recover::{Recovered, recover};
use rowlock_wal::log::segment::{FIRST_RECORD_AT, SegmentHeader, SegmentSeq};
use rowlock_wal::{Identity, StorageError};

static FOLDER: OnceLock<PathBuf> = OnceLock::new();

fuzz_target!(|input: &[u8]| {
    let Some((choice, rest)) = input.split_first() else { return };
    match choice % 3 {
        0 => drop(read(rest)),
        1 => drop(read(&segment(rest))),
        _ => {
            let Some((kind, body)) = rest.split_first() else { return };
            let decoded = within_worth(body, 4 << 20, 64, || Record::decode(kind % 8, body));
            if let Ok(record) = decoded {
                let mut again = Vec::new();
                let kind = record.encode_into(&mut again);
                assert_eq!(Record::decode(kind, &again).expect("an encoded record decodes"), record);
            }
        }
    }
});

fn identity() -> Identity {
    Identity { cluster: "fuzz".to_owned(), node: NodeId(1) }
}

fn header() -> SegmentHeader {
    SegmentHeader {
        seq: SegmentSeq::FIRST,
        node: 1,
        cluster_hash: identity().cluster_hash(),
        nonce: 7,
        previous_chain: record::Chain(0),
        previous_end: 0,
    }
}

/// Returns a segment with the input's records: each is a kind, a length in two bytes, a body. Adds a
/// checkpoint in front if the input has none.
fn segment(mut records: &[u8]) -> Vec<u8> {
    let (head, mut chain) = header().encode();
    let mut bytes = head.to_vec();
    bytes.resize(FIRST_RECORD_AT as usize, 0);
    let mut add = |bytes: &mut Vec<u8>, kind, body: &[u8]| {
        let flushed = u32::try_from(bytes.len()).expect("an input is short");
        chain =
            record::write(bytes, FrameContext { key: header().key(), previous: chain, flushed }, kind, body);
    };
    let mut body = Vec::new();
    let kind = Record::Checkpoint(Default::default()).encode_into(&mut body);
    if records.first() != Some(&kind) {
        add(&mut bytes, kind, &body);
    }
    while let [kind, low, high, rest @ ..] = records {
        let (body, rest) = rest.split_at(rest.len().min(usize::from(u16::from_le_bytes([*low, *high]))));
        add(&mut bytes, *kind, body);
        records = rest;
    }
    bytes
}

fn read(segment: &[u8]) -> Result<Recovered, StorageError> {
    let folder = FOLDER.get_or_init(rowlock_fuzz::folder);
    std::fs::write(folder.join(SegmentSeq::FIRST.file_name()), segment).expect("cannot write the segment");
    let dir = Dir::open(folder).expect("the folder exists");
    let mut recovered = within_worth(segment, 4 << 20, 64, || recover(&dir, &identity()))?;
    let log = &mut recovered.log;
    let stored = log.entries().count();
    assert_eq!(log.range(&..).count(), stored);
    assert!(log.limited(&(0..u64::MAX), 1_000).len() <= stored);
    let _ = log.purge_point(100);
    if let Some(last) = log.checkpoint().last {
        log.purge(last);
        assert_eq!((log.entries().count(), log.bytes()), (0, 0));
    }
    Ok(recovered)
}
