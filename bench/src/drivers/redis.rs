//! One Redis as a lock, as its documentation says: SET NX PX to acquire, compare-and-delete to release, and whoever
//! waits tries again and again.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::resp::{Connection, Reply};
use super::{Settings, spread};

/// Deletes the key only if it still has the value of this client.
const RELEASE: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";

/// One connection.
pub struct Client {
    connection: Connection,
    script: String,
    tokens: Tokens,
    ttl_ms: String,
    held: Option<(String, String)>,
}

/// Values that no other client uses, and how long to wait before the next try.
pub struct Tokens {
    random: StdRng,
    client: usize,
    count: u64,
}

impl Tokens {
    /// Those of client `n`.
    pub fn new(n: usize) -> Self {
        Tokens { random: StdRng::seed_from_u64(n as u64), client: n, count: 0 }
    }

    /// A value for one acquisition.
    pub fn next(&mut self) -> String {
        self.count += 1;
        format!("{}-{}-{:016x}", self.client, self.count, self.random.random::<u64>())
    }

    /// A millisecond, half more or less: all who wait must not try at the same time.
    pub fn pause(&mut self) -> Duration {
        Duration::from_micros(self.random.random_range(500..1500))
    }
}

/// Whether SET NX took the key.
///
/// # Errors
/// The server refused the command.
pub fn is_taken(reply: Reply) -> Result<bool> {
    match reply {
        Reply::Status(_) => Ok(true),
        Reply::Bulk(None) => Ok(false),
        other => bail!("SET was answered with {other:?}"),
    }
}

/// Loads the script of the release; its hash calls it.
///
/// # Errors
/// The server refused, or the connection broke.
pub async fn load_script(connection: &mut Connection) -> Result<String> {
    match connection.call(&[b"SCRIPT", b"LOAD", RELEASE.as_bytes()]).await? {
        Reply::Bulk(Some(hash)) => Ok(String::from_utf8(hash.to_vec())?),
        other => bail!("SCRIPT LOAD was answered with {other:?}"),
    }
}

impl Client {
    /// See [`super::Driver::connect`].
    pub async fn connect(addresses: &[String], n: usize, settings: Settings) -> Result<Self> {
        let mut connection = Connection::open(spread(addresses, n)).await?;
        let script = load_script(&mut connection).await?;
        let ttl_ms = settings.ttl.as_millis().to_string();
        Ok(Client { connection, script, tokens: Tokens::new(n), ttl_ms, held: None })
    }

    /// See [`super::Driver::acquire`].
    pub async fn acquire(&mut self, lock: &str) -> Result<()> {
        let token = self.tokens.next();
        let words: [&[u8]; 6] =
            [b"SET", lock.as_bytes(), token.as_bytes(), b"NX", b"PX", self.ttl_ms.as_bytes()];
        while !is_taken(self.connection.call(&words).await?)? {
            tokio::time::sleep(self.tokens.pause()).await;
        }
        self.held = Some((lock.to_owned(), token));
        Ok(())
    }

    /// See [`super::Driver::release`].
    pub async fn release(&mut self) -> Result<()> {
        let (lock, token) = self.held.take().context("nothing is held")?;
        let words: [&[u8]; 5] = [b"EVALSHA", self.script.as_bytes(), b"1", lock.as_bytes(), token.as_bytes()];
        match self.connection.call(&words).await? {
            Reply::Integer(1) => Ok(()),
            other => bail!("the release was answered with {other:?}"),
        }
    }
}
