//! RedLock, as on its page: the same key on five independent masters. A client that sets three keys in time
//! holds the lock.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::Settings;
use super::redis::{Tokens, is_taken, load_script, release_words};
use super::resp::{Connection, Reply};

pub struct Client {
    connections: Vec<Connection>,
    script: String,
    tokens: Tokens,
    ttl: Duration,
    ttl_ms: String,
    held: Option<(String, String)>,
    /// The replies to a release have not been read.
    posted: bool,
}

impl Client {
    /// Connects to all masters; see [`super::Driver::connect`].
    pub async fn connect(addresses: &[String], n: usize, settings: Settings) -> Result<Self> {
        let (mut connections, mut script) = (Vec::new(), String::new());
        for address in addresses {
            let mut connection = Connection::open(address).await?;
            script = load_script(&mut connection).await?;
            connections.push(connection);
        }
        let ttl_ms = settings.ttl.as_millis().to_string();
        Ok(Client {
            connections,
            script,
            tokens: Tokens::new(n),
            ttl: settings.ttl,
            ttl_ms,
            held: None,
            posted: false,
        })
    }

    pub async fn acquire(&mut self, lock: &str) -> Result<()> {
        for tries in 0.. {
            let (token, begun) = (self.tokens.next(), Instant::now());
            let taken = self.set(lock, &token).await?;
            if is_held(taken, self.connections.len(), begun.elapsed(), self.ttl) {
                self.held = Some((lock.to_owned(), token));
                break;
            }
            self.delete(lock, &token).await?;
            tokio::time::sleep(self.tokens.pause(tries)).await;
        }
        Ok(())
    }

    pub async fn release(&mut self) -> Result<()> {
        let (lock, token) = self.held.take().context("nothing is held")?;
        let deleted = self.delete(&lock, &token).await?;
        was_held(deleted, self.connections.len())
    }

    pub fn post_release(&mut self) -> Result<()> {
        let (lock, token) = self.held.take().context("nothing is held")?;
        let words = release_words(&self.script, &lock, &token);
        self.connections.iter_mut().for_each(|connection| connection.buffer(&words));
        self.posted = true;
        Ok(())
    }

    /// Sets the key on all masters at once; returns the number of masters on which the key was free.
    async fn set(&mut self, lock: &str, token: &str) -> Result<usize> {
        let words: [&[u8]; 6] =
            [b"SET", lock.as_bytes(), token.as_bytes(), b"NX", b"PX", self.ttl_ms.as_bytes()];
        for connection in &mut self.connections {
            connection.send(&words).await?;
        }
        if std::mem::take(&mut self.posted) {
            was_held(self.deleted().await?, self.connections.len())?;
        }
        let mut taken = 0;
        for connection in &mut self.connections {
            taken += usize::from(is_taken(connection.receive().await?)?);
        }
        Ok(taken)
    }

    /// Deletes the key on all masters, whether or not a master has the key; returns the number of deletions.
    async fn delete(&mut self, lock: &str, token: &str) -> Result<usize> {
        let words = release_words(&self.script, lock, token);
        for connection in &mut self.connections {
            connection.send(&words).await?;
        }
        self.deleted().await
    }

    /// Receives each master's reply to a release; returns the number of deletions.
    async fn deleted(&mut self) -> Result<usize> {
        let mut deleted = 0;
        for connection in &mut self.connections {
            match connection.receive().await? {
                Reply::Integer(count) => deleted += usize::from(count == 1),
                other => bail!("a release was answered with {other:?}"),
            }
        }
        Ok(deleted)
    }
}

/// Checks that enough masters had the key to prove the hold until the release.
///
/// # Errors
/// A minority of the masters had the key.
pub fn was_held(deleted: usize, masters: usize) -> Result<()> {
    if deleted <= masters / 2 {
        bail!("only {deleted} masters still knew the lock at its release");
    }
    Ok(())
}

/// Reports whether a majority set the key with time left after the calls and the allowed drift: a hundredth
/// and 2 ms.
pub fn is_held(taken: usize, masters: usize, took: Duration, ttl: Duration) -> bool {
    let drift = ttl / 100 + Duration::from_millis(2);
    taken > masters / 2 && took + drift < ttl
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::is_held;

    #[test]
    fn a_lock_needs_a_majority_in_time() {
        let (soon, ttl) = (Duration::from_millis(5), Duration::from_secs(1));
        assert!(is_held(3, 5, soon, ttl));
        assert!(!is_held(2, 5, soon, ttl), "two of five are no majority");
        assert!(!is_held(2, 4, soon, ttl), "half is no majority");
        assert!(is_held(5, 5, Duration::from_millis(987), ttl));
        assert!(!is_held(5, 5, Duration::from_millis(988), ttl), "it may have run out elsewhere");
    }
}
