//! Python source: parsed, searched and edited.
//!
//! - No I/O: callers read files and write results.
//! - A [`Module`] is a text with its syntax tree, its lines and its comments. [`Module::parse`] makes
//!   one of a script; [`Source`] holds a file that may also be a notebook.
//! - Searching: [`statements_in`], [`calls_in`], [`imports_of`], [`dotted_name`] and their like answer
//!   what most callers ask; [`ast::visitor`] walks trees for everything else.
//! - Editing: methods of [`Module`] make [`Edit`]s, which know the indentation, commas and line
//!   breaks; [`apply`] makes the new text. Nothing is reformatted.
//!
//! The parser is ruff's. It promises no stable interface, so this crate alone depends on it, and
//! others use what is exported here.
//!
//! ```
//! use oomph_python_source::{Module, apply, calls_in, dotted_name};
//!
//! let text = "import torch\nstep = torch.optim.AdamW(model.parameters(), lr=1e-3)\n";
//! let module = Module::parse(text)?;
//! let imports = module.imports();
//! let call = calls_in(module.body())
//!     .into_iter()
//!     .find(|call| imports.full_name(&call.func).as_deref() == Some("torch.optim.AdamW"));
//! let edit = call.map(|call| module.add_keyword(call, "fused=True"));
//! assert_eq!(
//!     apply(text, edit.as_slice()),
//!     "import torch\nstep = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)\n"
//! );
//! # Ok::<(), oomph_python_source::Problem>(())
//! ```

mod cells;
mod edit;
mod imports;
mod module;
mod names;
mod notebook;
mod problem;
mod search;
mod source;
mod stack;

pub use cells::Cells;
pub use edit::{Edit, apply, apply_groups};
pub use imports::{Import, Imports, imports_of};
pub use module::Module;
pub use names::{dotted_name, dotted_parts, last_name, last_part, names_in};
pub use problem::{Position, Problem};
pub use ruff_python_ast as ast;
pub use ruff_text_size::{Ranged, TextRange, TextSize};
pub use search::{Assignment, classes_in};
pub use search::{assignments_in, blocks_of, calls_in, calls_run_by, functions_in, statements_in};
pub use source::{MAX_FILE_BYTES, Source};
pub use stack::{MAX_DEPTH, with_stack};
