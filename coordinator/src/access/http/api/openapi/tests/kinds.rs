//! What requests of one kind have in common: parameters, and refusals. Each is said once, here.
#![allow(dead_code)] // the macros read the fields

use std::collections::BTreeMap;

use utoipa::openapi::{ContentBuilder, Header, Ref, RefOr, Response, ResponseBuilder};
use utoipa::{IntoParams, IntoResponses, ToSchema};

/// A refusal as `application/problem+json`.
pub(super) fn problem(status: &str, what: &str) -> RefOr<Response> {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("ProblemDocument"))).build();
    let response = ResponseBuilder::new().description(what).content("application/problem+json", content);
    let is_passing = status == "503";
    let response = if is_passing { response.header("Retry-After", Header::default()) } else { response };
    RefOr::T(response.build())
}

macro_rules! refusals {
    ($($kind:ident { $($status:literal $what:literal)+ })+) => {
        $(pub(super) struct $kind;
        impl IntoResponses for $kind {
            fn responses() -> BTreeMap<String, RefOr<Response>> {
                [$(($status, $what)),+].map(|(status, what)| (status.to_owned(), problem(status, what))).into()
            }
        })+
    };
}

refusals! {
    Anything {
        "400" "The request is not as described here"
        "401" "No token, or one that does not count"
        "403" "The token does not allow it, an ACL does not, or the secret is wrong"
        "421" "The request is for another host"
        "429" "Too many wrong tokens, or no memory for another id of the lease"
        "503" "No quorum, a bound of the node, or no answer in time: Retry-After says when to ask again"
    }
    Body {
        "408" "The body did not come in time"
        "413" "The body is too long"
    }
    OfLease {
        "404" "The lease is over"
    }
    InQueue {
        "404" "The lease is over"
        "409" "Waiting would close a circle of owners"
        "422" "The lock has another limit, or is that of a semaphore"
    }
    OfZnode {
        "404" "There is no such znode, or the lease is over"
        "412" "It has another version"
    }
    OfReport {
        "404" "There is no such lock, znode or session"
    }
}

#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct Lease {
    /// Id of the lease
    lease: String,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct LockName {
    /// Levels separated by slashes: ci/deploy is /locks/ci/deploy
    name: String,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct ElectionName {
    /// Of the election; a slash between its levels is %2F here
    name: String,
}

/// The lock of a state.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct StateName {
    /// Of the state; a slash between its levels is %2F here
    name: String,
}

/// What Terraform and OpenTofu say of an attempt, with more fields than this one.
#[derive(ToSchema)]
pub(super) struct StateInfo {
    /// Of the attempt: 1 to 64 visible ASCII characters
    #[schema(rename = "ID", min_length = 1, max_length = 64, pattern = "^[!-~]+$", example = "attempt-1")]
    id: String,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct ZnodePath {
    /// Of the znode; it may have slashes
    path: String,
}

#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub(super) enum ViewName {
    Data,
    Stat,
    Acl,
    Children,
}

#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub(super) enum ConsistencyName {
    Sync,
    Local,
}

/// By what a znode goes.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub(super) enum EphemeralOf {
    Lease,
}

/// How a znode is made.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Making {
    /// Its name gets a number
    sequential: Option<bool>,
    /// It goes with the lease of Rowlock-Lease
    #[param(inline)]
    ephemeral: Option<EphemeralOf>,
    /// It goes when its last child has gone
    container: Option<bool>,
    /// It is deleted after this time without a change
    #[param(minimum = 1)]
    ttl_ms: Option<i64>,
    /// ACL entries like ip:10.0.0.0/8:cdrwa
    acl: Option<Vec<String>>,
}

/// What is read of a znode.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct View {
    /// What of it; data if it is left out
    #[param(inline)]
    view: Option<ViewName>,
    /// Whether the answer may be older than the request; sync if it is left out
    #[param(inline)]
    consistency: Option<ConsistencyName>,
    /// With children: those behind this name
    after: Option<String>,
    /// With children: most names to return
    #[param(minimum = 1, maximum = 10000)]
    limit: Option<u32>,
}

/// For which version of a znode a write is meant.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct OfVersion {
    /// Only if it has this one
    version: Option<i32>,
}

/// The same in a header.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub(super) struct IfMatch {
    /// The same as an ETag, or *
    #[param(rename = "If-Match")]
    if_match: Option<String>,
}

/// A write of a lease.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub(super) struct ByLease {
    /// The secret of the lease that does it
    #[param(rename = "Rowlock-Lease")]
    lease: Option<String>,
    /// With a lease: takes effect once
    #[param(rename = "Idempotency-Key")]
    key: Option<String>,
    /// LOCK;TOKEN: takes effect only while the token holds the lock, else 412
    #[param(rename = "Rowlock-Fence", pattern = "^.+;[0-9]+$")]
    fence: Option<String>,
}

/// How much of a report.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Limit {
    #[param(minimum = 1, maximum = 10000)]
    limit: Option<u32>,
}
