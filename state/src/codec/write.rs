//! Writes a batch as bincode does, for the price of the bytes alone.
//!
//! Written out for what clients of locks send all the time; any other command is written by bincode.
//! Invariant: what is written is what bincode writes.

use rowlock_proto::acl::{Acl, Id};
use rowlock_proto::lock::{Acquire, Claim, Mode, Owner};

use super::{BINCODE, tag};
use crate::command::{Batch, Command, Proposal};

/// About what a proposal takes: most batches are then written without moving.
const PROPOSAL_BYTES: usize = 256;

/// Appends the batch to `out`.
pub(super) fn batch(batch: &Batch, out: &mut Vec<u8>) {
    i64(batch.time_ms, out);
    proposals(&batch.proposals, out);
}

/// Appends the proposals to `out`.
pub(super) fn proposals(proposals: &[Proposal], out: &mut Vec<u8>) {
    out.reserve(proposals.len() * PROPOSAL_BYTES);
    list(proposals, out, proposal);
}

fn proposal(proposal: &Proposal, out: &mut Vec<u8>) {
    u64(proposal.origin.node.0, out);
    u64(proposal.origin.incarnation, out);
    u64(proposal.origin.request, out);
    i64(proposal.session.0, out);
    u64(proposal.attachment.0, out);
    list(&proposal.identities, out, id);
    command(&proposal.command, out);
}

/// Takes the command out of as many tags as there are, without recursion.
fn command(mut command: &Command, out: &mut Vec<u8>) {
    while let Command::Tagged { id, acked, command: tagged } = command {
        u64(tag::TAGGED.into(), out);
        u64(*id, out);
        u64(*acked, out);
        command = tagged;
    }
    match command {
        Command::Acquire(all) => {
            u64(tag::ACQUIRE.into(), out);
            list(all, out, acquire);
        }
        Command::Release(claims) => {
            u64(tag::RELEASE.into(), out);
            list(claims, out, claim);
        }
        Command::Verify(claims) => {
            u64(tag::VERIFY.into(), out);
            list(claims, out, claim);
        }
        other => {
            bincode::serde::encode_into_std_write(other, out, BINCODE)
                .expect("a command encodes into memory");
        }
    }
}

fn acquire(acquire: &Acquire, out: &mut Vec<u8>) {
    bytes(acquire.lock.as_bytes(), out);
    bytes(acquire.prefix.as_bytes(), out);
    option(acquire.data.as_deref(), out, bytes);
    option(acquire.acl.as_deref(), out, |entries, out| list(entries, out, acl));
    match acquire.mode {
        Mode::Exclusive => out.push(0),
        Mode::Shared => out.push(1),
        Mode::Permits(permits) => {
            out.push(2);
            u64(permits.into(), out);
        }
    }
    u64(acquire.limit.into(), out);
    out.push(u8::from(acquire.wait));
    match acquire.owner {
        Owner::Unnamed => out.push(0),
        Owner::Session => out.push(1),
        Owner::Named(number) => {
            out.push(2);
            u64(number, out);
        }
    }
    u64(acquire.max_hold_ms.into(), out);
    u64(acquire.lock_delay_ms.into(), out);
}

fn claim(claim: &Claim, out: &mut Vec<u8>) {
    bytes(claim.path.as_bytes(), out);
    i64(claim.token.0, out);
}

fn acl(entry: &Acl, out: &mut Vec<u8>) {
    i64(entry.perms.into(), out);
    id(&entry.id, out);
}

fn id(who: &Id, out: &mut Vec<u8>) {
    bytes(who.scheme.as_bytes(), out);
    bytes(who.id.as_bytes(), out);
}

fn list<T>(items: &[T], out: &mut Vec<u8>, item: impl Fn(&T, &mut Vec<u8>)) {
    u64(items.len() as u64, out);
    items.iter().for_each(|one| item(one, out));
}

fn option<T>(value: Option<T>, out: &mut Vec<u8>, put: impl Fn(T, &mut Vec<u8>)) {
    out.push(u8::from(value.is_some()));
    if let Some(value) = value {
        put(value, out);
    }
}

fn bytes(bytes: &[u8], out: &mut Vec<u8>) {
    u64(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// Of 32 bits too: the zigzag form of a number is the same in 64.
fn i64(number: i64, out: &mut Vec<u8>) {
    u64((number << 1 ^ number >> 63) as u64, out);
}

/// Of 32 bits too: a number has one form, whatever its type.
fn u64(number: u64, out: &mut Vec<u8>) {
    match number {
        0..=250 => out.push(number as u8),
        251..=0xffff => {
            out.push(251);
            out.extend_from_slice(&(number as u16).to_le_bytes());
        }
        0x1_0000..=0xffff_ffff => {
            out.push(252);
            out.extend_from_slice(&(number as u32).to_le_bytes());
        }
        _ => {
            out.push(253);
            out.extend_from_slice(&number.to_le_bytes());
        }
    }
}
