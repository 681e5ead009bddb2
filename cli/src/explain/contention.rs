//! `rowlock contention`: shows which locks clients waited for, how long, and who held them meanwhile.
//!
//! history (ended waits and holds) + locks and queues (those of this moment) -> [`Book`] -> one sweep over
//! the time of each lock. At each moment each waiter waits for the holders of this moment, in equal parts, or
//! for no holder: during a hand-over or a lock-delay. So the times of the pairs add up to the waiting time of
//! the lock.

use std::collections::BTreeMap;
use std::process::ExitCode;

use rowlock_client::Client;
use rowlock_env::time;
use rowlock_proto::report::in_query;
use serde_json::{Value, json};

use super::history::walk;
use super::{Line, OutputFormat, Style, fetch_report, items, print_lines, text};
use crate::cluster::{Cluster, failed, leave};
use crate::exit::Failure;
use crate::moment::{past, rfc3339, span};
use crate::name::mutex_of;
use crate::paint::Paint;
use crate::print::{count, errln, print};
use crate::znode::print_json;

/// Bound of the entries that one command reads, some 100 MB of memory.
const ENTRIES_MAX: usize = 1_000_000;
/// Bound of the queues that one command reads, the most contended ones. Of other locks the first holder
/// counts.
const QUEUES_MAX: usize = 100;
const HEAD: [&str; 7] = ["lock", "waited", "share", "waits", "longest", "mostly behind", "mostly waiting"];
const SPARE: [&str; 3] = ["waits", "share", "longest"];
const PAIRS_HEAD: [&str; 4] = ["waiting", "behind", "waited", "share"];

/// Show which locks clients waited for, how long, and who held them meanwhile
///
/// Reads the history of one node, and the queues of this moment.
#[derive(clap::Args)]
pub struct Contention {
    /// Only this lock, with all pairs of waiter and holder: a name, or a path if it begins with a slash
    name: Option<String>,
    /// Treat NAME as a path
    #[arg(long, requires = "name")]
    path: bool,
    /// Since 10m ago (s, m, h, d), 2026-11-20T13:42:05Z, or seconds since 1970
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = moment_of)]
    since: i64,
    /// How clients are told apart
    #[arg(long, value_enum, default_value_t)]
    by: By,
    /// Maximum number of rows
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
    /// Output format; json has all rows
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,
    #[command(flatten)]
    cluster: Cluster,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum By {
    /// Their label, else their address
    #[default]
    Label,
    /// The address from which they connect
    Address,
    /// The id of their session
    Session,
}

fn moment_of(text: &str) -> Result<i64, String> {
    past(text, time::wall_ms())
}

