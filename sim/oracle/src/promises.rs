//! Promises of docs/guarantees.md as predicates over the book after a command. Each predicate returns the
//! breach in words.

use rowlock_proto::SessionId;
use rowlock_proto::lock::Mode;
use rowlock_proto::response::Response;
use rowlock_state::outcome::EndReason;
use rowlock_state::{OUTCOMES_MAX, OUTCOMES_MAX_BYTES};

use crate::book::{Lock, Oracle, Position, Reply, go_together};
use crate::events::Event;

/// Least size of an outcome, and of each result of a multi, in bytes.
const RESULT_BYTES_MIN: usize = size_of::<rowlock_proto::response::OpResult>();

type Predicate = fn(&Oracle) -> Option<String>;

pub(crate) const PREDICATES: [(&str, Predicate); 7] = [
    ("mutual-exclusion", holders_apart),
    ("fifo", out_of_order),
    ("no-lost-wakeup", passed_over),
    ("no-deadlock", Oracle::new_circle),
    ("questions", revoked_early),
    ("ephemeral-lifetime", outlived),
    ("bounded", too_many_outcomes),
];

/// All promises that [`Oracle::check`] names: the predicates, and three promises about the comparison.
pub const PROMISES: [&str; 10] = [
    "the-oracle-agrees",
    "exactly-once",
    "session-order",
    PREDICATES[0].0,
    PREDICATES[1].0,
    PREDICATES[2].0,
    PREDICATES[3].0,
    PREDICATES[4].0,
    PREDICATES[5].0,
    PREDICATES[6].0,
];

impl Lock {
    fn holders(&self) -> impl Iterator<Item = &Position> {
        self.positions.iter().filter(|position| position.granted_ms.is_some())
    }

    fn taken(&self) -> u64 {
        self.holders().map(|holder| u64::from(holder.mode.permits().unwrap_or(0))).sum()
    }
}

impl Oracle {
    /// Returns the first result for a lock that the command may have changed.
    fn find_touched(&self, find: impl Fn(&str, &Lock) -> Option<String>) -> Option<String> {
        let touched = self.touched.iter().filter_map(|path| Some((path, self.locks.get(path)?)));
        touched.filter_map(|(path, lock)| Some(format!("{path} {}", find(path, lock)?))).next()
    }
}

/// Finds holders that may not hold a lock together.
fn holders_apart(book: &Oracle) -> Option<String> {
    book.find_touched(|path, lock| {
        let holders: Vec<&Position> = lock.holders().collect();
        if let Some(two) = holders.windows(2).find(|two| !go_together(two[0].mode, two[1].mode)) {
            return Some(format!("is held by {} and {}", two[0].token, two[1].token));
        }
        // A limit may be lowered below the permits of the holders.
        let (limit, taken) = (book.limit(path)?, lock.taken());
        let is_over = book.news.granted.contains(path) && holders.len() > 1 && taken > u64::from(limit);
        is_over.then(|| format!("was granted beside holders with {taken} permits, over the limit {limit}"))
    })
}

/// Finds a grant past an earlier waiter, and a position out of order.
fn out_of_order(book: &Oracle) -> Option<String> {
    book.find_touched(|_, lock| {
        let is_held = |position: &&Position| position.granted_ms.is_some();
        let mut behind = lock.positions.iter().skip_while(is_held);
        if let Some(other) = behind.find(is_held) {
            return Some(format!("is held by {} behind a waiter", other.token));
        }
        let is_sorted = lock.positions.is_sorted_by_key(|position| position.token);
        (!is_sorted).then(|| "has a position that did not enter at the end of the queue".to_owned())
    })
}

/// Finds a free lock with a first waiter.
fn passed_over(book: &Oracle) -> Option<String> {
    book.find_touched(|path, lock| {
        let waiter = lock.positions.iter().find(|position| position.granted_ms.is_none())?;
        let is_free = match (lock.holders().next().map(|holder| holder.mode), waiter.mode) {
            _ if lock.delayed_until_ms != 0 => false,
            (None, _) | (Some(Mode::Shared), Mode::Shared) => true,
            (Some(Mode::Permits(_)), Mode::Permits(more)) => {
                book.limit(path).is_none_or(|limit| lock.taken() + u64::from(more) <= u64::from(limit))
            }
            _ => false,
        };
        is_free.then(|| format!("is free for {}, which waits for the lock", waiter.token))
    })
}

