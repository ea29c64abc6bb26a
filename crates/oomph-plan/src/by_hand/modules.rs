//! Levers around the forward of named modules, placed before the optimizer is made: there the model
//! is complete, wherever it was made.
//!
//! `forward` becomes a `functools.partial` of what was there: unlike a closure it follows a copy of
//! the model (`deepcopy`, averages of weights).

use crate::by_hand::Work;
use crate::by_hand::script::Edit;
use crate::lever::Lever;

/// Operators whose results are kept where the rest of a block is computed again.
pub(super) const KEPT: [&str; 8] = [
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "convolution",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
];

pub(super) fn place(work: &mut Work<'_>, lever: &Lever, levers: &[Lever]) -> Option<()> {
    let (at, indent) = work.places().after_model?;
    let model = work.places().model?;
    let [name, block] = ["name", "block"].map(|word| work.free_name(word));
    let module = format!("{model}.get_submodule({name})");
    let mut before: Vec<String> = Vec::new();
    let (paths, body): (Vec<String>, Vec<String>) = match lever {
        Lever::Checkpoint { modules } => {
            // By its whole name: scripts have variables and functions called `checkpoint`.
            work.import("import functools");
            work.import("import torch.utils.checkpoint");
            let lines = vec![
                "# A BatchNorm inside updates its running statistics twice a step.".to_owned(),
                format!("{block} = {module}"),
                format!(
                    "{block}.forward = functools.partial(torch.utils.checkpoint.checkpoint, {block}.forward, use_reentrant=False)"
                ),
            ];
            (paths(modules), lines)
        }
        Lever::Recompute { modules } => {
            let checkpointed: Vec<String> = levers
                .iter()
                .filter_map(|other| match other {
                    Lever::Checkpoint { modules } => Some(paths(modules)),
                    _ => None,
                })
                .flatten()
                .collect();
            let blocks = blocks(modules)?;
            let blocks: Vec<String> = blocks
                .into_iter()
                .filter(|block| !checkpointed.contains(block))
                .collect();
            if blocks.is_empty() {
                return None;
            }
            work.import("import functools");
            work.import("import torch.utils.checkpoint");
            let contexts = work.free_name("contexts");
            before.push("# Products, convolutions and attention are kept, the rest of a block is computed again.".to_owned());
            before.push(format!("{contexts} = functools.partial("));
            before.push(
                "    torch.utils.checkpoint.create_selective_checkpoint_contexts,".to_owned(),
            );
            before.push("    [".to_owned());
            before.extend(
                KEPT.iter()
                    .map(|operator| format!("        torch.ops.aten.{operator}.default,")),
            );
            before.push("    ],".to_owned());
            before.push(")".to_owned());
            let lines = vec![
                "# A BatchNorm inside updates its running statistics twice a step.".to_owned(),
                format!("{block} = {module}"),
                format!("{block}.forward = functools.partial("),
                format!(
                    "    torch.utils.checkpoint.checkpoint, {block}.forward, use_reentrant=False, context_fn={contexts}"
                ),
                ")".to_owned(),
            ];
            (blocks, lines)
        }
        Lever::OffloadActivations { modules } => {
            work.import("import functools");
            let offloaded = work.free_name("offloaded");
            before.extend([
                "# The GPU waits for each copy.".to_owned(),
                format!("def {offloaded}(forward, *args, **kwargs):"),
                "    with torch.autograd.graph.save_on_cpu(pin_memory=True):".to_owned(),
                "        return forward(*args, **kwargs)".to_owned(),
            ]);
            let lines = vec![
                format!("{block} = {module}"),
                format!("{block}.forward = functools.partial({offloaded}, {block}.forward)"),
            ];
            (paths(modules), lines)
        }
        Lever::InplaceActivations { modules } => {
            // What is kept of a block that is computed again must not change.
            let again: Vec<String> = levers
                .iter()
                .filter_map(|other| match other {
                    Lever::Recompute { modules } => blocks(modules),
                    _ => None,
                })
                .flatten()
                .map(|block| format!("{block}."))
                .collect();
            let mut paths = paths(modules);
            paths.retain(|path| !again.iter().any(|block| path.starts_with(block)));
            if paths.is_empty() {
                return Some(());
            }
            (paths, vec![format!("{module}.inplace = True")])
        }
        _ => return None,
    };
    let mut lines: Vec<String> = before;
    lines.push(format!("for {name} in ["));
    lines.extend(paths.iter().map(|path| format!("    \"{path}\",")));
    lines.push("]:".to_owned());
    lines.extend(body.into_iter().map(|line| format!("    {line}")));
    let lines = lines
        .into_iter()
        .map(|line| format!("{indent}{line}"))
        .collect();
    work.apply(vec![Edit::insert(at, lines)]);
    Some(())
}

/// The paths within the model: plans name its class first.
fn paths(modules: &[String]) -> Vec<String> {
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
/// end. `None` if one is in no block: all of a model in one piece would be computed again at once.
fn blocks(modules: &[String]) -> Option<Vec<String>> {
    let mut found: Vec<String> = Vec::new();
    for path in paths(modules) {
        let parts: Vec<&str> = path.split('.').collect();
        let number = parts.iter().position(|part| part.parse::<u32>().is_ok())?;
        if number + 1 == parts.len() {
            return None;
        }
        let block = parts.get(..=number)?.join(".");
        if !found.contains(&block) {
            found.push(block);
        }
    }
    (!found.is_empty()).then_some(found)
}
