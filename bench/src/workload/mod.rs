//! What is done with a system, and what is counted meanwhile.

pub mod contended;
pub mod uncontended;
mod witness;
