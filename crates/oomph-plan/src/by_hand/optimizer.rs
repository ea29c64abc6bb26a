//! Levers of the optimizer: another call where it is made, and how it steps.

use oomph_python_source::ast::{Expr, ExprCall};
use oomph_python_source::{Edit, Module, Ranged, TextRange, assignments_in, calls_in, last_name};

use crate::by_hand::Work;

/// The argument that says how the optimizer steps, in place of what the script has; nothing where
/// there is none to add.
pub(crate) fn step(work: &mut Work<'_>, argument: Option<&str>) -> Option<()> {
    work.edit(|script| {
        let calls = script.optimizer_classes()?;
        let Some(argument) = argument else {
            return Some(Vec::new());
        };
        let mut edits = Vec::new();
        for call in calls {
            edits.extend(without(script.module, call, &["fused", "foreach"])?);
            edits.push(script.module.add_keyword(call, argument));
        }
        Some(edits)
    })
}

/// torchao's class in place of PyTorch's.
pub(crate) fn eight_bits(work: &mut Work<'_>) -> Option<()> {
    let mut import = "from torchao.optim import AdamW8bit";
    work.edit(|script| {
        let (module, optimizer) = (script.module, script.optimizer().filter(|one| one.class)?);
        let call = optimizer.call;
        let class = match last_name(&call.func)? {
            "Adam" => "Adam8bit",
            "AdamW" => "AdamW8bit",
            _ => return None,
        };
        let text = module.slice(call);
        if text.contains("maximize") || text.contains("named_parameters()") {
            return None;
        }
        let gone = ["fused", "foreach", "capturable", "differentiable"];
        let mut edits = without(module, call, &gone)?;
        edits.push(Edit::replace(&*call.func, class));
        // torchao's learning rate is a tensor, which schedulers know.
        for one in assignments_in(module.body()) {
            if let Expr::Subscript(item) = one.target
                && item
                    .slice
                    .as_string_literal_expr()
                    .is_some_and(|key| key.value.to_str() == "lr")
                && !item.value.is_call_expr()
            {
                let (group, rate) = (module.slice(item), module.slice(one.value));
                edits.push(Edit::replace(one.stmt, format!("{group}.fill_({rate})")));
            }
        }
        if class == "Adam8bit" {
            import = "from torchao.optim import Adam8bit";
        }
        Some(edits)
    })?;
    work.import(import);
    Some(())
}

/// A step a parameter: within the backward pass, with the state on the host, or both.
pub(crate) fn by_parameter(work: &mut Work<'_>, in_backward: bool, on_cpu: bool) -> Option<()> {
    let words = [
        "step_one",
        "move_state",
        "step_by_parts",
        "index",
        "group",
        "p",
    ];
    let names = words.map(|word| work.free_name(word));
    work.edit(|script| {
        let optimizer = script.optimizer()?;
        let takes_closure = |call: &&ExprCall| {
            let first = call.arguments.args.first();
            let is_closure = first.is_some_and(|argument| {
                argument.is_lambda_expr() || script.module.slice(argument).starts_with("closure")
            });
            is_closure && last_name(&call.func) == Some("step")
        };
        if calls_in(script.module.body()).iter().any(takes_closure) || !script.has_torch() {
            return None;
        }
        if let Some(name) = &optimizer.name {
            let lines = stepping(name, &names, in_backward, on_cpu);
            return Some(vec![script.module.insert_after(optimizer.stmt, &lines)?]);
        }
        // `return Adam(…)`
        let made = script.module.free_name("optimizer");
        let mut lines = stepping(&made, &names, in_backward, on_cpu);
        lines.push(format!("return {made}"));
        let head = TextRange::new(optimizer.stmt.start(), optimizer.call.start());
        Some(vec![
            Edit::replace(head, format!("{made} = ")),
            script.module.insert_after(optimizer.stmt, &lines)?,
        ])
    })?;
    // A method: schedulers wrap what is one.
    work.import(if in_backward {
        "import functools"
    } else {
        "import types"
    });
    Some(())
}

/// The lines after `optimizer` is made, with free `names`.
fn stepping(optimizer: &str, names: &[String; 6], in_backward: bool, on_cpu: bool) -> Vec<String> {
    let [one, moves, parts, index, group, p] = names;
    let mut lines = Vec::new();
    if on_cpu {
        lines.extend([
            format!("def {moves}(p, device):"),
            format!("    state = {optimizer}.state.get(p, {{}})"),
            "    for name, value in state.items():".to_owned(),
            "        if torch.is_tensor(value) and value.dim() > 0:".to_owned(),
            "            state[name] = value.to(device)".to_owned(),
        ]);
    }
    let step = if in_backward {
        format!("{optimizer}.step()")
    } else {
        format!("type({optimizer}).step({optimizer})")
    };
    lines.extend([
        format!("def {one}(index, p):"),
        format!("    everything = [group[\"params\"] for group in {optimizer}.param_groups]"),
        format!("    for number, group in enumerate({optimizer}.param_groups):"),
        "        group[\"params\"] = [p] if number == index else []".to_owned(),
    ]);
    if on_cpu {
        lines.push(format!("    {moves}(p, p.device)"));
    }
    lines.push(format!("    {step}"));
    if on_cpu {
        lines.push(format!("    {moves}(p, \"cpu\")"));
    }
    lines.extend([
        format!("    for group, params in zip({optimizer}.param_groups, everything):"),
        "        group[\"params\"] = params".to_owned(),
    ]);
    if in_backward {
        lines.extend([
            "    p.grad = None".to_owned(),
            "# Each parameter steps as soon as its gradient is complete; the step in the loop then finds none.".to_owned(),
            format!("for {index}, {group} in enumerate({optimizer}.param_groups):"),
            format!("    for {p} in {group}[\"params\"]:"),
            format!("        if {p}.requires_grad:"),
            format!("            {p}.register_post_accumulate_grad_hook(functools.partial({one}, {index}))"),
        ]);
    } else {
        lines.extend([
            "# The state is on the GPU for one parameter at a time; each copy is waited for."
                .to_owned(),
            format!("def {parts}(optimizer, closure=None):"),
            "    loss = closure() if closure is not None else None".to_owned(),
            "    for index, group in enumerate(optimizer.param_groups):".to_owned(),
            "        for p in group[\"params\"]:".to_owned(),
            "            if p.grad is not None:".to_owned(),
            format!("                {one}(index, p)"),
            "    return loss".to_owned(),
            format!("{optimizer}.step = types.MethodType({parts}, {optimizer})"),
        ]);
    }
    lines
}

/// Edits that take arguments out of a call, where they are there; `None` if the value of one is not one
/// of three words.
fn without(module: &Module<'_>, call: &ExprCall, names: &[&str]) -> Option<Vec<Edit>> {
    let there = names
        .iter()
        .filter_map(|name| Some((name, call.arguments.find_keyword(name)?)));
    there
        .map(|(name, keyword)| {
            let is_plain =
                keyword.value.is_boolean_literal_expr() || keyword.value.is_none_literal_expr();
            is_plain.then(|| module.remove_keyword(call, name))?
        })
        .collect()
}
