//! One function per request, never called: the macro derives the document from its attribute.
#![allow(dead_code)]

use super::super::super::request::{
    Acquire, AcquireAll, AskHolders, Campaign, NewLease, Release, Shown, Verify,
};
use super::kinds::{
    ByLease, ElectionName, IfMatch, InQueue, Lease, Limit, LockName, Making, OfLease, OfReport, OfVersion,
    OfZnode, StateInfo, StateName, View, ZnodePath,
};
use crate::access::http::api::answer::{
    AcquiredDocument, AskedOf, Ended, IsHeld, LeaseKept, LeaseOpened, LedDocument, ProblemDocument, Released,
    StateHeld, ZnodeDocument,
};

/// Opens a new lease
#[utoipa::path(post, path = "/v1/leases", tag = "leases", request_body = NewLease,
    responses((status = 201, description = "The lease, with its secret", body = LeaseOpened)))]
fn new_lease() {}

/// Keeps a lease alive
#[utoipa::path(post, path = "/v1/leases/{lease}/keepalive", tag = "leases", request_body = Shown,
    params(Lease),
    responses((status = 200, description = "The lease is renewed", body = LeaseKept), OfLease))]
fn keep_alive() {}

/// Ends a lease and releases all its locks
#[utoipa::path(delete, path = "/v1/leases/{lease}", tag = "leases", request_body = Shown,
    params(Lease),
    responses((status = 204, description = "The lease has ended. Repeating the request is no error")))]
fn end_lease() {}

/// Takes a lock, or a place in its queue
#[utoipa::path(post, path = "/v1/locks/{name}/acquire", tag = "locks", request_body = Acquire,
    params(LockName),
    responses(
        (status = 200, description = "Held, busy or gone", body = AcquiredDocument),
        (status = 202, description = "Still queued: repeat the request with the same request_id",
            body = AcquiredDocument),
        InQueue))]
fn acquire() {}

/// Takes several locks, all or none
#[utoipa::path(post, path = "/v1/locks/acquire", tag = "locks", request_body = AcquireAll,
    responses(
        (status = 200, description = "Held, busy or gone", body = AcquiredDocument),
        (status = 202, description = "Still queued: repeat the request with the same request_id",
            body = AcquiredDocument),
        InQueue))]
fn acquire_all() {}

/// Shows the holders and waiters of a lock
#[utoipa::path(get, path = "/v1/locks/{name}", tag = "locks",
    params(LockName, ("token" = Option<i64>, Query, description = "Only the queue position of this token"), Limit),
    responses(
        (status = 200, description = "Same as /v1/queue; see docs/monitoring.md", body = serde_json::Value),
        OfReport))]
fn one_lock() {}

/// Releases a lock, or leaves its queue
#[utoipa::path(post, path = "/v1/locks/{name}/release", tag = "locks", request_body = Release,
    params(LockName),
    responses((status = 200, description = "Whether the request released a lock or a queue position", body = Released), OfLease))]
fn release() {}

/// Checks whether a token holds a lock
#[utoipa::path(post, path = "/v1/locks/{name}/verify", tag = "locks", request_body = Verify,
    params(LockName),
    responses((status = 200, description = "Whether this token holds the lock", body = IsHeld)))]
fn verify() {}

/// Asks the holders of a lock to release the lock
#[utoipa::path(post, path = "/v1/locks/{name}/ask", tag = "locks", request_body = AskHolders,
    params(LockName),
    responses((status = 200, description = "Number of notified holders", body = AskedOf)))]
fn ask() {}

/// Forces the release of a lock: for operators
#[utoipa::path(delete, path = "/v1/locks/{name}/holders/{token}", tag = "locks",
    params(
        LockName,
        ("token" = String, Path, description = "Token of the holder; 0: the lock-delay")),
    responses((status = 200, description = "Whether the request released a lock or a queue position", body = Released)))]
fn force() {}

/// Campaigns in an election
#[utoipa::path(post, path = "/v1/elections/{name}/campaign", tag = "elections", request_body = Campaign,
    params(ElectionName),
    responses(
        (status = 200, description = "Held: you lead; busy or gone", body = AcquiredDocument),
        (status = 202, description = "Still queued: repeat the request with the same request_id",
            body = AcquiredDocument),
        InQueue))]
fn campaign() {}

/// Resigns as leader or candidate
#[utoipa::path(post, path = "/v1/elections/{name}/resign", tag = "elections", request_body = Release,
    params(ElectionName),
    responses((status = 200, description = "Whether the request released a lock or a queue position", body = Released), OfLease))]
fn resign() {}

