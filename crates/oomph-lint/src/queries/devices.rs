//! Which device a file, a loop or a call works on.

use std::ops::BitOrAssign;

use oomph_python_source::ast::visitor::{Visitor, walk_expr, walk_stmt};
use oomph_python_source::ast::{CmpOp, Expr, ExprAttribute, ExprCall, Stmt, StmtIf, UnaryOp};
use oomph_python_source::{
    Module, Ranged, TextRange, dotted_name, dotted_parts, imports_of, last_name, last_part,
    names_in,
};
use rustc_hash::FxHashSet;

use crate::project::is_stub;
use crate::queries::whereabouts::is_left_on_cpu;
use crate::semantic::value::{Device, Kind};
use crate::semantic::{Bind, Call, FuncId, Loop, Model};

/// Whether the file mentions a GPU.
pub(crate) fn mentions_gpu(model: &Model<'_>) -> bool {
    model.module.text().contains("cuda") || model.module.text().contains("device")
}

/// Whether the file computes on the CPU: nothing in its code points to a GPU, or it names the CPU as its
/// device, and no file that imports it works on a GPU; or its batches are made on the CPU and no loop of the
/// project moves them. Models and batches that nothing moves are on the CPU. Comments, docstrings and
/// questions such as `torch.cuda.is_available()` do not count.
pub(crate) fn on_cpu_only(model: &Model<'_>) -> bool {
    *model.cpu_only.get_or_init(|| {
        let evidence = evidence(model);
        let says_so = || {
            evidence.chooses_cpu
                || model.around.chooses_cpu()
                || model.assigns.iter().any(|assign| {
                    assign.value.device == Device::Cpu
                        && (assign.value.kind == Kind::Device
                            || is_only_device(model, &assign.place))
                })
        };
        // A file that names no device says nothing of its own: what other files move may be other models.
        let moved_by_others = || {
            !model.backwards.is_empty() && has_abstract_methods(model) && model.around.used_on_gpu()
        };
        let names_a_device =
            evidence.accelerator || evidence.device || model.around.inherits_device();
        let names_none = !names_a_device && !moved_by_others();
        let nothing_moves =
            names_none || !evidence.accelerator && says_so() && !model.around.used_on_gpu();
        let batches_stay = model
            .around
            .batches_on_cpu()
            .unwrap_or(evidence.leaves_batches());
        nothing_moves || batches_stay || !(evidence.moves || model.around.moves_near())
    })
}

/// Whether a class of the file leaves methods to those that are made from it, and batches may be moved there.
fn has_abstract_methods(model: &Model<'_>) -> bool {
    model
        .funcs
        .iter()
        .any(|func| func.class.is_some() && is_stub(func.node))
}

/// What the file says about where it computes.
pub(crate) fn evidence(model: &Model<'_>) -> Evidence {
    let read = || Evidence::of(model.module);
    *model
        .evidence
        .get_or_init(|| model.around.own_evidence().unwrap_or_else(read))
}

/// Whether the file, or one that it is connected with, says that it computes on the CPU, and nothing points to a GPU.
pub(crate) fn says_cpu(model: &Model<'_>) -> bool {
    on_cpu_only(model) && (model.around.chooses_cpu() || evidence(model).chooses_cpu)
}

/// Whether a call follows a line, in its block or one around it, that hides all GPUs.
pub(crate) fn follows_hidden_gpus(model: &Model<'_>, call: &Call<'_>) -> bool {
    model.stmts.iter().any(|info| {
        info.node.start() < call.node.start()
            && hides_gpus(info.node)
            && model.is_inside(call.ctx, info.ctx)
    })
}

/// Whether a place is called a device, and is the CPU wherever it is bound: `self.found.device = "cpu"`.
fn is_only_device(model: &Model<'_>, place: &str) -> bool {
    last_part(place).to_ascii_lowercase().ends_with("device")
        && model
            .assigns
            .iter()
            .filter(|assign| assign.place == place)
            .all(|assign| assign.value.device == Device::Cpu)
}

