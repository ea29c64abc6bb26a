//! Where a model is at one point of the file: on a GPU, or on the CPU still.

use std::ops::Range;

use oomph_python_source::ast::{Expr, ExprCall};
use oomph_python_source::{Ranged, TextSize, dotted_name, last_name, last_part, names_in};

use crate::queries::devices::mentions_gpu as names_gpu;
use crate::semantic::value::{Device, Kind, Tri};
use crate::semantic::{Assign, Bind, Call, FuncId, Model, torch};

/// Calls that lead to calls: deeper than this, nothing is claimed.
const MAX_DEPTH: usize = 3;

/// Whether the model that a method is called on is on a GPU by then.
pub(crate) fn is_on_gpu(model: &Model<'_>, call: &Call<'_>) -> Tri {
    let Some(place) = call.recv_place() else {
        return Tri::Unknown;
    };
    let place = place.strip_suffix(".module").unwrap_or(&place);
    at(model, model.func_of(call.ctx), place, call.node.start(), 0)
}

/// Where the function of a call moves the model that it is made on from the CPU to a GPU after it, if it does.
pub(crate) fn moved_after(model: &Model<'_>, call: &Call<'_>) -> Option<TextSize> {
    let place = call.recv_place()?;
    model
        .calls_in_function(model.func_of(call.ctx))
        .filter(|other| {
            moves(other)
                && other.node.start() > call.node.start()
                && moved_place(other).as_deref() == Some(place.as_str())
        })
        .map(|other| other.node.start())
        .next()
        .filter(|_| is_on_gpu(model, call) == Tri::No)
}

/// Whether what a call is made on was moved to the CPU before, in the same function, and not away again.
pub(crate) fn is_back_on_cpu(model: &Model<'_>, call: &Call<'_>) -> bool {
    let until = TextSize::new(0)..call.node.start();
    let func = model.func_of(call.ctx);
    call.recv_place()
        .is_some_and(|place| is_brought_back(model, func, &place, until))
}

/// Whether a pass runs a layer that an object of its own made from `torch.nn` and nothing moves: a transform of
/// data sets.
pub(crate) fn stays_on_cpu(model: &Model<'_>, pass: &Call<'_>) -> bool {
    let func = model.func_of(pass.ctx);
    let class = model.ctx(pass.ctx).class;
    let Some(place) = dotted_name(&pass.node.func) else {
        return false;
    };
    let mut made = model
        .assigns
        .iter()
        .filter(|assign| assign.place == place && model.ctx(assign.ctx).class == class)
        .peekable();
    class.is_some()
        && place.starts_with("self.")
        && made.peek().is_some()
        && made.all(|assign| {
            model.calls.iter().any(|call| {
                assign
                    .expr
                    .is_some_and(|expr| expr.range() == call.node.range())
                    && call
                        .qual
                        .as_deref()
                        .is_some_and(|qual| qual.starts_with("torch.nn."))
            })
        })
        && of_attribute(model, func, &place, 0) == Tri::No
}

/// Whether a pass runs a model that its function, or the constructor of its class, made on the CPU and that nothing
/// moves or hands on; nor is what it is given brought to a GPU.
pub(crate) fn is_left_on_cpu(model: &Model<'_>, pass: &Call<'_>) -> bool {
    let place = if pass.callee.is_model() {
        dotted_name(&pass.node.func)
    } else {
        pass.recv_place()
    };
    let Some(place) = place else {
        return false;
    };
    let func = model.func_of(pass.ctx);
    let of_self = place.starts_with("self.");
    let hands_on = || {
        model.calls.iter().any(|call| {
            (of_self || model.func_of(call.ctx) == func)
                && !call.is("torch.save")
                && call.node.arguments.iter_source_order().any(|argument| {
                    dotted_name(argument.value()).as_deref() == Some(place.as_str())
                })
        })
    };
    at(model, func, &place, pass.node.start(), 0) == Tri::No
        && !is_brought(model, pass)
        && !model.module.text().contains("set_default_")
        && !hands_on()
}

