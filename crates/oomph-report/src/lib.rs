//! How results are shown: terminal, JSON, HTML.

pub mod explanation;
pub mod terminal;