/// What the names, strings and calls of a file, or of several, say about where they compute.
#[derive(Clone, Copy, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts that have nothing to do with each other"
)]
pub(crate) struct Evidence {
    /// An accelerator by its name, or a library that moves models and batches by itself.
    pub(crate) accelerator: bool,
    /// Some device, whichever it is.
    pub(crate) device: bool,
    /// Something is put on a device: `x.cuda()`, `x.to(device)`, `make(device=device)`, or by a library.
    pub(crate) moves: bool,
    /// The CPU is the device of a configuration, or an option's default: `{"device": "cpu"}`.
    pub(crate) chooses_cpu: bool,
    /// An iterator makes batches on the CPU: `BucketIterator(…, device=-1)` of torchtext.
    batches_on_cpu: bool,
    /// A loop moves something: `x.cuda()`, `x.to(device)`.
    moves_in_loops: bool,
}

impl Evidence {
    pub(crate) fn of(module: &Module<'_>) -> Self {
        let mut words = Words {
            text: module.text(),
            off: flags_that_are_off(module),
            seen: FxHashSet::default(),
            in_loop: false,
            found: Self::default(),
        };
        words.visit_body(module.body());
        words.found
    }

    /// Whether batches are made on the CPU and no loop moves them.
    pub(crate) fn leaves_batches(self) -> bool {
        self.batches_on_cpu && !self.moves_in_loops
    }
}

impl BitOrAssign for Evidence {
    fn bitor_assign(&mut self, other: Self) {
        self.accelerator |= other.accelerator;
        self.device |= other.device;
        self.moves |= other.moves;
        self.chooses_cpu |= other.chooses_cpu;
        self.batches_on_cpu |= other.batches_on_cpu;
        self.moves_in_loops |= other.moves_in_loops;
    }
}

/// Reads the evidence of a file.
struct Words<'m> {
    text: &'m str,
    in_loop: bool,
    /// Flags about a GPU that are only ever `False`.
    off: Vec<String>,
    /// Words that were looked at.
    seen: FxHashSet<Box<str>>,
    found: Evidence,
}

impl Words<'_> {
    fn is_off(&self, expr: &Expr) -> bool {
        !self.off.is_empty() && dotted_name(expr).is_some_and(|name| self.off.contains(&name))
    }

    fn word(&mut self, word: &str) {
        const ACCELERATORS: &[&str] = &[
            "cuda",
            "xpu",
            "accelerator",
            "fabric",
            "lightning",
            "deepspeed",
            "apex",
        ];
        const DEVICES: &[&str] = &["device", "gpu", "dataparallel", "prefetch"];
        // Most words come again.
        if self.found.accelerator && self.found.device || self.seen.contains(word) {
            return;
        }
        self.seen.insert(word.into());
        let word = word.to_ascii_lowercase();
        // NVIDIA's library for quantum computers.
        if word.starts_with("cudaq") {
            return;
        }
        self.found.accelerator |= ACCELERATORS.iter().any(|each| word.contains(each))
            || ["mps", "npu", "hpu"]
                .iter()
                .any(|each| word.starts_with(each));
        self.found.device |= DEVICES.iter().any(|each| word.contains(each));
    }

    /// Libraries whose trainers move models and batches: what is imported from them says so.
    fn import(&mut self, full: &str) {
        const MOVES: &[&str] = &[
            "accelerate",
            "fastai",
            "catalyst",
            "skorch",
            "mmengine",
            "mmcv",
            "detectron2",
            "composer",
        ];
        let root = full.split('.').next().unwrap_or(full);
        let trainer =
            last_part(full).ends_with("Trainer") && !matches!(root, "" | "trainer" | "utils");
        self.found.accelerator |= MOVES.contains(&root) || trainer;
        self.found.moves |= MOVES.contains(&root)
            || trainer
            || matches!(
                root,
                "lightning" | "pytorch_lightning" | "deepspeed" | "apex" | "ignite"
            );
        self.word(full);
    }

    /// The parts of a call that say where it computes; `false` if all were looked at.
    fn call(&mut self, call: &ExprCall) -> bool {
        let name = last_name(&call.func).unwrap_or_default();
        self.found.moves_in_loops |= self.in_loop && matches!(name, "cuda" | "to");
        self.found.moves = self.found.moves || puts_on_a_device(call, name);
        // `torch.device("cpu")` says nothing about what else the file uses.
        if name == "device" && call.arguments.find_positional(0).is_some_and(is_cpu) {
            return false;
        }
        // An option is what its name and its default say; its help names all that could be chosen.
        if name == "add_argument" {
            let default = call
                .arguments
                .find_keyword("default")
                .map(|keyword| &keyword.value);
            for arg in &call.arguments.args {
                if let Expr::StringLiteral(text) = arg {
                    let option = text.value.to_str();
                    self.found.chooses_cpu |=
                        option.contains("device") && default.is_some_and(is_cpu);
                    self.word(option);
                }
            }
            if let Some(default) = default
                && !is_cpu(default)
            {
                self.visit_expr(default);
            }
            return false;
        }
        for keyword in &call.arguments.keywords {
            let Some(key) = &keyword.arg else { continue };
            if key.as_str() == "device" && is_cpu(&keyword.value) {
                self.found.batches_on_cpu |=
                    !keyword.value.is_string_literal_expr() && !name.contains("pipeline");
            } else if !self.is_off(&keyword.value) {
                self.word(key.as_str());
            }
        }
        true
    }
}

