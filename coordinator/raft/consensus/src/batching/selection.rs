//! Selection of the queued commands that enter the log, and of their number in one entry. Pure.
//!
//! A command that costs too much stays in the entry at its position, as a refusal of a few bytes. So the
//! client's own node answers the client in order, as after any other command, and every node applies the same
//! result.
//!
//! Invariant: the first command always enters the entry, so no command waits for ever.

use rowlock_env::decides;
use rowlock_proto::SessionId;
use rowlock_state::command::{Command, Proposal};
use rowlock_state::{ENTRY_STEPS_MAX, Machine};

/// Commands of one entry, and the remaining ones.
#[derive(Debug, Default)]
pub struct Selection {
    pub entry: Vec<Proposal>,
    /// Commands behind the entry, in order.
    pub rest: Vec<Proposal>,
    /// Number of refusals in the entry.
    pub refused: u64,
}

pub fn select(mut proposals: Vec<Proposal>, state: &Machine) -> Selection {
    let (mut steps, mut refused) = (0, 0);
    for at in 0..proposals.len() {
        let proposal = &mut proposals[at];
        // The log needs the nodes' own commands.
        let is_clients = proposal.session != SessionId::NONE;
        match state.price(proposal) {
            Ok(cost) if decides!("entry-exceeds-steps", at > 0 && steps + cost.steps > ENTRY_STEPS_MAX) => {
                let rest = proposals.split_off(at);
                assert!(!proposals.is_empty(), "the first command always goes with the entry");
                assert!(!rest.is_empty(), "an entry is cut where a command is too much");
                return Selection { entry: proposals, rest, refused };
            }
            Ok(cost) => steps += cost.steps,
            Err(code) if is_clients => {
                refused += 1;
                let command = std::mem::replace(&mut proposal.command, Command::Noop);
                proposal.command = command.refused(code);
            }
            Err(_) => {}
        }
    }
    Selection { entry: proposals, rest: Vec::new(), refused }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use rowlock_proto::acl::Acl;
    use rowlock_proto::request::{Create, Op, Request};
    use rowlock_proto::{CreateMode, ErrorCode, Version};
    use rowlock_state::command::{Attachment, Origin};

    use super::*;

    fn proposal(command: Command) -> Proposal {
        let (origin, attachment) = (Origin::default(), Attachment(1));
        Proposal { origin, session: SessionId(1), attachment, identities: Default::default(), command }
    }

    fn create(path: &str) -> Proposal {
        let flags = CreateMode::Persistent.flags();
        let create = Create { path: path.to_owned(), data: None, acl: Some(Acl::shared_open()), flags };
        proposal(Command::Client(Request::Create2(create)))
    }

    fn checks(count: usize) -> Proposal {
        let check = Op::Check { path: "/".to_owned(), version: Version::ANY };
        proposal(Command::Client(Request::Multi(vec![check; count])))
    }

    #[test]
    fn an_expensive_command_is_refused_in_place_with_its_number() {
        let long = format!("/{}", "n".repeat(5_000));
        let Proposal { command, .. } = create(&long);
        let tagged = Command::Tagged { id: 7, acked: 3, command: Box::new(command) };
        let all = vec![create("/a"), create(&long), proposal(tagged), create("/b")];
        let Selection { entry, rest, refused } = select(all, &Machine::new());
        assert_eq!((entry.len(), rest.len(), refused), (4, 0, 2));
        let refusal = Command::Refused(ErrorCode::BadArguments);
        assert_eq!((&entry[0], &entry[3]), (&create("/a"), &create("/b")));
        assert_eq!(entry[1].command, refusal);
        assert_eq!(entry[2].command, Command::Tagged { id: 7, acked: 3, command: Box::new(refusal) });
    }

    #[test]
    fn commands_beyond_one_entry_enter_the_next_ones() {
        let mut waiting: Vec<Proposal> = (0..100).map(|_| checks(5_000)).collect();
        waiting.push(create("/last"));
        let state = Machine::new();
        let (mut entries, mut last) = (0, None);
        while !waiting.is_empty() {
            let Selection { entry, rest, refused } = select(waiting, &state);
            let steps: u64 = entry.iter().map(|it| state.price(it).unwrap().steps).sum();
            assert!(!entry.is_empty() && steps <= ENTRY_STEPS_MAX && refused == 0);
            (entries, last, waiting) = (entries + 1, entry.last().cloned(), rest);
        }
        assert!((2..100).contains(&entries), "{entries}");
        assert_eq!(last, Some(create("/last")));
    }

    #[test]
    fn commands_of_the_cluster_itself_are_never_refused() {
        let path = format!("/{}", "/".repeat(500_000));
        let reap = Proposal { session: SessionId::NONE, ..proposal(Command::Reap { path }) };
        let Selection { entry, refused, .. } = select(vec![reap.clone()], &Machine::new());
        assert_eq!((entry, refused), (vec![reap], 0));
        let set = rowlock_proto::request::SetData {
            path: "/a".to_owned(),
            data: Some(Bytes::from(vec![0; 1 << 20])),
            version: Version::ANY,
        };
        assert_eq!(
            select(vec![proposal(Command::Client(Request::SetData(set)))], &Machine::new()).refused,
            0
        );
    }
}
