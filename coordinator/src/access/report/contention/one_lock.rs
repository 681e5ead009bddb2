//! Sweep over the time of one lock, from the newest moment to the oldest.
//!
//! A position enters the sweep once, at the moment of the newest record about the position. That record has
//! the times of the grant and the request, so the sweep knows the earlier changes of each present position.
//! At each moment each waiter waits for the holders of this moment, in equal parts, or for no holder: during
//! a hand-over or a lock-delay. So the times behind the holders add up to the waiting time.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use rowlock_proto::FencingToken;

use crate::limits::{CONTENTION_MAX_BYTES, CONTENTION_STEPS_MAX};

/// Number of a client in the report.
pub(super) type Client = u32;

/// What a waiter waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Behind {
    Holder(Client),
    NoHolder,
    /// A gap of the history hides whether there was a holder.
    Unknown,
}

/// A position of the queue, as known from its newest record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    pub client: Client,
    pub token: FencingToken,
    pub requested_ms: i64,
    /// `None` for a position that waits to its end.
    pub granted_ms: Option<i64>,
    pub gave_up: bool,
}

/// The next earlier change of a present position: its grant or its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    at_ms: i64,
    /// True for the grant, before which the position waits; false for the request.
    is_grant: bool,
    client: Client,
    token: FencingToken,
    requested_ms: i64,
}

/// What a report has used of its bounds.
#[derive(Debug, Default)]
pub(super) struct Budget {
    pub bytes: usize,
    pub steps: u64,
}

impl Budget {
    /// Approximate bytes of an entry of a map, with its share of the nodes.
    pub const ENTRY_BYTES: usize = 64;
    const POSITION_BYTES: usize = 4 * Budget::ENTRY_BYTES;

    pub fn is_spent(&self) -> bool {
        self.bytes > CONTENTION_MAX_BYTES || self.steps > CONTENTION_STEPS_MAX
    }
}

/// Sums of the waiting time in equal parts of the requested time.
#[derive(Debug)]
pub(super) struct SliceSums {
    pub since_ms: i64,
    pub step_ms: i64,
    pub sums: Vec<f64>,
}

impl SliceSums {
    pub fn new((since_ms, until_ms): (i64, i64), slices: i64) -> SliceSums {
        let time_ms = until_ms - since_ms;
        let step_ms = (time_ms + slices - 1).div_euclid(slices).max(1);
        let count = (time_ms + step_ms - 1).div_euclid(step_ms);
        SliceSums { since_ms, step_ms, sums: vec![0.0; usize::try_from(count).unwrap_or_default()] }
    }

    fn add(&mut self, (from_ms, to_ms): (i64, i64), waiters: u32) {
        let slice = |at_ms: i64| usize::try_from((at_ms - self.since_ms) / self.step_ms).unwrap_or_default();
        for at in slice(from_ms)..=slice(to_ms - 1) {
            let begin_ms = self.since_ms + at as i64 * self.step_ms;
            let part_ms = to_ms.min(begin_ms + self.step_ms) - from_ms.max(begin_ms);
            self.sums[at] += part_ms as f64 * f64::from(waiters);
        }
    }
}

/// Present clients, each with the time summed up so far. `clock` advances with the time to be summed.
#[derive(Debug, Default)]
struct Clients {
    count: u32,
    clock: f64,
    /// Number of positions, and the clock at its last change.
    present: BTreeMap<Client, (u32, f64)>,
    sums: BTreeMap<Client, f64>,
}

impl Clients {
    fn add(&mut self, client: Client, budget: &mut Budget) {
        if !self.sums.contains_key(&client) {
            budget.bytes += Budget::ENTRY_BYTES;
        }
        self.count += 1;
        self.add_elapsed(client).0 += 1;
    }

    fn remove(&mut self, client: Client) {
        self.count -= 1;
        let (number, _) = self.add_elapsed(client);
        *number -= 1;
        if *number == 0 {
            self.present.remove(&client);
        }
    }

    /// Adds the time since the last change of the client's positions to its sum.
    fn add_elapsed(&mut self, client: Client) -> &mut (u32, f64) {
        let present = self.present.entry(client).or_insert((0, self.clock));
        *self.sums.entry(client).or_insert(0.0) += f64::from(present.0) * (self.clock - present.1);
        present.1 = self.clock;
        present
    }
}

/// The time of one lock from `now_ms` to the end of the report.
#[derive(Debug)]
pub(super) struct LockSweep {
    now_ms: i64,
    coming: BinaryHeap<Turn>,
    tokens: BTreeSet<FencingToken>,
    waiters: Clients,
    holders: Clients,
    /// True between a gap and the next earlier grant or end: an unrecorded holder may be present.
    pub may_lack_holders: bool,
    pub waited_ms: f64,
    pub no_holder_ms: f64,
    pub unknown_ms: f64,
    pub requests: u64,
    pub waits: u64,
    pub gave_up: u64,
    pub longest_ms: i64,
    /// `None`: only the sums of waiters and holders are wanted.
    pub pairs: Option<BTreeMap<(Client, Behind), f64>>,
}

