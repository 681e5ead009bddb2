//! The lock that a command is about: by its name, or by the path of its znode.

use rowlock_client::{Client, Election, Mutex};

/// Options that name a lock.
#[derive(clap::Args)]
pub struct Name {
    /// Name of the lock, or path of its znode if it begins with a slash
    name: String,
    /// NAME is a path
    #[arg(long)]
    path: bool,
}

impl Name {
    /// As the person said it.
    pub fn as_said(&self) -> &str {
        &self.name
    }

    /// NAME is meant as a path.
    fn is_path(&self) -> bool {
        self.path || self.name.starts_with('/')
    }

    /// The handle of the lock.
    pub fn mutex(&self, client: &Client) -> Mutex {
        if self.is_path() { client.mutex_at(&self.name) } else { client.mutex(&self.name) }
    }

    /// The handle of the election.
    pub fn election(&self, client: &Client) -> Election {
        if self.is_path() { client.election_at(&self.name) } else { client.election(&self.name) }
    }
}
