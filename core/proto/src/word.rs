//! Four-letter words: what operators send instead of a handshake on a fresh connection.
//!
//! The listener tests the first four bytes against these before it takes them for a length (read as one they
//! are all far above any limit). Must never be looked for behind the handshake.

macro_rules! words {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// A four-letter word that the server knows.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum FourLetterWord { $($(#[$doc])* $name,)* }
        impl FourLetterWord {
            /// All words, in the order of their declaration.
            pub const ALL: &'static [FourLetterWord] = &[$(Self::$name,)*];
            /// The four bytes as sent.
            pub fn as_str(self) -> &'static str { match self { $(Self::$name => $text,)* } }
            /// Returns the known word that a connection begins with.
            pub fn from_prefix(prefix: [u8; 4]) -> Option<Self> {
                Self::ALL.iter().copied().find(|word| word.as_str().as_bytes() == prefix)
            }
        }
    };
}

words! {
    /// Answered with `imok` by a running server.
    Ruok = "ruok";
    /// Summary of the server, without its connections.
    Srvr = "srvr";
    /// Server summary and its connections.
    Stat = "stat";
    /// Key and value lines for monitoring.
    Mntr = "mntr";
    /// Version and environment of the server.
    Envi = "envi";
    /// Tells read-only (`ro`) from read-write (`rw`) servers.
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
    /// Which traces are on.
    Gtmk = "gtmk";
    /// Switches traces on and off.
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
    fn every_word_is_found_and_none_could_be_a_length() {
        for word in FourLetterWord::ALL {
            let prefix: [u8; 4] = word.as_str().as_bytes().try_into().unwrap();
            assert_eq!(FourLetterWord::from_prefix(prefix), Some(*word));
            assert!(i32::from_be_bytes(prefix) > 0x0fff_ffff);
        }
        assert_eq!(FourLetterWord::from_prefix([0, 0, 0, 45]), None);
        assert_eq!(FourLetterWord::from_prefix(*b"RUOK"), None);
    }
}