impl LockSweep {
    pub fn new(now_ms: i64, wants_pairs: bool) -> LockSweep {
        LockSweep {
            now_ms,
            coming: BinaryHeap::new(),
            tokens: BTreeSet::new(),
            waiters: Clients::default(),
            holders: Clients::default(),
            may_lack_holders: false,
            waited_ms: 0.0,
            no_holder_ms: 0.0,
            unknown_ms: 0.0,
            requests: 0,
            waits: 0,
            gave_up: 0,
            longest_ms: 0,
            pairs: wants_pairs.then(BTreeMap::new),
        }
    }

    /// Returns true for a position present at this moment.
    pub fn has(&self, token: FencingToken) -> bool {
        self.tokens.contains(&token)
    }

    /// Adds a position whose newest record is of this moment.
    pub fn add(&mut self, position: Position, budget: &mut Budget) {
        let Position { client, token, requested_ms, granted_ms, gave_up } = position;
        budget.bytes += Budget::POSITION_BYTES;
        self.tokens.insert(token);
        let at_ms = granted_ms.unwrap_or(requested_ms);
        let is_grant = granted_ms.is_some();
        self.coming.push(Turn { at_ms, is_grant, client, token, requested_ms });
        if is_grant {
            self.holders.add(client, budget);
        } else {
            self.waiters.add(client, budget);
            self.count_wait(requested_ms, self.now_ms);
            self.gave_up += u64::from(gave_up);
        }
    }

    /// Counts a request with its whole wait.
    fn count_wait(&mut self, requested_ms: i64, end_ms: i64) {
        self.requests += 1;
        self.waits += u64::from(requested_ms < end_ms);
        self.longest_ms = self.longest_ms.max(end_ms - requested_ms);
    }

    /// Goes back to `to_ms`. Changes at `to_ms` itself stay ahead.
    pub fn advance(&mut self, to_ms: i64, slices: &mut SliceSums, budget: &mut Budget) {
        while let Some(change) = self.coming.peek().copied().filter(|change| change.at_ms > to_ms) {
            self.coming.pop();
            self.account(change.at_ms, slices, budget);
            let Turn { client, token, requested_ms, .. } = change;
            if change.is_grant {
                self.holders.remove(client);
                self.count_wait(requested_ms, change.at_ms);
                self.waiters.add(client, budget);
                self.coming.push(Turn { at_ms: requested_ms, is_grant: false, ..change });
            } else {
                self.waiters.remove(client);
                self.tokens.remove(&token);
                budget.bytes -= Budget::POSITION_BYTES;
            }
        }
        self.account(to_ms, slices, budget);
    }

    /// Adds the time from `from_ms` to this moment, in which no position changes.
    fn account(&mut self, from_ms: i64, slices: &mut SliceSums, budget: &mut Budget) {
        let to_ms = self.now_ms;
        self.now_ms = from_ms.min(to_ms);
        if from_ms >= to_ms || self.waiters.count == 0 {
            return;
        }
        let lasted = (to_ms - from_ms) as f64;
        let waited = lasted * f64::from(self.waiters.count);
        self.waiters.clock += lasted;
        self.waited_ms += waited;
        slices.add((from_ms, to_ms), self.waiters.count);
        let without = if self.may_lack_holders { Behind::Unknown } else { Behind::NoHolder };
        match (self.holders.count, without) {
            (0, Behind::Unknown) => self.unknown_ms += waited,
            (0, _) => self.no_holder_ms += waited,
            (holders, _) => self.holders.clock += waited / f64::from(holders),
        }
        let Some(pairs) = &mut self.pairs else { return };
        let part = lasted / f64::from(self.holders.count.max(1));
        for (waiter, (waiting, _)) in &self.waiters.present {
            let waited = part * f64::from(*waiting);
            let mut add = |behind, time| {
                let sum = pairs.entry((*waiter, behind)).or_insert_with(|| {
                    budget.bytes += Budget::ENTRY_BYTES;
                    0.0
                });
                *sum += time;
            };
            if self.holders.count == 0 {
                add(without, waited);
            }
            for (holder, (holding, _)) in &self.holders.present {
                add(Behind::Holder(*holder), waited * f64::from(*holding));
            }
            budget.steps += 1 + self.holders.present.len() as u64;
        }
    }

    /// Returns the waiting time of each waiter, and of all waiters behind each holder, up to this moment.
    pub fn sums(&mut self) -> [Vec<(Client, f64)>; 2] {
        [&mut self.waiters, &mut self.holders].map(|clients| {
            for client in clients.present.keys().copied().collect::<Vec<_>>() {
                clients.add_elapsed(client);
            }
            clients.sums.iter().map(|(client, sum)| (*client, *sum)).collect()
        })
    }
}