/// Whether a call puts something on a device.
fn puts_on_a_device(call: &ExprCall, name: &str) -> bool {
    const WORDS: &[&str] = &[
        "to_device",
        "to_cuda",
        "to_gpu",
        "DataParallel",
        "set_default_",
        "prefetch",
        "Prefetch",
        "cuda",
    ];
    let on_device = |value: &Expr| !is_cpu(value) && !value.is_none_literal_expr();
    let device = call.arguments.find_keyword("device");
    name == "to"
        || WORDS.iter().any(|word| name.contains(word))
        || device.is_some_and(|keyword| on_device(&keyword.value))
        // `torch.cuda.FloatTensor(x)`; most of the module asks, or sets a seed.
        || dotted_parts(&call.func).is_some_and(|parts| match &*parts {
            [_, middle @ .., last] => {
                middle.contains(&"cuda")
                    && (last.starts_with(char::is_uppercase)
                        || matches!(
                            *last,
                            "set_device" | "empty_cache" | "synchronize" | "max_memory_allocated"
                        )
                        || middle.contains(&"amp"))
            }
            _ => false,
        })
}

/// The place and the value of a statement that binds a device: `args.device = "cpu"`.
fn binds_device(stmt: &Stmt) -> Option<(String, &Expr)> {
    let Stmt::Assign(assign) = stmt else {
        return None;
    };
    let [target] = &*assign.targets else {
        return None;
    };
    let name = last_name(target)?.to_ascii_lowercase();
    if !name.ends_with("device") {
        return None;
    }
    Some((dotted_name(target)?, &*assign.value))
}

/// Whether the next statement puts the CPU in the place of a device: whatever was chosen is never used.
fn gives_way_to_cpu(stmt: &Stmt, next: &Stmt) -> bool {
    let is_cpu_device = |expr: &Expr| match expr {
        Expr::Call(call) if last_name(&call.func) == Some("device") => {
            call.arguments.find_positional(0).is_some_and(is_cpu)
        }
        other => is_cpu(other),
    };
    binds_device(stmt)
        .zip(binds_device(next))
        .is_some_and(|((place, _), (same, value))| place == same && is_cpu_device(value))
}

/// Whether a statement hides all GPUs: `os.environ["CUDA_VISIBLE_DEVICES"] = ""`.
fn hides_gpus(stmt: &Stmt) -> bool {
    let Stmt::Assign(assign) = stmt else {
        return false;
    };
    let is_text = |expr: &Expr, texts: &[&str]| matches!(expr, Expr::StringLiteral(text) if texts.contains(&text.value.to_str()));
    matches!(&*assign.targets, [Expr::Subscript(item)] if is_text(&item.slice, &["CUDA_VISIBLE_DEVICES"]))
        && is_text(&assign.value, &["", "-1"])
}

