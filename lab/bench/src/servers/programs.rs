//! Programs of other systems: Debian's packages, or the releases in a folder filled by `lab/bench/rivals`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

/// Location of the programs of other systems.
#[derive(Args, Clone, Default)]
pub struct Programs {
    /// Folder that lab/bench/rivals has filled with etcd and ZooKeeper [default: Debian's packages]
    #[arg(long, value_name = "DIR", env = "ROWLOCK_BENCH_RIVALS")]
    rivals: Option<PathBuf>,
}

impl Programs {
    /// Returns the path of etcd's server.
    ///
    /// # Errors
    /// The program is missing.
    pub fn etcd(&self) -> Result<PathBuf> {
        let Some(folder) = &self.rivals else { return debian("/usr/bin/etcd", "etcd-server") };
        let program = folder.join("etcd");
        if !program.exists() {
            bail!("{} is missing: run lab/bench/rivals {}", program.display(), folder.display());
        }
        Ok(program)
    }

    /// Returns the classpath of ZooKeeper's server.
    ///
    /// # Errors
    /// There is no jar of ZooKeeper.
    pub fn zookeeper(&self) -> Result<String> {
        let Some(folder) = &self.rivals else {
            return Ok(debian("/usr/share/java/zookeeper.jar", "zookeeper")?.display().to_string());
        };
        let jars = folder.join("zookeeper");
        let missing = || format!("{} has no ZooKeeper: run lab/bench/rivals {0}", folder.display());
        let mut names = std::fs::read_dir(&jars).with_context(missing)?.flatten().map(|one| one.file_name());
        if !names.any(|name| name.to_string_lossy().starts_with("zookeeper-")) {
            bail!(missing());
        }
        Ok(format!("{}/*", jars.display()))
    }
}

/// Returns a file of one of Debian's packages; the error for a missing file names the package to install.
pub fn debian(file: &str, package: &str) -> Result<PathBuf> {
    if !Path::new(file).exists() {
        bail!("{file} is missing: install Debian's package {package}");
    }
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::{Programs, debian};

    #[test]
    fn a_missing_program_is_refused_with_the_way_to_get_it() {
        let refusal = debian("/nowhere/etcd", "etcd-server").unwrap_err().to_string();
        assert_eq!(refusal, "/nowhere/etcd is missing: install Debian's package etcd-server");
        let folder = tempfile::tempdir().unwrap();
        let programs = Programs { rivals: Some(folder.path().to_owned()) };
        let (jars, shown) = (folder.path().join("zookeeper"), folder.path().display().to_string());
        let refusal = programs.etcd().unwrap_err().to_string();
        assert_eq!(refusal, format!("{shown}/etcd is missing: run lab/bench/rivals {shown}"));
        std::fs::create_dir(&jars).unwrap();
        let refusal = programs.zookeeper().unwrap_err().to_string();
        assert_eq!(refusal, format!("{shown} has no ZooKeeper: run lab/bench/rivals {shown}"));
        std::fs::write(folder.path().join("etcd"), "").unwrap();
        std::fs::write(jars.join("zookeeper-3.9.4.jar"), "").unwrap();
        assert_eq!(programs.etcd().unwrap(), folder.path().join("etcd"));
        assert_eq!(programs.zookeeper().unwrap(), format!("{shown}/zookeeper/*"));
    }
}
