//! Limits of queues, and of answers about other clients' positions.

/// Limit of contenders of one lock. Acquires beyond get `QuotaExceeded`; plain creates have no limit. The
/// leader's limit is lower ([`crate::cost::QUEUE_PLACES_MAX`]).
pub const QUEUE_MAX: usize = 100_000;

/// Limit of locks in one acquire, and of claims in one release. Beyond: `BadArguments`.
pub const PLACES_MAX: usize = 1_024;

/// Limit of a queue znode's data shown to other clients, in bytes.
pub const LABEL_MAX: usize = 256;

/// Limit of a queue znode's path shown to other clients, in bytes. Longer paths lose their end.
pub const PARTY_PATH_MAX: usize = 1_024;

/// Limit of other clients' names in one answer, in bytes; an answer omits further names. The rest of an
/// answer belongs to the client, and is no longer than the request.
pub const PARTIES_MAX_BYTES: usize = 64 << 10;
