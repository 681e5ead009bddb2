//! The `rowlock` command line: parses arguments, dispatches, reports a failure in one line.
//!
//! One file per subcommand; a subcommand only turns flags into calls of the library crates and answers into
//! text. Data goes to stdout, messages to stderr, the result into the exit code (`exit.rs`).

// The macros of std panic when stdout's reader is gone: use the functions of `print`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod acl;
mod backup;
mod check;
mod cluster;
mod debug;
mod doctor;
mod explain;
mod fence;
mod found;
mod health;
mod help;
mod http_get;
mod import;
mod lock;
mod log_level;
mod logging;
mod mcp;
mod member;
mod moment;
mod name;
mod number;
mod operate;
#[cfg(test)]
mod pages;
mod patience;
mod recover;
mod serve;
mod sim;
mod status;
mod superuser;
mod systemd;
mod tls;
mod token;
mod top;
mod up;
mod upgrade;
mod wal;
mod znode;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser};
use rowlock_terminal::{exit, log_filter, paint, print, signals, table};

use crate::print::errln;
use exit::{Failure, SOFTWARE, USAGE};

/// Allocator for small values: every node applies every command and allocates dozens of small values per
/// command. The system's allocator took an eighth of all processor time (docs/decisions/speed.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A ZooKeeper-compatible lock coordinator: fair queued locks that stay safe under partitions
#[derive(Parser)]
#[command(name = "rowlock", version, max_term_width = 100, after_help = help::ALL)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    #[command(after_help = help::UP)]
    Up(up::Up),
    #[command(after_help = help::DEV)]
    Dev(up::dev::Dev),
    #[command(after_help = help::SERVE)]
    Serve(serve::Serve),
    #[command(after_help = help::LOCK)]
    Lock(lock::Lock),
    #[command(after_help = help::SEM)]
    Sem(lock::Sem),
    #[command(after_help = help::ACQUIRE)]
    Acquire(lock::lease::Acquire),
    #[command(after_help = help::ONCE)]
    Once(lock::once::Once),
    #[command(after_help = help::TERRAFORM)]
    Terraform(lock::terraform::Terraform),
    #[command(after_help = help::ELECT)]
    Elect(lock::elect::Elect),
    #[command(after_help = help::QUEUE)]
    Queue(explain::queue::Queue),
    Locks(explain::Locks),
    #[command(after_help = help::ASK)]
    Ask(explain::ask::AskHolders),
    #[command(after_help = help::RELEASE)]
    Release(explain::ask::Release),
    #[command(after_help = help::HISTORY)]
    History(explain::history::History),
    #[command(after_help = help::CONTENTION)]
    Contention(explain::contention::Contention),
    Session(explain::session::Session),
    Fence(fence::Fence),
    #[command(after_help = help::MCP)]
    Mcp(mcp::Mcp),
    Status(status::Status),
    #[command(after_help = help::TOP)]
    Top(top::Top),
    Health(health::Health),
    #[command(after_help = help::DOCTOR)]
    Doctor(doctor::Doctor),
    Check(check::Check),
    Debug(debug::Debug),
    Ls(znode::tree::Ls),
    Get(znode::get::Get),
    Set(znode::create::Set),
    #[command(after_help = help::CREATE)]
    Create(znode::create::Create),
    Delete(znode::tree::Delete),
    Stat(znode::get::Stat),
    Import(import::Import),
    Backup(backup::Backup),
    Recover(recover::Recover),
    Wal(wal::Wal),
    Member(member::Member),
    Upgrade(upgrade::Upgrade),
    Drain(operate::Drain),
    Rebalance(operate::Rebalance),
    LogLevel(log_level::LogLevel),
    Tls(tls::Tls),
    Token(token::TokenCommand),
    Auth(superuser::Auth),
    #[command(after_help = help::ACL)]
    Acl(acl::AclCommand),
    Sim(sim::Sim),
    Completions(help::Completions),
    Version(help::Version),
    #[command(name = "__exec", hide = true)]
    Exec(lock::job::Exec),
    #[command(name = "__manuals", hide = true)]
    Manuals(help::Manuals),
    #[command(name = "__warden", hide = true)]
    Warden(lock::warden::Watch),
}

