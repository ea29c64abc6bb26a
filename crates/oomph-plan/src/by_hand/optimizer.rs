//! Levers of the optimizer: another call where it is made, and how it steps.

use crate::by_hand::{Edit, Work};

/// The argument that says how the optimizer steps, in place of what the script has; nothing where
/// there is none to add.
pub(crate) fn step(work: &mut Work<'_>, argument: Option<&str>) -> Option<()> {
    work.places().optimizer.filter(|call| call.class)?;
    let Some(argument) = argument else {
        return Some(());
    };
    for name in ["fused", "foreach"] {
        remove_argument(work, name)?;
    }
    let line = work.places().optimizer?.line;
    let edit = work.script().add_argument(line, argument)?;
    work.apply(vec![edit]);
    Some(())
}

/// torchao's class in place of PyTorch's.
pub(crate) fn eight_bits(work: &mut Work<'_>) -> Option<()> {
    let call = work.places().optimizer.filter(|call| call.class)?;
    let script = work.script();
    let statement = script.statement(call.line)?;
    let text = script.text(&statement);
    let (_, made) = text.split_once(" = ")?;
    let function = made.split('(').next()?.to_owned();
    let class = match function.rsplit('.').next()? {
        "Adam" => "Adam8bit",
        "AdamW" => "AdamW8bit",
        _ => return None,
    };
    if text.contains("maximize") || text.contains("named_parameters()") {
        return None;
    }
    let old = script.lines.get(statement.first)?.to_owned();
    let new = old.replacen(&format!("{function}("), &format!("{class}("), 1);
    if new == old {
        return None;
    }
    for name in ["fused", "foreach", "capturable", "differentiable"] {
        remove_argument(work, name)?;
    }
    let script = work.script();
    let first = script.statement(work.places().optimizer?.line)?.first;
    let line = script.lines.get(first)?;
    let line = line.replacen(&format!("{function}("), &format!("{class}("), 1);
    let mut edits = vec![Edit::replace(first, first, vec![line])];
    // torchao's learning rate is a tensor, which schedulers know.
    for one in &script.statements {
        let text = script.text(one);
        if one.first == one.last
            && let Some((group, rate)) = text.split_once("[\"lr\"] = ")
            && !group.contains('(')
        {
            let indent = " ".repeat(one.indent);
            let line = format!("{indent}{group}[\"lr\"].fill_({rate})");
            edits.push(Edit::replace(one.first, one.last, vec![line]));
        }
    }
    work.import(match class {
        "Adam8bit" => "from torchao.optim import Adam8bit",
        _ => "from torchao.optim import AdamW8bit",
    });
    work.apply(edits);
    Some(())
}

/// A step a parameter: within the backward pass, with the state on the host, or both.
pub(crate) fn by_parameter(work: &mut Work<'_>, in_backward: bool, on_cpu: bool) -> Option<()> {
    let call = work.places().optimizer?;
    let script = work.script();
    if script
        .lines
        .iter()
        .any(|line| line.contains(".step(closure"))
        || !work.has_torch()
    {
        return None;
    }
    let statement = script.statement(call.line)?;
    let (optimizer, indent) = (call.name, " ".repeat(statement.indent));
    let words = [
        "step_one",
        "move_state",
        "step_by_parts",
        "index",
        "group",
        "p",
    ];
    let [one, moves, parts, index, group, p] = words.map(|word| work.free_name(word));
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
        work.import("import functools");
        lines.extend([
            "    p.grad = None".to_owned(),
            "# Each parameter steps as soon as its gradient is complete; the step in the loop then finds none.".to_owned(),
            format!("for {index}, {group} in enumerate({optimizer}.param_groups):"),
            format!("    for {p} in {group}[\"params\"]:"),
            format!("        if {p}.requires_grad:"),
            format!("            {p}.register_post_accumulate_grad_hook(functools.partial({one}, {index}))"),
        ]);
    } else {
        // A method: schedulers wrap what is one.
        work.import("import types");
        lines.extend([
            "# The state is on the GPU for one parameter at a time; each copy is waited for."
                .to_owned(),
            format!("def {parts}(optimizer):"),
            "    for index, group in enumerate(optimizer.param_groups):".to_owned(),
            "        for p in group[\"params\"]:".to_owned(),
            "            if p.grad is not None:".to_owned(),
            format!("                {one}(index, p)"),
            format!("{optimizer}.step = types.MethodType({parts}, {optimizer})"),
        ]);
    }
    let lines = lines
        .into_iter()
        .map(|line| format!("{indent}{line}"))
        .collect();
    work.apply(vec![Edit::insert(statement.last + 1, lines)]);
    Some(())
}

/// Takes an argument out of the call that makes the optimizer, if it is there; `None` if its value
/// is not one of three words.
fn remove_argument(work: &mut Work<'_>, name: &str) -> Option<()> {
    let line = work.places().optimizer?.line;
    let script = work.script();
    let statement = script.statement(line)?;
    for number in statement.first..=statement.last {
        let text = script.lines.get(number)?;
        let Some(begin) = argument(text, name) else {
            continue;
        };
        let rest = text.get(begin + name.len() + 1..)?.trim_start();
        let value = ["True", "False", "None"]
            .into_iter()
            .find(|value| rest.starts_with(value))?;
        let rest = rest.get(value.len()..)?.trim_start();
        if !(rest.is_empty() || rest.starts_with([',', ')'])) {
            return None;
        }
        let before = text.get(..begin)?;
        let line = if let Some(rest) = rest.strip_prefix(',') {
            format!("{before}{}", rest.trim_start())
        } else {
            // The comma before it, if it is on this line, goes with it.
            let before = before.trim_end();
            format!("{}{rest}", before.strip_suffix(',').unwrap_or(before))
        };
        let lines = if line.trim().is_empty() {
            Vec::new()
        } else {
            vec![line]
        };
        work.apply(vec![Edit::replace(number, number, lines)]);
        return Some(());
    }
    Some(())
}

/// Where `name=` begins in a line.
fn argument(text: &str, name: &str) -> Option<usize> {
    let pattern = format!("{name}=");
    text.match_indices(&pattern).map(|(at, _)| at).find(|&at| {
        let before = text.get(..at).and_then(|before| before.chars().last());
        let after = text
            .get(at + pattern.len()..)
            .and_then(|after| after.chars().next());
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_') && after != Some('=')
    })
}
