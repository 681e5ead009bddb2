//! A made-up trace for checking the appearance of reports: three nodes and four clients, two locks, a
//! partition that cuts off the leader, a power loss, a client paused past its timeout, a one-way cut, and one
//! broken promise.

use rowlock_world::rng::Rng;
use rowlock_world::time::{HostId, Nanos};
use rowlock_world::trace::{Happening, MessageId, What};

const NODES: usize = 3;
const CLIENTS: usize = 4;

/// Returns `(trace, end)`; `broken` adds a broken promise.
pub(crate) fn record(seed: u64, broken: bool) -> (Vec<Happening>, Nanos) {
    let mut sample = Sample { rng: Rng::new(seed), all: Vec::new(), messages: 0, cuts: Vec::new() };
    sample.hosts();
    sample.leaders();
    sample.faults();
    sample.locks(broken);
    sample.messages();
    if broken {
        sample.at(
            31_912,
            What::Violation {
                text: "mutual-exclusion: client2 and client3 both hold orders/42 (tokens 27 and 28)".into(),
            },
        );
    }
    sample.all.sort_by_key(|happening| happening.at);
    (sample.all, Nanos::from_millis(40_000))
}

struct Sample {
    rng: Rng,
    all: Vec<Happening>,
    messages: u64,
    /// Sender, receiver, beginning and end in milliseconds.
    cuts: Vec<(usize, usize, u64, u64)>,
}

fn node(n: usize) -> HostId {
    HostId(n - 1)
}

fn client(n: usize) -> HostId {
    HostId(NODES + n - 1)
}

impl Sample {
    fn at(&mut self, millis: u64, what: What) {
        self.all.push(Happening { at: Nanos::from_millis(millis), what });
    }

    fn hosts(&mut self) {
        for n in 1..=NODES {
            self.at(0, What::Host { host: node(n), name: format!("node{n}"), kind: "node" });
            self.at(0, What::Up { host: node(n) });
        }
        for n in 1..=CLIENTS {
            self.at(0, What::Host { host: client(n), name: format!("client{n}"), kind: "client" });
            self.at(0, What::Up { host: client(n) });
        }
    }

    fn leaders(&mut self) {
        for (at, n, term) in [(410, 1, 1), (9_650, 2, 2), (19_120, 3, 3)] {
            self.at(at, What::Leads { host: node(n), term });
        }
    }

    fn fault(&mut self, from: u64, until: u64, text: &str, hosts: &[HostId]) {
        let hosts = hosts.to_vec();
        self.at(from, What::Fault { text: text.into(), hosts: hosts.clone() });
        self.at(until, What::Healed { text: text.into(), hosts });
    }

    fn cut(&mut self, from: HostId, to: HostId, begin: u64, end: u64) {
        self.cuts.push((from.0, to.0, begin, end));
        self.at(begin, What::Cut { from, to });
        self.at(end, What::Joined { from, to });
    }

    fn faults(&mut self) {
        let text = "partition node1 client1 | node2 node3 client2 client3 for 6s";
        let (left, right) = ([node(1), client(1)], [node(2), node(3), client(2), client(3)]);
        self.fault(8_000, 14_000, text, &[left.as_slice(), &right].concat());
        for a in left {
            for b in right {
                self.cut(a, b, 8_000, 14_000);
                self.cut(b, a, 8_000, 14_000);
            }
        }
        self.fault(17_500, 21_300, "power-loss leader at-operation 17 for 3.8s", &[node(2)]);
        self.at(17_560, What::Down { host: node(2), how: "power lost" });
        self.at(21_300, What::Up { host: node(2) });
        self.fault(24_000, 33_000, "pause client2 for 9s", &[client(2)]);
        self.at(24_000, What::Paused { host: client(2) });
        self.at(33_000, What::Resumed { host: client(2) });
        self.fault(26_000, 30_500, "one-way leader -> node1 for 4.5s", &[node(3), node(1)]);
        self.cut(node(3), node(1), 26_000, 30_500);
        self.fault(34_000, 37_000, "kill client4 for 3s", &[client(4)]);
        self.at(34_000, What::Down { host: client(4), how: "killed" });
        self.at(37_000, What::Up { host: client(4) });
        self.at(36_000, What::Note { host: Some(node(3)), text: "session 0x1f4a of client4 expired".into() });
    }

