//! Files that cannot run as they stand: they stop at a line of their own, or import what the project does not have.

use std::path::{Path, PathBuf};

use oomph_python_source::{TextRange, TextSize};
use rustc_hash::{FxHashMap, FxHashSet};

use super::calls::Dead;
use super::collect::{Bound, End};
use super::{Reach, clean};
use crate::project::MAX_FOLDERS;

/// Nothing of the file runs.
const WHOLE: End = End {
    at: TextSize::new(0),
    after: TextSize::new(0),
    fails: true,
};

/// Names that modules of a project have, and no library that such a project would use: if the project has none, it
/// lacks it.
const LOCAL: &[&str] = &[
    "args",
    "common",
    "config",
    "configs",
    "data",
    "data_loader",
    "data_loaders",
    "data_utils",
    "dataloader",
    "dataloaders",
    "dataset",
    "engine",
    "env",
    "envs",
    "eval",
    "evaluation",
    "helper",
    "helpers",
    "layers",
    "lib",
    "libs",
    "loader",
    "loss",
    "losses",
    "metric",
    "metrics",
    "model",
    "models",
    "modules",
    "network",
    "networks",
    "opt",
    "options",
    "opts",
    "preprocess",
    "preprocessing",
    "src",
    "train",
    "trainer",
    "trainers",
    "transform",
    "util",
    "utils",
];

