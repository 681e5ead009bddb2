//! One function for each request, never called: the macro makes the document of its attribute.
#![allow(dead_code)]

use super::super::super::documents::{
    AskedOf, Ended, IsHeld, LeaseKept, LeaseOpened, LedDocument, ProblemDocument, Released, StandingDocument,
    StandingsDocument, StateHeld, ZnodeDocument,
};
use super::super::super::request::{
    Acquire, AcquireAll, AskHolders, Campaign, NewLease, Release, Shown, Verify,
};
use super::kinds::{
    ByLease, ElectionName, IfMatch, InQueue, Lease, Limit, LockName, Making, OfLease, OfReport, OfVersion,
    OfZnode, StateInfo, StateName, View, ZnodePath,
};

/// Opens a new lease
#[utoipa::path(post, path = "/v1/leases", tag = "leases", request_body = NewLease,
    responses((status = 201, description = "The lease, with its secret", body = LeaseOpened)))]
fn new_lease() {}

/// Keeps a lease alive
#[utoipa::path(post, path = "/v1/leases/{lease}/keepalive", tag = "leases", request_body = Shown,
    params(Lease),
    responses((status = 200, description = "The lease goes on", body = LeaseKept), OfLease))]
fn keep_alive() {}

/// Ends a lease and releases all that it holds
#[utoipa::path(delete, path = "/v1/leases/{lease}", tag = "leases", request_body = Shown,
    params(Lease),
    responses((status = 204, description = "It is over. Repeating it is no error")))]
fn end_lease() {}

/// Takes a lock, or a place in its queue
#[utoipa::path(post, path = "/v1/locks/{name}/acquire", tag = "locks", request_body = Acquire,
    params(LockName),
    responses(
        (status = 200, description = "Held, busy or gone", body = StandingDocument),
        (status = 202, description = "Still in the queue: ask again with the same request_id",
            body = StandingDocument),
        InQueue))]
fn acquire() {}

/// Takes several locks, all or none
#[utoipa::path(post, path = "/v1/locks/acquire", tag = "locks", request_body = AcquireAll,
    responses(
        (status = 200, description = "Held, busy or gone", body = StandingsDocument),
        (status = 202, description = "Still in a queue: ask again with the same request_id",
            body = StandingsDocument),
        InQueue))]
fn acquire_all() {}

/// Shows who holds a lock, and who waits
#[utoipa::path(get, path = "/v1/locks/{name}", tag = "locks",
    params(LockName, ("token" = Option<i64>, Query, description = "Of the place that the question is about"), Limit),
    responses(
        (status = 200, description = "As /v1/queue; see docs/monitoring.md", body = serde_json::Value),
        OfReport))]
fn one_lock() {}

/// Gives a lock back, or a place in its queue
#[utoipa::path(post, path = "/v1/locks/{name}/release", tag = "locks", request_body = Release,
    params(LockName),
    responses((status = 200, description = "Whether there was anything to give back", body = Released), OfLease))]
fn release() {}

/// Checks whether a lock is held by a token
#[utoipa::path(post, path = "/v1/locks/{name}/verify", tag = "locks", request_body = Verify,
    params(LockName),
    responses((status = 200, description = "Whether it is held by this token", body = IsHeld)))]
fn verify() {}

/// Asks the holders of a lock to give it back
#[utoipa::path(post, path = "/v1/locks/{name}/ask", tag = "locks", request_body = AskHolders,
    params(LockName),
    responses((status = 200, description = "How many holders were asked", body = AskedOf)))]
fn ask() {}

/// Forces the release of a lock: for operators
#[utoipa::path(delete, path = "/v1/locks/{name}/holders/{token}", tag = "locks",
    params(
        LockName,
        ("token" = String, Path, description = "Of the holder; 0: the lock's delay")),
    responses((status = 200, description = "Whether there was anything to give back", body = Released)))]
fn force() {}

