//! `/v1/znodes/{path}`: data as raw bytes, all other documents as JSON.
//!
//! Invariant: znode bytes in this node's memory for clients are at most `limits::API_ANSWERS_MAX_BYTES`, plus
//! one chunk per connection.

use axum::Json;
use axum::body::Body;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use rowlock_proto::{CreateMode, FencingToken, SessionId, Stat, Version};
use rowlock_state::rules::RULES_PATH;
use tokio::sync::OwnedSemaphorePermit;

use super::super::access::AdminRequest;
use super::answer::{StatDocument, ZnodeDocument};
use super::request::{Query, secret_in};
use super::{Answer, ApiCall, Denied, read_body};
use crate::access::api::{
    By, Change, Changed, Children, Consistency, LockName, Page, Refusal, ZnodePath, acl_entry, acl_text,
};
use crate::access::report::question::decoded;
use crate::access::tokens::Role;
use crate::limits::{API_DATA_MAX_BYTES, API_PAGE_MAX};

/// Prefix of a znode's path.
pub(super) const PREFIX: &str = "/v1/znodes";
/// Default number of names in a page of children.
const PAGE: usize = 1_000;
/// Header with the client's name of a write (IETF draft).
const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// Header with a lock and the token that must hold the lock.
const FENCE: &str = "rowlock-fence";
/// Bytes of a response per write to the socket.
const PIECE_BYTES: usize = 64 << 10;

enum ZnodeQuery {
    Data,
    Stat,
    Acl,
    Children(Page),
}

pub(super) async fn znode(call: ApiCall, request: Request) -> Answer {
    let (head, body) = request.into_parts();
    match head.method {
        Method::GET | Method::HEAD => get(&call, &head).await,
        _ => change(&call, head, body).await,
    }
}

