//! One Redis as a lock, as in its documentation: SET NX PX to acquire, compare-and-delete to release. A
//! waiting client polls.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::resp::{Connection, Reply};
use super::{Settings, spread};

/// Deletes the key only if the key still has the value of this client.
const RELEASE: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";

pub struct Client {
    connection: Connection,
    script: String,
    tokens: Tokens,
    ttl_ms: String,
    held: Option<(String, String)>,
    /// The reply to a release has not been read.
    posted: bool,
}

/// Values unique to one client, and pauses between tries.
pub struct Tokens {
    random: StdRng,
    client: usize,
    count: u64,
}

impl Tokens {
    /// Creates the values of client `n`.
    pub fn new(n: usize) -> Self {
        Tokens { random: StdRng::seed_from_u64(n as u64), client: n, count: 0 }
    }

    /// Returns a value for one acquisition.
    pub fn next(&mut self) -> String {
        self.count += 1;
        format!("{}-{}-{:016x}", self.client, self.count, self.random.random::<u64>())
    }

    /// Returns the pause after `tries` failed tries.
    pub fn pause(&mut self, tries: u32) -> Duration {
        pause(tries).mul_f64(self.random.random_range(0.5..1.5))
    }
}

/// Returns 1 ms, doubled after every try up to 128 ms: a thousand clients that poll every millisecond would
/// leave the server no time for the holder's release. The caller varies the pause by half, so that the tries
/// spread.
fn pause(tries: u32) -> Duration {
    Duration::from_millis(1 << tries.min(7))
}

/// Reports whether SET NX took the key.
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

/// Returns the command that deletes a lock's key if the key has that token.
pub fn release_words<'a>(script: &'a str, lock: &'a str, token: &'a str) -> [&'a [u8]; 5] {
    [b"EVALSHA", script.as_bytes(), b"1", lock.as_bytes(), token.as_bytes()]
}

/// Loads the script of the release and returns its hash.
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
    pub async fn connect(addresses: &[String], n: usize, settings: Settings) -> Result<Self> {
        let mut connection = Connection::open(spread(addresses, n)).await?;
        let script = load_script(&mut connection).await?;
        let ttl_ms = settings.ttl.as_millis().to_string();
        Ok(Client { connection, script, tokens: Tokens::new(n), ttl_ms, held: None, posted: false })
    }

    pub async fn acquire(&mut self, lock: &str) -> Result<()> {
        let token = self.tokens.next();
        let words: [&[u8]; 6] =
            [b"SET", lock.as_bytes(), token.as_bytes(), b"NX", b"PX", self.ttl_ms.as_bytes()];
        for tries in 0.. {
            self.connection.send(&words).await?;
            if std::mem::take(&mut self.posted) {
                was_held(&self.connection.receive().await?)?;
            }
            if is_taken(self.connection.receive().await?)? {
                break;
            }
            tokio::time::sleep(self.tokens.pause(tries)).await;
        }
        self.held = Some((lock.to_owned(), token));
        Ok(())
    }

    pub async fn release(&mut self) -> Result<()> {
        let (lock, token) = self.held.take().context("nothing is held")?;
        let reply = self.connection.call(&release_words(&self.script, &lock, &token)).await?;
        was_held(&reply)
    }

    pub fn post_release(&mut self) -> Result<()> {
        let (lock, token) = self.held.take().context("nothing is held")?;
        self.connection.buffer(&release_words(&self.script, &lock, &token));
        self.posted = true;
        Ok(())
    }
}

/// Checks that the answer to a release confirms the hold.
///
/// # Errors
/// The client no longer held the lock.
pub fn was_held(reply: &Reply) -> Result<()> {
    match reply {
        Reply::Integer(1) => Ok(()),
        other => bail!("the release was answered with {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Reply, Tokens, is_taken, pause};

    #[test]
    fn a_key_is_taken_by_ok_and_not_by_nil() {
        assert!(is_taken(Reply::Status("OK".to_owned())).unwrap());
        assert!(!is_taken(Reply::Bulk(None)).unwrap());
        assert!(is_taken(Reply::Error("OOM".to_owned())).is_err());
    }

    #[test]
    fn pauses_grow_to_a_bound() {
        assert_eq!((pause(0), pause(1)), (Duration::from_millis(1), Duration::from_millis(2)));
        assert_eq!((pause(7), pause(u32::MAX)), (Duration::from_millis(128), Duration::from_millis(128)));
    }

    #[test]
    fn no_two_acquisitions_share_a_token() {
        let (mut one, mut other) = (Tokens::new(1), Tokens::new(11));
        let tokens = [one.next(), one.next(), other.next(), other.next()];
        assert!((0..4).all(|a| (0..a).all(|b| tokens[a] != tokens[b])), "{tokens:?}");
    }
}