/// Whether something shows that a pass runs on a GPU: what it is given is brought there, or a model of its name is;
/// or somebody else made the model, in a project that works on one.
pub(crate) fn is_brought_to_gpu(model: &Model<'_>, pass: &Call<'_>, place: &str) -> bool {
    let func = model.func_of(pass.ctx);
    let name = last_part(place);
    let moved = || {
        model.calls.iter().any(|call| {
            moves(call) && moved_place(call).is_some_and(|moved| last_part(&moved) == name)
        })
    };
    // As `self.model` stands for what the constructor is given.
    let bound = || {
        model
            .assigns
            .iter()
            .filter(|assign| last_part(&assign.place) == name && assign.bind == Bind::Set)
            .filter_map(|assign| assign.expr)
    };
    let is_parameter = |name: &str| {
        model.funcs.iter().any(|func| {
            func.node
                .parameters
                .iter()
                .any(|each| each.name().as_str() == name)
        })
    };
    let is_given = || {
        let root = place.split('.').next().unwrap_or(place);
        let class = model.ctx(pass.ctx).class.map(|class| model.class(class));
        let inherits = class.is_some_and(|class| {
            let bases = class
                .node
                .arguments
                .iter()
                .flat_map(|arguments| &arguments.args);
            !class.is_module
                && bases
                    .filter(|base| last_name(base) != Some("object"))
                    .count()
                    > 0
        });
        // A method of a module runs where the module is; what a class does not make, another one made.
        place == "self"
            || place.starts_with("self.") && bound().next().is_none() && inherits
            || root != "self" && func.is_some_and(|id| parameter(model, id, root).is_some())
            || place.starts_with("self.")
                && bound().next().is_some()
                && bound().all(|expr| dotted_name(expr).is_some_and(|name| is_parameter(&name)))
    };
    // `self.model = load_model(hparams)`: a function of another file made it, in one that works on a GPU.
    let is_built = || {
        bound().next().is_some()
            && bound().all(|expr| {
                matches!(expr, Expr::Call(made) if made.func.is_name_expr() && last_name(&made.func).is_some_and(|name| {
                    name.starts_with(|c: char| c.is_ascii_lowercase())
                        && ["load", "build", "create", "get", "make", "init"].iter().any(|word| name.contains(word))
                }))
            })
            && model.module.text().contains(".cuda(")
    };
    at(model, func, place, pass.node.start(), 0) == Tri::Yes
        || is_built()
        || moved()
        || bound().any(|expr| mentions_move(model.text(expr)))
        || is_brought(model, pass)
        || is_given() && (model.around.used_on_gpu() || names_gpu(model))
}

/// Whether what a pass is given is moved there, or was before in its function.
fn is_brought(model: &Model<'_>, pass: &Call<'_>) -> bool {
    let func = model.func_of(pass.ctx);
    let brings = |expr: &Expr| {
        let text = model.text(expr);
        mentions_move(text)
            || names_in(expr).iter().any(|name| {
                model.assigns_to(func, name).any(|assign| {
                    assign
                        .expr
                        .is_some_and(|expr| mentions_move(model.text(expr)))
                })
            })
    };
    pass.node
        .arguments
        .iter_source_order()
        .any(|argument| brings(argument.value()))
}

fn at(model: &Model<'_>, func: Option<FuncId>, place: &str, before: TextSize, depth: usize) -> Tri {
    if depth > MAX_DEPTH {
        return Tri::Unknown;
    }
    let moved: Vec<TextSize> = model
        .calls_in_function(func)
        .filter(|call| moves(call) && moved_place(call).as_deref() == Some(place))
        .map(|call| call.node.start())
        .collect();
    // `net = restore(net)` binds the name when `restore` is done.
    let is_done = |expr: &Expr| !expr.range().contains(before);
    let made = model
        .assigns_to(func, place)
        .filter(|assign| {
            assign.target.start() < before
                && assign.bind == Bind::Set
                && assign.expr.is_none_or(is_done)
        })
        .last();
    // What was moved before the name was bound anew is another model.
    let since = made.map_or(TextSize::new(0), |made| made.target.start());
    if is_brought_back(model, func, place, since..before) {
        return Tri::No;
    }
    if moved.iter().any(|start| (since..before).contains(start)) {
        return Tri::Yes;
    }
    let moved_later =
        moved.iter().any(|start| *start > before) || is_moved_by_callers(model, func, place);
    if let Some(made) = made {
        // `Net(device=device)` that the function moves afterwards only remembers it.
        let is_told = || {
            let text = made.expr.map_or("", |expr| model.text(expr));
            !text.contains(".to(") && !text.contains("cuda(")
        };
        return match made_on_gpu(model, func, made, depth) {
            Tri::Unknown if moved_later => Tri::No,
            Tri::Yes if moved_later && is_told() => Tri::No,
            known => known,
        };
    }
    if moved_later {
        return Tri::No;
    }
    if place.starts_with("self.") {
        return of_attribute(model, func, place, depth);
    }
    match func {
        Some(id) if parameter(model, id, place).is_some() => of_parameter(model, id, place, depth),
        Some(id) => at(model, None, place, runs_at(model, id), depth + 1),
        None => Tri::Unknown,
    }
}