async fn get(call: &ApiCall, asks: &Parts) -> Answer {
    let path: ZnodePath = text_of(asks.uri.path()).and_then(|text| text.parse())?;
    call.check(call.principal.may(&Role::znode(path.as_str())))?;
    let (consistency, view) = question(asks.uri.query().unwrap_or_default())?;
    let (api, caller) = (call.api(), call.caller());
    match view {
        ZnodeQuery::Data => {
            let (data, stat) = api.znode(&caller, &path, consistency).await?;
            if is_known(&asks.headers, stat.version) {
                return Ok((StatusCode::NOT_MODIFIED, head(&stat)).into_response());
            }
            let room = api.room(data.len())?;
            let kind = (header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
            Ok((head(&stat), [kind], piecewise(data, room)).into_response())
        }
        ZnodeQuery::Stat => {
            let (_, stat) = api.znode(&caller, &path, consistency).await?;
            Ok((head(&stat), Json(plain(path.as_str(), &stat))).into_response())
        }
        ZnodeQuery::Acl => {
            let (acl, stat) = api.acl(&caller, &path, consistency).await?;
            let acl = Some(acl.iter().map(acl_text).collect());
            Ok(Json(ZnodeDocument { acl, ..plain(path.as_str(), &stat) }).into_response())
        }
        ZnodeQuery::Children(page) => {
            let found = api.children(&caller, &path, (consistency, &page)).await?;
            let Children { names, is_more, stat } = found;
            let said =
                ZnodeDocument { children: Some(names), more: Some(is_more), ..plain(path.as_str(), &stat) };
            let text = serde_json::to_vec(&said).expect("Invariant: a document is structs, text and numbers");
            let bytes = Bytes::from(text);
            let room = api.room(bytes.len())?;
            let kind = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            Ok(([kind], piecewise(bytes, room)).into_response())
        }
    }
}

async fn change(call: &ApiCall, head: Parts, body: Body) -> Answer {
    let mut query = Query::parse(head.uri.query().unwrap_or_default())?;
    let is_create = head.method == Method::POST;
    let is_sequential = is_create && query.take_flag("sequential")?;
    let text = text_of(head.uri.path())?;
    let path = if is_sequential { ZnodePath::sequential(&text) } else { text.parse() };
    let path = path?;
    // The role must cover the path with the sequence number: a role for one path does not cover longer names
    // with this prefix.
    let number = if is_sequential { "0000000000" } else { "" };
    call.check(call.principal.may(&Role::znode(&format!("{}{number}", path.as_str()))))?;
    let by = by(&head.headers)?;
    let api = call.api();
    let (change, _room) = match head.method {
        Method::DELETE => {
            let version = version(&mut query, &head.headers)?;
            (Change::Delete { version }, None)
        }
        Method::PUT => {
            let version = version(&mut query, &head.headers)?;
            let (data, room) = data(call, &head.headers, body).await?;
            (Change::Set { data, version }, Some(room))
        }
        _ => {
            let (mode, ttl_ms) = mode(&mut query, is_sequential)?;
            let acl = query.take_all("acl").iter().map(|text| acl_entry(text)).collect::<Result<_, _>>();
            let acl = acl?;
            let (data, room) = data(call, &head.headers, body).await?;
            (Change::Create { data, mode, ttl_ms, acl }, Some(room))
        }
    };
    query.end()?;
    let changed = api.change(&call.caller(), &path, (change, by)).await;
    if path.as_str() == RULES_PATH {
        let result = if changed.is_ok() { "ok" } else { "failed" };
        let done = AdminRequest { op: head.method.as_str(), path: RULES_PATH, detail: "", result };
        call.context.http.access.record_admin(&done, &call.principal, &call.visitor);
    }
    Ok(answered(&path, &changed?))
}

fn answered(path: &ZnodePath, changed: &Changed) -> Response {
    match changed {
        Changed::Created(path, stat) => {
            let at = paths_in_uri(path);
            let location = HeaderValue::from_str(&at).expect("Invariant: what is percent-encoded is ASCII");
            let said = Json(plain(path, stat));
            (StatusCode::CREATED, head(stat), [(header::LOCATION, location)], said).into_response()
        }
        Changed::Set(stat) => (head(stat), Json(plain(path.as_str(), stat))).into_response(),
        Changed::Deleted => StatusCode::NO_CONTENT.into_response(),
    }
}

/// Returns the znode's path in the request's path.
fn text_of(path: &str) -> Result<String, Refusal> {
    let rest = path.strip_prefix(PREFIX).unwrap_or_default();
    let text =
        decoded(rest).ok_or_else(|| Refusal::Bad("the path is not percent-encoded UTF-8".to_owned()))?;
    Ok(if text.is_empty() { "/".to_owned() } else { text })
}

fn paths_in_uri(path: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte);
    let mut text = PREFIX.to_owned();
    for byte in path.bytes() {
        match is_plain(byte) {
            true => text.push(char::from(byte)),
            false => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

fn question(query: &str) -> Result<(Consistency, ZnodeQuery), Refusal> {
    let mut query = Query::parse(query)?;
    let consistency = match query.take("consistency")?.as_deref() {
        None | Some("sync") => Consistency::Sync,
        Some("local") => Consistency::Local,
        Some(other) => {
            return Err(Refusal::Bad(format!("consistency={other} is neither sync nor local")));
        }
    };
    let view = match query.take("view")?.as_deref() {
        None | Some("data") => ZnodeQuery::Data,
        Some("stat") => ZnodeQuery::Stat,
        Some("acl") => ZnodeQuery::Acl,
        Some("children") => {
            let most = query.take_number("limit", (1, API_PAGE_MAX as i64))?;
            let most = most.map_or(PAGE, |most| most.unsigned_abs() as usize);
            ZnodeQuery::Children(Page { after: query.take("after")?.unwrap_or_default(), most })
        }
        Some(other) => {
            return Err(Refusal::Bad(format!("view={other} is none of data, stat, acl, children")));
        }
    };
    query.end()?;
    Ok((consistency, view))
}

fn mode(query: &mut Query, is_sequential: bool) -> Result<(CreateMode, Option<i64>), Refusal> {
    let is_ephemeral = match query.take("ephemeral")?.as_deref() {
        None => false,
        Some("lease") => true,
        Some(other) => return Err(Refusal::Bad(format!("ephemeral={other} is not ephemeral=lease"))),
    };
    let is_container = query.take_flag("container")?;
    let ttl_ms = query.take_number("ttl_ms", (1, i64::MAX))?;
    let mode = match (is_ephemeral, is_container, ttl_ms.is_some(), is_sequential) {
        (false, false, false, false) => CreateMode::Persistent,
        (false, false, false, true) => CreateMode::PersistentSequential,
        (true, false, false, false) => CreateMode::Ephemeral,
        (true, false, false, true) => CreateMode::EphemeralSequential,
        (false, true, false, false) => CreateMode::Container,
        (false, false, true, false) => CreateMode::PersistentWithTtl,
        (false, false, true, true) => CreateMode::PersistentSequentialWithTtl,
        _ => {
            let what = "ephemeral, container and ttl_ms exclude each other, and a container has no number";
            return Err(Refusal::Bad(what.to_owned()));
        }
    };
    Ok((mode, ttl_ms))
}

/// Parses `?version=` and `If-Match`; without both, any version matches.
fn version(query: &mut Query, headers: &HeaderMap) -> Result<Version, Refusal> {
    let bad = |what: &str| Err(Refusal::Bad(what.to_owned()));
    let bounds = (i64::from(i32::MIN), i64::from(i32::MAX));
    let version = query.take_number("version", bounds)?.map(|number| Version(number as i32));
    if headers.contains_key(header::IF_NONE_MATCH) {
        return bad("If-None-Match is for GET: POST makes a znode only if there is none");
    }
    let matching = match headers.get(header::IF_MATCH).map(|value| value.to_str().unwrap_or_default().trim())
    {
        None => None,
        Some("*") => Some(Version::ANY),
        Some(tag) => {
            let tag = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')).unwrap_or(tag);
            let Ok(version) = tag.parse() else { return bad("If-Match is not one ETag of a znode, or *") };
            Some(Version(version))
        }
    };
    match (version, matching) {
        (Some(one), Some(other)) if one != other => bad("version and If-Match say different versions"),
        (version, matching) => Ok(version.or(matching).unwrap_or(Version::ANY)),
    }
}

/// Returns whether the client already has this version.
fn is_known(headers: &HeaderMap, version: Version) -> bool {
    let known = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut tags = known.flat_map(|value| value.split(',')).map(str::trim);
    tags.any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag(version))
}

fn etag(version: Version) -> String {
    format!("\"{}\"", version.0)
}

fn by(headers: &HeaderMap) -> Result<By, Refusal> {
    let secret = secret_in(None, headers)?;
    let key = headers.get(IDEMPOTENCY_KEY).map(|value| value.to_str().unwrap_or_default().trim());
    // The IETF draft requires quotes.
    let key = key.map(|key| key.strip_prefix('"').and_then(|key| key.strip_suffix('"')).unwrap_or(key));
    let mut fences = headers.get_all(FENCE).iter();
    let fence = fences.next().map(|value| fence(value.to_str().unwrap_or_default())).transpose()?;
    if fences.next().is_some() {
        return Err(Refusal::Bad("Rowlock-Fence stands here twice: a write has one fence".to_owned()));
    }
    Ok(By { secret, request_id: key.map(str::to_owned), fence })
}

/// Parses `LOCK;TOKEN`; the lock is percent-encoded.
fn fence(value: &str) -> Result<(LockName, FencingToken), Refusal> {
    let wrong = || Refusal::Bad(format!("Rowlock-Fence is {value:?}, and not LOCK;TOKEN"));
    let (lock, token) = value.split_once(';').ok_or_else(wrong)?;
    let lock = decoded(lock).ok_or_else(wrong)?;
    Ok((lock.parse()?, token.parse().map_err(|_| wrong())?))
}

/// Reads the data of a request. The budget is reserved before the data is read.
async fn data(
    call: &ApiCall,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Bytes, OwnedSemaphorePermit), Denied> {
    let said = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let most = said.map_or(API_DATA_MAX_BYTES, |said: usize| said.min(API_DATA_MAX_BYTES));
    let room = call.api().room(most)?;
    Ok((read_body(body, API_DATA_MAX_BYTES).await?, room))
}

/// Returns a body in chunks for slow clients; the budget is freed with the last chunk.
fn piecewise(bytes: Bytes, room: OwnedSemaphorePermit) -> Response {
    let length = bytes.len();
    let pieces = stream::unfold((bytes, room), |(mut bytes, room)| async move {
        if bytes.is_empty() {
            return None;
        }
        let piece = bytes.split_to(bytes.len().min(PIECE_BYTES));
        Some((Ok::<Bytes, std::convert::Infallible>(piece), (bytes, room)))
    });
    ([(header::CONTENT_LENGTH, length)], Body::from_stream(pieces)).into_response()
}

/// Returns the headers that identify the state of a znode.
fn head(stat: &Stat) -> [(HeaderName, HeaderValue); 3] {
    let value = |text: &str| HeaderValue::from_str(text).expect("Invariant: digits and quotes are ASCII");
    [
        (header::ETAG, value(&etag(stat.version))),
        (HeaderName::from_static("rowlock-czxid"), value(&stat.czxid.0.to_string())),
        (HeaderName::from_static("rowlock-mzxid"), value(&stat.mzxid.0.to_string())),
    ]
}

fn stat_of(stat: &Stat) -> StatDocument {
    let is_ephemeral = stat.ephemeral_owner != SessionId::NONE;
    StatDocument {
        aversion: stat.aversion.0,
        ctime_ms: stat.ctime_ms,
        cversion: stat.cversion.0,
        czxid: stat.czxid.0.to_string(),
        data_length: stat.data_length,
        ephemeral_owner: is_ephemeral.then(|| stat.ephemeral_owner.to_string()),
        mtime_ms: stat.mtime_ms,
        mzxid: stat.mzxid.0.to_string(),
        num_children: stat.num_children,
        pzxid: stat.pzxid.0.to_string(),
        version: stat.version.0,
    }
}

fn plain(path: &str, stat: &Stat) -> ZnodeDocument {
    ZnodeDocument { acl: None, children: None, more: None, path: path.to_owned(), stat: stat_of(stat) }
}
