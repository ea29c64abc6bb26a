//! Which functions of a project anything runs.
//!
//! It begins with what files do when they are run or imported, and follows names by the object that they belong to:
//! a function of this file, of an imported one, a method of `self`, of an object that is made from a known class.
//! Of an object that is not known, each class that something makes may have the method. Where names are made up
//! while the program runs (`getattr`, `eval`, `import_module`), all that they may mean counts as run.

mod broken;
mod calls;
mod collect;
mod constant;
mod given;
mod undefined;

use std::path::{Path, PathBuf};

use oomph_python_source::{TextRange, TextSize, last_part};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::project::{find, root};
use calls::Dead;
use collect::{Bound, Definition, DefinitionKind, End, Mention, Reference};

pub(crate) use collect::{Definitions, goes_no_further};
pub(crate) use constant::Constant;

/// Names are followed through this many files that only import them.
const MAX_FILES_OF_A_NAME: usize = 8;

/// Bases that call no method of theirs but these.
const QUIET_BASES: &[&str] = &[
    "Module",
    "object",
    "ABC",
    "Dataset",
    "IterableDataset",
    "Enum",
    "NamedTuple",
    "Generic",
    "Protocol",
];
const CALLED_BY_BASES: &[&str] = &[
    "forward",
    "extra_repr",
    "reset_parameters",
    "train",
    "eval",
    "to",
    "cuda",
    "state_dict",
    "load_state_dict",
];

/// One file, as this module reads it.
pub(crate) struct File<'p> {
    pub(crate) path: &'p Path,
    pub(crate) says: &'p Definitions,
}

/// What nothing runs in a file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unreached {
    /// `f`, `Class.method`, `Class`
    pub(crate) names: FxHashSet<String>,
    /// What follows a line at which the file, or a function of it, stops.
    pub(crate) dead: Vec<TextRange>,
    /// What the file imports that is bound once, to a literal: `RESUME`, `settings.RESUME`. What all callers hand over
    /// for a parameter, and what an attribute is: `Class.method(name)`, `Class.name`
    pub(crate) constants: FxHashMap<String, Constant>,
}

impl Unreached {
    pub(crate) fn is_dead(&self, at: TextSize) -> bool {
        self.dead.iter().any(|range| range.contains(at))
    }
}

/// What nothing runs, file by file. `is_there` answers whether a module, or a folder, lies beside the files that were
/// read: one that git ignores, or that is compiled.
pub(crate) fn unreached(
    files: &[File<'_>],
    by_path: &FxHashMap<PathBuf, usize>,
    is_there: &dyn Fn(&Path) -> bool,
) -> Vec<Unreached> {
    let mut reach = Reach::new(files, by_path);
    reach.find_failures();
    reach.find_stops(is_there);
    reach.run();
    reach.unreached()
}

/// A definition of a file.
type Node = (usize, usize);

/// What a name stands for.
enum Meaning {
    Nodes(Vec<Node>),
    File(usize),
    /// Nothing that is known: an argument of a library, a builtin.
    Unknown,
    /// Something of a library.
    Foreign,
}

struct Reach<'p> {
    files: &'p [File<'p>],
    by_path: &'p FxHashMap<PathBuf, usize>,
    by_stem: FxHashMap<&'p str, Vec<usize>>,
    /// The file of each import, and how many of its parts name it.
    resolved: Vec<Vec<Option<(usize, usize)>>>,
    /// Imports whose file was only found by its name: which file and which of its imports.
    guessed: FxHashSet<(usize, usize)>,
    /// The definitions of a name at the top of each file.
    names: Vec<FxHashMap<&'p str, Vec<usize>>>,
    /// Which imports bind a name, by the first part of it.
    imported: Vec<FxHashMap<&'p str, Vec<usize>>>,
    methods: Vec<FxHashMap<usize, Vec<usize>>>,
    /// A number for each file: the same for those that imports connect.
    groups: Vec<usize>,
    /// The folder that the files of a group have in common.
    folders: FxHashMap<usize, PathBuf>,
    /// The folder of several projects, if no file lies in it itself.
    shelf: Option<PathBuf>,
    /// Groups that a group's files import something of by its name alone.
    heard: FxHashMap<usize, FxHashSet<usize>>,
    families: Families,
    /// Where files stop that cannot run as they stand.
    stops: Vec<Option<End>>,
    /// What follows a line at which a block stops, file by file.
    dead: Vec<Vec<Dead>>,
    /// Functions that stop whenever they are called.
    failed: FxHashSet<Node>,
    /// Classes that have no objects, as `__init__` stops, theirs and that of each class that is made from them.
    never_made: FxHashSet<Node>,
    /// The file whose references are followed.
    from: usize,
    reached: FxHashSet<Node>,
    whole: FxHashSet<usize>,
    /// What may be meant by a name that is made up while the program runs.
    by_text: FxHashSet<Node>,
    next: Vec<Node>,
    /// Names of attributes of objects that are not known, by group.
    members: FxHashSet<(usize, String)>,
    any_member: FxHashSet<usize>,
    /// Names of attributes of a class's objects, by family.
    own: FxHashSet<(Node, String)>,
    any_own: FxHashSet<Node>,
    methods_named: FxHashMap<(usize, &'p str), Vec<(Node, Node)>>,
}