impl Reach<'_> {
    /// Where each file stops that cannot go on: at the first line that fails, or at an import that does.
    pub(super) fn find_stops(&mut self, is_there: &dyn Fn(&Path) -> bool) {
        let folders: FxHashSet<PathBuf> = self
            .files
            .iter()
            .filter_map(|file| file.path.parent())
            .flat_map(Path::ancestors)
            .map(clean)
            .collect();
        let packages = self.packages();
        // Files with capitals in their names, in small letters.
        let all = self.files;
        let spelled: FxHashMap<PathBuf, usize> = (self.by_stem.iter())
            .filter(|(stem, _)| stem.contains(|each: char| each.is_ascii_uppercase()))
            .flat_map(|(stem, files)| {
                let lower = stem.to_ascii_lowercase();
                files
                    .iter()
                    .filter_map(move |at| Some((clean(all[*at].path.parent()?).join(&lower), *at)))
            })
            .collect();
        let taken = self.taken();
        let exists = |module: &Path| {
            self.by_path.contains_key(module) || folders.contains(module) || is_there(module)
        };
        let mut stops: Vec<Option<End>> = Vec::with_capacity(self.files.len());
        for (file, each) in self.files.iter().enumerate() {
            let missing = each
                .says
                .imports
                .iter()
                .enumerate()
                .find_map(|(at, import)| {
                    let stop = import.needed?;
                    let fails = match self.resolved[file][at] {
                        None => self.is_missing(file, import, &packages, &spelled, &exists),
                        Some((to, used)) => {
                            used + 1 == import.parts.len()
                                && !import.star
                                && self.is_sure(file, at, &taken)
                                && self.lacks(file, to, import, used, &exists)
                        }
                    };
                    fails.then_some(stop)
                });
            stops.push(first(self.stops[file], missing));
        }
        // Who imports a file that stops, or that does not parse, stops there as well.
        loop {
            let mut changed = false;
            for (file, each) in self.files.iter().enumerate() {
                for (at, import) in each.says.imports.iter().enumerate() {
                    let (Some(stop), Some((to, _))) = (import.needed, &self.resolved[file][at])
                    else {
                        continue;
                    };
                    if !self.is_sure(file, at, &taken) {
                        continue;
                    }
                    let breaks = stops[*to].is_some() || self.files[*to].says.is_broken;
                    let earlier = stops[file].is_none_or(|known| stop.at < known.at);
                    if breaks && earlier && *to != file {
                        stops[file] = Some(stop);
                        changed = true;
                    }
                }
            }
            if !changed {
                break;
            }
        }
        // Whoever imports a file of a package runs its `__init__` first.
        let broken: FxHashSet<PathBuf> = (self.files.iter().zip(&stops))
            .filter(|(file, stop)| {
                stop.is_some() && file.path.file_stem().is_some_and(|stem| stem == "__init__")
            })
            .filter_map(|(file, _)| file.path.parent().map(clean))
            .collect();
        for (file, stop) in self.files.iter().zip(&mut stops) {
            let inside = file
                .path
                .parent()
                .is_some_and(|folder| broken.contains(&clean(folder)));
            // What does something itself may be run as a script, unless it takes something of its package.
            let is_script = file.says.calls.iter().any(|call| call.of.is_none())
                && !(file.says.imports.iter())
                    .any(|import| import.level > 0 && import.needed.is_some());
            if inside && !is_script {
                *stop = first(*stop, Some(WHOLE));
            }
        }
        for (dead, stop) in self.dead.iter_mut().zip(&stops) {
            dead.extend(stop.map(|stop| Dead {
                range: TextRange::new(stop.at, TextSize::from(u32::MAX)),
                after: stop.after,
            }));
        }
        self.stops = stops;
    }

    /// Whether an import that finds a file means that one, and no library's module of its name.
    fn is_sure(&self, file: usize, at: usize, taken: &FxHashSet<usize>) -> bool {
        let Some((to, used)) = self.resolved[file][at] else {
            return false;
        };
        let (from, to_path) = (self.files[file].path, self.files[to].path);
        let is_beside = to_path.file_stem().is_some_and(|stem| stem == "__init__")
            && to_path.parent().and_then(Path::parent) == from.parent();
        !self.guessed.contains(&(file, at))
            && (self.files[file].says.imports[at].level > 0
                || self.begins_at_a_root(to, used)
                    && (used > 1 || is_beside || taken.contains(&to)))
    }

    /// Whether the folder that an import's first part lies in is no package itself: imports begin there, and
    /// `torch.nn` in `clients/torch/net.py` means no file beside it.
    fn begins_at_a_root(&self, to: usize, used: usize) -> bool {
        let path = clean(self.files[to].path).with_extension("");
        let is_init = path.file_stem().is_some_and(|stem| stem == "__init__");
        let base = path.ancestors().nth(used + usize::from(is_init));
        base.is_some_and(|base| !self.by_path.contains_key(base))
    }

    /// Files that somebody takes something of that they have: their names mean them, and no library's module.
    fn taken(&self) -> FxHashSet<usize> {
        let mut taken = FxHashSet::default();
        for (file, each) in self.files.iter().enumerate() {
            for (at, import) in each.says.imports.iter().enumerate() {
                if let Some((to, used)) = self.resolved[file][at]
                    && !self.guessed.contains(&(file, at))
                    && import
                        .parts
                        .get(used)
                        .is_some_and(|name| self.files[to].says.variables.contains_key(name))
                {
                    taken.insert(to);
                }
            }
        }
        taken
    }

    /// First parts of names that imports of a group of files find in the project.
    fn packages(&self) -> FxHashSet<(usize, &str)> {
        let mut packages = FxHashSet::default();
        for (file, each) in self.files.iter().enumerate() {
            for (at, import) in each.says.imports.iter().enumerate() {
                if import.level == 0
                    && import.parts.len() > 1
                    && matches!(self.resolved[file][at], Some((to, used))
                        if used > 1 && self.begins_at_a_root(to, used))
                    && !self.guessed.contains(&(file, at))
                {
                    packages.insert((self.groups[file], import.parts[0].as_str()));
                }
            }
        }
        packages
    }

    /// Whether an import that leads to no file names one of a package of the project, which has none of that name.
    fn is_missing(
        &self,
        file: usize,
        import: &Bound,
        packages: &FxHashSet<(usize, &str)>,
        spelled: &FxHashMap<PathBuf, usize>,
        exists: &dyn Fn(&Path) -> bool,
    ) -> bool {
        let folder = clean(self.files[file].path.parent().unwrap_or(Path::new("")));
        // What follows the module may be a name in it.
        let is_whole = import.star || import.name == import.parts.join(".");
        let of_module = import.parts.len() - usize::from(!is_whole && !import.parts.is_empty());
        let module = &import.parts[..of_module];
        if import.level > 0 {
            let Some(base) = folder.ancestors().nth(import.level as usize - 1) else {
                return false;
            };
            return match (module, import.parts.first()) {
                ([], Some(name)) => !exists(&base.join(name)) && !exists(&base.join("__init__")),
                _ => !module.is_empty() && !exists(&joined(base, module)),
            };
        }
        // `import unet` beside `Unet.py`
        if let ([module], Some(name)) = (module, import.parts.get(of_module)) {
            let meant = spelled.get(&folder.join(module.to_ascii_lowercase()));
            if meant.is_some_and(|meant| self.files[*meant].says.variables.contains_key(name)) {
                return true;
            }
        }
        if let Some(first) = module.first()
            && !self.files[file].says.moves_path
            && !folder
                .ancestors()
                .take(MAX_FOLDERS)
                .any(|base| exists(&base.join(first)))
            && (LOCAL.contains(&first.as_str()) && !self.is_somewhere(file, first)
                || import
                    .parts
                    .get(of_module)
                    .is_some_and(|name| module.len() == 1 && self.is_renamed(file, first, name)))
        {
            return true;
        }
        let known = |base: &Path| {
            !self.by_path.contains_key(base)
                && (self.by_path.contains_key(&base.join(&module[0]))
                    || packages.contains(&(self.groups[file], module[0].as_str())))
        };
        module.len() > 1
            && folder
                .ancestors()
                .take(MAX_FOLDERS)
                .any(|base| exists(&base.join(&module[0])) && known(base))
            && !folder
                .ancestors()
                .take(MAX_FOLDERS)
                .any(|base| exists(&joined(base, module)))
    }

    /// Whether any file or folder of a file's project is called so.
    fn is_somewhere(&self, from: usize, name: &str) -> bool {
        let part = self.part(from);
        let is_near = |file: &usize| self.part(*file) == part;
        self.by_stem
            .get(name)
            .is_some_and(|files| files.iter().any(is_near))
            || (0..self.files.len()).filter(is_near).any(|file| {
                let folder = self.files[file].path.parent();
                folder
                    .into_iter()
                    .flat_map(Path::iter)
                    .any(|folder| folder == name)
            })
    }

    /// Whether a file beside this one has a name that is taken of a module, and a part of the module's name:
    /// `from celeba_dataset import CelebA` beside `dataset.py`.
    fn is_renamed(&self, file: usize, module: &str, name: &str) -> bool {
        let folder = self.files[file].path.parent();
        let shares = |stem: &str| {
            let (short, long) = if stem.len() < module.len() {
                (stem, module)
            } else {
                (module, stem)
            };
            short.len() > 3
                && (long
                    .strip_suffix(short)
                    .is_some_and(|rest| rest.ends_with('_'))
                    || long
                        .strip_prefix(short)
                        .is_some_and(|rest| rest.starts_with('_')))
        };
        (self.by_stem.iter())
            .filter(|(stem, _)| shares(stem))
            .flat_map(|(_, files)| files)
            .any(|other| {
                self.files[*other].path.parent() == folder
                    && self.files[*other].says.variables.contains_key(name)
            })
    }

    /// Whether a file that an import finds, and any other that it may mean, has not the name that it takes.
    fn lacks(
        &self,
        from: usize,
        to: usize,
        import: &Bound,
        used: usize,
        exists: &dyn Fn(&Path) -> bool,
    ) -> bool {
        let name = import.parts[used].as_str();
        // Most imports end here.
        if self.may_have(to, name) {
            return false;
        }
        let of_package = |file: usize| {
            let path = clean(self.files[file].path);
            path.file_stem().is_some_and(|stem| stem == "__init__")
                && path
                    .parent()
                    .is_some_and(|folder| exists(&folder.join(name)))
        };
        let folder = clean(self.files[from].path.parent().unwrap_or(Path::new("")));
        let near: Vec<usize> = folder
            .ancestors()
            .take(MAX_FOLDERS)
            .filter_map(|base| {
                self.by_path
                    .get(&joined(base, &import.parts[..used]))
                    .copied()
            })
            .collect();
        // `from model import layers` in `model/net.py`, where `model/model.py` is not what is meant.
        let is_module = import.level == 0
            && folder
                .ancestors()
                .take(MAX_FOLDERS)
                .any(|base| exists(&joined(base, &import.parts)));
        let suffix: PathBuf = import.parts[..used].iter().collect();
        let may_mean = |file: usize| {
            let path = self.files[file].path;
            file == to
                || import.level == 0 && near.contains(&file)
                || import.level == 0
                    && self.files[from].says.moves_path
                    && (path.with_extension("").ends_with(&suffix)
                        || path
                            .parent()
                            .is_some_and(|folder| folder.ends_with(&suffix))
                            && path.file_stem().is_some_and(|stem| stem == "__init__"))
        };
        !is_module
            && !(0..self.files.len())
                .filter(|file| may_mean(*file))
                .any(|file| self.may_have(file, name) || of_package(file))
    }

    /// Whether a file binds a name, or may.
    pub(super) fn may_have(&self, file: usize, name: &str) -> bool {
        let mut seen = FxHashSet::default();
        let mut next = vec![file];
        while let Some(file) = next.pop() {
            if !seen.insert(file) {
                continue;
            }
            let says = self.files[file].says;
            if says.is_broken
                || says.names_by_text
                || says.variables.contains_key(name)
                || says.variables.contains_key("__getattr__")
                || self.imported[file].contains_key(name)
                || name.starts_with("__")
            {
                return true;
            }
            for (import, to) in says.imports.iter().zip(&self.resolved[file]) {
                match to {
                    _ if !import.star => {}
                    // The script that is run decides which of the files of that name is meant.
                    Some((to, _)) => {
                        next.push(*to);
                        let suffix: PathBuf = import.parts.iter().collect();
                        let last = import.parts.last().map_or("", String::as_str);
                        let others = self.by_stem.get(last).into_iter().flatten().copied();
                        next.extend(others.filter(|other| {
                            let path = self.files[*other].path.with_extension("");
                            import.level == 0 && path.ends_with(&suffix)
                        }));
                    }
                    // Of a library.
                    None => return true,
                }
            }
        }
        false
    }
}

fn joined(base: &Path, parts: &[String]) -> PathBuf {
    let mut path = base.to_path_buf();
    path.extend(parts);
    path
}

pub(super) fn first(one: Option<End>, other: Option<End>) -> Option<End> {
    match (one, other) {
        (Some(one), Some(other)) if other.at < one.at => Some(other),
        (one, other) => one.or(other),
    }
}