/// `"cpu"`, and `-1` where a device is expected.
fn is_cpu(expr: &Expr) -> bool {
    match expr {
        Expr::StringLiteral(text) => text.value.to_str() == "cpu",
        Expr::UnaryOp(node) => node.op == UnaryOp::USub && node.operand.is_number_literal_expr(),
        _ => false,
    }
}

/// What asks about a GPU and moves nothing there: `torch.cuda.is_available()`.
fn only_asks(attribute: &ExprAttribute) -> bool {
    let of_cuda = last_name(&attribute.value) == Some("cuda");
    of_cuda
        && (attribute.attr.as_str().starts_with("manual_seed")
            || matches!(attribute.attr.as_str(), "is_available" | "device_count"))
}

/// The flags about a GPU that a file binds to `False`, and nothing binds to another value: no assignment, no default
/// and no argument.
fn flags_that_are_off(module: &Module<'_>) -> Vec<String> {
    #[derive(Default)]
    struct Flags {
        off: Vec<String>,
        on: Vec<String>,
        /// Functions that take a flag, and those that are called with a positional `True`.
        taken_by: Vec<(String, String)>,
        called_with_true: Vec<String>,
    }
    fn is_flag(name: &str) -> bool {
        // Both words have the letter, most names do not.
        name.contains(['u', 'U']) && {
            let lower = name.to_ascii_lowercase();
            lower.contains("cuda") || lower.contains("gpu")
        }
    }
    impl Flags {
        fn bind(&mut self, name: &str, value: Option<&Expr>) {
            if !is_flag(name) {
                return;
            }
            match value {
                Some(Expr::BooleanLiteral(flag)) if !flag.value => self.off.push(name.to_owned()),
                // Handed on.
                Some(Expr::Name(same)) if same.id.as_str() == name => {}
                _ => self.on.push(name.to_owned()),
            }
        }
    }
    impl<'a> Visitor<'a> for Flags {
        fn visit_stmt(&mut self, stmt: &'a Stmt) {
            match stmt {
                Stmt::Assign(assign) => {
                    for target in &assign.targets {
                        match target {
                            Expr::Name(name) => self.bind(name.id.as_str(), Some(&assign.value)),
                            // Unpacked, or an attribute of the same name: anything.
                            other => {
                                if let Some(place) = dotted_name(other) {
                                    self.bind(&place, Some(&assign.value));
                                }
                                for name in names_in(other) {
                                    self.bind(last_part(&name), None);
                                }
                            }
                        }
                    }
                }
                Stmt::FunctionDef(def) => {
                    for each in def.parameters.iter_non_variadic_params() {
                        let name = each.parameter.name.as_str();
                        if let Some(default) = each.default.as_deref()
                            && !matches!(default, Expr::BooleanLiteral(flag) if !flag.value)
                        {
                            self.bind(name, None);
                        }
                        if is_flag(name) {
                            self.taken_by.push((def.name.to_string(), name.to_owned()));
                        }
                    }
                }
                Stmt::Import(_) | Stmt::ImportFrom(_) => {
                    for import in imports_of(stmt) {
                        self.bind(import.bound, None);
                    }
                }
                Stmt::For(node) => {
                    for name in names_in(&node.target) {
                        self.bind(&name, None);
                    }
                }
                _ => {}
            }
            walk_stmt(self, stmt);
        }

        fn visit_expr(&mut self, expr: &'a Expr) {
            if let Expr::Call(call) = expr {
                for keyword in &call.arguments.keywords {
                    if let Some(name) = &keyword.arg {
                        self.bind(name.as_str(), Some(&keyword.value));
                    }
                }
                let is_true = |arg: &Expr| matches!(arg, Expr::BooleanLiteral(flag) if flag.value);
                if call.arguments.args.iter().any(is_true)
                    && let Some(name) = last_name(&call.func)
                {
                    self.called_with_true.push(name.to_owned());
                }
            }
            walk_expr(self, expr);
        }
    }
    if !module.text().contains("= False") {
        return Vec::new();
    }
    let mut flags = Flags::default();
    for stmt in module.body() {
        flags.visit_stmt(stmt);
    }
    let turned_on: Vec<&str> = flags
        .taken_by
        .iter()
        .filter(|(function, _)| flags.called_with_true.contains(function))
        .map(|(_, name)| name.as_str())
        .collect();
    // Other code may set an attribute as well. `hp.use_cuda = False` holds where a script says it once and for all.
    let is_said_at_the_top = |place: &str| {
        module.body().iter().any(|stmt| match stmt {
            Stmt::Assign(assign) => assign
                .targets
                .iter()
                .any(|target| dotted_name(target).as_deref() == Some(place)),
            _ => false,
        })
    };
    // `cuda = torch.cuda.is_available()`, and a later line or cell: `cuda = False`.
    let is_overruled = |name: &str| {
        let mut said = module.body().iter().filter_map(|stmt| match stmt {
            Stmt::Assign(assign) => assign
                .targets
                .iter()
                .any(|target| dotted_name(target).as_deref() == Some(name))
                .then_some(&*assign.value),
            _ => None,
        });
        let first = said.next();
        let last = said.last();
        first.is_some_and(|value| !value.is_boolean_literal_expr())
            && matches!(last, Some(Expr::BooleanLiteral(flag)) if !flag.value)
            && flags.on.iter().filter(|each| *each == name).count() == 1
    };
    flags
        .off
        .iter()
        .filter(|name| {
            (!flags.on.contains(name) || is_overruled(name)) && !turned_on.contains(&name.as_str())
        })
        .filter(|name| !name.contains('.') || name.starts_with("self.") || is_said_at_the_top(name))
        .cloned()
        .collect()
}

