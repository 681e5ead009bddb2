//! Tells which locks and sessions are surely not in a sealed slice, so that a question about one of them does not have
//! to copy and open every slice there is. (A Bloom filter.)

use rowlock_proto::SessionId;
use serde::{Deserialize, Serialize};

use super::index::Index;

/// 8 KiB: with 5,000 names in a slice, one question in 400 looks into it in vain.
const BITS: u32 = 1 << 16;
/// Bits of each name.
const MARKS: u32 = 6;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sieve(Vec<u8>);

impl Sieve {
    /// Of all that an index knows.
    pub fn of(index: &Index) -> Sieve {
        let mut sieve = Sieve(vec![0; BITS as usize / 8]);
        index.locks().for_each(|(lock, _)| sieve.add(lock.as_bytes()));
        index.sessions().for_each(|(session, _)| sieve.add(&session.0.to_be_bytes()));
        sieve
    }

    /// False: there is nothing of this lock.
    pub fn may_hold_lock(&self, lock: &str) -> bool {
        self.may_hold(lock.as_bytes())
    }

    /// False: there is nothing of this session.
    pub fn may_hold_session(&self, session: SessionId) -> bool {
        self.may_hold(&session.0.to_be_bytes())
    }

    fn add(&mut self, name: &[u8]) {
        for bit in marks(name) {
            self.0[bit / 8] |= 1 << (bit % 8);
        }
    }

    fn may_hold(&self, name: &[u8]) -> bool {
        // A sieve of another size is of another version: it says nothing.
        marks(name).all(|bit| self.0.get(bit / 8).is_none_or(|byte| byte & (1 << (bit % 8)) != 0))
    }
}

fn marks(name: &[u8]) -> impl Iterator<Item = usize> {
    // Every checksum of a name by one polynomial follows from any other: the second has to be of other bytes.
    let first = crc32fast::hash(name);
    let second = crc32fast::hash(&[name, &first.wrapping_mul(0x9e37_79b1).to_le_bytes()].concat()) | 1;
    (0..MARKS)
        .map(move |i| first.wrapping_add(i.wrapping_mul(second).rotate_left(i)) % BITS)
        .map(|bit| bit as usize)
}

#[cfg(test)]
mod tests {
    use rowlock_proto::Zxid;

    use super::*;
    use crate::history::record::Key;

    #[test]
    fn nothing_that_is_there_is_denied_and_little_else_is_promised() {
        let mut index = Index::default();
        let key = Key { time_ms: 1, zxid: Zxid(1), ordinal: 0 };
        for n in 0..2_500 {
            index.note(&format!("/locks/{n}"), SessionId(0x0100_0000_0000_0000 + n), key);
        }
        let sieve = Sieve::of(&index);
        for n in 0..2_500 {
            assert!(sieve.may_hold_lock(&format!("/locks/{n}")));
            assert!(sieve.may_hold_session(SessionId(0x0100_0000_0000_0000 + n)));
        }
        let in_vain = (2_500..12_500)
            .filter(|n| {
                sieve.may_hold_lock(&format!("/locks/{n}"))
                    || sieve.may_hold_session(SessionId(0x0100_0000_0000_0000 + n))
            })
            .count();
        assert!(in_vain < 100, "{in_vain} of 20,000");
    }
}
