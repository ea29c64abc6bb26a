use oomph_python_source::ast::Stmt;
use oomph_python_source::{Edit, Ranged, ast};

use crate::fix::{Applicability, Fix};
use crate::rule::{Report, declare_rule};
use crate::semantic::{Call, CtxKind, Model};

declare_rule! {
    /// A deprecated spelling of mixed precision is used.
    ///
    /// ## What it does
    ///
    /// Looks for `torch.cuda.amp.autocast` and `torch.cuda.amp.GradScaler`, unless a test of PyTorch's version
    /// decides about them.
    ///
    /// ## Why it costs memory
    ///
    /// It costs none yet: it has warned since PyTorch 2.4 and will be removed. Code that guards it with
    /// `try` then quietly trains in float32, with twice the activations.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def forward(model, x):
    ///     with torch.cuda.amp.autocast():
    ///         return model(x)
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def forward(model, x):
    ///     with torch.amp.autocast("cuda"):
    ///         return model(x)
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When PyTorch before 2.3 has to be supported. If the project pins one before 2.4, where nothing is deprecated,
    /// nothing is said. Off by default: it takes no memory, and half of its 32 findings in code that it had not seen were where
    /// nobody comes, or under an older PyTorch.
    ///
    /// ## Fix safety
    ///
    /// Safe for `autocast`, which has had its new name since PyTorch 1.10; unsafe for `GradScaler`,
    /// which needs 2.3.
    OOM811 "deprecated-amp" { fix: Sometimes, fresh: [16, 28] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for call in &model.calls {
        let Some(qual) = call.qual.as_deref() else {
            continue;
        };
        let name = match qual {
            "torch.cuda.amp.autocast" | "torch.cuda.amp.autocast_mode.autocast" => "autocast",
            "torch.cuda.amp.GradScaler" | "torch.cuda.amp.grad_scaler.GradScaler" => "GradScaler",
            _ => continue,
        };
        if depends_on_version(model, call) {
            continue;
        }
        let func = &*call.node.func;
        // `torch.cuda.amp.autocast`, spelled out: other spellings need their import changed too.
        let spelled_out = model.text(func) == format!("torch.cuda.amp.{name}")
            && !call.node.arguments.args.iter().any(ast::Expr::is_starred_expr);
        let fix = spelled_out.then(|| {
            let inside = call.node.arguments.inner_range().start();
            let device = if call.node.arguments.is_empty() {
                "\"cuda\""
            } else {
                "\"cuda\", "
            };
            let applicability = if name == "autocast" {
                Applicability::Safe
            } else {
                Applicability::Unsafe
            };
            let mut edits = vec![Edit::replace(func.range(), format!("torch.amp.{name}"))];
            if name == "autocast" {
                // The old form takes `enabled` first, the new one `dtype`: positions get names.
                let parameters = ["enabled", "dtype", "cache_enabled"];
                for (position, (arg, parameter)) in
                    call.node.arguments.args.iter().zip(parameters).enumerate()
                {
                    let device = if position == 0 { device } else { "" };
                    edits.push(Edit::insert(arg.start(), format!("{device}{parameter}=")));
                }
            }
            if name != "autocast" || call.node.arguments.args.is_empty() {
                edits.push(Edit::insert(inside, device));
            }
            Fix::new(applicability, "use the new spelling", edits)
        });
        let help = if name == "autocast" {
            "use `torch.amp.autocast(\"cuda\", ...)`"
        } else {
            "use `torch.amp.GradScaler(\"cuda\", ...)`"
        };
        out.push(
            Report::new(func, format!("`torch.cuda.amp.{name}` has been deprecated since PyTorch 2.4"))
                .help(help)
                .since(2, 4)
                .fix(fix),
        );
    }
}

/// Whether a test around the call asks for the version of PyTorch, or for what that version has: the
/// call is for the old ones. A test that returns before the call counts as well.
fn depends_on_version(model: &Model<'_>, call: &Call<'_>) -> bool {
    let asks = |text: &str| {
        let text = text.to_ascii_lowercase();
        text.contains("version") || text.contains("torch_greater") || text.contains("hasattr(torch")
    };
    let func = model.func_of(call.ctx);
    let around = model.within_function(call.ctx).any(|id| match model.ctx(id).kind {
        CtxKind::Branch(Some(test)) => asks(model.text(test)),
        CtxKind::Handler => true,
        _ => false,
    });
    around
        || model.stmts.iter().any(|info| {
            let Stmt::If(node) = info.node else { return false };
            let test = model.text(&*node.test);
            model.func_of(info.ctx) == func
                && asks(test)
                && (node.range.contains_range(call.node.range())
                    || node.range.end() < call.node.start()
                        && node.body.last().is_some_and(|last| matches!(last, Stmt::Return(_))))
        })
}
