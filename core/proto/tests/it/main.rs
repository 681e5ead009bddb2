//! Tests of the wire protocol through its public functions: golden frames and properties.

mod golden;
mod properties;
