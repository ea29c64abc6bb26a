//! How results are shown: terminal, JSON, HTML.

pub mod terminal;
