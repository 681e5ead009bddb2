//! The rules of locks against a naive reading of their text, the operations of clients under random rules
//! that change, and the bounds of a text.

#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of the test")]

use proptest::prelude::*;
use rowlock_proto::acl::{Acl, Id};
use rowlock_proto::lock::{Acquire, Ask, Claim, QueuePosition};
use rowlock_proto::request::{Create, Request, SetAcl, SetData};
use rowlock_proto::response::Response;
use rowlock_proto::{CreateMode, ErrorCode, Right, SessionId, Version};
use rowlock_state::command::{Attachment, Command, Origin, Proposal, Stamp};
use rowlock_state::outcome::Applied;
use rowlock_state::rules::{
    IDENTITIES_OF_PATTERN_MAX, RULES_MAX, RULES_MAX_BYTES, RULES_PATH, Rights, Rules,
};
use rowlock_state::{Machine, Proof};

const PATHS: [&str; 9] = ["/a", "/a/b", "/a/b/c", "/a-b", "/ab", "/a/bc", "/b", "/a/b/c/d", "/"];
const WHO: [&str; 4] = ["anyone", "sasl:u", "sasl:v", "token:t"];
const RIGHTS: [&str; 5] = ["take", "ask,see", "force", "all", "none"];

fn id(text: &str) -> Id {
    let (scheme, id) = text.split_once(':').unwrap();
    Id { scheme: scheme.to_owned(), id: id.to_owned() }
}

/// Rules as the tests draw them: pattern, and places in `RIGHTS` and `WHO`.
type Drawn = Vec<(String, usize, usize)>;

/// Sorts the rules and leaves one for each pattern and identity. Returns them with their text.
fn text_of(mut rules: Drawn) -> (Drawn, String) {
    rules.sort_unstable_by(|a, b| (&a.0, a.2).cmp(&(&b.0, b.2)));
    rules.dedup_by(|a, b| (&a.0, a.2) == (&b.0, b.2));
    let line =
        |(at, rights, who): &(String, usize, usize)| format!("{} {at} {}\n", RIGHTS[*rights], WHO[*who]);
    let text = rules.iter().map(line).collect();
    (rules, text)
}

/// The length of a pattern that names this path; an exact one is the longest.
fn length(pattern: &str, path: &str) -> Option<usize> {
    match pattern.strip_suffix('*') {
        Some(folder) => path.strip_prefix(folder).filter(|rest| !rest.is_empty()).map(|_| folder.len()),
        None => (pattern == path).then_some(usize::MAX),
    }
}

/// All rights by a linear search: the longest matching pattern, an exact one before one with a star.
fn naive(rules: &[(String, usize, usize)], path: &str, who: &[&str], is_guarded: bool) -> Vec<Right> {
    let Some(longest) = rules.iter().filter_map(|(pattern, ..)| length(pattern, path)).max() else {
        return Right::ALL.into_iter().filter(|right| !(is_guarded && *right == Right::Force)).collect();
    };
    let deciding = rules.iter().filter(|(pattern, ..)| length(pattern, path) == Some(longest));
    let mine = deciding.filter(|(_, _, at)| WHO[*at] == "anyone" || who.contains(&WHO[*at]));
    let words: Vec<&str> = mine.flat_map(|(_, rights, _)| RIGHTS[*rights].split(',')).collect();
    Right::ALL
        .into_iter()
        .filter(|right| words.iter().any(|word| *word == "all" || *word == right.as_str()))
        .collect()
}

proptest! {
    #[test]
    fn rules_decide_as_a_linear_search_by_the_longest_pattern_does(
        drawn in prop::collection::btree_map(
            (0..2 * PATHS.len(), 0..WHO.len()),
            0..RIGHTS.len(),
            0..12,
        ),
        who in prop::sample::subsequence(WHO[1..].to_vec(), 0..3),
        is_guarded in any::<bool>(),
    ) {
        let pattern = |at: usize| match PATHS[at % PATHS.len()] {
            "/" => "/*".to_owned(),
            path if at < PATHS.len() => path.to_owned(),
            path => format!("{path}/*"),
        };
        let (rules, text) =
            text_of(drawn.into_iter().map(|((at, who), rights)| (pattern(at), rights, who)).collect());
        let read = Rules::parse(&text).unwrap();
        let identities: Vec<Id> = who.iter().map(|text| id(text)).collect();
        for path in PATHS.into_iter().filter(|path| *path != "/") {
            let decision = read.decide(path, &identities, is_guarded);
            let expected = naive(&rules, path, &who, is_guarded);
            prop_assert_eq!(decision.rights, Rights::of(expected.iter().copied()), "{} {}", path, text);
            for right in Right::ALL {
                prop_assert!(is_guarded || read.allow(path, right, &identities) == expected.contains(&right));
            }
            prop_assert_eq!(read.decide(path, &[id("super:")], is_guarded).rights, Rights::ALL);
        }
        let again: String = read.iter().map(|rule| format!("{rule}\n")).collect();
        prop_assert_eq!(Rules::parse(&again).unwrap(), read);
    }
}

