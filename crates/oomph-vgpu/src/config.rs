//! Which GPU this library plays: a text of `key=value` lines, in the file that `OOMPH_VGPU` names.
//!
//! The launcher writes it from the catalogue; unknown keys are ignored so that an older library
//! reads a newer file. Without the variable the library simulates an H200, its best measured GPU.

use std::collections::HashMap;

/// The environment variable that names the configuration file.
pub const CONFIG_VARIABLE: &str = "OOMPH_VGPU";

/// The parsed configuration.
#[derive(Debug, Default)]
pub struct Config {
    values: HashMap<String, String>,
}

impl Config {
    /// Reads the file that [`CONFIG_VARIABLE`] names.
    pub fn from_environment() -> Self {
        let text = std::env::var_os(CONFIG_VARIABLE)
            .and_then(|path| std::fs::read_to_string(path).ok())
            .unwrap_or_default();
        Self::parse(&text)
    }

    /// Parses `key=value` lines; blank lines and `#` comments are skipped.
    pub fn parse(text: &str) -> Self {
        let values = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .filter_map(|line| line.split_once('='))
            .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
            .collect();
        Self { values }
    }

    /// The text of `key`.
    pub fn text<'a>(&'a self, key: &str, default: &'a str) -> &'a str {
        self.values.get(key).map_or(default, String::as_str)
    }

    /// The number of `key`; `default` if it is absent or not a number.
    pub fn number(&self, key: &str, default: u64) -> u64 {
        self.values
            .get(key)
            .and_then(|value| value.parse().ok())
            .unwrap_or(default)
    }

    /// Like [`Config::number`], for the `int` fields of the C structs.
    pub fn int(&self, key: &str, default: i32) -> i32 {
        i32::try_from(self.number(key, default as u64)).unwrap_or(default)
    }
}
