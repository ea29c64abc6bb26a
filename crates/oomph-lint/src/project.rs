//! What the other files of a project say about one of them.
//!
//! Files belong together if imports connect them. A file that never names a GPU still works on one if a
//! file that imports it does; weights that an evaluation script loads were saved by the training script
//! beside it; and whether `model.sample()` records a graph is decided where the class is.

use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use oomph_python_source::ast::visitor::{Visitor, walk_expr, walk_stmt};
use oomph_python_source::ast::{Expr, ExprCall, Stmt, StmtClassDef, StmtFunctionDef};
use oomph_python_source::{
    Module, Ranged, Source, TextRange, TextSize, dotted_name, imports_of, last_name, with_stack,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::pins::Newest;
use crate::queries::devices::Evidence;
use crate::queries::keeps;
use crate::queries::model_calls::is_layer_without_parameters;
use crate::reach::{self, Constant, Definitions, Unreached};
use crate::semantic::may_use_torch;
use crate::sizes::{self, Layout, Size};

/// Packages are not nested deeper than this below the folder that imports begin in.
pub(crate) const MAX_FOLDERS: usize = 6;

/// Who calls whom with gradients off is followed this far.
const MAX_QUIET_CALLERS: usize = 4;

/// Words of methods that turn gradients off or on, cut the graph, or hand results out one by one.
pub(crate) const DECIDES: &[&str] = &[
    "no_grad",
    "inference_mode",
    "set_grad_enabled",
    "requires_grad",
    "autograd",
    "detach(",
    "backward(",
    "yield",
];

/// What one file says about those that it is connected with.
#[derive(Clone, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts that have nothing to do with each other"
)]
pub struct FileFacts {
    /// Imported modules: how many folders up they begin, and their parts.
    imports: Vec<(u32, Vec<String>)>,
    /// What the imports bind, in the same order.
    bound: Vec<String>,
    /// Names of classes that the file's classes are made from.
    bases: Vec<String>,
    evidence: Evidence,
    /// `p.grad.detach_()`
    detaches_gradients: bool,
    /// A class's `state_dict` moves the weights to the CPU.
    gives_state_on_cpu: bool,
    /// Functions, in no class, that run backward or ask for gradients.
    backward_functions: Vec<String>,
    /// Runs backward.
    trains: bool,
    /// Classes that turn off gradients of their own parameters.
    frozen: Vec<String>,
    /// Classes that move what they are made of.
    movers: Vec<String>,
    /// Classes whose `forward` runs backward, or asks for gradients.
    trainers: Vec<String>,
    /// Classes of data that decode a file for each item.
    decoders: Vec<String>,
    /// Classes of data, and functions that return an object of one: how many values each item has.
    items: Vec<(String, usize)>,
    /// Functions that fill a model with a checkpoint, which they read to the GPU, and return it: alone, or at a place of a tuple.
    checkpoints: Vec<(String, Returned)>,
    /// Classes with a layer for a vocabulary: what they return is a number for each token and each entry of it.
    language_models: Vec<String>,
    /// What its classes build.
    layouts: Vec<Layout>,
    /// Methods that add what they are given to an attribute, or append it: `Class.method`.
    keepers: Vec<String>,
    saves: bool,
    saves_from_cpu: bool,
    methods: Vec<(String, Method)>,
    /// Names of what is called while gradients are off.
    quiet_calls: Vec<String>,
    /// Those of them that are functions of the file itself: another file's function of that name is another one.
    own_quiet_calls: FxHashSet<String>,
    /// Its functions, in no class.
    functions: FxHashSet<String>,
    /// Other calls: in which function, and of what.
    loud_calls: Vec<(String, String)>,
    /// While gradients are off, it runs what it was given, on a model: `evaluate(model, batch)` of a parameter `evaluate`.
    runs_given_quietly: bool,
    /// Whether `import *` may bring names in, by the index of the import.
    stars: Vec<usize>,
    /// What PyTorch's names are called here: `("F", "torch.nn.functional")`.
    torch_names: Vec<(String, String)>,
    definitions: Definitions,
}

/// Where a value is in what a function returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Returned {
    Alone,
    /// At this place of a tuple.
    InTuple(usize),
}

/// What the definitions of a method's name say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts that have nothing to do with each other"
)]
pub(crate) struct Method {
    /// It turns gradients off, detaches, or asks for gradients itself.
    pub(crate) decides: bool,
    /// It does so, but for detaching: what runs before that records a graph all the same.
    pub(crate) settles: bool,
    /// It runs a layer of its object on something that it is given or made: `self.encoder(x)`.
    pub(crate) runs: bool,
    /// It runs backward, itself or through a method of its object.
    pub(crate) trains: bool,
}

impl FileFacts {
    /// Reads the facts of one file. Files that cannot be parsed have none.
    pub fn of(source: &Source) -> Self {
        with_stack(source.code(), source.is_notebook(), || {
            let (module, problems) = source.parse();
            Self::of_parsed(source, module.as_ref(), problems.is_empty())
        })
        .unwrap_or_default()
    }

    /// `is_whole` if all cells of a notebook were parsed.
    pub(crate) fn of_parsed(source: &Source, module: Option<&Module<'_>>, is_whole: bool) -> Self {
        let Some(module) = module else {
            return Self {
                definitions: Definitions::of_broken(),
                ..Self::default()
            };
        };
        Self {
            definitions: Definitions::of(module, source, is_whole),
            ..if may_have_findings(source) {
                Self::of_module(module)
            } else {
                let classes = module.body().iter().filter_map(Stmt::as_class_def_stmt);
                Self {
                    keepers: classes.flat_map(methods_that_keep).collect(),
                    ..Self::default()
                }
            }
        }
    }

    fn of_module(module: &Module<'_>) -> Self {
        let mut collect = Collect {
            module,
            facts: Self::default(),
            in_class: false,
            quiet: false,
            caller: String::new(),
            bodies: Vec::new(),
            quiet_members: FxHashSet::default(),
            saved: module
                .text()
                .contains("torch.save(")
                .then(FxHashMap::default),
            only_saves_from_cpu: None,
            parameters: FxHashSet::default(),
            quiet_of_self: Vec::new(),
        };
        for stmt in module.body() {
            collect.visit_stmt(stmt);
        }
        let bodies = std::mem::take(&mut collect.bodies);
        let only_saves_from_cpu = collect.only_saves_from_cpu == Some(true);
        let mut facts = collect.facts;
        // `self.inference(model, batch)`, which no method of the file is.
        facts.runs_given_quietly |= collect
            .quiet_of_self
            .iter()
            .any(|name| !facts.methods.iter().any(|(method, _)| method == name));
        facts
            .own_quiet_calls
            .retain(|name| facts.functions.contains(name) && !collect.quiet_members.contains(name));
        // `sample_all` calls `self.sample`, which turns gradients off.
        let calls_of = |is_it: fn(&Method) -> bool, methods: &[(String, Method)]| -> Vec<String> {
            let those = methods.iter().filter(|(_, method)| is_it(method));
            those.map(|(name, _)| format!("self.{name}(")).collect()
        };
        let deciding = calls_of(|method| method.decides, &facts.methods);
        let settling = calls_of(|method| method.settles, &facts.methods);
        let training = calls_of(|method| method.trains, &facts.methods);
        for ((_, method), body) in facts.methods.iter_mut().zip(bodies) {
            let text = module.slice(body);
            method.decides |= deciding.iter().any(|name| text.contains(name));
            method.settles |= settling.iter().any(|name| text.contains(name));
            method.trains |= training.iter().any(|name| text.contains(name));
        }
        facts.evidence = Evidence::of(module);
        let text = module.text();
        facts.trains = text.contains(".backward(");
        facts.saves = text.contains("torch.save(");
        facts.saves_from_cpu = only_saves_from_cpu
            || facts.saves && facts.gives_state_on_cpu
            || facts.saves
                && [
                    ".cpu().state_dict",
                    ".to(\"cpu\").state_dict",
                    ".to('cpu').state_dict",
                    ".to(torch.device('cpu'))",
                    ".to(torch.device(\"cpu\"))",
                    "torch_xla",
                ]
                .iter()
                .any(|moved| text.contains(moved));
        facts
    }
}

/// Whether a file may name PyTorch, or what `import *` of another file brings in.
pub(crate) fn may_have_findings(source: &Source) -> bool {
    may_use_torch(source.code()) || source.code().contains("import *")
}

