//! Three nodes of the release build beside this program, with default settings and those of [`SETTINGS`].

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::process::Command;

use super::words::leader;
use super::{Process, Servers, WAIT_MAX, refuse_taken};
use crate::drivers::rowlock::{self as driver, TLS_OFFSET};
use crate::system::System;

/// Client ports are this and the next two; TLS, peer and HTTP ports are 50, 100 and 200 above.
const PORT: u16 = 23181;

/// Environment variable with lines for `cluster.toml`, to measure a setting.
const SETTINGS: &str = "ROWLOCK_BENCH_SETTINGS";

/// Returns the binary `rowlock` in the folder of this program.
///
/// # Errors
/// The folder has no such binary.
pub fn binary() -> Result<PathBuf> {
    let beside = std::env::current_exe()?.with_file_name("rowlock");
    if !beside.is_file() {
        bail!("{} is missing: cargo build --release", beside.display());
    }
    Ok(beside)
}

pub async fn start(system: System, folder: &Path) -> Result<Servers> {
    let binary = binary()?;
    refuse_taken((PORT..PORT + 3).flat_map(|port| [port, port + 100, port + 200, port + TLS_OFFSET]))?;
    std::fs::create_dir_all(folder)?;
    certificates(&binary, folder).await?;
    let mut config = String::from(
        "log = \"warn\"\n[client]\nwords = [\"*\"]\n\
         super_digest = \"super:D/InIHSb7yEEbrWz8b9l71RjZJU=\"\n[tls]\ncert = \"tls/node-{id}.pem\"\n\
         key = \"tls/node-{id}.key\"\nclient_ca = \"tls/clients-ca.pem\"\n",
    );
    config.push_str(&std::env::var(SETTINGS).unwrap_or_default());
    config.push('\n');
    let mut addresses = Vec::new();
    for id in 1..=3_u16 {
        let port = PORT + id - 1;
        let address = format!("127.0.0.1:{port}");
        writeln!(
            config,
            "[[node]]\nid = {id}\nclient = \"{address}\"\npeer = \"127.0.0.1:{}\"\nhttp = \"127.0.0.1:{}\"\n\
             secure_client = \"127.0.0.1:{}\"",
            port + 100,
            port + 200,
            port + TLS_OFFSET
        )?;
        addresses.push(address);
    }
    let file = folder.join("cluster.toml");
    std::fs::write(&file, config)?;
    // The file names a superuser.
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600))?;
    let mut processes = Vec::new();
    for id in 1..=3_u16 {
        let mut command = Command::new(&binary);
        command.arg("serve").arg("--config").arg(&file).arg("--node").arg(id.to_string());
        processes.push(Process::start(command, &folder.join(format!("node-{id}.log")))?);
    }
    let begun = std::time::Instant::now();
    while leader(&addresses).await.is_err() {
        if begun.elapsed() > WAIT_MAX {
            bail!("no leader after {WAIT_MAX:?}: see {}", folder.display());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let durability =
        "three nodes; a quorum has the write in its log, by fdatasync, before the answer".to_owned();
    let output = Command::new(&binary).arg("--version").output().await?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Ok(Servers { addresses, processes, durability, version, folder: folder.to_owned(), system })
}

/// Creates the certificates of the nodes and of this program.
async fn certificates(binary: &Path, folder: &Path) -> Result<()> {
    let tls = folder.join("tls");
    for what in [&["init", "--nodes", "3"][..], &["client", "bench"]] {
        let output = Command::new(binary).arg("tls").args(what).arg("--dir").arg(&tls).output().await?;
        if !output.status.success() {
            bail!("rowlock tls {}: {}", what[0], String::from_utf8_lossy(&output.stderr));
        }
    }
    driver::use_certificates(&tls);
    Ok(())
}
