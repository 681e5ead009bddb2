//! Compressed tar file with bounds: parts that do not fit are cut, and marked as cut.

use std::io;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use rowlock_backup::file::Target;

pub(super) const PART_MAX: usize = 2 << 20;
const ALL_MAX: usize = 48 << 20;

pub(super) struct Archive {
    tar: tar::Builder<GzEncoder<Target>>,
    folder: String,
    left: usize,
    time_s: u64,
    parts: Vec<(String, Option<&'static str>)>,
}

impl Archive {
    /// Creates a new file for its owner alone; the file appears under its name when finished. All parts are
    /// in `folder`; `time_s` counts from 1970.
    ///
    /// # Errors
    /// The file exists or cannot be created.
    pub(super) fn create(path: &Path, folder: &str, time_s: u64) -> io::Result<Archive> {
        let target = Target::create(path, false)?;
        let tar = tar::Builder::new(GzEncoder::new(target, Compression::default()));
        Ok(Archive { tar, folder: folder.to_owned(), left: ALL_MAX, time_s, parts: Vec::new() })
    }

    /// Adds a part. Keeps the end of a part that is too large, the newest text.
    pub(super) fn add(&mut self, name: &str, text: &str) -> io::Result<()> {
        let room = PART_MAX.min(self.left);
        let kept = end_of(text, room);
        let remark = (kept.len() < text.len()).then_some("its beginning is cut off");
        self.left -= kept.len();
        self.parts.push((name.to_owned(), remark));
        self.write(name, kept.as_bytes())
    }

    /// Returns the names of the parts with their remarks.
    pub(super) fn parts(&self) -> &[(String, Option<&'static str>)] {
        &self.parts
    }

    /// Adds the last part without a limit; returns the size of the file.
    pub(super) fn finish(mut self, name: &str, text: &str) -> io::Result<u64> {
        self.write(name, text.as_bytes())?;
        self.tar.into_inner()?.finish()?.keep()
    }

    fn write(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.time_s);
        self.tar.append_data(&mut header, format!("{}/{name}", self.folder), bytes)
    }
}

/// Returns the last bytes of a text, from the start of a line if possible.
fn end_of(text: &str, bytes: usize) -> &str {
    if text.len() <= bytes {
        return text;
    }
    let from = (text.len() - bytes..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    let tail = &text[from..];
    tail.split_once('\n').map_or(tail, |(_, lines)| lines)
}

#[cfg(test)]
mod tests {
    use rowlock_backup::file::Source;

    use super::*;

    #[test]
    fn a_text_that_is_too_long_keeps_whole_lines_of_its_end() {
        assert_eq!(end_of("one\ntwo\nthree\n", 100), "one\ntwo\nthree\n");
        assert_eq!(end_of("one\ntwo\nthree\n", 9), "three\n");
        assert_eq!(end_of("ééé", 3), "é");
    }

    #[test]
    fn parts_are_bounded_and_existing_files_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tar.gz");
        let mut archive = Archive::create(&path, "it", 7).unwrap();
        let part = "a line of some length\n".repeat(PART_MAX / 10);
        for n in 0..ALL_MAX / PART_MAX + 5 {
            archive.add(&format!("{n}"), &part).unwrap();
        }
        assert!(archive.parts().iter().all(|(_, remark)| remark.is_some()));
        archive.finish("about", "x").unwrap();
        let again = Archive::create(&path, "it", 7).err().unwrap();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        let unpacked = flate2::read::GzDecoder::new(Source::open(&path).unwrap());
        let mut tar = tar::Archive::new(unpacked);
        let sizes: Vec<u64> = tar.entries().unwrap().map(|entry| entry.unwrap().size()).collect();
        assert_eq!(sizes.len(), ALL_MAX / PART_MAX + 6);
        assert!(sizes.iter().sum::<u64>() <= (ALL_MAX + 1) as u64);
    }
}
