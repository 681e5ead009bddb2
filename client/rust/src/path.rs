//! The client's root (chroot) in front of the application's paths, and the ancestors of a path.

/// Converts a path of the application to a path on the server.
pub(crate) fn absolute(chroot: &str, path: &str) -> String {
    match (chroot, path) {
        ("", path) => path.to_owned(),
        (chroot, "/") => chroot.to_owned(),
        (chroot, path) => format!("{chroot}{path}"),
    }
}

/// Converts a path on the server to a path of the application.
pub(crate) fn relative(chroot: &str, path: String) -> String {
    if chroot.is_empty() { path } else { within(chroot, &path).to_owned() }
}

pub(crate) fn within<'a>(chroot: &str, path: &'a str) -> &'a str {
    match path.strip_prefix(chroot) {
        Some("") => "/",
        Some(rest) if rest.starts_with('/') => rest,
        _ => path,
    }
}

/// All ancestors of a path but the root, the topmost first, then the path itself.
pub(crate) fn lineage(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(at, _)| at).filter(|&at| at > 0).chain([path.len()]).map(|end| &path[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chroot_goes_in_front_and_comes_off_again() {
        for (chroot, path, full) in
            [("", "/a", "/a"), ("/app", "/a/b", "/app/a/b"), ("/app", "/", "/app"), ("", "/", "/")]
        {
            assert_eq!(absolute(chroot, path), full);
            assert_eq!(relative(chroot, full.to_owned()), path);
            assert_eq!(within(chroot, full), path);
        }
        assert_eq!(relative("/app", "/apple".to_owned()), "/apple");
    }

    #[test]
    fn a_lineage_starts_at_the_top() {
        assert_eq!(lineage("/a/b/c").collect::<Vec<_>>(), ["/a", "/a/b", "/a/b/c"]);
        assert_eq!(lineage("/a").collect::<Vec<_>>(), ["/a"]);
    }
}
