//! The user's script, parsed, and where in it the changes go: its imports, its model, its optimizer.

use oomph_python_source::ast::{Expr, ExprCall, Stmt, StmtClassDef, StmtFunctionDef};
use oomph_python_source::{
    Assignment, Imports, Module, Ranged, assignments_in, calls_in, classes_in, dotted_name,
    functions_in, imports_of, last_name, statements_in,
};

use crate::by_hand::training::Training;

/// The call that makes the optimizer.
#[derive(Debug, Clone)]
pub(crate) struct Optimizer<'m> {
    /// The variable, or `self.optimizer`; `None` where a function returns what it makes.
    pub(crate) name: Option<String>,
    /// The model's variable, or `self.model`, where its parameters are told.
    pub(crate) model: Option<String>,
    /// The statement.
    pub(crate) stmt: &'m Stmt,
    /// The call.
    pub(crate) call: &'m ExprCall,
    /// Whether the call is that of its class, whose arguments are known.
    pub(crate) class: bool,
    /// The function that makes it, if one does.
    function: Option<&'m StmtFunctionDef>,
}

/// What is known of the job beside its script.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known {
    /// Offsets of lines that ran, at their first character; empty where no run told.
    pub(crate) ran: Vec<usize>,
    /// The classes of the models that the plan's modules are of.
    pub(crate) roots: Vec<String>,
}

/// A script; what is not found, or not told from others like it, is `None`.
#[derive(Debug)]
pub(crate) struct Script<'m> {
    pub(crate) module: &'m Module<'m>,
    known: &'m Known,
    imports: Imports,
    /// The first import of torch or of what stands on it.
    pub(crate) torch: Option<&'m Stmt>,
    /// The last import at the top.
    pub(crate) last_import: Option<&'m Stmt>,
    /// The optimizers of the function that trains.
    optimizers: Vec<Optimizer<'m>>,
    /// The loop over batches.
    pub(crate) training: Option<Training<'m>>,
}

impl<'m> Script<'m> {
    pub(crate) fn new(module: &'m Module<'m>, known: &'m Known) -> Self {
        let imports = || module.body().iter().filter(|stmt| is_import(stmt));
        let mut script = Self {
            module,
            known,
            imports: module.imports(),
            torch: imports().find(|stmt| {
                let known = ["torch", "torchvision", "transformers", "lightning", "timm"];
                let mut names = imports_of(stmt).into_iter();
                names.any(|one| {
                    known
                        .iter()
                        .any(|&root| one.module.split('.').next() == Some(root))
                })
            }),
            last_import: imports().next_back(),
            optimizers: Vec::new(),
            training: None,
        };
        script.optimizers = script.find_optimizers();
        script.training = Training::find(&script);
        script
    }

    /// Whether the script has `torch` by that name.
    pub(crate) fn has_torch(&self) -> bool {
        let mut names = self.module.body().iter().flat_map(imports_of);
        names.any(|import| import.bound == "torch" && import.full == "torch")
    }

