//! Encodes proposals. A proposal omits fields that equal the previous proposal's fields, in most batches
//! nearly all fields.
//!
//! Requests that clients of locks and of the usual recipes send frequently have an encoding by hand; bincode
//! encodes the other commands. Numbers, texts and lists have bincode's form. The parent module defines the
//! first bytes of a proposal, an acquire and a create.

use rowlock_proto::acl::{Acl, Id};
use rowlock_proto::lock::{Acquire, Claim, Mode, Owner};
use rowlock_proto::request::{Create, Request};

use super::value::encode_into;
use super::{bits, head, mode, owner, tag};
use crate::command::{Attachment, Batch, Command, Origin, Proposal};

/// Expected bytes of a proposal, to encode most batches without a reallocation.
pub(super) const PROPOSAL_BYTES: usize = 160;

/// Appends the batch to `out`.
pub(super) fn batch(batch: &Batch, out: &mut Vec<u8>) {
    u64(batch.ordinal.term, out);
    u64(batch.ordinal.number, out);
    i64(batch.time_ms, out);
    proposals(&batch.proposals, out);
}

/// Appends the proposals to `out`.
pub(super) fn proposals(proposals: &[Proposal], out: &mut Vec<u8>) {
    out.reserve(proposals.len() * PROPOSAL_BYTES);
    u64(proposals.len() as u64, out);
    let mut before = PreviousProposal::default();
    for proposal in proposals {
        before.next(proposal, out);
    }
}

/// Fields of the previous proposal, for comparison.
#[derive(Default)]
struct PreviousProposal<'a> {
    origin: Origin,
    session: i64,
    attachment: Attachment,
    identities: &'a [Id],
}

impl<'a> PreviousProposal<'a> {
    fn next(&mut self, next: &'a Proposal, out: &mut Vec<u8>) {
        let at = out.len();
        out.push(0);
        let (mut is_new, origin) = (0, next.origin);
        if (origin.node, origin.incarnation) != (self.origin.node, self.origin.incarnation) {
            is_new |= head::SENDER;
            u64(origin.node.0, out);
            u64(origin.incarnation, out);
        }
        if origin.request != self.origin.request.wrapping_add(1) {
            is_new |= head::REQUEST;
            u64(origin.request, out);
        }
        i64(next.session.0.wrapping_sub(self.session), out);
        if next.attachment != self.attachment {
            is_new |= head::ATTACHMENT;
            u64(next.attachment.0, out);
        }
        // The proposals of a connection usually share one list.
        if !std::ptr::eq(self.identities, &*next.identities) && *self.identities != *next.identities {
            is_new |= head::IDENTITIES;
            list(&next.identities, out, id);
        }
        let mut done = &next.command;
        if let Command::Tagged { id, acked, command } = done {
            is_new |= head::TAG;
            u64(*id, out);
            if *acked != id.wrapping_sub(1) {
                is_new |= head::ACKED;
                u64(*acked, out);
            }
            done = command;
        }
        out[at] = is_new;
        command(done, out);
        *self = PreviousProposal {
            origin,
            session: next.session.0,
            attachment: next.attachment,
            identities: &next.identities,
        };
    }
}

fn command(command: &Command, out: &mut Vec<u8>) {
    match command {
        Command::Client(request) => self::request(request, out),
        other => encode_into(other, out),
    }
}

