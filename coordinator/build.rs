//! Compresses the console's files: the program embeds the transfer form, a fifth of the original size.
#![allow(clippy::disallowed_methods)] // the files of a build

#[cfg(feature = "access")]
fn main() -> std::io::Result<()> {
    console::compress()
}

#[cfg(not(feature = "access"))]
fn main() {}

#[cfg(feature = "access")]
mod console {
    use std::io::{Error, Write as _};
    use std::path::PathBuf;
    use std::{env, fs};

    use flate2::Compression;
    use flate2::write::GzEncoder;

    pub fn compress() -> Result<(), Error> {
        let out =
            PathBuf::from(env::var_os("OUT_DIR").ok_or_else(|| Error::other("cargo gives no OUT_DIR"))?);
        for folder in ["src/access/http/ui", "src/access/http/api/openapi"] {
            println!("cargo::rerun-if-changed={folder}");
            for entry in fs::read_dir(folder)? {
                let (path, mut name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
                if path.is_file() {
                    let mut zipped = GzEncoder::new(Vec::new(), Compression::best());
                    zipped.write_all(&fs::read(path)?)?;
                    name.push(".gz");
                    fs::write(out.join(name), zipped.finish()?)?;
                }
            }
        }
        Ok(())
    }
}