    /// The calls of classes that make the optimizers, all in one function.
    pub(crate) fn optimizer_classes(&self) -> Option<Vec<&'m ExprCall>> {
        let first = self.optimizers.first()?.function.map(Ranged::range);
        let is_beside = |one: &Optimizer<'_>| one.function.map(Ranged::range) == first;
        let all = self.optimizers.iter();
        all.map(|one| (one.class && is_beside(one)).then_some(one.call))
            .collect()
    }

    /// The optimizer, if there is one.
    pub(crate) fn optimizer(&self) -> Option<Optimizer<'m>> {
        only(self.optimizers.iter().cloned())
    }

    /// What the model is called by in the function around `node`, where all optimizers are of one.
    pub(crate) fn model_in(&self, node: impl Ranged) -> Option<String> {
        let first = self.optimizers.first();
        let alike = |one: &Optimizer<'_>| first.is_some_and(|first| one.model == first.model);
        let (model, made) = match first {
            Some(first) if self.optimizers.iter().all(alike) => {
                (first.model.clone()?, first.function)
            }
            Some(_) => return None,
            None => self
                .trainer()
                .map(|(model, stmt)| (model, self.function(stmt)))?,
        };
        if model.contains('.') {
            return Some(model);
        }
        let is_in = |function: Option<&StmtFunctionDef>, other: Option<&StmtFunctionDef>| {
            function.map(Ranged::range) == other.map(Ranged::range)
        };
        let here = self.function(node);
        // It and what the function that makes the optimizer gets it as.
        let mut known = vec![(model.clone(), made)];
        known.extend(self.given_as(made, |given, name| (name == model).then(|| given.clone())));
        if let Some((name, _)) = known.iter().find(|(_, function)| is_in(*function, here)) {
            return Some(name.clone());
        }
        let passed = self.given_as(here, |given, name| {
            known
                .iter()
                .any(|(name, _)| name == given)
                .then(|| name.to_owned())
        });
        Some(passed.into_iter().next().map_or(model, |(name, _)| name))
    }

    /// What the calls of a function give it by name, and in which functions those are: of the name given and that of the
    /// parameter, `choose` makes one.
    fn given_as(
        &self,
        function: Option<&'m StmtFunctionDef>,
        choose: impl Fn(&String, &str) -> Option<String>,
    ) -> Vec<(String, Option<&'m StmtFunctionDef>)> {
        let mut found = Vec::new();
        let parameters = function.into_iter().flat_map(|function| {
            function
                .parameters
                .iter_non_variadic_params()
                .enumerate()
                .map(move |one| (function, one))
        });
        for (function, (at, parameter)) in parameters {
            let name = parameter.name().as_str();
            for call in calls_in(self.module.body()) {
                if last_name(&call.func) == Some(function.name.as_str())
                    && let Some(given) = call.arguments.find_argument_value(name, at)
                    && let Some(chosen) = dotted_name(given).and_then(|given| choose(&given, name))
                {
                    found.push((chosen, self.function(call)));
                }
            }
        }
        found
    }

    /// The variable of the model that the plan's modules are of, and the statement before which it is
    /// complete: the one that makes its optimizer, or a trainer.
    pub(crate) fn model(&self) -> Option<(String, &'m Stmt)> {
        if self.optimizers.is_empty() {
            return self.trainer().or_else(|| self.made_once());
        }
        let optimizers = self.optimizers.iter();
        if let Some(found) = only(optimizers.filter(|one| self.may_be_of(one))) {
            return Some((found.model.clone()?, found.stmt));
        }
        self.attribute().or_else(|| self.made_once())
    }

    /// The optimizer is of all that an object has; the plan's modules are of one of its attributes.
    fn attribute(&self) -> Option<(String, &'m Stmt)> {
        let found = only(&self.optimizers)?;
        let whole = found.model.as_deref().filter(|model| *model == "self")?;
        let [root] = self.known.roots.as_slice() else {
            return None;
        };
        let own = self.class(found.stmt)?;
        let made = assignments_in(&own.body).into_iter();
        let made = made.filter(|one| self.class_made(one.value).as_ref() == Some(root));
        let attribute = only(made.filter_map(|one| dotted_name(one.target)))?;
        attribute
            .strip_prefix(whole)
            .is_some_and(|rest| rest.starts_with('.'))
            .then_some((attribute, found.stmt))
    }

    /// The one variable that what the plan's modules are of is made for, as in `model = Net().cuda()`, and the statement after that.
    fn made_once(&self) -> Option<(String, &'m Stmt)> {
        let [root] = self.known.roots.as_slice() else {
            return None;
        };
        // An optimizer that is of another model may tell that this one is not trained.
        if self.optimizers.iter().any(|one| one.model.is_some()) {
            return None;
        }
        let made = assignments_in(self.module.body()).into_iter();
        let made = made.filter(|one| {
            self.class_made(one.value).as_ref() == Some(root)
                && !methods(one.value).contains(&"eval")
                && self.ran_around(one.stmt)
        });
        let made = only(made)?;
        let name = made.target.as_name_expr()?.id.to_string();
        let block = self.module.block_of(made.stmt)?;
        let at = block
            .iter()
            .position(|stmt| stmt.range() == made.stmt.range())?;
        Some((name, block.get(at + 1)?))
    }

    /// The model's variable in `Trainer(model=model, …)`, and its statement.
    fn trainer(&self) -> Option<(String, &'m Stmt)> {
        let calls = calls_in(self.module.body()).into_iter();
        let found = calls.filter_map(|call| {
            last_name(&call.func).filter(|name| name.ends_with("Trainer"))?;
            let model = dotted_name(call.arguments.find_argument_value("model", 0)?)?;
            let stmt = *self.module.statements_around(call.start()).last()?;
            self.ran_around(stmt).then_some((model, stmt))
        });
        only(found)
    }

    /// Whether the function around a node ran, where a run told.
    fn ran_around(&self, node: impl Ranged) -> bool {
        self.function(node)
            .is_none_or(|function| self.ran(function))
    }

    /// The class around a node.
    fn class(&self, node: impl Ranged) -> Option<&'m StmtClassDef> {
        let around = self.module.statements_around(node.start());
        around
            .iter()
            .rev()
            .find_map(|stmt| stmt.as_class_def_stmt())
    }

    /// Whether an offset's node ran, where a run told.
    pub(crate) fn ran(&self, node: impl Ranged) -> bool {
        let range = node.start().to_usize()..node.end().to_usize();
        self.known.ran.is_empty() || self.known.ran.iter().any(|at| range.contains(at))
    }

    /// The innermost function around a node.
    pub(crate) fn function(&self, node: impl Ranged) -> Option<&'m StmtFunctionDef> {
        let around = self.module.statements_around(node.start());
        around
            .iter()
            .rev()
            .find_map(|stmt| stmt.as_function_def_stmt())
    }

    /// Whether a node is in the function that makes the optimizer.
    pub(crate) fn is_beside_the_optimizer(&self, node: impl Ranged) -> bool {
        let function = self.function(node).map(Ranged::range);
        self.optimizers
            .iter()
            .any(|one| one.function.map(Ranged::range) == function)
    }

    /// The line of a node, from 1.
    pub(crate) fn line(&self, node: impl Ranged) -> usize {
        self.module.line_of(node.start())
    }

    /// The line of the first call of a function with one of these names, whatever it is of unless the
    /// name says so.
    pub(crate) fn call(&self, names: &[&str]) -> Option<usize> {
        let mut calls = calls_in(self.module.body()).into_iter();
        let is_meant = |call: &&ExprCall| {
            let full = dotted_name(&call.func);
            names
                .iter()
                .any(|&name| last_name(&call.func) == Some(name) || full.as_deref() == Some(name))
        };
        calls.find(is_meant).map(|call| self.line(call))
    }

    /// The line that makes the optimizer.
    pub(crate) fn optimizer_line(&self) -> Option<usize> {
        let mut calls = calls_in(self.module.body()).into_iter();
        let made = self.optimizers.first().map(|one| self.line(one.stmt));
        let of_torch = || {
            let name = |call: &&ExprCall| self.imports.full_name(&call.func);
            let found =
                calls.find(|call| name(call).is_some_and(|name| name.starts_with("torch.optim.")));
            found.map(|call| self.line(call))
        };
        made.or_else(of_torch).or_else(|| self.call(&["Trainer"]))
    }

    /// The line of the training loop that calls the model.
    pub(crate) fn forward_line(&self) -> Option<usize> {
        Some(self.line(self.training.as_ref()?.forward()))
    }

    /// The same, or else one that trains.
    pub(crate) fn training_line(&self) -> Option<usize> {
        self.forward_line()
            .or_else(|| self.call(&["backward", "Trainer"]))
    }

    /// The line before which the model has been made.
    pub(crate) fn model_line(&self) -> Option<usize> {
        let made = self.model().map(|(_, stmt)| self.line(stmt));
        made.or_else(|| self.call(&["Trainer"]))
    }

    /// The line that begins an evaluation: `model.eval()` by itself, or else the first call of a model
    /// that is made as `Model().eval()`.
    pub(crate) fn evaluation_line(&self) -> Option<usize> {
        let is_eval = |expr: &Expr| {
            expr.as_call_expr()
                .is_some_and(|call| last_name(&call.func) == Some("eval"))
        };
        let statements = statements_in(self.module.body());
        let alone = statements
            .iter()
            .find(|stmt| stmt.as_expr_stmt().is_some_and(|stmt| is_eval(&stmt.value)));
        if let Some(stmt) = alone {
            return Some(self.line(*stmt));
        }
        let made = assignments_in(self.module.body())
            .into_iter()
            .filter(|one| is_eval(one.value));
        let models: Vec<String> = made.filter_map(|one| dotted_name(one.target)).collect();
        let mut calls = calls_in(self.module.body()).into_iter();
        let called =
            calls.find(|call| dotted_name(&call.func).is_some_and(|name| models.contains(&name)));
        called
            .map(|call| self.line(call))
            .or_else(|| self.call(&["eval"]))
    }

    /// The optimizers; of several functions, those of the one that ran, or else of the one whose model
    /// the plan is about.
    fn find_optimizers(&self) -> Vec<Optimizer<'m>> {
        let assignments = assignments_in(self.module.body()).into_iter();
        let assigned = assignments.map(|one| (Some(one.target), one.value, one.stmt));
        let returned = statements_in(self.module.body())
            .into_iter()
            .filter_map(|stmt| Some((None, stmt.as_return_stmt()?.value.as_deref()?, stmt)));
        let mut found: Vec<Optimizer<'m>> = assigned
            .chain(returned)
            .filter_map(|(target, value, stmt)| self.as_optimizer(target, value, stmt))
            .collect();
        if found.len() > 1 {
            found.retain(|one| one.function.is_none_or(|function| self.ran(function)));
        }
        let meant = found
            .iter()
            .filter(|one| self.is_known_to_be_of(one))
            .map(|one| one.function.map(Ranged::range));
        let meant: Vec<_> = meant.collect();
        if let [first, rest @ ..] = &meant[..]
            && rest.iter().all(|other| other == first)
        {
            found.retain(|one| one.function.map(Ranged::range) == *first);
        }
        found
    }

    /// `optimizer = torch.optim.AdamW(model.parameters(), …)`; a model may also make its optimizer
    /// itself, by `configure_optimizers`.
    fn as_optimizer(
        &self,
        target: Option<&'m Expr>,
        value: &'m Expr,
        stmt: &'m Stmt,
    ) -> Option<Optimizer<'m>> {
        const CLASSES: [&str; 7] = [
            "Adam",
            "SGD",
            "RMSprop",
            "Adagrad",
            "Adafactor",
            "Lion",
            "Muon",
        ];
        let name = match target {
            Some(target) => Some(dotted_name(target)?),
            None => None,
        };
        let call = value.as_call_expr()?;
        let function = last_name(&call.func)?;
        let of_torch = || {
            let full = self.imports.full_name(&call.func);
            let class = full.and_then(|full| Some(full.strip_prefix("torch.optim.")?.to_owned()));
            class.is_some_and(|class| class.starts_with(char::is_uppercase))
        };
        let class = CLASSES.iter().any(|known| function.starts_with(known)) || of_torch();
        let model = if class {
            let inside = calls_in(std::slice::from_ref(stmt)).into_iter();
            let inside = inside.filter(|call| {
                last_name(&call.func).is_some_and(|name| name.ends_with("parameters"))
            });
            let mut models: Vec<_> = inside.map(owner).collect();
            models.dedup();
            only(models).flatten()
        } else if function == "configure_optimizers" && name.is_some() {
            Some(owner(call)?)
        } else {
            return None;
        };
        Some(Optimizer {
            name,
            model,
            stmt,
            call,
            class,
            function: self.function(stmt),
        })
    }

    /// Whether an optimizer's model is of the class that the plan's modules are of, by the script.
    fn is_known_to_be_of(&self, optimizer: &Optimizer<'_>) -> bool {
        let [root] = self.known.roots.as_slice() else {
            return false;
        };
        let classes = optimizer
            .model
            .as_deref()
            .map(|model| self.classes(model, optimizer.function, 0));
        classes.is_some_and(|classes| classes.contains(root))
    }

    /// Whether nothing speaks against an optimizer's model being what the plan's modules are of: it is
    /// no other class, and no other variable holds one of that class.
    fn may_be_of(&self, optimizer: &Optimizer<'_>) -> bool {
        let root = match self.known.roots.as_slice() {
            [] => return true,
            [root] => root,
            _ => return false,
        };
        let Some(model) = optimizer.model.as_deref() else {
            return false;
        };
        let classes = self.classes(model, optimizer.function, 0);
        let is_known = !classes.is_empty();
        let made = assignments_in(self.module.body()).into_iter();
        let mut others = made.filter(|one| {
            one.target
                .as_name_expr()
                .is_some_and(|name| name.id.as_str() != model)
                && self
                    .function(one.stmt)
                    .is_none_or(|function| self.ran(function))
        });
        let rivals = others.any(|one| match self.class_made(one.value) {
            Some(class) => class == *root && !self.is_passed_as(one.target, model),
            // A second model of a class that is not told, such as a teacher.
            None => !is_known && methods(one.value).contains(&"eval"),
        });
        !rivals && (!is_known || classes.contains(root))
    }

    /// The classes of what a variable of a function holds, as far as the script tells: of what is
    /// assigned to it, or of what the function is called with.
    fn classes(
        &self,
        name: &str,
        function: Option<&'m StmtFunctionDef>,
        depth: u32,
    ) -> Vec<String> {
        const MAX_DEPTH: u32 = 3;
        let class = function.and_then(|function| self.class(function));
        if name == "self" {
            return class
                .map(|class| class.name.to_string())
                .into_iter()
                .collect();
        }
        // An attribute is the same in all methods.
        let place = |node: &'m Stmt| match name.split_once('.') {
            Some(_) => self.class(node).map(Ranged::range),
            None => self.function(node).map(Ranged::range),
        };
        let wanted = match name.split_once('.') {
            Some(_) => class.map(Ranged::range),
            None => function.map(Ranged::range),
        };
        let is_here = |one: &Assignment<'m>| {
            dotted_name(one.target).as_deref() == Some(name) && place(one.stmt) == wanted
        };
        let assigned = assignments_in(self.module.body())
            .into_iter()
            .filter(is_here);
        let mut found: Vec<String> = assigned
            .filter_map(|one| self.class_made(one.value))
            .collect();
        let Some(function) = function.filter(|_| depth < MAX_DEPTH && found.is_empty()) else {
            return found;
        };
        let mut parameters = function.parameters.iter_non_variadic_params();
        let Some(at) = parameters.position(|one| one.name().as_str() == name) else {
            return self.classes(name, None, MAX_DEPTH);
        };
        for call in calls_in(self.module.body()) {
            if last_name(&call.func) == Some(function.name.as_str())
                && let Some(given) = call.arguments.find_argument_value(name, at)
                && let Some(given) = given.as_name_expr()
            {
                found.extend(self.classes(&given.id, self.function(call), depth + 1));
            }
        }
        found
    }

    /// Whether a variable is what some function gets as its parameter `name`.
    fn is_passed_as(&self, variable: &Expr, name: &str) -> bool {
        let variable = dotted_name(variable);
        functions_in(self.module.body())
            .into_iter()
            .any(|function| {
                let mut parameters = function.parameters.iter_non_variadic_params();
                let at = parameters.position(|one| one.name().as_str() == name);
                let mut calls = calls_in(self.module.body()).into_iter();
                at.is_some_and(|at| {
                    calls.any(|call| {
                        last_name(&call.func) == Some(function.name.as_str())
                            && (call.arguments.find_argument_value(name, at)).and_then(dotted_name)
                                == variable
                    })
                })
            })
    }

    /// The class of `Net()`, `Net().cuda()` and `nn.Sequential()`; what a function makes is not told.
    fn class_made(&self, value: &Expr) -> Option<String> {
        let mut call = value.as_call_expr()?;
        while let Some(inner) = made_by(call) {
            call = inner;
        }
        let own = classes_in(self.module.body());
        let name = dotted_name(&call.func)?;
        if own.iter().any(|class| class.name.as_str() == name) {
            return Some(name);
        }
        let full = self.imports.full_name(&call.func)?;
        let full = full.strip_suffix(".from_pretrained").unwrap_or(&full);
        let (_, class) = full.rsplit_once('.')?;
        // `AutoModel` makes others.
        let is_class = class.starts_with(char::is_uppercase) && !class.starts_with("Auto");
        is_class.then(|| class.to_owned())
    }
}

