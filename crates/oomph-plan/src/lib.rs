//! Levers, the cost model, and the search for the cheapest plan that fits.
//!
//! A [`Lever`] is one change that saves memory; a plan is a list of them, kept in a [`PlanFile`].
//! Each lever is one file in `levers/`, which holds everything about it, and one of the same name in
//! `python/oomph/levers/`, which applies it to a script that knows nothing of it.
//!
//! This crate does no I/O.

mod blocks;
pub mod by_hand;
pub mod draft;
mod file;
mod floor;
mod gradients;
mod host_copies;
mod lever;
pub mod levers;
pub mod model;
mod optimizers;
pub mod play;
pub mod result;
pub mod search;
pub mod segments;
pub mod sharding;
mod stop;
mod streamed;
pub mod units;

pub use file::{FORMAT, Figures, PlanError, PlanFile, PlanGpu, PlanJob, Versions, Written};
pub use floor::Floor;
pub use lever::{Dtype, Group, Results, Stage, places};
pub use levers::{Lever, NAMES, for_jax, parameters};
pub use stop::{Stop, Stopped};
