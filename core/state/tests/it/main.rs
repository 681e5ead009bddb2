//! The replicated state from outside: stories, models, random histories, formats, bounds, secrecy.

mod bounds;
mod ended_sessions;
mod formats;
mod histories;
mod locks;
mod model;
mod need_to_know;
mod queries;
mod rules;
mod stories;
