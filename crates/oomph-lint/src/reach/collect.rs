//! What one file defines, imports and refers to.

use oomph_python_source::ast::visitor::{Visitor, walk_expr, walk_stmt};
use oomph_python_source::ast::{
    Decorator, Expr, ExprCall, ExprContext, Stmt, StmtClassDef, StmtFunctionDef, UnaryOp,
};
use oomph_python_source::{
    Module, Ranged, TextSize, dotted_name, dotted_parts, imports_of, last_name, last_part,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::constant::Constant;

/// More functions and classes than this have no names of their own in a file that people wrote.
const MAX_DEFINITIONS: usize = 20_000;

/// A dotted name, part by part.
pub(super) type Dotted = Vec<String>;

/// What one file says of who runs what.
#[derive(Clone, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts that have nothing to do with each other"
)]
pub(crate) struct Definitions {
    pub(super) all: Vec<Definition>,
    /// What the file does when it is run or imported.
    pub(super) top: Vec<Reference>,
    pub(super) imports: Vec<Bound>,
    /// Variables of the file: the class that each is made from, if only one statement binds it.
    pub(super) variables: FxHashMap<String, Option<Dotted>>,
    /// `eval(…)`, `globals()[…]`: any name of the file may be meant.
    pub(super) names_by_text: bool,
    /// `import_module(…)`, `instantiate(config)`: any name of the project may be meant.
    pub(super) imports_by_text: bool,
    /// Variables of the file that only one statement binds, to a literal.
    pub(super) constants: FxHashMap<String, Constant>,
    /// Names of attributes that the file sets, of whatever object: `settings.RESUME = …`
    pub(super) sets: FxHashSet<String>,
    /// Where the file ends for good: `assert False`, `raise`, `exit()` at its top.
    pub(super) stops: Option<Stop>,
    /// `sys.path.append(…)`: imports may mean files elsewhere.
    pub(super) moves_path: bool,
    /// It does not parse.
    pub(super) is_broken: bool,
}

/// Where the top of a file goes no further.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stop {
    /// How many references come before it.
    pub(super) references: usize,
    pub(super) at: TextSize,
}

/// A function, a class or a method. What is defined inside of a function belongs to that one.
#[derive(Clone, Debug)]
pub(super) struct Definition {
    pub(super) name: String,
    pub(super) kind: DefinitionKind,
    pub(super) references: Vec<Reference>,
    /// A decorator may hand it to somebody: `@register`, `@app.command()`.
    pub(super) handed_on: bool,
}

#[derive(Clone, Debug)]
pub(super) enum DefinitionKind {
    Function,
    Class {
        bases: Vec<Option<Dotted>>,
        /// `self.x`: the class that it is made from, if only one statement binds it.
        attributes: FxHashMap<String, Option<Dotted>>,
    },
    /// A method of the class at an index.
    Method(usize),
}

#[derive(Clone, Debug)]
pub(super) struct Bound {
    pub(super) level: u32,
    /// `a.b.c` of `import a.b.c`, and of `from a.b import c`. A star is left out.
    pub(super) parts: Vec<String>,
    pub(super) name: String,
    pub(super) star: bool,
    /// Where it is, if the file cannot be imported without it: no branch, function or `try` is around it.
    pub(super) needed: Option<Stop>,
}

/// One mention of something.
#[derive(Clone, Debug)]
pub(super) enum Reference {
    /// A name of the file, and what follows it: `f`, `module.f`, `Class.f`
    Name(Dotted),
    /// An attribute of an object that is not known: `x.f`
    Member(String),
    /// An attribute of the class's own object: `self.f`, `self.x.f`
    Own(Dotted),
    /// An attribute of an object that is made from a class: `Class().f`
    Of(Dotted, String),
    /// `getattr(self, name)`
    AnyOwn,
    /// `getattr(module, name)`
    AnyOf(Dotted),
    /// `getattr(x, name)(…)`
    AnyMember,
}