impl Contention {
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let client = self.cluster.connect().await?;
        let answer = self.collect(&client).await;
        leave(&client).await;
        let (book, is_cut) = answer?;
        let locks = book.locks();
        match self.output {
            OutputFormat::Json => print_json(&book.document(&locks, is_cut))?,
            _ => self.print(&book, &locks)?,
        }
        if is_cut {
            errln!(
                "rowlock: the history has more than {ENTRIES_MAX} entries of this time; use a later --since"
            );
        }
        if book.has_gap {
            errln!("rowlock: the history has a gap, so waits are missing; rowlock history shows where");
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Reads holders, queues and history. Returns true with the book if it lacks earlier entries.
    async fn collect(&self, client: &Client) -> Result<(Book, bool), Failure> {
        let only = self.name.as_deref().map(|name| mutex_of(client, name, self.path));
        if let (Some(mutex), Some(name)) = (&only, &self.name) {
            mutex.validate().map_err(|e| failed(name, &e))?;
        }
        let only = only.map(|mutex| mutex.server_path());
        let report = fetch_report(client, "locks", "/v1/locks?limit=10000&holders=true").await?;
        let until = report["time_ms"].as_i64().unwrap_or_else(time::wall_ms);
        let mut book = Book::new(self.by, (self.since.min(until), until));
        let is_meant = |lock: &&Value| only.is_none() || lock["lock"].as_str() == only.as_deref();
        let mut queues_left = QUEUES_MAX;
        for lock in items(&report, "locks").filter(is_meant) {
            let Some(path) = lock["lock"].as_str() else { continue };
            if queues_left > 0 && (only.is_some() || lock["waiters"].as_u64() > Some(0)) {
                queues_left -= 1;
                let query = format!("/v1/queue?limit=1000&lock={}", in_query(path));
                book.add_queue(path, &fetch_report(client, path, &query).await?);
            } else if let (Some(holder), Some(held)) = (lock["holder"].as_str(), lock["held_ms"].as_i64()) {
                book.add(
                    path,
                    Spell { is_hold: true, from: until - held, to: until, who: holder.to_owned() },
                );
            }
        }
        let lock = only.map(|path| format!("&lock={}", in_query(&path))).unwrap_or_default();
        let query = format!("&since_ms={}{lock}", self.since);
        let subject = self.name.as_deref().unwrap_or("history");
        let walked = walk(client, (subject, &query), ENTRIES_MAX, |page| book.add_entries(page)).await?;
        let is_cut = walked.map_err(|e| failed(subject, &e))?;
        Ok((book, is_cut))
    }

    fn print(&self, book: &Book, locks: &[LockWaits]) -> Result<(), Failure> {
        let all: f64 = locks.iter().map(|lock| lock.waited_ms).sum();
        if self.output == OutputFormat::Table {
            print(format!("{}\n", Paint::stdout().dim(&summary(book, locks, all))).as_bytes())?;
            if locks.is_empty() {
                return Ok(());
            }
        }
        if self.name.is_none() {
            let lines: Vec<_> =
                locks.iter().take(self.limit).map(|lock| lock.line(self.output, all)).collect();
            print_lines(self.output, HEAD, &lines, &SPARE)?;
        } else {
            let pairs = locks.iter().flat_map(LockWaits::sorted).take(self.limit);
            let lines: Vec<_> = pairs.map(|(pair, ms)| pair_line(self.output, pair, (*ms, all))).collect();
            print_lines(self.output, PAIRS_HEAD, &lines, &[])?;
        }
        let left = locks.len().saturating_sub(self.limit);
        if self.name.is_none() && left > 0 {
            errln!("rowlock: {} more; raise --limit to see them", count(left as u64, "lock"));
        }
        Ok(())
    }
}

fn summary(book: &Book, locks: &[LockWaits], all: f64) -> String {
    let [positions, waits] = [|lock: &LockWaits| lock.positions, |lock: &LockWaits| lock.waits]
        .map(|number| locks.iter().map(number).sum::<u64>());
    let (from, time) = (rfc3339(book.since), span(book.until - book.since));
    if waits == 0 {
        return format!("Since {from} no client waited for a lock.");
    }
    format!(
        "Since {from} ({time}) clients waited {} in all: {waits} of {} waited, for {}.",
        span(all as i64),
        count(positions, "request"),
        count(locks.len() as u64, "lock")
    )
}

fn pair_line(form: OutputFormat, (waiter, holder): &Pair, (ms, all): (f64, f64)) -> Line<4> {
    let cells = [text(&json!(waiter)), behind(holder.as_deref()), time_text(form, ms), percent(ms, all)];
    Line { cells, style: Style::Plain }
}

fn behind(holder: Option<&str>) -> String {
    holder.map_or_else(|| "(no holder)".to_owned(), |holder| text(&json!(holder)))
}

fn time_text(form: OutputFormat, ms: f64) -> String {
    match form {
        OutputFormat::Table => span(ms as i64),
        _ => format!("{ms:.0}"),
    }
}

fn percent(part: f64, all: f64) -> String {
    if all > 0.0 { format!("{:.0} %", 100.0 * part / all) } else { "-".to_owned() }
}

/// Time in which a client held a lock, or waited for it, in milliseconds since 1970.
#[derive(Clone, Debug)]
struct Spell {
    is_hold: bool,
    from: i64,
    to: i64,
    who: String,
}

/// Names as numbers: one client has many spells.
#[derive(Default)]
struct Names {
    numbers: BTreeMap<String, u32>,
    names: Vec<String>,
}

impl Names {
    fn number(&mut self, name: String) -> u32 {
        let next = u32::try_from(self.names.len()).expect("Invariant: fewer names than entries");
        *self.numbers.entry(name).or_insert_with_key(|name| {
            self.names.push(name.clone());
            next
        })
    }
}

/// Waiter, and holder if there was one.
type Pair = (String, Option<String>);

/// Where clients waited between two moments.
struct Book {
    by: By,
    since: i64,
    until: i64,
    names: Names,
    locks: BTreeMap<String, Kept>,
    has_gap: bool,
}

#[derive(Default)]
struct Kept {
    /// Times at which a spell begins (true) or ends: time, kind of the spell, client.
    turns: Vec<(i64, bool, bool, u32)>,
    positions: u64,
    waits: u64,
    longest_ms: i64,
    gave_up: u64,
}

impl Book {
    fn new(by: By, (since, until): (i64, i64)) -> Book {
        assert!(since <= until, "time goes on");
        let (names, locks) = (Names::default(), BTreeMap::new());
        Book { by, since, until, names, locks, has_gap: false }
    }

