//! Names of sequential znodes: the prefix and the parent's number of creates, as Java's `%010d` writes it.

/// The full path of a sequential znode whose parent has counted `creates` creates.
///
/// Past 2^31-1 the count goes on at -2^31, as ZooKeeper's does: such names sort before the older ones, which is
/// why a queue must be ordered by czxid and not by name.
pub(crate) fn numbered(path: &str, creates: i32) -> String {
    format!("{path}{creates:010}")
}

/// The count after one more create.
pub(crate) fn next(creates: i32) -> i32 {
    creates.wrapping_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_look_as_in_java() {
        assert_eq!(numbered("/q/lock-", 0), "/q/lock-0000000000");
        assert_eq!(numbered("/q/", i32::MAX), "/q/2147483647");
        assert_eq!(numbered("/q/", next(i32::MAX)), "/q/-2147483648");
        assert_eq!(numbered("/q/", -5), "/q/-000000005");
    }
}
