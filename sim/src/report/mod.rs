//! What happened in a run, for people: a story in lines, and a space-time diagram in one HTML file.
//!
//! Both are made from the record of the world (`rowlock_world::trace`) and from nothing else, so they show
//! any run: nodes of Rowlock and their clients, or models of other lock designs.
//!
//! [`scene`] turns events into time spans per host; [`story`] and [`html`] present them.

mod ends;
pub mod html;
pub mod label;
#[cfg(test)]
mod sample;
pub mod scene;
pub mod story;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heading {
    /// Names the run: `Seed 4711`.
    pub title: String,
    pub verdict: Verdict,
    /// Figures and settings, each with its name.
    pub facts: Vec<(String, String)>,
    /// The command that runs the same again.
    pub reproduce: String,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No promise was broken.
    Held,
    Broken(String),
}
