//! Rules of locks: which identities have which rights, by the path of the lock.
//!
//! The rules are the text of one znode ([`RULES_PATH`]), so log, snapshots, backups and versions carry them.
//! The machine reads the text when a superuser writes it, refuses a malformed one, and decides by it on every
//! replica alike; nodes decide by the same function for local reads. ACLs of znodes stay beneath: a rule can
//! refuse what an ACL permits, and permits nothing that an ACL refuses.
//!
//! ```text
//! # rights      locks          who
//! take,see      /locks/ci/*    x509:CN=ci,O=Acme
//! all           /locks/ci/*    token:ci-admin
//! none          /locks/*       anyone
//! ```
//!
//! `/locks/a` is the lock of this path with its queue, `/locks/ci/*` every lock below. The longest pattern
//! decides alone; an exact path is longer than any pattern that ends in `/*`. Superusers have every right.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::str::FromStr;

use rowlock_proto::acl::Id;
use rowlock_proto::name::{LOCK_BASE, reads_as_queue_znode};
use rowlock_proto::{Right, path as paths};

use crate::guard::decides;
use crate::{acl, mutant};

/// Path of the rules' znode. Absent: no rules.
pub const RULES_PATH: &str = "/zookeeper/access";
/// Longest text of rules, in bytes.
pub const RULES_MAX_BYTES: usize = 64 << 10;
/// Most rules in a text.
pub const RULES_MAX: usize = 1_024;
/// Limit of identities named by the rules of one pattern; bounds the cost of a decision.
pub const IDENTITIES_OF_PATTERN_MAX: usize = 64;

const COMMENT: char = '#';
const ANYONE: &str = "anyone";

/// A set of rights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights(u8);

/// One line of the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessRule {
    /// Locks named by the rule.
    pub pattern: Pattern,
    pub rights: Rights,
    /// The clients that have these rights.
    pub who: Id,
}

/// The rules of all locks. Invariant: within the bounds of this module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    by_pattern: BTreeMap<Pattern, Vec<(Id, Rights)>>,
    /// Levels of the deepest pattern.
    levels: usize,
}

/// The rights of a client on a lock, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub rights: Rights,
    /// The pattern that decided; `None`: no rule names the lock.
    pub pattern: Option<Pattern>,
}

impl Rights {
    pub const NONE: Rights = Rights(0);
    pub const ALL: Rights = Rights(0b1111);

    pub fn of(rights: impl IntoIterator<Item = Right>) -> Rights {
        rights.into_iter().fold(Rights::NONE, |all, right| Rights(all.0 | 1 << right as u8))
    }

    pub fn has(self, right: Right) -> bool {
        self.0 & 1 << right as u8 != 0
    }

    pub fn iter(self) -> impl Iterator<Item = Right> {
        Right::ALL.into_iter().filter(move |right| self.has(*right))
    }

    fn and(self, other: Rights) -> Rights {
        Rights(self.0 | other.0)
    }

    fn without(self, right: Right) -> Rights {
        Rights(self.0 & !(1 << right as u8))
    }
}

impl FromStr for Rights {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Rights::ALL),
            "none" => Ok(Rights::NONE),
            list => list.split(',').map(str::parse::<Right>).collect::<Result<Vec<_>, _>>().map(Rights::of),
        }
    }
}

impl std::fmt::Display for Rights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Rights::ALL => f.write_str("all"),
            Rights::NONE => f.write_str("none"),
            some => f.write_str(&some.iter().map(Right::as_str).collect::<Vec<_>>().join(",")),
        }
    }
}

/// Parses an identity as written in rules: `anyone`, or a scheme and a name.
///
///
/// # Errors
/// Description of the mistake.
pub fn parse_identity(text: &str) -> Result<Id, String> {
    if text == ANYONE {
        return Ok(Id::anyone());
    }
    let wrong = || {
        format!(
            "{text:?} is no identity: use anyone, x509:SUBJECT, token:NAME, sasl:USER, digest:USER:HASH, or ip:NETWORK"
        )
    };
    let (scheme, id) = text.split_once(':').ok_or_else(wrong)?;
    let id = Id { scheme: scheme.to_owned(), id: id.to_owned() };
    let fits = match scheme {
        "token" => !id.id.is_empty() && !id.id.contains(char::is_whitespace),
        _ => acl::is_well_formed(&id),
    };
    if fits && !id.id.is_empty() { Ok(id) } else { Err(wrong()) }
}

/// Formats an identity for [`parse_identity`].
pub fn identity_text(id: &Id) -> String {
    if id.scheme == "world" { id.id.clone() } else { format!("{}:{}", id.scheme, id.id) }
}

