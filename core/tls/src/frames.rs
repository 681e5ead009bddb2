//! Boundaries of ZooKeeper's frames in a server's output.
//!
//! Each frame for a client becomes a separate TLS record, as in ZooKeeper's server. A client such as kazoo
//! 2.11 polls only the socket and ignores the bytes decrypted earlier by its TLS library: the client would
//! notice the second frame of a record only after the next socket event.

const HEAD_BYTES: usize = 4;

/// Parser state for the bytes in a single direction.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// Received bytes of the next frame's length.
    head: [u8; HEAD_BYTES],
    head_bytes: usize,
    /// Missing bytes of the current frame.
    left: usize,
}

impl Frames {
    /// Returns the number of leading bytes in the current frame: all bytes, or the bytes up to the frame's
    /// end.
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

    /// Advances over sent bytes, at most a piece.
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

/// Decodes a frame's length. The reply to a four-letter word has no length: its letters decode to a huge
/// number.
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

    /// Returns the pieces of `bytes` if each write accepts at most `room` bytes.
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
    fn each_frame_is_a_piece_even_if_its_bytes_arrive_in_parts() {
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
