//! Calls that their function cannot take, and what runs no more because of them; what callers hand over.

use oomph_python_source::ast::{
    Decorator, Expr, ParameterWithDefault, StmtClassDef, StmtFunctionDef,
};
use oomph_python_source::{TextRange, TextSize, dotted_name, last_name};
use rustc_hash::{FxHashMap, FxHashSet};

use super::broken::first;
use super::collect::{DefinitionKind, Dotted, End, Value};
use super::constant::Constant;
use super::{MAX_FILES_OF_A_NAME, Meaning, Node, QUIET_BASES, Reach};

/// What a call calls.
#[derive(Clone, Debug)]
pub(super) enum Target {
    /// A name of the file, and what follows it.
    Name(Dotted),
    /// An attribute of the function's own object.
    Own(Dotted),
    /// An object that is made from a class, or an attribute of it.
    Of(Dotted, Dotted),
}

/// One call.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) name: String,
    pub(super) target: Option<Target>,
    /// The definition that it is in.
    pub(super) of: Option<usize>,
    /// Where the name of what it calls begins.
    pub(super) at: TextSize,
    pub(super) block: usize,
    pub(super) end: End,
    /// Whether it is made whenever its statement is run.
    pub(super) certain: bool,
    pub(super) positional: Vec<Value>,
    pub(super) starred: bool,
    pub(super) keywords: Vec<(String, Value)>,
    /// `**rest`
    pub(super) rest: Option<String>,
    /// How many names its value is unpacked into.
    pub(super) takes: Option<usize>,
}

impl Call {
    /// Names of methods that everything has: who calls them says nothing.
    pub(super) fn is_common(name: &str) -> bool {
        const COMMON: &[&str] = &[
            "append",
            "extend",
            "format",
            "join",
            "split",
            "strip",
            "replace",
            "item",
            "items",
            "keys",
            "values",
            "get",
            "update",
            "pop",
            "copy",
            "view",
            "size",
            "cpu",
            "cuda",
            "to",
            "numpy",
            "detach",
            "backward",
            "step",
            "zero_grad",
            "unsqueeze",
            "squeeze",
            "permute",
            "transpose",
            "reshape",
            "mean",
            "sum",
            "max",
            "min",
            "float",
            "long",
            "int",
            "eval",
            "train",
            "parameters",
            "state_dict",
            "load_state_dict",
            "add_argument",
            "write",
            "read",
            "close",
            "astype",
            "tolist",
            "contiguous",
            "expand",
            "repeat",
            "clone",
            "startswith",
            "endswith",
            "index",
            "count",
            "insert",
            "sort",
            "add",
            "add_scalar",
            "plot",
            "set",
        ];
        COMMON.contains(&name)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Parameter {
    pub(super) name: String,
    /// What it is if nobody says.
    pub(super) default: Option<Value>,
}

/// What a function can be called with.
#[derive(Clone, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts that have nothing to do with each other"
)]
pub(super) struct Signature {
    pub(super) positional: Vec<Parameter>,
    pub(super) keyword_only: Vec<Parameter>,
    pub(super) takes_more: bool,
    pub(super) takes_any_keyword: bool,
    /// The name of what takes them.
    pub(super) rest: Option<String>,
    /// That is only handed on as it is.
    pub(super) rest_is_handed_on: bool,
    /// Its first parameter is the object or the class.
    pub(super) is_bound: bool,
    /// A decorator may change what it takes, or what makes objects of the class is not known.
    pub(super) is_odd: bool,
    /// A call runs nothing of it yet.
    pub(super) is_lazy: bool,
    pub(super) is_property: bool,
    /// How many values each `return` gives.
    pub(super) returns: Vec<Option<usize>>,
}

