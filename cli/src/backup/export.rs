//! `rowlock backup export`: writes a backup's tree in another system's format.

use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rowlock_backup::file;
use rowlock_backup::file::Target;
use serde_json::json;

use super::inspect::{open, refused};
use super::zookeeper::{self, Ttl};
use crate::exit::{DATA_FOLDER, Failure, IO, USAGE};
use crate::print::print;
use crate::znode::{Output, print_json};

/// Export a backup as a snapshot for Apache ZooKeeper 3.8
///
/// Exported: persistent znodes and containers with their data, ACLs and stats. Left out: sessions and
/// ephemeral znodes, and with them holders and waiters of locks. Works offline.
#[derive(clap::Args)]
pub struct Export {
    /// Path of the backup file
    file: PathBuf,
    /// Output file or its folder; its name is snapshot.ZXID, from which ZooKeeper takes the zxid
    #[arg(long, value_name = "FILE")]
    zookeeper: PathBuf,
    /// Keep times to live; needs a ZooKeeper with extendedTypesEnabled (others delete such znodes)
    #[arg(long)]
    keep_ttl: bool,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

impl Export {
    /// Exits with 64 if the name differs from the one ZooKeeper looks for, with 73 if the file exists.
    pub(super) fn run(self) -> Result<ExitCode, Failure> {
        let read = file::read(open(&self.file)?);
        let (header, machine) = read.map_err(|e| refused(&self.file, &e))?;
        let name = format!("snapshot.{:x}", header.zxid);
        let path = if self.zookeeper.is_dir() { self.zookeeper.join(&name) } else { self.zookeeper.clone() };
        if path.file_name().and_then(|given| given.to_str()) != Some(&*name) {
            let problem = format!(
                "{}: ZooKeeper takes the zxid from the name; call it {name}, or name a folder",
                path.display()
            );
            return Err(Failure::new(USAGE, problem));
        }
        let done = self.write(&machine, &path)?;
        match self.output {
            Output::Simple => {
                let mut text = format!(
                    "{} znodes written to {}\n{} ephemeral znodes left out\n",
                    done.znodes,
                    path.display(),
                    done.ephemerals
                );
                if done.ttls > 0 {
                    text.push_str(&format!("{} znodes are persistent now: see --keep-ttl\n", done.ttls));
                }
                print(text.as_bytes())?;
            }
            Output::Json => print_json(&json!({
                "file": path, "zxid": header.zxid, "znodes": done.znodes, "ephemerals_left_out": done.ephemerals,
                "ttls_dropped": done.ttls,
            }))?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn write(&self, machine: &rowlock_state::Machine, path: &Path) -> Result<zookeeper::Exports, Failure> {
        let mut target = Target::create(path, false).map_err(|e| {
            let code = if e.kind() == ErrorKind::AlreadyExists { DATA_FOLDER } else { IO };
            Failure::new(code, format!("{}: {e}", path.display()))
        })?;
        let ttl = if self.keep_ttl { Ttl::Kept } else { Ttl::Dropped };
        let written = zookeeper::write(machine, ttl, &mut target).and_then(|done| {
            target.flush()?;
            target.keep()?;
            Ok(done)
        });
        written.map_err(|e| Failure::new(IO, format!("{}: {e}", path.display())))
    }
}
