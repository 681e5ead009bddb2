//! Figures of the network.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkStats {
    /// Pieces of data that were sent.
    pub segments: u64,
    pub bytes: u64,
    /// Segments of any kind that were lost on the way. Data among them was sent again.
    pub lost_on_the_way: u64,
    /// Pieces of data that never arrived, because their connection broke before.
    pub lost: u64,
    /// Connections that were established.
    pub connects: u64,
    /// Attempts to connect that were refused.
    pub refused: u64,
    /// Connections that broke in their handshake, since one side did not believe the other.
    pub distrusted: u64,
    /// Attempts to connect that were not answered in time.
    pub unanswered: u64,
    /// Ends of connections that broke with a reset.
    pub resets: u64,
    /// Ends of connections that broke because nothing was acknowledged for a minute.
    pub timeouts: u64,
    /// Times that something waited for a cut link or a dead machine.
    pub held: u64,
}
