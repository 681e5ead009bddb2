//! Where the frames of ZooKeeper's protocol end in the bytes of a server.
//!
//! Each frame for a client is a TLS record of its own, as ZooKeeper sends them. A client that waits for its
//! socket, and not for what its TLS library has decrypted already (kazoo 2.11), would see the second frame of
//! a record only when something else comes.

const HEAD_BYTES: usize = 4;

/// Follows the bytes of one direction.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// What has come of the length of the next frame.
    head: [u8; HEAD_BYTES],
    head_bytes: usize,
    /// How much of the present frame is still to come.
    left: usize,
}

impl Frames {
    /// How many of the next bytes belong to one frame: all of them, or those to its end.
    pub(crate) fn piece(&self, bytes: &[u8]) -> usize {
        if self.left > 0 {
            return self.left.min(bytes.len());
        }
        let missing = HEAD_BYTES - self.head_bytes;
        if bytes.len() <= missing {
            return bytes.len();
        }
        let mut head = self.head;
        head[self.head_bytes..].copy_from_slice(&bytes[..missing]);
        missing.saturating_add(length(head)).min(bytes.len())
    }

    /// These bytes, at most a piece, are on their way.
    pub(crate) fn advance(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        if self.left == 0 {
            let count = (HEAD_BYTES - self.head_bytes).min(rest.len());
            self.head[self.head_bytes..self.head_bytes + count].copy_from_slice(&rest[..count]);
            self.head_bytes += count;
            rest = &rest[count..];
            if self.head_bytes < HEAD_BYTES {
                return;
            }
            (self.left, self.head_bytes) = (length(self.head), 0);
        }
        assert!(rest.len() <= self.left, "Invariant: a piece does not go beyond its frame");
        self.left -= rest.len();
    }
}

/// What is no frame (the answer to a four-letter word) has a length that never ends.
fn length(head: [u8; HEAD_BYTES]) -> usize {
    usize::try_from(u32::from_be_bytes(head)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(length: usize) -> Vec<u8> {
        let mut frame = u32::try_from(length).expect("is short").to_be_bytes().to_vec();
        frame.extend(std::iter::repeat_n(7, length));
        frame
    }

    /// The pieces of `bytes`, when at most `room` bytes are taken at a time.
    fn pieces(bytes: &[u8], room: usize) -> Vec<usize> {
        let (mut frames, mut rest, mut found) = (Frames::default(), bytes, Vec::new());
        while !rest.is_empty() {
            let offered = &rest[..rest.len().min(room)];
            let piece = frames.piece(offered);
            assert!(piece > 0);
            frames.advance(&offered[..piece]);
            rest = &rest[piece..];
            found.push(piece);
        }
        found
    }

    #[test]
    fn each_frame_is_a_piece_and_one_that_comes_in_parts_ends_where_it_should() {
        let bytes = [frame(3), frame(0), frame(10), frame(1)].concat();
        assert_eq!(pieces(&bytes, 1_000), [7, 4, 14, 5]);
        for room in 1..30 {
            let mut ends: Vec<usize> = Vec::new();
            let mut at = 0;
            for piece in pieces(&bytes, room) {
                at += piece;
                ends.push(at);
            }
            for end in [7, 11, 25, 30] {
                assert!(ends.contains(&end), "no piece of at most {room} ends at {end}: {ends:?}");
            }
        }
        assert_eq!(pieces(b"Zookeeper version: 3.8", 1_000), [22]);
    }
}
