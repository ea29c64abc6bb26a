//! A GPU memory history in columns, with readers for every format it comes in.
//!
//! Three things shaped this crate:
//!
//! - Real histories have millions of events and pickles of gigabytes, so events are columns from
//!   the moment they are read: no tree of objects is ever built. See [`Trace`].
//! - Files come from crashed processes. A reader returns what it could read *and* the list of
//!   [`Problem`]s; only a file without anything readable is an [`Error`].
//! - Files come from strangers. The pickle reader can only build plain data, and every length and
//!   depth has a cap.
//!
//! This is the only crate that knows wire formats, and [`Trace`] is none of them.

pub mod error;
pub mod events;
mod input;
pub mod labels;
mod pickle;
pub mod snapshot;
pub mod stack_table;
pub mod string_table;
pub mod text;
pub mod trace;
pub mod units;

pub use error::{Error, Problem, ProblemKind};
pub use events::{Action, Event, Events};
pub use labels::{Category, Label, Labels, Phase};
pub use stack_table::{Frame, FrameId, StackId, StackTable};
pub use string_table::{StringId, StringTable};
pub use trace::{Annotation, Block, BlockState, Context, DeviceRows, Segment, Settings, Trace};
pub use units::{Bytes, DeviceAddr, PoolId, StreamId, TimeUs};
