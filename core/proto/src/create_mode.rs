//! `CreateMode`: the flags of the create family (ZooKeeper's `CreateMode.java`).

/// Kind of a znode to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CreateMode {
    /// Flag 0: lives until it is deleted.
    Persistent,
    /// Flag 1: ends with its session.
    Ephemeral,
    /// Flag 2: persistent, ten digits appended to the name.
    PersistentSequential,
    /// Flag 3: ephemeral, ten digits appended to the name.
    EphemeralSequential,
    /// Flag 4: removed once its last child is gone.
    Container,
    /// Flag 5: removed after its time to live without children and changes.
    PersistentWithTtl,
    /// Flag 6: as flag 5, ten digits appended to the name.
    PersistentSequentialWithTtl,
}

impl CreateMode {
    /// From the number on the wire; `None` is BadArguments.
    pub fn from_flags(flags: i32) -> Option<Self> {
        use CreateMode::*;
        [
            Persistent,
            Ephemeral,
            PersistentSequential,
            EphemeralSequential,
            Container,
            PersistentWithTtl,
            PersistentSequentialWithTtl,
        ]
        .get(usize::try_from(flags).ok()?)
        .copied()
    }

    /// The number on the wire.
    pub fn flags(self) -> i32 {
        debug_assert_eq!(Self::from_flags(self as i32), Some(self), "a mode is read as another one");
        self as i32
    }

    /// The server appends a number to the name.
    pub fn is_sequential(self) -> bool {
        matches!(
            self,
            Self::PersistentSequential | Self::EphemeralSequential | Self::PersistentSequentialWithTtl
        )
    }

    /// Lives as long as its session.
    pub fn is_ephemeral(self) -> bool {
        matches!(self, Self::Ephemeral | Self::EphemeralSequential)
    }

    /// Removed when idle and childless for its time to live.
    pub fn has_ttl(self) -> bool {
        matches!(self, Self::PersistentWithTtl | Self::PersistentSequentialWithTtl)
    }
}