    /// Returns the name of the client of an entry or a place.
    fn client(&self, place: &Value) -> String {
        let fields: &[&str] = match self.by {
            By::Label => &["label", "address", "session"],
            By::Address => &["address", "session"],
            By::Session => &["session"],
        };
        let known =
            fields.iter().filter_map(|field| place[field].as_str()).find(|name| !name.trim().is_empty());
        known.unwrap_or("(hidden)").to_owned()
    }

    /// Adds the part of a spell between the book's moments. Returns what is kept of the lock.
    fn add(&mut self, lock: &str, spell: Spell) -> &mut Kept {
        let (from, to) = (spell.from.max(self.since), spell.to.min(self.until));
        let who = self.names.number(spell.who);
        let kept = self.locks.entry(lock.to_owned()).or_default();
        if !spell.is_hold {
            kept.positions += 1;
            kept.waits += u64::from(from < to);
            kept.longest_ms = kept.longest_ms.max(spell.to - spell.from);
        }
        if from < to {
            kept.turns.extend([(from, true, spell.is_hold, who), (to, false, spell.is_hold, who)]);
        }
        kept
    }

    /// Adds the holders and waiters of this moment.
    fn add_queue(&mut self, lock: &str, queue: &Value) {
        for (list, is_hold) in [("holders", true), ("waiters", false)] {
            for place in items(queue, list) {
                let Some(from) = place["since_ms"].as_i64() else { continue };
                let (to, who) = (self.until, self.client(place));
                self.add(lock, Spell { is_hold, from, to, who });
            }
        }
    }

    /// Adds the ended waits and holds of a page of the history.
    fn add_entries(&mut self, entries: &[Value]) {
        for entry in entries {
            self.has_gap |= entry["event"] == "gap";
            let (Some(to), Some(lock)) = (entry["time_ms"].as_i64(), entry["lock"].as_str()) else {
                continue;
            };
            let (field, is_hold) = match entry["event"].as_str() {
                Some("granted" | "abandoned") => ("waited_ms", false),
                Some("released" | "lost") => ("held_ms", true),
                _ => continue,
            };
            // A later end is that of a spell in the queue's report.
            if let Some(lasted) = entry[field].as_i64().filter(|_| to <= self.until) {
                let who = self.client(entry);
                let kept = self.add(lock, Spell { is_hold, from: to - lasted, to, who });
                kept.gave_up += u64::from(entry["event"] == "abandoned");
            }
        }
    }

    /// Returns the locks that clients waited for, the longest times first.
    fn locks(&self) -> Vec<LockWaits> {
        let waited = |(lock, kept): (&String, &Kept)| {
            let Kept { positions, waits, longest_ms, gave_up, .. } = *kept;
            let pairs = kept.pairs(&self.names);
            let waited_ms = pairs.values().sum();
            LockWaits { lock: lock.clone(), positions, waits, longest_ms, gave_up, waited_ms, pairs }
        };
        let mut locks: Vec<LockWaits> = self.locks.iter().map(waited).filter(|lock| lock.waits > 0).collect();
        locks.sort_by(|one, other| other.waited_ms.total_cmp(&one.waited_ms));
        locks
    }

