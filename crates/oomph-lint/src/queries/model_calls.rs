//! Calls of models, and of what belongs to them.

use oomph_python_source::ast::Stmt;
use oomph_python_source::dotted_name;

use crate::semantic::value::{Kind, Value};
use crate::semantic::{Call, Model, torch};

/// A call of a model.
pub(crate) fn is_model_call(call: &Call<'_>) -> bool {
    (call.callee.is_model() || (call.recv.is_model() && call.is_method("forward")))
        && !matches!(
            call.callee.kind,
            Kind::Model(crate::semantic::value::ModelKind::Softmax)
        )
        // A function by its name, which is given the model: `run_model(model, batch, eval=True)`.
        && !(call.callee.weak && call.args.iter().any(Value::is_model))
}

/// The place of the model in a call of it.
pub(crate) fn model_place(call: &Call<'_>) -> Option<String> {
    if call.callee.is_model() {
        dotted_name(&call.node.func)
    } else {
        call.recv_place()
    }
}

/// Whether a call constructs a cross-entropy or is one.
pub(crate) fn is_cross_entropy(call: &Call<'_>) -> bool {
    call.is("torch.nn.functional.cross_entropy")
        || matches!(
            call.callee.kind,
            Kind::Criterion {
                cross_entropy: true
            }
        )
}

/// `DataParallel` in any spelling.
pub(crate) fn is_data_parallel(call: &Call<'_>) -> bool {
    call.qual.as_deref().is_some_and(torch::is_data_parallel)
}

/// Whether the next statement takes the wrapped model out of its wrapper again: `net = DDP(net)`,
/// `net = net.module`.
pub(crate) fn is_dropped(model: &Model<'_>, wrapper: &Call<'_>) -> bool {
    let info = model.stmt(wrapper.stmt);
    let (Stmt::Assign(wraps), Some(Stmt::Assign(next))) =
        (info.node, info.block.get(info.index + 1))
    else {
        return false;
    };
    let place = wraps.targets.first().and_then(dotted_name);
    place.is_some()
        && next.targets.first().and_then(dotted_name) == place
        && dotted_name(&next.value) == place.map(|place| format!("{place}.module"))
}