/// How far the module has run by the time that a function of it runs: as far as its last call there if nothing else of
/// the file calls it, or to the end.
fn runs_at(model: &Model<'_>, func: FuncId) -> TextSize {
    let name = model.func(func).node.name.as_str();
    let mut calls = model
        .calls
        .iter()
        .filter(|call| call.target == Some(func) || last_name(&call.node.func) == Some(name));
    calls
        .try_fold(None, |last: Option<TextSize>, call| {
            let at_top = model.func_of(call.ctx).is_none();
            at_top.then(|| last.max(Some(call.node.start())))
        })
        .flatten()
        .unwrap_or_else(|| TextSize::of(model.module.text()))
}

/// Whether the functions of the file that call a method on `self` move an attribute, and only after that.
fn is_moved_by_callers(model: &Model<'_>, func: Option<FuncId>, place: &str) -> bool {
    let (Some(id), true) = (func, place.starts_with("self.")) else {
        return false;
    };
    let (name, class) = (model.func(id).node.name.as_str(), model.func(id).class);
    let mut callers = model
        .calls
        .iter()
        .filter(|call| {
            call.method == Some(name)
                && call.recv_place().as_deref() == Some("self")
                && model.ctx(call.ctx).class == class
        })
        .peekable();
    callers.peek().is_some()
        && callers.all(|caller| {
            let moved = || {
                model
                    .calls_in_function(model.func_of(caller.ctx))
                    .filter(|call| moves(call) && call.recv_place().as_deref() == Some(place))
                    .map(|call| call.node.start())
            };
            let after = |at: TextSize| at > caller.node.start();
            moved().any(after) && moved().all(after)
        })
}

/// A call that moves what it is called on off the CPU.
fn moves(call: &Call<'_>) -> bool {
    match call.method {
        Some("cuda") => true,
        Some("to") => call.result.device != Device::Cpu && !is_to_cpu(call.node),
        _ => false,
    }
}

/// Whether a function moves what is at `place` to the CPU in this part of the file, and not away again.
fn is_brought_back(
    model: &Model<'_>,
    func: Option<FuncId>,
    place: &str,
    part: Range<TextSize>,
) -> bool {
    let last = |kind: fn(&Call<'_>) -> bool| {
        model
            .calls_in_function(func)
            .filter(|call| kind(call) && moved_place(call).as_deref() == Some(place))
            .map(|call| call.node.start())
            .filter(|start| part.contains(start))
            .max()
    };
    last(brings_back).is_some_and(|back| last(moves).is_none_or(|away| away < back))
}

/// A call that moves what it is called on to the CPU.
fn brings_back(call: &Call<'_>) -> bool {
    call.is_method("cpu") || call.is_method("to") && is_to_cpu(call.node)
}

fn is_to_cpu(call: &ExprCall) -> bool {
    matches!(
        call.arguments.find_argument_value("device", 0),
        Some(Expr::StringLiteral(text)) if text.value.to_str() == "cpu"
    )
}

/// The model that is moved: `model` of `model.eval().to("cpu")`.
fn moved_place(call: &Call<'_>) -> Option<String> {
    let mut expr = call.recv_expr()?;
    while let Expr::Call(inner) = expr {
        let Expr::Attribute(method) = &*inner.func else {
            break;
        };
        if !matches!(
            method.attr.as_str(),
            "eval" | "train" | "float" | "half" | "requires_grad_"
        ) {
            break;
        }
        expr = &method.value;
    }
    dotted_name(expr)
}

