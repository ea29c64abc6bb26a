//! What one file defines, imports and refers to.

use oomph_python_source::ast::visitor::{
    Visitor, walk_except_handler, walk_expr, walk_keyword, walk_pattern, walk_stmt,
};
use oomph_python_source::ast::{
    Arguments, Decorator, ElifElseClause, ExceptHandler, Expr, ExprCall, ExprContext,
    InterpolatedStringElement, Keyword, Operator, Pattern, Stmt, StmtClassDef, StmtFunctionDef,
    UnaryOp,
};
use oomph_python_source::{
    Module, Ranged, Source, TextSize, dotted_name, dotted_parts, imports_of, last_name, last_part,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::calls::{Call, Signature, Target};
use super::constant::Constant;
use super::undefined::Names;

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
    pub(super) top: Vec<Mention>,
    /// Calls of what the project may have.
    pub(super) calls: Vec<Call>,
    pub(super) blocks: Vec<Block>,
    /// Where blocks go no further: the block, and where.
    pub(super) ends: Vec<(usize, End)>,
    /// Names that are read and nowhere bound in the file, where the block of a statement stops at them.
    pub(super) unbound: Vec<(String, usize, End)>,
    /// Names at the top of the file that more than one statement binds.
    pub(super) rebound: FxHashSet<String>,
    pub(super) imports: Vec<Bound>,
    /// Variables of the file: the class that each is made from, if only one statement binds it.
    pub(super) variables: FxHashMap<String, Option<Dotted>>,
    /// `eval(…)`, `globals()[…]`: any name of the file may be meant.
    pub(super) names_by_text: bool,
    /// `import_module(…)`, `instantiate(config)`: any name of the project may be meant.
    pub(super) imports_by_text: bool,
    /// Variables of the file that only one statement binds, to a literal.
    pub(super) constants: FxHashMap<String, Constant>,
    /// Names of attributes that the file sets, of whatever object, and how often: `settings.RESUME = …`
    pub(super) sets: FxHashMap<String, usize>,
    /// `setattr(x, name, …)`
    pub(super) sets_by_text: bool,
    pub(super) is_notebook: bool,
    /// `sys.path.append(…)`: imports may mean files elsewhere.
    pub(super) moves_path: bool,
    /// It does not parse.
    pub(super) is_broken: bool,
}

/// Where a block goes no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct End {
    /// From here on, what stands in the block is of no use: the statement that stops, and what prepares for it.
    pub(super) at: TextSize,
    /// What is mentioned after this is not reached any more.
    pub(super) after: TextSize,
    /// Whether it is an error or an exit, so that what called the function ends as well.
    pub(super) fails: bool,
}

/// Statements one after another.
#[derive(Clone, Debug)]
pub(super) struct Block {
    /// The block that the statement is in that has this one.
    pub(super) parent: Option<usize>,
    pub(super) end: TextSize,
    /// Whether the parent ends where this block ends: a `with`, a loop.
    pub(super) passes: bool,
    /// The function or method whose body it is.
    pub(super) of: Option<usize>,
    /// The first place where it may be left in good order: `return`, `break`, `yield`.
    pub(super) left: Option<TextSize>,
    is_loop: bool,
    is_function: bool,
}

/// One mention of something, and where it begins.
#[derive(Clone, Debug)]
pub(super) struct Mention {
    pub(super) at: TextSize,
    pub(super) what: Reference,
}

/// A function, a class or a method. What is defined inside of a function belongs to that one.
#[derive(Clone, Debug)]
pub(super) struct Definition {
    pub(super) name: String,
    pub(super) kind: DefinitionKind,
    pub(super) references: Vec<Mention>,
    /// A decorator may hand it to somebody: `@register`, `@app.command()`.
    pub(super) handed_on: bool,
    /// What a function can be called with.
    pub(super) signature: Signature,
}

