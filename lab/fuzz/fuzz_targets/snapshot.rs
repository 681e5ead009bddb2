//! A snapshot, read at a node's start or from another node: the file's header, the state inside, and
//! arbitrary records in blocks with right checksums, followed by the digest of these records.
//!
//! Nothing may panic or take more memory than the input's size justifies. A decoded state can be encoded
//! again. The digest protects the numbers inside: only damage or forgery changes them.

#![cfg_attr(feature = "libfuzzer", no_main)]

use rowlock_fuzz::{fuzz_target, within_worth};
use rowlock_state::{Machine, SnapshotError};
use rowlock_wal::snapshot::file::{FIXED_BYTES, SnapshotHeader};

/// Bytes before the first block: magic, versions, fingerprint.
const HEADER_BYTES: usize = 16;
/// Kind byte of a `Record::End`.
const END: u8 = 4;

fuzz_target!(|input: &[u8]| {
    let Some((choice, rest)) = input.split_first() else { return };
    match choice % 4 {
        0 => header(rest),
        1 => drop(read(rest)),
        _ => records(rest),
    }
});

/// Decodes a header after correcting its checksum.
fn header(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    if let Some(crc) = bytes.get_mut(12..16) {
        crc.fill(0);
        let crc = crc32fast::hash(&bytes).to_le_bytes();
        bytes[12..16].copy_from_slice(&crc);
    }
    if let Some(meta) = bytes.len().checked_sub(FIXED_BYTES)
        && let Some(length) = bytes.get_mut(32..36)
    {
        length.copy_from_slice(&u32::try_from(meta).expect("an input is short").to_le_bytes());
    }
    let decoded = within_worth(&bytes, 4 << 20, 64, || SnapshotHeader::decode(&bytes));
    if let Ok(header) = decoded {
        assert_eq!(SnapshotHeader::decode(&header.encode()).expect("an encoded snapshot decodes"), header);
    }
}

fn records(records: &[u8]) {
    let whole = |digest: u64| {
        let mut block = records.to_vec();
        block.extend_from_slice(&[END, 253]);
        block.extend_from_slice(&digest.to_le_bytes());
        let mut bytes = Vec::new();
        Machine::new().freeze().encode(&mut bytes).expect("memory takes everything");
        bytes.truncate(HEADER_BYTES);
        bytes.extend_from_slice(&u32::try_from(block.len()).expect("an input is short").to_le_bytes());
        bytes.extend_from_slice(&crc32fast::hash(&block).to_le_bytes());
        bytes.extend_from_slice(&block);
        bytes
    };
    let Err(SnapshotError::Digest { found, .. }) = read(&whole(0)) else { return };
    read(&whole(found)).expect("has the right digest now");
}

fn read(bytes: &[u8]) -> Result<Machine, SnapshotError> {
    let machine = within_worth(bytes, 4 << 20, 512, || Machine::decode(&mut &bytes[..]))?;
    let mut again = Vec::new();
    machine.freeze().encode(&mut again).expect("memory takes everything");
    let copy = Machine::decode(&mut &again[..]).expect("an encoded snapshot decodes");
    assert_eq!(copy.digest(), machine.digest());
    Ok(machine)
}