fn main() -> ExitCode {
    let all = help::grouped(Cli::command());
    let cli = match all.try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(mut e) => {
            help::suggest(&mut e);
            let e = number::explained(e);
            // Ignores a failed print: no reader is left.
            let _ = e.print();
            return match e.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
                _ => ExitCode::from(USAGE),
            };
        }
    };
    abort_on_panic();
    run(cli.command).unwrap_or_else(|failure| {
        if !failure.message.is_empty() {
            errln!("rowlock: {failure}");
        }
        ExitCode::from(failure.code)
    })
}

/// Aborts the process on every panic, in any task or thread. A panic is a bug, and a node that lost one task
/// would go on acknowledging writes.
fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}

fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        // These commands need no async runtime.
        Command::Exec(exec) => return exec.run(),
        Command::Sim(sim) => return sim.run(),
        Command::Warden(warden) => return warden.run(),
        Command::Fence(fence) => return fence.run(),
        _ => {}
    }
    let mut runtime = match command {
        Command::Serve(_) => serve::runtime(),
        // The kernel ties a child to the thread that starts the child: use the main thread.
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = runtime
        .enable_all()
        .build()
        .map_err(|e| Failure::new(SOFTWARE, format!("the async runtime does not start: {e}")))?;
    rowlock_env::time::align_beats();
    // Shutdown waits for a node's disk threads. The only blocking thread of a client command is a name
    // lookup, possibly a slow one: skip the wait.
    let waits_for_threads = matches!(command, Command::Serve(_) | Command::Up(_) | Command::Dev(_));
    let ended = rowlock_env::task::block_on(&runtime, run_async(command));
    if !waits_for_threads {
        runtime.shutdown_background();
    }
    ended
}

async fn run_async(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Up(up) => up.run().await,
        Command::Dev(dev) => dev.run().await,
        Command::Serve(serve) => serve.run().await,
        Command::Lock(lock) => lock.run().await,
        Command::Sem(sem) => sem.run().await,
        Command::Acquire(acquire) => acquire.run().await,
        Command::Once(once) => once.run().await,
        Command::Terraform(terraform) => terraform.run().await,
        Command::Elect(elect) => elect.run().await,
        Command::Queue(queue) => queue.run().await,
        Command::Locks(locks) => locks.run().await,
        Command::Ask(ask) => ask.run().await,
        Command::Release(release) => release.run().await,
        Command::History(history) => history.run().await,
        Command::Contention(contention) => contention.run().await,
        Command::Session(session) => session.run().await,
        Command::Mcp(mcp) => mcp.run().await,
        Command::Status(status) => status.run().await,
        Command::Top(top) => top.run().await,
        Command::Health(health) => health.run().await,
        Command::Doctor(doctor) => doctor.run().await,
        Command::Check(check) => check.run().await,
        Command::Debug(debug) => debug.run().await,
        Command::Ls(ls) => ls.run().await,
        Command::Get(get) => get.run().await,
        Command::Set(set) => set.run().await,
        Command::Create(create) => create.run().await,
        Command::Delete(delete) => delete.run().await,
        Command::Stat(stat) => stat.run().await,
        Command::Import(import) => import.run().await,
        Command::Backup(backup) => backup.run().await,
        Command::Recover(recover) => recover.run(),
        Command::Wal(wal) => wal.run(),
        Command::Drain(drain) => drain.run().await,
        Command::Rebalance(rebalance) => rebalance.run().await,
        Command::LogLevel(log_level) => log_level.run().await,
        Command::Member(member) => member.run().await,
        Command::Upgrade(upgrade) => upgrade.run().await,
        Command::Tls(tls) => tls.run(),
        Command::Token(token) => token.run(),
        Command::Auth(auth) => auth.run(),
        Command::Acl(acl) => acl.run().await,
        Command::Sim(sim) => sim.run(),
        Command::Completions(completions) => completions.run(),
        Command::Version(version) => version.run(),
        Command::Manuals(manuals) => manuals.run(),
        Command::Exec(exec) => exec.run(),
        Command::Warden(warden) => warden.run(),
        Command::Fence(fence) => fence.run(),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn flags_of_all_commands_are_well_formed() {
        super::Cli::command().debug_assert();
    }

    #[test]
    fn help_fits_into_a_terminal_of_a_hundred_columns() {
        fn check(command: &mut clap::Command) {
            for help in [command.render_help().to_string(), command.render_long_help().to_string()] {
                for line in help.lines() {
                    assert!(line.chars().count() <= 100, "{}: {line}", command.get_name());
                }
            }
            command.get_subcommands_mut().for_each(check);
        }
        let mut all = crate::help::grouped(super::Cli::command()).term_width(100);
        all.build();
        check(&mut all);
    }
}
