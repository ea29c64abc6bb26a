//! A recorded run: what the recorder wrote in the user's process, attributed and summarized.
//!
//! [`record`] is the recorder's own record, [`attribution`] joins it with PyTorch's memory
//! history into labels, and [`summary`] is what `oomph run` prints and writes.

pub mod attribution;
pub mod black_box;
pub mod ending;
pub mod processes;
pub mod ranks;
pub mod record;
pub mod rhythm;
pub mod serving;
pub mod stacks;
pub mod stall;
pub mod summary;
pub mod time;

pub use attribution::{attribute, phase_named};
pub use record::{Error, Record};
pub use summary::{GpuSummary, INTERRUPTED, Summary, Verdict};
