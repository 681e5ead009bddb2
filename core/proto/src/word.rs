//! Four-letter words: operators send one instead of a handshake on a fresh connection.
//!
//! The listener compares the first four bytes with these words before reading them as a length (as a length,
//! every word is far above any limit). Must never be matched after the handshake.

macro_rules! words {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// A four-letter word known to the server.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum FourLetterWord { $($(#[$doc])* $name,)* }
        impl FourLetterWord {
            /// Every word, in the order of declaration.
            pub const ALL: &'static [FourLetterWord] = &[$(Self::$name,)*];
            /// Returns the four bytes on the wire.
            pub fn as_str(self) -> &'static str { match self { $(Self::$name => $text,)* } }
            /// Returns the word that a connection begins with, if known.
            pub fn from_prefix(prefix: [u8; 4]) -> Option<Self> {
                Self::ALL.iter().copied().find(|word| word.as_str().as_bytes() == prefix)
            }
        }
    };
}

words! {
    /// Replies `imok` if the server runs.
    Ruok = "ruok";
    /// Summary of the server, without its connections.
    Srvr = "srvr";
    /// Server summary and its connections.
    Stat = "stat";
    /// Key and value lines for monitoring.
    Mntr = "mntr";
    /// Version and environment of the server.
    Envi = "envi";
    /// Shows whether the server is read-only (`ro`) or read-write (`rw`).
    Isro = "isro";
    /// The server's configuration values.
    Conf = "conf";
    /// Connections with their counters.
    Cons = "cons";
    /// Resets the figures of connections.
    Crst = "crst";
    /// Sessions and their ephemerals.
    Dump = "dump";
    /// Resets the figures of the server.
    Srst = "srst";
    /// Number of watches, paths and connections.
    Wchs = "wchs";
    /// Watches, grouped by session.
    Wchc = "wchc";
    /// Watches, grouped by path.
    Wchp = "wchp";
    /// Bytes of log and snapshots on disk.
    Dirs = "dirs";
    /// Shows the mask of enabled traces.
    Gtmk = "gtmk";
    /// Sets the mask of enabled traces.
    Stmk = "stmk";
}

impl std::fmt::Display for FourLetterWord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_found_and_exceeds_any_frame_length() {
        for word in FourLetterWord::ALL {
            let prefix: [u8; 4] = word.as_str().as_bytes().try_into().unwrap();
            assert_eq!(FourLetterWord::from_prefix(prefix), Some(*word));
            assert!(i32::from_be_bytes(prefix) > 0x0fff_ffff);
        }
        assert_eq!(FourLetterWord::from_prefix([0, 0, 0, 45]), None);
        assert_eq!(FourLetterWord::from_prefix(*b"RUOK"), None);
    }
}