impl Rules {
    /// Reads the text of rules.
    ///
    /// # Errors
    /// The number of the first wrong line, and its mistake.
    pub fn parse(text: &str) -> Result<Rules, String> {
        if text.len() > RULES_MAX_BYTES {
            return Err(format!("the rules have {} bytes; use at most {RULES_MAX_BYTES}", text.len()));
        }
        let mut rules = Rules::default();
        let lines = (1..).zip(text.lines().map(str::trim));
        let mut count = 0;
        for (number, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with(COMMENT)) {
            count += 1;
            if count > RULES_MAX {
                return Err(format!("line {number}: more than {RULES_MAX} rules"));
            }
            let rule = line.parse::<AccessRule>().map_err(|why| format!("line {number}: {why}"))?;
            rules.add(rule).map_err(|why| format!("line {number}: {why}"))?;
        }
        assert!(rules.by_pattern.len() <= RULES_MAX, "there are more patterns than rules");
        debug_assert_eq!(rules.iter().count(), count, "a rule is lost");
        debug_assert_eq!(rules.is_empty(), count == 0, "rules are counted and not there");
        Ok(rules)
    }

    fn add(&mut self, rule: AccessRule) -> Result<(), String> {
        let AccessRule { pattern, rights, who } = rule;
        self.levels = self.levels.max(pattern.levels());
        let known = self.by_pattern.entry(pattern).or_default();
        if known.iter().any(|(id, _)| *id == who) {
            return Err(format!("{} has another rule for these locks", identity_text(&who)));
        }
        if known.len() >= IDENTITIES_OF_PATTERN_MAX {
            return Err(format!("more than {IDENTITIES_OF_PATTERN_MAX} identities for the same locks"));
        }
        known.push((who, rights));
        assert!(known.len() <= IDENTITIES_OF_PATTERN_MAX, "a pattern has too many identities");
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.by_pattern.is_empty()
    }

    /// Iterates over all rules, by pattern.
    pub fn iter(&self) -> impl Iterator<Item = AccessRule> {
        self.by_pattern.iter().flat_map(|(pattern, all)| {
            all.iter().map(|(who, rights)| AccessRule {
                pattern: pattern.clone(),
                rights: *rights,
                who: who.clone(),
            })
        })
    }

    /// Decides the rights of a client with these identities on the lock at `path`. With `is_guarded`, only
    /// superusers have [`Right::Force`] on locks that no rule names.
    pub fn decide(&self, path: &str, who: &[Id], is_guarded: bool) -> Decision {
        let found = self.find(path);
        let rights = match found {
            _ if acl::is_super(who) => Rights::ALL,
            Some((_, all)) => granted(all, who),
            None if is_guarded => Rights::ALL.without(Right::Force),
            None => Rights::ALL,
        };
        debug_assert!(!acl::is_super(who) || rights == Rights::ALL, "a superuser lacks a right");
        debug_assert!(
            is_guarded || Right::ALL.into_iter().all(|it| rights.has(it) == self.allow(path, it, who)),
            "two answers about the same right differ"
        );
        Decision { rights, pattern: found.map(|(pattern, _)| pattern.clone()) }
    }

    /// Returns whether a client has the right on the lock at `path`.
    pub fn allow(&self, path: &str, right: Right, who: &[Id]) -> bool {
        if self.is_empty() {
            return true;
        }
        let Some((_, all)) = self.find(path) else { return true };
        decides!("rules-allow", acl::is_super(who) || granted(all, who).has(right))
    }

    /// Returns whether a client may read a znode, as far as the rules say.
    pub fn may_see(&self, znode: &str, who: &[Id]) -> bool {
        let is_public = decides!("rules-are-readable", znode != RULES_PATH || acl::is_super(who));
        is_public && self.allow(lock_of(znode), Right::See, who)
    }

    /// Returns the longest pattern that names the lock, with its rules.
    pub(crate) fn find(&self, path: &str) -> Option<(&Pattern, &Vec<(Id, Rights)>)> {
        if self.is_empty() {
            return None;
        }
        crate::steps::take(1);
        if mutant::is("prefix-without-boundary") {
            return self
                .by_pattern
                .iter()
                .rev()
                .find(|(pattern, _)| path.starts_with(pattern.without_boundary()));
        }
        longest_first(path, self.levels).find_map(|pattern| {
            crate::steps::take(1);
            self.by_pattern.get_key_value(pattern)
        })
    }

    /// Returns whether a pattern names locks at or below this path.
    pub(crate) fn reach_below(&self, path: &str) -> bool {
        let folder = paths::join(path, "");
        let below =
            self.by_pattern.range::<str, _>((Bound::Included(folder.as_str()), Bound::Unbounded)).next();
        let has_below = below.is_some_and(|(pattern, _)| pattern.as_str().starts_with(&folder));
        has_below || self.by_pattern.contains_key(path)
    }