    /// Adds two locks with holders in turn.
    fn locks(&mut self, broken: bool) {
        for (lock, members, mut token) in [("orders/42", vec![1, 2, 3], 11), ("billing", vec![3, 4], 201)] {
            let lock = lock.to_owned();
            let mut at = 900;
            let mut turn = 0;
            while at < 38_500 {
                let who = members[turn % members.len()];
                let hold = 300 + self.rng.below(1_400) as u64;
                let (begin, end) = (at, at + hold);
                at = end + 8 + self.rng.below(30) as u64;
                turn += 1;
                // Absent clients miss their turns.
                let away = (who == 1 && end > 7_900 && begin < 15_000)
                    || (who == 2 && begin < 33_500 && end > 24_000)
                    || (who == 4 && begin < 37_500 && end > 33_900)
                    || (begin > 17_000 && begin < 19_200);
                if away {
                    continue;
                }
                let waited = 200 + self.rng.below(900) as u64;
                self.at(begin.saturating_sub(waited), What::Waits { host: client(who), lock: lock.clone() });
                self.at(begin, What::Holds { host: client(who), lock: lock.clone(), token });
                self.at(end, What::LetGo { host: client(who), lock: lock.clone(), token });
                token += 1;
            }
        }
        let orders = "orders/42".to_owned();
        if broken {
            self.at(23_400, What::Holds { host: client(2), lock: orders.clone(), token: 27 });
            self.at(33_200, What::LetGo { host: client(2), lock: orders, token: 27 });
        }
    }

    fn messages(&mut self) {
        for step in 0..4_000u64 {
            let at = 200 + step * 10;
            let leader = if at < 9_650 {
                1
            } else if at < 19_120 {
                2
            } else {
                3
            };
            if step % 5 == 0 {
                for n in (1..=NODES).filter(|n| *n != leader) {
                    self.message(at, node(leader).0, node(n).0, "append 3 entries", 340);
                    self.message(at + 2, node(n).0, node(leader).0, "appended to 1204", 48);
                }
            }
            if step % 3 == 0 {
                let who = client(1 + self.rng.below(CLIENTS)).0;
                let n = node(1 + self.rng.below(NODES)).0;
                let label = self.rng.pick(&["ping", "acquire orders/42", "release orders/42", "get /config"]);
                self.message(at + 1, who, n, label, 60);
                self.message(at + 5, n, who, "reply ok", 44);
            }
        }
        for at in [9_300u64, 18_900] {
            for n in 1..=NODES {
                self.message(at, node(n).0, node(1 + n % NODES).0, "vote term 2", 40);
            }
        }
    }

    fn message(&mut self, at: u64, from: usize, to: usize, label: &str, bytes: usize) {
        let down = (to == 1 || from == 1) && (17_560..21_300).contains(&at);
        if from == 1 && down || (from == 6 || to == 6) && (34_000..37_000).contains(&at) {
            return;
        }
        let message = MessageId(self.messages);
        self.messages += 1;
        let micros = at * 1_000 + self.rng.below(900) as u64;
        let sent = Nanos(micros * 1_000);
        let latency = 300 + self.rng.below(4_000) as u64;
        let lost =
            down || self.cuts.iter().any(|(f, t, b, e)| (*f, *t) == (from, to) && (*b..*e).contains(&at));
        let (from, to, label) = (HostId(from), HostId(to), label.to_owned());
        self.all.push(Happening { at: sent, what: What::Sent { message, from, to, bytes, label } });
        let what = if lost { What::Lost { message } } else { What::Arrived { message } };
        self.all.push(Happening { at: Nanos((micros + latency) * 1_000), what });
    }
}
