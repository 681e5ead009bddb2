//! etcd's own lock service over gRPC: Lock queues on the server, and the lock ends with its client's lease.

use anyhow::{Context, Result};
use bytes::Bytes;

use super::{Settings, spread};
use crate::grpc::{Channel, Shared};
use crate::protobuf::{Writer, bytes, number};

/// Calls of the lock service.
pub const LOCK: &str = "/v3lockpb.Lock/Lock";
pub const UNLOCK: &str = "/v3lockpb.Lock/Unlock";

pub struct Client {
    /// Channel for calls beyond locks.
    pub channel: Channel,
    lease: i64,
    held: Option<Bytes>,
}

impl Client {
    pub async fn connect(addresses: &[String], n: usize, settings: Settings) -> Result<Self> {
        let mut channel = Channel::open(spread(addresses, n)).await?;
        let ttl_s = i64::try_from(settings.ttl.as_secs())?;
        let answer = channel.call("/etcdserverpb.Lease/LeaseGrant", &grant(ttl_s)).await?;
        let lease = number(&answer, 2)? as i64;
        channel.repeat("/etcdserverpb.Lease/LeaseKeepAlive", of_lease(lease), settings.ttl / 3)?;
        Ok(Client { channel, lease, held: None })
    }

    pub async fn acquire(&mut self, lock: &str) -> Result<()> {
        let answer = self.channel.call(LOCK, &lock_request(lock, self.lease)).await?;
        self.held = Some(held(&answer)?);
        Ok(())
    }

    pub async fn release(&mut self) -> Result<()> {
        let key = self.held.take().context("nothing is held")?;
        self.channel.call(UNLOCK, &unlock_request(&key)).await?;
        Ok(())
    }

    /// Returns the channel for many tasks, and the lease.
    pub fn into_shared(self) -> (Shared, i64) {
        (self.channel.into_shared(), self.lease)
    }

    pub async fn close(mut self) -> Result<()> {
        self.channel.call("/etcdserverpb.Lease/LeaseRevoke", &of_lease(self.lease)).await?;
        Ok(())
    }
}

/// Encodes a LeaseGrantRequest: 1 is the time to live; the server chooses the id.
fn grant(ttl_s: i64) -> Bytes {
    Writer::default().number(1, ttl_s).finish()
}

/// Encodes a LeaseKeepAliveRequest or LeaseRevokeRequest: 1 is the id.
fn of_lease(lease: i64) -> Bytes {
    Writer::default().number(1, lease).finish()
}

/// Encodes a LockRequest: 1 is the name, 2 the lease.
pub fn lock_request(lock: &str, lease: i64) -> Bytes {
    Writer::default().bytes(1, lock.as_bytes()).number(2, lease).finish()
}

/// Encodes an UnlockRequest: 1 is the key.
pub fn unlock_request(key: &[u8]) -> Bytes {
    Writer::default().bytes(1, key).finish()
}

/// Decodes a LockResponse: 2 is the holder's key.
///
/// # Errors
/// The answer has no key.
pub fn held(answer: &Bytes) -> Result<Bytes> {
    bytes(answer, 2)
}

#[cfg(test)]
mod tests {
    use super::{grant, lock_request, of_lease};

    #[test]
    fn requests_are_the_bytes_that_etcd_reads() {
        assert_eq!(&grant(10)[..], [0x08, 10]);
        assert_eq!(&of_lease(0x1234)[..], [0x08, 0xb4, 0x24]);
        assert_eq!(&lock_request("ab", 3)[..], [0x0a, 2, b'a', b'b', 0x10, 3]);
    }
}
