//! Replaces names and paths, so that a report can be shared.
//!
//! The same name becomes the same placeholder throughout a report, so that it stays readable:
//! `/home/me/secret/train.py` is `file1.py`, `Secret.encoder.3.mlp` is `module1.module2.3.module3`.
//! PyTorch's own files, functions and operators are public and stay, without the path to them.
//! Text that oomph wrote is kept, with each name in it replaced; what the script itself
//! printed or raised is removed.

use std::collections::HashMap;

use oomph_trace::is_users_own;
use serde_json::{Map, Value};

/// Public packages.
const PUBLIC: [&str; 8] = [
    "torch",
    "torchvision",
    "torchaudio",
    "transformers",
    "accelerate",
    "numpy",
    "lightning",
    "oomph",
];
/// Keys of the JSON that hold what the script's author wrote.
const PRIVATE_KEYS: [&str; 3] = ["failure", "text", "apply"];

/// Names and their placeholders.
#[derive(Debug, Default)]
pub struct Redactor {
    active: bool,
    files: HashMap<String, String>,
    functions: HashMap<String, String>,
    modules: HashMap<String, String>,
}

impl Redactor {
    /// One that redacts, or one that changes nothing.
    pub fn new(active: bool) -> Self {
        Self {
            active,
            ..Self::default()
        }
    }

    /// A file of the user's.
    pub fn file(&mut self, path: &str) -> String {
        if !self.active || path.is_empty() {
            return path.to_owned();
        }
        // A file appears by its path here and by its name there.
        let name = path.rsplit(['/', '\\']).next().unwrap_or(path).to_owned();
        let number = self.files.len() + 1;
        self.files
            .entry(name)
            .or_insert_with(|| format!("file{number}.py"))
            .clone()
    }

    /// A function of the user's.
    pub fn function(&mut self, name: &str) -> String {
        const COMMON: [&str; 5] = ["", "<module>", "main", "forward", "__init__"];
        if !self.active || COMMON.contains(&name) {
            return name.to_owned();
        }
        let number = self.functions.len() + 1;
        self.functions
            .entry(name.to_owned())
            .or_insert_with(|| format!("function{number}"))
            .clone()
    }

    /// A file of a library: its path from the package on, if the package is public.
    pub fn library_file(&mut self, path: &str) -> String {
        if !self.active {
            return path.to_owned();
        }
        match public_part(path) {
            Some(part) => part.to_owned(),
            // C++ frames have bare names or none.
            None if !path.contains(['/', '\\']) && !is_python_file(path) => path.to_owned(),
            None => "library".to_owned(),
        }
    }

    /// A function of a library.
    pub fn library_function(&mut self, path: &str, name: &str) -> String {
        if !self.active || public_part(path).is_some() || name.contains("::") {
            return name.to_owned();
        }
        self.function(name)
    }

    /// The file and the function of a frame.
    pub fn frame(&mut self, file: &str, function: &str, python: bool) -> (String, String) {
        if python && is_users_own(file) {
            (self.file(file), self.function(function))
        } else {
            (
                self.library_file(file),
                self.library_function(file, function),
            )
        }
    }

    /// A module's path, part by part; numbers stay.
    pub fn module(&mut self, path: &str) -> String {
        if !self.active {
            return path.to_owned();
        }
        let parts: Vec<String> = path
            .split('.')
            .map(|part| {
                if part.is_empty() || part == "*" || part.bytes().all(|byte| byte.is_ascii_digit())
                {
                    return part.to_owned();
                }
                let number = self.modules.len() + 1;
                self.modules
                    .entry(part.to_owned())
                    .or_insert_with(|| format!("module{number}"))
                    .clone()
            })
            .collect();
        parts.join(".")
    }

    /// An operator: PyTorch's stay.
    pub fn operator(&mut self, name: &str) -> String {
        const OURS: [&str; 4] = ["aten", "prims", "c10d", "_c10d_functional"];
        match name.split_once("::") {
            Some((space, _)) if self.active && !OURS.contains(&space) => self.function(name),
            _ => name.to_owned(),
        }
    }

    /// A sentence that oomph wrote: what in it is a path, a file or a module is replaced.
    pub fn sentence(&mut self, text: &str) -> String {
        if !self.active {
            return text.to_owned();
        }
        let mut out = String::with_capacity(text.len());
        let mut after_in = false;
        for piece in text.split_inclusive([' ', '(', ')', ',', ';', '\n', '"', '\'', '`']) {
            let word = piece.trim_end_matches([' ', '(', ')', ',', ';', '\n', '"', '\'', '`']);
            let end = &piece[word.len()..];
            let replaced = self.word(word, after_in);
            out.push_str(&replaced);
            out.push_str(end);
            if !word.is_empty() {
                // "train.py:41 in step": the word after it is a function's name.
                after_in = word == "in";
            }
        }
        out
    }

