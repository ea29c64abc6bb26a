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
//! This is the only crate that knows wire formats, and [`Trace`] is not one of them.

pub mod bfc;
pub mod chrome;
pub mod error;
pub mod events;
mod input;
pub mod labels;
pub mod oomph_file;
mod pickle;
pub mod pprof;
pub mod snapshot;
pub mod stack_table;
pub mod string_table;
pub mod text;
pub mod trace;
pub mod units;
pub mod visible;

use std::io::Read;
use std::path::Path;

pub use error::{Error, Problem, ProblemKind};
pub use events::{Action, Event, Events};
pub use labels::{Category, Label, Labels, Phase};
pub use stack_table::{Frame, FrameId, StackId, StackTable, is_users_own};
pub use string_table::{StringId, StringTable};
pub use trace::{Annotation, Block, BlockState, Context, DeviceRows, Segment, Settings, Trace};
pub use units::{Bytes, DeviceAddr, PoolId, StreamId, TimeUs};
pub use visible::visible;

/// What a file turned out to hold.
#[derive(Debug)]
#[non_exhaustive]
pub enum Content {
    /// A memory history.
    Trace(Box<Trace>),
    /// A log with out-of-memory messages.
    Messages(Vec<text::OomMessage>),
    /// What JAX held at one moment.
    Profile(Box<pprof::Profile>),
    /// What an allocator of XLA's or TensorFlow's held when it found no room.
    Pool(Box<bfc::Pool>),
}

/// Reads a file of any known format, told by its contents; `path` is for messages only.
pub fn read(file: impl Read + 'static, path: &Path) -> Result<(Content, Vec<Problem>), Error> {
    let mut input = input::Input::new(input::unpacked(file, path)?);
    let first = input.peek(1 << 12).to_vec();
    if first.is_empty() {
        return Err(match input.error.take() {
            Some(source) => Error::Io {
                path: path.to_owned(),
                source,
            },
            None => Error::Empty {
                path: path.to_owned(),
            },
        });
    }
    let trace = |(trace, mut problems): (Trace, Vec<Problem>)| {
        if trace.strings.is_full() {
            problems.push(Problem::new(
                ProblemKind::Incomplete,
                format!("names beyond {} bytes are empty", string_table::MAX_STRINGS),
            ));
        }
        (Content::Trace(Box::new(trace)), problems)
    };
    if first.first() == Some(&0x80) {
        return snapshot::read_input(input, path).map(trace);
    }
    if first.starts_with(oomph_file::MAGIC) {
        return oomph_file::read_input(input, path).map(trace);
    }
    if chrome::looks_like(&first) {
        return chrome::read_from(input, path).map(trace);
    }
    if pprof::looks_like(&first) {
        let profile = pprof::read_from(input, path)?;
        return Ok((Content::Profile(Box::new(profile)), Vec::new()));
    }
    if bfc::looks_like(&first) {
        let pool = bfc::read_from(input, path)?;
        return Ok((Content::Pool(Box::new(pool)), Vec::new()));
    }
    let not_known = |found: String| Error::Format {
        path: path.to_owned(),
        found: format!("found {found}"),
        expected: snapshot::EXPECTED.to_owned(),
    };
    // Text has no zero bytes, except for the device's number in messages of 2.3.
    let has_zeros = first.iter().filter(|&&byte| byte == 0).nth(2).is_some();
    if has_zeros {
        return Err(not_known(snapshot::describe_head(&first)));
    }
    let (messages, problems) = text::read_from(input).map_err(|source| Error::Io {
        path: path.to_owned(),
        source,
    })?;
    if messages.is_empty() {
        let other = problems
            .first()
            .map(|problem| format!(": {}", problem.message))
            .unwrap_or_default();
        return Err(not_known(format!(
            "text without an out-of-memory message{other}"
        )));
    }
    Ok((Content::Messages(messages), problems))
}