/// Whether a statement names a device that nothing else in the file uses.
fn is_unused_device(stmt: &Stmt, text: &str) -> bool {
    let Stmt::Assign(assign) = stmt else {
        return false;
    };
    let [Expr::Name(target)] = &*assign.targets else {
        return false;
    };
    let Expr::Call(call) = &*assign.value else {
        return false;
    };
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let name = target.id.as_str();
    let uses = text.match_indices(name).filter(|(at, _)| {
        !text[..*at].ends_with(is_word) && !text[at + name.len()..].starts_with(is_word)
    });
    last_name(&call.func) == Some("device") && uses.count() == 1
}

impl<'a> Visitor<'a> for Words<'_> {
    fn visit_body(&mut self, body: &'a [Stmt]) {
        for (index, stmt) in body.iter().enumerate() {
            if body
                .get(index + 1)
                .is_some_and(|next| gives_way_to_cpu(stmt, next))
            {
                self.found.chooses_cpu = true;
            } else {
                self.visit_stmt(stmt);
            }
        }
    }

    fn visit_stmt(&mut self, stmt: &'a Stmt) {
        match stmt {
            _ if hides_gpus(stmt) => {
                self.found.chooses_cpu = true;
                return;
            }
            Stmt::Expr(only) if only.value.is_string_literal_expr() => return,
            _ if is_unused_device(stmt, self.text) => return,
            // `if use_cuda:` where it is only ever `False`: what is in it never runs.
            Stmt::If(branch) if self.is_off(&branch.test) => {
                for clause in &branch.elif_else_clauses {
                    self.visit_elif_else_clause(clause);
                }
                return;
            }
            Stmt::Import(_) | Stmt::ImportFrom(_) => {
                for import in imports_of(stmt) {
                    self.import(&import.full);
                }
            }
            Stmt::FunctionDef(def) => {
                // `def train(…, device="cpu")`
                self.found.chooses_cpu |= def.parameters.iter_non_variadic_params().any(|each| {
                    each.parameter.name.as_str().ends_with("device")
                        && each.default.as_deref().is_some_and(is_cpu)
                });
                let outer = std::mem::replace(&mut self.in_loop, false);
                walk_stmt(self, stmt);
                self.in_loop = outer;
                return;
            }
            Stmt::For(_) | Stmt::While(_) => {
                let outer = std::mem::replace(&mut self.in_loop, true);
                walk_stmt(self, stmt);
                self.in_loop = outer;
                return;
            }
            _ => {}
        }
        walk_stmt(self, stmt);
    }

    fn visit_expr(&mut self, expr: &'a Expr) {
        match expr {
            // A name that is only bound moves nothing.
            Expr::Name(name) if name.ctx.is_load() && !self.is_off(expr) => {
                self.word(name.id.as_str());
            }
            Expr::Attribute(attribute) if only_asks(attribute) || self.is_off(expr) => return,
            Expr::Attribute(attribute) if attribute.ctx.is_load() => {
                self.word(attribute.attr.as_str());
            }
            Expr::StringLiteral(text) => self.word(text.value.to_str()),
            Expr::Dict(dict) => {
                self.found.chooses_cpu |= dict.items.iter().any(|item| {
                    matches!(&item.key, Some(Expr::StringLiteral(key)) if key.value.to_str().ends_with("device"))
                        && is_cpu(&item.value)
                });
            }
            Expr::Call(call) if !self.call(call) => return,
            _ => {}
        }
        walk_expr(self, expr);
    }
}