/// Finds a hold that was revoked without a maximum, and before any deadline of a question.
fn revoked_early(book: &Oracle) -> Option<String> {
    let revoked = book.news.left.iter().filter(|(_, why)| *why == EndReason::Revoked);
    let mut early = revoked.filter(|(holder, _)| {
        let deadline = holder.asked.as_ref().and_then(|question| question.deadline);
        holder.max_hold_ms == 0 && deadline.is_none_or(|deadline| deadline.at_ms() > book.time_ms)
    });
    early.next().map(|(holder, _)| format!("{} was revoked before any deadline", holder.path))
}

/// Finds an ephemeral znode without its session.
fn outlived(book: &Oracle) -> Option<String> {
    let ended = book.events.iter().filter_map(|event| match event {
        Event::Ended(session, _) => book.owned(*session).next(),
        _ => None,
    });
    let changed = book.undo.iter().map(|(path, _)| path).filter(|path| {
        let owner = book.znode(path).map_or(SessionId::NONE, |znode| znode.stat.ephemeral_owner);
        owner != SessionId::NONE && !book.sessions.contains_key(&owner)
    });
    ended.chain(changed).next().map(|path| format!("{path} is there without its session"))
}

/// Finds a session with more outcomes than the limits of count and bytes allow, beside the outcome behind the
/// acknowledged ones.
fn too_many_outcomes(book: &Oracle) -> Option<String> {
    let session = book.sessions.get(&book.news.by)?;
    let others = session.outcomes.iter().filter(|(id, _)| **id != session.acked + 1);
    let (count, all, largest) = others
        .map(|(_, outcome)| least_bytes(outcome))
        .fold((0, 0, 0), |(count, all, largest), bytes| (count + 1, all + bytes, bytes.max(largest)));
    let is_over = count > OUTCOMES_MAX || all - largest >= OUTCOMES_MAX_BYTES;
    is_over.then(|| format!("{count} outcomes of at least {all} bytes are kept beside the oldest one"))
}

