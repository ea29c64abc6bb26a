//! The user's script, parsed, and where in it the changes go: its imports, its model, its optimizer.

use oomph_python_source::ast::{Expr, ExprCall, Stmt, StmtFunctionDef};
use oomph_python_source::{
    Assignment, Imports, Module, Ranged, assignments_in, calls_in, classes_in, dotted_name,
    functions_in, imports_of, last_name, statements_in,
};

use crate::by_hand::training::Training;

/// The call that makes the optimizer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Optimizer<'m> {
    /// The variable.
    pub(crate) name: &'m str,
    /// The model's variable, where its parameters are told.
    pub(crate) model: Option<&'m str>,
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

    /// The optimizer, if there is one.
    pub(crate) fn optimizer(&self) -> Option<Optimizer<'m>> {
        only(self.optimizers.iter().copied())
    }

    /// The variables of optimizer and model in the function that trains.
    pub(crate) fn variables(&self) -> Option<(&'m str, &'m str)> {
        let first = self.optimizers.first()?;
        let alike = |one: &Optimizer<'_>| (one.name, one.model) == (first.name, first.model);
        Some((
            first.name,
            first.model.filter(|_| self.optimizers.iter().all(alike))?,
        ))
    }

    /// The variable of the model that the plan's modules are of, and the statement before which it is
    /// complete: the one that makes its optimizer.
    pub(crate) fn model(&self) -> Option<(&'m str, &'m Stmt)> {
        let optimizers = self.optimizers.iter();
        let found = only(optimizers.filter(|one| self.may_be_of(one)))?;
        Some((found.model?, found.stmt))
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
        let mut found: Vec<Optimizer<'m>> = assignments
            .filter_map(|one| self.as_optimizer(one))
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
    fn as_optimizer(&self, assignment: Assignment<'m>) -> Option<Optimizer<'m>> {
        const CLASSES: [&str; 7] = [
            "Adam",
            "SGD",
            "RMSprop",
            "Adagrad",
            "Adafactor",
            "Lion",
            "Muon",
        ];
        let name = assignment.target.as_name_expr()?.id.as_str();
        let call = assignment.value.as_call_expr()?;
        let function = last_name(&call.func)?;
        let class = CLASSES.iter().any(|known| function.starts_with(known));
        let model = if class {
            let inside = calls_in(std::slice::from_ref(assignment.stmt)).into_iter();
            let inside = inside.filter(|call| {
                last_name(&call.func).is_some_and(|name| name.ends_with("parameters"))
            });
            // An attribute of something is not what modules are named after.
            let mut models: Vec<_> = inside.map(|call| receiver(call)).collect();
            models.dedup();
            only(models).flatten()
        } else if function == "configure_optimizers" {
            Some(receiver(call)?)
        } else {
            return None;
        };
        Some(Optimizer {
            name,
            model,
            stmt: assignment.stmt,
            call,
            class,
            function: self.function(assignment.stmt),
        })
    }

    /// Whether an optimizer's model is of the class that the plan's modules are of, by the script.
    fn is_known_to_be_of(&self, optimizer: &Optimizer<'_>) -> bool {
        let [root] = self.known.roots.as_slice() else {
            return false;
        };
        let classes = optimizer
            .model
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
        let Some(model) = optimizer.model else {
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
        let is_here = |one: &Assignment<'m>| {
            one.target
                .as_name_expr()
                .is_some_and(|target| target.id.as_str() == name)
                && self.function(one.stmt).map(Ranged::range) == function.map(Ranged::range)
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
        let class = full.strip_prefix("torch.nn.")?.rsplit('.').next()?;
        Some(class.to_owned())
    }
}

/// The one of several candidates, if it is the only one.
pub(crate) fn only<T>(candidates: impl IntoIterator<Item = T>) -> Option<T> {
    let mut candidates = candidates.into_iter();
    candidates.next().filter(|_| candidates.next().is_none())
}

/// The variable whose method is called.
pub(crate) fn receiver(call: &ExprCall) -> Option<&str> {
    let method = call.func.as_attribute_expr()?;
    Some(method.value.as_name_expr()?.id.as_str())
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