/// Whether a loop makes CPU tensors of its targets and gives them to the loss as they are, beside what a model
/// returned: it runs on the CPU only. `y = y.type(torch.LongTensor)`
fn casts_to_cpu(model: &Model<'_>, looped: &Loop<'_>) -> bool {
    let in_loop = |range: TextRange| looped.range.contains_range(range);
    let is_cast = |expr: &Expr, place: &str| {
        let Expr::Call(call) = expr else { return false };
        let Expr::Attribute(method) = &*call.func else {
            return false;
        };
        method.attr.as_str() == "type"
            && dotted_name(&method.value).as_deref() == Some(place)
            && matches!(
                call.arguments.args.first().and_then(dotted_name).as_deref(),
                Some("torch.LongTensor" | "torch.FloatTensor")
            )
    };
    model.assigns.iter().any(|assign| {
        let place = assign.place.as_str();
        let Some(cast) = assign
            .expr
            .filter(|expr| in_loop(expr.range()) && is_cast(expr, place))
        else {
            return false;
        };
        let after = model.text(TextRange::new(cast.end(), looped.range.end()));
        let moved = [".to(", ".cuda("]
            .iter()
            .any(|method| after.contains(&format!("{place}{method}")));
        !moved
            && model.calls.iter().any(|call| {
                in_loop(call.node.range())
                    && call.node.start() > cast.end()
                    && call.args.iter().any(|arg| arg.model_output)
                    && (call.node.arguments.args.iter())
                        .any(|arg| dotted_name(arg).as_deref() == Some(place))
            })
    })
}

/// Whether a loop of a script or notebook leaves its batches on the CPU while another loop of the
/// file moves its batches. `DataParallel` moves batches itself.
pub(crate) fn leaves_batches_on_cpu(model: &Model<'_>, looped: &Loop<'_>) -> bool {
    if casts_to_cpu(model, looped) {
        return true;
    }
    let moves = |each: &Loop<'_>| {
        model.calls.iter().any(|call| {
            matches!(call.method, Some("to" | "cuda")) && model.is_inside(call.ctx, each.ctx)
        })
    };
    model.func_of(looped.ctx).is_none()
        && looped.data
        && !model.module.text().contains("DataParallel")
        && !moves(looped)
        && model.loops.iter().any(|each| each.data && moves(each))
}