/// `weight.requires_grad = not frozen`, where `frozen=True` is the default.
fn freezes_by_default(class: &str) -> bool {
    class.split("requires_grad = not ").skip(1).any(|rest| {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let name = rest.split(|c| !is_word(c)).next().unwrap_or_default();
        !name.is_empty() && class.contains(&format!("{name}=True"))
    })
}

/// Whether a module has no parameters, so that there is no graph of its own: its `__init__` sets numbers and texts only.
fn has_no_parameters(module: &Module<'_>, class: &StmtClassDef) -> bool {
    let mut bases = class.arguments.iter().flat_map(|arguments| &arguments.args);
    let is_module = bases.all(|base| last_name(base) == Some("Module"));
    let init = class.body.iter().find_map(|stmt| match stmt {
        Stmt::FunctionDef(def) if def.name.as_str() == "__init__" => Some(def),
        _ => None,
    });
    is_module
        && class.arguments.is_some()
        && !module.slice(class.range()).contains("Parameter(")
        && init.is_some_and(|init| {
            init.body.iter().all(|stmt| match stmt {
                // `super().__init__()`, a text of documentation
                Stmt::Expr(node) => {
                    let text = module.slice(node.range());
                    text.starts_with("super(") || node.value.is_string_literal_expr()
                }
                // A test of the arguments that raises, or sets numbers.
                Stmt::Assign(assign) if is_layer_without_parameters(&assign.value) => true,
                Stmt::Assign(_) | Stmt::If(_) | Stmt::Assert(_) => {
                    let text = module.slice(stmt.range());
                    ![
                        "nn.",
                        "model",
                        "net",
                        "module",
                        "layer",
                        "encoder",
                        "torch.hub",
                        "make",
                        "build",
                        "create",
                        "setattr",
                        "load",
                    ]
                    .iter()
                    .any(|makes| text.contains(makes))
                        && !makes_an_object(text)
                }
                _ => false,
            })
        })
}

/// Whether a text calls what has a name in capitals and small letters: `Encoder(…)`.
fn makes_an_object(text: &str) -> bool {
    text.match_indices('(').any(|(at, _)| {
        let name = text[..at]
            .rsplit(|each: char| !each.is_alphanumeric() && each != '_')
            .next()
            .unwrap_or_default();
        name.starts_with(char::is_uppercase)
            && !name.ends_with("Error")
            && !name.ends_with("Exception")
    })
}

struct Collect<'m> {
    module: &'m Module<'m>,
    facts: FileFacts,
    in_class: bool,
    /// Inside a function or a block that turns gradients off.
    quiet: bool,
    /// The function around it; empty at the top of the file.
    caller: String,
    /// Where the methods are, in their order.
    bodies: Vec<TextRange>,
    /// Names of attributes that are called while gradients are off.
    quiet_members: FxHashSet<String>,
    /// Of the function around it.
    parameters: FxHashSet<String>,
    /// Attributes of `self` that are called on a model while gradients are off.
    quiet_of_self: Vec<String>,
    /// What names of the function stand for, if the file saves anything.
    saved: Option<FxHashMap<String, Saved>>,
    /// Whether all weights that it saves were moved to the CPU before; nothing if it saves none.
    only_saves_from_cpu: Option<bool>,
}

/// What a name stands for that may be saved.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Saved {
    /// A call was told to move it to the CPU: `to_device(state, "cpu")`.
    OnCpu,
    /// Weights, by what is said of them.
    Weights,
    Other,
}

/// `config`, which a function is given and saves beside weights.
fn is_of_settings(name: &str) -> bool {
    ["config", "args", "hparams", "settings"]
        .iter()
        .any(|word| name.contains(word))
}

impl Collect<'_> {
    fn saved(&self, value: &Expr) -> Saved {
        let text = self.module.slice(value);
        let moves = matches!(value, Expr::Call(call) if !matches!(last_name(&call.func), Some("load" | "device"))
            && call.arguments.args.len() > 1)
            && ["\"cpu\"", "'cpu'"].iter().any(|name| text.contains(name))
            || text.contains(".cpu() for ")
            || text.contains("self.state_dict()") && self.facts.gives_state_on_cpu;
        if moves {
            Saved::OnCpu
        } else if ["state", "model", "net", "checkpoint", "ckpt"]
            .iter()
            .any(|word| text.contains(word))
        {
            Saved::Weights
        } else {
            Saved::Other
        }
    }

    /// Notes whether a call saves weights, and whether they are on the CPU by then.
    fn note_save(&mut self, call: &ExprCall) {
        let Some(saved) = &self.saved else { return };
        let (Some("torch.save"), Some(what)) = (
            dotted_name(&call.func).as_deref(),
            call.arguments.find_positional(0),
        ) else {
            return;
        };
        // What a function is given may be weights.
        let known = match what {
            Expr::Name(name) => {
                let name = name.id.as_str();
                saved
                    .get(name)
                    .copied()
                    .or(is_of_settings(name).then_some(Saved::Other))
            }
            other => Some(self.saved(other)),
        };
        // An optimizer's state beside them says nothing of the weights.
        let of_optimizer = ["optim", "sched"]
            .iter()
            .any(|word| self.module.slice(what).contains(word));
        if known != Some(Saved::Other) && !of_optimizer {
            let only = self.only_saves_from_cpu.unwrap_or(true);
            self.only_saves_from_cpu = Some(only && known == Some(Saved::OnCpu));
        }
    }

    /// Whether what a call of the class's objects runs records no graph: its `forward` or `__call__` is decorated so, or it
    /// is no module, and turns gradients off around the one that it holds.
    fn runs_quietly(&self, class: &StmtClassDef) -> bool {
        let mut bases = class.arguments.iter().flat_map(|arguments| &arguments.args);
        let is_plain =
            bases.all(|base| matches!(last_name(base), Some("object" | "ABC" | "Protocol")));
        class.body.iter().any(|stmt| match stmt {
            Stmt::FunctionDef(def) if matches!(def.name.as_str(), "forward" | "__call__") => {
                let mut decorators = def.decorator_list.iter();
                decorators.any(|each| self.is_quiet(&each.expression))
                    || is_plain
                        && ["no_grad", "inference_mode"]
                            .iter()
                            .any(|off| self.module.slice(class.range()).contains(off))
            }
            _ => false,
        })
    }

    /// Notes a call of what the function or the object was given, if it is given a model itself.
    fn note_given(&mut self, call: &ExprCall, name: &str) {
        let takes_model = call.arguments.args.iter().any(|arg| {
            last_name(arg).is_some_and(|name| {
                let name = name.trim_start_matches('_');
                name == "net" || name.ends_with("model")
            })
        });
        if !takes_model {
            return;
        }
        match &*call.func {
            Expr::Name(_) => self.facts.runs_given_quietly |= self.parameters.contains(name),
            Expr::Attribute(method) if matches!(&*method.value, Expr::Name(object) if object.id.as_str() == "self") =>
            {
                self.quiet_of_self.push(name.to_owned());
            }
            _ => {}
        }
    }

    fn is_quiet(&self, expr: &Expr) -> bool {
        let text = self.module.slice(expr);
        ["no_grad", "inference_mode", "set_grad_enabled"]
            .iter()
            .any(|word| text.contains(word))
    }
}

