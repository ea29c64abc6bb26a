//! Levers around the forward of named modules, placed before the optimizer is made: there the model
//! is complete, wherever it was made.
//!
//! `forward` becomes a `functools.partial` of what was there: unlike a closure it follows a copy of
//! the model (`deepcopy`, averages of weights).

use crate::by_hand::Work;

/// What is changed of modules.
#[derive(Debug, Default)]
pub(crate) struct Change {
    /// Their paths within the model.
    pub(crate) paths: Vec<String>,
    /// Lines before the loop over them.
    pub(crate) before: Vec<String>,
    /// What the lines need.
    pub(crate) imports: &'static [&'static str],
}

/// Names that the lines of the loop over modules use.
#[derive(Debug)]
pub(crate) struct Names {
    /// A free name for the module.
    pub(crate) block: String,
    /// The module as an expression.
    pub(crate) module: String,
}

/// Adds a loop over the modules of a change with the lines of `body`, where there are any; `None` if
/// the model has no clear place or there is no such `change`.
pub(crate) fn for_each(
    work: &mut Work<'_>,
    change: Option<Change>,
    body: impl FnOnce(&Names) -> Vec<String>,
) -> Option<()> {
    let change = change?;
    if change.paths.is_empty() {
        return Some(());
    }
    let [name, block] = ["name", "block"].map(|word| work.free_name(word));
    work.edit(|script| {
        let (model, optimizer) = script.model()?;
        let module = format!("{model}.get_submodule({name})");
        let mut lines = change.before;
        lines.push(format!("for {name} in ["));
        lines.extend(change.paths.iter().map(|path| format!("    \"{path}\",")));
        lines.push("]:".to_owned());
        let body = body(&Names { block, module });
        lines.extend(body.into_iter().map(|line| format!("    {line}")));
        Some(vec![script.module.insert_before(optimizer, &lines)?])
    })?;
    for import in change.imports {
        work.import(import);
    }
    Some(())
}

/// The paths within the model: plans name its class first.
pub(crate) fn paths(modules: &[String]) -> Vec<String> {
    modules
        .iter()
        .map(|module| {
            module
                .split_once('.')
                .map_or("", |(_, path)| path)
                .to_owned()
        })
        .collect()
}

/// The numbered blocks that hold the modules: up to the first number in a path, if it is not its
/// end. What is in no block is left as it is: all of a model in one piece would be computed again at once. `None` if nothing is
/// in one.
pub(crate) fn blocks(modules: &[String]) -> Option<Vec<String>> {
    let mut found: Vec<String> = Vec::new();
    for path in paths(modules) {
        let parts: Vec<&str> = path.split('.').collect();
        let number = parts.iter().position(|part| part.parse::<u32>().is_ok());
        let Some(number) = number.filter(|number| number + 1 < parts.len()) else {
            continue;
        };
        let block = parts.get(..=number)?.join(".");
        if !found.contains(&block) {
            found.push(block);
        }
    }
    (!found.is_empty()).then_some(found)
}
