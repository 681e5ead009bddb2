//! Permissions: lists of znodes, and the rules of locks.

use std::net::IpAddr;

use rowlock_proto::acl::{Acl, Id};
use rowlock_proto::name::{LOCK_BASE, reads_as_queue_znode};
use rowlock_proto::request::SetData;
use rowlock_proto::{CreateMode, ErrorCode, Right, SessionId};

use crate::book::{Author, Oracle, Reply, Znode, split};

const RULES: &str = "/zookeeper/access";

/// A line of the rules.
struct Rule {
    rights: Vec<Right>,
    pattern: String,
    who: Id,
}

pub(crate) fn is_super(who: &[Id]) -> bool {
    who.iter().any(|id| id.scheme == "super")
}

/// Returns whether an identity in a list or rule is one of a client's.
fn is_one_of(wanted: &Id, who: &[Id]) -> bool {
    let is_same = |id: &&Id| match id.scheme.as_str() {
        _ if id.scheme != wanted.scheme => false,
        "digest" | "x509" | "token" => id.id == wanted.id,
        "sasl" => id.id == wanted.id || id.id == "super",
        "ip" => is_within(&id.id, &wanted.id),
        _ => false,
    };
    *wanted == Id::anyone() || who.iter().find(is_same).is_some()
}

/// Returns whether an address lies in a network, bit by bit.
fn is_within(address: &str, network: &str) -> bool {
    let bits = |ip: IpAddr| match ip.to_canonical() {
        IpAddr::V4(ip) => format!("{:032b}", ip.to_bits()),
        IpAddr::V6(ip) => format!("{:0128b}", ip.to_bits()),
    };
    let (network, length) = network.split_once('/').unwrap_or((network, "128"));
    let (Ok(address), Ok(network)) = (address.parse().map(bits), network.parse().map(bits)) else {
        return false;
    };
    let length = length.parse().unwrap_or(0).min(network.len());
    address.len() == network.len() && address[..length] == network[..length]
}

pub(crate) fn allows(acl: &[Acl], perm: i32, who: &[Id]) -> bool {
    is_super(who) || acl.iter().any(|entry| entry.perms & perm != 0 && is_one_of(&entry.id, who))
}

pub(crate) fn permit(znode: &Znode, perm: i32, who: &[Id]) -> Reply<()> {
    if allows(&znode.acl, perm, who) { Ok(()) } else { Err(ErrorCode::NoAuth) }
}

/// Returns the list to store: `auth` stands for the client's proven identities, and duplicates go.
pub(crate) fn resolve(acl: Option<&[Acl]>, who: &[Id]) -> Reply<Vec<Acl>> {
    let mut resolved: Vec<Acl> = Vec::new();
    for entry in acl.unwrap_or_default() {
        let ids: Vec<Id> = match entry.id.scheme.as_str() {
            "auth" => who.iter().filter(|id| is_proof(id)).cloned().collect(),
            "world" if entry.id.id != "anyone" => Vec::new(),
            "world" | "digest" | "sasl" | "x509" | "ip" => vec![entry.id.clone()],
            _ => Vec::new(),
        };
        if ids.is_empty() {
            return Err(ErrorCode::InvalidAcl);
        }
        for id in ids {
            let acl = Acl { perms: entry.perms, id };
            if !resolved.contains(&acl) {
                resolved.push(acl);
            }
        }
    }
    if resolved.is_empty() { Err(ErrorCode::InvalidAcl) } else { Ok(resolved) }
}

pub(crate) fn is_proof(id: &Id) -> bool {
    ["digest", "sasl", "x509"].contains(&id.scheme.as_str())
}

/// Reads rules; `None` for a malformed text.
fn rules_in(text: &[u8]) -> Option<Vec<Rule>> {
    let lines = std::str::from_utf8(text).ok()?.lines().map(str::trim);
    let rule = |line: &str| {
        let mut words = line.splitn(2, char::is_whitespace);
        let (rights, rest) = (words.next()?, words.next()?.trim_start());
        let (pattern, who) = rest.split_once(char::is_whitespace)?;
        let rights = match rights {
            "all" => Right::ALL.to_vec(),
            "none" => Vec::new(),
            list => list.split(',').map(|right| right.parse().ok()).collect::<Option<_>>()?,
        };
        let who = match who.trim() {
            "anyone" => Id::anyone(),
            who => {
                let (scheme, id) = who.split_once(':')?;
                Id { scheme: scheme.to_owned(), id: id.to_owned() }
            }
        };
        pattern.starts_with('/').then(|| Rule { rights, pattern: pattern.to_owned(), who })
    };
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(rule).collect()
}

/// Returns whether a pattern of rules names a lock.
fn names(pattern: &str, lock: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(folder) => lock.starts_with(folder) && lock.len() > folder.len(),
        None => pattern == lock,
    }
}

/// Returns the lock that a znode belongs to, by its name.
fn lock_of(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some((lock, name)) if !lock.is_empty() && reads_as_queue_znode(name) => lock,
        _ => path,
    }
}