impl<'a> Visitor<'a> for Collect<'_> {
    fn visit_expr(&mut self, expr: &'a Expr) {
        if let Expr::Call(call) = expr {
            self.facts.detaches_gradients |= detaches_gradient(call);
            self.note_save(call);
            if let Some(name) =
                last_name(&call.func).filter(|_| !steps_an_optimizer(call) && !switches_mode(call))
            {
                if self.quiet {
                    self.note_given(call, name);
                    if call.func.is_name_expr() {
                        self.facts.own_quiet_calls.insert(name.to_owned());
                    } else {
                        self.quiet_members.insert(name.to_owned());
                    }
                    self.facts.quiet_calls.push(name.to_owned());
                } else {
                    self.facts
                        .loud_calls
                        .push((self.caller.clone(), name.to_owned()));
                }
            }
        }
        walk_expr(self, expr);
    }

    fn visit_stmt(&mut self, stmt: &'a Stmt) {
        match stmt {
            Stmt::Import(_) | Stmt::ImportFrom(_) => {
                for import in imports_of(stmt) {
                    let full = import.full.trim_start_matches('.');
                    if import.bound == "*" {
                        self.facts.stars.push(self.facts.imports.len());
                    } else if may_use_torch(full) && import.level == 0 {
                        self.facts
                            .torch_names
                            .push((import.bound.to_owned(), full.to_owned()));
                    }
                    let parts = full
                        .split('.')
                        .map(str::to_owned)
                        .filter(|part| part != "*")
                        .collect();
                    self.facts.imports.push((import.level, parts));
                    self.facts.bound.push(import.bound.to_owned());
                }
            }
            Stmt::ClassDef(class) => {
                let text = self.module.slice(class.range());
                if ["requires_grad = False", "requires_grad_(False)"]
                    .iter()
                    .any(|off| text.contains(off))
                    || freezes_by_default(text)
                    || has_no_parameters(self.module, class)
                    || self.runs_quietly(class)
                {
                    self.facts.frozen.push(class.name.to_string());
                }
                if runs_backward_in_forward(self.module, class) {
                    self.facts.trainers.push(class.name.to_string());
                }
                if ["self.lm_head", "vocab_size, bias="]
                    .iter()
                    .any(|head| text.contains(head))
                {
                    self.facts.language_models.push(class.name.to_string());
                }
                self.facts.layouts.extend(Layout::of(self.module, class));
                self.facts.keepers.extend(methods_that_keep(class));
                if decodes_files(self.module, class) {
                    self.facts.decoders.push(class.name.to_string());
                }
                if let Some(count) = values_of_items(class) {
                    self.facts.items.push((class.name.to_string(), count));
                }
                if [".cuda()", ".to(", "cuda("]
                    .iter()
                    .any(|moves| text.contains(moves))
                {
                    self.facts.movers.push(class.name.to_string());
                }
                let bases = class.arguments.iter().flat_map(|arguments| &arguments.args);
                self.facts
                    .bases
                    .extend(bases.filter_map(|base| {
                        dotted_name(base)?.split('.').next().map(str::to_owned)
                    }));
                let outer = std::mem::replace(&mut self.in_class, true);
                walk_stmt(self, stmt);
                self.in_class = outer;
                return;
            }
            Stmt::FunctionDef(def) => {
                if let Some(saved) = &mut self.saved {
                    saved.clear();
                }
                let text = self.module.slice(def.range());
                if !self.in_class
                    && text.contains("torch.load(")
                    && let Some(place) = returned_checkpoint(self.module, def)
                {
                    self.facts.checkpoints.push((def.name.to_string(), place));
                }
                if !self.in_class && gives_one_of(def, &self.facts.decoders) {
                    self.facts.decoders.push(def.name.to_string());
                }
                let of_class = (self.facts.items.iter()).find(|(class, _)| {
                    !self.in_class && gives_one_of(def, std::slice::from_ref(class))
                });
                if let Some((_, count)) = of_class {
                    self.facts.items.push((def.name.to_string(), *count));
                }
                self.facts.gives_state_on_cpu |=
                    def.name.as_str() == "state_dict" && text.contains(".cpu()");
                if !self.in_class && runs_backward(text) {
                    self.facts.backward_functions.push(def.name.to_string());
                }
                if self.in_class {
                    let facts = Method {
                        decides: decides_on_gradients(self.module, def),
                        settles: settles_gradients(self.module.slice(def.range())),
                        runs: runs_a_layer(def),
                        trains: self.module.slice(def.range()).contains(".backward("),
                    };
                    // What subclasses have to define says nothing.
                    if !is_stub(def) || facts.decides {
                        self.facts.methods.push((def.name.to_string(), facts));
                    }
                    self.bodies.push(def.range());
                } else {
                    self.facts.functions.insert(def.name.to_string());
                }
                let outer = (self.in_class, self.quiet);
                let caller = std::mem::replace(&mut self.caller, def.name.to_string());
                let given = def.parameters.iter();
                let given = given.map(|each| each.name().to_string()).collect();
                let parameters = std::mem::replace(&mut self.parameters, given);
                self.in_class = false;
                self.quiet |= def
                    .decorator_list
                    .iter()
                    .any(|each| self.is_quiet(&each.expression));
                walk_stmt(self, stmt);
                (self.in_class, self.quiet) = outer;
                self.caller = caller;
                self.parameters = parameters;
                return;
            }
            Stmt::Assign(assign) => {
                let value = self.saved.is_some().then(|| self.saved(&assign.value));
                match (&mut self.saved, value, &*assign.targets) {
                    (Some(names), Some(value), [Expr::Name(name)]) => {
                        names.insert(name.id.to_string(), value);
                    }
                    // `state[key] = value.cpu()`
                    (Some(names), _, [Expr::Subscript(item)])
                        if self.module.slice(&*assign.value).ends_with(".cpu()") =>
                    {
                        if let Expr::Name(name) = &*item.value {
                            names.insert(name.id.to_string(), Saved::OnCpu);
                        }
                    }
                    _ => {}
                }
            }
            // `torch.set_grad_enabled(False)` holds until the function ends, or it is called again.
            Stmt::Expr(only) => {
                if let Expr::Call(call) = &*only.value
                    && last_name(&call.func) == Some("set_grad_enabled")
                {
                    self.quiet = matches!(
                        call.arguments.find_positional(0),
                        Some(Expr::BooleanLiteral(flag)) if !flag.value
                    );
                }
            }
            Stmt::With(node) => {
                let outer = self.quiet;
                self.quiet |= node
                    .items
                    .iter()
                    .any(|item| self.is_quiet(&item.context_expr));
                walk_stmt(self, stmt);
                self.quiet = outer;
                return;
            }
            _ => {}
        }
        walk_stmt(self, stmt);
    }
}

/// `model.eval()`, `model.train()`: no function that evaluates or trains.
fn switches_mode(call: &ExprCall) -> bool {
    call.arguments.is_empty()
        && matches!(&*call.func, Expr::Attribute(method) if matches!(method.attr.as_str(), "eval" | "train")
            && last_name(&method.value) != Some("self"))
}

/// `optimizer.step()` calls no `step` of the project, which a tracker or an environment may have.
fn steps_an_optimizer(call: &ExprCall) -> bool {
    matches!(&*call.func, Expr::Attribute(method) if method.attr.as_str() == "step"
    && last_name(&method.value).is_some_and(|name| {
        let name = name.to_ascii_lowercase();
        ["opt", "sched", "scaler"].iter().any(|word| name.contains(word))
    }))
}

/// `p.grad.detach_()`: views of buckets do not allow it.
fn detaches_gradient(call: &ExprCall) -> bool {
    matches!(&*call.func, Expr::Attribute(method)
        if method.attr.as_str() == "detach_" && last_name(&method.value) == Some("grad"))
}

/// Whether a method's decorators or body turn gradients off or on, or cut the graph.
fn decides_on_gradients(module: &Module<'_>, def: &StmtFunctionDef) -> bool {
    let text = module.slice(def.range());
    DECIDES.iter().any(|word| text.contains(word))
}

/// Whether a text runs backward, or asks for gradients.
fn runs_backward(text: &str) -> bool {
    ["autograd.grad(", ".backward("]
        .iter()
        .any(|call| text.contains(call))
}

/// Whether the `forward` of a class runs backward, itself or through a method of its object.
fn runs_backward_in_forward(module: &Module<'_>, class: &StmtClassDef) -> bool {
    if !runs_backward(module.slice(class.range())) {
        return false;
    }
    let methods = || class.body.iter().filter_map(Stmt::as_function_def_stmt);
    let mut forwards = methods().filter(|def| def.name.as_str() == "forward");
    forwards.any(|forward| {
        let text = module.slice(forward.range());
        runs_backward(text)
            || methods().any(|def| {
                text.contains(&format!("self.{}(", def.name.as_str()))
                    && runs_backward(module.slice(def.range()))
            })
    })
}

/// Whether a text turns gradients off or on, runs backward, or hands results out one by one.
pub(crate) fn settles_gradients(text: &str) -> bool {
    let mut words = DECIDES.iter().filter(|word| **word != "detach(");
    words.any(|word| text.contains(word))
}

/// Whether a method does nothing yet.
pub(crate) fn is_stub(def: &StmtFunctionDef) -> bool {
    def.body.iter().all(|stmt| match stmt {
        Stmt::Pass(_) | Stmt::Raise(_) => true,
        Stmt::Expr(node) => node.value.is_literal_expr(),
        _ => false,
    })
}