/// Whether what an assignment binds is on a GPU.
fn made_on_gpu(model: &Model<'_>, func: Option<FuncId>, made: &Assign<'_>, depth: usize) -> Tri {
    let Some(expr) = made.expr else {
        return Tri::Unknown;
    };
    // `Net().to(device)`, `Net(device=device)`
    if mentions_move(model.text(expr)) {
        return Tri::Yes;
    }
    if let Some(other) = dotted_name(expr) {
        return at(model, func, &other, made.target.start(), depth + 1);
    }
    let Expr::Call(node) = expr else {
        return Tri::Unknown;
    };
    // `net = net.eval()` is where `net` was.
    if let Expr::Attribute(method) = &*node.func
        && matches!(
            method.attr.as_str(),
            "eval" | "train" | "half" | "float" | "requires_grad_"
        )
        && let Some(same) = dotted_name(&method.value)
    {
        return at(model, func, &same, made.target.start(), depth + 1);
    }
    let Some(call) = model
        .calls
        .iter()
        .find(|call| std::ptr::eq(call.node, node))
    else {
        return Tri::Unknown;
    };
    if let Some(qual) = call.qual.as_deref() {
        if torch::is_ddp(qual) {
            return Tri::Yes;
        }
        if torch::is_data_parallel(qual) {
            return match node.arguments.find_positional(0).and_then(dotted_name) {
                Some(inner) => at(model, func, &inner, made.target.start(), depth + 1),
                None => Tri::Unknown,
            };
        }
        // What PyTorch and its companions make is on the CPU.
        let is_model = matches!(torch::constructed(qual), Some(Kind::Model(_)));
        return if !is_model && model.around.moves_itself(last_part(qual)) {
            Tri::Unknown
        } else if is_model || is_class_name(last_part(qual)) {
            Tri::No
        } else {
            Tri::Unknown
        };
    }
    match (&call.callee.kind, call.target) {
        (Kind::Class(class), _) => {
            if moves_itself(model.text(model.class(*class).node)) {
                Tri::Yes
            } else {
                Tri::No
            }
        }
        (_, Some(target)) => {
            if mentions_move(model.text(model.func(target).node)) {
                Tri::Yes
            } else {
                Tri::No
            }
        }
        _ if last_name(&node.func).is_some_and(|name| model.around.moves_itself(name)) => {
            Tri::Unknown
        }
        _ if last_name(&node.func).is_some_and(is_class_name) => Tri::No,
        _ => Tri::Unknown,
    }
}

fn is_class_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase())
}

fn mentions_move(text: &str) -> bool {
    // `x.cuda()`, `to_cuda(x)`
    text.contains("cuda(")
        || text.match_indices("device").any(|(at, _)| {
            !["_ids", "_count"]
                .iter()
                .any(|end| text[at + "device".len()..].starts_with(end))
        })
        || text
            .split(".to(")
            .skip(1)
            .any(|rest| !rest.starts_with("\"cpu\"") && !rest.starts_with("'cpu'"))
}

/// A class whose constructor moves the object.
fn moves_itself(text: &str) -> bool {
    text.contains("self.cuda(") || text.contains("self.to(")
}

/// Whether an attribute of `self` is on a GPU once the object is made.
fn of_attribute(model: &Model<'_>, func: Option<FuncId>, place: &str, depth: usize) -> Tri {
    let name = last_part(place);
    // Any move of an attribute of this name counts, here or through the object.
    let moved = model.calls.iter().any(|call| {
        moves(call)
            && call
                .recv_place()
                .is_some_and(|recv| recv.rsplit('.').next() == Some(name) && recv.contains('.'))
    });
    let class = func.and_then(|id| model.func(id).class);
    let itself = class.is_some_and(|class| moves_itself(model.text(model.class(class).node)));
    if moved || itself {
        return Tri::Yes;
    }
    let mut known: Option<Tri> = None;
    for assign in &model.assigns {
        if assign.place != place || assign.bind != Bind::Set || model.ctx(assign.ctx).class != class
        {
            continue;
        }
        let found = made_on_gpu(model, model.func_of(assign.ctx), assign, depth + 1);
        known = Some(match known {
            Some(before) if before != found => Tri::Unknown,
            _ => found,
        });
    }
    match known {
        // The object may be a module that is moved as a whole.
        Some(Tri::No) if class.is_some_and(|class| model.class(class).is_module) => Tri::Unknown,
        Some(found) => found,
        None => Tri::Unknown,
    }
}

fn parameter(model: &Model<'_>, func: FuncId, name: &str) -> Option<usize> {
    model
        .func(func)
        .node
        .parameters
        .iter_non_variadic_params()
        .position(|each| each.parameter.name.as_str() == name)
}

/// Whether what the callers pass is on a GPU.
fn of_parameter(model: &Model<'_>, func: FuncId, name: &str, depth: usize) -> Tri {
    let Some(position) = parameter(model, func, name) else {
        return Tri::Unknown;
    };
    let bound = model
        .func(func)
        .node
        .parameters
        .iter_non_variadic_params()
        .next()
        .is_some_and(|each| each.parameter.name.as_str() == "self");
    let mut known: Option<Tri> = None;
    for call in model.calls.iter().filter(|call| call.target == Some(func)) {
        // A call may pass nothing at all: `self` alone has no place among the arguments.
        let place = position.checked_sub(usize::from(bound));
        let passed = place
            .and_then(|place| call.arg(name, place))
            .map_or(Tri::Unknown, |arg| match dotted_name(arg) {
                Some(place) => at(
                    model,
                    model.func_of(call.ctx),
                    &place,
                    call.node.start(),
                    depth + 1,
                ),
                None => Tri::Unknown,
            });
        known = Some(match known {
            Some(before) if before != passed => Tri::Unknown,
            _ => passed,
        });
    }
    known.unwrap_or(Tri::Unknown)
}
