//! Counters of the network.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkStats {
    /// Sent pieces of data.
    pub segments: u64,
    pub bytes: u64,
    /// Segments of any kind that were lost in flight. Data among them was repeated.
    pub lost_on_the_way: u64,
    /// Pieces of data that never arrived, because their connection broke first.
    pub lost: u64,
    pub connects: u64,
    pub refused: u64,
    /// Connections that broke in their handshake, since one side rejected the other's identity.
    pub distrusted: u64,
    /// Attempts to connect without an answer in time.
    pub unanswered: u64,
    /// Ends of connections that broke with a reset.
    pub resets: u64,
    /// Ends of connections that broke after a minute without an acknowledgement.
    pub timeouts: u64,
    /// Times that a segment waited for a cut link or a dead machine.
    pub held: u64,
}