/// Whether a class of data reads and decodes a file for each item, rather than all of them when it is made.
pub(crate) fn decodes_files(module: &Module<'_>, class: &StmtClassDef) -> bool {
    const DECODES: &[&str] = &[
        "Image.open(",
        "imread(",
        "librosa.load(",
        "torchaudio.load(",
        "sf.read(",
        "soundfile.read(",
        "nib.load(",
        "nibabel.load(",
        "read_image(",
        "VideoCapture(",
        "dcmread(",
        "ReadImage(",
        "pil_loader(",
        "default_loader(",
        "VideoReader(",
        "imageio.read",
    ];
    let decodes = |def: &StmtFunctionDef| {
        DECODES
            .iter()
            .any(|call| module.slice(def.range()).contains(call))
    };
    // `loadImage(path)`, a function of the file
    let helpers: Vec<String> = (module.body().iter().filter_map(Stmt::as_function_def_stmt))
        .filter(|def| decodes(def))
        .map(|def| format!("{}(", def.name))
        .collect();
    // `class Office(ImageFolder)`
    let of_folder = class
        .bases()
        .iter()
        .any(|base| matches!(last_name(base), Some("ImageFolder" | "DatasetFolder")));
    let methods = || class.body.iter().filter_map(Stmt::as_function_def_stmt);
    let each = methods().find(|def| def.name.as_str() == "__getitem__");
    let Some(each) = each.map(|def| module.slice(def.range())) else {
        return of_folder;
    };
    let made_at_once = |def: &&StmtFunctionDef| def.name.as_str() == "__init__";
    !methods().filter(made_at_once).any(decodes)
        && (methods().filter(|def| !made_at_once(def)).any(decodes) || helpers.iter().any(|helper| each.contains(helper.as_str())))
        // Workers cannot work on the GPU as the main process does.
        && !(each.contains(".cuda(") || each.contains(".to(") && each.contains("device"))
}

/// The methods of a class that add their first parameter to an attribute, or append it to one, as it is.
fn methods_that_keep(class: &StmtClassDef) -> impl Iterator<Item = String> {
    let methods = class.body.iter().filter_map(Stmt::as_function_def_stmt);
    let keeps = |def: &&StmtFunctionDef| {
        let given = def.parameters.iter_non_variadic_params().nth(1);
        given.is_some_and(|each| keeps::adds_to_itself(&def.body, each.parameter.name.as_str()))
    };
    methods
        .filter(keeps)
        .map(|def| format!("{}.{}", class.name, def.name))
}

/// The place in what a function returns of a checkpoint that it reads to the GPU, and fills a model with. All that it returns has it, but
/// for what returns nothing.
fn returned_checkpoint(module: &Module<'_>, def: &StmtFunctionDef) -> Option<Returned> {
    #[derive(Default)]
    struct Find<'a> {
        bound: Vec<(&'a str, &'a Expr)>,
        returned: Vec<&'a Expr>,
    }
    impl<'a> Visitor<'a> for Find<'a> {
        fn visit_stmt(&mut self, stmt: &'a Stmt) {
            match stmt {
                Stmt::Assign(assign) => {
                    if let [Expr::Name(name)] = &*assign.targets {
                        self.bound.push((name.id.as_str(), &assign.value));
                    }
                }
                Stmt::Return(node) => self.returned.extend(node.value.as_deref()),
                _ => {}
            }
            walk_stmt(self, stmt);
        }
    }
    let mut find = Find::default();
    for stmt in &def.body {
        find.visit_stmt(stmt);
    }
    let (name, load) = find.bound.iter().find_map(|(name, value)| match value {
        Expr::Call(call) if dotted_name(&call.func).as_deref() == Some("torch.load") => {
            Some((*name, call))
        }
        _ => None,
    })?;
    // Without a location, it goes to where it was saved from, which a project says elsewhere.
    let location = load.arguments.find_argument_value("map_location", 1)?;
    let location = module.slice(location.range()).to_ascii_lowercase();
    let on_gpu =
        (location.contains("device") || location.contains("cuda")) && !location.contains("cpu");
    let is_bound_once = find
        .bound
        .iter()
        .filter(|(other, _)| *other == name)
        .count()
        == 1;
    let is_it = |expr: &Expr| matches!(expr, Expr::Name(each) if each.id.as_str() == name);
    let place_of = |value: &&Expr| match value {
        Expr::Tuple(tuple) => tuple.elts.iter().position(is_it).map(Returned::InTuple),
        value => is_it(value).then_some(Returned::Alone),
    };
    let mut places = find
        .returned
        .iter()
        .filter(|value| !value.is_none_literal_expr())
        .map(place_of);
    let first = places.next()??;
    let fills = module.slice(def.range()).contains(".load_state_dict(");
    (on_gpu && is_bound_once && fills && places.all(|place| place == Some(first))).then_some(first)
}

/// How many values an item of a class of data has, if all that `__getitem__` returns are tuples of one length.
fn values_of_items(class: &StmtClassDef) -> Option<usize> {
    struct Find(Vec<Option<usize>>);
    impl<'a> Visitor<'a> for Find {
        fn visit_stmt(&mut self, stmt: &'a Stmt) {
            match stmt {
                Stmt::Return(node) => self.0.push(match node.value.as_deref() {
                    Some(Expr::Tuple(tuple)) if !tuple.elts.iter().any(Expr::is_starred_expr) => {
                        Some(tuple.elts.len())
                    }
                    _ => None,
                }),
                Stmt::FunctionDef(_) | Stmt::ClassDef(_) => {}
                other => walk_stmt(self, other),
            }
        }
    }
    let get = class.body.iter().find_map(|stmt| match stmt {
        Stmt::FunctionDef(def) if def.name.as_str() == "__getitem__" => Some(def),
        _ => None,
    })?;
    let mut find = Find(Vec::new());
    for stmt in &get.body {
        find.visit_stmt(stmt);
    }
    let first = *find.0.first()?;
    find.0
        .iter()
        .all(|count| *count == first)
        .then_some(first)?
}

/// Whether a function returns an object of one of these classes.
fn gives_one_of(def: &StmtFunctionDef, classes: &[String]) -> bool {
    let makes = |value: &Expr| matches!(value, Expr::Call(call) if last_name(&call.func).is_some_and(|name| classes.iter().any(|class| class == name)));
    let is_bound = |name: &str| {
        def.body.iter().any(|stmt| {
            matches!(stmt, Stmt::Assign(assign) if makes(&assign.value)
                && matches!(&*assign.targets, [Expr::Name(target)] if target.id.as_str() == name))
        })
    };
    def.body.iter().any(|stmt| match stmt {
        Stmt::Return(node) => node.value.as_deref().is_some_and(|value| {
            makes(value) || matches!(value, Expr::Name(name) if is_bound(name.id.as_str()))
        }),
        _ => false,
    })
}

/// Whether a method calls an attribute of its object on something that has a name: `self.encoder(x)`.
fn runs_a_layer(def: &StmtFunctionDef) -> bool {
    struct Find(bool);
    impl<'a> Visitor<'a> for Find {
        fn visit_expr(&mut self, expr: &'a Expr) {
            if let Expr::Call(call) = expr {
                self.0 |= dotted_name(&call.func).is_some_and(|name| name.starts_with("self."))
                    && call.arguments.args.first().is_some_and(|arg| {
                        !arg.is_literal_expr() && !oomph_python_source::names_in(arg).is_empty()
                    });
            }
            walk_expr(self, expr);
        }
    }
    let mut find = Find(false);
    for stmt in &def.body {
        find.visit_stmt(stmt);
    }
    find.0
}

/// The files of one or more projects, and how they are connected.
#[derive(Debug, Default)]
pub struct Project {
    files: Vec<Arc<OfFile>>,
}

#[derive(Clone, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts that have nothing to do with each other"
)]
struct OfFile {
    used_on_gpu: bool,
    is_imported: bool,
    inherits_device: bool,
    moves_near: bool,
    /// Names of what it calls.
    calls: Arc<FxHashSet<String>>,
    /// Functions of its own that it calls while gradients are off.
    own_quiet_calls: FxHashSet<String>,
    part: Arc<Part>,
    torch_names: Vec<(String, String)>,
    /// What nothing runs in it.
    unreached: Unreached,
}

