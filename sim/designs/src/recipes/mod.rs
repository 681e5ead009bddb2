//! Designs, one file for each algorithm with its variants. Each header names the publisher of the design and
//! the claims about the design; `designs.txt` describes every variant for the table.

mod database_row;
mod machines;
mod one_redis;
mod redisson;
mod redlock;
mod zk_one_znode;
mod zk_queue;
mod zk_queue_wrong;

use crate::design::{About, Build, Design, Model};

/// Models by the ids of the designs.
const MODELS: [&[(&str, Build)]; 7] = [
    &one_redis::MODELS,
    &redisson::MODELS,
    &redlock::MODELS,
    &database_row::MODELS,
    &zk_one_znode::MODELS,
    &zk_queue_wrong::MODELS,
    &zk_queue::MODELS,
];

/// Returns all designs of this crate, in the order of the table.
///
/// # Panics
/// `designs.txt` does not follow its grammar, or describes other designs than the models.
pub fn all() -> Vec<Box<dyn Design>> {
    let blocks = include_str!("designs.txt").split("\n\n").filter(|block| !block.starts_with("--"));
    let models: Vec<&(&str, Build)> = MODELS.into_iter().flatten().collect();
    let described: Vec<About> = blocks.map(About::parse).collect();
    assert_eq!(described.len(), models.len(), "designs.txt describes all models");
    let model = |about: About| -> Box<dyn Design> {
        let found = models.iter().find(|(id, _)| *id == about.id);
        let (_, build) = found.unwrap_or_else(|| panic!("designs.txt: no model has the id {}", about.id));
        Box::new(Model { about, build: *build })
    };
    described.into_iter().map(model).collect()
}
