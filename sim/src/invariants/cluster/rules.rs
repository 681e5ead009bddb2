//! Rules of locks as docs/access-control.md defines them, and ACLs of znodes, read naively: each question is
//! compared with each line. Shares no code with `core/state/src/rules.rs` and `acl.rs`.

use std::collections::BTreeMap;

use rowlock_proto::{Acl, Id, Right, SessionId, Zxid, perms};

use crate::history::Fact;
use crate::history::access::{Access, Need, RULES, is_closed};
use crate::history::client::{ClientFact, ClientId};

/// A client, and its session or [`SessionId::NONE`].
pub(super) type Reader = (ClientId, SessionId);

/// ACLs of a znode with the zxids of their changes; `None`: there is no znode.
type Acls = Vec<(Zxid, Option<Vec<Acl>>)>;

/// All rules that have been in force, and the identities of clients.
#[derive(Default)]
pub(super) struct Rules {
    /// Each version with the zxid of its change. Before the first change there are no rules.
    versions: Vec<(Zxid, Vec<Line>)>,
    /// ACLs by the paths of their znodes.
    acls: BTreeMap<String, Acls>,
    who: BTreeMap<Reader, Vec<String>>,
    /// Whether clients prove who they are, as those with tokens do.
    is_closed: bool,
}

#[derive(Debug)]
struct Line {
    rights: String,
    locks: String,
    who: String,
}

fn lines(text: &str) -> Vec<Line> {
    let read = |line: &str| {
        let mut words = line.splitn(3, ' ').map(str::to_owned);
        let [rights, locks, who] = [words.next()?, words.next()?, words.next()?];
        Some(Line { rights, locks, who })
    };
    text.lines().filter(|line| !line.starts_with('#')).filter_map(read).collect()
}

impl Line {
    /// Returns the length of the pattern if it names the lock. An exact path counts as longest.
    fn names(&self, lock: &str) -> Option<usize> {
        match self.locks.strip_suffix('*') {
            Some(folder) => (lock.starts_with(folder) && lock != folder).then_some(folder.len()),
            None => (lock == self.locks).then_some(usize::MAX),
        }
    }

    fn grants(&self, right: Right) -> bool {
        self.rights == "all" || self.rights.split(',').any(|one| one == right.as_str())
    }
}

/// Returns the possible decisions. Without rules, a closed cluster permits some requests with this right and
/// refuses others.
fn allow(lines: &[Line], (lock, right): (&str, Right), who: &[String], is_closed: bool) -> &'static [bool] {
    if who.iter().any(|one| one == "super") {
        return &[true];
    }
    if lock == RULES {
        return &[false];
    }
    let Some(longest) = lines.iter().filter_map(|line| line.names(lock)).max() else {
        return if is_closed && right == Right::Force { &[true, false] } else { &[true] };
    };
    let decide = lines.iter().filter(|line| line.names(lock) == Some(longest));
    let is_meant = |line: &&Line| line.who == "anyone" || who.contains(&line.who);
    if decide.filter(is_meant).any(|line| line.grants(right)) { &[true] } else { &[false] }
}

/// Returns the lock that a znode belongs to. The name of a place in a queue ends in ten digits.
pub(super) fn lock_of(path: &str) -> &str {
    let is_place = path.len() > 10 && path.bytes().rev().take(10).all(|letter| letter.is_ascii_digit());
    path.rsplit_once('/').filter(|_| is_place).map_or(path, |(lock, _)| lock)
}

impl Rules {
    /// Records changes of the rules, and identities that clients prove.
    pub(super) fn observe(&mut self, fact: &Fact) {
        match fact {
            Fact::Rules { zxid, text } => self.versions.push((*zxid, lines(text))),
            Fact::Acl { zxid, path, acl } => {
                self.acls.entry(path.clone()).or_default().push((*zxid, acl.clone()));
            }
            Fact::NewLife(new) => {
                // Histories show entries of the former cluster, which the ACLs of that time may have shown.
                self.acls.values_mut().for_each(|acls| acls.push((new.floor, None)));
                new.begins_with.iter().for_each(|fact| self.observe(fact));
            }
            Fact::Client { client, what: ClientFact::Access(Access::Proves { session, who }), .. } => {
                self.is_closed |= who.iter().any(|one| one.starts_with("token:"));
                self.who.insert((*client, *session), who.clone());
            }
            _ => {}
        }
    }

    /// Returns the readers that `is_meant` accepts by their identities.
    pub(super) fn readers(&self, is_meant: impl Fn(Reader, &[String]) -> bool) -> Vec<Reader> {
        self.who.iter().filter(|(reader, who)| is_meant(**reader, who)).map(|(reader, _)| *reader).collect()
    }