#[derive(Clone, Debug)]
pub(super) enum DefinitionKind {
    Function,
    Class {
        bases: Vec<Option<Dotted>>,
        /// `self.x`: the class that it is made from, if only one statement binds it.
        attributes: FxHashMap<String, Option<Dotted>>,
        /// `self.x = value` and `x = value` in its body, and which definition says so.
        values: Vec<(String, Value, usize)>,
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
    pub(super) needed: Option<End>,
}

/// What is mentioned.
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
    /// `eval("{}_mask".format(name))`: what begins and ends like this.
    Like(String, String),
    /// `globals()[name](x, key=y)`: what takes so many arguments and these keywords, if they are known.
    Taking(Option<(usize, Vec<String>)>),
}

/// What is handed to a parameter or kept in an attribute.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Known(Constant),
    /// A parameter of the function around it, which nothing else binds.
    Parameter(String),
    /// An attribute of the function's own object.
    Own(String),
    Unknown,
}

impl Definitions {
    /// What a file says. The cells of a notebook are run one by one: none ends the others.
    pub(crate) fn of(module: &Module<'_>, source: &Source, is_whole: bool) -> Self {
        let is_notebook = source.is_notebook();
        let mut collect = Collect::default();
        collect.found.is_notebook = is_notebook;
        let bound = Bind::of(module.body());
        let again = bound.times.iter().filter(|(_, times)| **times > 1);
        collect.found.rebound = again.map(|(name, _)| name.clone()).collect();
        collect.found.rebound.extend(bound.global.iter().cloned());
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
        if is_notebook {
            for (_, cell) in source.cells() {
                let of_cell = |stmt: &&Stmt| cell.contains(&stmt.start().to_usize());
                let first = module.body().iter().position(|stmt| of_cell(&stmt));
                let Some(first) = first else { continue };
                let count = module.body()[first..].iter().take_while(of_cell).count();
                // What a cell fetches, or goes to, no file of the project says.
                collect.top = ![
                    "git clone",
                    "%cd",
                    "chdir",
                    "drive.mount",
                    "wget",
                    "unzip",
                    "!pip",
                    "%pip",
                ]
                .iter()
                .any(|word| module.text().contains(word));
                collect.block(&module.body()[first..first + count], Opens::default());
            }
        } else {
            collect.top = true;
            collect.block(module.body(), Opens::default());
        }
        let names = std::mem::take(&mut collect.names);
        // A cell that does not parse may bind anything.
        if is_whole {
            collect.found.unbound = names.unbound(module.text(), &collect.found.imports);
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

/// How a block is opened.
#[derive(Clone, Copy, Default)]
struct Opens {
    passes: bool,
    of: Option<usize>,
    is_loop: bool,
    is_function: bool,
}

#[derive(Default)]
struct Collect {
    found: Definitions,
    names: Names,
    /// The block that a statement is in.
    block: Option<usize>,
    /// Where the statement begins, or what prepares for it.
    stmt: TextSize,
    /// How the bodies of the statement are opened.
    opens: Opens,
    /// Inside of what may not be evaluated: a lambda, the right side of `and`.
    maybe: usize,
    /// How many names the assignment binds whose value comes next.
    takes: Option<usize>,
    /// In how many functions inside of the definition.
    nested: usize,
    /// The statements are those of the file itself.
    top: bool,
    /// Parameters of the function that nothing in it binds anew.
    parameters: FxHashSet<String>,
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
    /// Where `globals()` is whose item is called.
    called_by_text: Option<TextSize>,
}

impl Collect {
    /// Goes through statements that follow each other.
    fn block(&mut self, body: &[Stmt], opens: Opens) {
        let Some(last) = body.last() else { return };
        self.found.blocks.push(Block {
            parent: self.block,
            end: last.end(),
            passes: opens.passes,
            of: opens.of,
            left: None,
            is_loop: opens.is_loop,
            is_function: opens.is_function,
        });
        let here = self.found.blocks.len() - 1;
        let outer = (self.block.replace(here), self.stmt);
        let top = std::mem::take(&mut self.top);
        let mut prepares = None;
        for stmt in body {
            self.at_top = top;
            self.stmt = prepares.unwrap_or(stmt.start());
            let ends = goes_no_further(stmt);
            if ends {
                // What is made from the class may have the method.
                let fails = match stmt {
                    Stmt::Return(_) | Stmt::Continue(_) | Stmt::Break(_) => false,
                    Stmt::Raise(node) => !node.exc.as_deref().is_some_and(|error| {
                        let error = match error {
                            Expr::Call(call) => &*call.func,
                            other => other,
                        };
                        last_name(error) == Some("NotImplementedError")
                    }),
                    _ => true,
                };
                let end = End {
                    // What is returned is worked out all the same.
                    at: if stmt.is_return_stmt() {
                        stmt.end()
                    } else {
                        stmt.start()
                    },
                    after: stmt.end(),
                    fails,
                };
                self.found.ends.push((here, end));
            }
            match stmt {
                Stmt::Return(_) => self.leaves(stmt.start(), false),
                Stmt::Break(_) | Stmt::Continue(_) => self.leaves(stmt.start(), true),
                _ => {}
            }
            self.visit_stmt(stmt);
            prepares = match stmt {
                Stmt::Assign(_) if !ends => Some(self.stmt),
                _ => None,
            };
        }
        (self.block, self.stmt) = outer;
    }

    /// The blocks around may be left here in good order, up to the loop or the function.
    fn leaves(&mut self, at: TextSize, a_loop: bool) {
        let mut block = self.block;
        while let Some(index) = block {
            let each = &mut self.found.blocks[index];
            each.left = each.left.or(Some(at));
            if each.is_function || a_loop && each.is_loop {
                break;
            }
            block = each.parent;
        }
    }

    fn note(&mut self, at: TextSize, what: Reference) {
        let mention = Mention { at, what };
        match self.current {
            Some(at) => self.found.all[at].references.push(mention),
            None => self.found.top.push(mention),
        }
    }

    /// What a value is, as far as one look says.
    fn value(&self, expr: &Expr) -> Value {
        match expr {
            Expr::Name(name) if self.parameters.contains(name.id.as_str()) => {
                Value::Parameter(name.id.to_string())
            }
            Expr::Name(name) if !self.locals.contains_key(name.id.as_str()) => self
                .found
                .constants
                .get(name.id.as_str())
                .map_or(Value::Unknown, |value| Value::Known(value.clone())),
            Expr::Attribute(attribute) => match &*attribute.value {
                Expr::Name(name) if self.own.as_deref() == Some(name.id.as_str()) => {
                    Value::Own(attribute.attr.to_string())
                }
                _ => Value::Unknown,
            },
            other => Constant::of(other).map_or(Value::Unknown, Value::Known),
        }
    }

    /// What a call calls, if the project may have it.
    fn target(&self, func: &Expr) -> Option<Target> {
        if let Some(parts) = dotted_parts(func) {
            let first = parts[0];
            if parts.len() > 1 && self.own.as_deref() == Some(first) {
                return (first != "cls").then(|| Target::Own(owned(&parts[1..])));
            }
            return match self.locals.get(first) {
                Some(Some(class)) => Some(Target::Of(class.clone(), owned(&parts[1..]))),
                Some(None) => None,
                None => Some(Target::Name(owned(&parts))),
            };
        }
        let made = |call: &ExprCall| {
            dotted(&call.func).filter(|path| {
                !self.locals.contains_key(&path[0]) && self.own.as_ref() != Some(&path[0])
            })
        };
        match func {
            Expr::Call(call) => Some(Target::Of(made(call)?, Vec::new())),
            Expr::Attribute(attribute) => match &*attribute.value {
                Expr::Call(call) if last_name(&call.func) != Some("super") => {
                    Some(Target::Of(made(call)?, vec![attribute.attr.to_string()]))
                }
                _ => None,
            },
            _ => None,
        }
    }

    fn note_call(&mut self, call: &ExprCall, takes: Option<usize>) {
        // Half of all calls.
        const OF_PYTHON: &[&str] = &[
            "print",
            "len",
            "range",
            "str",
            "int",
            "float",
            "isinstance",
            "super",
            "enumerate",
            "zip",
            "list",
        ];
        const OF_OTHERS: &[&str] = &[
            "torch", "nn", "F", "np", "numpy", "plt", "os", "tf", "math", "random", "time", "json",
        ];
        let Some(block) = self.block else { return };
        let name = match last_name(&call.func) {
            Some(name) => name,
            None if matches!(&*call.func, Expr::Call(_)) => "",
            None => return,
        };
        if call.func.is_name_expr() && OF_PYTHON.contains(&name) {
            return;
        }
        let target = self.target(&call.func);
        if matches!(&target, Some(Target::Name(path)) if path.len() > 1 && OF_OTHERS.contains(&path[0].as_str()))
            || target.is_none() && Call::is_common(name)
        {
            return;
        }
        let arguments = &call.arguments;
        let mut positional = Vec::with_capacity(arguments.args.len());
        let mut starred = false;
        for each in &arguments.args {
            starred |= each.is_starred_expr();
            positional.push(self.value(each));
        }
        let mut keywords = Vec::with_capacity(arguments.keywords.len());
        let mut rest = None;
        for each in &arguments.keywords {
            match &each.arg {
                Some(name) => keywords.push((name.to_string(), self.value(&each.value))),
                None => {
                    rest = Some(match &each.value {
                        Expr::Name(name) => name.id.to_string(),
                        _ => String::new(),
                    });
                }
            }
        }
        self.found.calls.push(Call {
            name: name.to_owned(),
            target,
            of: self.current,
            at: call.func.start(),
            block,
            end: End {
                at: self.stmt,
                after: call.range().end(),
                fails: true,
            },
            certain: self.maybe == 0,
            positional,
            starred,
            keywords,
            rest,
            takes,
        });
    }

    /// A name that is read: what a function does with the keywords that it takes besides.
    fn uses_rest(&mut self, name: &str) {
        if let Some(at) = self.current {
            let signature = &mut self.found.all[at].signature;
            if signature.rest.as_deref() == Some(name) {
                signature.rest_is_handed_on = false;
            }
        }
    }

    /// Goes through what may not be evaluated.
    fn perhaps(&mut self, visit: impl FnOnce(&mut Self)) {
        self.maybe += 1;
        visit(self);
        self.maybe -= 1;
    }

    fn members(&mut self, at: TextSize, parts: &[&str]) {
        for part in parts {
            self.note(at, Reference::Member((*part).to_owned()));
        }
    }

    /// A dotted name that is read.
    fn dotted(&mut self, at: TextSize, parts: &[&str]) {
        self.found.moves_path |= parts.starts_with(&["sys", "path"]);
        let first = parts[0];
        if parts.len() > 1 && self.own.as_deref() == Some(first) {
            self.note(at, Reference::Own(owned(&parts[1..])));
        } else if let Some(made) = self.locals.get(first) {
            match (made, parts.get(1)) {
                (Some(class), Some(attribute)) => {
                    let reference = Reference::Of(class.clone(), (*attribute).to_owned());
                    self.note(at, reference);
                    self.members(at, &parts[2..]);
                }
                _ => self.members(at, &parts[1..]),
            }
        } else {
            self.note(at, Reference::Name(owned(parts)));
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

    fn define(
        &mut self,
        name: &str,
        kind: DefinitionKind,
        decorators: &[Decorator],
        signature: Signature,
    ) -> usize {
        self.found.all.push(Definition {
            name: name.to_owned(),
            kind,
            references: Vec::new(),
            handed_on: decorators.iter().any(hands_on),
            signature,
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
        self.names.bind_parameters(def);
        let opens = Opens {
            is_function: true,
            ..Opens::default()
        };
        if self.in_function || self.found.all.len() >= MAX_DEFINITIONS {
            // Its own names hide those around it.
            let outer = (self.locals.clone(), self.parameters.clone(), self.maybe);
            let own = def.parameters.iter().map(|each| each.name().to_string());
            for name in own.chain(bound_in(&def.body).into_keys()) {
                self.parameters.remove(&name);
                self.locals.insert(name, None);
            }
            self.nested += 1;
            self.maybe = 0;
            self.block(&def.body, opens);
            self.nested -= 1;
            (self.locals, self.parameters, self.maybe) = outer;
            return;
        }
        let kind = self
            .class
            .map_or(DefinitionKind::Function, DefinitionKind::Method);
        let signature = Signature::of(def, self.class.is_some());
        let at = self.define(def.name.as_str(), kind, &def.decorator_list, signature);
        let mut locals = bound_in(&def.body);
        let own_parameters = def
            .parameters
            .iter_non_variadic_params()
            .map(|each| each.name().to_string())
            .filter(|name| !locals.contains_key(name))
            .collect();
        let mut parameters = def.parameters.iter().map(|each| each.name().to_string());
        let is_bound = self.found.all[at].signature.is_bound;
        let own = is_bound.then(|| parameters.next()).flatten();
        locals.extend(parameters.map(|name| (name, None)));
        let outer = (
            self.current.replace(at),
            std::mem::replace(&mut self.own, own),
            std::mem::replace(&mut self.locals, locals),
            std::mem::replace(&mut self.parameters, own_parameters),
        );
        self.in_function = true;
        let opens = Opens {
            of: Some(at),
            ..opens
        };
        self.block(&def.body, opens);
        self.in_function = false;
        (self.current, self.own, self.locals, self.parameters) = outer;
    }

    fn define_class(&mut self, class: &StmtClassDef) {
        let bases = class.arguments.iter().flat_map(|each| &each.args);
        let bases = bases.map(dotted).collect();
        let kind = DefinitionKind::Class {
            bases,
            attributes: FxHashMap::default(),
            values: Vec::new(),
        };
        for each in &class.decorator_list {
            self.visit_decorator(each);
        }
        let signature = Signature::of_class(class);
        let at = self.define(class.name.as_str(), kind, &class.decorator_list, signature);
        let outer = (self.current.replace(at), self.class.replace(at));
        if let Some(arguments) = &class.arguments {
            self.visit_arguments(arguments);
        }
        self.block(&class.body, Opens::default());
        (self.current, self.class) = outer;
    }

    /// `self.x = Class(…)`, and `x = …` in the body of a class
    fn own_attribute(&mut self, target: &Expr, value: Option<&Expr>) {
        let (Some(class), Some(current)) = (self.class, self.current) else {
            return;
        };
        let name = match target {
            Expr::Attribute(attribute)
                if matches!(&*attribute.value, Expr::Name(name)
                    if self.own.as_deref() == Some(name.id.as_str())) =>
            {
                attribute.attr.to_string()
            }
            Expr::Name(name) if self.current == Some(class) => name.id.to_string(),
            _ => return,
        };
        let made = value
            .and_then(made_from)
            .filter(|class| !self.locals.contains_key(&class[0]));
        let kept = value.map_or(Value::Unknown, |value| self.value(value));
        if self.current == Some(class) {
            *self.found.sets.entry(name.clone()).or_default() += 1;
        }
        if let DefinitionKind::Class {
            attributes, values, ..
        } = &mut self.found.all[class].kind
        {
            values.push((name.clone(), kept, current));
            attributes
                .entry(name)
                .and_modify(|known| *known = None)
                .or_insert(made);
        }
    }

    fn call(&mut self, call: &ExprCall) {
        let Some(name) = last_name(&call.func) else {
            if let Expr::Subscript(item) = &*call.func
                && let Expr::Call(inner) = &*item.value
                && is_globals(inner)
            {
                let Arguments { args, keywords, .. } = &call.arguments;
                let names = keywords
                    .iter()
                    .map(|each| Some(each.arg.as_ref()?.to_string()));
                let names: Option<Vec<String>> = names.collect();
                let names = names.filter(|_| !args.iter().any(Expr::is_starred_expr));
                let given = names.map(|names| (args.len(), names));
                self.note(call.start(), Reference::Taking(given));
                self.called_by_text = Some(inner.start());
            }
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
                self.note(call.start(), Reference::AnyMember);
            }
            return;
        };
        match name {
            // A file may have a function `eval` of its own.
            "eval" | "exec" | "globals"
                if call.func.is_name_expr() && !self.found.variables.contains_key(name) =>
            {
                match call.arguments.args.first().and_then(pattern) {
                    Some((before, after)) => {
                        self.note(call.start(), Reference::Like(before, after));
                    }
                    None if self.called_by_text == Some(call.start()) => {}
                    None => self.found.names_by_text = true,
                }
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
            "setattr" => match call.arguments.args.get(1) {
                Some(Expr::StringLiteral(text)) => {
                    *self
                        .found
                        .sets
                        .entry(text.value.to_str().to_owned())
                        .or_default() += 1;
                }
                _ => self.found.sets_by_text = true,
            },
            "Fire" => {
                self.found.names_by_text = true;
                self.note(call.start(), Reference::AnyMember);
            }
            "getattr" | "methodcaller" => {
                match (call.arguments.args.first(), call.arguments.args.get(1)) {
                    (_, Some(Expr::StringLiteral(text))) => {
                        let name = text.value.to_str().to_owned();
                        self.note(call.start(), Reference::Member(name));
                        if let Some(mut parts) = call.arguments.args.first().and_then(dotted_parts)
                        {
                            parts.push(text.value.to_str());
                            self.dotted(call.start(), &parts);
                        }
                    }
                    (Some(object), Some(_)) => {
                        if let Some(object) = dotted_name(object) {
                            if self.own.as_ref() == Some(&object) {
                                self.note(call.start(), Reference::AnyOwn);
                            } else {
                                let parts = split(&object);
                                if !self.locals.contains_key(&parts[0]) {
                                    self.note(call.start(), Reference::AnyOf(parts));
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

    fn visit_body(&mut self, body: &'a [Stmt]) {
        let opens = std::mem::take(&mut self.opens);
        self.block(body, opens);
    }

    fn visit_keyword(&mut self, keyword: &'a Keyword) {
        // `**rest` as it is
        if keyword.arg.is_some() || !keyword.value.is_name_expr() {
            walk_keyword(self, keyword);
        }
    }

    fn visit_elif_else_clause(&mut self, clause: &'a ElifElseClause) {
        if let Some(test) = &clause.test {
            self.perhaps(|this| this.visit_expr(test));
        }
        self.visit_body(&clause.body);
    }

    fn visit_except_handler(&mut self, handler: &'a ExceptHandler) {
        let ExceptHandler::ExceptHandler(node) = handler;
        if let Some(name) = &node.name {
            self.names.bind(name.as_str());
        }
        walk_except_handler(self, handler);
    }

    fn visit_pattern(&mut self, pattern: &'a Pattern) {
        self.names.bind_pattern(pattern);
        walk_pattern(self, pattern);
    }

    fn visit_stmt(&mut self, stmt: &'a Stmt) {
        let needed = std::mem::take(&mut self.at_top).then(|| End {
            at: stmt.start(),
            after: stmt.start(),
            fails: true,
        });
        let is_loop = |passes| Opens {
            passes,
            is_loop: true,
            ..Opens::default()
        };
        self.opens = match stmt {
            // `with pytest.raises(TypeError):` goes on.
            Stmt::With(node) => Opens {
                passes: !node.items.iter().any(|item| {
                    matches!(&item.context_expr, Expr::Call(call)
                    if last_name(&call.func).is_some_and(|name| {
                        name.contains("aises") || name == "suppress"
                    }))
                }),
                ..Opens::default()
            },
            Stmt::For(_) => is_loop(true),
            Stmt::While(node) => {
                is_loop(matches!(Constant::of(&node.test), Some(value) if value.is_true()))
            }
            _ => Opens::default(),
        };
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
                    self.names.bind(name.as_str());
                    self.found.rebound.insert(name.to_string());
                    self.found.variables.insert(name.to_string(), None);
                }
            }
            Stmt::FunctionDef(def) => {
                self.names.bind(def.name.as_str());
                self.function(def);
            }
            Stmt::ClassDef(class)
                if !self.in_function
                    && self.class.is_none()
                    && self.found.all.len() < MAX_DEFINITIONS =>
            {
                self.names.bind(class.name.as_str());
                self.define_class(class);
            }
            Stmt::ClassDef(class) => {
                self.names.bind(class.name.as_str());
                walk_stmt(self, stmt);
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
                self.takes = match (&*assign.targets, &*assign.value) {
                    ([Expr::Tuple(tuple)], Expr::Call(_))
                        if !tuple.elts.iter().any(Expr::is_starred_expr) =>
                    {
                        Some(tuple.elts.len())
                    }
                    _ => None,
                };
                self.visit_expr(&assign.value);
                for target in &assign.targets {
                    self.visit_expr(target);
                }
            }
            // What a constant switches off mentions nothing.
            Stmt::If(branch) => {
                let on = self.is_true(&branch.test);
                self.visit_expr(&branch.test);
                if on != Some(false) {
                    self.visit_body(&branch.body);
                }
                if on != Some(true) {
                    self.opens = Opens::default();
                    for clause in &branch.elif_else_clauses {
                        self.visit_elif_else_clause(clause);
                    }
                }
            }
            Stmt::Return(node) => {
                if let (0, true, Some(at)) = (self.nested, self.in_function, self.current) {
                    let count = match node.value.as_deref() {
                        Some(Expr::Tuple(tuple))
                            if !tuple.elts.iter().any(Expr::is_starred_expr) =>
                        {
                            Some(tuple.elts.len())
                        }
                        _ => None,
                    };
                    self.found.all[at].signature.returns.push(count);
                }
                walk_stmt(self, stmt);
            }
            Stmt::AnnAssign(assign) => {
                // A field of a data class is given when an object is made.
                let value = assign
                    .value
                    .as_deref()
                    .filter(|_| self.current != self.class);
                self.own_attribute(&assign.target, value);
                walk_stmt(self, stmt);
            }
            _ => walk_stmt(self, stmt),
        }
    }

    fn visit_expr(&mut self, expr: &'a Expr) {
        match expr {
            Expr::Name(name) => {
                if name.ctx == ExprContext::Load {
                    self.uses_rest(name.id.as_str());
                    self.names.read(
                        name.id.as_str(),
                        self.block.filter(|_| self.maybe == 0),
                        self.stmt,
                        name.end(),
                    );
                    self.dotted(name.start(), &[name.id.as_str()]);
                } else {
                    self.names.bind(name.id.as_str());
                }
            }
            Expr::Attribute(attribute) => {
                if attribute.ctx == ExprContext::Store {
                    *self
                        .found
                        .sets
                        .entry(attribute.attr.to_string())
                        .or_default() += 1;
                }
                if let Some(parts) = dotted_parts(expr) {
                    let block = self.block.filter(|_| self.maybe == 0);
                    let end = expr.end();
                    self.uses_rest(parts[0]);
                    self.names.read(parts[0], block, self.stmt, end);
                    self.dotted(expr.start(), &parts);
                    return;
                }
                let known = match &*attribute.value {
                    Expr::Call(call) => dotted(&call.func),
                    _ => None,
                };
                let attr = attribute.attr.to_string();
                match known {
                    Some(path) if path == ["super"] => {
                        self.note(expr.start(), Reference::Own(vec![attr]));
                    }
                    Some(path)
                        if !self.locals.contains_key(&path[0])
                            && self.own.as_ref() != Some(&path[0]) =>
                    {
                        self.note(expr.start(), Reference::Of(path, attr));
                    }
                    _ => self.note(expr.start(), Reference::Member(attr)),
                }
                self.visit_expr(&attribute.value);
            }
            Expr::Call(call) => {
                let takes = self.takes.take();
                self.call(call);
                self.note_call(call, takes);
                self.visit_expr(&call.func);
                // `super(Net, self)` and `isinstance(x, Net)` make no object of the class.
                let read = match &*call.func {
                    Expr::Name(name) if name.id.as_str() == "super" => 0,
                    Expr::Name(name) if name.id.as_str() == "isinstance" => 1,
                    _ => usize::MAX,
                };
                for each in call.arguments.args.iter().take(read) {
                    self.visit_expr(each);
                }
                for keyword in &call.arguments.keywords {
                    self.visit_keyword(keyword);
                }
            }
            Expr::Lambda(node) => {
                if let Some(parameters) = &node.parameters {
                    for each in &**parameters {
                        self.names.bind(each.name().as_str());
                    }
                }
                self.perhaps(|this| walk_expr(this, expr));
            }
            Expr::BoolOp(node) => {
                self.takes = None;
                for (index, each) in node.values.iter().enumerate() {
                    if index == 0 {
                        self.visit_expr(each);
                    } else {
                        self.perhaps(|this| this.visit_expr(each));
                    }
                }
            }
            Expr::If(node) => {
                self.takes = None;
                self.visit_expr(&node.test);
                self.perhaps(|this| {
                    this.visit_expr(&node.body);
                    this.visit_expr(&node.orelse);
                });
            }
            Expr::ListComp(_) | Expr::SetComp(_) | Expr::DictComp(_) | Expr::Generator(_) => {
                self.takes = None;
                self.perhaps(|this| walk_expr(this, expr));
            }
            Expr::Yield(_) | Expr::YieldFrom(_) => {
                self.leaves(expr.start(), false);
                if let (0, Some(at)) = (self.nested, self.current) {
                    self.found.all[at].signature.is_lazy = true;
                }
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

/// `globals()`
fn is_globals(call: &ExprCall) -> bool {
    matches!(&*call.func, Expr::Name(name) if name.id.as_str() == "globals")
}

/// What a text made of others begins and ends with: `"{}_mask".format(name)`, `f"make_{name}"`, `name + "_mask"`.
fn pattern(expr: &Expr) -> Option<(String, String)> {
    let (before, after) = match expr {
        Expr::Call(call) if last_name(&call.func) == Some("format") => {
            let Expr::Attribute(attribute) = &*call.func else {
                return None;
            };
            let Expr::StringLiteral(text) = &*attribute.value else {
                return None;
            };
            let text = text.value.to_str();
            let (before, after) = (text.split('{').next()?, text.rsplit('}').next()?);
            (before.to_owned(), after.to_owned())
        }
        Expr::FString(text) => {
            let literal = |element: Option<&InterpolatedStringElement>| match element {
                Some(InterpolatedStringElement::Literal(literal)) => literal.value.to_string(),
                _ => String::new(),
            };
            let elements: Vec<_> = text.value.elements().collect();
            (
                literal(elements.first().copied()),
                literal(elements.last().copied()),
            )
        }
        Expr::BinOp(node) if node.op == Operator::Add => {
            let literal = |expr: &Expr| match expr {
                Expr::StringLiteral(text) => text.value.to_str().to_owned(),
                _ => String::new(),
            };
            (literal(&node.left), literal(&node.right))
        }
        _ => return None,
    };
    let is_name = |text: &str| {
        text.chars()
            .all(|each| each.is_alphanumeric() || each == '_')
    };
    let says_something = before.len() + after.len() > 2;
    (says_something && is_name(&before) && is_name(&after)).then_some((before, after))
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