/// Shows the leader of an election
#[utoipa::path(get, path = "/v1/elections/{name}/leader", tag = "elections",
    params(
        ElectionName,
        ("after" = Option<i64>, Query, minimum = 0, description = "Zxid of an earlier response: wait for a change"),
        ("wait_ms" = Option<u32>, Query, maximum = 60000, description = "Longest wait in milliseconds")),
    responses((status = 200, description = "The leader, or none", body = LedDocument)))]
fn leader() {}

/// Reads the root of the tree
#[utoipa::path(get, path = "/v1/znodes/", tag = "znodes",
    params(View),
    responses(
        (status = 200, description = "The requested part of the znode", content((Vec<u8> = "application/octet-stream"), (ZnodeDocument = "application/json")))))]
fn get_root() {}

/// Reads data, children, stat or ACL of a znode
#[utoipa::path(get, path = "/v1/znodes/{path}", tag = "znodes",
    params(
        ZnodePath,
        View,
        ("If-None-Match" = Option<String>, Header, description = "With data: ETag of the known version")),
    responses(
        (status = 200, description = "The requested part of the znode", content((Vec<u8> = "application/octet-stream"), (ZnodeDocument = "application/json")),
            headers(("ETag" = String, description = "The version, with data and stat"))),
        (status = 304, description = "The znode still has this version"),
        OfReport))]
fn get_znode() {}

/// Sets the data of a znode
#[utoipa::path(put, path = "/v1/znodes/{path}", tag = "znodes",
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    params(ZnodePath, OfVersion, IfMatch, ByLease),
    responses(
        (status = 200, description = "The data is set", body = ZnodeDocument, headers(("ETag" = String, description = "The new version"))),
        OfZnode))]
fn set_znode() {}

/// Creates a new znode
#[utoipa::path(post, path = "/v1/znodes/{path}", tag = "znodes",
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    params(ZnodePath, Making, ByLease),
    responses(
        (status = 201, description = "The znode exists", body = ZnodeDocument, headers(
            ("ETag" = String, description = "The version"), ("Location" = String, description = "URL of the znode"))),
        (status = 404, description = "There is no parent, or the lease has ended", body = ProblemDocument,
            content_type = "application/problem+json"),
        (status = 409, description = "The znode exists, or its parent is ephemeral", body = ProblemDocument,
            content_type = "application/problem+json"),
        (status = 412, description = "The token of Rowlock-Fence does not hold the lock", body = ProblemDocument,
            content_type = "application/problem+json")))]
fn create_znode() {}

/// Deletes a childless znode
#[utoipa::path(delete, path = "/v1/znodes/{path}", tag = "znodes",
    params(ZnodePath, OfVersion, IfMatch, ByLease),
    responses(
        (status = 204, description = "The znode is deleted"),
        OfZnode,
        (status = 409, description = "The znode has children", body = ProblemDocument,
            content_type = "application/problem+json")))]
fn delete_znode() {}

/// Takes the lock of a state: Terraform's LOCK, or the method of lock_method (POST, PUT)
#[utoipa::path(post, path = "/v1/terraform/{name}", tag = "terraform",
    request_body = StateInfo,
    params(StateName),
    responses(
        (status = 200, description = "The state is locked", body = StateHeld),
        (status = 422, description = "The lock is a semaphore", body = ProblemDocument,
            content_type = "application/problem+json"),
        (status = 423, description = "Another client holds the lock; the body is its lock info",
            body = serde_json::Value)))]
fn lock_state() {}

/// Takes the lock of a state by PUT
#[utoipa::path(put, path = "/v1/terraform/{name}", tag = "terraform",
    request_body = StateInfo,
    params(StateName),
    responses(
        (status = 200, description = "The state is locked", body = StateHeld),
        (status = 422, description = "The lock is a semaphore", body = ProblemDocument,
            content_type = "application/problem+json"),
        (status = 423, description = "Another client holds the lock; the body is its lock info",
            body = serde_json::Value)))]
fn lock_state_by_put() {}

/// Releases the lock of a state: Terraform's UNLOCK, or the method of unlock_method (DELETE)
#[utoipa::path(delete, path = "/v1/terraform/{name}", tag = "terraform",
    request_body = StateInfo,
    params(StateName),
    responses(
        (status = 200, description = "Whether the request released a lock or a queue position", body = Released),
        (status = 409, description = "Another client holds the lock; the body is its lock info",
            body = serde_json::Value)))]
fn unlock_state() {}