impl Definitions {
    /// What a file says. The cells of a notebook are run one by one: none ends the others.
    pub(crate) fn of(module: &Module<'_>, is_notebook: bool) -> Self {
        let mut collect = Collect::default();
        let bound = Bind::of(module.body());
        collect.found.constants = constants_of(module.body(), &bound);
        // What a function binds anew is none.
        for line in module.text().lines() {
            if let Some(names) = line.trim_start().strip_prefix("global ") {
                for name in names.split(',') {
                    collect.found.constants.remove(name.trim());
                }
            }
        }
        collect.found.variables = bound.names;
        for stmt in module.body() {
            collect.at_top = !is_notebook;
            if collect.at_top && collect.found.stops.is_none() && goes_no_further(stmt) {
                collect.found.stops = Some(collect.here(stmt));
            }
            collect.visit_stmt(stmt);
        }
        collect.found
    }

    /// Of a file that does not parse.
    pub(crate) fn of_broken() -> Self {
        Self {
            is_broken: true,
            ..Self::default()
        }
    }
}

/// Whether nothing that follows a statement in its block ever runs.
pub(crate) fn goes_no_further(stmt: &Stmt) -> bool {
    match stmt {
        Stmt::Raise(_) | Stmt::Return(_) | Stmt::Continue(_) | Stmt::Break(_) => true,
        Stmt::Assert(node) => {
            matches!(&*node.test, Expr::BooleanLiteral(flag) if !flag.value)
        }
        Stmt::Expr(node) => match &*node.value {
            Expr::Call(call) => matches!(
                dotted_name(&call.func).as_deref(),
                Some("exit" | "quit" | "sys.exit" | "os._exit" | "os.abort")
            ),
            _ => false,
        },
        _ => false,
    }
}

#[derive(Default)]
struct Collect {
    found: Definitions,
    /// The definition that a statement belongs to.
    current: Option<usize>,
    class: Option<usize>,
    in_function: bool,
    /// The statement is one of the file itself, in no block.
    at_top: bool,
    /// The name of the method's own object.
    own: Option<String>,
    /// Names that the function binds: the class that each is made from.
    locals: FxHashMap<String, Option<Dotted>>,
}

impl Collect {
    fn here(&self, stmt: &Stmt) -> Stop {
        Stop {
            references: self.found.top.len(),
            at: stmt.start(),
        }
    }

    fn note(&mut self, reference: Reference) {
        match self.current {
            Some(at) => self.found.all[at].references.push(reference),
            None => self.found.top.push(reference),
        }
    }

    fn members(&mut self, parts: &[&str]) {
        for part in parts {
            self.note(Reference::Member((*part).to_owned()));
        }
    }

    /// A dotted name that is read.
    fn dotted(&mut self, parts: &[&str]) {
        self.found.moves_path |= parts.starts_with(&["sys", "path"]);
        let first = parts[0];
        if parts.len() > 1 && self.own.as_deref() == Some(first) {
            self.note(Reference::Own(owned(&parts[1..])));
        } else if let Some(made) = self.locals.get(first) {
            match (made, parts.get(1)) {
                (Some(class), Some(attribute)) => {
                    let reference = Reference::Of(class.clone(), (*attribute).to_owned());
                    self.note(reference);
                    self.members(&parts[2..]);
                }
                _ => self.members(&parts[1..]),
            }
        } else {
            self.note(Reference::Name(owned(parts)));
        }
    }

    /// Whether a test holds, if a constant of the file decides that.
    fn is_true(&self, test: &Expr) -> Option<bool> {
        let value = |expr: &Expr| match expr {
            Expr::Name(name) if !self.locals.contains_key(name.id.as_str()) => {
                self.found.constants.get(name.id.as_str()).cloned()
            }
            other => Constant::of(other),
        };
        match test {
            Expr::UnaryOp(node) if node.op == UnaryOp::Not => {
                Some(!value(&node.operand)?.is_true())
            }
            Expr::Compare(node) => match (&*node.ops, &*node.comparators) {
                ([op], [right]) => value(&node.left)?.compare(*op, &value(right)?),
                _ => None,
            },
            other => Some(value(other)?.is_true()),
        }
    }

    fn define(&mut self, name: &str, kind: DefinitionKind, decorators: &[Decorator]) -> usize {
        self.found.all.push(Definition {
            name: name.to_owned(),
            kind,
            references: Vec::new(),
            handed_on: decorators.iter().any(hands_on),
        });
        self.found.all.len() - 1
    }

