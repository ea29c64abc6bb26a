//! How long the steps of a job take on a GPU, without it.
//!
//! The virtual GPU writes down what each step does, in order ([`Steps`]): kernels with what they move, products and
//! convolutions with their sizes, operators and waits of the host. [`device`] says how long each piece of work takes a GPU of
//! the catalogue, [`Host`] what keeps the host busy, and [`play`] plays both queues together. [`Estimate`] sums up.
//!
//! The coefficients follow measurements of one H200 (`bench/time`); other GPUs differ by their published figures alone.

mod device;
mod estimate;
mod figures;
mod host;
mod play;
mod recalibrate;
mod work;

pub use device::{Took, took};
pub use estimate::{Bound, Consumer, Estimate, Part, parts, parts_and_copies};
pub use figures::{Figures, NoFigures};
pub use host::{Host, USUAL};
pub use play::{Played, alone, play};
pub use recalibrate::{Factors, RealSteps, factors, gpu_factor};
pub use work::{Kind, Line, Path, Product, Step, Steps, Way, Work};