impl Oracle {
    fn rules(&self) -> Vec<Rule> {
        let text = self.znode(RULES).and_then(|znode| znode.data.clone()).unwrap_or_default();
        rules_in(&text).unwrap_or_default()
    }

    /// Returns the rights that the longest pattern grants; `None` if no pattern names the lock.
    fn granted(&self, lock: &str, who: &[Id]) -> Option<Vec<Right>> {
        self.znode(RULES)?;
        let rules = self.rules();
        let naming = || rules.iter().filter(|rule| names(&rule.pattern, lock));
        let exactness = |rule: &&Rule| (!rule.pattern.ends_with('*'), rule.pattern.len());
        let longest = &naming().max_by_key(exactness)?.pattern;
        let own = naming().filter(|rule| rule.pattern == *longest && is_one_of(&rule.who, who));
        Some(own.flat_map(|rule| rule.rights.clone()).collect())
    }

    /// Returns whether the rules permit this right.
    pub(crate) fn has_right(&self, lock: &str, right: Right, who: &[Id]) -> bool {
        is_super(who) || self.granted(lock, who).is_none_or(|rights| rights.contains(&right))
    }

    pub(crate) fn require(&self, by: &Author, lock: &str, right: Right) -> Reply<()> {
        let is_unnamed = self.granted(lock, &by.who).is_none();
        let is_guarded = right == Right::Force && by.stamp.guard_locks && is_unnamed;
        match is_super(&by.who) || !is_guarded && self.has_right(lock, right, &by.who) {
            true => Ok(()),
            false => Err(ErrorCode::NoRight(right)),
        }
    }

    fn is_governed(&self, by: &Author, lock: &str) -> bool {
        let is_below_base =
            lock.strip_prefix(LOCK_BASE).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        by.stamp.guard_locks && is_below_base || self.granted(lock, &by.who).is_some()
    }

    fn permit_rules(by: &Author, data: Option<&[u8]>) -> Reply<()> {
        match rules_in(data.unwrap_or_default()) {
            _ if !is_super(&by.who) => Err(ErrorCode::NoAuth),
            Some(_) => Ok(()),
            None => Err(ErrorCode::BadArguments),
        }
    }

    pub(crate) fn permit_create(
        &self,
        by: &Author,
        path: &str,
        mode: CreateMode,
        data: Option<&[u8]>,
    ) -> Reply<()> {
        if path == RULES || path.starts_with("/zookeeper/access/") {
            Self::permit_rules(by, data)?;
            let is_plain = mode == CreateMode::Persistent && path == RULES;
            return if is_plain { Ok(()) } else { Err(ErrorCode::BadArguments) };
        }
        let lock = match split(path) {
            Some((lock, _)) if mode.is_sequential() && lock != "/" => lock,
            _ => lock_of(path),
        };
        self.require(by, lock, Right::Take)
    }

    pub(crate) fn permit_delete(&self, by: &Author, path: &str, owner: SessionId) -> Reply<()> {
        if path == RULES {
            return if is_super(&by.who) { Ok(()) } else { Err(ErrorCode::NoAuth) };
        }
        let lock = lock_of(path);
        let is_delayed = self.locks.get(path).is_some_and(|lock| lock.delayed_until_ms != 0);
        match owner {
            _ if !self.is_governed(by, lock) || owner == by.session => Ok(()),
            SessionId::NONE if !is_delayed => self.require(by, lock, Right::Take),
            _ => self.require(by, lock, Right::Force),
        }
    }

    pub(crate) fn permit_set_data(&self, by: &Author, set: &SetData, owner: SessionId) -> Reply<()> {
        let lock = lock_of(&set.path);
        match owner {
            _ if set.path == RULES => Self::permit_rules(by, set.data.as_deref()),
            _ if !self.is_governed(by, lock) || owner == by.session => Ok(()),
            SessionId::NONE => self.require(by, lock, Right::Take),
            _ => self.require(by, lock, Right::Force),
        }
    }

    pub(crate) fn permit_set_acl(&self, by: &Author, path: &str, owner: SessionId) -> Reply<()> {
        if path == RULES {
            return if is_super(&by.who) { Ok(()) } else { Err(ErrorCode::NoAuth) };
        }
        let lock = lock_of(path);
        let below = if path == "/" { "/".to_owned() } else { format!("{path}/") };
        let has_rules_below =
            || self.rules().iter().any(|rule| rule.pattern == path || rule.pattern.starts_with(&below));
        match owner {
            _ if owner != SessionId::NONE && owner == by.session => Ok(()),
            _ if self.is_governed(by, lock) => self.require(by, lock, Right::Force),
            _ if !is_super(&by.who) && has_rules_below() => Err(ErrorCode::NoRight(Right::Force)),
            _ => Ok(()),
        }
    }

    pub(crate) fn permit_see(&self, by: &Author, path: &str) -> Reply<()> {
        match path {
            RULES if !is_super(&by.who) => Err(ErrorCode::NoAuth),
            _ if self.has_right(lock_of(path), Right::See, &by.who) => Ok(()),
            _ => Err(ErrorCode::NoRight(Right::See)),
        }
    }
}