    fn document(&self, locks: &[LockWaits], is_cut: bool) -> Value {
        let locks: Vec<Value> = locks.iter().map(LockWaits::document).collect();
        let (since_ms, until_ms) = (self.since, self.until);
        json!({ "since_ms": since_ms, "until_ms": until_ms, "more": is_cut, "gap": self.has_gap, "locks": locks })
    }
}

impl Kept {
    /// Returns the milliseconds that each client waited behind each holder.
    fn pairs(&self, names: &Names) -> BTreeMap<Pair, f64> {
        let mut turns = self.turns.clone();
        turns.sort_unstable();
        let (mut now, mut present) = (0, [BTreeMap::<u32, u32>::new(), BTreeMap::new()]);
        let mut pairs = BTreeMap::new();
        for (at, begins, is_hold, who) in turns {
            let [waiters, holders] = &present;
            let lasted = (at - now) as f64;
            if at > now {
                let all: u32 = holders.values().sum();
                for (waiter, waiting) in waiters {
                    let waited = lasted * f64::from(*waiting);
                    if all == 0 {
                        *pairs.entry((*waiter, None)).or_insert(0.0) += waited;
                    }
                    for (holder, holding) in holders {
                        let part = waited * f64::from(*holding) / f64::from(all);
                        *pairs.entry((*waiter, Some(*holder))).or_insert(0.0) += part;
                    }
                }
            }
            now = at;
            let clients = &mut present[usize::from(is_hold)];
            let number = clients.entry(who).or_insert(0);
            *number = if begins { *number + 1 } else { *number - 1 };
            if *number == 0 {
                clients.remove(&who);
            }
        }
        assert!(present.iter().all(BTreeMap::is_empty), "each spell ends");
        let name = |number: u32| names.names[number as usize].clone();
        pairs.into_iter().map(|((waiter, holder), ms)| ((name(waiter), holder.map(name)), ms)).collect()
    }
}

/// LockWaits for one lock.
struct LockWaits {
    lock: String,
    /// Requests for the lock, with those that waited.
    positions: u64,
    waits: u64,
    longest_ms: i64,
    /// Waiters that left the queue without the lock.
    gave_up: u64,
    waited_ms: f64,
    pairs: BTreeMap<Pair, f64>,
}

impl LockWaits {
    /// Returns the pairs, the longest times first.
    fn sorted(&self) -> Vec<(&Pair, &f64)> {
        let mut pairs: Vec<_> = self.pairs.iter().collect();
        pairs.sort_by(|one, other| other.1.total_cmp(one.1));
        pairs
    }

    fn line(&self, form: OutputFormat, all: f64) -> Line<7> {
        let most = |key: fn(&Pair) -> String| {
            let mut sums = BTreeMap::new();
            for (pair, ms) in &self.pairs {
                *sums.entry(key(pair)).or_insert(0.0) += ms;
            }
            let most = sums.into_iter().max_by(|one, other| one.1.total_cmp(&other.1));
            most.map_or_else(|| "-".to_owned(), |(who, ms)| format!("{who} {}", percent(ms, self.waited_ms)))
        };
        let waits = match self.gave_up {
            0 => format!("{} of {}", self.waits, self.positions),
            gave_up => format!("{} of {}, {gave_up} gave up", self.waits, self.positions),
        };
        Line {
            cells: [
                text(&json!(self.lock)),
                time_text(form, self.waited_ms),
                percent(self.waited_ms, all),
                waits,
                time_text(form, self.longest_ms as f64),
                most(|(_, holder)| behind(holder.as_deref())),
                most(|(waiter, _)| text(&json!(waiter))),
            ],
            style: Style::Plain,
        }
    }

    fn document(&self) -> Value {
        let pair = |((waiter, holder), ms): (&Pair, &f64)| {
            let waited_ms = ms.round();
            json!({ "waiter": waiter, "holder": holder, "waited_ms": waited_ms })
        };
        let pairs: Vec<Value> = self.sorted().into_iter().map(pair).collect();
        json!({
            "lock": self.lock,
            "waited_ms": self.waited_ms.round(),
            "requests": self.positions,
            "waits": self.waits,
            "gave_up": self.gave_up,
            "longest_ms": self.longest_ms,
            "pairs": pairs,
        })
    }
}

#[cfg(test)]
mod tests;
