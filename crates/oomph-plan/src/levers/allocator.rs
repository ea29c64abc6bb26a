//! `allocator`: other settings of PyTorch's caching allocator.
//!
//! Memory: the template stays; it is played with the settings (see [`crate::search`]). Time: none.
//! Results: exact.

use crate::draft::Draft;

/// What is tried: segments that can grow leave no holes that nothing fits into.
pub(crate) const EXPANDABLE: &str = "expandable_segments:True";

/// Applies the lever.
pub(crate) fn apply(_draft: &mut Draft<'_>) {}
