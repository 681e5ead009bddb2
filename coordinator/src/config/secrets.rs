//! Secrets of a `cluster.toml`, which may be in files of their own (`super_digest_file`, `sasl_users_file`),
//! and who may read them: nobody but the owner of the file, or the node does not start.

use std::path::Path;

use rowlock_env::disk::Dir;
use toml::Spanned;

use super::check::Source;
use super::parse::RawClient;
use super::{ClusterConfig, ConfigError};

/// Puts what the files hold in the place of their names.
pub(super) fn read_into(
    source: &Source<'_>,
    raw: &mut RawClient,
    read: &dyn Fn(&Path) -> Result<String, String>,
) -> Result<(), ConfigError> {
    let at = |file: &Spanned<std::path::PathBuf>, what: String, remedy: &str| {
        source.error(Some(file.span().start), what, remedy)
    };
    let content = |key: &str, file: &Spanned<std::path::PathBuf>| {
        let path = source.path.parent().unwrap_or(Path::new("")).join(file.get_ref());
        read(&path).map_err(|why| {
            at(
                file,
                format!("{key} = \"{}\" {why}", file.get_ref().display()),
                "make it a file of yours alone (chmod 600)",
            )
        })
    };
    if let Some(file) = &raw.super_digest_file {
        if raw.super_digest.is_some() {
            return Err(at(
                file,
                "super_digest is given twice".to_owned(),
                "remove super_digest or super_digest_file",
            ));
        }
        let text = content("super_digest_file", file)?;
        raw.super_digest = Some(Spanned::new(file.span(), text.trim_end().to_owned()));
    }
    if let Some(file) = &raw.sasl_users_file {
        for (number, line) in (1..).zip(content("sasl_users_file", file)?.lines()) {
            let Some((user, password)) = line.split_once(':') else {
                let what = format!("line {number} of {} is not user:password", file.get_ref().display());
                return Err(at(file, what, "write one user:password a line"));
            };
            if raw
                .sasl_users
                .insert(Spanned::new(file.span(), user.to_owned()), password.to_owned())
                .is_some()
            {
                let what = format!("sasl_users has \"{user}\" twice");
                return Err(at(file, what, "name each user once, here or in the file"));
            }
        }
    }
    Ok(())
}

/// The content of a file that nobody else may read. The error says why not.
pub(super) fn read_private(path: &Path) -> Result<String, String> {
    let (folder, name) = place_of(path).ok_or("is not the name of a file")?;
    let dir = Dir::open(folder).map_err(|e| format!("cannot be read: {e}"))?;
    let is_open = dir.is_open_to_others(name).map_err(|e| format!("cannot be read: {e}"))?;
    if is_open {
        return Err("can be read or written by other users of this machine".to_owned());
    }
    let bytes = dir.read(name).map_err(|e| format!("cannot be read: {e}"))?;
    String::from_utf8(bytes).map_err(|_| "is not a text file in UTF-8".to_owned())
}

impl ClusterConfig {
    /// The same for others to read: passwords and digests are gone, the names of users and files stay.
    #[must_use]
    pub fn without_secrets(mut self) -> Self {
        if self.client.super_digest.is_some() {
            self.client.super_digest = Some("super:(removed)".to_owned());
        }
        self.client.sasl_users.values_mut().for_each(|password| "(removed)".clone_into(password));
        self
    }

    /// What [`Self::without_secrets`] takes away.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        self.client.sasl_users.values().chain(&self.client.super_digest).map(String::as_str)
    }
}

/// Its folder and its name there.
pub(super) fn place_of(path: &Path) -> Option<(&Path, &str)> {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Some((folder, path.file_name()?.to_str()?))
}