    fn function(&mut self, def: &StmtFunctionDef) {
        for each in &def.decorator_list {
            self.visit_decorator(each);
        }
        for parameter in def.parameters.iter_non_variadic_params() {
            if let Some(default) = parameter.default() {
                self.visit_expr(default);
            }
        }
        if self.in_function || self.found.all.len() >= MAX_DEFINITIONS {
            for stmt in &def.body {
                self.visit_stmt(stmt);
            }
            return;
        }
        let kind = self
            .class
            .map_or(DefinitionKind::Function, DefinitionKind::Method);
        let at = self.define(def.name.as_str(), kind, &def.decorator_list);
        let mut locals = bound_in(&def.body);
        let mut parameters = def.parameters.iter().map(|each| each.name().to_string());
        let own = self.class.and_then(|_| parameters.next());
        locals.extend(parameters.map(|name| (name, None)));
        let outer = (
            self.current.replace(at),
            std::mem::replace(&mut self.own, own),
            std::mem::replace(&mut self.locals, locals),
        );
        self.in_function = true;
        for stmt in &def.body {
            self.visit_stmt(stmt);
        }
        self.in_function = false;
        (self.current, self.own, self.locals) = outer;
    }

    fn define_class(&mut self, class: &StmtClassDef) {
        let bases = class.arguments.iter().flat_map(|each| &each.args);
        let bases = bases.map(dotted).collect();
        let kind = DefinitionKind::Class {
            bases,
            attributes: FxHashMap::default(),
        };
        for each in &class.decorator_list {
            self.visit_decorator(each);
        }
        let at = self.define(class.name.as_str(), kind, &class.decorator_list);
        let outer = (self.current.replace(at), self.class.replace(at));
        if let Some(arguments) = &class.arguments {
            self.visit_arguments(arguments);
        }
        for stmt in &class.body {
            self.visit_stmt(stmt);
        }
        (self.current, self.class) = outer;
    }

    /// `self.x = Class(…)`
    fn own_attribute(&mut self, target: &Expr, value: Option<&Expr>) {
        let (Some(class), Expr::Attribute(attribute)) = (self.class, target) else {
            return;
        };
        let of_own = matches!(&*attribute.value, Expr::Name(name)
            if self.own.as_deref() == Some(name.id.as_str()));
        if !of_own {
            return;
        }
        let made = value
            .and_then(made_from)
            .filter(|class| !self.locals.contains_key(&class[0]));
        if let DefinitionKind::Class { attributes, .. } = &mut self.found.all[class].kind {
            attributes
                .entry(attribute.attr.to_string())
                .and_modify(|known| *known = None)
                .or_insert(made);
        }
    }

