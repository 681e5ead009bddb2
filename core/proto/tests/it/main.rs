//! The wire protocol from outside: golden frames and properties.

mod golden;
mod properties;