/// What the files that imports connect say together.
#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts that have nothing to do with each other"
)]
struct Part {
    saves: bool,
    saves_from_cpu: bool,
    evidence: Evidence,
    detaches_gradients: bool,
    trains: bool,
    frozen: FxHashSet<String>,
    movers: FxHashSet<String>,
    trainers: FxHashSet<String>,
    backward_functions: FxHashSet<String>,
    decoders: FxHashSet<String>,
    keepers: FxHashSet<String>,
    checkpoints: FxHashMap<String, Returned>,
    /// Nothing where two of one name differ.
    items: FxHashMap<String, Option<usize>>,
    language_models: FxHashSet<String>,
    sizes: FxHashMap<String, Option<Size>>,
    /// How many files call what has a name.
    callers: FxHashMap<String, usize>,
    methods: FxHashMap<String, Method>,
    quiet_calls: FxHashSet<String>,
    /// Those of them that are not only called in the file that has them.
    shared_quiet_calls: FxHashSet<String>,
    loud_calls: FxHashMap<String, FxHashSet<String>>,
    runs_given_quietly: bool,
    /// Functions of its files, in no class.
    functions: FxHashSet<String>,
}

impl Part {
    /// What is only called by functions that are only called with gradients off is called with gradients off as well.
    fn spread_quiet(&mut self) {
        // What nobody calls by its name may be what somebody is given and runs with gradients off.
        if self.runs_given_quietly {
            for name in std::mem::take(&mut self.functions) {
                if !self.callers.contains_key(&name) {
                    self.shared_quiet_calls.insert(name.clone());
                    self.quiet_calls.insert(name);
                }
            }
        }
        for _ in 0..MAX_QUIET_CALLERS {
            let spread: Vec<String> = self
                .loud_calls
                .iter()
                .filter(|(name, callers)| {
                    !self.quiet_calls.contains(*name)
                        && callers.iter().all(|caller| {
                            self.quiet_calls.contains(caller)
                                && !self.loud_calls.contains_key(caller)
                        })
                })
                .map(|(name, _)| name.clone())
                .collect();
            if spread.is_empty() {
                break;
            }
            for name in spread {
                self.loud_calls.remove(&name);
                self.shared_quiet_calls.insert(name.clone());
                self.quiet_calls.insert(name);
            }
        }
        self.loud_calls = FxHashMap::default();
    }
}

impl Project {
    /// Connects files by their imports. A path is as the linter was given it. `is_there` answers whether a module or
    /// a folder lies beside these files, by its path without an extension: one that git ignores, or that is compiled.
    pub fn new(files: &[(PathBuf, FileFacts)], is_there: &dyn Fn(&Path) -> bool) -> Self {
        let by_path: FxHashMap<PathBuf, usize> = files
            .iter()
            .enumerate()
            .map(|(index, (path, _))| (module_path(path), index))
            .collect();
        let mut importers: Vec<Vec<usize>> = vec![Vec::new(); files.len()];
        let mut imported: Vec<Vec<usize>> = vec![Vec::new(); files.len()];
        let mut parents: Vec<usize> = (0..files.len()).collect();
        for (from, (path, facts)) in files.iter().enumerate() {
            let folder = path.parent().unwrap_or(Path::new(""));
            for (level, parts) in &facts.imports {
                let Some(to) = resolve(&by_path, folder, *level, parts) else {
                    continue;
                };
                importers[to].push(from);
                imported[from].push(to);
                let (a, b) = (root(&mut parents, from), root(&mut parents, to));
                parents[a] = b;
            }
        }
        let mut by_root: FxHashMap<usize, Part> = FxHashMap::default();
        let mut from_cpu: FxHashSet<usize> = FxHashSet::default();
        let mut calls: Vec<Arc<FxHashSet<String>>> = Vec::with_capacity(files.len());
        for (index, (_, facts)) in files.iter().enumerate() {
            let root = root(&mut parents, index);
            let part = by_root.entry(root).or_default();
            part.saves |= facts.saves;
            part.evidence |= facts.evidence;
            part.detaches_gradients |= facts.detaches_gradients;
            part.trains |= facts.trains;
            part.runs_given_quietly |= facts.runs_given_quietly;
            part.functions.extend(facts.functions.iter().cloned());
            part.frozen.extend(facts.frozen.iter().cloned());
            part.movers.extend(facts.movers.iter().cloned());
            part.trainers.extend(facts.trainers.iter().cloned());
            part.backward_functions
                .extend(facts.backward_functions.iter().cloned());
            part.decoders.extend(facts.decoders.iter().cloned());
            part.keepers.extend(facts.keepers.iter().cloned());
            part.checkpoints.extend(facts.checkpoints.iter().cloned());
            for (name, count) in &facts.items {
                let known = part.items.entry(name.clone()).or_insert(Some(*count));
                *known = known.filter(|known| known == count);
            }
            part.language_models
                .extend(facts.language_models.iter().cloned());
            let called: FxHashSet<String> = facts
                .quiet_calls
                .iter()
                .chain(facts.loud_calls.iter().map(|(_, name)| name))
                .cloned()
                .collect();
            for name in &called {
                *part.callers.entry(name.clone()).or_default() += 1;
            }
            calls.push(Arc::new(called));
            if facts.saves_from_cpu {
                from_cpu.insert(root);
            }
            part.quiet_calls.extend(facts.quiet_calls.iter().cloned());
            let shared = facts
                .quiet_calls
                .iter()
                .filter(|name| !facts.own_quiet_calls.contains(*name));
            part.shared_quiet_calls.extend(shared.cloned());
            for (caller, name) in &facts.loud_calls {
                part.loud_calls
                    .entry(name.clone())
                    .or_default()
                    .insert(caller.clone());
            }
            for (name, method) in &facts.methods {
                let known = part.methods.entry(name.clone()).or_insert(Method {
                    runs: true,
                    ..Method::default()
                });
                known.decides |= method.decides;
                known.settles |= method.settles;
                known.trains |= method.trains;
                known.runs &= method.runs;
            }
        }
        let says: Vec<reach::File<'_>> = files
            .iter()
            .map(|(path, facts)| reach::File {
                path,
                says: &facts.definitions,
            })
            .collect();
        let unreached = reach::unreached(&says, &by_path, is_there);
        for (index, (_, facts)) in files.iter().enumerate() {
            let part = by_root.entry(root(&mut parents, index)).or_default();
            sizes::add(&mut part.sizes, &facts.layouts, &unreached[index].constants);
        }
        let by_root: FxHashMap<usize, Arc<Part>> = by_root
            .into_iter()
            .map(|(root, mut part)| {
                part.spread_quiet();
                // Weights that are trained on the CPU are saved from there.
                let Evidence {
                    accelerator,
                    device,
                    ..
                } = part.evidence;
                part.saves_from_cpu = from_cpu.contains(&root);
                part.saves &= !part.saves_from_cpu && (accelerator || device);
                (root, Arc::new(part))
            })
            .collect();
        let of_files = unreached
            .into_iter()
            .enumerate()
            .map(|(index, unreached)| {
                Arc::new(OfFile {
                    unreached,
                    is_imported: !importers[index].is_empty(),
                    used_on_gpu: reaches(&importers, index, |file| {
                        files[file].1.evidence.accelerator
                    }) || inherits_a_device(files, &by_path, index),
                    inherits_device: inherits_a_device(files, &by_path, index),
                    moves_near: reaches(&importers, index, |file| files[file].1.evidence.moves)
                        || imported[index]
                            .iter()
                            .any(|file| files[*file].1.evidence.moves),
                    calls: Arc::clone(&calls[index]),
                    own_quiet_calls: files[index].1.own_quiet_calls.clone(),
                    torch_names: star_names(files, &by_path, index),
                    part: by_root
                        .get(&root(&mut parents, index))
                        .cloned()
                        .unwrap_or_default(),
                })
            })
            .collect();
        Self { files: of_files }
    }

    /// What the others say about the file at an index of [`Project::new`].
    pub fn around(&self, index: usize) -> Around {
        self.files
            .get(index)
            .map_or_else(Around::default, |file| Around {
                file: Some(Arc::clone(file)),
                ..Around::default()
            })
    }
}

/// What the other files of the project say about one file. By default nothing is known of others.
#[derive(Clone, Debug, Default)]
pub struct Around {
    file: Option<Arc<OfFile>>,
    /// The others are not read yet: what was asked so far, and the answers that were given.
    assumed: Option<Arc<Assumed>>,
    /// The newest PyTorch that the project allows.
    torch: Option<Newest>,
}

/// What is taken for granted of a project that is not read yet.
#[derive(Debug)]
struct Assumed {
    /// Of the file itself.
    evidence: Evidence,
    asked: Mutex<Assumptions>,
}

