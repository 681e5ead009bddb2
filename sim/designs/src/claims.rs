//! Claims about lock designs, and the verdicts of the runs. Ids refer to the notes at the start of this
//! project (S: a claim of the notes; E: an error that we see in the notes), to Kleppmann's argument (K), to
//! findings made here (N), and to the promises of docs/guarantees.md, if the table has Rowlock's rows.
//!
//! A judgment uses the table only, and names a run as evidence.

use std::time::Duration;

use crate::scenario::Scenario;
use crate::table::{Row, Summary, Table};
use crate::zk::core::{Core, Reply, Request};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Confirmed,
    Partly,
    Refuted,
}

impl Verdict {
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Confirmed => "confirmed",
            Verdict::Partly => "partly",
            Verdict::Refuted => "refuted",
        }
    }
}

/// Run that serves as evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    pub design: &'static str,
    pub scenario: Scenario,
    pub seed: u64,
}

impl Shown {
    /// Returns the command that repeats the run.
    pub fn command(&self) -> String {
        let scenario = self.scenario.id();
        format!("rowlock sim compare --design {} --scenario {scenario} --seed {}", self.design, self.seed)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgment {
    pub id: &'static str,
    pub claim: &'static str,
    pub verdict: Verdict,
    pub evidence: String,
    pub shown: Option<Shown>,
}

/// Claim: id, text, and the test. The test returns `None` if the table lacks the needed rows.
struct Claim(&'static str, &'static str, fn(&Table) -> Option<Finding>);

struct Finding(Verdict, String, Option<Shown>);

use Scenario as S;

/// Tests every claim for which the table has the needed rows.
pub fn evaluate(table: &Table) -> Vec<Judgment> {
    let evaluated = |Claim(id, claim, test): &Claim| {
        let Finding(verdict, evidence, shown) = test(table)?;
        Some(Judgment { id, claim, verdict, evidence, shown })
    };
    CLAIMS.iter().filter_map(evaluated).collect()
}

fn holds_if(is_so: bool) -> Verdict {
    if is_so { Verdict::Confirmed } else { Verdict::Refuted }
}

fn shown(design: &'static str, scenario: Scenario, seed: Option<u64>) -> Option<Shown> {
    seed.map(|seed| Shown { design, scenario, seed })
}

fn two(m: &Summary) -> String {
    format!("{} times two holders, {} ms, in {} runs", m.windows, m.overlap.as_millis(), m.runs)
}

fn two_holders(t: &Table, design: &'static str, s: Scenario) -> Option<Finding> {
    let m = t.summary(design, s)?;
    Some(Finding(holds_if(m.windows > 0), two(m), shown(design, s, m.overlap_seed)))
}

/// Tests a claim that the lock is stuck.
fn stuck(t: &Table, design: &'static str, s: Scenario) -> Option<Finding> {
    let m = t.summary(design, s)?;
    let evidence = format!("stuck in {} of {} runs", m.stuck, m.runs);
    Some(Finding(holds_if(m.stuck > 0), evidence, shown(design, s, m.stuck_seed)))
}

fn seconds(time: Option<Duration>) -> String {
    time.map_or("never".to_owned(), |time| format!("{:.1} s", time.as_secs_f64()))
}

/// Returns the sum of `figure` over a design's scenarios, and the number of scenarios.
fn over_all(t: &Table, design: &str, figure: impl Fn(&Summary) -> u64) -> Option<(u64, usize)> {
    let row = t.rows.iter().find(|row| row.about.id == design)?;
    let all: Vec<&Summary> = t.scenarios.iter().filter_map(|s| row.summary(*s)).collect();
    Some((all.iter().map(|m| figure(m)).sum(), all.len()))
}

/// Describes the time after a holder's crash, and returns ZooKeeper's recovery.
fn after_a_crash(t: &Table) -> Option<(String, Option<Duration>)> {
    let (zk, redis) =
        (t.summary("zk-queue", S::HolderCrash)?, t.summary("set-nx-px-script", S::HolderCrash)?);
    let text = format!(
        "next grant after the crash: ZooKeeper {}, Redis {}; session timeout and time to live are both {}",
        seconds(zk.recovery),
        seconds(redis.recovery),
        seconds(Some(crate::TTL))
    );
    Some((text, zk.recovery))
}

/// E4 and E5 need no run: one request to the service shows each.
fn names_under_one_parent() -> Finding {
    let mut core = Core::default();
    let session = core.open(0);
    for product in ["1", "10", "1"] {
        core.run(session, Request::Create { path: format!("/locks/{product}"), is_sequential: true });
    }
    let listed = core.run(session, Request::Children { parent: "/locks".to_owned() });
    let names = if let Reply::Children(names) = listed { names } else { Vec::new() };
    let is_mixed = names.get(1).is_some_and(|name| name.len() == 12);
    let text = format!("three clients, of products 1, 10 and 1, are listed as {}", names.join(", "));
    Finding(holds_if(is_mixed), text, None)
}

fn delete_by_another() -> Finding {
    let mut core = Core::default();
    let (holder, other) = (core.open(0), core.open(0));
    core.run(holder, Request::Create { path: "/locks/stock".to_owned(), is_sequential: false });
    let is_done = core.run(other, Request::Delete { path: "/locks/stock".to_owned() }) == Reply::Done;
    Finding(holds_if(is_done), "another session's delete of the holder's znode succeeds".to_owned(), None)
}

static CLAIMS: &[Claim] = &[
    Claim(
        "S0-4, S1-6, S4-2",
        "a release that compares and deletes atomically never frees another's lock",
        |t| {
            let (script, del) =
                (t.summary("set-nx-px-script", S::HolderPause)?, t.summary("set-nx-px-del", S::HolderPause)?);
            let text =
                format!("after a pause: {} with the script, {} with a bare DEL", script.windows, del.windows);
            let seed = shown("set-nx-px-del", S::HolderPause, del.overlap_seed);
            Some(Finding(holds_if(script.windows == 0 && del.windows > 0), text, seed))
        },
    ),
    Claim("S0-8, S3-5", "the watchdog keeps the lock through a job longer than the lease", |t| {
        let m = t.summary("redisson", S::LongJob)?;
        let run = shown("redisson", S::LongJob, Some(1));
        Some(Finding(holds_if(m.windows == 0 && m.lost_plain == 0), two(m), run))
    }),
    Claim("S0-10", "the defect of Redis locks: rejected clients spin and waste CPU", |t| {
        let (polls, redisson) = (t.summary("set-nx-px-script", S::Calm)?, t.summary("redisson", S::Calm)?);
        let text = format!(
            "five clients: {:.1} failed attempts per release by polling, {:.1} with Redisson's messages",
            polls.wasted_per_release(),
            redisson.wasted_per_release()
        );
        let is_worse = polls.wasted_per_release() > 2.0 * redisson.wasted_per_release();
        let verdict = if is_worse { Verdict::Partly } else { Verdict::Confirmed };
        Some(Finding(verdict, text, shown("set-nx-px-script", S::Calm, Some(1))))
    }),
    Claim("S0-11", "RedLock is not robust: a jump of wall clocks gives the lock away twice", |t| {
        two_holders(t, "redlock", S::ClockJump)
    }),
    Claim("S0-11", "RedLock is not robust: masters that restart without fsync give it away twice", |t| {
        two_holders(t, "redlock", S::PowerLoss)
    }),
    Claim("S0-12, S2-7, S4-3", "asynchronous failover gives the lock away twice", |t| {
        two_holders(t, "redisson-replicas", S::PrimaryLost)
    }),
    Claim("S1-2, S4-1", "RedLock goes on while a majority of masters is up", |t| {
        let m = t.summary("redlock", S::PrimaryLost)?;
        let ms = m.unavailable.as_millis();
        let text =
            format!("one master of five gone for 30 s: {}; longest time without the lock {ms} ms", two(m));
        let run = shown("redlock", S::PrimaryLost, Some(1));
        Some(Finding(holds_if(m.windows == 0 && ms < 2_000), text, run))
    }),
    Claim("S1-4, S2-3, S3-1", "a crash between SETNX and EXPIRE leaves the lock taken for ever", |t| {
        stuck(t, "setnx-expire", S::CrashBetween)
    }),
    Claim("S1-5", "expiry by the clients' clocks needs them synchronized", |t| {
        two_holders(t, "client-timestamps", S::ClockJump)
    }),
    Claim(
        "S1-7, S2-4, S3-3",
        "a bare DEL after the work has outlived the time to live frees another's lock",
        |t| {
            let (del, script) =
                (t.summary("set-nx-px-del", S::LongJob)?, t.summary("set-nx-px-script", S::LongJob)?);
            let text = format!(
                "{} updates lost with DEL (each wrong release makes the next), {} with the script",
                del.lost_plain, script.lost_plain
            );
            let run = shown("set-nx-px-del", S::LongJob, del.loss_seed);
            Some(Finding(holds_if(del.lost_plain > 2 * script.lost_plain), text, run))
        },
    ),
    Claim("S1-8", "GET then DEL frees another's lock if it expires in between", |t| {
        two_holders(t, "set-nx-px-get-del", S::PauseBetween)
    }),
    Claim("S1-9", "one server is no fault tolerance", |t| {
        let m = t.summary("set-nx-px-script", S::PrimaryLost)?;
        let text = format!("server gone for 30 s: lock unavailable for {}", seconds(Some(m.unavailable)));
        let run = shown("set-nx-px-script", S::PrimaryLost, Some(1));
        Some(Finding(holds_if(m.unavailable.as_secs() >= 15), text, run))
    }),
    Claim("S2-2", "a row without expiry stays when its holder dies", |t| stuck(t, "row", S::HolderCrash)),
    Claim(
        "S2-8",
        "min-replicas-to-write 2 with max-lag 10 protects against the lost lock of a failover",
        |t| {
            let m = t.summary("redisson-min-replicas", S::PrimaryLost)?;
            let run = shown("redisson-min-replicas", S::PrimaryLost, m.overlap_seed);
            Some(Finding(holds_if(m.windows == 0), two(m), run))
        },
    ),
    Claim("S2-9", "on ZooKeeper there is no double grant", |t| {
        let (windows, scenarios) = over_all(t, "zk-queue", |m| m.windows)?;
        let text = format!("{windows} times two holders in {scenarios} scenarios with the right recipe");
        Some(Finding(holds_if(windows == 0), text, None))
    }),
    Claim("S2-11", "one znode that all watch: a release wakes the whole herd", |t| {
        let m = t.summary("zk-one-znode", S::HundredWaiters)?;
        let text = format!("{:.0} useless wake-ups per release with 100 clients", m.wasted_per_release());
        let run = shown("zk-one-znode", S::HundredWaiters, Some(1));
        Some(Finding(holds_if(m.wasted_per_release() > 80.0), text, run))
    }),
    Claim("S2-12", "the sequential recipe wakes one", |t| {
        let m = t.summary("zk-queue", S::HundredWaiters)?;
        let text = format!("{:.2} useless wake-ups per release with 100 clients", m.wasted_per_release());
        let run = shown("zk-queue", S::HundredWaiters, Some(1));
        Some(Finding(holds_if(m.wasted_per_release() < 0.1), text, run))
    }),
    Claim("S2-14", "who waits behind a client that dies in the queue has to look again", |t| {
        let right = t.summary("zk-queue", S::WaiterDies)?;
        let wrong = t.summary("zk-queue-wake-is-grant", S::WaiterDies)?;
        let text = format!("looking again: {}; not: {}", two(right), two(wrong));
        let run = shown("zk-queue-wake-is-grant", S::WaiterDies, wrong.overlap_seed);
        Some(Finding(holds_if(right.windows == 0 && wrong.windows > 0), text, run))
    }),
    Claim("S2-15", "grants come in the order of creation", |t| {
        let m = t.summary("zk-queue", S::HundredWaiters)?;
        let other = t.summary("set-nx-px-script", S::HundredWaiters)?;
        let text = format!(
            "100 clients: {} of {} grants overtake; polling: {} of {}",
            m.overtakes, m.grants, other.overtakes, other.grants
        );
        Some(Finding(holds_if(m.overtakes == 0), text, shown("zk-queue", S::HundredWaiters, Some(1))))
    }),
    Claim("S3-7", "Redisson's losers sleep until the release wakes them: nothing is wasted", |t| {
        let (few, many) = (t.summary("redisson", S::Calm)?, t.summary("redisson", S::HundredWaiters)?);
        let text = format!(
            "no polling, but a message wakes all: {:.0} failed attempts per release with 5 clients, {:.0} with 100",
            few.wasted_per_release(),
            many.wasted_per_release()
        );
        let verdict = if many.wasted_per_release() > 10.0 { Verdict::Partly } else { Verdict::Confirmed };
        Some(Finding(verdict, text, shown("redisson", S::HundredWaiters, Some(1))))
    }),
    Claim("S4-7", "Redis costs polling, ZooKeeper only a watch: less overhead", |t| {
        let of = |design, s| t.summary(design, s).map(Summary::messages_per_release);
        let many = (of("set-nx-px-script", S::HundredWaiters)?, of("zk-queue", S::HundredWaiters)?);
        let few = (of("set-nx-px-script", S::TwoClients)?, of("zk-queue", S::TwoClients)?);
        let text = format!(
            "messages per release, Redis and ZooKeeper: 100 clients {:.0} and {:.0}, two clients {:.1} and {:.1}",
            many.0, many.1, few.0, few.1
        );
        let verdict = match (many.1 < many.0, few.1 < few.0) {
            (true, true) => Verdict::Confirmed,
            (false, false) => Verdict::Refuted,
            _ => Verdict::Partly,
        };
        Some(Finding(verdict, text, shown("zk-queue", S::HundredWaiters, Some(1))))
    }),
    Claim(
        "S4-8",
        "the lock of a dead ZooKeeper client is free at once, that of a Redis client after its time",
        |t| {
            let (text, zk) = after_a_crash(t)?;
            let run = shown("zk-queue", S::HolderCrash, Some(1));
            Some(Finding(holds_if(zk.is_some_and(|r| r.as_secs() < 2)), text, run))
        },
    ),
    Claim("E7", "the lock of a dead ZooKeeper client is free when its session has timed out", |t| {
        let (text, zk) = after_a_crash(t)?;
        let run = shown("zk-queue", S::HolderCrash, Some(1));
        Some(Finding(holds_if(zk.is_some_and(|r| r + Duration::from_secs(2) >= crate::TTL)), text, run))
    }),
    Claim("S4-9", "a lock on ZooKeeper is sturdier and simpler than one on Redis", |t| {
        let bad = |design: &str| {
            let row = t.rows.iter().find(|row| row.about.id == design)?;
            let is_bad = |s: &&Scenario| row.summary(**s).is_some_and(|m| m.windows > 0 || m.stuck > 0);
            Some(t.scenarios.iter().filter(is_bad).count())
        };
        let (right, printed) = (bad("zk-queue")?, bad("zk-queue-as-printed")?);
        let (one, failover) = (bad("redisson")?, bad("redisson-replicas")?);
        let text = format!(
            "scenarios with two holders or a stuck lock: right recipe {right}, the notes' own class {printed}, \
             Redisson {one}, with failover {failover}: sturdier if written right, not simpler"
        );
        let verdict = if right < one && right < printed { Verdict::Partly } else { Verdict::Refuted };
        Some(Finding(verdict, text, None))
    }),
    Claim("K1", "a lock is not enough: a holder that stands still writes late, whatever the lock", |t| {
        let losing = |row: &&Row| row.summary(S::HolderPause).is_some_and(|m| m.lost_plain > 0);
        let rows = || t.rows.iter().filter(|row| !row.about.is_fenced);
        let tried = rows().filter(|row| row.summary(S::HolderPause).is_some()).count();
        let lost = rows().filter(losing).count();
        let run = rows().rfind(losing)?;
        let seed = run.summary(S::HolderPause)?.loss_seed;
        let text = format!("{lost} of {tried} designs lose updates on a store that accepts every write");
        Some(Finding(holds_if(lost + 1 >= tried), text, shown(run.about.id, S::HolderPause, seed)))
    }),
    Claim("K1", "a store that looks at tokens loses nothing", |t| {
        let rows = || t.rows.iter().filter(|row| row.about.has_tokens && !row.about.is_fenced);
        let all = || rows().flat_map(|row| t.scenarios.iter().filter_map(|s| row.summary(*s)));
        let (plain, fenced) = all().fold((0, 0), |(p, f), m| (p + m.lost_plain, f + m.lost_fenced));
        let text = format!(
            "{} designs with tokens: {plain} updates lost without looking, {fenced} with",
            rows().count()
        );
        Some(Finding(holds_if(fenced == 0), text, None))
    }),
    Claim("E1", "the notes' second class ignores the event: waiters sleep their whole timeout", |t| {
        let m = t.summary("zk-queue-as-printed", S::Calm)?;
        let text = format!(
            "half of the grants waited {} or more, with jobs of half a second",
            seconds(Some(m.wait_p50))
        );
        let run = shown("zk-queue-as-printed", S::Calm, Some(1));
        Some(Finding(holds_if(m.wait_p50 >= crate::TTL), text, run))
    }),
    Claim("E2", "a timeout or wake-up taken for a grant makes two holders", |t| {
        two_holders(t, "zk-queue-as-printed", S::Calm)
    }),
    Claim("E3", "a watch set before the latch is made loses the wake-up", |t| {
        stuck(t, "zk-queue-watch-before-latch", S::TwoClients)
    }),
    Claim("E4", "one parent and a glued number: products 1 and 10 queue behind each other", |_| {
        Some(names_under_one_parent())
    }),
    Claim("E5", "an unconditional delete lets any client unlock", |_| Some(delete_by_another())),
    Claim("E6", "an error taken for \"busy\" leaves a znode in the queue that no client ever deletes", |t| {
        stuck(t, "zk-queue-watch-before-latch", S::CutBetween)
    }),
    Claim("E8", "min-replicas is a gate, not a wait: the grant is lost with the primary", |t| {
        two_holders(t, "redisson-min-replicas", S::PrimaryLost)
    }),
    Claim("E8", "WAIT does wait: what it answered survives this failover", |t| {
        let m = t.summary("redisson-wait", S::PrimaryLost)?;
        Some(Finding(holds_if(m.windows == 0), two(m), shown("redisson-wait", S::PrimaryLost, Some(1))))
    }),
    Claim("E8", "WAIT does not make Redis consistent: a partition still has two primaries", |t| {
        two_holders(t, "redisson-wait", S::Partition)
    }),
    Claim(
        "E8",
        "WAIT for all replicas gives nothing away twice at failover, and nothing at all while one is gone",
        |t| {
            let of = |s| t.summary("redisson-wait-all", s);
            let (lost, parted) = (of(S::PrimaryLost)?, of(S::Partition)?);
            let text = format!(
                "{} times two holders in two scenarios; lock unavailable for up to {}",
                lost.windows + parted.windows,
                seconds(Some(lost.unavailable.max(parted.unavailable)))
            );
            let is_so = lost.windows + parted.windows == 0 && lost.unavailable.as_secs() > 10;
            Some(Finding(holds_if(is_so), text, shown("redisson-wait-all", S::PrimaryLost, Some(1))))
        },
    ),
    Claim(
        "E9 (against S0-12)",
        "the old watchdog is refused and stops, and the application gets no notice",
        |t| {
            let m = t.summary("redisson", S::ClockJump)?;
            let text = format!("{} renewals refused, {} holders told", m.renewals_refused, m.told);
            let run = shown("redisson", S::ClockJump, m.overlap_seed.or(Some(1)));
            Some(Finding(holds_if(m.renewals_refused > 0 && m.told == 0), text, run))
        },
    ),
    Claim("E10, S3-13", "Redisson's release reports success though the lock was lost", |t| {
        let ids =
            ["redisson", "redisson-replicas", "redisson-min-replicas", "redisson-wait", "redisson-wait-all"];
        let all = ids.iter().flat_map(|id| t.scenarios.iter().map(move |s| (*id, *s)));
        let with = all.filter_map(|(id, s)| Some((t.summary(id, s)?.false_releases, id, s)));
        let (most, id, s) = with.max_by_key(|(n, ..)| *n)?;
        let text = format!("{most} such releases in scenario {}", s.id());
        Some(Finding(holds_if(most > 0), text, shown(id, s, t.summary(id, s)?.false_release_seed)))
    }),
    Claim(
        "N1",
        "found here: a release that a failover loses makes the former holder's next lock a second level, and all others starve",
        |t| {
            let m = t.summary("redisson-replicas", S::PrimaryLost)?;
            let text = format!(
                "{} clients starved in {} runs, while one was granted the lock again and again",
                m.starved, m.runs
            );
            Some(Finding(
                holds_if(m.starved > 0),
                text,
                shown("redisson-replicas", S::PrimaryLost, m.starved_seed),
            ))
        },
    ),
    Claim("mutual-exclusion", "Rowlock: no two holders at once", |t| {
        let (windows, scenarios) = over_all(t, "rowlock", |m| m.windows)?;
        let text = format!("{windows} times two holders in {scenarios} scenarios");
        Some(Finding(holds_if(windows == 0), text, None))
    }),
    Claim("fencing-monotonic", "Rowlock: nothing is lost on a store that looks at its tokens", |t| {
        let (lost, scenarios) = over_all(t, "rowlock-fenced", |m| m.lost_fenced)?;
        let (refused, _) = over_all(t, "rowlock-fenced", |m| m.refused)?;
        let text =
            format!("{lost} updates lost in {scenarios} scenarios, {refused} late reads and writes refused");
        Some(Finding(holds_if(lost == 0), text, shown("rowlock-fenced", S::HolderPause, Some(1))))
    }),
    Claim("fifo", "Rowlock: grants come in the order of the queue", |t| {
        let m = t.summary("rowlock", S::HundredWaiters)?;
        let text = format!("100 clients: {} of {} grants overtake", m.overtakes, m.grants);
        Some(Finding(holds_if(m.overtakes == 0), text, shown("rowlock", S::HundredWaiters, Some(1))))
    }),
    Claim("one-wake", "Rowlock: a release costs the same however many wait", |t| {
        let (few, many) = (t.summary("rowlock", S::Calm)?, t.summary("rowlock", S::HundredWaiters)?);
        let (few, many) = (few.messages_per_release(), many.messages_per_release());
        let text = format!("{few:.1} messages per release with 5 clients, {many:.1} with 100");
        Some(Finding(holds_if(many < few + 1.0), text, shown("rowlock", S::HundredWaiters, Some(1))))
    }),
    Claim("no-lost-wakeup", "Rowlock: no lock is stuck, no client starves", |t| {
        let (bad, scenarios) = over_all(t, "rowlock", |m| m.stuck + m.starved)?;
        let text = format!("{bad} times in {scenarios} scenarios");
        Some(Finding(holds_if(bad == 0), text, None))
    }),
];
