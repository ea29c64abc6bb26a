use crate::queries::model_calls::{is_model_call, model_place};
use crate::rule::{Report, declare_rule};
use crate::semantic::{Grad, Model};

declare_rule! {
    /// A teacher that is never trained builds a graph.
    ///
    /// ## What it does
    ///
    /// Looks for calls of a model named as a teacher, a target network or a moving average in a
    /// function that trains, with gradients on, in a file that never turns the gradients of
    /// parameters off.
    ///
    /// ## Why it costs memory
    ///
    /// The teacher's activations are kept as if it were to be trained: a second graph beside the
    /// student's, and often the larger one. `backward()` also fills gradients of the teacher.
    ///
    /// ## Example
    ///
    /// ```python
    /// import torch
    ///
    /// def train(student, teacher, loader, optimizer, criterion):
    ///     for x in loader:
    ///         optimizer.zero_grad()
    ///         target = teacher(x)
    ///         loss = criterion(student(x), target)
    ///         loss.backward()
    ///         optimizer.step()
    /// ```
    ///
    /// ## Use instead
    ///
    /// ```python
    /// import torch
    ///
    /// def train(student, teacher, loader, optimizer, criterion):
    ///     for x in loader:
    ///         optimizer.zero_grad()
    ///         with torch.no_grad():
    ///             target = teacher(x)
    ///         loss = criterion(student(x), target)
    ///         loss.backward()
    ///         optimizer.step()
    /// ```
    ///
    /// ## When it is wrong
    ///
    /// When another file sets `requires_grad` of the teacher's parameters to `False`.
    ///
    /// ## Fix safety
    ///
    /// No fix: the call would need its own block.
    OOM206 "teacher-builds-graph" { fix: None, default: true }
}

fn check(model: &Model<'_>, out: &mut Vec<Report>) {
    if model.module.text().contains("requires_grad") {
        return;
    }
    for call in &model.calls {
        if !is_model_call(call) || call.grad != Grad::On {
            continue;
        }
        let Some(place) = model_place(call) else {
            continue;
        };
        let name = place.rsplit('.').next().unwrap_or(&place).to_ascii_lowercase();
        let is_teacher = name.contains("teacher")
            || name.starts_with("ema_")
            || name.ends_with("_ema")
            || name.starts_with("target_net");
        // One that has gradients to clear trains as well.
        let trains = model.calls.iter().any(|other| {
            other.is_zero_grad() && other.recv_place().as_deref() == Some(place.as_str())
        });
        if is_teacher && !trains && model.training_loop(call.ctx).is_some() {
            out.push(
                Report::new(
                    call.node,
                    format!("`{place}` is not trained, yet its activations are kept for `backward()`"),
                )
                .help("call it under `with torch.no_grad():`"),
            );
        }
    }
}
