//! Frames whose body does not match the opcode in their header.

use bytes::{Bytes, BytesMut};
use rowlock_proto::frame::LENGTH_BYTES;
use rowlock_proto::{OpCode, Request};

use crate::script::{Action, body};
use rowlock_world::rng::Rng;

/// Opcodes unknown to every server. Excludes opcodes used between servers, and Rowlock's own opcodes (1000
/// and above).
const UNKNOWN_OPCODES: &[i32] = &[10, 23, 99, 108, 200, 999, i32::MAX];

/// Returns true for requests that begin with a required path.
fn begins_with_path(opcode: OpCode) -> bool {
    use OpCode::{Delete, Exists, GetAcl, GetAllChildrenNumber, GetChildren, GetChildren2, GetData, SetData};
    matches!(
        opcode,
        Delete | Exists | GetAcl | GetAllChildrenNumber | GetChildren | GetChildren2 | GetData | SetData
    )
}

/// Returns a body of a wrong length, or whose path has an invalid length. Never changes other values: the
/// result could break the reference.
pub(super) fn malformed(rng: &mut Rng, request: &Request) -> Action {
    let whole = body(request);
    let opcode = request.opcode().as_i32();
    if begins_with_path(request.opcode()) && rng.chance(25) {
        let length = rng.pick(&[-1, -2, i32::MIN, i32::MAX]);
        let mut forged = BytesMut::from(&length.to_be_bytes()[..]);
        forged.extend_from_slice(&whole[LENGTH_BYTES..]);
        return Action::raw(opcode, forged.freeze(), format!("with a path of length {length}: {request:?}"));
    }
    if rng.chance(30) || whole.is_empty() {
        let mut longer = BytesMut::from(&whole[..]);
        longer.extend_from_slice(&[0; 9][..1 + rng.below(9)]);
        return Action::raw(opcode, longer.freeze(), format!("with bytes behind: {request:?}"));
    }
    let length = if rng.chance(25) { 0 } else { rng.below(whole.len()) };
    let cut = Bytes::copy_from_slice(&whole[..length]);
    Action::raw(opcode, cut, format!("cut to {length} of {} bytes: {request:?}", whole.len()))
}

/// Returns a frame with an unknown opcode.
pub(super) fn unknown_opcode(rng: &mut Rng) -> Action {
    let opcode = rng.pick(UNKNOWN_OPCODES);
    Action::raw(opcode, Bytes::from_static(&[0; 8]), format!("opcode {opcode}"))
}
