//! A script run once under the recorder: its directory and settings, its process, and its ranks.

pub mod cluster;
pub mod files;
pub mod host;
pub mod job;
pub mod live;
pub mod run_directory;