impl Signature {
    pub(super) fn of(def: &StmtFunctionDef, in_class: bool) -> Self {
        const KEEPS: &[&str] = &[
            "staticmethod",
            "classmethod",
            "no_grad",
            "inference_mode",
            "enable_grad",
            "set_grad_enabled",
            "autocast",
            "abstractmethod",
            "record",
            "override",
            "final",
        ];
        let value = |expr: &Expr| Constant::of(expr).map_or(Value::Unknown, Value::Known);
        let parameter = |each: &ParameterWithDefault| Parameter {
            name: each.parameter.name.to_string(),
            default: each.default.as_deref().map(value),
        };
        let parameters = &def.parameters;
        let is = |name: &str| {
            def.decorator_list
                .iter()
                .any(|each| dotted_name(&each.expression).as_deref() == Some(name))
        };
        let keeps = |decorator: &Decorator| {
            let target = match &decorator.expression {
                Expr::Call(call) => &*call.func,
                other => other,
            };
            last_name(target).is_some_and(|name| KEEPS.contains(&name))
        };
        Self {
            positional: parameters
                .posonlyargs
                .iter()
                .chain(&parameters.args)
                .map(parameter)
                .collect(),
            keyword_only: parameters.kwonlyargs.iter().map(parameter).collect(),
            takes_more: parameters.vararg.is_some(),
            takes_any_keyword: parameters.kwarg.is_some(),
            rest: parameters.kwarg.as_ref().map(|each| each.name.to_string()),
            rest_is_handed_on: true,
            is_bound: in_class && !is("staticmethod"),
            is_odd: !def.decorator_list.iter().all(keeps),
            is_lazy: def.is_async,
            is_property: is("property"),
            returns: Vec::new(),
        }
    }

    pub(super) fn of_class(class: &StmtClassDef) -> Self {
        let arguments = class.arguments.as_deref();
        Self {
            is_odd: !class.decorator_list.is_empty()
                || arguments.is_some_and(|each| !each.keywords.is_empty()),
            ..Self::default()
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Parameter> {
        let skipped = usize::from(self.is_bound);
        self.positional
            .iter()
            .skip(skipped)
            .chain(&self.keyword_only)
    }

    /// Whether a call with so many arguments and these keywords may fit.
    pub(super) fn may_take(&self, positional: usize, keywords: &[String]) -> bool {
        let has = |name: &String| self.all().any(|each| each.name == *name);
        let given = positional + keywords.len();
        self.is_odd
            || self.all().filter(|each| each.default.is_none()).count() <= given
                && (self.takes_more || positional <= self.all().count())
                && (self.takes_any_keyword || keywords.iter().all(has))
    }

    /// Whether a call fails: it lacks what is required, or brings what is not taken.
    fn refuses(&self, call: &Call) -> bool {
        let positional: Vec<&Parameter> = self
            .positional
            .iter()
            .skip(usize::from(self.is_bound))
            .collect();
        if self.is_bound && self.positional.is_empty() && !self.takes_more {
            return true;
        }
        let given = call.positional.len() - usize::from(call.starred);
        if given > positional.len() && !self.takes_more {
            return true;
        }
        let unexpected = !self.takes_any_keyword
            && call
                .keywords
                .iter()
                .any(|(name, _)| !self.all().any(|each| each.name == *name));
        let twice = !call.starred
            && positional
                .iter()
                .take(given)
                .any(|each| call.keywords.iter().any(|(name, _)| *name == each.name));
        let is_given = |each: &Parameter| {
            each.default.is_some() || call.keywords.iter().any(|(name, _)| *name == each.name)
        };
        let lacks = call.rest.is_none()
            && (!call.starred && !positional.iter().skip(given).all(|each| is_given(each))
                || !self.keyword_only.iter().all(is_given));
        unexpected || twice || lacks
    }
}

/// What is known of a class's method.
enum Found {
    Method(Node),
    Nothing,
    Unknown,
}

/// A range of a file that is not run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dead {
    pub(super) range: TextRange,
    /// What is mentioned before this is reached still.
    pub(super) after: TextSize,
}

impl Reach<'_> {
    /// The function, method or class that a call calls, if it can only be that one.
    pub(super) fn callee(&self, file: usize, call: &Call) -> Option<Node> {
        let class_around = || {
            let of = call.of?;
            match self.files[file].says.all[of].kind {
                DefinitionKind::Method(class) => Some((file, class)),
                _ => None,
            }
        };
        match call.target.as_ref()? {
            Target::Name(path) => self.only(file, path),
            Target::Own(path) => {
                let class = class_around()?;
                match &path[..] {
                    [method] => self.method(class, method, true),
                    [attribute, rest @ ..] => {
                        let DefinitionKind::Class { attributes, .. } = &self.definition(class).kind
                        else {
                            return None;
                        };
                        let made = attributes.get(attribute)?.as_ref()?;
                        self.of_object(self.class_named(class.0, made)?, rest)
                    }
                    [] => None,
                }
            }
            Target::Of(path, rest) => self.of_object(self.class_named(file, path)?, rest),
        }
    }

    pub(super) fn class_named(&self, file: usize, path: &[String]) -> Option<Node> {
        self.only(file, path)
            .filter(|node| matches!(self.definition(*node).kind, DefinitionKind::Class { .. }))
    }