/// Locks that exist, each with a holder whom no rule concerns.
const LOCKS: [&str; 5] = ["/locks/a", "/locks/a/b", "/locks/ab", "/locks/c", "/free"];
const PATTERNS: [&str; 8] =
    ["/locks/a", "/locks/a/*", "/locks/ab", "/locks/*", "/locks", "/free", "/*", "/locks/a/b"];

/// A superuser, the holders' session, and one of `sasl:u`, whose rights are drawn.
struct World {
    machine: Machine,
    stamp: Stamp,
    rules: Drawn,
    holder: SessionId,
    holds: Vec<Claim>,
    user: SessionId,
}

impl World {
    fn new(is_guarded: bool) -> World {
        let stamp = Stamp { guard_locks: is_guarded, ..Stamp::default() };
        let none = SessionId::NONE;
        let machine = Machine::new();
        let mut world = World { machine, stamp, rules: vec![], holder: none, holds: vec![], user: none };
        let open = || Command::OpenSession { proof: Proof::of(&[7; 16]), timeout_ms: 4_000 };
        for session in [0, 1] {
            let Some(opened) = world.apply(none, &[], open()).attached else { panic!() };
            *[&mut world.holder, &mut world.user][session] = opened.session;
        }
        for lock in LOCKS {
            let acquire = Request::Acquire([Acquire::exclusive(lock, "h-")].into());
            let gave = world.run(world.holder, &[id("super:")], acquire).unwrap();
            let Response::QueuePositions(places) = gave else { panic!("{gave:?}") };
            let QueuePosition::Held(claim) = &places[0] else { panic!("{places:?}") };
            world.holds.push(claim.clone());
        }
        world
    }

    fn run(&mut self, session: SessionId, who: &[Id], request: Request) -> Result<Response, ErrorCode> {
        self.apply(session, who, Command::Client(request)).result
    }

    fn apply(&mut self, session: SessionId, who: &[Id], command: Command) -> Applied {
        self.stamp.time_ms += 1;
        let (origin, attachment) = (Origin::default(), Attachment(1));
        let proposal = Proposal { origin, session, attachment, identities: who.into(), command };
        let applied = self.machine.apply_stamped(self.stamp, &proposal, &mut ());
        self.machine.check().unwrap();
        applied
    }

    /// Replaces all rules, as an operator does while clients are at work.
    fn rule(&mut self, rules: Drawn) {
        let (rules, text) = text_of(rules);
        let (path, data) = (RULES_PATH.to_owned(), Some(text.into()));
        let request = match self.machine.stat(RULES_PATH) {
            None => {
                let create = Create { path, data, acl: Some(Acl::shared_open()), flags: 0 };
                Request::Create2(create)
            }
            Some(_) => Request::SetData(SetData { path, data, version: Version::ANY }),
        };
        self.run(self.holder, &[id("super:")], request).unwrap();
        self.rules = rules;
    }

    fn may(&self, lock: &str, right: Right) -> bool {
        naive(&self.rules, lock, &["sasl:u"], self.stamp.guard_locks).contains(&right)
    }

    fn is_governed(&self, lock: &str) -> bool {
        self.rules.iter().any(|(pattern, ..)| length(pattern, lock).is_some())
            || self.stamp.guard_locks && lock.starts_with("/locks/")
    }

    /// Rules decide about locks below this one and not about itself: only superusers change its ACL.
    fn is_above_rules(&self, lock: &str) -> bool {
        let below = format!("{lock}/");
        !self.is_governed(lock) && self.rules.iter().any(|(pattern, ..)| pattern.starts_with(&below))
    }

    /// The request of kind `kind` at a lock, and the right that it takes, if any. Acquires have prefixes of
    /// their own, since one that comes again is answered with the place that it has.
    fn request(&self, kind: usize, at: usize) -> (Request, Option<Right>) {
        let (lock, claim) = (LOCKS[at].to_owned(), self.holds[at].clone());
        let place = claim.path.to_string();
        let forced = self.is_governed(&lock).then_some(Right::Force);
        let of_place = forced.filter(|_| self.machine.stat(&place).is_some());
        let prefix = format!("u{}-", self.stamp.time_ms);
        let create = |path: String, mode: CreateMode| {
            let create = Create { path, data: None, acl: Some(Acl::shared_open()), flags: mode.flags() };
            Request::Create2(create)
        };
        let ask = |within_ms| {
            Request::Ask(Ask { lock: lock.clone(), reason: "r".to_owned(), by: String::new(), within_ms })
        };
        match kind {
            0 => (Request::Acquire([Acquire::exclusive(&*lock, &*prefix)].into()), Some(Right::Take)),
            1 => {
                let wait = false;
                let acquire = Acquire { wait, ..Acquire::exclusive(&*lock, &*prefix) };
                (Request::Acquire([acquire].into()), Some(Right::Take))
            }
            2 => (create(format!("{lock}/n-"), CreateMode::EphemeralSequential), Some(Right::Take)),
            3 => (ask(0), Some(Right::Ask)),
            4 => (ask(60_000), Some(Right::Force)),
            5 => (Request::ForceRelease(claim), Some(Right::Force)),
            6 => (Request::Delete { path: place, version: Version::ANY }, of_place),
            7 => (Request::SetData(SetData { path: place, data: None, version: Version::ANY }), of_place),
            8 => {
                let acl = Some(Acl::shared_open());
                let above = self.is_above_rules(&lock).then_some(Right::Force);
                (Request::SetAcl(SetAcl { path: lock, acl, version: Version::ANY }), forced.or(above))
            }
            _ => (Request::Release([claim].into()), None),
        }
    }
}

