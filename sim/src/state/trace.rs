//! The trace of a run: a line per step, folded into a hash. Equal seeds give equal hashes; otherwise the run
//! depends on something besides its seed.

use std::fmt;

/// FNV-1a over all lines, and the lines themselves if they are wanted.
pub struct Trace {
    hash: u64,
    print: bool,
}

impl Trace {
    /// `print`: also write the lines to standard output.
    pub fn new(print: bool) -> Self {
        Trace { hash: 0xcbf2_9ce4_8422_2325, print }
    }

    /// Adds a line.
    pub fn line(&mut self, line: fmt::Arguments<'_>) {
        let line = line.to_string();
        for byte in line.bytes().chain([b'\n']) {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        if self.print {
            println!("{line}");
        }
    }

    /// The hash of all lines so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }
}
