//! `CreateMode`: the flags of the create family (ZooKeeper's `CreateMode.java`).

/// Kind of a znode to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CreateMode {
    /// Flag 0: lives until a client deletes the znode.
    Persistent,
    /// Flag 1: ends with its session.
    Ephemeral,
    /// Flag 2: persistent, ten digits appended to the name.
    PersistentSequential,
    /// Flag 3: ephemeral, ten digits appended to the name.
    EphemeralSequential,
    /// Flag 4: removed after the deletion of its last child.
    Container,
    /// Flag 5: removed after its time to live without children and changes.
    PersistentWithTtl,
    /// Flag 6: as flag 5, ten digits appended to the name.
    PersistentSequentialWithTtl,
}

impl CreateMode {
    /// Reads the number on the wire; `None` is BadArguments.
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

    /// Returns the number on the wire.
    pub fn flags(self) -> i32 {
        debug_assert_eq!(Self::from_flags(self as i32), Some(self), "the flags decode to another mode");
        self as i32
    }

    /// Returns true if the server appends a number to the name.
    pub fn is_sequential(self) -> bool {
        matches!(
            self,
            Self::PersistentSequential | Self::EphemeralSequential | Self::PersistentSequentialWithTtl
        )
    }

    /// Returns true if the znode ends with its session.
    pub fn is_ephemeral(self) -> bool {
        matches!(self, Self::Ephemeral | Self::EphemeralSequential)
    }

    /// Returns true if the server removes the znode after its time to live without children and changes.
    pub fn has_ttl(self) -> bool {
        matches!(self, Self::PersistentWithTtl | Self::PersistentSequentialWithTtl)
    }
}
