//! Bounded reading of foreign files: regular files, up to a size.

use std::io::{self, Read as _};

use super::{Dir, File, FileIn};

impl Dir {
    /// Returns the whole content of a regular file of at most `most` bytes. Refuses other kinds of files,
    /// such as the device `/dev/zero`, and a file growing beyond `most`.
    pub fn read_at_most(&self, name: &str, most: u64) -> io::Result<Vec<u8>> {
        let refused = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
        let mut content = Vec::new();
        match self.open_to_read(name)? {
            File { inner: FileIn::Reality(file) } => {
                if !file.metadata()?.is_file() {
                    return Err(refused("this is not a regular file".to_owned()));
                }
                file.take(most.saturating_add(1)).read_to_end(&mut content)?;
            }
            file @ File { inner: FileIn::World(_) } => {
                let len = file.len()?.min(most.saturating_add(1));
                content.resize(usize::try_from(len).unwrap_or(usize::MAX), 0);
                file.read_exact_at(&mut content, 0)?;
            }
        }
        if content.len() as u64 > most {
            return Err(refused(format!("this has more than {most} bytes")));
        }
        Ok(content)
    }
}
