//! How results are shown: terminal, JSON, HTML.

pub mod drift;
pub mod explanation;
pub mod export;
pub mod finding;
pub mod fit;
pub mod html;
pub mod run;
pub mod terminal;
