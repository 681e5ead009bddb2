//! The lock that a command is about: its name, or the path of its znode.

use rowlock_client::{Client, Election, Mutex, Semaphore};

/// Options that name a lock.
#[derive(clap::Args)]
pub struct Name {
    /// Lock name, e.g. ci/deploy, or the path of its znode, e.g. /locks/ci/deploy
    name: String,
    /// Treat NAME as a path
    #[arg(long)]
    path: bool,
}

impl Name {
    pub fn of(name: String) -> Name {
        Name { name, path: false }
    }

    pub fn as_said(&self) -> &str {
        &self.name
    }

    fn is_path(&self) -> bool {
        is_path(&self.name, self.path)
    }

    /// The handle of the lock.
    pub fn mutex(&self, client: &Client) -> Mutex {
        mutex_of(client, &self.name, self.path)
    }

    pub fn semaphore(&self, client: &Client, limit: u32) -> Semaphore {
        if self.is_path() {
            client.semaphore_at(&self.name, limit)
        } else {
            client.semaphore(&self.name, limit)
        }
    }

    pub fn election(&self, client: &Client) -> Election {
        if self.is_path() { client.election_at(&self.name) } else { client.election(&self.name) }
    }
}

/// The handle of the lock with this name or, if it is meant so, at this path.
pub fn mutex_of(client: &Client, name: &str, path: bool) -> Mutex {
    if is_path(name, path) { client.mutex_at(name) } else { client.mutex(name) }
}

fn is_path(name: &str, said: bool) -> bool {
    said || name.starts_with('/')
}
