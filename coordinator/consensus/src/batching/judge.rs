//! The leader's judgement: which of the commands that wait may enter the log, and how many of them one entry
//! takes. Pure.
//!
//! A command that is too dear stands in the entry as a refusal, a few bytes, in its place. So its client is
//! answered in its turn by the node that it is connected to, as with any other command, and every node
//! applies the same.
//!
//! Invariant: the first command always goes with the entry, so nothing waits for ever.

use rowlock_proto::SessionId;
use rowlock_state::command::{Command, Proposal};
use rowlock_state::{ENTRY_STEPS_MAX, Machine};

/// What becomes of the commands.
#[derive(Debug, Default)]
pub struct Judged {
    pub entry: Vec<Proposal>,
    /// Of those behind it, in their order.
    pub rest: Vec<Proposal>,
    /// How many of the entry stand there as refusals.
    pub refused: u64,
}

pub fn judged(mut proposals: Vec<Proposal>, state: &Machine) -> Judged {
    let (mut steps, mut refused) = (0, 0);
    for at in 0..proposals.len() {
        let proposal = &mut proposals[at];
        // What nodes ask for themselves, the log needs.
        let is_clients = proposal.session != SessionId::NONE;
        match state.price(proposal) {
            Ok(cost) if at > 0 && steps + cost.steps > ENTRY_STEPS_MAX => {
                let rest = proposals.split_off(at);
                assert!(!proposals.is_empty(), "the first command always goes with the entry");
                assert!(!rest.is_empty(), "an entry is cut where a command is too much");
                return Judged { entry: proposals, rest, refused };
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
    Judged { entry: proposals, rest: Vec::new(), refused }
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
    fn a_command_that_is_too_dear_is_refused_in_its_place_and_keeps_its_number() {
        let long = format!("/{}", "n".repeat(5_000));
        let Proposal { command, .. } = create(&long);
        let tagged = Command::Tagged { id: 7, acked: 3, command: Box::new(command) };
        let all = vec![create("/a"), create(&long), proposal(tagged), create("/b")];
        let Judged { entry, rest, refused } = judged(all, &Machine::new());
        assert_eq!((entry.len(), rest.len(), refused), (4, 0, 2));
        let refusal = Command::Refused(ErrorCode::BadArguments);
        assert_eq!((&entry[0], &entry[3]), (&create("/a"), &create("/b")));
        assert_eq!(entry[1].command, refusal);
        assert_eq!(entry[2].command, Command::Tagged { id: 7, acked: 3, command: Box::new(refusal) });
    }

    #[test]
    fn what_is_too_much_for_one_entry_goes_with_the_next_and_nothing_waits_for_ever() {
        let mut waiting: Vec<Proposal> = (0..100).map(|_| checks(5_000)).collect();
        waiting.push(create("/last"));
        let state = Machine::new();
        let (mut entries, mut last) = (0, None);
        while !waiting.is_empty() {
            let Judged { entry, rest, refused } = judged(waiting, &state);
            let steps: u64 = entry.iter().map(|it| state.price(it).unwrap().steps).sum();
            assert!(!entry.is_empty() && steps <= ENTRY_STEPS_MAX && refused == 0);
            (entries, last, waiting) = (entries + 1, entry.last().cloned(), rest);
        }
        assert!((2..100).contains(&entries), "{entries}");
        assert_eq!(last, Some(create("/last")));
    }

    #[test]
    fn what_the_cluster_asks_for_itself_is_never_refused() {
        let path = format!("/{}", "/".repeat(500_000));
        let reap = Proposal { session: SessionId::NONE, ..proposal(Command::Reap { path }) };
        let Judged { entry, refused, .. } = judged(vec![reap.clone()], &Machine::new());
        assert_eq!((entry, refused), (vec![reap], 0));
        let set = rowlock_proto::request::SetData {
            path: "/a".to_owned(),
            data: Some(Bytes::from(vec![0; 1 << 20])),
            version: Version::ANY,
        };
        assert_eq!(
            judged(vec![proposal(Command::Client(Request::SetData(set)))], &Machine::new()).refused,
            0
        );
    }
}
