//! How results are shown: terminal, JSON, HTML.

pub mod explanation;
pub mod finding;
pub mod fit;
pub mod run;
pub mod terminal;
