//! Refusal of growing commands while the leader is above its memory limit, or too few voters have room on
//! their disks. Pure.
//!
//! A refused command stays in the entry at its position, as a refusal of a few bytes. So the client's own
//! node answers the client in order, and every node applies the same result, independent of the node's own
//! memory.

use bytes::Bytes;
use rowlock_env::decides;
use rowlock_proto::Request;
use rowlock_proto::request::{Op, SetData};
use rowlock_proto::{ErrorCode, SessionId};
use rowlock_state::Machine;
use rowlock_state::command::{Command, Proposal};

/// Replaces each growing command of a client with its refusal. Returns the number of refusals.
pub fn refuse(proposals: &mut [Proposal], state: &Machine) -> u64 {
    let mut refused = 0;
    // Commands of the cluster itself have no session.
    for proposal in proposals.iter_mut().filter(|it| it.session != SessionId::NONE) {
        if decides!("write-grows-state", grows(proposal, state)) {
            let command = std::mem::replace(&mut proposal.command, Command::Noop);
            proposal.command = command.refused(ErrorCode::QuotaExceeded);
            refused += 1;
        }
    }
    refused
}

fn grows(proposal: &Proposal, state: &Machine) -> bool {
    // A repeated write only returns its first outcome again.
    if let Command::Tagged { id, .. } = proposal.command
        && state.knows_write(proposal.session, id)
    {
        return false;
    }
    let request = match proposal.command.untagged() {
        Command::Client(request) => request,
        Command::Fenced { change, .. } => return op_grows(change, state),
        _ => return false,
    };
    match request {
        Request::Create(_)
        | Request::Create2(_)
        | Request::CreateContainer(_)
        | Request::CreateTtl(..)
        | Request::SetAcl(_)
        | Request::Acquire(_) => true,
        Request::SetData(set) => is_longer(set, state),
        Request::Multi(ops) => ops.iter().any(|op| op_grows(op, state)),
        // A convert's new position takes the room of the old one; a queue position has at most one question.
        _ => false,
    }
}

fn op_grows(op: &Op, state: &Machine) -> bool {
    match op {
        Op::Create(_) | Op::Create2(_) | Op::CreateContainer(_) | Op::CreateTtl(..) => true,
        Op::SetData(set) => is_longer(set, state),
        Op::Delete { .. } | Op::Check { .. } => false,
    }
}

fn is_longer(set: &SetData, state: &Machine) -> bool {
    let there = state.stat(&set.path).map_or(0, |stat| usize::try_from(stat.data_length).unwrap_or(0));
    set.data.as_ref().map_or(0, Bytes::len) > there
}

#[cfg(test)]
mod tests {
    use rowlock_proto::acl::Acl;
    use rowlock_proto::request::Create;
    use rowlock_proto::{CreateMode, Version};
    use rowlock_state::Proof;
    use rowlock_state::command::{Attachment, Origin};

    use super::*;

    fn proposal(session: SessionId, command: Command) -> Proposal {
        let (origin, attachment) = (Origin::default(), Attachment(1));
        Proposal { origin, session, attachment, identities: Default::default(), command }
    }

    fn create(path: &str) -> Create {
        let (data, flags) = (Some(Bytes::from_static(b"four")), CreateMode::Persistent.flags());
        Create { path: path.to_owned(), data, acl: Some(Acl::shared_open()), flags }
    }

    fn set(path: &str, data: &'static [u8]) -> SetData {
        SetData { path: path.to_owned(), data: Some(Bytes::from_static(data)), version: Version::ANY }
    }

    fn tagged(id: u64, command: Command) -> Command {
        Command::Tagged { id, acked: 0, command: Box::new(command) }
    }

    /// Creates a session, and a znode by the session's write number 1.
    fn begun() -> (Machine, SessionId) {
        let mut machine = Machine::new();
        let open = Command::OpenSession { proof: Proof::of(&[7; 16]), timeout_ms: 4_000 };
        let opened = machine.apply(1, &proposal(SessionId::NONE, open), &mut ());
        let session = opened.attached.expect("a session opens").session;
        let first = tagged(1, Command::Client(Request::Create2(create("/a"))));
        machine.apply(1, &proposal(session, first), &mut ()).result.unwrap();
        (machine, session)
    }

    #[test]
    fn growing_commands_are_refused_and_shrinking_ones_pass() {
        let (machine, session) = begun();
        let made = || Command::Client(Request::Create2(create("/b")));
        let delete = || Op::Delete { path: "/a".to_owned(), version: Version::ANY };
        for (command, is_refused) in [
            (made(), true),
            (tagged(2, made()), true),
            (tagged(1, made()), false),
            (Command::Client(Request::SetData(set("/a", b"longer"))), true),
            (Command::Client(Request::SetData(set("/a", b"same"))), false),
            (Command::Client(Request::SetData(set("/none", b"some"))), true),
            (Command::Client(Request::Multi(vec![delete(), Op::Create(create("/b"))])), true),
            (Command::Client(Request::Multi(vec![delete(), Op::SetData(set("/a", b""))])), false),
            (Command::Client(Request::Acquire(Default::default())), true),
            (Command::Client(Request::Release(Default::default())), false),
            (Command::Client(Request::Abandon(Vec::new())), false),
            (Command::Client(Request::CloseSession), false),
        ] {
            let mut one = [proposal(session, command.clone())];
            assert_eq!(refuse(&mut one, &machine), u64::from(is_refused), "{command:?}");
            let expected = if is_refused { command.refused(ErrorCode::QuotaExceeded) } else { command };
            assert_eq!(one[0].command, expected);
        }
        let mut own = [proposal(SessionId::NONE, made())];
        assert_eq!(refuse(&mut own, &machine), 0, "the cluster's own");
    }

    #[test]
    fn a_refused_write_has_one_outcome() {
        let (mut machine, session) = begun();
        let made = || Command::Client(Request::Create2(create("/b")));
        let mut plain = [proposal(session, made())];
        refuse(&mut plain, &machine);
        assert_eq!(machine.apply(1, &plain[0], &mut ()).result, Err(ErrorCode::QuotaExceeded));
        let mut numbered = [proposal(session, tagged(2, made()))];
        refuse(&mut numbered, &machine);
        for again in [numbered[0].clone(), proposal(session, tagged(2, made()))] {
            assert_eq!(machine.apply(1, &again, &mut ()).result, Err(ErrorCode::QuotaExceeded));
        }
        assert_eq!(machine.stat("/b"), None);
        machine.check().unwrap();
    }
}