/// Classes that are made from each other.
#[derive(Default)]
struct Families {
    parents: FxHashMap<Node, Node>,
    members: FxHashMap<Node, Vec<Node>>,
}

impl Families {
    fn root(&self, mut class: Node) -> Node {
        while let Some(parent) = self.parents.get(&class) {
            class = *parent;
        }
        class
    }

    fn join(&mut self, one: Node, other: Node) {
        let (one, other) = (self.root(one), self.root(other));
        if one != other {
            self.parents.insert(one, other);
        }
    }
}

impl<'p> Reach<'p> {
    fn new(files: &'p [File<'p>], by_path: &'p FxHashMap<PathBuf, usize>) -> Self {
        let mut by_stem: FxHashMap<&str, Vec<usize>> = FxHashMap::default();
        let mut names = Vec::with_capacity(files.len());
        let mut imported = Vec::with_capacity(files.len());
        let mut methods = Vec::with_capacity(files.len());
        let mut resolved = Vec::with_capacity(files.len());
        for (index, file) in files.iter().enumerate() {
            if let Some(stem) = file.path.file_stem().and_then(|stem| stem.to_str()) {
                by_stem.entry(stem).or_default().push(index);
            }
            let mut of_names: FxHashMap<&str, Vec<usize>> = FxHashMap::default();
            let mut of_classes: FxHashMap<usize, Vec<usize>> = FxHashMap::default();
            for (at, each) in file.says.all.iter().enumerate() {
                match each.kind {
                    DefinitionKind::Method(class) => of_classes.entry(class).or_default().push(at),
                    _ => of_names.entry(&each.name).or_default().push(at),
                }
            }
            names.push(of_names);
            methods.push(of_classes);
            let mut of_imports: FxHashMap<&str, Vec<usize>> = FxHashMap::default();
            let folder = file.path.parent().unwrap_or(Path::new(""));
            let mut to = Vec::with_capacity(file.says.imports.len());
            for (at, import) in file.says.imports.iter().enumerate() {
                let first = import.name.split('.').next().unwrap_or(&import.name);
                if !import.star {
                    of_imports.entry(first).or_default().push(at);
                }
                to.push(find(
                    by_path,
                    folder,
                    import.level,
                    &import.parts,
                    import.star,
                ));
            }
            imported.push(of_imports);
            resolved.push(to);
        }
        let mut reach = Self {
            files,
            by_path,
            by_stem,
            resolved,
            guessed: FxHashSet::default(),
            names,
            imported,
            methods,
            groups: Vec::new(),
            folders: FxHashMap::default(),
            shelf: None,
            heard: FxHashMap::default(),
            families: Families::default(),
            stops: vec![None; files.len()],
            dead: Vec::new(),
            failed: FxHashSet::default(),
            never_made: FxHashSet::default(),
            from: 0,
            reached: FxHashSet::default(),
            whole: FxHashSet::default(),
            by_text: FxHashSet::default(),
            next: Vec::new(),
            members: FxHashSet::default(),
            any_member: FxHashSet::default(),
            own: FxHashSet::default(),
            any_own: FxHashSet::default(),
            methods_named: FxHashMap::default(),
        };
        reach.shelf = shelf_of(files);
        reach.groups = reach.grouped();
        reach.find_by_stem();
        reach.relate();
        reach
    }

    /// An import that leads nowhere, as `sys.path` is changed: the nearest file that has its name, beside the
    /// files that imports connect or below.
    fn find_by_stem(&mut self) {
        let mut folders: FxHashMap<usize, PathBuf> = FxHashMap::default();
        for (file, group) in self.groups.iter().enumerate() {
            let folder = self.files[file].path.parent().unwrap_or(Path::new(""));
            let shared = folders
                .entry(*group)
                .or_insert_with(|| folder.to_path_buf());
            while !folder.starts_with(&*shared) && shared.pop() {}
        }
        for file in 0..self.files.len() {
            let group = self.groups[file];
            let around = folders[&group].parent().unwrap_or(Path::new(""));
            for at in 0..self.resolved[file].len() {
                let import = &self.files[file].says.imports[at];
                if self.resolved[file][at].is_some() || import.level > 0 {
                    continue;
                }
                for end in (1..=import.parts.len()).rev().take(2) {
                    let suffix: PathBuf = import.parts[..end].iter().collect();
                    let from = self.files[file].path;
                    let nearest = self
                        .by_stem
                        .get(import.parts[end - 1].as_str())
                        .into_iter()
                        .flatten()
                        .filter(|index| {
                            let path = self.files[**index].path;
                            **index != file
                                && path.starts_with(around)
                                && (self.files[file].says.moves_path
                                    || self.part(**index) == self.part(file))
                                && path.with_extension("").ends_with(&suffix)
                        })
                        .max_by_key(|index| shared_folders(self.files[**index].path, from));
                    if let Some(nearest) = nearest {
                        self.resolved[file][at] = Some((*nearest, end));
                        self.guessed.insert((file, at));
                        self.heard
                            .entry(group)
                            .or_default()
                            .insert(self.groups[*nearest]);
                        break;
                    }
                }
            }
        }
        self.folders = folders;
    }

    /// The project of a file, where several lie beside each other.
    fn part(&self, file: usize) -> Option<&'p std::ffi::OsStr> {
        let path = self.files[file].path;
        path.strip_prefix(self.shelf.as_ref()?).ok()?.iter().next()
    }

    /// A number for each file: the same for those that imports connect.
    fn grouped(&self) -> Vec<usize> {
        let mut parents: Vec<usize> = (0..self.files.len()).collect();
        for (from, imports) in self.resolved.iter().enumerate() {
            for (to, _) in imports.iter().flatten() {
                let (one, other) = (root(&mut parents, from), root(&mut parents, *to));
                parents[one] = other;
            }
        }
        (0..self.files.len())
            .map(|file| root(&mut parents, file))
            .collect()
    }

    fn definition(&self, (file, at): Node) -> &'p Definition {
        &self.files[file].says.all[at]
    }

    /// Which classes are made from each other, and which classes have methods of a name.
    fn relate(&mut self) {
        let files = self.files;
        for (file, each) in files.iter().enumerate() {
            for (at, definition) in each.says.all.iter().enumerate() {
                match &definition.kind {
                    DefinitionKind::Class { bases, .. } => {
                        for base in bases.iter().flatten() {
                            if let Meaning::Nodes(nodes) = self.meaning(file, base) {
                                for node in nodes {
                                    self.families.join((file, at), node);
                                }
                            }
                        }
                    }
                    DefinitionKind::Method(class) => {
                        self.methods_named
                            .entry((self.groups[file], &definition.name))
                            .or_default()
                            .push(((file, *class), (file, at)));
                    }
                    DefinitionKind::Function => {}
                }
            }
        }
        for (file, each) in files.iter().enumerate() {
            for (at, definition) in each.says.all.iter().enumerate() {
                if matches!(definition.kind, DefinitionKind::Class { .. }) {
                    let root = self.families.root((file, at));
                    self.families
                        .members
                        .entry(root)
                        .or_default()
                        .push((file, at));
                }
            }
        }
    }

    fn run(&mut self) {
        let imported: FxHashSet<usize> = self
            .resolved
            .iter()
            .flatten()
            .flatten()
            .map(|(to, _)| *to)
            .collect();
        for file in 0..self.files.len() {
            let says = self.files[file].says;
            self.from = file;
            self.follow(file, None, &says.top);
            if self.stops[file].is_some() {
                continue;
            }
            let published = self.is_published(file);
            let has_library = self.imports_tests(file);
            let tests = has_library || self.is_named_test(file);
            // What nothing imports and does nothing itself is for somebody who looks classes up by their names.
            let is_looked_up =
                !imported.contains(&file) && says.calls.iter().all(|call| call.of.is_some());
            for (at, each) in says.all.iter().enumerate() {
                let is_method = matches!(each.kind, DefinitionKind::Method(_));
                if each.handed_on
                    || !is_method
                        && (each.name == "main"
                            || each.name.starts_with("test_")
                                && tests
                                && (has_library || each.signature.may_take(0, &[])))
                    || published && !each.name.starts_with('_')
                    || is_looked_up && self.foreign_base_above((file, at), 0)
                {
                    self.reach((file, at));
                }
            }
            if says.names_by_text {
                self.reach_whole(file);
            }
            if says.imports_by_text {
                self.reach_around(file);
            }
        }
        while let Some(node) = self.next.pop() {
            self.from = node.0;
            let definition = self.definition(node);
            let class = match definition.kind {
                DefinitionKind::Method(class) => Some((node.0, class)),
                DefinitionKind::Class { .. } => {
                    self.made(node);
                    Some(node)
                }
                DefinitionKind::Function => None,
            };
            self.follow(node.0, class, &definition.references);
        }
    }

    /// Whether somebody may get at a definition by a name that is made up while the program runs.
    fn is_taken_by_text(&self, node: Node) -> bool {
        let group = self.groups[node.0];
        let class = match self.definition(node).kind {
            DefinitionKind::Method(class) => Some((node.0, class)),
            _ => None,
        };
        let family = class.map(|class| self.families.root(class));
        self.whole.contains(&node.0)
            || self.by_text.contains(&class.unwrap_or(node))
            || self.is_published(node.0)
            || family.is_some_and(|family| {
                self.any_member.contains(&group) || self.any_own.contains(&family)
            })
    }

    /// Whether tools look for tests in a file, by its name. Without a library for tests, one that takes something is a function of its own.
    fn is_named_test(&self, file: usize) -> bool {
        let stem = self.files[file].path.file_stem().unwrap_or_default();
        stem.to_string_lossy().contains("test")
    }

    fn imports_tests(&self, file: usize) -> bool {
        let mut imports = self.files[file].says.imports.iter();
        imports.any(|import| {
            let first = import.parts.first();
            first.is_some_and(|part| matches!(part.as_str(), "pytest" | "unittest"))
        })
    }

    /// Whether a file is part of a package that others install.
    fn is_published(&self, file: usize) -> bool {
        let path = self.files[file].path;
        let Some(folder) = path.parent() else {
            return false;
        };
        let folder = clean(folder);
        self.by_path.contains_key(&folder)
            && folder
                .ancestors()
                .skip(1)
                .any(|above| self.by_path.contains_key(&above.join("setup")))
    }

    fn reach(&mut self, node: Node) {
        // Who imports a file that stops gets nothing of it.
        if self.stops[node.0].is_some() && node.0 != self.from || self.lacks_its_object(node) {
            return;
        }
        if self.reached.insert(node) {
            self.next.push(node);
        }
    }

    /// Whether a method belongs to objects that nobody can make.
    fn lacks_its_object(&self, node: Node) -> bool {
        let definition = self.definition(node);
        let DefinitionKind::Method(class) = definition.kind else {
            return false;
        };
        definition.signature.is_bound
            && definition.name != "__init__"
            && self.never_made.contains(&(node.0, class))
    }

    /// Everything that a file defines or imports.
    fn reach_whole(&mut self, file: usize) {
        if self.stops[file].is_some() || !self.whole.insert(file) {
            return;
        }
        let says = self.files[file].says;
        for at in 0..says.all.len() {
            self.reach((file, at));
        }
        for at in 0..says.imports.len() {
            let Some((to, used)) = self.resolved[file][at] else {
                continue;
            };
            let import = &says.imports[at];
            if import.star {
                self.reach_whole(to);
            } else if used < import.parts.len()
                && let Meaning::Nodes(nodes) = self.lookup(to, &import.parts[used], 0)
            {
                for node in nodes {
                    self.reach(node);
                }
            }
        }
    }

    /// What a file defines or imports and somebody asks for.
    fn reach_those(&mut self, file: usize, is_meant: &dyn Fn(&Definition) -> bool) {
        let says = self.files[file].says;
        let mut found: Vec<Node> = (0..says.all.len()).map(|at| (file, at)).collect();
        for (at, import) in says.imports.iter().enumerate() {
            match self.resolved[file][at] {
                Some((to, _)) if import.star => {
                    found.extend((0..self.files[to].says.all.len()).map(|at| (to, at)));
                }
                _ => {
                    if let Meaning::Nodes(nodes) = self.lookup(file, &import.name, 0) {
                        found.extend(nodes);
                    }
                }
            }
        }
        for node in found {
            if is_meant(self.definition(node)) {
                self.by_text.insert(node);
                self.reach(node);
            }
        }
    }

    /// Everything in the folders of the project that a file is part of.
    fn reach_around(&mut self, file: usize) {
        let common = self.folders[&self.groups[file]].clone();
        for index in 0..self.files.len() {
            if self.files[index].path.starts_with(&common) {
                self.reach_whole(index);
            }
        }
    }

    /// A class that something makes: its methods that Python, its bases or somebody already named call.
    fn made(&mut self, class: Node) {
        let DefinitionKind::Class { bases, .. } = &self.definition(class).kind else {
            return;
        };
        let mut called_by_bases = false;
        let mut quiet = true;
        for base in bases {
            let Some(base) = base else {
                quiet = false;
                continue;
            };
            match self.meaning(class.0, base) {
                Meaning::Nodes(_) => {}
                _ if QUIET_BASES.contains(&last_part(&base[base.len() - 1])) => {
                    called_by_bases = true;
                }
                _ => quiet = false,
            }
        }
        let family = self.families.root(class);
        // A base of a base may be foreign as well.
        called_by_bases |= self
            .families
            .members
            .get(&family)
            .is_some_and(|all| all.len() > 1);
        let group = self.groups[class.0];
        let any = self.any_member.contains(&group)
            || self.any_own.contains(&family)
            || !quiet
            || self.foreign_base_above(class, 0);
        let all = self.methods[class.0].get(&class.1);
        let all = all.cloned().unwrap_or_default();
        for at in all {
            let definition = &self.files[class.0].says.all[at];
            let name = &definition.name;
            let dunder = name.starts_with("__") && name.ends_with("__");
            if any
                || dunder
                || called_by_bases && CALLED_BY_BASES.contains(&name.as_str())
                || self.members.contains(&(group, name.clone()))
                || self.own.contains(&(family, name.clone()))
            {
                self.reach((class.0, at));
            }
        }
    }

    /// Whether a class that this one is made from is made from one of a library that calls more than a module's methods.
    fn foreign_base_above(&self, class: Node, depth: usize) -> bool {
        let DefinitionKind::Class { bases, .. } = &self.definition(class).kind else {
            return false;
        };
        depth < MAX_FILES_OF_A_NAME
            && bases.iter().any(|base| {
                base.as_ref()
                    .is_none_or(|base| match self.meaning(class.0, base) {
                        Meaning::Nodes(nodes) => nodes
                            .into_iter()
                            .any(|node| node != class && self.foreign_base_above(node, depth + 1)),
                        _ => !QUIET_BASES.contains(&base[base.len() - 1].as_str()),
                    })
            })
    }

    fn follow(&mut self, file: usize, class: Option<Node>, mentions: &'p [Mention]) {
        for mention in mentions {
            if self.is_dead(file, mention.at) {
                continue;
            }
            match &mention.what {
                Reference::Name(path) => self.name(file, path),
                Reference::Member(name) => self.member(file, name),
                Reference::Own(path) => self.own(file, class, path),
                Reference::Of(path, attribute) => self.of(file, path, attribute),
                Reference::AnyOwn => {
                    if let Some(class) = class {
                        let family = self.families.root(class);
                        self.any_own.insert(family);
                        self.recheck(family);
                    }
                }
                Reference::AnyOf(path) => match self.meaning(file, path) {
                    Meaning::File(to) => self.reach_whole(to),
                    Meaning::Nodes(nodes) => {
                        for node in nodes {
                            let family = self.families.root(node);
                            self.any_own.insert(family);
                            self.recheck(family);
                        }
                    }
                    _ => {}
                },
                Reference::Like(before, after) => self.reach_those(file, &|each| {
                    each.name.starts_with(before) && each.name.ends_with(after)
                }),
                Reference::Taking(given) => self.reach_those(file, &|each| match each.kind {
                    DefinitionKind::Class { .. } => true,
                    DefinitionKind::Function => given
                        .as_ref()
                        .is_none_or(|(count, names)| each.signature.may_take(*count, names)),
                    DefinitionKind::Method(_) => false,
                }),
                Reference::AnyMember => {
                    let group = self.groups[file];
                    if self.any_member.insert(group) {
                        for node in self.reached.clone() {
                            if self.groups[node.0] == group {
                                self.made(node);
                            }
                        }
                    }
                }
            }
        }
    }

    fn is_dead(&self, file: usize, at: TextSize) -> bool {
        self.dead[file]
            .iter()
            .any(|dead| at >= dead.after && at < dead.range.end())
    }

    /// Looks at the methods of a family again, as one more may be called.
    fn recheck(&mut self, family: Node) {
        for class in self
            .families
            .members
            .get(&family)
            .cloned()
            .unwrap_or_default()
        {
            if self.reached.contains(&class) {
                self.made(class);
            }
        }
    }

    fn member(&mut self, file: usize, name: &'p str) {
        let group = self.groups[file];
        let heard = self.heard.get(&group).cloned().unwrap_or_default();
        for group in heard.into_iter().chain([group]) {
            if !self.members.insert((group, name.to_owned())) {
                continue;
            }
            let named = self.methods_named.get(&(group, name)).cloned();
            for (class, _) in named.unwrap_or_default() {
                if self.reached.contains(&class) {
                    self.made(class);
                }
            }
        }
    }

    fn own(&mut self, file: usize, class: Option<Node>, path: &'p [String]) {
        let Some(class) = class else { return };
        let family = self.families.root(class);
        if self.own.insert((family, path[0].clone())) {
            self.recheck(family);
        }
        let Some(attribute) = path.get(1) else { return };
        let alone = self
            .families
            .members
            .get(&family)
            .is_none_or(|all| all.len() == 1);
        let made = match &self.definition(class).kind {
            DefinitionKind::Class { attributes, .. } if alone => {
                attributes.get(&path[0]).cloned().flatten()
            }
            _ => None,
        };
        match made {
            Some(made) => self.of(file, &made, attribute),
            None => self.member(file, attribute),
        }
        for rest in &path[2..] {
            self.member(file, rest);
        }
    }

    /// An attribute of an object that a call gives.
    fn of(&mut self, file: usize, path: &[String], attribute: &'p str) {
        if let Meaning::Nodes(nodes) = self.meaning(file, path)
            && nodes
                .iter()
                .all(|node| matches!(self.definition(*node).kind, DefinitionKind::Class { .. }))
        {
            for node in nodes {
                self.attribute(node, attribute);
            }
        } else {
            self.member(file, attribute);
        }
    }

    fn attribute(&mut self, class: Node, name: &str) {
        let family = self.families.root(class);
        if self.own.insert((family, name.to_owned())) {
            self.recheck(family);
        }
    }

    /// A name that is read, and what follows it.
    fn name(&mut self, file: usize, path: &'p [String]) {
        let variable = self.files[file].says.variables.get(&path[0]);
        let mut at = 1;
        let mut meaning = self.lookup(file, &path[0], 0);
        if let Some(Some(made)) = variable
            && matches!(meaning, Meaning::Unknown)
        {
            if let Some(attribute) = path.get(1) {
                self.of(file, made, attribute);
            }
            at = 2;
        }
        // `import a.b` binds `a`.
        for import in self.imported[file]
            .get(path[0].as_str())
            .into_iter()
            .flatten()
        {
            let bound = &self.files[file].says.imports[*import];
            let parts = bound.name.split('.').count();
            if parts > 1
                && path.len() >= parts
                && bound.parts[..] == path[..parts]
                && let Some((to, used)) = self.resolved[file][*import]
                && used == bound.parts.len()
            {
                meaning = Meaning::File(to);
                at = parts;
            }
        }
        loop {
            match meaning {
                Meaning::Nodes(nodes) => {
                    for node in nodes {
                        self.reach(node);
                        if let (Some(attribute), DefinitionKind::Class { .. }) =
                            (path.get(at), &self.definition(node).kind)
                        {
                            self.attribute(node, attribute);
                        }
                    }
                    at += 1;
                    break;
                }
                Meaning::File(to) => {
                    let Some(part) = path.get(at) else {
                        self.reach_whole(to);
                        return;
                    };
                    // `nets.__dict__[name]`, `nets.__dict__[file].__dict__[name]`
                    if part == "__dict__" {
                        self.reach_whole(to);
                        for inner in self.resolved[to].clone().into_iter().flatten() {
                            self.reach_whole(inner.0);
                        }
                        return;
                    }
                    at += 1;
                    meaning = match self.lookup(to, part, 0) {
                        Meaning::Nodes(nodes) => Meaning::Nodes(nodes),
                        Meaning::File(inner) => Meaning::File(inner),
                        other => self.module_in(to, part).map_or(other, Meaning::File),
                    };
                }
                Meaning::Foreign => return,
                Meaning::Unknown => break,
            }
        }
        for rest in path.iter().skip(at) {
            self.member(file, rest);
        }
    }

    /// The file of a module in a package.
    fn module_in(&self, package: usize, name: &str) -> Option<usize> {
        let folder = self.files[package].path.parent()?;
        self.by_path.get(&clean(folder).join(name)).copied()
    }

    /// What a dotted name stands for, all of it.
    fn meaning(&self, file: usize, path: &[String]) -> Meaning {
        let mut meaning = self.lookup(file, &path[0], 0);
        for (at, part) in path.iter().enumerate().skip(1) {
            meaning = match meaning {
                Meaning::File(to) => match self.lookup(to, part, 0) {
                    Meaning::Unknown => self
                        .module_in(to, part)
                        .map_or(Meaning::Unknown, Meaning::File),
                    other => other,
                },
                Meaning::Unknown => {
                    let whole = path[..=at].join(".");
                    let import = self.imported[file]
                        .get(path[0].as_str())
                        .into_iter()
                        .flatten()
                        .find(|import| self.files[file].says.imports[**import].name == whole);
                    match import.and_then(|import| self.resolved[file][*import]) {
                        Some((to, _)) => Meaning::File(to),
                        None => Meaning::Unknown,
                    }
                }
                Meaning::Foreign => return Meaning::Foreign,
                Meaning::Nodes(_) => return Meaning::Unknown,
            };
        }
        meaning
    }

    /// What one name stands for in a file.
    fn lookup(&self, file: usize, name: &str, depth: usize) -> Meaning {
        if let Some(found) = self.names[file].get(name) {
            return Meaning::Nodes(found.iter().map(|at| (file, *at)).collect());
        }
        if depth > MAX_FILES_OF_A_NAME {
            return Meaning::Unknown;
        }
        let mut foreign = false;
        let mut nodes = Vec::new();
        for at in self.imported[file].get(name).into_iter().flatten() {
            let import: &Bound = &self.files[file].says.imports[*at];
            if import.name != name {
                // `import a.b`
                foreign |= self.resolved[file][*at].is_none();
                continue;
            }
            match self.resolved[file][*at] {
                Some((to, used)) if used == import.parts.len() => return Meaning::File(to),
                Some((to, used)) => match self.lookup(to, &import.parts[used], depth + 1) {
                    Meaning::Nodes(found) => nodes.extend(found),
                    Meaning::File(inner) => return Meaning::File(inner),
                    _ => {}
                },
                None => foreign = import.level == 0,
            }
        }
        if !nodes.is_empty() {
            return Meaning::Nodes(nodes);
        }
        if foreign {
            return Meaning::Foreign;
        }
        for (at, import) in self.files[file].says.imports.iter().enumerate() {
            if import.star
                && let Some((to, _)) = self.resolved[file][at]
            {
                match self.lookup(to, name, depth + 1) {
                    Meaning::Unknown => {}
                    found => return found,
                }
            }
        }
        Meaning::Unknown
    }

    /// The constants of other files that a file imports. None counts that somebody may set from outside.
    fn constants_in(&self, file: usize, set: &FxHashSet<&str>) -> FxHashMap<String, Constant> {
        let mut constants = FxHashMap::default();
        for (import, to) in self.files[file]
            .says
            .imports
            .iter()
            .zip(&self.resolved[file])
        {
            let Some((to, used)) = to else { continue };
            let of_file = self.files[*to]
                .says
                .constants
                .iter()
                .filter(|(name, _)| !set.contains(name.as_str()));
            let prefix = if import.star {
                String::new()
            } else if *used == import.parts.len() {
                format!("{}.", import.name)
            } else {
                let taken = &import.parts[*used];
                constants.extend(
                    of_file
                        .filter(|(name, _)| *name == taken)
                        .map(|(_, value)| (import.name.clone(), value.clone())),
                );
                continue;
            };
            constants
                .extend(of_file.map(|(name, value)| (format!("{prefix}{name}"), value.clone())));
        }
        constants
    }

    fn unreached(&self) -> Vec<Unreached> {
        let set: FxHashSet<&str> = self
            .files
            .iter()
            .flat_map(|file| file.says.sets.keys().map(String::as_str))
            .collect();
        let mut given = given::Given::new(self);
        let of_file = |(file, each): (usize, &File<'_>)| {
            let full = |definition: &Definition| match definition.kind {
                DefinitionKind::Method(class) => {
                    format!("{}.{}", each.says.all[class].name, definition.name)
                }
                _ => definition.name.clone(),
            };
            let mut unreached: FxHashSet<String> = FxHashSet::default();
            let mut reached: FxHashSet<String> = FxHashSet::default();
            for (at, definition) in each.says.all.iter().enumerate() {
                if self.reached.contains(&(file, at)) {
                    reached.insert(full(definition));
                } else {
                    unreached.insert(full(definition));
                }
            }
            unreached.retain(|name| !reached.contains(name));
            let mut constants = self.constants_in(file, &set);
            given.constants(file, &mut constants);
            Unreached {
                names: unreached,
                dead: self.dead[file].iter().map(|dead| dead.range).collect(),
                constants,
            }
        };
        self.files.iter().enumerate().map(of_file).collect()
    }
}

/// The folder that all files have in common, if none lies in it itself.
fn shelf_of(files: &[File<'_>]) -> Option<PathBuf> {
    let mut folders = files
        .iter()
        .map(|file| file.path.parent().unwrap_or(Path::new("")));
    let mut shared = folders.next()?.to_path_buf();
    for folder in folders.clone() {
        while !folder.starts_with(&shared) && shared.pop() {}
    }
    (files.first()?.path.parent() != Some(&shared) && !folders.any(|folder| folder == shared))
        .then_some(shared)
}

/// In how many folders two files are together.
fn shared_folders(one: &Path, other: &Path) -> usize {
    let pairs = one.components().zip(other.components());
    pairs.take_while(|(one, other)| one == other).count()
}

fn clean(path: &Path) -> PathBuf {
    path.components()
        .filter(|part| !matches!(part, std::path::Component::CurDir))
        .collect()
}
