//! Selection of the queued commands that enter the log, and of their number in one entry. Pure.
//!
//! Invariant: the first command always enters the entry, so no command waits for ever.
//!
//! Refusal of growing commands while the leader is above its memory limit, or too few voters have room on
//! their disks. Pure.
//!
//! A refused command stays in the entry at its position, as a refusal of a few bytes. So the client's own
//! node answers the client in order, and every node applies the same result, independent of the node's own
//! memory.
//!
//! Selection of commands that may wait briefly, to share a log entry with later commands. Pure.
//!
//! Invariant: by the applied state, none of these commands alone grants a lock. The applied state lags behind
//! the log by the entries in flight, so an acquire may wait for milliseconds although its lock was just
//! released. The acquire is never lost, and keeps its position in the queue.

use bytes::Bytes;
use rowlock_env::decides;
use rowlock_proto::request::{Op, SetData};
use rowlock_proto::{ErrorCode, Request, SessionId};
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

/// Returns whether all commands are acquires that will wait for the release of another session.
pub fn all_only_join_queues<'p>(mut commands: impl Iterator<Item = &'p Proposal>, state: &Machine) -> bool {
    commands.all(|proposal| joins_a_queue(proposal, state))
}

fn joins_a_queue(proposal: &Proposal, state: &Machine) -> bool {
    let Some(Request::Acquire(all)) = proposal.command.request() else { return false };
    all.iter().any(|acquire| {
        let lock = state.lock_queue(&acquire.lock);
        decides!(
            "acquire-may-coalesce",
            acquire.wait && lock.is_some_and(|lock| lock.makes_wait(proposal.session, acquire.mode))
        )
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use rowlock_proto::acl::Acl;
    use rowlock_proto::lock::{Acquire, Mode};
    use rowlock_proto::request::{Create, Op, Request};
    use rowlock_proto::{CreateMode, ErrorCode, SessionId, Version};
    use rowlock_state::Proof;
    use rowlock_state::command::{Attachment, Command, Origin};

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

    fn creation(path: &str) -> Create {
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
        let opened = machine.apply(1, &by(SessionId::NONE, open), &mut ());
        let session = opened.attached.expect("a session opens").session;
        let first = tagged(1, Command::Client(Request::Create2(creation("/a"))));
        machine.apply(1, &by(session, first), &mut ()).result.unwrap();
        (machine, session)
    }

    #[test]
    fn growing_commands_are_refused_and_shrinking_ones_pass() {
        let (machine, session) = begun();
        let made = || Command::Client(Request::Create2(creation("/b")));
        let delete = || Op::Delete { path: "/a".to_owned(), version: Version::ANY };
        for (command, is_refused) in [
            (made(), true),
            (tagged(2, made()), true),
            (tagged(1, made()), false),
            (Command::Client(Request::SetData(set("/a", b"longer"))), true),
            (Command::Client(Request::SetData(set("/a", b"same"))), false),
            (Command::Client(Request::SetData(set("/none", b"some"))), true),
            (Command::Client(Request::Multi(vec![delete(), Op::Create(creation("/b"))])), true),
            (Command::Client(Request::Multi(vec![delete(), Op::SetData(set("/a", b""))])), false),
            (Command::Client(Request::Acquire(Default::default())), true),
            (Command::Client(Request::Release(Default::default())), false),
            (Command::Client(Request::Abandon(Vec::new())), false),
            (Command::Client(Request::CloseSession), false),
        ] {
            let mut one = [by(session, command.clone())];
            assert_eq!(refuse(&mut one, &machine), u64::from(is_refused), "{command:?}");
            let expected = if is_refused { command.refused(ErrorCode::QuotaExceeded) } else { command };
            assert_eq!(one[0].command, expected);
        }
        let mut own = [by(SessionId::NONE, made())];
        assert_eq!(refuse(&mut own, &machine), 0, "the cluster's own");
    }

    #[test]
    fn a_refused_write_has_one_outcome() {
        let (mut machine, session) = begun();
        let made = || Command::Client(Request::Create2(creation("/b")));
        let mut plain = [by(session, made())];
        refuse(&mut plain, &machine);
        assert_eq!(machine.apply(1, &plain[0], &mut ()).result, Err(ErrorCode::QuotaExceeded));
        let mut numbered = [by(session, tagged(2, made()))];
        refuse(&mut numbered, &machine);
        for again in [numbered[0].clone(), by(session, tagged(2, made()))] {
            assert_eq!(machine.apply(1, &again, &mut ()).result, Err(ErrorCode::QuotaExceeded));
        }
        assert_eq!(machine.stat("/b"), None);
        machine.check().unwrap();
    }

    fn by(session: SessionId, command: Command) -> Proposal {
        let (origin, attachment) = (Origin::default(), Attachment(1));
        Proposal { origin, session, attachment, identities: Default::default(), command }
    }

    fn open(machine: &mut Machine) -> SessionId {
        let command = Command::OpenSession { proof: Proof::of(&[7; 16]), timeout_ms: 4_000 };
        machine.apply(0, &by(SessionId::NONE, command), &mut ()).attached.expect("a session opens").session
    }

    fn acquire(lock: &str, prefix: &str, mode: Mode) -> Acquire {
        Acquire { mode, ..Acquire::exclusive(lock, prefix) }
    }

    fn one(lock: &str, mode: Mode) -> Command {
        Command::Client(Request::Acquire([acquire(lock, "other-", mode)].into()))
    }

    #[test]
    fn only_acquires_that_wait_for_another_session_may_be_delayed() {
        let mut machine = Machine::default();
        let (holder, other) = (open(&mut machine), open(&mut machine));
        let held = Command::Client(Request::Acquire([acquire("/l", "a-", Mode::Shared)].into()));
        machine.apply(0, &by(holder, held), &mut ()).result.unwrap();
        let joins = |session, command| all_only_join_queues([by(session, command)].iter(), &machine);

        assert!(joins(other, one("/l", Mode::Exclusive)));
        assert!(!joins(other, one("/l", Mode::Shared)), "it is granted at once");
        assert!(!joins(other, one("/free", Mode::Exclusive)), "it is granted at once");
        assert!(!joins(holder, one("/l", Mode::Exclusive)), "its own release may be on its way");
        let tries = Acquire { wait: false, ..acquire("/l", "other-", Mode::Exclusive) };
        assert!(!joins(other, Command::Client(Request::Acquire([tries].into()))), "it is answered at once");
        assert!(!joins(other, Command::Noop));
        let tagged = Command::Tagged { id: 1, acked: 0, command: Box::new(one("/l", Mode::Exclusive)) };
        assert!(joins(other, tagged), "a repeatable one is no other");
        let several = vec![acquire("/free", "o-", Mode::Exclusive), acquire("/l", "o-", Mode::Exclusive)];
        assert!(
            joins(other, Command::Client(Request::Acquire(several.into()))),
            "of several one that waits makes all wait"
        );
    }

    #[test]
    fn one_command_of_another_kind_sends_all_at_once() {
        let mut machine = Machine::default();
        let (holder, other) = (open(&mut machine), open(&mut machine));
        machine.apply(0, &by(holder, one("/l", Mode::Exclusive)), &mut ()).result.unwrap();
        let waits = by(other, one("/l", Mode::Exclusive));
        let release = by(holder, Command::Client(Request::Release(Default::default())));
        assert!(all_only_join_queues([&waits, &waits].into_iter(), &machine));
        assert!(!all_only_join_queues([&waits, &release].into_iter(), &machine));
    }
}