    fn word(&mut self, word: &str, after_in: bool) -> String {
        let bare = word.trim_end_matches(['.', ':']);
        let end = &word[bare.len()..];
        let (name, line) = match bare.rsplit_once(':') {
            Some((name, line)) if line.bytes().all(|byte| byte.is_ascii_digit()) => {
                (name, Some(line))
            }
            _ => (bare, None),
        };
        let looks_like_file = is_python_file(name) || name.contains(['/', '\\']);
        let replaced = if looks_like_file {
            if public_part(name).is_some() {
                self.library_file(name)
            } else {
                self.file(name)
            }
        } else if self
            .modules
            .contains_key(name.split('.').next().unwrap_or(name))
            && name.contains('.')
            || self.modules.contains_key(name)
        {
            self.module(name)
        } else if after_in && self.functions.contains_key(name) {
            self.function(name)
        } else {
            return word.to_owned();
        };
        match line {
            Some(line) => format!("{replaced}:{line}{end}"),
            None => format!("{replaced}{end}"),
        }
    }

    /// A JSON document of oomph's: every string in it, by the meaning of its key.
    pub fn json(&mut self, value: &Value) -> Value {
        if !self.active {
            return value.clone();
        }
        self.json_at("", value)
    }

    fn json_at(&mut self, key: &str, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(match key {
                "module" => self.module(text),
                _ if PRIVATE_KEYS.contains(&key) => "(left out)".to_owned(),
                _ => self.sentence(text),
            }),
            Value::Array(items) if key == "script" => Value::Array(
                items
                    .iter()
                    .take(1)
                    .map(|script| Value::String(self.file(script.as_str().unwrap_or_default())))
                    .collect(),
            ),
            Value::Array(items) if key == "modules" => Value::Array(
                items
                    .iter()
                    .map(|item| match item.as_object() {
                        Some(item) => Value::Object(
                            item.iter()
                                .map(|(name, value)| match (name.as_str(), value.as_str()) {
                                    ("name", Some(module)) => {
                                        (name.clone(), Value::String(self.module(module)))
                                    }
                                    _ => (name.clone(), self.json_at(name, value)),
                                })
                                .collect(),
                        ),
                        None => self.json_at(key, item),
                    })
                    .collect(),
            ),
            Value::Array(items) => {
                Value::Array(items.iter().map(|item| self.json_at(key, item)).collect())
            }
            Value::Object(fields) => {
                let fields: Map<String, Value> = fields
                    .iter()
                    .map(|(name, value)| (name.clone(), self.json_at(name, value)))
                    .collect();
                Value::Object(fields)
            }
            other => other.clone(),
        }
    }
}

fn is_python_file(path: &str) -> bool {
    std::path::Path::new(path)
        .extension()
        .is_some_and(|extension| extension == "py")
}

/// The path from a public package on: `torch/nn/modules/linear.py`.
fn public_part(path: &str) -> Option<&str> {
    let after = ["site-packages/", "dist-packages/"]
        .iter()
        .find_map(|marker| path.find(marker).map(|at| &path[at + marker.len()..]))?;
    let package = after.split(['/', '\\']).next()?;
    PUBLIC.contains(&package).then_some(after)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_have_one_stand_in_each() {
        let mut redact = Redactor::new(true);
        assert_eq!(redact.file("/home/me/secret/train.py"), "file1.py");
        assert_eq!(
            redact.module("Secret.encoder.3.mlp"),
            "module1.module2.3.module3"
        );
        assert_eq!(redact.function("leak_names"), "function1");
        assert_eq!(
            redact.sentence("kept by train.py:41 in leak_names, at Secret.encoder.3.mlp"),
            "kept by file1.py:41 in function1, at module1.module2.3.module3"
        );
        assert_eq!(
            redact.library_file("/home/me/venv/lib/python3.11/site-packages/torch/nn/a.py"),
            "torch/nn/a.py"
        );
        assert_eq!(redact.operator("aten::addmm"), "aten::addmm");
        assert_eq!(redact.operator("acme::secret_kernel"), "function2");
    }

    #[test]
    fn what_the_script_said_is_left_out() {
        let mut redact = Redactor::new(true);
        let found = redact.json(&json!({
            "script": ["/home/me/train.py", "--key", "hunter2"],
            "failure": "ValueError: hunter2",
            "modules": [{"name": "Secret.head", "bytes": 3}],
            "verdict": "the loss at /home/me/train.py:3",
        }));
        let text = found.to_string();
        for secret in ["hunter2", "Secret", "/home", "train"] {
            assert!(!text.contains(secret), "{text}");
        }
        assert_eq!(found["modules"][0]["bytes"], 3);
    }

    #[test]
    fn without_it_everything_stays() {
        let mut redact = Redactor::new(false);
        assert_eq!(redact.file("/home/me/train.py"), "/home/me/train.py");
        assert_eq!(redact.module("A.b"), "A.b");
        assert_eq!(redact.sentence("a.py:3"), "a.py:3");
    }
}
