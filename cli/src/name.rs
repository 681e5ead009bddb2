//! Lock in a command's arguments: a name, or the path of a znode.

use rowlock_client::{Client, Election, Mutex, Semaphore};

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
        Name::new(name, false)
    }

    /// `path`: treats the name as a path.
    pub fn new(name: String, path: bool) -> Name {
        Name { name, path }
    }

    pub fn as_typed(&self) -> &str {
        &self.name
    }

    fn is_path(&self) -> bool {
        is_path(&self.name, self.path)
    }

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

/// Returns the handle of the lock named `name`, or of the znode at that path.
pub fn mutex_of(client: &Client, name: &str, path: bool) -> Mutex {
    if is_path(name, path) { client.mutex_at(name) } else { client.mutex(name) }
}

fn is_path(name: &str, forced: bool) -> bool {
    forced || name.starts_with('/')
}