impl Assumed {
    fn usual(&self, question: Question) -> Answer {
        Answer::Is(match question {
            Question::Constant
            | Question::Method
            | Question::Size
            | Question::ValuesOfItems
            | Question::ReturnsCheckpoint => {
                return Answer::Nothing;
            }
            Question::IsImported
            | Question::MovesNear
            | Question::UsedOnGpu
            | Question::Trains
            | Question::Saves => true,
            Question::ChoosesCpu => self.evidence.chooses_cpu && !self.evidence.accelerator,
            Question::BatchesOnCpu => self.evidence.leaves_batches(),
            _ => false,
        })
    }
}

/// A question about the other files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Question {
    UsedOnGpu,
    InheritsDevice,
    MovesNear,
    BringsNames,
    Saves,
    ChoosesCpu,
    IsCalledElsewhere,
    IsUnreached,
    Constant,
    IsDead,
    FreezesItself,
    MovesItself,
    TrainsItself,
    DecodesFiles,
    Keeps,
    IsLanguageModel,
    ReturnsCheckpoint,
    ValuesOfItems,
    Size,
    RunsBackward,
    IsImported,
    SavesFromCpu,
    Trains,
    BatchesOnCpu,
    DetachesGradients,
    CallsQuietly,
    Method,
}

/// What the other files say.
#[derive(Clone, Debug, PartialEq)]
enum Answer {
    Method(Method),
    Nothing,
    Is(bool),
    Constant(Constant),
    Size(Size),
    Returned(Returned),
    Count(usize),
}

/// The answers that a look at one file took for granted before the others were read: whether they hold decides
/// whether what it found holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Assumptions(FxHashMap<(Question, Box<str>), Answer>);

impl Assumptions {
    pub(crate) fn hold(&self, around: &Around) -> bool {
        self.0
            .iter()
            .all(|((question, name), answer)| around.known(*question, name) == *answer)
    }
}

impl Around {
    /// Of a file whose project is not read yet. What the rules ask is answered by what the file says itself and by what
    /// is usual, and kept.
    pub(crate) fn assumed(own: &FileFacts) -> Self {
        let mut asked = Assumptions::default();
        if !own.stars.is_empty() {
            let key = (Question::BringsNames, Box::default());
            asked.0.insert(key, Answer::Is(false));
        }
        let assumed = Assumed {
            evidence: own.evidence,
            asked: Mutex::new(asked),
        };
        Self {
            assumed: Some(Arc::new(assumed)),
            ..Self::default()
        }
    }

    /// What was asked.
    pub(crate) fn assumptions(self) -> Assumptions {
        let asked = self.assumed.map(|asked| {
            let mut asked = asked.asked.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *asked)
        });
        asked.unwrap_or_default()
    }

    /// Of a file that was named by itself: files that were not read may call what is in it.
    #[must_use]
    pub fn called_by_others(mut self) -> Self {
        if let Some(file) = &mut self.file {
            Arc::make_mut(file).unreached = Unreached::default();
        }
        self
    }

    /// Of a file whose project allows no newer PyTorch than this.
    #[must_use]
    pub fn for_torch(mut self, newest: Option<Newest>) -> Self {
        self.torch = newest;
        self
    }

    /// Whether the project may run this PyTorch or a newer one.
    pub(crate) fn may_run(&self, torch: Newest) -> bool {
        self.torch.is_none_or(|newest| newest >= torch)
    }

    /// What the file itself says about where it computes, if that was read already.
    pub(crate) fn own_evidence(&self) -> Option<Evidence> {
        self.assumed.as_ref().map(|assumed| assumed.evidence)
    }

    fn ask(&self, question: Question, name: &str) -> Answer {
        let Some(assumed) = &self.assumed else {
            return self.known(question, name);
        };
        let answer = assumed.usual(question);
        let mut asked = assumed.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.0.insert((question, name.into()), answer.clone());
        answer
    }

    fn is(&self, question: Question, name: &str) -> bool {
        self.ask(question, name) == Answer::Is(true)
    }

    /// What the files that were read say.
    fn known(&self, question: Question, name: &str) -> Answer {
        let Some(file) = &self.file else {
            return match question {
                Question::Constant
                | Question::Method
                | Question::Size
                | Question::ReturnsCheckpoint
                | Question::ValuesOfItems
                | Question::BatchesOnCpu => Answer::Nothing,
                _ => Answer::Is(false),
            };
        };
        let part = &file.part;
        Answer::Is(match question {
            Question::UsedOnGpu => file.used_on_gpu,
            Question::InheritsDevice => file.inherits_device,
            Question::MovesNear => file.moves_near,
            Question::BringsNames => !file.torch_names.is_empty(),
            Question::Saves => part.saves,
            Question::ChoosesCpu => part.evidence.chooses_cpu && !part.evidence.accelerator,
            Question::IsCalledElsewhere => {
                let here = usize::from(file.calls.contains(name));
                part.callers.get(name).copied().unwrap_or_default() > here
            }
            Question::IsUnreached => file.unreached.names.contains(name),
            Question::FreezesItself => part.frozen.contains(name),
            Question::MovesItself => part.movers.contains(name),
            Question::TrainsItself => part.trainers.contains(name),
            Question::DecodesFiles => part.decoders.contains(name),
            Question::Keeps => part.keepers.contains(name),
            Question::IsLanguageModel => part.language_models.contains(name),
            Question::ReturnsCheckpoint => {
                let place = part.checkpoints.get(name).copied();
                return place.map_or(Answer::Nothing, Answer::Returned);
            }
            Question::ValuesOfItems => {
                let count = part.items.get(name).copied().flatten();
                return count.map_or(Answer::Nothing, Answer::Count);
            }
            Question::Size => {
                let size = part.sizes.get(name).copied().flatten();
                return size.map_or(Answer::Nothing, Answer::Size);
            }
            Question::RunsBackward => {
                part.backward_functions.contains(name)
                    || part.methods.get(name).is_some_and(|method| method.trains)
            }
            Question::IsImported => file.is_imported,
            Question::SavesFromCpu => part.saves_from_cpu,
            Question::Trains => part.trains,
            Question::BatchesOnCpu => part.evidence.leaves_batches(),
            Question::DetachesGradients => part.detaches_gradients,
            Question::CallsQuietly => {
                file.own_quiet_calls.contains(name) || part.shared_quiet_calls.contains(name)
            }
            Question::Constant => {
                let constant = file.unreached.constants.get(name).cloned();
                return constant.map_or(Answer::Nothing, Answer::Constant);
            }
            Question::IsDead => name
                .parse::<u32>()
                .is_ok_and(|at| file.unreached.is_dead(TextSize::from(at))),
            Question::Method => match part.methods.get(name) {
                Some(method) => return Answer::Method(*method),
                None => return Answer::Nothing,
            },
        })
    }

    /// A file that imports this one, directly or not, works on a GPU.
    pub(crate) fn used_on_gpu(&self) -> bool {
        self.is(Question::UsedOnGpu, "")
    }

    /// A class of the file is made from one of a file that works on a device.
    pub(crate) fn inherits_device(&self) -> bool {
        self.is(Question::InheritsDevice, "")
    }

    /// A file that imports this one, directly or not, or that it imports itself, puts something on a device.
    pub(crate) fn moves_near(&self) -> bool {
        self.is(Question::MovesNear, "")
    }

    /// PyTorch's names that `import *` of a file of the project brings in.
    pub(crate) fn torch_names(&self) -> &[(String, String)] {
        self.file.as_ref().map_or(&[], |file| &file.torch_names)
    }

    /// Whether a file of the project saves weights as they are, and none moves them to the CPU before.
    pub(crate) fn saves(&self) -> bool {
        self.is(Question::Saves, "")
    }

    /// Whether a file of the project moves the weights that it saves to the CPU before.
    pub(crate) fn saves_from_cpu(&self) -> bool {
        self.is(Question::SavesFromCpu, "")
    }

    /// Whether a file of the project names the CPU as its device, and none names a GPU.
    pub(crate) fn chooses_cpu(&self) -> bool {
        self.is(Question::ChoosesCpu, "")
    }

    /// Whether another file than this one may call what has this name.
    pub(crate) fn is_called_elsewhere(&self, name: &str) -> bool {
        self.is(Question::IsCalledElsewhere, name)
    }

    /// Whether nothing in the project runs what has this name in the file: `f`, `Class.method`, `Class`. Without a
    /// project, somebody may.
    pub(crate) fn is_unreached(&self, name: &str) -> bool {
        self.is(Question::IsUnreached, name)
    }

    /// What a name stands for that the file imports, if it is bound once, to a literal: `RESUME`, `settings.RESUME`.
    pub(crate) fn constant(&self, name: &str) -> Option<Constant> {
        match self.ask(Question::Constant, name) {
            Answer::Constant(constant) => Some(constant),
            _ => None,
        }
    }

    /// Whether a place follows a line at which the file, or the function that it is in, stops.
    pub(crate) fn is_dead(&self, at: TextSize) -> bool {
        self.is(Question::IsDead, &at.to_u32().to_string())
    }

    /// Whether a class of the project that has this name turns off gradients of its own parameters.
    pub(crate) fn freezes_itself(&self, class: &str) -> bool {
        self.is(Question::FreezesItself, class)
    }

    /// Whether objects of a class of this name move what they are made of, in some file of the project.
    pub(crate) fn moves_itself(&self, class: &str) -> bool {
        self.is(Question::MovesItself, class)
    }

    /// Whether a class of data of the project that has this name decodes a file for each item.
    pub(crate) fn decodes_files(&self, class: &str) -> bool {
        self.is(Question::DecodesFiles, class)
    }

    /// Whether a method of the project, `Class.method`, adds what it is given to an attribute as it is.
    pub(crate) fn keeps(&self, method: &str) -> bool {
        self.is(Question::Keeps, method)
    }

    /// Whether a class of the project that has this name has a layer for a vocabulary.
    pub(crate) fn is_language_model(&self, class: &str) -> bool {
        self.is(Question::IsLanguageModel, class)
    }

    /// Whether a function of the project that has this name returns a checkpoint that it reads to the GPU, and fills a model with: the
    /// place in the tuple that it returns, if it returns one.
    pub(crate) fn returns_checkpoint(&self, function: &str) -> Option<Returned> {
        match self.ask(Question::ReturnsCheckpoint, function) {
            Answer::Returned(place) => Some(place),
            _ => None,
        }
    }

    /// How many values an item has of what a class or function of the project that has this name makes.
    pub(crate) fn values_of_items(&self, name: &str) -> Option<usize> {
        match self.ask(Question::ValuesOfItems, name) {
            Answer::Count(count) => Some(count),
            _ => None,
        }
    }

    /// How large objects of a class of the project are at most that has this name, if all of them are known.
    pub(crate) fn size(&self, class: &str) -> Option<Size> {
        match self.ask(Question::Size, class) {
            Answer::Size(size) => Some(size),
            _ => None,
        }
    }

    /// Whether a class of the project that has this name runs backward, or asks for gradients, in its `forward`.
    pub(crate) fn trains_itself(&self, class: &str) -> bool {
        self.is(Question::TrainsItself, class)
    }

    /// Whether another file of the project imports this one.
    pub(crate) fn is_imported(&self) -> bool {
        self.is(Question::IsImported, "")
    }

    /// Whether a function or a method of the project that has this name runs backward, or asks for gradients.
    pub(crate) fn runs_backward(&self, name: &str) -> bool {
        self.is(Question::RunsBackward, name)
    }

    /// Whether a file of the project runs backward.
    pub(crate) fn trains(&self) -> bool {
        self.is(Question::Trains, "")
    }

    /// Whether an iterator of the project makes batches on the CPU, and no loop moves them. Nothing is known
    /// without a project.
    pub(crate) fn batches_on_cpu(&self) -> Option<bool> {
        match self.ask(Question::BatchesOnCpu, "") {
            Answer::Is(on_cpu) => Some(on_cpu),
            _ => None,
        }
    }

    /// Whether a file of the project calls `detach_()` on gradients.
    pub(crate) fn detaches_gradients(&self) -> bool {
        self.is(Question::DetachesGradients, "")
    }

    /// Whether a file of the project calls what has this name while gradients are off.
    pub(crate) fn calls_quietly(&self, name: &str) -> bool {
        self.is(Question::CallsQuietly, name)
    }

    /// What the project's classes say of a method: nothing if none of them has it.
    pub(crate) fn method(&self, name: &str) -> Option<Method> {
        match self.ask(Question::Method, name) {
            Answer::Method(method) => Some(method),
            _ => None,
        }
    }
}

