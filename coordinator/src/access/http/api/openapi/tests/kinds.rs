//! Parameters and errors shared by several requests.
#![allow(dead_code)] // the macros read the fields

use std::collections::BTreeMap;

use utoipa::openapi::{ContentBuilder, Header, Ref, RefOr, Response, ResponseBuilder};
use utoipa::{IntoParams, IntoResponses, ToSchema};

/// Returns an error response of type `application/problem+json`.
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
        "401" "No token, or an invalid token"
        "403" "Denied by the token's roles or an ACL, or wrong secret"
        "421" "The request is for another host"
        "429" "Too many wrong tokens, or no memory for another request_id of the lease"
        "503" "No quorum, a bound of the node, or no result in time; retry after Retry-After"
    }
    Body {
        "408" "The body did not arrive in time"
        "413" "The body is too long"
    }
    OfLease {
        "404" "The lease has ended"
    }
    InQueue {
        "404" "The lease has ended"
        "409" "Deadlock: waiting would close a circle of owners"
        "422" "The lock has another number of permits, or is a semaphore"
    }
    OfZnode {
        "404" "There is no such znode, or the lease has ended"
        "412" "The znode has another version"
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
    /// Name of the lock; slashes separate its levels: ci/deploy is /locks/ci/deploy
    name: String,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct ElectionName {
    /// Name of the election; a slash between its levels is encoded as %2F
    name: String,
}

/// Name of a state.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct StateName {
    /// Name of the state; a slash between its levels is encoded as %2F
    name: String,
}

/// Lock info of Terraform and OpenTofu; further fields are permitted.
#[derive(ToSchema)]
pub(super) struct StateInfo {
    /// ID of the attempt: 1 to 64 visible ASCII characters
    #[schema(rename = "ID", min_length = 1, max_length = 64, pattern = "^[!-~]+$", example = "attempt-1")]
    id: String,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct ZnodePath {
    /// Path of the znode, with slashes
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

/// Owner of an ephemeral znode.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
pub(super) enum EphemeralOf {
    Lease,
}

/// Parameters of a create.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Making {
    /// Append a sequence number to the name
    sequential: Option<bool>,
    /// Delete the znode with the lease of Rowlock-Lease
    #[param(inline)]
    ephemeral: Option<EphemeralOf>,
    /// Delete the znode after its last child
    container: Option<bool>,
    /// Delete the znode after this time without a change, in milliseconds
    #[param(minimum = 1)]
    ttl_ms: Option<i64>,
    /// ACL entries like ip:10.0.0.0/8:cdrwa
    acl: Option<Vec<String>>,
}

/// Parameters of a read.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct View {
    /// Part of the znode; data by default
    #[param(inline)]
    view: Option<ViewName>,
    /// Freshness: sync (default) is not older than the request, local may lag behind
    #[param(inline)]
    consistency: Option<ConsistencyName>,
    /// Only names after this name, for children
    after: Option<String>,
    /// Largest number of names, for children
    #[param(minimum = 1, maximum = 10000)]
    limit: Option<u32>,
}

/// Expected version of a write.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct OfVersion {
    /// Expected version of the znode
    version: Option<i32>,
}

/// Expected version as a header.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub(super) struct IfMatch {
    /// Expected version as an ETag, or *
    #[param(rename = "If-Match")]
    if_match: Option<String>,
}

/// Lease and preconditions of a write.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub(super) struct ByLease {
    /// Secret of the lease
    #[param(rename = "Rowlock-Lease")]
    lease: Option<String>,
    /// Name of the write, with a lease only; a retry with the same name takes effect once
    #[param(rename = "Idempotency-Key")]
    key: Option<String>,
    /// LOCK;TOKEN: refuses the write with 412 unless the token holds the lock
    #[param(rename = "Rowlock-Fence", pattern = "^.+;[0-9]+$")]
    fence: Option<String>,
}

/// Size of a report.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Limit {
    #[param(minimum = 1, maximum = 10000)]
    limit: Option<u32>,
}
