//! A script run once under the recorder: its directory and settings, its process, and its ranks.
//!
//! A [`Job`] says what is run; [`Job::attempt`] runs it. The recorder lives in the script's process. The
//! command and the recorder speak by [`Settings`](settings::Settings) and the files of a
//! [`RunDirectory`] alone, whose other side is `python/oomph/_protocol.py`.

mod caches;
mod card;
pub mod files;
mod forks;
pub mod host;
mod job;
pub mod kernel;
mod live;
mod overlay;
pub mod packages;
mod program;
pub mod ranks;
mod rendezvous;
mod run_directory;
pub mod settings;
pub mod signals;
mod status_line;
mod virtual_gpu;
mod watchdog;

pub use caches::{cache_directory, write_cache};
pub use forks::Forks;
pub use host::Host;
pub use job::{Attempt, Job, Rehearsed, Watch, label_trace};
pub use overlay::Written;
pub use program::{Program, check_script, shell_line};
pub use run_directory::{GIT_IGNORE, LATEST, Lock, REPORTS, RunDirectory, RunFile, read_trace};
pub use status_line::{StatusLine, wanted as shows_status};
pub use virtual_gpu::{Lent, RANK_TIMEOUT_SECONDS, VirtualGpu};