/// Campaigns in an election
#[utoipa::path(post, path = "/v1/elections/{name}/campaign", tag = "elections", request_body = Campaign,
    params(ElectionName),
    responses(
        (status = 200, description = "Held: you lead; busy or gone", body = StandingDocument),
        (status = 202, description = "Still in the queue: ask again with the same request_id",
            body = StandingDocument),
        InQueue))]
fn campaign() {}

/// Gives the lead or the candidacy back
#[utoipa::path(post, path = "/v1/elections/{name}/resign", tag = "elections", request_body = Release,
    params(ElectionName),
    responses((status = 200, description = "Whether there was anything to give back", body = Released), OfLease))]
fn resign() {}

/// Shows the leader of an election
#[utoipa::path(get, path = "/v1/elections/{name}/leader", tag = "elections",
    params(
        ElectionName,
        ("after" = Option<i64>, Query, minimum = 0, description = "The zxid of an answer: wait for another leader"),
        ("wait_ms" = Option<u32>, Query, maximum = 60000, description = "At most so long")),
    responses((status = 200, description = "The leader, or none", body = LedDocument)))]
fn leader() {}

/// Reads the root of the tree
#[utoipa::path(get, path = "/v1/znodes/", tag = "znodes",
    params(View),
    responses(
        (status = 200, description = "What was asked for", content((Vec<u8> = "application/octet-stream"), (ZnodeDocument = "application/json")))))]
fn get_root() {}

/// Reads data, children, stat or ACL of a znode
#[utoipa::path(get, path = "/v1/znodes/{path}", tag = "znodes",
    params(
        ZnodePath,
        View,
        ("If-None-Match" = Option<String>, Header, description = "With data: a version that is known")),
    responses(
        (status = 200, description = "What was asked for", content((Vec<u8> = "application/octet-stream"), (ZnodeDocument = "application/json")),
            headers(("ETag" = String, description = "The version, with data and stat"))),
        (status = 304, description = "It has this version"),
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
            ("ETag" = String, description = "The version"), ("Location" = String, description = "Its address"))),
        (status = 404, description = "There is no parent, or the lease is over", body = ProblemDocument,
            content_type = "application/problem+json"),
        (status = 409, description = "There is one, or its parent is ephemeral", body = ProblemDocument,
            content_type = "application/problem+json"),
        (status = 412, description = "The token of Rowlock-Fence does not hold the lock", body = ProblemDocument,
            content_type = "application/problem+json")))]
fn create_znode() {}

/// Deletes a childless znode
#[utoipa::path(delete, path = "/v1/znodes/{path}", tag = "znodes",
    params(ZnodePath, OfVersion, IfMatch, ByLease),
    responses(
        (status = 204, description = "It is gone"),
        OfZnode,
        (status = 409, description = "It has children", body = ProblemDocument,
            content_type = "application/problem+json")))]
fn delete_znode() {}

/// Takes the lock of a state: Terraform's LOCK, or the method of lock_method (POST, PUT)
#[utoipa::path(post, path = "/v1/terraform/{name}", tag = "terraform",
    request_body = StateInfo,
    params(StateName),
    responses(
        (status = 200, description = "The state is locked", body = StateHeld),
        (status = 422, description = "It is the lock of a semaphore", body = ProblemDocument,
            content_type = "application/problem+json"),
        (status = 423, description = "Another client has it; this is its lock info",
            body = serde_json::Value)))]
fn lock_state() {}

/// The same by PUT
#[utoipa::path(put, path = "/v1/terraform/{name}", tag = "terraform",
    request_body = StateInfo,
    params(StateName),
    responses(
        (status = 200, description = "The state is locked", body = StateHeld),
        (status = 422, description = "It is the lock of a semaphore", body = ProblemDocument,
            content_type = "application/problem+json"),
        (status = 423, description = "Another client has it; this is its lock info",
            body = serde_json::Value)))]
fn lock_state_by_put() {}

/// Gives the lock of a state back: Terraform's UNLOCK, or the method of unlock_method (DELETE)
#[utoipa::path(delete, path = "/v1/terraform/{name}", tag = "terraform",
    request_body = StateInfo,
    params(StateName),
    responses(
        (status = 200, description = "Whether there was anything to give back", body = Released),
        (status = 409, description = "Another client has it; this is its lock info",
            body = serde_json::Value)))]
