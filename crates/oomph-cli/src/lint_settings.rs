//! Which rules run on which file: the command line, and `[tool.oomph.lint]` of the nearest
//! `pyproject.toml`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use oomph_lint::{Config, Selection};

/// What the command line says.
#[derive(Debug, Default)]
pub struct Choices {
    /// Rules instead of the default ones.
    pub select: Option<Vec<String>>,
    /// Rules on top of the others.
    pub extend_select: Vec<String>,
    /// Rules to leave out.
    pub ignore: Vec<String>,
    /// The settings file.
    pub config: Option<PathBuf>,
    /// No settings file.
    pub isolated: bool,
}

/// The settings that apply to a path.
pub struct Settings {
    selection: Selection,
    /// Files to leave out of folders.
    pub exclude: Gitignore,
    per_file: Vec<(Gitignore, Vec<String>)>,
}

impl Choices {
    /// The settings file for a path: the nearest `pyproject.toml` above it with a table for us.
    pub fn config_for(&self, path: &Path) -> anyhow::Result<Option<PathBuf>> {
        if self.isolated {
            return Ok(None);
        }
        if let Some(config) = &self.config {
            return Ok(Some(config.clone()));
        }
        let Ok(start) = std::path::absolute(path) else {
            return Ok(None);
        };
        for folder in start.ancestors() {
            let file = folder.join("pyproject.toml");
            if !file.is_file() {
                continue;
            }
            let text = fs::read_to_string(&file)
                .with_context(|| format!("cannot read {}", file.display()))?;
            let has_table = Config::from_pyproject(&text)
                .with_context(|| format!("in {}", file.display()))?
                .is_some();
            if has_table {
                return Ok(Some(file));
            }
        }
        Ok(None)
    }

    /// The settings of a settings file, or of none, with what the command line says.
    pub fn settings(&self, file: Option<&Path>) -> anyhow::Result<Settings> {
        let mut config = Config::default();
        let mut root = PathBuf::from(".");
        if let Some(file) = file {
            let text = fs::read_to_string(file)
                .with_context(|| format!("cannot read {}", file.display()))?;
            config = Config::from_pyproject(&text)
                .with_context(|| format!("in {}", file.display()))?
                .unwrap_or_default();
            if let Some(parent) = file.parent() {
                root = parent.to_path_buf();
            }
        }
        let root = std::path::absolute(&root).unwrap_or(root);
        let patterns = |patterns: &[String]| -> anyhow::Result<Gitignore> {
            let mut builder = GitignoreBuilder::new(&root);
            for pattern in patterns {
                builder
                    .add_line(None, pattern)
                    .with_context(|| format!("`{pattern}` is not a gitignore pattern"))?;
            }
            Ok(builder.build()?)
        };
        let select = self.select.as_deref().or(config.select.as_deref());
        let mut extend = config.extend_select.clone();
        extend.extend(self.extend_select.iter().cloned());
        let mut ignored = config.ignore.clone();
        ignored.extend(self.ignore.iter().cloned());
        let mut per_file = Vec::new();
        for (pattern, codes) in &config.per_file_ignores {
            // Report a wrong code at once, not only when a file matches.
            Selection::default().without(codes)?;
            per_file.push((patterns(std::slice::from_ref(pattern))?, codes.clone()));
        }
        Ok(Settings {
            selection: Selection::new(select, &extend, &ignored)?,
            exclude: patterns(&config.exclude)?,
            per_file,
        })
    }
}

impl Settings {
    /// The rules for a file.
    pub fn for_file(&self, path: &Path) -> Selection {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let mut selection = self.selection.clone();
        for (pattern, codes) in &self.per_file {
            if matches(pattern, &path, false) {
                // The codes were checked when the settings were read.
                if let Ok(without) = selection.without(codes) {
                    selection = without;
                }
            }
        }
        selection
    }
}

/// Whether a gitignore pattern matches a path below its root.
pub fn matches(pattern: &Gitignore, path: &Path, is_dir: bool) -> bool {
    path.starts_with(pattern.path())
        && pattern
            .matched_path_or_any_parents(path, is_dir)
            .is_ignore()
}