/// Whether an array is made of what a call returns without bringing it to the CPU: it is there already, as
/// `output.detach().numpy()` works for nothing else.
fn becomes_an_array(model: &Model<'_>, call: &Call<'_>) -> bool {
    let stmt = model.text(model.stmt(call.stmt).node);
    // `net(x).numpy()`, not `net(x, lengths.numpy())`.
    let after = model
        .text(model.stmt(call.stmt).node)
        .len()
        .min((call.node.end() - model.stmt(call.stmt).node.start()).to_usize());
    if !is_block(model.stmt(call.stmt).node)
        && stmt
            .get(after..)
            .is_some_and(|rest| rest.contains(".numpy()"))
        && !stmt.contains("cpu")
    {
        return true;
    }
    let body = model
        .func_of(call.ctx)
        .map_or_else(|| model.module.text(), |id| model.text(model.func(id).node));
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    // `name`, then methods, none of which moves it, then `.numpy()`.
    let is_array = |name: &str| {
        body.match_indices(name).any(|(at, _)| {
            let rest = &body[at + name.len()..];
            let chain = rest.split(['\n', ',', '=']).next().unwrap_or_default();
            !body[..at].ends_with(is_word)
                && rest.starts_with('.')
                && chain
                    .split_once(".numpy()")
                    .is_some_and(|(methods, _)| !methods.contains("cpu") && !methods.contains(' '))
        })
    };
    // Or it is brought there under the same name, or another.
    let brought = |name: &str| {
        model
            .assigns_to(model.func_of(call.ctx), name)
            .any(|assign| {
                assign
                    .expr
                    .is_some_and(|expr| model.text(expr).contains("cpu"))
            })
    };
    model
        .assigns
        .iter()
        .filter(|assign| assign.stmt == call.stmt && assign.bind != Bind::Add)
        .map(|assign| assign.place.as_str())
        .any(|name| is_array(name) && !brought(name))
}

/// A statement with statements in it.
fn is_block(stmt: &Stmt) -> bool {
    matches!(
        stmt,
        Stmt::For(_) | Stmt::While(_) | Stmt::If(_) | Stmt::With(_) | Stmt::Try(_)
    )
}

/// Whether a call runs a model that is known to be on the CPU.
pub(crate) fn runs_on_cpu(model: &Model<'_>, call: &Call<'_>) -> bool {
    if stays_where_it_is_made(model, call)
        || is_left_on_cpu(model, call)
        || becomes_an_array(model, call)
        || is_given_what_becomes_an_array(model, call)
    {
        return true;
    }
    let device = if call.callee.is_model() {
        call.callee.device
    } else {
        call.recv.device
    };
    device == Device::Cpu
        || (device == Device::Unknown
            && call
                .args
                .first()
                .is_some_and(|arg| arg.is_tensor() && arg.device == Device::Cpu))
}

/// Whether what a call is given becomes an array later, without a copy to the CPU: `net(x, a)`, `a[0].numpy()`.
fn is_given_what_becomes_an_array(model: &Model<'_>, call: &Call<'_>) -> bool {
    let func = model.func_of(call.ctx);
    let given = |name: &str| {
        call.node
            .arguments
            .args
            .iter()
            .any(|arg| dotted_name(arg).as_deref() == Some(name))
    };
    model
        .calls_in_function(func)
        .filter(|other| other.is_method("numpy") && other.node.start() > call.node.end())
        .any(|other| {
            let held = other.recv_expr().and_then(|recv| match recv {
                Expr::Subscript(item) => dotted_name(&item.value),
                recv => dotted_name(recv),
            });
            held.is_some_and(|name| {
                let between = call.node.start()..other.node.start();
                given(&name)
                    && !model
                        .assigns_to(func, &name)
                        .any(|assign| between.contains(&assign.target.start()))
            })
        })
}

