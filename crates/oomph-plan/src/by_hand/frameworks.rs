//! Levers that a framework has an argument for: it is edited where the script makes the framework's object.

use oomph_python_source::ast::ExprCall;
use oomph_python_source::{Edit, Module, calls_in, last_name};

use crate::by_hand::Work;
use crate::by_hand::script::{Script, only};
use crate::levers::Lever;

/// Edits the arguments of the framework's object; `None` if the script has no such object, or several, or the framework has no
/// argument for this lever.
pub(crate) fn place(work: &mut Work<'_>, lever: &Lever) -> Option<()> {
    work.edit(|script| {
        let module = script.module;
        let switches = lever.facets().switches();
        let parts = lever.micro_batches();
        if let Some(arguments) = made(script, |name| name.ends_with("TrainingArguments")) {
            if let Some(parts) = parts {
                return in_parts(
                    module,
                    (arguments, "per_device_train_batch_size", Some("8")),
                    (arguments, "gradient_accumulation_steps"),
                    parts,
                );
            }
            let (name, value) = switches.huggingface?;
            return Some(vec![set(module, arguments, name, &value)]);
        }
        if let Some(accelerator) = made(script, |name| name == "Accelerator") {
            let (name, value) = switches.accelerate?;
            return Some(vec![set(module, accelerator, name, &value)]);
        }
        let is_lightning = module.text().contains("lightning");
        let trainer = made(script, |name| name == "Trainer").filter(|_| is_lightning)?;
        if let Some(parts) = parts {
            let loaders = calls_in(module.body()).into_iter();
            let loaders = loaders
                .filter(|call| last_name(&call.func) == Some("DataLoader") && ran(script, call));
            return in_parts(
                module,
                (only(loaders)?, "batch_size", None),
                (trainer, "accumulate_grad_batches"),
                parts,
            );
        }
        let (name, value) = switches.lightning?;
        Some(vec![set(module, trainer, name, &value)])
    })
}

/// The one call that ran of a class with such a name.
fn made<'m>(script: &Script<'m>, is_it: impl Fn(&str) -> bool) -> Option<&'m ExprCall> {
    let calls = calls_in(script.module.body()).into_iter();
    only(calls.filter(|call| last_name(&call.func).is_some_and(&is_it) && ran(script, call)))
}

/// Whether the function around a call ran.
fn ran(script: &Script<'_>, call: &ExprCall) -> bool {
    script
        .function(call)
        .is_none_or(|function| script.ran(function))
}

/// Gives an argument a value, in place of the one that it has.
fn set(module: &Module<'_>, call: &ExprCall, name: &str, value: &str) -> Edit {
    match call.arguments.find_keyword(name) {
        Some(keyword) => Edit::replace(&keyword.value, value),
        None => module.add_keyword(call, &format!("{name}={value}")),
    }
}

/// Batches of a part of the size, and so many times more of them a step.
fn in_parts(
    module: &Module<'_>,
    (sized, size, by_default): (&ExprCall, &str, Option<&str>),
    (accumulates, count): (&ExprCall, &str),
    parts: u32,
) -> Option<Vec<Edit>> {
    let given = |call: &ExprCall, name: &str| {
        let keyword = call.arguments.find_keyword(name)?;
        Some(module.slice(&keyword.value).to_owned())
    };
    let now = given(sized, size).or_else(|| by_default.map(str::to_owned))?;
    let smaller = match now.parse::<u32>() {
        Ok(size) if size % parts == 0 => (size / parts).to_string(),
        Ok(_) => return None,
        Err(_) => format!("({now}) // {parts}"),
    };
    let more = match given(accumulates, count) {
        None => parts.to_string(),
        Some(now) => match now.parse::<u32>() {
            Ok(now) => (now * parts).to_string(),
            Err(_) => format!("({now}) * {parts}"),
        },
    };
    if std::ptr::eq(sized, accumulates)
        && [size, count]
            .iter()
            .all(|name| given(sized, name).is_none())
    {
        let both = format!("{size}={smaller}, {count}={more}");
        return Some(vec![module.add_keyword(sized, &both)]);
    }
    Some(vec![
        set(module, sized, size, &smaller),
        set(module, accumulates, count, &more),
    ])
}
