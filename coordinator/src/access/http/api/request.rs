//! Paths, queries and documents of requests. Unknown fields are refused.

use std::time::Duration;

use axum::extract::{FromRequestParts, Path};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use rowlock_proto::FencingToken;
use rowlock_proto::acl::Id;
use rowlock_proto::lock::{self, Mode, Owner};
use serde::Deserialize;
#[cfg(test)]
use utoipa::ToSchema;

use super::Problem;
use crate::access::api::{AcquireOptions, For, LockName, Part, Refusal, Secret, Which};
use crate::access::report::question::decoded;
use crate::node::audit;

/// Header with the secret of a lease, as an alternative to the body.
const LEASE_HEADER: &str = "rowlock-lease";
const LABEL_MAX_BYTES: usize = 100;
/// TTL of the lease for an acquire without `secret` and `ttl_ms`, in milliseconds.
const TTL_MS: u32 = 10_000;

#[derive(Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct NewLease {
    /// Longest time between two keepalives, in milliseconds; clamped to the bounds of `[session]`.
    #[serde(default = "ttl_ms")]
    #[cfg_attr(test, schema(example = 10000))]
    pub(super) ttl_ms: u32,
}

/// The secret of a lease.
#[derive(Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct Shown {
    /// Secret of the lease; the header Rowlock-Lease is an alternative.
    #[cfg_attr(test, schema(pattern = "^[0-7][0-9a-fA-F]{47}$"))]
    secret: Option<String>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(rename_all = "lowercase")]
enum ModeName {
    #[default]
    Exclusive,
    Shared,
    Permits,
}

/// Request for one lock.
#[derive(Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct Acquire {
    /// Secret of the lease that is to hold the lock; the header Rowlock-Lease is an alternative.
    #[cfg_attr(test, schema(pattern = "^[0-7][0-9a-fA-F]{47}$"))]
    secret: Option<String>,
    /// Without a secret: TTL of a new lease in milliseconds, 10,000 by default. The response has its secret.
    ttl_ms: Option<u32>,
    /// Client's name of the attempt: 1 to 64 visible ASCII characters, only with a secret; random by default.
    #[cfg_attr(test, schema(min_length = 1, max_length = 64, pattern = "^[!-~]+$", example = "attempt-1"))]
    request_id: Option<String>,
    /// Longest time before the response in milliseconds, at most 60,000; 0: a busy lock gives no position.
    #[serde(default)]
    #[cfg_attr(test, schema(maximum = 60000, example = 5000))]
    wait_ms: u32,
    /// Mode of the hold: `exclusive` (default), `shared` or `permits`.
    #[serde(default)]
    mode: ModeName,
    /// Number of requested permits, for mode `permits`; 1 by default.
    #[cfg_attr(test, schema(minimum = 1))]
    permits: Option<u32>,
    /// Number of permits of the lock, for mode `permits`. The first request with a number sets the limit.
    limit: Option<u32>,
    /// Owner for deadlock detection. All attempts of one owner belong to one sequential program.
    owner: Option<String>,
    /// Label in the queue, for people: up to 256 bytes.
    #[serde(default)]
    label: String,
    /// Time without a holder after the lease expired while holding the lock, in milliseconds, at most 60,000.
    #[serde(default)]
    #[cfg_attr(test, schema(maximum = 60000))]
    lock_delay_ms: u32,
    /// Longest time of holding in milliseconds; then the lock is revoked. 0: no bound.
    #[serde(default)]
    max_hold_ms: u32,
    /// Least time from this grant to the next in milliseconds, at most 31 days, unless an operator ends it.
    #[serde(default)]
    #[cfg_attr(test, schema(maximum = 2678400000_u32))]
    min_hold_ms: u32,
}

/// A question to the holders of a lock.
#[derive(Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct AskHolders {
    /// Text for people: up to 256 bytes.
    #[cfg_attr(test, schema(min_length = 1, max_length = 256, example = "hotfix 42 waits for this"))]
    reason: String,
    /// Name of the asking client, appended to the client's proven identity: up to 100 bytes.
    #[serde(default)]
    #[cfg_attr(test, schema(max_length = 100))]
    label: String,
    /// Milliseconds until the holders lose the lock; for operators. Absent: the holders are only notified.
    #[cfg_attr(test, schema(minimum = 1000, maximum = 3600000))]
    within_ms: Option<u32>,
}

/// Request for one of several locks.
#[derive(Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
struct PartWanted {
    /// Name of the lock, or its path if the text begins with a slash.
    lock: String,
    #[serde(default)]
    mode: ModeName,
    /// Number of requested permits, for mode `permits`; 1 by default.
    #[cfg_attr(test, schema(minimum = 1))]
    permits: Option<u32>,
    /// Number of permits of the lock, for mode `permits`. The first request with a number sets the limit.
    limit: Option<u32>,
}

