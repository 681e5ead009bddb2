//! `rowlock sem`: runs a command under permits of a semaphore, which bound the number of concurrent commands.

use std::process::ExitCode;

use rowlock_client::Client;

use super::options::{TimeLimit, request_on_terms};
use super::queued::Queued;
use crate::exit::Failure;
use crate::name::Name;

/// Run a command under permits of a semaphore, or hold them until a signal
#[derive(clap::Args)]
pub struct Sem {
    #[command(flatten)]
    name: Name,
    /// Number of permits of the semaphore. The first client decides; another number is refused [default: that
    /// of the semaphore]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Number of permits that the command takes
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    permits: u32,
    /// Fail instead of waiting if too few permits are free
    #[arg(long, visible_alias = "nb", conflicts_with = "timeout")]
    nonblock: bool,
    #[command(flatten)]
    queued: Queued,
}

impl Sem {
    /// Exits with the command's code.
    pub async fn run(self) -> Result<ExitCode, Failure> {
        let acquire = async |client: &Client, owner, limit: &TimeLimit| {
            let request = self.name.semaphore(client, self.limit.unwrap_or(0)).request(self.permits);
            request_on_terms!(request, self.queued.terms, owner, limit)
        };
        self.queued.run(&self.name, self.nonblock, acquire).await
    }
}
