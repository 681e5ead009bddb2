//! A tar file, compressed, with bounds: what does not fit is cut, and said to be.

use std::io;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use rowlock_backup::place::Target;

/// Bytes of one part.
pub(super) const PART_MAX: usize = 2 << 20;
/// Bytes of all parts together, before compression.
const ALL_MAX: usize = 48 << 20;

/// What is being written.
pub(super) struct Archive {
    tar: tar::Builder<GzEncoder<Target>>,
    folder: String,
    left: usize,
    time_s: u64,
    /// The parts, with what is to be said of each.
    parts: Vec<(String, Option<&'static str>)>,
}

impl Archive {
    /// Begins a new file, for its owner alone; until it is finished there is none of this name. All parts lie
    /// in `folder`; `time_s`: since 1970.
    ///
    /// # Errors
    /// There is one already, or it cannot be made.
    pub(super) fn create(path: &Path, folder: &str, time_s: u64) -> io::Result<Archive> {
        let target = Target::create(path, false)?;
        let tar = tar::Builder::new(GzEncoder::new(target, Compression::default()));
        Ok(Archive { tar, folder: folder.to_owned(), left: ALL_MAX, time_s, parts: Vec::new() })
    }

    /// Adds a part. Of one that is too large the end is kept: what is newest.
    pub(super) fn add(&mut self, name: &str, text: &str) -> io::Result<()> {
        let room = PART_MAX.min(self.left);
        let kept = end_of(text, room);
        let remark = (kept.len() < text.len()).then_some("its beginning is cut off");
        self.left -= kept.len();
        self.parts.push((name.to_owned(), remark));
        self.write(name, kept.as_bytes())
    }

    /// Names of the parts, with what is to be said of each.
    pub(super) fn parts(&self) -> &[(String, Option<&'static str>)] {
        &self.parts
    }

    /// Adds the last part, whatever its size, and gives how many bytes the file has.
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

/// The last bytes of a text, from the beginning of a line on if there is one.
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
    use rowlock_backup::place::Source;

    use super::*;

    #[test]
    fn of_what_is_too_long_whole_lines_of_the_end_stay() {
        assert_eq!(end_of("one\ntwo\nthree\n", 100), "one\ntwo\nthree\n");
        assert_eq!(end_of("one\ntwo\nthree\n", 9), "three\n");
        assert_eq!(end_of("ééé", 3), "é");
    }

    #[test]
    fn no_more_is_kept_than_fits_and_another_file_is_never_written_over() {
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