/// Request for several locks.
#[derive(Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct AcquireAll {
    /// Secret of the lease; the header Rowlock-Lease is an alternative.
    #[cfg_attr(test, schema(pattern = "^[0-7][0-9a-fA-F]{47}$"))]
    secret: Option<String>,
    /// Client's name of the attempt: 1 to 64 visible ASCII characters.
    #[cfg_attr(test, schema(min_length = 1, max_length = 64, pattern = "^[!-~]+$", example = "attempt-1"))]
    request_id: Option<String>,
    /// 1 to 64 locks.
    #[cfg_attr(test, schema(min_items = 1, max_items = 64))]
    locks: Vec<PartWanted>,
    /// Longest time before the response, in milliseconds; 0: busy locks give no queue positions.
    #[serde(default)]
    #[cfg_attr(test, schema(maximum = 60000, example = 5000))]
    wait_ms: u32,
    /// Owner for deadlock detection. All attempts of one owner belong to one sequential program.
    owner: Option<String>,
    /// Label in the queue, for people: up to 256 bytes.
    #[serde(default)]
    label: String,
    /// Time without a holder after the lease expired while holding the lock, in milliseconds.
    #[serde(default)]
    #[cfg_attr(test, schema(maximum = 60000))]
    lock_delay_ms: u32,
    /// Longest time of holding in milliseconds; then the lock is revoked. 0: no bound.
    #[serde(default)]
    max_hold_ms: u32,
    /// Least time from this grant to the next in milliseconds, however this hold ends.
    #[serde(default)]
    #[cfg_attr(test, schema(maximum = 2678400000_u32))]
    min_hold_ms: u32,
}

/// A candidacy in an election.
#[derive(Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct Campaign {
    /// Secret of the lease; the header Rowlock-Lease is an alternative.
    #[cfg_attr(test, schema(pattern = "^[0-7][0-9a-fA-F]{47}$"))]
    secret: Option<String>,
    /// Without a secret: TTL of a new lease in milliseconds; 10,000 by default.
    ttl_ms: Option<u32>,
    /// Client's name of the attempt: 1 to 64 visible ASCII characters.
    #[cfg_attr(test, schema(min_length = 1, max_length = 64, pattern = "^[!-~]+$", example = "attempt-1"))]
    request_id: Option<String>,
    /// Longest time before the response, in milliseconds; 0: without the lead, the candidate gets no queue
    /// position.
    #[serde(default)]
    #[cfg_attr(test, schema(maximum = 60000, example = 5000))]
    wait_ms: u32,
    /// Owner for deadlock detection. All attempts of one owner belong to one sequential program.
    owner: Option<String>,
    /// Value published by the leader: up to 256 bytes.
    #[serde(default)]
    value: String,
}

/// A release, selected by the token or by the attempt's id.
#[derive(Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct Release {
    /// Secret of the lease; the header Rowlock-Lease is an alternative.
    #[cfg_attr(test, schema(pattern = "^[0-7][0-9a-fA-F]{47}$"))]
    secret: Option<String>,
    #[cfg_attr(test, schema(pattern = "^[0-9]{1,19}$", example = "42"))]
    token: Option<String>,
    /// Client's name of the attempt: 1 to 64 visible ASCII characters.
    #[cfg_attr(test, schema(min_length = 1, max_length = 64, pattern = "^[!-~]+$", example = "attempt-1"))]
    request_id: Option<String>,
}

/// A token for verification.
#[derive(Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct Verify {
    /// Fencing token from an acquire.
    #[cfg_attr(test, schema(pattern = "^[0-9]{1,19}$", example = "42"))]
    token: String,
}

fn ttl_ms() -> u32 {
    TTL_MS
}

impl Shown {
    pub(super) fn secret(self, headers: &HeaderMap) -> Result<Secret, Refusal> {
        secret_in(self.secret, headers)?
            .ok_or_else(|| Refusal::Bad("the secret of the lease is missing".to_owned()))
    }
}

impl Acquire {
    pub(super) fn options(
        self,
        lock: LockName,
        headers: &HeaderMap,
    ) -> Result<(Part, AcquireOptions), Refusal> {
        let by = lease_of(self.secret, self.ttl_ms, headers)?;
        let mode = mode_of(self.mode, self.permits, self.limit)?;
        let options = AcquireOptions {
            by,
            request_id: self.request_id,
            wait: Duration::from_millis(self.wait_ms.into()),
            owner: self.owner.map_or(Owner::Unnamed, |name| Owner::named(&name)),
            label: self.label,
            lock_delay_ms: self.lock_delay_ms,
            max_hold_ms: self.max_hold_ms,
            min_hold_ms: self.min_hold_ms,
        };
        Ok((Part { lock, mode, limit: self.limit.unwrap_or(0) }, options))
    }
}