    fn call(&mut self, call: &ExprCall) {
        let Some(name) = last_name(&call.func) else {
            if let Expr::Call(inner) = &*call.func
                && last_name(&inner.func) == Some("getattr")
                && inner.arguments.args.first().is_some_and(|object| {
                    !matches!(object, Expr::Name(name) if self.own.as_deref() == Some(name.id.as_str()))
                        && dotted_name(object).is_none_or(|name| {
                            self.locals.contains_key(split(&name)[0].as_str())
                        })
                })
                && !matches!(inner.arguments.args.get(1), Some(Expr::StringLiteral(_)))
            {
                self.note(Reference::AnyMember);
            }
            return;
        };
        match name {
            // A file may have a function `eval` of its own.
            "eval" | "exec" | "globals"
                if call.func.is_name_expr() && !self.found.variables.contains_key(name) =>
            {
                self.found.names_by_text = true;
            }
            "import_module"
            | "__import__"
            | "instantiate"
            | "instantiate_from_config"
            | "get_obj_from_str"
            | "load_class"
            | "locate"
            | "import_string"
            | "__subclasses__" => {
                self.found.imports_by_text = true;
            }
            "Fire" => {
                self.found.names_by_text = true;
                self.note(Reference::AnyMember);
            }
            "getattr" | "methodcaller" => {
                match (call.arguments.args.first(), call.arguments.args.get(1)) {
                    (_, Some(Expr::StringLiteral(text))) => {
                        self.note(Reference::Member(text.value.to_str().to_owned()));
                        if let Some(mut parts) = call.arguments.args.first().and_then(dotted_parts)
                        {
                            parts.push(text.value.to_str());
                            self.dotted(&parts);
                        }
                    }
                    (Some(object), Some(_)) => {
                        if let Some(object) = dotted_name(object) {
                            if self.own.as_ref() == Some(&object) {
                                self.note(Reference::AnyOwn);
                            } else {
                                let parts = split(&object);
                                if !self.locals.contains_key(&parts[0]) {
                                    self.note(Reference::AnyOf(parts));
                                }
                            }
                        }
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }
}

impl<'a> Visitor<'a> for Collect {
    fn visit_annotation(&mut self, _: &'a Expr) {}

    fn visit_stmt(&mut self, stmt: &'a Stmt) {
        let needed = std::mem::take(&mut self.at_top).then(|| self.here(stmt));
        match stmt {
            Stmt::Import(_) | Stmt::ImportFrom(_) => {
                for import in imports_of(stmt) {
                    let whole = stmt.is_import_stmt();
                    let full = if whole {
                        import.module
                    } else {
                        import.full.trim_start_matches('.')
                    };
                    let star = import.bound == "*";
                    let renamed = whole && import.bound != split_first(full);
                    let parts: Vec<String> = full
                        .split('.')
                        .filter(|part| *part != "*" && !part.is_empty())
                        .map(str::to_owned)
                        .collect();
                    // `import a.b` binds `a`; what follows is found part by part.
                    let name = if whole && !renamed {
                        parts.join(".")
                    } else {
                        import.bound.to_owned()
                    };
                    self.found.imports.push(Bound {
                        level: import.level,
                        parts,
                        name,
                        star,
                        needed,
                    });
                }
            }
            // Another function may bind the file's variable anew.
            Stmt::Global(node) => {
                for name in &node.names {
                    self.found.variables.insert(name.to_string(), None);
                }
            }
            Stmt::FunctionDef(def) => self.function(def),
            Stmt::ClassDef(class)
                if !self.in_function
                    && self.class.is_none()
                    && self.found.all.len() < MAX_DEFINITIONS =>
            {
                self.define_class(class);
            }
            Stmt::Assign(assign) => {
                for target in &assign.targets {
                    self.own_attribute(target, Some(&assign.value));
                    if let Expr::Tuple(tuple) = target {
                        for each in &tuple.elts {
                            self.own_attribute(each, None);
                        }
                    }
                }
                walk_stmt(self, stmt);
            }
            // What a constant switches off mentions nothing.
            Stmt::If(branch) => {
                let on = self.is_true(&branch.test);
                self.visit_expr(&branch.test);
                if on != Some(false) {
                    self.visit_body(&branch.body);
                }
                if on != Some(true) {
                    for clause in &branch.elif_else_clauses {
                        self.visit_elif_else_clause(clause);
                    }
                }
            }
            Stmt::AnnAssign(assign) => {
                self.own_attribute(&assign.target, assign.value.as_deref());
                walk_stmt(self, stmt);
            }
            _ => walk_stmt(self, stmt),
        }
    }

    fn visit_expr(&mut self, expr: &'a Expr) {
        match expr {
            Expr::Name(name) => {
                if name.ctx != ExprContext::Store {
                    self.dotted(&[name.id.as_str()]);
                }
            }
            Expr::Attribute(attribute) => {
                if attribute.ctx == ExprContext::Store {
                    self.found.sets.insert(attribute.attr.to_string());
                }
                if let Some(parts) = dotted_parts(expr) {
                    self.dotted(&parts);
                    return;
                }
                let known = match &*attribute.value {
                    Expr::Call(call) => dotted(&call.func),
                    _ => None,
                };
                let attr = attribute.attr.to_string();
                match known {
                    Some(path) if path == ["super"] => self.note(Reference::Own(vec![attr])),
                    Some(path)
                        if !self.locals.contains_key(&path[0])
                            && self.own.as_ref() != Some(&path[0]) =>
                    {
                        self.note(Reference::Of(path, attr));
                    }
                    _ => self.note(Reference::Member(attr)),
                }
                self.visit_expr(&attribute.value);
            }
            Expr::Call(call) => {
                self.call(call);
                walk_expr(self, expr);
            }
            _ => walk_expr(self, expr),
        }
    }
}

fn split(name: &str) -> Dotted {
    name.split('.').map(str::to_owned).collect()
}

fn owned(parts: &[&str]) -> Dotted {
    parts.iter().map(|part| (*part).to_owned()).collect()
}

fn dotted(expr: &Expr) -> Option<Dotted> {
    dotted_parts(expr).as_deref().map(owned)
}

fn split_first(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

/// Whether a decorator may hand on what it decorates, rather than change what it does.
fn hands_on(decorator: &Decorator) -> bool {
    const ONLY_CHANGES: &[&str] = &[
        "no_grad",
        "inference_mode",
        "enable_grad",
        "staticmethod",
        "classmethod",
        "property",
        "cached_property",
        "setter",
        "getter",
        "wraps",
        "lru_cache",
        "cache",
        "abstractmethod",
        "abstractproperty",
        "contextmanager",
        "dataclass",
        "autocast",
        "custom_fwd",
        "custom_bwd",
        "script",
        "script_method",
        "ignore",
        "export",
        "unused",
        "jit",
        "njit",
        "overload",
        "override",
        "final",
        "compile",
        "total_ordering",
        "deprecated",
        "timeit",
        "timer",
        "set_grad_enabled",
        "typechecked",
        "jaxtyped",
        "add_start_docstrings",
        "replace_return_docstrings",
    ];
    let target = match &decorator.expression {
        Expr::Call(call) => &*call.func,
        other => other,
    };
    dotted_name(target).is_none_or(|name| !ONLY_CHANGES.contains(&last_part(&name)))
}

/// The class, or function, that a value is made by: `a.b.C` of `a.b.C(…)`.
fn made_from(value: &Expr) -> Option<Dotted> {
    match value {
        Expr::Call(call) => dotted(&call.func),
        _ => None,
    }
}

/// The variables of a file that one statement in no block binds, to a literal, and nothing else does.
fn constants_of(body: &[Stmt], bind: &Bind) -> FxHashMap<String, Constant> {
    let literal = |stmt: &Stmt| {
        let (target, value) = match stmt {
            Stmt::Assign(assign) => match &*assign.targets {
                [target] => (target, &*assign.value),
                _ => return None,
            },
            Stmt::AnnAssign(assign) => (&*assign.target, assign.value.as_deref()?),
            _ => return None,
        };
        let Expr::Name(name) = target else {
            return None;
        };
        let once = bind.times.get(name.id.as_str()) == Some(&1);
        once.then_some((name.id.to_string(), Constant::of(value)?))
    };
    body.iter().filter_map(literal).collect()
}

/// The names that a block binds, outside of functions and classes inside it.
fn bound_in(body: &[Stmt]) -> FxHashMap<String, Option<Dotted>> {
    Bind::of(body).names
}

#[derive(Default)]
struct Bind {
    names: FxHashMap<String, Option<Dotted>>,
    times: FxHashMap<String, usize>,
    global: Vec<String>,
}

impl Bind {
    fn of(body: &[Stmt]) -> Self {
        let mut bind = Self::default();
        for stmt in body {
            bind.visit_stmt(stmt);
        }
        for name in &bind.global {
            bind.names.remove(name);
        }
        bind
    }

    fn bind(&mut self, name: &str, made: Option<Dotted>) {
        *self.times.entry(name.to_owned()).or_default() += 1;
        self.names
            .entry(name.to_owned())
            .and_modify(|known| *known = None)
            .or_insert(made);
    }
}

impl<'a> Visitor<'a> for Bind {
    fn visit_stmt(&mut self, stmt: &'a Stmt) {
        match stmt {
            Stmt::FunctionDef(def) => self.bind(def.name.as_str(), None),
            Stmt::ClassDef(class) => self.bind(class.name.as_str(), None),
            Stmt::Global(node) => self
                .global
                .extend(node.names.iter().map(ToString::to_string)),
            Stmt::Nonlocal(_) => {}
            Stmt::Assign(assign) => {
                for target in &assign.targets {
                    match target {
                        Expr::Name(name) => self.bind(name.id.as_str(), made_from(&assign.value)),
                        other => self.visit_expr(other),
                    }
                }
            }
            _ => walk_stmt(self, stmt),
        }
    }

    fn visit_expr(&mut self, expr: &'a Expr) {
        match expr {
            Expr::Name(name) if name.ctx == ExprContext::Store => self.bind(name.id.as_str(), None),
            Expr::Lambda(_)
            | Expr::ListComp(_)
            | Expr::SetComp(_)
            | Expr::DictComp(_)
            | Expr::Generator(_) => {}
            _ => walk_expr(self, expr),
        }
    }
}