/// Lists held and awaited locks, most contended first
#[utoipa::path(get, path = "/v1/locks", tag = "reports",
    params(
        ("prefix" = Option<String>, Query, min_length = 1, description = "Prefix of the path"),
        ("contains" = Option<String>, Query, description = "Substring of the path"),
        ("holders" = Option<bool>, Query, description = "Include the first holder of each lock"),
        Limit),
    responses((status = 200, description = "See docs/monitoring.md", body = serde_json::Value)))]
fn locks() {}

/// Shows the holders and waiters of a lock
#[utoipa::path(get, path = "/v1/queue", tag = "reports",
    params(
        ("lock" = String, Query, min_length = 1, description = "Path of the lock"),
        ("token" = Option<i64>, Query, description = "Only the queue position of this token"),
        Limit),
    responses(
        (status = 200, description = "See docs/monitoring.md", body = serde_json::Value),
        OfReport))]
fn queue() {}

/// Lists events of locks
#[utoipa::path(get, path = "/v1/history", tag = "reports",
    params(
        ("lock" = Option<String>, Query, min_length = 1, description = "Path of the lock"),
        ("session" = Option<String>, Query, pattern = "^(0x)?[0-9a-fA-F]{1,16}$", description = "Only this session"),
        ("since_ms" = Option<i64>, Query, description = "Earliest time, in milliseconds since 1970"),
        ("before" = Option<String>, Query, description = "Value of `before` in an earlier response"),
        Limit),
    responses(
        (status = 200, description = "See docs/monitoring.md", body = serde_json::Value),
        OfReport,
        (status = 501, description = "This node records no history", body = ProblemDocument,
            content_type = "application/problem+json")))]
fn history() {}

/// Shows which locks clients waited for, how long, and behind which holders
#[utoipa::path(get, path = "/v1/contention", tag = "reports",
    params(
        ("lock" = Option<String>, Query, min_length = 1, description = "Path of the lock"),
        ("prefix" = Option<String>, Query, min_length = 1, description = "Only locks with this prefix of the path"),
        ("since_ms" = Option<i64>, Query, description = "Beginning of the time, in milliseconds since 1970; otherwise an hour ago"),
        ("by" = Option<String>, Query, pattern = "^(label|address|session)$", description = "How clients are told apart"),
        Limit),
    responses(
        (status = 200, description = "See docs/monitoring.md", body = serde_json::Value),
        OfReport,
        (status = 501, description = "This node records no history", body = ProblemDocument,
            content_type = "application/problem+json")))]
fn contention() {}

/// Lists open sessions and leases with their locks
#[utoipa::path(get, path = "/v1/sessions", tag = "reports",
    params(
        ("session" = Option<String>, Query, pattern = "^(0x)?[0-9a-fA-F]{1,16}$", description = "Only this session, with its znodes"),
        Limit),
    responses(
        (status = 200, description = "See docs/monitoring.md", body = serde_json::Value),
        OfReport))]
fn sessions() {}

/// Shows the rights of a client on a lock
#[utoipa::path(get, path = "/v1/access", tag = "reports",
    params(
        ("lock" = String, Query, min_length = 1, description = "Path of the lock"),
        ("who" = Option<String>, Query, description = "Another client's identity, like token:ci: for operators")),
    responses((status = 200, description = "See docs/access-control.md", body = serde_json::Value)))]
fn access() {}

/// Ends any session or lease: for operators
#[utoipa::path(delete, path = "/v1/sessions/{session}", tag = "sessions",
    params(("session" = String, Path, pattern = "^(0x)?[0-9a-fA-F]{1,16}$", description = "Id of the session, like 0x100000000000001")),
    responses((status = 200, description = "Whether there was such a session", body = Ended)))]
fn end_session() {}

/// Shows the status of this node
#[utoipa::path(get, path = "/v1/status", tag = "reports",
    responses((status = 200, description = "See docs/monitoring.md", body = serde_json::Value)))]
fn status() {}

/// Streams lock events as server-sent events
#[utoipa::path(get, path = "/v1/watch", tag = "reports",
    params(
        ("lock" = Option<String>, Query, min_length = 1, description = "Only this lock"),
        ("prefix" = Option<String>, Query, min_length = 1, description = "Only locks with this prefix of the path"),
        ("after" = Option<i64>, Query, description = "Include events after this id"),
        ("Last-Event-ID" = Option<String>, Header, description = "Id of the last received event, sent by browsers; has priority over `after`")),
    responses((status = 200, description = "See docs/rest.md", body = String, content_type = "text/event-stream")))]
fn watch() {}

/// Returns this OpenAPI document
#[utoipa::path(get, path = "/v1/openapi.json", tag = "reports",
    responses((status = 200, description = "This document", body = serde_json::Value)))]
fn openapi() {}