impl Campaign {
    pub(super) fn options(self, headers: &HeaderMap) -> Result<AcquireOptions, Refusal> {
        Ok(AcquireOptions {
            by: lease_of(self.secret, self.ttl_ms, headers)?,
            request_id: self.request_id,
            wait: Duration::from_millis(self.wait_ms.into()),
            owner: self.owner.map_or(Owner::Unnamed, |name| Owner::named(&name)),
            label: self.value,
            lock_delay_ms: 0,
            max_hold_ms: 0,
            min_hold_ms: 0,
        })
    }
}

impl AcquireAll {
    pub(super) fn options(self, headers: &HeaderMap) -> Result<(Vec<Part>, AcquireOptions), Refusal> {
        let secret = Shown { secret: self.secret }.secret(headers)?;
        let part = |part: PartWanted| {
            let mode = mode_of(part.mode, part.permits, part.limit)?;
            Ok(Part { lock: part.lock.parse()?, mode, limit: part.limit.unwrap_or(0) })
        };
        let parts = self.locks.into_iter().map(part).collect::<Result<_, Refusal>>()?;
        let options = AcquireOptions {
            by: For::Lease(secret),
            request_id: self.request_id,
            wait: Duration::from_millis(self.wait_ms.into()),
            owner: self.owner.map_or(Owner::Unnamed, |name| Owner::named(&name)),
            label: self.label,
            lock_delay_ms: self.lock_delay_ms,
            max_hold_ms: self.max_hold_ms,
            min_hold_ms: self.min_hold_ms,
        };
        Ok((parts, options))
    }
}

impl AskHolders {
    pub(super) fn has_deadline(&self) -> bool {
        self.within_ms.is_some()
    }

    /// Returns the command's question from a client with these identities.
    pub(super) fn ask(self, lock: &LockName, who: &[Id]) -> Result<lock::Ask, Refusal> {
        let bad = |what: &str| Err(Refusal::Bad(what.to_owned()));
        if self.reason.is_empty() || self.reason.len() > lock::ASK_REASON_MAX_BYTES {
            return bad("reason has 1 to 256 bytes");
        }
        if self.label.len() > LABEL_MAX_BYTES {
            return bad("label has more than 100 bytes");
        }
        if self.within_ms.is_some_and(|within_ms| !lock::ASK_WITHIN_MS.contains(&within_ms)) {
            return bad("within_ms is 1000 to 3600000");
        }
        Ok(lock::Ask {
            lock: lock.path().to_owned(),
            reason: self.reason,
            by: audit::asker(who, &self.label),
            within_ms: self.within_ms.unwrap_or(0),
        })
    }
}

/// Returns the lease of the secret, or a new lease.
fn lease_of(secret: Option<String>, ttl_ms: Option<u32>, headers: &HeaderMap) -> Result<For, Refusal> {
    match (secret_in(secret, headers)?, ttl_ms) {
        (Some(_), Some(_)) => {
            Err(Refusal::Bad("ttl_ms opens a new lease: omit either ttl_ms or the secret".to_owned()))
        }
        (Some(secret), None) => Ok(For::Lease(secret)),
        (None, ttl_ms) => Ok(For::New(ttl_ms.unwrap_or(TTL_MS))),
    }
}

fn mode_of(mode: ModeName, permits: Option<u32>, limit: Option<u32>) -> Result<Mode, Refusal> {
    let bad = |what: &str| Err(Refusal::Bad(what.to_owned()));
    match (mode, permits, limit) {
        (ModeName::Exclusive, None, None) => Ok(Mode::Exclusive),
        (ModeName::Shared, None, None) => Ok(Mode::Shared),
        (ModeName::Permits, Some(0), _) => bad("permits is 0"),
        (ModeName::Permits, permits, _) => Ok(Mode::Permits(permits.unwrap_or(1))),
        _ => bad("permits and limit need mode = \"permits\""),
    }
}

impl Release {
    pub(super) fn what(self, headers: &HeaderMap) -> Result<(Secret, Which), Refusal> {
        let secret = Shown { secret: self.secret }.secret(headers)?;
        match (self.token, self.request_id) {
            (Some(token), None) => Ok((secret, Which::Token(token_of(&token)?))),
            (None, Some(id)) => Ok((secret, Which::Request(id))),
            _ => Err(Refusal::Bad("name either token or request_id for the release".to_owned())),
        }
    }
}

impl Verify {
    pub(super) fn token(&self) -> Result<FencingToken, Refusal> {
        token_of(&self.token)
    }
}