    /// Steps that a decision takes at most, for a client with this number of identities.
    pub(crate) fn steps(&self, levels: u64, identities: u64) -> u64 {
        if self.is_empty() {
            return 0;
        }
        let most = self.by_pattern.values().map(Vec::len).max().unwrap_or(0) as u64;
        2 + levels.min(self.levels as u64) + most * identities
    }
}

/// Returns the rights that these rules grant to any of `who`.
fn granted(all: &[(Id, Rights)], who: &[Id]) -> Rights {
    crate::steps::take(all.len() * who.len());
    let matching = all.iter().filter(|(id, _)| acl::is_one_of(id, who));
    let rights = matching.fold(Rights::NONE, |sum, (_, rights)| sum.and(*rights));
    debug_assert!(rights.0 <= Rights::ALL.0, "there are no more rights than four");
    rights
}

/// Returns the lock that a znode belongs to: the parent for a queue position, else the znode itself. Decides
/// by the name alone, as every client does: names of locks do not end like names of positions
/// ([`rowlock_proto::name`]).
pub fn lock_of(znode: &str) -> &str {
    match znode.rsplit_once('/') {
        Some((parent, name)) if !parent.is_empty() && reads_as_queue_znode(name) => parent,
        _ => znode,
    }
}

/// Returns whether a lock is at or below the folder of locks.
pub fn is_below_base(path: &str) -> bool {
    path.strip_prefix(LOCK_BASE).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl FromStr for AccessRule {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let mut rest = line.trim();
        let mut word = || {
            let (word, after) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
            rest = after.trim_start();
            word
        };
        let (rights, pattern) = (word(), word());
        if pattern.is_empty() || rest.is_empty() {
            return Err("it needs three words: rights, locks, identity".to_owned());
        }
        Ok(AccessRule { rights: rights.parse()?, pattern: pattern.parse()?, who: parse_identity(rest)? })
    }
}

impl std::fmt::Display for AccessRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.rights, self.pattern, identity_text(&self.who))
    }
}

/// A pattern of paths: `/locks/a` names this path, `/locks/ci/*` everything below, `/*` everything. Rules and
/// the roles of tokens use the same patterns. Stored without the star, so that a pattern of a folder ends in
/// a slash.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pattern(String);

impl Pattern {
    /// Makes the pattern of this path alone.
    pub fn exactly(path: &str) -> Pattern {
        Pattern(path.to_owned())
    }

    fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the text that the [`mutant`] `prefix-without-boundary` compares.
    fn without_boundary(&self) -> &str {
        self.0.trim_end_matches('/')
    }

    fn is_folder(&self) -> bool {
        self.0.ends_with('/')
    }

    /// Returns whether this pattern names every path that `other` names.
    pub fn covers(&self, other: &Pattern) -> bool {
        self == other || self.is_folder() && other.0.starts_with(&self.0)
    }

    /// Returns whether this pattern names every path that begins with `prefix`.
    pub fn names_all_from(&self, prefix: &str) -> bool {
        self.is_folder() && prefix.starts_with(&self.0)
    }

    fn levels(&self) -> usize {
        paths::levels(&self.0)
    }
}

/// Iterates over the patterns of at most this many levels that name `path`, the longest first.
fn longest_first(path: &str, levels: usize) -> impl Iterator<Item = &str> {
    let slashes = path.match_indices('/').map(|(at, _)| at).take(levels.saturating_add(1));
    let folders = slashes.map(move |at| &path[..=at]).filter(move |folder| folder.len() < path.len());
    // A path has at most `paths::MAX_LEVELS` folders.
    let folders: smallvec::SmallVec<[&str; 16]> = folders.collect();
    debug_assert!(folders.is_sorted_by_key(|folder| folder.len()), "folders go down the path");
    let itself = std::iter::once(path).filter(|path| !path.ends_with('/'));
    itself.chain(folders.into_iter().rev())
}

impl Borrow<str> for Pattern {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.0, if self.is_folder() { "*" } else { "" })
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no path of locks: use /PATH, or /PATH/* for every lock below");
        let folder = text.strip_suffix("/*").unwrap_or(text);
        let fits = text.chars().all(|c| !c.is_whitespace() && !c.is_control() && c != ',');
        let is_path = text == "/*" || folder != "/" && paths::validate(folder).is_ok();
        let is_star_free = !folder.contains('*');
        match fits && is_path && is_star_free {
            true => {
                debug_assert!(text.starts_with('/'), "a pattern begins with a slash");
                Ok(Pattern(text.strip_suffix('*').unwrap_or(text).to_owned()))
            }
            false => Err(wrong()),
        }
    }
}