/// Whether a call runs a layer of `torch.nn` that its own function made and nothing moves or hands on: a probe of
/// features that were brought to the CPU.
fn stays_where_it_is_made(model: &Model<'_>, call: &Call<'_>) -> bool {
    let (Some(func), Expr::Name(name)) = (model.func_of(call.ctx), &*call.node.func) else {
        return false;
    };
    let name = name.id.as_str();
    let bound: Vec<_> = model.assigns_to(Some(func), name).collect();
    let [made] = &*bound else { return false };
    let Some(Expr::Call(node)) = made.expr else {
        return false;
    };
    let of_torch = model.calls.iter().any(|other| {
        std::ptr::eq(other.node, node)
            && other
                .qual
                .as_deref()
                .is_some_and(|qual| qual.starts_with("torch.nn."))
            && !model.text(node).contains("device")
            && !model.text(node).contains("DataParallel")
    });
    of_torch
        && !model.module.text().contains("set_default_")
        && !model.calls_in_function(Some(func)).any(|other| {
            let moved = matches!(other.method, Some("to" | "cuda"))
                && other.recv_place().as_deref() == Some(name);
            moved
                || other
                    .node
                    .arguments
                    .args
                    .iter()
                    .any(|arg| matches!(arg, Expr::Name(each) if each.id.as_str() == name))
        })
}

/// Where in an `if` a range is.
enum Place {
    Body,
    Else,
    Elsewhere,
}

/// The `if` statements around a range, with the place of the range in them, and their functions.
fn branches_around<'m, 'a>(
    model: &'m Model<'a>,
    range: TextRange,
) -> impl Iterator<Item = (&'a StmtIf, Place, Option<FuncId>)> + 'm {
    // The outermost first.
    let around: Vec<_> = model.stmts_around(range).collect();
    around.into_iter().rev().filter_map(move |info| {
        let Stmt::If(branch) = info.node else {
            return None;
        };
        let in_body = branch
            .body
            .iter()
            .any(|each| each.range().contains_range(range));
        let in_else = branch
            .elif_else_clauses
            .last()
            .is_some_and(|last| last.test.is_none() && last.range.contains_range(range));
        let place = match (in_body, in_else) {
            (true, _) => Place::Body,
            (_, true) => Place::Else,
            _ => Place::Elsewhere,
        };
        Some((branch, place, model.func_of(info.ctx)))
    })
}

/// Whether a test is true on the CPU only, or false there: `device.type == "cpu"`, `device != "cpu"`.
fn compares_with_cpu(tested: &Expr) -> Option<bool> {
    let Expr::Compare(compared) = tested else {
        return None;
    };
    let ([op], [right]) = (&*compared.ops, &*compared.comparators) else {
        return None;
    };
    let is_device = dotted_name(&compared.left).is_some_and(|name| name.contains("device"))
        || last_name(&compared.left) == Some("type");
    let with_cpu =
        is_device && matches!(right, Expr::StringLiteral(text) if text.value.to_str() == "cpu");
    match op {
        CmpOp::Eq if with_cpu => Some(true),
        CmpOp::NotEq if with_cpu => Some(false),
        _ => None,
    }
}

/// Whether a node is in the branch that runs without a GPU: `else` of `if use_cuda:`, or `if not cuda:`.
pub(crate) fn in_cpu_branch(model: &Model<'_>, node: impl Ranged) -> bool {
    branches_around(model, node.range()).any(|(branch, place, _)| {
        if let Some(on_cpu) = compares_with_cpu(&branch.test) {
            return matches!((on_cpu, place), (true, Place::Body) | (false, Place::Else));
        }
        let test = model.text(&*branch.test);
        let asks = ["cuda", "use_gpu"].iter().any(|word| test.contains(word))
            || dotted_name(&branch.test)
                .is_some_and(|name| matches!(last_part(&name), "gpu" | "gpu_mode" | "on_gpu"));
        let denied = test.starts_with("not ");
        // Without `a and b`, there may still be `a`; a choice among GPUs is none between GPU and CPU.
        let chooses = !branch.test.is_bool_op_expr()
            && !["device_count", " > ", " == ", " != ", " >= ", " in "]
                .iter()
                .any(|word| test.contains(word));
        asks && chooses && matches!((denied, place), (true, Place::Body) | (false, Place::Else))
    })
}
