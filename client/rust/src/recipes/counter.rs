//! [`AtomicCounter`]: a shared number, changed by comparing versions.
//!
//! The znode's data are the number in decimal digits, the format of kazoo's `Counter`.

use bytes::Bytes;
use rowlock_env::backoff::pause_after;
use rowlock_env::decides;
use rowlock_env::time;
use rowlock_proto::{CreateMode, ErrorCode, Version};

use super::site::{Kind, Site};
use crate::client::Client;
use crate::error::Error;
use crate::limits::{COUNTER_ATTEMPTS, COUNTER_PAUSES};

/// Whole number shared by all clients. The number is 0 until a client changes the counter, and lasts until
/// [`AtomicCounter::remove`].
///
/// A change compares versions: read, compute, write if no other client wrote in between. Otherwise the client
/// retries after a short random pause, up to a limit ([`Error::Contended`]). The counter suits some ten
/// changes a second; a number that hundreds of clients change all the time is a bottleneck with any store
/// that orders writes.
///
/// **Exactly once.** On a Rowlock cluster the client repeats a change without a reply under the same request
/// id, and the change takes effect once. Apache ZooKeeper has no request ids: there the call fails with
/// [`Error::ConnectionLoss`] ([`Error::may_have_happened`] is true), and the caller decides about adding
/// again.
///
/// ```no_run
/// # async fn demo(client: rowlock_client::Client) -> Result<(), rowlock_client::Error> {
/// let tickets = client.counter("tickets");
/// let mine = tickets.add(1).await?;
/// # let _ = mine;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct AtomicCounter {
    site: Site,
}

impl Client {
    /// The counter of this name. A handle only, no traffic; names as for [`Client::mutex`].
    pub fn counter(&self, name: impl AsRef<str>) -> AtomicCounter {
        AtomicCounter { site: Site::named(self, Kind::Counter, name.as_ref()) }
    }

    /// The counter in the znode at this path, for sharing with kazoo's `Counter`.
    pub fn counter_at(&self, path: impl AsRef<str>) -> AtomicCounter {
        AtomicCounter { site: Site::at(self, path.as_ref()) }
    }
}

/// Number, and the znode's version; no version means no znode, hence 0.
struct CounterValue {
    value: i64,
    version: Option<Version>,
}

impl AtomicCounter {
    /// Path of the counter's znode; for an invalid name the path with the name escaped.
    pub fn path(&self) -> &str {
        self.site.path()
    }

    /// Reads the number, not older than this call.
    ///
    /// # Errors
    /// [`Error::UnexpectedData`]: the znode holds something else. [`Error::InvalidName`], [`Error::Rejected`]
    /// (NoAuth); the end of the session.
    /// # Cancel safety
    /// Cancel safe.
    pub async fn get(&self) -> Result<i64, Error> {
        Ok(self.seen().await?.value)
    }

    /// Adds `delta`, which may be negative, and returns the sum.
    ///
    /// # Errors
    /// [`Error::Overflow`]: the sum exceeds an `i64`; nothing has changed. [`Error::Contended`]: other
    /// clients kept changing the counter; nothing has changed. [`Error::ConnectionLoss`], only on servers
    /// without request ids: the change may have taken effect. Otherwise the errors of [`AtomicCounter::get`].
    /// # Cancel safety
    /// A dropped future's change may or may not take effect.
    /// # Ordering
    /// All changes of a counter take effect one after the other; each returns its own result.
    pub async fn add(&self, delta: i64) -> Result<i64, Error> {
        let sum = |value: i64| value.checked_add(delta).ok_or(Error::Overflow).map(Some);
        self.change(sum).await?.ok_or(Error::Protocol("adding always changes"))
    }

    /// Sets the number to `value`.
    ///
    /// # Errors
    /// [`Error::ConnectionLoss`], only on servers without request ids: the change may have taken effect.
    /// Otherwise the errors of [`AtomicCounter::get`].
    /// # Cancel safety
    /// A dropped future's change may or may not take effect.
    pub async fn set(&self, value: i64) -> Result<(), Error> {
        let path = self.site.usable()?;
        loop {
            match self.site.client().set(path, Some(text(value)), None).await {
                Err(Error::Rejected(ErrorCode::NoNode)) => self.make().await?,
                result => return result.map(drop),
            }
        }
    }

