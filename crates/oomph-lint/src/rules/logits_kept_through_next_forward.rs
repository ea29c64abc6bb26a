use oomph_python_source::ast::{Expr, Stmt};
use oomph_python_source::{Ranged, TextRange, dotted_name, last_name, last_part};

use crate::queries::devices::on_cpu_only;
use crate::queries::model_calls::{is_model_call, model_place, names_of_classes};
use crate::queries::purpose::in_unit_test;
use crate::rule::{Report, declare_rule};
use crate::semantic::{Call, Grad, Model};

declare_rule! {
    /// The logits of a language model stay through the next forward pass.
    ///
    /// ## What it does
    ///
    /// Looks for training loops that give labels to a language model of transformers, and keep all that it returns under a name until
    /// the next iteration binds it anew: `outputs = model(**batch)`. What it returns holds the logits beside the loss. So does
    /// `logits, loss = model(x, y)` with a class of the project that has an `lm_head`, or a last layer for a vocabulary.
    ///
    /// ## Why it costs memory
    ///
    /// The logits are one number for each token of the batch and each entry of the vocabulary: 8 sequences of 1,024 tokens and 50,257
    /// entries are 1.6 GB in float32. Those of the step before are still there when the forward pass makes the next ones.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    /// from transformers import AutoModelForCausalLM
    ///
    /// model = AutoModelForCausalLM.from_pretrained("gpt2").cuda()
    ///
    /// def train(model, loader, optimizer):
    ///     for batch in loader:
    ///         optimizer.zero_grad()
    ///         outputs = model(**batch.to("cuda"))
    ///         outputs.loss.backward()
    ///         optimizer.step()
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    /// from transformers import AutoModelForCausalLM
    ///
    /// model = AutoModelForCausalLM.from_pretrained("gpt2").cuda()
    ///
    /// def train(model, loader, optimizer):
    ///     for batch in loader:
    ///         optimizer.zero_grad()
    ///         loss = model(**batch.to("cuda")).loss
    ///         loss.backward()
    ///         optimizer.step()
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When the model keeps no logits in training, as with fused losses.
    ///
    /// ## Fix safety
    ///
    /// No fix: other lines may read the name.
    OOM303 "logits-kept-through-next-forward" { fix: None, fresh: [0, 0] }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    for call in &model.calls {
        let Stmt::Assign(assign) = model.stmt(call.stmt).node else {
            continue;
        };
        let [target] = &*assign.targets else { continue };
        if assign.value.range() != call.node.range() || call.grad != Grad::On || model.training_loop(call.ctx).is_none() {
            continue;
        }
        let of_project = || is_model_call(call) && model_place(call).is_some_and(|place| is_of_project(model, &place));
        let kept = match target {
            Expr::Name(target) => {
                let gives_labels = call.keyword("labels").is_some() || call.has_star_kwargs();
                let name = target.id.as_str();
                (gives_labels && gives_loss(model, call, name) && is_language_model(model, call)).then_some(name)
            }
            // `logits, loss = model(x, y)`
            Expr::Tuple(tuple) => match &*tuple.elts {
                [Expr::Name(first), Expr::Name(loss)] if loss.id.as_str().contains("loss") && call.node.arguments.len() > 1 && of_project() => {
                    Some(first.id.as_str())
                }
                _ => None,
            },
            _ => None,
        };
        let Some(name) = kept.filter(|name| !is_dropped(model, call, name)) else {
            continue;
        };
        if in_unit_test(model, call.ctx) || on_cpu_only(model) {
            continue;
        }
        out.push(
            Report::new(call.node, format!("`{name}` keeps the logits of this step through the forward pass of the next"))
                .help("keep the loss only, or `del` the outputs after `backward()`"),
        );
    }
}

/// Whether what is called is a language model by the class that it is made from. Of a model that the function is given, all classes that
/// the file makes models from are such.
fn is_language_model(model: &Model<'_>, call: &Call<'_>) -> bool {
    const NAMES: &[&str] = &["CausalLM", "LMHeadModel", "ConditionalGeneration", "Seq2SeqLM", "MaskedLM"];
    let is_one = |name: &str| NAMES.iter().any(|end| name.contains(end));
    let Some(place) = dotted_name(&call.node.func) else {
        return false;
    };
    let mut made = names_of_classes(model, &place).filter(|name| name.contains("from_pretrained") || name.contains("from_config") || is_one(name)).peekable();
    if made.peek().is_some() {
        return made.all(|name| is_one(&name));
    }
    let mut all = model.calls.iter().filter(|made| matches!(made.method, Some("from_pretrained" | "from_config"))).filter_map(Call::recv_place).filter(|class| last_part(class).contains("For") || is_one(class)).peekable();
    last_part(&place).to_ascii_lowercase().contains("model") && all.peek().is_some() && all.all(|class| is_one(&class))
}

/// Whether a model is of a class of the project with a layer for a vocabulary.
fn is_of_project(model: &Model<'_>, place: &str) -> bool {
    names_of_classes(model, place).any(|name| model.around.is_language_model(last_part(&name)))
}

/// Whether the loss is read from what was returned: `outputs.loss`, `outputs[0]`.
fn gives_loss(model: &Model<'_>, call: &Call<'_>, name: &str) -> bool {
    let func = model.func_of(call.ctx);
    let body = func.map_or_else(|| model.module.text(), |id| model.text(model.func(id).node));
    body.contains(&format!("{name}.loss")) || body.contains(&format!("{name}[0]")) || body.contains(&format!("{name}[\"loss\"]"))
}

/// Whether the name is dropped, or bound anew, before the next iteration.
fn is_dropped(model: &Model<'_>, call: &Call<'_>, name: &str) -> bool {
    let func = model.func_of(call.ctx);
    let again = |at: TextRange| model.training_loop(call.ctx).is_some_and(|looped| looped.range.contains_range(at));
    model.assigns_to(func, name).any(|assign| assign.stmt != call.stmt && again(assign.target.range()))
        || model.stmts.iter().any(|info| match info.node {
            Stmt::Delete(delete) if model.func_of(info.ctx) == func => {
                delete.targets.iter().any(|target| last_name(target) == Some(name))
            }
            _ => false,
        })
}
