//! Questions: path and query of a report, validated completely before the report starts.

use rowlock_history::Key;
use rowlock_proto::acl::Id;
use rowlock_proto::{FencingToken, SessionId, Zxid, name, path as paths};
use rowlock_state::rules;

use super::Refusal;
use super::backup::Piece;
use crate::limits::{REPORT_DEFAULT_ITEMS, REPORT_MAX_ITEMS};

pub(super) const PATHS: [&str; 7] =
    ["/v1/locks", "/v1/queue", "/v1/history", "/v1/contention", "/v1/sessions", "/v1/access", "/v1/backup"];
const SINCE: &str = "milliseconds since 1970";
const QUESTION_MAX_BYTES: usize = 16 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    Locks(LocksQuestion),
    Queue {
        lock: String,
        /// Only the position of this token.
        token: Option<FencingToken>,
        limit: usize,
    },
    Sessions {
        /// Only this session; otherwise all sessions.
        session: Option<SessionId>,
        limit: usize,
    },
    History(HistoryQuestion),
    Contention(ContentionQuestion),
    Access {
        lock: String,
        /// Identity in question; `None`: the reader.
        who: Option<Id>,
    },
    Backup {
        /// Chunk of an open backup; `None` opens a backup.
        piece: Option<Piece>,
    },
}

/// Locks of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    Lock(String),
    /// Locks with this prefix of the path.
    Prefix(String),
    /// All locks, or no lock in particular.
    All,
}

impl Scope {
    pub fn has(&self, lock: &str) -> bool {
        match self {
            Scope::Lock(path) => path == lock,
            Scope::Prefix(prefix) => lock.starts_with(prefix),
            Scope::All => true,
        }
    }
}