    /// What a call of an object, or of its method, runs.
    fn of_object(&self, class: Node, rest: &[String]) -> Option<Node> {
        match rest {
            [] => self
                .method(class, "__call__", false)
                .or_else(|| self.method(class, "forward", false)),
            [name] => self.method(class, name, false),
            _ => None,
        }
    }

    /// The only definition that a name can mean.
    fn only(&self, file: usize, path: &[String]) -> Option<Node> {
        let says = self.files[file].says;
        let first = &path[0];
        let imports = self.imported[file].get(first.as_str());
        let is_variable = says.variables.contains_key(first);
        if says.rebound.contains(first)
            || is_variable && !self.names[file].contains_key(first.as_str())
            || imports.is_some_and(|all| {
                all.len() > 1
                    || is_variable
                    || all.iter().any(|at| self.guessed.contains(&(file, *at)))
            })
        {
            return None;
        }
        let Meaning::Nodes(nodes) = self.meaning(file, path) else {
            return None;
        };
        let [node] = &*nodes else { return None };
        let there = self.files[node.0].says;
        (!there.rebound.contains(&self.definition(*node).name)).then_some(*node)
    }

    /// A method of a class. Nothing if a class of a library may have it, or, of an object whose class may be made from
    /// this one, if another class has one as well.
    fn method(&self, class: Node, name: &str, or_made_from: bool) -> Option<Node> {
        let Found::Method(found) = self.method_above(class, name, 0) else {
            return None;
        };
        if or_made_from {
            let family = self.families.root(class);
            let all = self.families.members.get(&family);
            let others = all.into_iter().flatten().any(|other| {
                let of_other = self.methods[other.0].get(&other.1);
                *other != self.class_of(found)
                    && of_other
                        .into_iter()
                        .flatten()
                        .any(|at| self.files[other.0].says.all[*at].name == name)
            });
            if others {
                return None;
            }
        }
        Some(found)
    }

    pub(super) fn class_of(&self, method: Node) -> Node {
        match self.definition(method).kind {
            DefinitionKind::Method(class) => (method.0, class),
            _ => method,
        }
    }

    /// The method that a class has or gets from those above it.
    fn method_above(&self, class: Node, name: &str, depth: usize) -> Found {
        let DefinitionKind::Class {
            bases, attributes, ..
        } = &self.definition(class).kind
        else {
            return Found::Unknown;
        };
        if depth > MAX_FILES_OF_A_NAME || attributes.contains_key(name) {
            return Found::Unknown;
        }
        let of_class = self.methods[class.0].get(&class.1);
        let mut own = of_class
            .into_iter()
            .flatten()
            .filter(|at| self.files[class.0].says.all[**at].name == name);
        match (own.next(), own.next()) {
            (Some(only), None) => return Found::Method((class.0, *only)),
            (None, _) => {}
            _ => return Found::Unknown,
        }
        for base in bases {
            let Some(base) = base else {
                return Found::Unknown;
            };
            match self.meaning(class.0, base) {
                Meaning::Nodes(nodes) if nodes.len() == 1 && nodes[0] != class => {
                    match self.method_above(nodes[0], name, depth + 1) {
                        Found::Nothing => {}
                        found => return found,
                    }
                }
                Meaning::Unknown | Meaning::Foreign
                    if QUIET_BASES.contains(&base[base.len() - 1].as_str())
                        && name != "__init__" => {}
                _ => return Found::Unknown,
            }
        }
        Found::Nothing
    }

    /// What runs when something is called: the function, or what makes an object of the class.
    fn runs(&self, node: Node) -> Option<Node> {
        let definition = self.definition(node);
        match &definition.kind {
            DefinitionKind::Class { bases, .. } => {
                let is_special = bases.iter().any(|base| {
                    base.as_ref().is_none_or(|base| {
                        let last = base[base.len() - 1].as_str();
                        [
                            "Enum",
                            "IntEnum",
                            "NamedTuple",
                            "Function",
                            "Protocol",
                            "TypedDict",
                        ]
                        .contains(&last)
                    })
                });
                if definition.signature.is_odd
                    || is_special
                    || matches!(self.method_above(node, "__new__", 0), Found::Method(_))
                {
                    return None;
                }
                self.method(node, "__init__", false)
            }
            _ => Some(node),
        }
        .filter(|node| {
            let signature = &self.definition(*node).signature;
            !signature.is_odd && !signature.is_property
        })
    }

