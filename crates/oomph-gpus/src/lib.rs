//! The catalogue of GPUs: their properties, with the source of each figure.
//!
//! The figures are data, not code: one TOML file per compute capability in `data/`, embedded in
//! the binary and parsed on first use. What is true of a whole architecture (shared memory,
//! registers, threads) stands once at the top of its file. Every group of figures has a
//! [`Source`], which distinguishes measured from estimated values. `docs/gpus.md` says how
//! to add a GPU.
//!
//! This crate does no I/O.
//!
//! ```
//! let gpu = oomph_gpus::find("4090")?;
//! assert_eq!(gpu.name, "NVIDIA GeForce RTX 4090");
//! # Ok::<(), oomph_gpus::UnknownGpu>(())
//! ```

mod data;
mod export;
mod find;
mod gpu;
mod reported;

pub use data::{CatalogueError, catalogue, parse_data_file};
pub use find::{
    Found, GpuSpec, MAX_GPUS, ParseSpecError, Selection, UnknownGpu, find, parse_spec, resolve,
    select,
};
pub use gpu::{
    Class, Clocks, Context, Cost, Figure, Gpu, Limits, Link, Memory, Rates, Source, SourceKind,
};
pub use reported::Reported;