fn unlock_state() {}

/// Lists locks that are held or waited for, most contended first
#[utoipa::path(get, path = "/v1/locks", tag = "reports",
    params(
        ("prefix" = Option<String>, Query, min_length = 1, description = "Only those whose path begins so"),
        ("contains" = Option<String>, Query, description = "Only those with this text in their path"),
        ("holders" = Option<bool>, Query, description = "With the first holder of each"),
        Limit),
    responses((status = 200, description = "See docs/monitoring.md", body = serde_json::Value)))]
fn locks() {}

/// Shows who holds a lock, and who waits
#[utoipa::path(get, path = "/v1/queue", tag = "reports",
    params(
        ("lock" = String, Query, min_length = 1, description = "Its path"),
        ("token" = Option<i64>, Query, description = "Of the place that the question is about"),
        Limit),
    responses(
        (status = 200, description = "See docs/monitoring.md", body = serde_json::Value),
        OfReport))]
fn queue() {}

/// Lists what happened to locks
#[utoipa::path(get, path = "/v1/history", tag = "reports",
    params(
        ("lock" = Option<String>, Query, min_length = 1, description = "Its path"),
        ("session" = Option<String>, Query, pattern = "^(0x)?[0-9a-fA-F]{1,16}$", description = "Of this session alone"),
        ("since_ms" = Option<i64>, Query, description = "Not older, milliseconds since 1970"),
        ("before" = Option<String>, Query, description = "What `before` of an answer says"),
        Limit),
    responses(
        (status = 200, description = "See docs/monitoring.md", body = serde_json::Value),
        OfReport,
        (status = 501, description = "This node keeps no history", body = ProblemDocument,
            content_type = "application/problem+json")))]
fn history() {}

/// Lists open sessions and leases, and what they hold
#[utoipa::path(get, path = "/v1/sessions", tag = "reports",
    params(
        ("session" = Option<String>, Query, pattern = "^(0x)?[0-9a-fA-F]{1,16}$", description = "This one, with its znodes"),
        Limit),
    responses(
        (status = 200, description = "See docs/monitoring.md", body = serde_json::Value),
        OfReport))]
fn sessions() {}

/// Shows the rights of a client on a lock
#[utoipa::path(get, path = "/v1/access", tag = "reports",
    params(
        ("lock" = String, Query, min_length = 1, description = "Its path"),
        ("who" = Option<String>, Query, description = "Another client's identity, like token:ci: for operators")),
    responses((status = 200, description = "See docs/access-control.md", body = serde_json::Value)))]
fn access() {}

/// Ends any session or lease: for operators
#[utoipa::path(delete, path = "/v1/sessions/{session}", tag = "sessions",
    params(("session" = String, Path, pattern = "^(0x)?[0-9a-fA-F]{1,16}$", description = "Its id, like 0x100000000000001")),
    responses((status = 200, description = "Whether there was such a session", body = Ended)))]
fn end_session() {}

/// Shows the status of this node
#[utoipa::path(get, path = "/v1/status", tag = "reports",
    responses((status = 200, description = "See docs/monitoring.md", body = serde_json::Value)))]
fn status() {}

/// Streams what happens to locks, as server-sent events
#[utoipa::path(get, path = "/v1/watch", tag = "reports",
    params(
        ("lock" = Option<String>, Query, min_length = 1, description = "Of this lock"),
        ("prefix" = Option<String>, Query, min_length = 1, description = "Of locks whose path begins so"),
        ("after" = Option<i64>, Query, description = "Also what has happened since this id"),
        ("Last-Event-ID" = Option<String>, Header, description = "The same, as browsers say it")),
    responses((status = 200, description = "See docs/rest.md", body = String, content_type = "text/event-stream")))]
fn watch() {}

/// Returns this OpenAPI document
#[utoipa::path(get, path = "/v1/openapi.json", tag = "reports",
    responses((status = 200, description = "This document", body = serde_json::Value)))]
fn openapi() {}