fn least_bytes(outcome: &Reply<Response>) -> usize {
    let results = if let Ok(Response::Multi(results)) = outcome { results.len() } else { 1 };
    results * RESULT_BYTES_MIN
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rowlock_proto::acl::Acl;
    use rowlock_proto::lock::{Owner, limit_data, place_number};
    use rowlock_proto::{FencingToken, Stat};
    use rowlock_state::Lifetime;
    use rowlock_state::outcome::SessionEnd;
    use rowlock_state::{Deadline, Proof, Question};
    use rowlock_stories::{Words, parse};

    use super::*;
    use crate::book::{Open, Znode};

    /// Time between the end of a TTL znode and its removal in the cases.
    const SWEPT_WITHIN_MS: i64 = 500;

    fn znode(data: Option<bytes::Bytes>, ephemeral_owner: SessionId) -> Znode {
        let stat = Stat { ephemeral_owner, ..Stat::default() };
        Znode { data, acl: Acl::open_entries().into(), stat, creates: 0, lifetime: Lifetime::Persistent }
    }

    /// Reads `TOKEN MODE [held|granted] [owner=N|POSITION] [requested=MS]` (now at 0): MODE is `x`, `s` or a
    /// number of permits, and the session works under a position as `owner`.
    fn position(lock: &str, words: &Words<'_>) -> Position {
        let token = words.parse(0);
        let mode = match words.at(1) {
            "x" => Mode::Exclusive,
            "s" => Mode::Shared,
            permits => Mode::Permits(parse(permits)),
        };
        let owner = words.option("owner").map_or(Owner::Unnamed, |owner| match owner.starts_with('/') {
            true => Owner::Under(place_number(owner)),
            false => Owner::Named(parse(owner)),
        });
        Position {
            path: format!("{lock}/{token:010}").into(),
            token: FencingToken(token),
            session: SessionId(words.number("session", token)),
            mode,
            owner,
            is_acquired: true,
            max_hold_ms: 0,
            lock_delay_ms: 0,
            min_hold_ms: 0,
            min_hold_lapses: false,
            requested_ms: words.number("requested", 0),
            granted_ms: words.find(2).map(|_| 0),
            asked: None,
            address: String::new(),
        }
    }

    /// Reads `LOCK [limit=N] [delayed]: POSITION; ...`.
    fn add_lock(book: &mut Oracle, line: &str) {
        let (lock, positions) = line.split_once(": ").expect("a lock: its queue");
        let (words, mut queue) = (Words::new(lock), Lock::default());
        let path: std::sync::Arc<str> = words.at(0).into();
        let limit = words.option("limit").map(|limit| limit_data(parse(limit)));
        book.znodes.insert(path.clone(), znode(limit, SessionId::NONE).into());
        queue.delayed_until_ms = i64::from(words.find(1) == Some("delayed"));
        for text in positions.split("; ") {
            let words = Words::new(text);
            queue.positions.push(position(&path, &words));
            if words.find(2) == Some("granted") {
                book.news.granted.insert(path.clone());
            }
        }
        book.news.entered.extend(queue.positions.iter().filter(|it| it.requested_ms == 0).cloned());
        book.touched.insert(path.clone());
        book.locks.insert(path, queue);
    }

    /// Reads `TOKEN [maximum] [since= within=]`.
    fn revoke(book: &mut Oracle, words: &Words<'_>) {
        let mut holder = position("/l", &Words::new(&format!("{} x held", words.at(1))));
        holder.max_hold_ms = u32::from(words.find(2) == Some("maximum"));
        let since_ms = words.number("since", 0);
        let deadline = words.option("within").map(|within| Deadline { since_ms, within_ms: parse(within) });
        let (reason, by, askers) = (String::new(), String::new(), [].into());
        holder.asked = Some(Question { reason, by, asked_ms: since_ms, deadline, askers });
        book.news.left.push((holder, EndReason::Revoked));
    }

    fn verdict(text: &str) -> String {
        let mut book = Oracle::default();
        for line in text.lines() {
            let words = Words::new(line);
            let session = || SessionId(words.parse(1));
            match words.at(0) {
                "time" => book.time_ms = words.parse(1),
                "revoked" => revoke(&mut book, &words),
                "session" | "outcomes" => {
                    let results = vec![rowlock_proto::response::OpResult::Check; words.number("results", 1)];
                    let outcome = Ok(Response::Multi(results));
                    let outcomes = (1..=words.number("count", 0)).map(|id| (id, outcome.clone())).collect();
                    let (timeout_ms, attachment, acked) = (1_000, Default::default(), 0);
                    let (proof, longest_timeout_ms) = (Proof::of(&[0; 16]), timeout_ms);
                    let open = Open { proof, timeout_ms, longest_timeout_ms, attachment, acked, outcomes };
                    book.sessions.insert(session(), open);
                    book.news.by = session();
                }
                "ended" => book.events.push(Event::Ended(session(), SessionEnd::Closed)),
                "ephemeral" => {
                    let path: std::sync::Arc<str> = words.at(2).into();
                    book.znodes.insert(path.clone(), znode(None, session()).into());
                    book.undo.extend((words.find(3) == Some("new")).then_some((path, None)));
                }
                "ttl" => {
                    let lifetime = Lifetime::Ttl(words.parse(2));
                    let brief = Znode { lifetime, ..znode(None, SessionId::NONE) };
                    book.znodes.insert(words.at(1).into(), brief.into());
                }
                _ => add_lock(&mut book, line),
            }
        }
        let broken = PREDICATES.iter().filter_map(|(name, find)| Some(format!("{name}: {}", find(&book)?)));
        let unswept = book.check_swept(SWEPT_WITHIN_MS).err();
        let unswept = unswept.map(|breach| format!("{}: {}", breach.promise, breach.what));
        let broken: Vec<String> = broken.chain(unswept).collect();
        if broken.is_empty() { "kept".to_owned() } else { broken.join("\n") }
    }

    #[test]
    fn each_predicate_finds_the_broken_books_and_no_others() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/promises.txt");
        let mut verdicts = String::new();
        let played = rowlock_stories::play(&path, |paragraph| {
            let verdict = verdict(paragraph);
            verdicts.push_str(&verdict);
            verdict
        });
        assert_eq!(played, Ok(()));
        for (name, _) in PREDICATES {
            assert!(verdicts.contains(&format!("{name}: ")), "no broken book of {name}");
        }
    }
}
