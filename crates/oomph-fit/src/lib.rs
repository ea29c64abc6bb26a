//! Finds the cheapest plan that makes a job fit, by running attempts.
//!
//! [`fit`] runs the job as it is, builds a model of it (`oomph-plan`), searches for plans, and runs
//! those that are worth it until some are verified. It runs nothing by itself: an [`Attempts`] does,
//! in earnest [`ScriptAttempts`]. What a run shows is a lesson for the next search.
//!
//! - `fitter`: the order of the phases;
//! - `probe`: runs that measure what no model tells;
//! - `select`: which plans are worth a run, which is chosen, and how long it is run;
//! - `verify`: a run of a plan, and what it teaches;
//! - `net`: what to do with what finds no room;
//! - `sharded`: plans for several GPUs;
//! - `largest`: the largest batch, length or resolution;
//! - `jax`: settings for scripts that use JAX;
//! - `smaller`: what to say where nothing fits;
//! - [`changed`]: runs of the script as patches would make it;
//! - [`rungs`]: the next levers of a training loop, from its record alone.
//!
//! `oomph run --fit` finds a plan for the machine that it is on, and runs the job with it:
//!
//! - [`machine`]: the GPU, and what is free on it;
//! - [`cache`]: plans that were found before;
//! - [`corrections`]: what real runs needed beyond their plans;
//! - [`rehearsal`]: the decision.

mod attempts;
pub mod cache;
mod caution;
pub mod changed;
pub mod corrections;
mod fitter;
mod found;
mod goal;
mod jax;
mod largest;
pub mod machine;
mod net;
mod probe;
pub mod rehearsal;
pub mod rungs;
mod script_attempts;
mod select;
mod sharded;
mod smaller;
#[cfg(test)]
mod tests;
mod verify;
mod wanted;

pub use attempts::{Attempts, Ended, Measurement, Ranks, Request};
pub use fitter::{Ending, fit};
pub use found::Found;
pub use goal::Goal;
pub use script_attempts::ScriptAttempts;
pub use wanted::{Clock, Size, Wanted};
