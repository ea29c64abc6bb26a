//! How results are shown: terminal, JSON, HTML.

pub mod doctor;
pub mod drift;
pub mod ending;
pub mod estimate;
pub mod explanation;
pub mod export;
pub mod finding;
pub mod fit;
pub mod gpus;
pub mod gpus_for;
pub mod html;
pub mod replay;
pub mod run;
pub mod serving;
mod table;
pub mod terminal;
pub mod time;
