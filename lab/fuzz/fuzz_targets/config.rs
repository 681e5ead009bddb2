//! A `cluster.toml`. The target does not open files named inside.
//!
//! Nothing may panic. An error names an existing line. An accepted file prints as a file with the same
//! meaning.

#![cfg_attr(feature = "libfuzzer", no_main)]

use std::path::Path;

use rowlock_coordinator::ClusterConfig;
use rowlock_fuzz::{fuzz_target, within_worth};

fn parse(text: &str, path: &str) -> Result<ClusterConfig, rowlock_coordinator::ConfigError> {
    let no_file = |_: &Path| Ok("user:password\n".to_owned());
    ClusterConfig::parse_with(text, Path::new(path), &no_file)
}

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let config = match within_worth(input, 1 << 20, 512, || parse(text, "conf/cluster.toml")) {
        Ok(config) => config,
        Err(error) => {
            assert!(error.line.is_none_or(|line| (1..=text.lines().count() + 1).contains(&line)), "{error}");
            return;
        }
    };
    assert!(config.nodes.iter().all(|node| config.node(node.id).is_some()));
    let _ = config.endpoints();
    let printed = config.to_toml();
    // Folders in the printed text are already relative to the working directory.
    let again = parse(&printed, "cluster.toml").unwrap_or_else(|error| panic!("{error}\n{printed}"));
    assert_eq!(again.to_toml(), printed);
});
