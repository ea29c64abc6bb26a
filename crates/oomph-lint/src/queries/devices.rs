//! Which device a file, a loop or a call works on.

use oomph_python_source::ast::visitor::{Visitor, walk_expr, walk_stmt};
use oomph_python_source::ast::{Expr, Stmt};
use oomph_python_source::{Module, Ranged, dotted_name, imports_of, last_name, last_part};

use crate::semantic::value::{Device, Kind};
use crate::semantic::{Call, Loop, Model};

/// Whether the file mentions a GPU.
pub(crate) fn mentions_gpu(model: &Model<'_>) -> bool {
    model.module.text().contains("cuda") || model.module.text().contains("device")
}

/// Whether the file computes on the CPU: nothing in its code points to a GPU, or it names the CPU as its
/// device, and no file that imports it works on a GPU. Models and batches that nothing moves are on the
/// CPU. Comments and docstrings do not count.
pub(crate) fn on_cpu_only(model: &Model<'_>) -> bool {
    *model.cpu_only.get_or_init(|| {
        let words = Words::of(model.module);
        let says_so = || {
            model.assigns.iter().any(|assign| {
                assign.value.kind == Kind::Device && assign.value.device == Device::Cpu
            })
        };
        !words.accelerator && (!words.device || says_so()) && !model.around.used_on_gpu
    })
}

/// What the names and strings of a file say about where it computes.
#[derive(Default)]
pub(crate) struct Words<'m> {
    text: &'m str,
    /// An accelerator by its name, or a library that moves models and batches by itself.
    pub(crate) accelerator: bool,
    /// Some device, whichever it is.
    device: bool,
}

impl<'m> Words<'m> {
    pub(crate) fn of(module: &Module<'m>) -> Self {
        let mut words = Self {
            text: module.text(),
            ..Self::default()
        };
        for stmt in module.body() {
            words.visit_stmt(stmt);
        }
        words
    }

    fn word(&mut self, word: &str) {
        const ACCELERATORS: &[&str] = &[
            "cuda",
            "xpu",
            "accelerat",
            "fabric",
            "trainer",
            "lightning",
            "deepspeed",
            "apex",
        ];
        const DEVICES: &[&str] = &["device", "gpu", "dataparallel", "prefetch"];
        let word = word.to_ascii_lowercase();
        self.accelerator |= ACCELERATORS.iter().any(|each| word.contains(each))
            || ["mps", "npu", "hpu"]
                .iter()
                .any(|each| word.starts_with(each));
        self.device |= DEVICES.iter().any(|each| word.contains(each));
    }
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
    fn visit_stmt(&mut self, stmt: &'a Stmt) {
        match stmt {
            Stmt::Expr(only) if only.value.is_string_literal_expr() => return,
            _ if is_unused_device(stmt, self.text) => return,
            Stmt::Import(_) | Stmt::ImportFrom(_) => {
                for import in imports_of(stmt) {
                    self.word(&import.full);
                }
            }
            Stmt::FunctionDef(def) => {
                for parameter in &*def.parameters {
                    self.word(parameter.name().as_str());
                }
            }
            _ => {}
        }
        walk_stmt(self, stmt);
    }

    fn visit_expr(&mut self, expr: &'a Expr) {
        match expr {
            Expr::Name(name) => self.word(name.id.as_str()),
            Expr::Attribute(attribute) => self.word(attribute.attr.as_str()),
            Expr::StringLiteral(text) => self.word(text.value.to_str()),
            Expr::Call(call) => {
                for keyword in &call.arguments.keywords {
                    if let Some(name) = &keyword.arg {
                        self.word(name.as_str());
                    }
                }
            }
            _ => {}
        }
        if !(self.accelerator && self.device) {
            walk_expr(self, expr);
        }
    }
}

/// Whether a loop of a script or notebook leaves its batches on the CPU while another loop of the
/// file moves its batches. `DataParallel` moves batches itself.
pub(crate) fn leaves_batches_on_cpu(model: &Model<'_>, looped: &Loop<'_>) -> bool {
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

/// Whether a call runs a model that is known to be on the CPU.
pub(crate) fn runs_on_cpu(call: &Call<'_>) -> bool {
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

/// A call that puts something on a GPU: `.cuda()`, `.to("cuda")`.
pub(crate) fn moves_to_gpu(call: &Call<'_>) -> bool {
    match call.method {
        Some("cuda") => true,
        Some("to") => {
            call.args
                .first()
                .is_some_and(|arg| arg.device == Device::Gpu)
                && !call.recv.is_model()
        }
        _ => false,
    }
}

/// Whether a node is in the branch that runs without a GPU: `else` of `if use_cuda:`, or `if not cuda:`.
pub(crate) fn in_cpu_branch(model: &Model<'_>, node: impl Ranged) -> bool {
    let range = node.range();
    model.stmts.iter().any(|info| {
        let Stmt::If(branch) = info.node else {
            return false;
        };
        if !branch.range.contains_range(range) {
            return false;
        }
        let test = model.text(&*branch.test);
        let asks = ["cuda", "use_gpu"].iter().any(|word| test.contains(word))
            || dotted_name(&branch.test).is_some_and(|name| last_part(&name) == "gpu");
        let in_body = branch
            .body
            .iter()
            .any(|each| each.range().contains_range(range));
        let in_else = branch
            .elif_else_clauses
            .last()
            .is_some_and(|last| last.test.is_none() && last.range.contains_range(range));
        let denied = test.starts_with("not ");
        asks && !test.contains("device_count") && if denied { in_body } else { in_else }
    })
}
