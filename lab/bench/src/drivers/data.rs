//! Reads and writes of plain data: znodes, and etcd's keys. Redis is left out: its data is not comparable.

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use rowlock_proto::request::{PathWatch, SetData};
use rowlock_proto::{Request, Response, Version};

use super::Driver;
use super::zookeeper::BASE;
use crate::protobuf::{Writer, bytes};

/// Consistency of reads, for systems with a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// System's default: ZooKeeper and Rowlock read the server's own copy, etcd reads linearizably.
    Default,
    /// etcd's `serializable`: reads the server's own copy, like ZooKeeper.
    Serializable,
}

/// Returns the path or key of an entry.
pub fn path(n: usize) -> String {
    format!("{BASE}/data-{n}")
}

impl Driver {
    /// Creates the missing entries.
    ///
    /// # Errors
    /// The system refused, or the connection broke.
    pub async fn make_data(&mut self, paths: &[String], data: &Bytes) -> Result<()> {
        match self {
            Driver::Zookeeper(client) => client.make_all(paths, data).await,
            _ => {
                for path in paths {
                    self.write_data(path, data).await?;
                }
                Ok(())
            }
        }
    }

    /// Reads an entry and returns its size in bytes.
    ///
    /// # Errors
    /// The system refused, or the connection broke.
    pub async fn read_data(&mut self, path: &str, reads: Reads) -> Result<usize> {
        match self {
            Driver::Rowlock(client) => Ok(client.client.get(path).await?.data.map_or(0, |data| data.len())),
            Driver::Zookeeper(client) => {
                let request = Request::GetData(PathWatch { path: path.to_owned(), watch: false });
                match client.session.call(request).await?.context("reading")? {
                    Response::Data(data, _) => Ok(data.map_or(0, |data| data.len())),
                    other => bail!("getData was answered with {other:?}"),
                }
            }
            Driver::Etcd(client) => {
                let request = range_request(path, reads == Reads::Serializable);
                let answer = client.channel.call("/etcdserverpb.KV/Range", &request).await?;
                // RangeResponse: 2 is the first entry, in which 5 is the value.
                Ok(bytes(&bytes(&answer, 2)?, 5)?.len())
            }
            Driver::Redis(_) | Driver::Redlock(_) | Driver::Shared(_) => {
                bail!("Redis and shared clients take no part in this")
            }
        }
    }

    /// Replaces an existing entry (etcd: or creates the entry).
    ///
    /// # Errors
    /// The system refused, or the connection broke.
    pub async fn write_data(&mut self, path: &str, data: &Bytes) -> Result<()> {
        match self {
            Driver::Rowlock(client) => {
                client.client.set(path, Some(data.clone()), None).await?;
            }
            Driver::Zookeeper(client) => {
                let (path, data) = (path.to_owned(), Some(data.clone()));
                let request = Request::SetData(SetData { path, data, version: Version::ANY });
                client.session.call(request).await?.context("writing")?;
            }
            Driver::Etcd(client) => {
                client.channel.call("/etcdserverpb.KV/Put", &put_request(path, data)).await?;
            }
            Driver::Redis(_) | Driver::Redlock(_) | Driver::Shared(_) => {
                bail!("Redis and shared clients take no part in this")
            }
        }
        Ok(())
    }
}

/// Encodes a RangeRequest: 1 is the key, 7 means serializable.
fn range_request(path: &str, serializable: bool) -> Bytes {
    let request = Writer::default().bytes(1, path.as_bytes());
    if serializable { request.number(7, 1).finish() } else { request.finish() }
}

/// Encodes a PutRequest: 1 is the key, 2 the value.
fn put_request(path: &str, data: &[u8]) -> Bytes {
    Writer::default().bytes(1, path.as_bytes()).bytes(2, data).finish()
}

#[cfg(test)]
mod tests {
    use super::{put_request, range_request};

    #[test]
    fn requests_are_the_bytes_that_etcd_reads() {
        assert_eq!(&range_request("/a", false)[..], [0x0a, 2, b'/', b'a']);
        assert_eq!(&range_request("/a", true)[..], [0x0a, 2, b'/', b'a', 0x38, 1]);
        assert_eq!(&put_request("/a", b"xyz")[..], [0x0a, 2, b'/', b'a', 0x12, 3, b'x', b'y', b'z']);
    }
}
