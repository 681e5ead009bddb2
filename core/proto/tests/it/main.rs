//! Tests of the wire protocol through its public functions: golden frames.

mod golden;
