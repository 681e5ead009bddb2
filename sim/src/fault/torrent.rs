//! Requests of a flood.

/// Requests that a client sends without end, on as many connections as the fault names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Torrent {
    /// getData of 23 bytes, pipelined.
    Reads,
    /// setData of some bytes, pipelined.
    Writes,
    /// setData of 900 KB, pipelined.
    LargeWrites,
    /// Connections, opened and closed.
    Connections,
    /// Sessions, opened and left.
    Handshakes,
    /// Watch events: one connection writes, all others watch the znode.
    Events,
    /// The longest document by HTTP.
    Documents,
    /// Streams of lock events by HTTP.
    Streams,
}

impl Torrent {
    pub const ALL: [Torrent; 8] = [
        Torrent::Reads,
        Torrent::Writes,
        Torrent::LargeWrites,
        Torrent::Connections,
        Torrent::Handshakes,
        Torrent::Events,
        Torrent::Documents,
        Torrent::Streams,
    ];

    /// Returns the keyword in a script.
    pub fn word(self) -> &'static str {
        match self {
            Torrent::Reads => "reads",
            Torrent::Writes => "writes",
            Torrent::LargeWrites => "large-writes",
            Torrent::Connections => "connections",
            Torrent::Handshakes => "handshakes",
            Torrent::Events => "events",
            Torrent::Documents => "documents",
            Torrent::Streams => "streams",
        }
    }

    pub fn named(word: &str) -> Option<Torrent> {
        Torrent::ALL.into_iter().find(|torrent| torrent.word() == word)
    }

    /// Returns the numbers of connections on which this flood has an effect.
    pub(super) fn connections(self) -> &'static [u16] {
        match self {
            Torrent::Reads => &[1, 1, 8, 60],
            Torrent::Writes => &[1, 8, 30],
            Torrent::LargeWrites => &[8, 60, 60],
            Torrent::Connections | Torrent::Handshakes | Torrent::Documents => &[20, 50],
            Torrent::Events => &[20, 60],
            Torrent::Streams => &[40, 100],
        }
    }
}
