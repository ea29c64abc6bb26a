//! The CUDA caching allocator of PyTorch, simulated.
//!
//! [`Simulator`] is the allocator, [`Driver`] the device below it. [`Program`] is what a job asked
//! of them: [`replay`] feeds it to the simulator and compares with what was recorded, or predicts
//! what happens under another [`Config`] or on another [`Device`]; [`search`] tries settings, and
//! [`plan`] computes what a perfect allocator would need.
//!
//! ```
//! use oomph_allocator::{AddressModel, Config, Simulator};
//! use oomph_trace::PoolId;
//!
//! const MIB: u64 = 1 << 20;
//! let mut allocator = Simulator::new(Config::default(), AddressModel::new(4 << 30));
//! let block = allocator.malloc(30 * MIB, 0, PoolId::DEFAULT)?;
//! allocator.free(block);
//! // What was freed stays reserved, and serves the next request.
//! allocator.malloc(12 * MIB, 0, PoolId::DEFAULT)?;
//! assert_eq!(allocator.stats().allocated, 12 * MIB);
//! assert_eq!(allocator.stats().reserved, 30 * MIB);
//! # Ok::<(), oomph_allocator::OutOfMemory>(())
//! ```

mod config;
mod driver;
pub mod plan;
mod pools;
pub mod program;
pub mod replay;
pub mod search;
pub mod simulator;
mod size_index;
pub mod study;
mod table;

pub use config::{Config, ConfigError, TorchVersion, VARIABLES, other_than_cuda_malloc};
pub use driver::{AddressModel, Driver};
pub use program::{Allocation, Op, Program, Room};
pub use replay::{Device, Mismatch, Predicted, Replayed};
pub use simulator::{BlockId, OutOfMemory, Simulator, Stats};