impl std::fmt::Display for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Scope::Lock(path) => f.write_str(path),
            Scope::Prefix(prefix) => write!(f, "the locks below {prefix}"),
            Scope::All => f.write_str("all locks"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchQuestion {
    pub scope: Scope,
    /// Include events after this change.
    pub after: Option<Zxid>,
}

impl WatchQuestion {
    pub fn parse(query: &str) -> Result<WatchQuestion, Refusal> {
        let mut given = Parameters::parse(query)?;
        let scope = given.scope()?;
        let after = given.take_as("after", "the id of an event", |text| text.parse().ok().map(Zxid))?;
        match given.0.first() {
            Some((name, _)) => bad(format!("/v1/watch has no parameter `{name}`")),
            None => Ok(WatchQuestion { scope, after }),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocksQuestion {
    /// Prefix of the path.
    pub prefix: String,
    /// Substring of the path.
    pub contains: String,
    /// Include the first holder of each lock.
    pub holders: bool,
    pub limit: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryQuestion {
    /// Only this lock; otherwise all locks.
    pub lock: Option<String>,
    /// Only this session; otherwise all sessions.
    pub session: Option<SessionId>,
    /// Earliest time, in milliseconds since 1970.
    pub since_ms: i64,
    /// Only entries before this position.
    pub before: Key,
    pub limit: usize,
}

/// Property that tells clients apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKey {
    /// Label, else address, else session.
    Label,
    /// The address, else the session.
    Address,
    Session,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentionQuestion {
    /// The locks; pairs of waiters and holders are returned for a single lock.
    pub scope: Scope,
    /// Beginning of the time, in milliseconds since 1970. `None`: an hour ago.
    pub since_ms: Option<i64>,
    pub by: ClientKey,
    pub limit: usize,
}

/// Parameters of a query; each access removes the parameter.
struct Parameters(Vec<(String, String)>);

impl Question {
    pub fn parse(what: &str) -> Result<Question, Refusal> {
        if what.len() > QUESTION_MAX_BYTES {
            return bad(format!("the question has more than {QUESTION_MAX_BYTES} bytes"));
        }
        let (path, query) = what.split_once('?').unwrap_or((what, ""));
        let mut given = Parameters::parse(query)?;
        let question = match path {
            "/v1/locks" => Question::Locks(LocksQuestion {
                prefix: given.prefix()?.unwrap_or_default(),
                contains: given.take("contains").unwrap_or_default(),
                holders: given
                    .take_as("holders", "true or false", |text| text.parse().ok())?
                    .unwrap_or(false),
                limit: given.limit()?,
            }),
            "/v1/queue" => {
                let lock = given.lock()?;
                let Some(lock) = lock else {
                    return bad("the lock is missing: /v1/queue?lock=NAME".to_owned());
                };
                Question::Queue { lock, token: given.token()?, limit: given.limit()? }
            }
            "/v1/sessions" => Question::Sessions { session: given.session()?, limit: given.limit()? },
            "/v1/access" => {
                let lock = given.lock()?;
                let Some(lock) = lock else {
                    return bad("the lock is missing: /v1/access?lock=NAME".to_owned());
                };
                let form = "an identity, like x509:CN=bob or token:ci";
                let who = given.take_as("who", form, |text| rules::parse_identity(text).ok())?;
                Question::Access { lock, who }
            }
            "/v1/backup" => Question::Backup { piece: given.piece()? },
            "/v1/history" => Question::History(HistoryQuestion {
                lock: given.lock()?,
                session: given.session()?,
                since_ms: given.take_as("since_ms", SINCE, |text| text.parse().ok())?.unwrap_or(0),
                before: given
                    .take_as("before", "the value of `before` in a response", cursor)?
                    .unwrap_or(Key::MAX),
                limit: given.limit()?,
            }),
            "/v1/contention" => Question::Contention(ContentionQuestion {
                scope: given.scope()?,
                since_ms: given.take_as("since_ms", SINCE, |text| text.parse().ok())?,
                by: given.take_as("by", "label, address or session", client_key)?.unwrap_or(ClientKey::Label),
                limit: given.limit()?,
            }),
            _ => {
                let what = format!("there is no report {path}; there are {}", PATHS.join(", "));
                return Err(Refusal::NoSuchReport(what));
            }
        };
        match given.0.first() {
            Some((name, _)) => bad(format!("{path} has no parameter `{name}`")),
            None => Ok(question),
        }
    }

    pub fn scope(&self) -> Scope {
        match self {
            Question::Locks(locks) if !locks.prefix.is_empty() => Scope::Prefix(locks.prefix.clone()),
            Question::Queue { lock, .. }
            | Question::Access { lock, .. }
            | Question::History(HistoryQuestion { lock: Some(lock), .. }) => Scope::Lock(lock.clone()),
            Question::Contention(asked) => asked.scope.clone(),
            _ => Scope::All,
        }
    }
}

impl Parameters {
    fn parse(query: &str) -> Result<Parameters, Refusal> {
        let mut found: Vec<(String, String)> = Vec::new();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let (Some(name), Some(value)) = (decoded(name), decoded(value)) else {
                return bad(format!("`{part}` is not percent-encoded UTF-8"));
            };
            if found.iter().any(|(earlier, _)| *earlier == name) {
                return bad(format!("`{name}` is given twice"));
            }
            found.push((name, value));
        }
        Ok(Parameters(found))
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(given, _)| given == name)?;
        Some(self.0.remove(at).1)
    }

    fn take_as<T>(
        &mut self,
        name: &str,
        form: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, Refusal> {
        let Some(text) = self.take(name) else { return Ok(None) };
        match read(&text) {
            Some(value) => Ok(Some(value)),
            None => bad(format!("{name}={text} is not {form}")),
        }
    }

    fn scope(&mut self) -> Result<Scope, Refusal> {
        match (self.lock()?, self.prefix()?) {
            (Some(_), Some(_)) => bad("`lock` and `prefix` exclude each other".to_owned()),
            (Some(lock), None) => Ok(Scope::Lock(lock)),
            (None, Some(prefix)) => Ok(Scope::Prefix(prefix)),
            (None, None) => Ok(Scope::All),
        }
    }

    fn piece(&mut self) -> Result<Option<Piece>, Refusal> {
        let number = |text: &str| text.parse().ok();
        let backup = self.take_as("backup", "the value of `backup` in the first response", number)?;
        let offset = self.take_as("offset", "a number of bytes", number)?;
        match (backup, offset) {
            (None, None) => Ok(None),
            (Some(backup), Some(offset)) => Ok(Some(Piece { backup, offset })),
            _ => bad("`backup` and `offset` belong together".to_owned()),
        }
    }

    fn limit(&mut self) -> Result<usize, Refusal> {
        let form = format!("a number from 1 to {REPORT_MAX_ITEMS}");
        let read = |text: &str| text.parse().ok().filter(|limit| (1..=REPORT_MAX_ITEMS).contains(limit));
        Ok(self.take_as("limit", &form, read)?.unwrap_or(REPORT_DEFAULT_ITEMS))
    }

    fn lock(&mut self) -> Result<Option<String>, Refusal> {
        let read = |text: &str| match text.starts_with('/') {
            true => paths::validate(text).is_ok().then(|| text.to_owned()),
            false => name::path_below(name::LOCK_BASE, text).ok(),
        };
        self.take_as("lock", "the name of a lock, like ci/deploy, or a path, like /locks/ci/deploy", read)
    }

    fn prefix(&mut self) -> Result<Option<String>, Refusal> {
        let read = |text: &str| text.starts_with('/').then(|| text.to_owned());
        self.take_as("prefix", "the beginning of a path, like /locks/ci/", read)
    }

    fn token(&mut self) -> Result<Option<FencingToken>, Refusal> {
        self.take_as("token", "a number, like 4711", |text| text.parse().ok().map(FencingToken))
    }

    fn session(&mut self) -> Result<Option<SessionId>, Refusal> {
        self.take_as("session", "a session, like 0x100000000000001", session)
    }
}

fn client_key(text: &str) -> Option<ClientKey> {
    match text {
        "label" => Some(ClientKey::Label),
        "address" => Some(ClientKey::Address),
        "session" => Some(ClientKey::Session),
        _ => None,
    }
}

fn bad<T>(what: String) -> Result<T, Refusal> {
    Err(Refusal::BadQuestion(what))
}

/// Parses a session id as written by ZooKeeper's tools: hexadecimal, with or without `0x`, all 64 bits.
pub(crate) fn session(text: &str) -> Option<SessionId> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let is_plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten().map(|id| SessionId(id.cast_signed()))
}

/// Formats a position in the history.
pub(super) fn cursor_text(key: Key) -> String {
    format!("{}.{}.{}", key.time_ms, key.zxid.0, key.ordinal)
}

fn cursor(text: &str) -> Option<Key> {
    let mut parts = text.split('.');
    let (time_ms, zxid) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let ordinal = parts.next()?.parse().ok()?;
    parts.next().is_none().then_some(Key { time_ms, zxid: Zxid(zxid), ordinal })
}

/// Decodes percent-encoding. A plus sign is not a space: the query is not form-encoded.
pub(crate) fn decoded(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
                out.push(u8::try_from(16 * high + low).ok()?);
            }
            other => out.push(other),
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rowlock_world::spoilt::Spoiler;

    #[test]
    fn questions_are_read_with_their_defaults() {
        let below = |prefix: &str| {
            let [prefix, contains] = [prefix, ""].map(str::to_owned);
            Question::Locks(LocksQuestion { prefix, contains, holders: false, limit: 100 })
        };
        let locks = below("");
        assert_eq!(Question::parse("/v1/locks"), Ok(locks.clone()));
        assert_eq!(Question::parse("/v1/locks?"), Ok(locks));
        let below = below("/locks/a b");
        assert_eq!(below.scope(), Scope::Prefix("/locks/a b".to_owned()));
        assert_eq!(Question::parse("/v1/locks?prefix=/locks/a%20b"), Ok(below));
        let queue = Question::Queue { lock: "/a b/ä+".to_owned(), token: None, limit: 7 };
        assert_eq!(Question::parse("/v1/queue?limit=7&lock=/a%20b/%C3%A4+"), Ok(queue));
        let named = Question::Queue { lock: "/locks/a%20b/c".to_owned(), token: None, limit: 100 };
        assert_eq!(Question::parse("/v1/queue?lock=a%20b/c"), Ok(named));
        let session = Some(SessionId(-1));
        let sessions = Question::Sessions { session, limit: 100 };
        assert_eq!(Question::parse("/v1/sessions?session=ffffffffffffffff"), Ok(sessions));
        let (scope, since_ms) = (Scope::Prefix("/locks/ci/".to_owned()), Some(7));
        let contention = ContentionQuestion { scope, since_ms, by: ClientKey::Address, limit: 100 };
        let asked = "/v1/contention?since_ms=7&by=address&prefix=/locks/ci/";
        assert_eq!(Question::parse(asked), Ok(Question::Contention(contention)));
        let before = Key { time_ms: 5, zxid: Zxid(6), ordinal: 7 };
        let history = HistoryQuestion { lock: None, session: None, since_ms: -3, before, limit: 100 };
        let asked = format!("/v1/history?before={}&since_ms=-3", cursor_text(before));
        assert_eq!(Question::parse(&asked), Ok(Question::History(history)));
    }

    #[test]
    fn a_question_with_a_mistake_is_refused_with_the_mistake() {
        for (asked, what) in [
            ("/v1/queue", "the lock is missing"),
            ("/v1/queue?lock=", "lock= is not the name of a lock"),
            ("/v1/queue?lock=a//b", "lock=a//b is not the name of a lock"),
            ("/v1/queue?lock=/a&lock=/b", "`lock` is given twice"),
            ("/v1/queue?lock=%zz", "`lock=%zz` is not percent-encoded"),
            ("/v1/queue?lock=%ff", "`lock=%ff` is not percent-encoded"),
            ("/v1/queue?lock=%e", "`lock=%e` is not percent-encoded"),
            ("/v1/locks?limit=0", "limit=0 is not a number from 1 to"),
            ("/v1/locks?prefix=ci", "prefix=ci is not the beginning of a path"),
            ("/v1/locks?limit=-1", "limit=-1 is not"),
            ("/v1/locks?limit=99999999999999999999", "limit=99999999999999999999 is not"),
            ("/v1/locks?lock=/a", "/v1/locks has no parameter `lock`"),
            ("/v1/sessions?=%", "`=%` is not percent-encoded"),
            ("/v1/history?session=0x", "session=0x is not a session"),
            ("/v1/history?session=0x+1", "session=0x+1 is not a session"),
            ("/v1/history?since_ms=yesterday", "since_ms=yesterday is not milliseconds"),
            ("/v1/history?before=1.2", "before=1.2 is not the value"),
            ("/v1/contention?lock=a&prefix=/b", "`lock` and `prefix` exclude each other"),
            ("/v1/contention?by=name", "by=name is not label, address or session"),
            ("/v1/backup?backup=1", "`backup` and `offset` belong together"),
            ("/v1/backup?backup=1&offset=-1", "offset=-1 is not a number of bytes"),
        ] {
            match Question::parse(asked) {
                Err(Refusal::BadQuestion(said)) => assert!(said.starts_with(what), "{asked}: {said}"),
                other => panic!("{asked}: {other:?}"),
            }
        }
        let unknown = Question::parse("/v1/lock").unwrap_err();
        assert!(unknown.to_string().starts_with("there is no report /v1/lock; there are /v1/locks, "));
        let endless = format!("/v1/queue?lock=/{}", "a".repeat(QUESTION_MAX_BYTES));
        assert!(matches!(Question::parse(&endless), Err(Refusal::BadQuestion(_))));
    }

    #[test]
    fn spoilt_questions_are_refused_or_stay_within_the_bounds() {
        let mut understood = 0;
        for good in [
            "/v1/locks?limit=5&prefix=/locks/&contains=a%20b&holders=true",
            "/v1/queue?lock=/locks/a%20b&token=0x12&limit=7",
            "/v1/sessions?session=0xfffffffffffffff1&limit=10000",
            "/v1/history?before=1.2.3&since_ms=-3&lock=/locks/x&session=0x5",
            "/v1/contention?since_ms=-3&prefix=/locks/x&by=session&limit=10000",
        ] {
            let mut spoiler = Spoiler::new(good.len() as u64);
            for _ in 0..5_000 {
                let asked = String::from_utf8_lossy(&spoiler.spoil(good.as_bytes())).into_owned();
                let Ok(question) = Question::parse(&asked) else { continue };
                let (Question::Locks(LocksQuestion { limit, .. })
                | Question::Queue { limit, .. }
                | Question::Sessions { limit, .. }
                | Question::History(HistoryQuestion { limit, .. })
                | Question::Contention(ContentionQuestion { limit, .. })) = question
                else {
                    panic!("no damage makes a backup of {good}")
                };
                assert!((1..=REPORT_MAX_ITEMS).contains(&limit), "{asked}");
                understood += 1;
            }
        }
        assert!(understood > 100, "the damage must not be too great to see anything: {understood}");
    }
}
