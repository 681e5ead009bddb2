//! Bytes that do not match the request that their header announces.

use bytes::{Bytes, BytesMut};
use rowlock_proto::frame::LENGTH_BYTES;
use rowlock_proto::{OpCode, Request};

use crate::script::{Action, body};
use rowlock_world::rng::Rng;

/// Types that no server knows. Not those that servers use among themselves, nor those of Rowlock (from 1000
/// on).
const UNKNOWN_OPCODES: &[i32] = &[10, 23, 99, 108, 200, 999, i32::MAX];

/// Requests whose first field is a path that must be there.
fn begins_with_path(opcode: OpCode) -> bool {
    use OpCode::{Delete, Exists, GetAcl, GetAllChildrenNumber, GetChildren, GetChildren2, GetData, SetData};
    matches!(
        opcode,
        Delete | Exists | GetAcl | GetAllChildrenNumber | GetChildren | GetChildren2 | GetData | SetData
    )
}

/// A body that ends early or late, or whose path has no length that a path can have. Never one with other
/// values: it could be a request that the reference does not survive.
pub(super) fn malformed(rng: &mut Rng, request: &Request) -> Action {
    let whole = body(request);
    let opcode = request.opcode().as_i32();
    if begins_with_path(request.opcode()) && rng.chance(25) {
        let length = rng.pick(&[-1, -2, i32::MIN, i32::MAX]);
        let mut lying = BytesMut::from(&length.to_be_bytes()[..]);
        lying.extend_from_slice(&whole[LENGTH_BYTES..]);
        return Action::raw(opcode, lying.freeze(), format!("with a path of length {length}: {request:?}"));
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

/// A frame with a type that there is not.
pub(super) fn unknown_opcode(rng: &mut Rng) -> Action {
    let opcode = rng.pick(UNKNOWN_OPCODES);
    Action::raw(opcode, Bytes::from_static(&[0; 8]), format!("opcode {opcode}"))
}