/// Parses a token. Tokens are text: many languages lose digits of large JSON numbers.
fn token_of(text: &str) -> Result<FencingToken, Refusal> {
    let wrong = || Refusal::Bad("token is not a fencing token from an acquire".to_owned());
    text.parse().map(FencingToken).map_err(|_| wrong())
}

/// Returns the secret of a lease from its field or the header.
pub(super) fn secret_in(field: Option<String>, headers: &HeaderMap) -> Result<Option<Secret>, Refusal> {
    let header = headers.get(LEASE_HEADER).map(|value| value.to_str().unwrap_or_default());
    match (field.as_deref(), header) {
        (Some(_), Some(_)) => {
            Err(Refusal::Bad("the secret is both in the body and in a header; send one".to_owned()))
        }
        (one, other) => one.or(other).map(str::parse).transpose(),
    }
}

/// Percent-decoded text. Undecodable text becomes a [`Problem`].
pub(super) struct PathText(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for PathText {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = Path::<String>::from_request_parts(parts, state).await;
        path.map(|Path(text)| PathText(text)).map_err(|why| Problem::new(why.status(), why.body_text()))
    }
}

/// Query parameters of a request: duplicate and unknown parameters are errors.
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Parses the query of a URL.
    ///
    /// # Errors
    /// [`Refusal::Bad`]: a percent-encoded part is not UTF-8.
    pub(super) fn parse(query: &str) -> Result<Query, Refusal> {
        let parts = query.split('&').filter(|part| !part.is_empty());
        let pair = |part: &str| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let wrong = || Refusal::Bad(format!("`{part}` is not percent-encoded UTF-8"));
            Ok((decoded(name).ok_or_else(wrong)?, decoded(value).ok_or_else(wrong)?))
        };
        parts.map(pair).collect::<Result<_, _>>().map(Query)
    }

    /// Removes and returns the value of a single parameter.
    ///
    /// # Errors
    /// [`Refusal::Bad`]: duplicate parameter.
    pub(super) fn take(&mut self, name: &str) -> Result<Option<String>, Refusal> {
        let mut found = self.take_all(name);
        match found.len() {
            0 | 1 => Ok(found.pop()),
            _ => Err(Refusal::Bad(format!("`{name}` is given twice"))),
        }
    }

    /// Removes and returns all values of a repeatable parameter.
    pub(super) fn take_all(&mut self, name: &str) -> Vec<String> {
        self.0.extract_if(.., |(given, _)| given == name).map(|(_, value)| value).collect()
    }

    /// Removes a flag and returns its value; a flag without a value is true.
    ///
    /// # Errors
    /// [`Refusal::Bad`]: the value is neither `true` nor `false`.
    pub(super) fn take_flag(&mut self, name: &str) -> Result<bool, Refusal> {
        match self.take(name)?.as_deref() {
            None | Some("false") => Ok(false),
            Some("" | "true") => Ok(true),
            Some(other) => Err(Refusal::Bad(format!("{name}={other} is not {name}, or {name}=true"))),
        }
    }

    /// Removes and returns a number within bounds.
    ///
    /// # Errors
    /// [`Refusal::Bad`].
    pub(super) fn take_number(&mut self, name: &str, bounds: (i64, i64)) -> Result<Option<i64>, Refusal> {
        let Some(text) = self.take(name)? else { return Ok(None) };
        let (least, most) = bounds;
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        let wrong = || Refusal::Bad(format!("{name}={text} is not a number from {least} to {most}"));
        number.map(Some).ok_or_else(wrong)
    }

    /// Refuses parameters that no caller has read.
    ///
    /// # Errors
    /// [`Refusal::Bad`].
    pub(super) fn end(self) -> Result<(), Refusal> {
        match self.0.first() {
            Some((name, _)) => Err(Refusal::Bad(format!("there is no parameter `{name}` here"))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_taken_once_and_leftovers_are_refused() {
        let mut query = Query::parse("a=1&flag&b=%2Fx&b=y&n=7").unwrap();
        assert_eq!(query.take("a"), Ok(Some("1".to_owned())));
        assert_eq!(query.take("a"), Ok(None));
        assert_eq!((query.take_flag("flag"), query.take_flag("none")), (Ok(true), Ok(false)));
        assert_eq!(query.take_number("n", (0, 7)), Ok(Some(7)));
        assert_eq!(query.take_all("b"), ["/x", "y"]);
        assert_eq!(query.end(), Ok(()));
        let twice = Query::parse("b=1&b=2").unwrap().take("b");
        assert_eq!(twice, Err(Refusal::Bad("`b` is given twice".to_owned())));
        assert!(Query::parse("n=8").unwrap().take_number("n", (0, 7)).is_err());
        assert!(Query::parse("f=1").unwrap().take_flag("f").is_err());
        assert!(Query::parse("x=%ff").is_err() && Query::parse("x=1").unwrap().end().is_err());
    }
}