proptest! {
    /// **may-do**, **may-see**: what the rules in force forbid is refused by the name of the right and
    /// changes nothing; what they permit is not refused for a right.
    #[test]
    fn rules_refuse_exactly_operations_without_the_right(
        is_guarded in any::<bool>(),
        steps in prop::collection::vec(
            (
                prop::option::weighted(
                    0.3,
                    prop::collection::vec((0..PATTERNS.len(), 0..RIGHTS.len(), 0..2_usize), 0..6),
                ),
                0..10_usize,
                0..LOCKS.len(),
            ),
            1..24,
        ),
    ) {
        let mut world = World::new(is_guarded);
        let who = [id("sasl:u")];
        for (rules, kind, at) in steps {
            if let Some(rules) = rules {
                let named = |(at, rights, who): (usize, usize, usize)| (PATTERNS[at].to_owned(), rights, who);
                world.rule(rules.into_iter().map(named).collect());
            }
            let lock = LOCKS[at];
            let (request, right) = world.request(kind, at);
            let is_acl = matches!(request, Request::SetAcl(_));
            let lacks = |right| !world.may(lock, right) || is_acl && world.is_above_rules(lock);
            let missing = right.filter(|right| lacks(*right));
            let visible = |world: &World| {
                let [lock, place] = [lock, &*world.holds[at].path].map(|path| world.machine.stat(path));
                (world.machine.counts(), lock, place)
            };
            let before = visible(&world);
            let result = world.run(world.user, &who, request.clone());
            match (missing, result) {
                (Some(right), result) => {
                    prop_assert_eq!(result, Err(ErrorCode::NoRight(right)), "{:?}", request);
                    prop_assert_eq!(visible(&world), before, "a refused {:?} changed the state", request);
                }
                (None, Err(ErrorCode::NoRight(right))) => {
                    prop_assert!(false, "{request:?} needs no {right} by {:?}", world.rules);
                }
                (None, _) => {}
            }
            // The names of locks are those of their parent's children.
            let parent = world.machine.get_children("/locks", &who).map(|_| ());
            let seen = [
                (lock, world.machine.get_data(lock, &who).map(|_| ())),
                (lock, world.machine.get_children(lock, &who).map(|_| ())),
                (lock, world.machine.exists(&world.holds[at].path, &who).map(|_| ())),
                ("/locks", parent),
            ];
            for (path, answer) in seen {
                let is_hidden = matches!(answer, Err(ErrorCode::NoRight(Right::See)));
                prop_assert_eq!(is_hidden, !world.may(path, Right::See), "{} by {:?}", path, &world.rules);
            }
        }
    }
}

#[test]
fn malformed_rules_are_refused_with_the_line_number() {
    let many = |count: usize, line: fn(usize) -> String| (0..count).map(line).collect::<String>();
    let of_locks = |n: usize| format!("see /locks/{n} anyone\n");
    assert!(Rules::parse(&many(RULES_MAX, of_locks)).is_ok());
    let of_users = |n: usize| format!("see /locks/a sasl:u{n}\n");
    assert!(Rules::parse(&many(IDENTITIES_OF_PATTERN_MAX, of_users)).is_ok());
    for (text, why) in [
        (many(RULES_MAX + 1, of_locks), "line 1025: more than 1024 rules"),
        (many(IDENTITIES_OF_PATTERN_MAX + 1, of_users), "line 65: more than 64 identities"),
        ("#".repeat(RULES_MAX_BYTES + 1), "the rules have 65537 bytes"),
        ("\n# x\nsee /a".to_owned(), "line 3: it needs three words"),
        ("write /a anyone".to_owned(), "line 1: \"write\" is not a right"),
        ("see a anyone".to_owned(), "line 1: \"a\" is no path of locks"),
        ("see /a/*/b anyone".to_owned(), "line 1: \"/a/*/b\" is no path of locks"),
        ("see /a bob".to_owned(), "line 1: \"bob\" is no identity"),
        ("see /a super:".to_owned(), "line 1: \"super:\" is no identity"),
        ("see /a digest:bob".to_owned(), "line 1: \"digest:bob\" is no identity"),
        ("see /a anyone\ntake /a anyone".to_owned(), "line 2: anyone has another rule"),
    ] {
        let said = Rules::parse(&text).unwrap_err();
        assert!(said.starts_with(why), "{said}");
    }
    assert!(Rules::parse("see /a x509:CN=a b,O=Acme Inc.").is_ok(), "a subject has blanks");
}
