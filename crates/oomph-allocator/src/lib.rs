//! The CUDA caching allocator of PyTorch, simulated.
//!
//! [`Simulator`] is the allocator, [`Driver`] the device below it. Whoever replays a history feeds
//! the simulator and compares; whoever asks "what if" changes [`Config`] or the driver.

pub mod config;
pub mod driver;
pub mod plan;
pub mod pools;
pub mod program;
pub mod replay;
pub mod search;
pub mod simulator;
mod size_index;
mod table;

pub use config::{Config, ConfigError, TorchVersion};
pub use driver::{AddressModel, Driver};
pub use program::{Allocation, Op, Program, Room};
pub use replay::{Device, Mismatch, Predicted, Replayed};
pub use simulator::{BlockId, OutOfMemory, Simulator, Stats};