/// The one of several candidates, if it is the only one.
pub(crate) fn only<T>(candidates: impl IntoIterator<Item = T>) -> Option<T> {
    let mut candidates = candidates.into_iter();
    candidates.next().filter(|_| candidates.next().is_none())
}

/// What has the method that is called: `self.model` of `self.model.parameters()`.
fn owner(call: &ExprCall) -> Option<String> {
    dotted_name(&call.func.as_attribute_expr()?.value)
}

/// The call whose result's method is called: `Net()` of `Net().cuda()`.
fn made_by(call: &ExprCall) -> Option<&ExprCall> {
    call.func.as_attribute_expr()?.value.as_call_expr()
}

/// The methods of `made().first().second()`.
fn methods(value: &Expr) -> Vec<&str> {
    let first = value.as_call_expr();
    let calls = std::iter::successors(first, |call| made_by(call));
    calls
        .filter(|call| made_by(call).is_some())
        .filter_map(|call| last_name(&call.func))
        .collect()
}

fn is_import(stmt: &Stmt) -> bool {
    imports_of(stmt)
        .iter()
        .any(|import| import.module != "__future__")
}

/// The first statement before which imports may be added: the first import, or else the first that is
/// neither the script's description nor about Python itself.
pub(crate) fn first_statement<'m>(module: &'m Module<'_>) -> Option<&'m Stmt> {
    let body = module.body();
    let is_text = |stmt: &Stmt| {
        stmt.as_expr_stmt()
            .is_some_and(|stmt| stmt.value.is_string_literal_expr())
    };
    let is_other = |stmt: &&Stmt| !is_text(stmt) && imports_of(stmt).is_empty();
    body.iter()
        .find(|stmt| is_import(stmt))
        .or_else(|| body.iter().find(is_other))
}
