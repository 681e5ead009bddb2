//! Proof of a session's password, kept in memory, log and snapshots: suffices to verify the password, and
//! reveals nothing useful.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The first half of the SHA-256 of a session's password. A password has 16 random bytes: only a search
/// through all passwords finds one with the same proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof(pub(crate) [u8; 16]);

impl Proof {
    pub fn of(password: &[u8]) -> Proof {
        let hash = Sha256::digest(password);
        let (half, _) = hash.split_first_chunk().expect("a SHA-256 has 32 bytes");
        Proof(*half)
    }

    /// Makes the proof of a session that no client can return to: the second half of the SHA-256 of `name`.
    /// Nodes recognize the sessions that they act for by this proof. Only a search through all passwords
    /// finds a password.
    pub fn without_password(name: &[u8]) -> Proof {
        let hash = Sha256::digest(name);
        let (_, half) = hash.split_last_chunk().expect("a SHA-256 has 32 bytes");
        Proof(*half)
    }

    /// Compares in constant time.
    pub fn is_that_of(&self, other: &Proof) -> bool {
        let different = self.0.iter().zip(&other.0).fold(0, |sum, (a, b)| sum | std::hint::black_box(a ^ b));
        different == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_that_of_its_password_alone() {
        let proof = Proof::of(b"abc");
        assert_eq!(proof.0[..4], [0xba, 0x78, 0x16, 0xbf], "as FIPS 180 has it");
        assert!(proof.is_that_of(&Proof::of(b"abc")));
        for other in [&b"abd"[..], b"", b"abc\0"] {
            assert!(!proof.is_that_of(&Proof::of(other)));
        }
        assert!(!proof.is_that_of(&Proof([0xba; 16])));
        assert!(!proof.is_that_of(&Proof::without_password(b"abc")));
    }
}