    /// Whether a class is made from another one, through others or not.
    pub(super) fn is_made_from(&self, class: Node, other: Node, depth: usize) -> bool {
        let DefinitionKind::Class { bases, .. } = &self.definition(class).kind else {
            return false;
        };
        depth <= MAX_FILES_OF_A_NAME
            && bases
                .iter()
                .flatten()
                .any(|base| match self.meaning(class.0, base) {
                    Meaning::Nodes(nodes) => nodes
                        .into_iter()
                        .any(|node| node == other || self.is_made_from(node, other, depth + 1)),
                    _ => false,
                })
    }

    pub(super) fn has_method(&self, class: Node, name: &str) -> bool {
        self.methods[class.0]
            .get(&class.1)
            .into_iter()
            .flatten()
            .any(|at| self.files[class.0].says.all[*at].name == name)
    }

    /// Where calls fail and names are not defined, and what runs no more because of that, file by file.
    pub(super) fn find_failures(&mut self) {
        let mut ends: Vec<(usize, usize, End)> = Vec::new();
        // Calls of what the project has, by what they run.
        let mut callers: FxHashMap<Node, Vec<(usize, usize, End)>> = FxHashMap::default();
        for (file, each) in self.files.iter().enumerate() {
            let says = each.says;
            ends.extend(says.ends.iter().map(|(block, end)| (file, *block, *end)));
            for (name, block, end) in &says.unbound {
                if !self.may_have(file, name) {
                    ends.push((file, *block, *end));
                }
            }
            for call in &says.calls {
                if !call.certain {
                    continue;
                }
                let Some(runs) = self.callee(file, call).and_then(|node| self.runs(node)) else {
                    continue;
                };
                let signature = &self.definition(runs).signature;
                let place = (file, call.block, call.end);
                let gives = &signature.returns;
                let does_not_fit = call.takes.is_some_and(|takes| {
                    !signature.is_lazy
                        && !gives.is_empty()
                        && gives
                            .iter()
                            .all(|count| count.is_some_and(|count| count != takes))
                });
                if signature.refuses(call) {
                    ends.push(place);
                    continue;
                }
                if does_not_fit {
                    ends.push(place);
                }
                if !signature.is_lazy {
                    callers.entry(runs).or_default().push(place);
                }
            }
        }
        let mut dead: Vec<Vec<Dead>> = vec![Vec::new(); self.files.len()];
        let mut failed: FxHashSet<Node> = FxHashSet::default();
        let mut seen: FxHashSet<(usize, usize, End)> = FxHashSet::default();
        while let Some((file, block, end)) = ends.pop() {
            if !seen.insert((file, block, end)) {
                continue;
            }
            let here = &self.files[file].says.blocks[block];
            if end.at < here.end {
                dead[file].push(Dead {
                    range: TextRange::new(end.at, here.end),
                    after: end.after,
                });
            }
            if !end.fails || here.left.is_some_and(|left| left < end.after) {
                continue;
            }
            if let Some(of) = here.of {
                if failed.insert((file, of)) {
                    ends.extend(callers.remove(&(file, of)).unwrap_or_default());
                }
            } else if here.passes
                && let Some(parent) = here.parent
            {
                let end = End {
                    at: here.end,
                    ..end
                };
                ends.push((file, parent, end));
            } else if here.parent.is_none() && !self.files[file].says.is_notebook {
                self.stops[file] = first(self.stops[file], Some(end));
            }
        }
        self.dead = dead;
        self.failed = failed;
        self.never_made = self.without_objects();
    }

    /// The classes that nobody can make an object of, nor of any class that is made from them.
    fn without_objects(&self) -> FxHashSet<Node> {
        let inits = self
            .failed
            .iter()
            .filter(|node| self.definition(**node).name == "__init__");
        let mut candidates: FxHashSet<Node> = FxHashSet::default();
        for init in inits {
            let class = self.class_of(*init);
            candidates.insert(class);
            let family = self.families.members.get(&self.families.root(class));
            candidates.extend(family.into_iter().flatten());
        }
        let cannot_be_made = |class: Node| matches!(self.method_above(class, "__init__", 0), Found::Method(init) if self.failed.contains(&init));
        let is_empty = |class: Node| {
            let family = self.families.members.get(&self.families.root(class));
            let mut derived = family
                .into_iter()
                .flatten()
                .filter(|other| self.is_made_from(**other, class, 0));
            cannot_be_made(class) && derived.all(|other| cannot_be_made(*other))
        };
        candidates
            .into_iter()
            .filter(|class| is_empty(*class))
            .collect()
    }
}