    /// Returns the possible decisions by a znode's ACLs in force between the two zxids.
    fn permit(
        &self,
        path: &str,
        any_of: i32,
        who: &[String],
        (since, zxid): (Zxid, Zxid),
    ) -> &'static [bool] {
        let all = self.acls.get(path).map_or(&[][..], Vec::as_slice);
        let first = all.partition_point(|(from, _)| *from <= since).saturating_sub(1);
        let in_force = all[first..].iter().take_while(|(from, _)| *from <= zxid);
        let is_one = |Id { scheme, id }: &Id| {
            scheme == "world" || who.iter().any(|one| one.split_once(':') == Some((scheme, id)))
        };
        let may = |acl: &Vec<Acl>| {
            acl.iter().any(|entry| entry.perms & any_of != 0 && is_one(&entry.id))
                || who.contains(&"super".into())
        };
        let decisions: Vec<Option<bool>> = in_force.map(|(_, acl)| acl.as_ref().map(may)).collect();
        let first = decisions.first().copied().flatten();
        match first.filter(|_| decisions.iter().all(|it| *it == first)) {
            Some(true) => &[true],
            Some(false) => &[false],
            None => &[true, false],
        }
    }

    /// Returns, for each version in force between the two zxids, whether it allows all needs: both answers if
    /// the needs alone do not decide.
    pub(super) fn met(&self, reader: Reader, needs: &[Need], (since, zxid): (Zxid, Zxid)) -> Vec<bool> {
        let who = self.who.get(&reader).map_or(&[][..], Vec::as_slice);
        let before = self.versions.partition_point(|(from, _)| *from <= since).checked_sub(1);
        let behind = self.versions.partition_point(|(from, _)| *from <= zxid);
        let first = before.map_or(&[][..], |at| &self.versions[at].1);
        let later = self.versions.get(before.map_or(0, |at| at + 1)..behind).into_iter().flatten();
        let all = std::iter::once(first).chain(later.map(|(_, lines)| lines.as_slice()));
        let decide = |lines: &[Line]| {
            let each = || {
                needs.iter().map(|need| match need {
                    Need::Right { lock, right } => allow(lines, (lock, *right), who, self.is_closed),
                    Need::Perms { path, any_of } => self.permit(path, *any_of, who, (since, zxid)),
                })
            };
            let may = each().all(|decisions| decisions.contains(&true)).then_some(true);
            let may_not = each().any(|decisions| decisions.contains(&false)).then_some(false);
            [may, may_not]
        };
        all.flat_map(decide).flatten().collect()
    }

    /// Returns whether a version in force between the two zxids lets the reader see this path.
    pub(super) fn may_see(&self, reader: Reader, path: &str, times: (Zxid, Zxid)) -> bool {
        let need = match is_closed(path) {
            true => Need::Perms { path: path.to_owned(), any_of: perms::READ },
            false => Need::Right { lock: lock_of(path).to_owned(), right: Right::See },
        };
        self.met(reader, &[need], times).contains(&true)
    }

    /// Describes a reader's identities and the rules in force at a zxid, for the report of a violation.
    pub(super) fn describe(&self, reader: Reader, zxid: Zxid) -> String {
        let version = self.versions.iter().rfind(|(from, _)| *from <= zxid);
        format!("{reader:?} is {:?}, rules {version:?}", self.who.get(&reader))
    }

    /// Returns the zxid of the last change of the rules.
    pub(super) fn last(&self) -> Zxid {
        self.versions.last().map_or(Zxid(0), |(zxid, _)| *zxid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_pattern_decides_alone_and_rules_of_several_identities_add_up() {
        let text = "# teams\nall /guarded/a/* digest:ann:x\nsee /guarded/a/* anyone\ntake /guarded/a/x sasl:cy\n\
                    none /guarded/* anyone";
        let lines = lines(text);
        let may = |lock: &str, right, who: &[&str]| {
            let who: Vec<String> = who.iter().map(|one| (*one).to_owned()).collect();
            allow(&lines, (lock, right), &who, false) == [true]
        };
        assert!(may("/guarded/a/y", Right::Force, &["ip:1.2.3.4", "digest:ann:x"]));
        assert!(may("/guarded/a/y", Right::See, &[]) && !may("/guarded/a/y", Right::Take, &[]));
        assert!(!may("/guarded/a/x", Right::See, &["digest:ann:x"]), "the exact one decides alone");
        assert!(may("/guarded/a/x", Right::Take, &["digest:ann:x", "sasl:cy"]));
        assert!(!may("/guarded/ab/x", Right::See, &["digest:ann:x"]), "another folder");
        assert!(!may("/guarded/a", Right::See, &["digest:ann:x"]), "not below itself");
        assert!(may("/guarded", Right::Force, &[]), "no rule names it");
        assert!(may("/guarded/ab/x", Right::Force, &["super"]));
        assert!(!may(RULES, Right::See, &["digest:ann:x"]) && may(RULES, Right::See, &["super"]));
        assert_eq!(lock_of("/guarded/a/x/_c_7-0000000012"), "/guarded/a/x");
        assert_eq!(lock_of("/guarded/a/x"), "/guarded/a/x");
    }
}
