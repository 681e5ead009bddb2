use super::*;

#[test]
fn a_path_leads_to_its_znode_and_to_the_deepest_one_above_it() {
    let open = SharedAcl::new(rowlock_proto::acl::Acl::open());
    let znode = || Znode::new(Meta::new(Zxid(1), 0, Kind::Persistent), None, open.clone());
    let mut tree = Tree::new(znode());
    let known = ["/", "/a", "/b", "/ab", "/a/b", "/a/b/a", "/ab/a", "/b/b"];
    for path in &known[1..] {
        let path = Path::new(path).unwrap();
        let parent = tree.find(path.parent()).unwrap();
        let at = tree.node(parent).children.find(path.name().as_bytes()).unwrap_err();
        let id = tree.add(znode(), parent);
        tree.link(path, path.name().into(), (id, TreePosition { parent, at }), |_| ());
    }
    let pieces = ["", "/", "a", "b", "/a", "/b", "ab", "//"];
    for at in 0..pieces.len().pow(4) {
        let path: String = [1, 8, 64, 512].map(|step| pieces[at / step % pieces.len()]).concat();
        let expected = tree.get(&path).map(std::ptr::from_ref);
        assert_eq!(expected.is_some(), known.contains(&path.as_str()), "{path:?}");
        let (deepest, end) = tree.find_deepest(&path);
        assert_eq!(
            tree.get(if end == 0 { "/" } else { &path[..end] }).map(std::ptr::from_ref),
            Some(std::ptr::from_ref(tree.node(deepest)))
        );
    }
}

#[test]
fn paths_are_cut_at_every_slash_and_nowhere_else() {
    let pieces = ["", "/", "a", ".", "/.", "0", "\u{80}", "_c_0123-lock-0000000007", "locks", "//"];
    for at in 0..pieces.len().pow(3) {
        let [a, b, c] = [1, 10, 100].map(|step| pieces[at / step % pieces.len()]);
        let path = format!("{a}{b}{c}{c}{a}");
        let parent_and_name = path.rsplit_once('/').map(|(parent, name)| match parent {
            "" => ("/", name),
            parent => (parent, name),
        });
        assert_eq!(split(&path), parent_and_name, "{path}");
        let expected = path.strip_prefix('/').map(|below| match below {
            "" => Vec::new(),
            below => below.split('/').collect::<Vec<_>>(),
        });
        assert_eq!(names(&path).map(Iterator::collect), expected, "{path}");
    }
}
