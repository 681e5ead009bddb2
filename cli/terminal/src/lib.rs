//! Terminal support of the programs `rowlock` and `rowlock-sim`: exit codes, printing that survives a closed
//! pipe, tables, colors, stop signals, log filters.

pub mod exit;
pub mod log_filter;
pub mod paint;
pub mod print;
pub mod signals;
pub mod table;