    /// Sets the number to `new` if the number is `expected`; `false`: the number differs, and stays.
    ///
    /// # Errors
    /// The errors of [`AtomicCounter::add`], without the overflow.
    /// # Cancel safety
    /// A dropped future's change may or may not take effect.
    pub async fn compare_and_set(&self, expected: i64, new: i64) -> Result<bool, Error> {
        let swap = |value: i64| Ok((value == expected).then_some(new));
        self.change(swap).await.map(|changed| changed.is_some())
    }

    /// Removes the znode: the number is 0 again. Do not remove a counter while other clients change the
    /// counter: a change begun before the removal could mistake the new znode for the old.
    ///
    /// # Errors
    /// The errors of [`AtomicCounter::set`].
    /// # Cancel safety
    /// A dropped future's removal may or may not take effect.
    pub async fn remove(&self) -> Result<(), Error> {
        match self.site.client().delete(self.site.usable()?, None).await {
            Ok(()) | Err(Error::Rejected(ErrorCode::NoNode)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Writes `new` of the number; `None`: `new` requested no change.
    async fn change(&self, new: impl Fn(i64) -> Result<Option<i64>, Error>) -> Result<Option<i64>, Error> {
        for attempt in 1..=COUNTER_ATTEMPTS {
            let seen = self.seen().await?;
            let Some(value) = new(seen.value)? else { return Ok(None) };
            match seen.version {
                None => self.make().await?,
                Some(version) if self.write(value, version).await? => return Ok(Some(value)),
                Some(_) => time::sleep(pause_after(attempt, &COUNTER_PAUSES)).await,
            }
        }
        Err(Error::Contended)
    }

    async fn seen(&self) -> Result<CounterValue, Error> {
        let path = self.site.usable()?;
        match self.site.fresh(|| self.site.client().get(path)).await {
            Ok(znode) => {
                let value = number(znode.bytes()).ok_or_else(|| Error::UnexpectedData(path.to_owned()))?;
                Ok(CounterValue { value, version: Some(znode.stat.version) })
            }
            Err(Error::Rejected(ErrorCode::NoNode)) => Ok(CounterValue { value: 0, version: None }),
            Err(error) => Err(error),
        }
    }

    /// Writes if the version is unchanged; `false`: the version differs, and nothing was written.
    ///
    /// Never repeats a write with unknown outcome, which could take effect twice.
    async fn write(&self, value: i64, version: Version) -> Result<bool, Error> {
        match self.site.client().set(self.site.usable()?, Some(text(value)), Some(version)).await {
            Ok(_) => Ok(true),
            Err(Error::Rejected(ErrorCode::BadVersion | ErrorCode::NoNode)) => Ok(false),
            Err(error)
                if decides!("counter-may-retry", error.is_retryable() && !error.may_have_happened()) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Creates the znode. Empty data read as 0: the creation changes nothing and may be repeated.
    async fn make(&self) -> Result<(), Error> {
        self.site.make(Bytes::new(), CreateMode::Persistent).await
    }
}

fn text(value: i64) -> Bytes {
    Bytes::from(value.to_string())
}

/// Parses a number; `None` for other text. No data at all are 0.
fn number(data: &[u8]) -> Option<i64> {
    if data.is_empty() {
        return Some(0);
    }
    std::str::from_utf8(data).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_decimal_text_and_no_data_are_zero() {
        for value in [0, 1, -1, i64::MIN, i64::MAX] {
            assert_eq!(number(&text(value)), Some(value));
        }
        assert_eq!((number(b""), number(b" 7\n")), (Some(0), Some(7)));
        assert_eq!((number(b"1.5"), number(b"9223372036854775808"), number(&[0xff])), (None, None, None));
    }
}
