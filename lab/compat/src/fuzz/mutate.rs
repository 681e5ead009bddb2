//! Corrupts conversations: bits, lengths, numbers, order, and segment boundaries.

use bytes::{Bytes, BytesMut};

use rowlock_world::rng::Rng;

/// Edge values of lengths and counts.
const EDGES: &[i32] =
    &[0, 1, -1, -2, 4, 16, 127, 0xffff, 0xf_ffff, 0xf_fff0, 0x10_0000, i32::MAX, i32::MIN, 0x7f7f_7f7f];
/// Maximum number of mutations in a conversation.
const MUTATIONS_MAX: usize = 4;

/// The bytes to send, and the end of the connection.
#[derive(Clone, Debug)]
pub struct Corrupted {
    /// Pieces of the stream, sent one after another.
    pub segments: Vec<Bytes>,
    /// End of the connection after the last segment.
    pub ending: Ending,
    pub mutations: u64,
}

/// End of a connection by the attacker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Closes at once, with unread bytes.
    Abrupt,
    /// Reads until the server closes, or for a while.
    Reading,
    /// Closes after a while without reading anything.
    Deaf,
    /// Closes the sending direction first, then as `Reading`.
    HalfClose,
}

/// Mutates a conversation and cuts the stream into segments.
pub fn corrupt(rng: &mut Rng, mut frames: Vec<Bytes>) -> Corrupted {
    let mutations = rng.below(MUTATIONS_MAX + 1);
    for _ in 0..mutations {
        mutate(rng, &mut frames);
    }
    let mut stream = frames.concat();
    if rng.chance(10) {
        // Half a handshake, or slightly more.
        stream.truncate(rng.below(60));
    } else if rng.chance(15) {
        stream.truncate(rng.below(stream.len() + 1));
    }
    let ending = rng.pick_weighted(&[
        (3, Ending::Abrupt),
        (4, Ending::Reading),
        (1, Ending::Deaf),
        (2, Ending::HalfClose),
    ]);
    Corrupted { segments: cut(rng, Bytes::from(stream)), ending, mutations: mutations as u64 }
}

fn mutate(rng: &mut Rng, frames: &mut Vec<Bytes>) {
    if frames.is_empty() {
        return;
    }
    // Mostly spares the handshake: after a broken one the server reads nothing else.
    let at = if frames.len() > 1 && rng.chance(85) { 1 + rng.below(frames.len() - 1) } else { 0 };
    let mut bytes = BytesMut::from(&frames[at][..]);
    match rng.below(10) {
        0..=1 => flip(rng, &mut bytes),
        2 => bytes.truncate(rng.below(bytes.len() + 1)),
        3 => write_edge(rng, &mut bytes, 0),
        4..=5 => {
            let offset = rng.below(bytes.len().max(1));
            write_edge(rng, &mut bytes, offset);
        }
        6 => shorten_whole(rng, &mut bytes),
        7 => {
            let copies = 1 + rng.below(3);
            for _ in 0..copies {
                frames.insert(at, frames[at].clone());
            }
            return;
        }
        8 => {
            let other = rng.below(frames.len());
            frames.swap(at, other);
            return;
        }
        _ => {
            let garbage: Vec<u8> = (0..1 + rng.below(64)).map(|_| rng.u64() as u8).collect();
            let offset = rng.below(bytes.len() + 1);
            let tail = bytes.split_off(offset);
            bytes.extend_from_slice(&garbage);
            bytes.extend_from_slice(&tail);
        }
    }
    frames[at] = bytes.freeze();
}

fn flip(rng: &mut Rng, bytes: &mut BytesMut) {
    for _ in 0..1 + rng.below(8) {
        if !bytes.is_empty() {
            let at = rng.below(bytes.len());
            bytes[at] ^= 1 << rng.below(8);
        }
    }
}

fn write_edge(rng: &mut Rng, bytes: &mut BytesMut, offset: usize) {
    let edge = rng.pick(EDGES).to_be_bytes();
    if let Some(field) = bytes.get_mut(offset..offset + edge.len()) {
        field.copy_from_slice(&edge);
    }
}

/// Shortens a frame and corrects its length: the record inside ends early.
fn shorten_whole(rng: &mut Rng, bytes: &mut BytesMut) {
    if bytes.len() > 4 {
        let length = rng.below(bytes.len() - 4);
        bytes.truncate(4 + length);
        bytes[..4].copy_from_slice(&(length as u32).to_be_bytes());
    }
}

fn cut(rng: &mut Rng, mut stream: Bytes) -> Vec<Bytes> {
    if rng.chance(60) {
        return vec![stream];
    }
    let mut segments = Vec::new();
    while !stream.is_empty() && segments.len() < 64 {
        let most = if rng.chance(50) { 8 } else { stream.len() };
        segments.push(stream.split_to((1 + rng.below(most)).min(stream.len())));
    }
    segments.push(stream);
    segments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corrupting_a_conversation_never_panics() {
        let mut rng = Rng::new(3);
        for _ in 0..2_000 {
            let frames = super::super::corpus::conversation(&mut rng);
            let corrupted = corrupt(&mut rng, frames);
            assert!(corrupted.mutations <= MUTATIONS_MAX as u64);
        }
    }

    #[test]
    fn segments_join_to_the_stream() {
        let mut rng = Rng::new(5);
        let stream = Bytes::from((0..=255).collect::<Vec<u8>>());
        for _ in 0..100 {
            assert_eq!(cut(&mut rng, stream.clone()).concat(), stream);
        }
    }
}
