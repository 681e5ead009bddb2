//! Secrets of a `cluster.toml`, inline or in separate files (`super_digest_file`, `sasl_users_file`), and the
//! check that only the owner can read them; otherwise the node does not start.

use std::path::Path;

use rowlock_env::disk::Dir;

use super::source::Source;
use super::{ClientConfig, ClusterConfig, ConfigError};

/// Maximum size of a file with secrets. Beyond: refused.
const SECRETS_MAX_BYTES: u64 = 1 << 20;

/// Replaces the file names by the files' contents.
pub(super) fn read_into(
    source: &Source<'_>,
    client: &mut ClientConfig,
    read: &dyn Fn(&Path) -> Result<String, String>,
) -> Result<(), ConfigError> {
    let content = |key: &str, file: &Path| {
        let path = source.path.parent().unwrap_or(Path::new("")).join(file);
        read(&path).map_err(|why| {
            let what = format!("{key} = \"{}\" {why}", file.display());
            source.at(&format!("client.{key}"), what, "make it a file of yours alone (chmod 600)")
        })
    };
    if let Some(file) = client.super_digest_file.take() {
        if client.super_digest.is_some() {
            let what = "super_digest is given twice".to_owned();
            let remedy = "remove super_digest or super_digest_file";
            return Err(source.at("client.super_digest_file", what, remedy));
        }
        client.super_digest = Some(content("super_digest_file", &file)?.trim_end().to_owned());
    }
    if let Some(file) = client.sasl_users_file.take() {
        let at = |what: String, remedy: &str| source.at("client.sasl_users_file", what, remedy);
        for (number, line) in (1..).zip(content("sasl_users_file", &file)?.lines()) {
            let Some((user, password)) = line.split_once(':') else {
                let what = format!("line {number} of {} is not user:password", file.display());
                return Err(at(what, "write one user:password a line"));
            };
            if client.sasl_users.insert(user.to_owned(), password.to_owned()).is_some() {
                let what = format!("sasl_users has \"{user}\" twice");
                return Err(at(what, "name each user once, here or in the file"));
            }
        }
    }
    Ok(())
}

/// Returns the content of a file that no other user may read. The error gives the reason of a refusal.
pub(super) fn read_private(path: &Path) -> Result<String, String> {
    let (folder, name) = place_of(path).ok_or("is not the name of a file")?;
    let dir = Dir::open(folder).map_err(|e| format!("cannot be read: {e}"))?;
    let is_open = dir.is_open_to_others(name).map_err(|e| format!("cannot be read: {e}"))?;
    if is_open {
        return Err("can be read or written by other users of this machine".to_owned());
    }
    let bytes = dir.read_at_most(name, SECRETS_MAX_BYTES).map_err(|e| format!("cannot be read: {e}"))?;
    String::from_utf8(bytes).map_err(|_| "is not a text file in UTF-8".to_owned())
}

impl ClusterConfig {
    /// Removes passwords and digests for display. The names of users and files stay.
    #[must_use]
    pub fn without_secrets(mut self) -> Self {
        if self.client.super_digest.is_some() {
            self.client.super_digest = Some("super:(removed)".to_owned());
        }
        self.client.sasl_users.values_mut().for_each(|password| "(removed)".clone_into(password));
        self
    }

    /// Iterates over the secrets that [`Self::without_secrets`] removes.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        self.client.sasl_users.values().chain(&self.client.super_digest).map(String::as_str)
    }
}

/// Splits a path into folder and file name.
pub(super) fn place_of(path: &Path) -> Option<(&Path, &str)> {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Some((folder, path.file_name()?.to_str()?))
}
