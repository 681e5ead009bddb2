//! Reports of a run for people: a story in lines, and a space-time diagram in one HTML file.
//!
//! Both use nothing but the world's trace (`rowlock_world::trace`). So reports work for any run: nodes of
//! Rowlock and their clients, or models of other lock designs.
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
    /// Name of the run, like `Seed 4711`.
    pub title: String,
    pub verdict: Verdict,
    /// Figures and settings, each with its name.
    pub facts: Vec<(String, String)>,
    /// Command that repeats the run.
    pub reproduce: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Held,
    Broken(String),
}
