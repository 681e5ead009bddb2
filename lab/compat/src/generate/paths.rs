//! Paths in scripts: few names, to make steps collide; occasionally an invalid path.

use super::Generator;

/// The only kind of watch that a client of a script sets on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchStyle {
    Once,
    Persistent,
    Recursive,
}

/// Invalid suffixes of the root.
const BAD: &[&str] = &[
    "//a",
    "/a/",
    "/a//b",
    "/.",
    "/a/..",
    "/./a",
    "/a/../b",
    "/\u{1}",
    "/a\u{7f}",
    "/a\u{9f}b",
    "/\u{e000}",
    "/\u{fff0}",
    "/a\0b",
];

const ODD: &[&str] = &["/ä", "/a b", "/a.b", "/...", "/\u{4e2d}\u{6587}", "/\u{ff01}"];

impl Generator {
    /// Returns a path, mostly of a znode that may exist.
    pub(super) fn path(&mut self) -> String {
        let mut path = self.root.clone();
        match self.rng.below(100) {
            0..=1 => path.push_str(self.rng.pick(BAD)),
            2 => path.push_str(self.rng.pick(ODD)),
            3..=8 => {}
            9..=49 => self.push_name(&mut path),
            50..=84 => {
                self.push_name(&mut path);
                self.push_name(&mut path);
            }
            _ => {
                self.push_name(&mut path);
                self.push_name(&mut path);
                self.push_name(&mut path);
            }
        }
        path
    }

    /// Returns the path for a create; for a sequential mode the path may end with a slash.
    pub(super) fn path_to_create(&mut self, flags: i32) -> String {
        let mut path = self.path();
        if matches!(flags, 2 | 3 | 6) && self.rng.chance(15) {
            path.push('/');
        }
        path
    }

    fn push_name(&mut self, path: &mut String) {
        path.push('/');
        path.push_str(self.rng.pick_weighted(&[
            (10, "a"),
            (8, "b"),
            (3, "c"),
            (2, "a0000000000"),
            (2, "a0000000001"),
            (1, "b0000000002"),
            (1, "0000000000"),
        ]));
    }

    /// Returns a prefix of ephemeral paths.
    pub(super) fn prefix(&mut self) -> String {
        let path = self.path();
        if self.rng.chance(30) { self.root.clone() } else { path }
    }

    /// Returns the style of a path. Depends only on seed, client and path, so the style is constant within a
    /// script.
    pub(super) fn style(&self, path: &str) -> WatchStyle {
        let below = path.strip_prefix(&self.root).unwrap_or(path);
        let mut hash = self.style_seed ^ (self.slot as u64);
        for byte in below.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        match (hash >> 32) % 10 {
            0..=5 => WatchStyle::Once,
            6..=7 => WatchStyle::Persistent,
            _ => WatchStyle::Recursive,
        }
    }

    /// Returns a path of the wanted style: a usual path if one is found soon, else an unused path.
    pub(super) fn path_of_style(&mut self, wanted: impl Fn(WatchStyle) -> bool) -> String {
        for _ in 0..20 {
            let path = self.path();
            if wanted(self.style(&path)) {
                return path;
            }
        }
        let free = |n: &usize| wanted(self.style(&format!("{}/free{n}", self.root)));
        let n = (0..).find(free).expect("every style has paths");
        format!("{}/free{n}", self.root)
    }
}
