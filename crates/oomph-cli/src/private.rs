//! Takes out of a text what says whose machine it is from, for output that people show in public.

use std::path::Path;

use oomph_job::host;

/// The first parts of paths that are alike on all machines.
const COMMON: [&str; 9] = [
    "bin", "dev", "etc", "lib", "lib64", "proc", "run", "sys", "usr",
];
/// Names of users and hosts that say nothing, or are words of the output itself (the user of our own image is called oomph).
/// Shorter ones would change other words.
const SAYS_NOTHING: [&str; 8] = [
    "root",
    "localhost",
    "user",
    "oomph",
    "python",
    "torch",
    "nvidia",
    "linux",
];
const SHORTEST: usize = 3;

/// What is private on this machine, and what stands for it.
#[derive(Debug, Default)]
pub struct Private {
    /// The longest first.
    paths: Vec<(String, &'static str)>,
    names: Vec<(String, &'static str)>,
}

impl Private {
    /// What the environment of this process says.
    pub fn here() -> Self {
        let mut private = Self::default();
        let home = std::env::var("HOME").unwrap_or_default();
        if let Ok(host) = host::get() {
            let environment = host.python.parent().and_then(Path::parent);
            private.path(environment, "ENVIRONMENT");
            private.path(host.package.parent(), "PACKAGES");
        }
        private.path(std::env::current_dir().ok().as_deref(), "HERE");
        private.path(Some(Path::new(&home)), "~");
        let users = ["USER", "LOGNAME"].map(|name| std::env::var(name).unwrap_or_default());
        let of_home = home.rsplit('/').next().unwrap_or_default().to_owned();
        for user in users.into_iter().chain([of_home]) {
            private.name(&user, "USER");
        }
        let machine = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        private.name(machine.trim(), "HOST");
        private
    }

    fn path(&mut self, path: Option<&Path>, stands: &'static str) {
        let is_common = |path: &&Path| ["/", "/usr", "/usr/local"].map(Path::new).contains(path);
        // Where HOME is not set, or Python is found by name alone, there is nothing to take out.
        let Some(path) = path.filter(|path| path.is_absolute() && !is_common(path)) else {
            return;
        };
        for path in [Some(path.to_path_buf()), path.canonicalize().ok()] {
            self.paths
                .extend(path.map(|path| (path.display().to_string(), stands)));
        }
        self.paths
            .sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
    }

    fn name(&mut self, name: &str, stands: &'static str) {
        if name.len() >= SHORTEST && !SAYS_NOTHING.contains(&name) {
            self.names.push((name.to_owned(), stands));
        }
    }

    /// The text without it.
    pub fn out_of(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (path, stands) in &self.paths {
            text = replace_whole(&text, path, stands);
        }
        text = without_directories(&text);
        for (name, stands) in &self.names {
            text = replace_whole(&text, name, stands);
        }
        text
    }
}

/// Replaces `what` where it is no part of a longer name.
fn replace_whole(text: &str, what: &str, stands: &str) -> String {
    let is_part = |character: char| character.is_alphanumeric() || character == '_';
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(what) {
        let (before, found) = rest.split_at(at);
        let after = &found[what.len()..];
        let inside = before.ends_with(is_part) || after.starts_with(is_part);
        out.push_str(before);
        out.push_str(if inside { what } else { stands });
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Leaves only the last part of absolute paths, unless those are alike on all machines.
fn without_directories(text: &str) -> String {
    let ends = |character: char| character.is_whitespace() || "'\"()[]{},;:=".contains(character);
    let mut out = String::new();
    for part in text.split_inclusive(ends) {
        let (path, end) = match part.char_indices().next_back() {
            Some((at, last)) if ends(last) => part.split_at(at),
            _ => (part, ""),
        };
        let is_private = path.strip_prefix('/').is_some_and(|rest| {
            rest.split_once('/')
                .is_some_and(|(first, _)| !COMMON.contains(&first))
        });
        match path.rsplit_once('/').filter(|_| is_private) {
            Some((_, last)) => {
                out.push_str("…/");
                out.push_str(last);
            }
            None => out.push_str(path),
        }
        out.push_str(end);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_says_whose_machine_it_is() {
        let mut private = Private::default();
        private.path(Some(Path::new("/home/alice")), "~");
        private.path(Some(Path::new("/home/alice/secret/.venv")), "ENVIRONMENT");
        private.name("alice", "USER");
        private.name("node7.acme.example", "HOST");
        private.name("al", "USER");
        private.name("oomph", "USER");
        private.path(Some(Path::new("")), "~");
        for (text, expected) in [
            (
                "no torch in /home/alice/secret/.venv. Install it",
                "no torch in ENVIRONMENT. Install it",
            ),
            ("'/home/alice/x.py', line 3", "'~/x.py', line 3"),
            ("/home/alicia/x.py", "…/x.py"),
            ("alice@node7.acme.example: malice", "USER@HOST: malice"),
            (
                "open /data/acme/plan.toml: denied",
                "open …/plan.toml: denied",
            ),
            (
                "/usr/lib/libcuda.so.1 and /dev/shm",
                "/usr/lib/libcuda.so.1 and /dev/shm",
            ),
            ("CUDA 13.0, 1/2 of all", "CUDA 13.0, 1/2 of all"),
            ("oomph run --gpu t4", "oomph run --gpu t4"),
        ] {
            assert_eq!(private.out_of(text), expected);
        }
    }
}