/// Appends a client's request: the byte of its kind, then the fields.
fn request(request: &Request, out: &mut Vec<u8>) {
    match request {
        Request::Acquire(all) => {
            out.push(tag::ACQUIRE);
            list(all, out, acquire);
        }
        Request::Release(claims) => {
            out.push(tag::RELEASE);
            list(claims, out, claim);
        }
        Request::Verify(claims) => {
            out.push(tag::VERIFY);
            list(claims, out, claim);
        }
        Request::Create(create) => self::create(tag::CREATE, create, out),
        Request::Create2(create) => self::create(tag::CREATE2, create, out),
        Request::CreateContainer(create) => self::create(tag::CREATE_CONTAINER, create, out),
        Request::CreateTtl(create, ttl_ms) => {
            self::create(tag::CREATE_TTL, create, out);
            i64(*ttl_ms, out);
        }
        Request::Delete { path, version } => {
            out.push(tag::DELETE);
            bytes(path.as_bytes(), out);
            i64(version.0.into(), out);
        }
        Request::SetData(set) => kind_and(tag::SET_DATA, set, out),
        Request::SetAcl(set) => kind_and(tag::SET_ACL, set, out),
        Request::Multi(ops) => kind_and(tag::MULTI, ops, out),
        Request::Abandon(attempts) => kind_and(tag::ABANDON, attempts, out),
        Request::Convert { claim, mode, prefix } => kind_and(tag::CONVERT, &(claim, mode, prefix), out),
        Request::ForceRelease(claim) => kind_and(tag::FORCE_RELEASE, claim, out),
        Request::Ask(ask) => kind_and(tag::ASK, ask, out),
        Request::Sync(path) => kind_and(tag::SYNC, path, out),
        Request::CloseSession => out.push(tag::CLOSE_SESSION),
        other => unreachable!("Invariant: {} is never logged", other.opcode()),
    }
}

fn kind_and(kind: u8, fields: &impl serde::Serialize, out: &mut Vec<u8>) {
    out.push(kind);
    encode_into(fields, out);
}

fn acquire(acquire: &Acquire, out: &mut Vec<u8>) {
    let at = out.len();
    out.push(0);
    bytes(acquire.lock.as_bytes(), out);
    bytes(acquire.prefix.as_bytes(), out);
    let mut there = if acquire.wait { bits::WAIT } else { 0 };
    if let Some(data) = &acquire.data {
        there |= bits::DATA;
        bytes(data, out);
    }
    there |= permissions(acquire.acl.as_deref(), out);
    match acquire.mode {
        Mode::Exclusive => {}
        Mode::Shared => {
            there |= bits::MODE;
            out.push(mode::SHARED);
        }
        Mode::Permits(permits) => {
            there |= bits::MODE;
            out.push(mode::PERMITS);
            u64(permits.into(), out);
        }
    }
    if acquire.limit != 0 {
        there |= bits::LIMIT;
        u64(acquire.limit.into(), out);
    }
    match acquire.owner {
        Owner::Unnamed => {}
        Owner::Session => {
            there |= bits::OWNER;
            out.push(owner::SESSION);
        }
        Owner::Named(number) => {
            there |= bits::OWNER;
            out.push(owner::NAMED);
            u64(number, out);
        }
        Owner::Under(number) => {
            there |= bits::OWNER;
            out.push(owner::UNDER);
            u64(number, out);
        }
    }
    if (acquire.max_hold_ms, acquire.lock_delay_ms, acquire.min_hold_ms, acquire.min_hold_lapses)
        != (0, 0, 0, false)
    {
        there |= bits::TIMES;
        u64(acquire.max_hold_ms.into(), out);
        u64(acquire.lock_delay_ms.into(), out);
        u64(acquire.min_hold_ms.into(), out);
        out.push(acquire.min_hold_lapses.into());
    }
    out[at] = there;
}

fn create(kind: u8, create: &Create, out: &mut Vec<u8>) {
    out.push(kind);
    let at = out.len();
    out.push(0);
    let mut there = 0;
    bytes(create.path.as_bytes(), out);
    if let Some(data) = &create.data {
        there |= bits::DATA;
        bytes(data, out);
    }
    there |= permissions(create.acl.as_deref(), out);
    i64(create.flags.into(), out);
    out[at] = there;
}

/// Appends an ACL other than `Acl::open`. Returns the bits of the ACL.
fn permissions(entries: Option<&[Acl]>, out: &mut Vec<u8>) -> u8 {
    match entries {
        None => 0,
        Some(open) if Acl::is_open(open) => bits::OPEN,
        Some(entries) => {
            list(entries, out, acl);
            bits::ACL
        }
    }
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

fn bytes(bytes: &[u8], out: &mut Vec<u8>) {
    u64(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// Encodes 32-bit numbers too: the zigzag form of a number is the same in 64 bits.
fn i64(number: i64, out: &mut Vec<u8>) {
    u64((number << 1 ^ number >> 63) as u64, out);
}

/// Encodes 32-bit numbers too: the form of a number does not depend on its type.
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