/// The names of PyTorch that the files have which `import *` names, and those that they name themselves.
fn star_names(
    files: &[(PathBuf, FileFacts)],
    by_path: &FxHashMap<PathBuf, usize>,
    index: usize,
) -> Vec<(String, String)> {
    let mut seen: FxHashSet<usize> = FxHashSet::default();
    let mut names = Vec::new();
    let mut next = vec![index];
    while let Some(file) = next.pop() {
        if !seen.insert(file) {
            continue;
        }
        let (path, facts) = &files[file];
        if file != index {
            names.extend(facts.torch_names.iter().cloned());
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        next.extend(facts.stars.iter().filter_map(|star| {
            let (level, parts) = &facts.imports[*star];
            resolve(by_path, folder, *level, parts)
        }));
    }
    names
}

/// Whether a class of the file is made, through others or not, from one of another file that works on a device: that
/// moves the model.
fn inherits_a_device(
    files: &[(PathBuf, FileFacts)],
    by_path: &FxHashMap<PathBuf, usize>,
    index: usize,
) -> bool {
    let mut seen: FxHashSet<usize> = FxHashSet::default();
    let mut next = vec![index];
    while let Some(file) = next.pop() {
        if !seen.insert(file) {
            continue;
        }
        let (path, facts) = &files[file];
        let evidence = facts.evidence;
        if file != index && (evidence.accelerator || evidence.device && !evidence.chooses_cpu) {
            return true;
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        let bases = facts
            .imports
            .iter()
            .zip(&facts.bound)
            .filter(|(_, bound)| facts.bases.contains(bound));
        next.extend(
            bases.filter_map(|((level, parts), _)| resolve(by_path, folder, *level, parts)),
        );
    }
    false
}

/// Whether a file that can be reached from one along such edges is of a kind.
fn reaches(edges: &[Vec<usize>], index: usize, is_it: impl Fn(usize) -> bool) -> bool {
    let mut seen: FxHashSet<usize> = FxHashSet::default();
    let mut next = edges[index].clone();
    while let Some(file) = next.pop() {
        if !seen.insert(file) {
            continue;
        }
        if is_it(file) {
            return true;
        }
        next.extend(&edges[file]);
    }
    false
}

/// The root of a file's set.
pub(crate) fn root(parents: &mut [usize], mut file: usize) -> usize {
    while parents[file] != file {
        parents[file] = parents[parents[file]];
        file = parents[file];
    }
    file
}

/// `a/b` of `a/b.py` and of `a/b/__init__.py`.
fn module_path(path: &Path) -> PathBuf {
    let path: PathBuf = path
        .components()
        .filter(|part| !matches!(part, Component::CurDir))
        .collect();
    let stem = path.with_extension("");
    if path.extension().is_none_or(|extension| extension != "py") {
        // A notebook or a script without an extension: nothing imports it.
        return path;
    }
    match (stem.file_name(), stem.parent()) {
        (Some(name), Some(folder)) if name == "__init__" => folder.to_path_buf(),
        _ => stem,
    }
}

/// The file that an import names.
fn resolve(
    index: &FxHashMap<PathBuf, usize>,
    folder: &Path,
    level: u32,
    parts: &[String],
) -> Option<usize> {
    find(index, folder, level, parts, false).map(|(file, _)| file)
}

/// The file that an import names, and how many of its parts name that: the nearest one, from the folder of the
/// importing file upwards. All parts name it if `whole`: what follows them is a star.
pub(crate) fn find(
    index: &FxHashMap<PathBuf, usize>,
    folder: &Path,
    level: u32,
    parts: &[String],
    whole: bool,
) -> Option<(usize, usize)> {
    let folder: PathBuf = folder
        .components()
        .filter(|part| !matches!(part, Component::CurDir))
        .collect();
    let relative = level > 0;
    let skipped = (level as usize).saturating_sub(1);
    let folders = folder.ancestors().skip(skipped);
    let count = if relative { 1 } else { MAX_FOLDERS };
    for folder in folders.take(count) {
        // `from package.module import name`: the name may be a module itself, or what a package has.
        let least = usize::from(!relative);
        let ends = || (least..=parts.len()).rev().take(if whole { 1 } else { 2 });
        // Scripts beside `src` that is installed, or on `sys.path`, name what is in it.
        let sources = (!relative).then(|| folder.join("src"));
        for root in std::iter::once(folder).chain(sources.as_deref()) {
            for end in ends() {
                let mut path = root.to_path_buf();
                path.extend(&parts[..end]);
                if let Some(found) = index.get(&path) {
                    return Some((*found, end));
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn project(files: &[(&str, &str)]) -> Project {
        let facts: Vec<(PathBuf, FileFacts)> = files
            .iter()
            .map(|(path, code)| {
                let source = Source::python((*code).to_string()).unwrap_or_else(|_| unreachable!());
                (PathBuf::from(path), FileFacts::of(&source))
            })
            .collect();
        Project::new(&facts, &|_| false)
    }

    #[test]
    fn a_file_works_on_a_gpu_if_one_that_imports_it_does() {
        let project = project(&[
            ("./job/steps.py", "import torch\ndef step(x): return x\n"),
            ("./job/loop.py", "import torch\nfrom steps import step\n"),
            (
                "./job/main.py",
                "import torch\nimport loop\nx = torch.ones(1).cuda()\n",
            ),
            ("./other/steps.py", "import torch\n"),
        ]);
        assert!(project.around(0).used_on_gpu());
        assert!(project.around(1).used_on_gpu());
        assert!(!project.around(3).used_on_gpu());
    }

    #[test]
    fn who_saves_is_found_through_a_common_module() {
        let project = project(&[
            ("a/nets/net.py", "import torch\n"),
            (
                "a/train.py",
                "import torch\nfrom nets.net import Net\ntorch.save(Net().cuda().state_dict(), 'w')\n",
            ),
            ("a/tools/test.py", "import torch\nfrom nets import net\n"),
            ("b/test.py", "import torch\nfrom nets import net\n"),
            (
                "c/train.py",
                "import torch\nfrom .m import f\ntorch.save(f().cpu().state_dict(), 'w')\n",
            ),
            ("c/m.py", "import torch\n"),
        ]);
        assert!(project.around(2).saves());
        assert!(!project.around(3).saves());
        assert!(!project.around(5).saves());
    }

    #[test]
    fn who_is_called_and_what_has_gradients_is_known_for_all_files() {
        let project = project(&[
            (
                "nets.py",
                "import torch\nfrom torch import nn\n\
                 class Frozen(nn.Module):\n    def __init__(self, net):\n        super().__init__()\n        self.net = net\n        self.net.requires_grad_(False)\n\
                 class Histogram(nn.Module):\n    def __init__(self, bins):\n        super().__init__()\n        self.bins = bins\n\
                 class Wrapped(nn.Module):\n    def __init__(self, model):\n        super().__init__()\n        self.model = model\n\
                 class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.layers = nn.Linear(1, 1)\n\
                 def measure(x): return Net()(x)\ndef unused(x): return Net()(x)\n",
            ),
            (
                "train.py",
                "import torch\nfrom nets import Net, measure\nmeasure(torch.ones(1)).backward()\n",
            ),
        ]);
        let around = project.around(0);
        assert!(!around.is_unreached("measure"));
        assert!(around.is_unreached("unused"));
        assert!(around.trains());
        assert!(around.freezes_itself("Frozen"));
        assert!(around.freezes_itself("Histogram"));
        assert!(!around.freezes_itself("Wrapped"));
        assert!(!around.freezes_itself("Net"));
    }

    #[test]
    fn a_method_that_turns_gradients_off_in_one_class_decides() {
        let project = project(&[
            (
                "net.py",
                "import torch\nclass A:\n    def sample(self, x): return self.net(x)\n    @torch.no_grad()\n    def draw(self): pass\n",
            ),
            ("use.py", "import torch\nimport net\n"),
        ]);
        assert_eq!(
            project.around(1).method("sample"),
            Some(Method {
                runs: true,
                ..Method::default()
            })
        );
        assert_eq!(
            project.around(1).method("draw"),
            Some(Method {
                decides: true,
                settles: true,
                ..Method::default()
            })
        );
        assert_eq!(project.around(1).method("other"), None);
    }

    #[test]
    fn what_subclasses_have_to_define_says_nothing_of_a_method() {
        let base = "class Base:\n    def score(self, x):\n        \"Of a state.\"\n        raise NotImplementedError\n";
        let net = format!(
            "import torch\n{base}class Net(Base):\n    def score(self, x): return self.net(x)\n"
        );
        let project = project(&[("net.py", &net), ("use.py", "import torch\nimport net\n")]);
        let method = project.around(1).method("score");
        assert!(method.is_some_and(|method| method.runs));
    }

    #[test]
    fn the_device_of_a_configuration_holds_in_the_files_that_import_it() {
        let project = project(&[
            ("a/settings.py", "import torch\nTRAIN = {'device': 'cpu'}\n"),
            ("a/train.py", "import torch\nimport settings\n"),
            ("b/settings.py", "import torch\nTRAIN = {'device': 'cpu'}\n"),
            (
                "b/train.py",
                "import torch\nimport settings\nx = torch.ones(1).cuda()\n",
            ),
            // The second line puts the CPU in the place of what the first one chose.
            (
                "c/main.py",
                "import torch\nimport agent\nargs.device = 'cuda'\nargs.device = 'cpu'\n",
            ),
            ("c/agent.py", "import torch\n"),
            (
                "d/main.py",
                "import torch\nimport agent\nargs.device = 'cpu'\nargs.device = 'cuda'\n",
            ),
            ("d/agent.py", "import torch\n"),
        ]);
        assert!(project.around(1).chooses_cpu());
        assert!(!project.around(3).chooses_cpu());
        assert!(project.around(5).chooses_cpu() && !project.around(5).used_on_gpu());
        assert!(!project.around(7).chooses_cpu() && project.around(7).used_on_gpu());
    }

    #[test]
    fn batches_of_an_iterator_stay_on_the_cpu_until_a_loop_moves_them() {
        let main =
            "import torch\nimport train\nbatches = Iterator(data, device=-1)\nnet = Net().cuda()\n";
        let project = project(&[
            ("a/main.py", main),
            (
                "a/train.py",
                "import torch\nfor batch in batches:\n    net(batch.text)\n",
            ),
            ("b/main.py", main),
            (
                "b/train.py",
                "import torch\nfor batch in batches:\n    net(batch.text.cuda())\n",
            ),
        ]);
        assert_eq!(project.around(1).batches_on_cpu(), Some(true));
        assert_eq!(project.around(3).batches_on_cpu(), Some(false));
    }

    #[test]
    fn a_class_works_where_the_class_that_it_is_made_from_does() {
        let project = project(&[
            (
                "base.py",
                "import torch\nclass Base:\n    def make(self): return net.to(self.opts.device)\n",
            ),
            (
                "tests.py",
                "import torch\nfrom base import Base\nclass Test(Base): pass\n",
            ),
            ("other.py", "import torch\nfrom base import Base\nBase()\n"),
            (
                "more.py",
                "import torch\nfrom tests import Test\nclass More(Test): pass\n",
            ),
        ]);
        assert!(project.around(1).used_on_gpu());
        assert!(project.around(3).used_on_gpu());
        assert!(!project.around(2).used_on_gpu());
    }

    #[test]
    fn who_detaches_gradients_is_found_through_imports() {
        let project = project(&[
            ("loop.py", "import torch\nimport half\n"),
            (
                "half.py",
                "import torch\ndef clear(ps):\n    for p in ps:\n        p.grad.detach_()\n",
            ),
            ("other.py", "import torch\nx.detach_()\n"),
        ]);
        assert!(project.around(0).detaches_gradients());
        assert!(!project.around(2).detaches_gradients());
    }

    #[test]
    fn gradients_are_off_where_every_caller_turned_them_off() {
        let project = project(&[
            (
                "main.py",
                "import torch\nimport steps\ndef work():\n    torch.set_grad_enabled(False)\n    steps.score()\n\ndef other():\n    steps.both()\nsteps.loud()\n",
            ),
            (
                "steps.py",
                "import torch\nimport nets\noptimizer.step()\ndef step():\n    nets.track()\n\ndef score():\n    step()\n\n    nets.encode()\n    nets.both()\n\ndef loud():\n    nets.both()\n",
            ),
            ("nets.py", "import torch\ndef encode(): pass\n"),
        ]);
        let nets = project.around(2);
        assert!(nets.calls_quietly("score") && nets.calls_quietly("encode"));
        assert!(nets.calls_quietly("track"));
        assert!(!nets.calls_quietly("both") && !nets.calls_quietly("loud"));
    }

    #[test]
    fn weights_that_were_trained_on_the_cpu_do_not_count_as_saved() {
        let project = project(&[
            (
                "train.py",
                "import torch\ntorch.save(net.state_dict(), 'w')\n",
            ),
            ("test.py", "import torch\nimport train\n"),
        ]);
        assert!(!project.around(1).saves());
    }
}
