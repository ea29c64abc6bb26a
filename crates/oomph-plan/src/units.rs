//! The repeated parts of a model, found by structure: children of `ModuleList`, `Sequential` and their like that have parts of their own.

use std::collections::{HashMap, HashSet};

use crate::model::Model;

/// Less is not worth a change.
const LEAST_BYTES: u64 = 1 << 20;

/// The names around a module's.
pub(crate) fn ancestors(module: &str) -> impl Iterator<Item = &str> {
    let mut rest = module;
    std::iter::from_fn(move || {
        rest = rest.rsplit_once('.')?.0;
        Some(rest)
    })
}

/// The repeated blocks of a model, outermost ones only.
pub fn repeated(model: &Model) -> Vec<String> {
    let called = called(model);
    let mut children: HashMap<&str, u32> = HashMap::new();
    let mut containers: HashSet<&str> = HashSet::new();
    for module in &model.modules {
        if module.container {
            containers.insert(&module.name);
        }
        if let Some((above, _)) = module.name.rsplit_once('.') {
            *children.entry(above).or_default() += 1;
        }
    }
    let has_parts = |name: &str| children.contains_key(name);
    let mut blocks_in: HashMap<&str, u32> = HashMap::new();
    for module in &model.modules {
        if let Some((above, _)) = module.name.rsplit_once('.')
            && containers.contains(above)
            && has_parts(&module.name)
        {
            *blocks_in.entry(above).or_default() += 1;
        }
    }
    let mut found: Vec<String> = Vec::new();
    let mut known: HashSet<&str> = HashSet::new();
    for module in &model.modules {
        let name = module.name.as_str();
        let is_block = name.rsplit_once('.').is_some_and(|(above, _)| {
            blocks_in.get(above).copied().unwrap_or(0) >= 2 && has_parts(name)
        });
        if is_block && called.contains(name) && !ancestors(name).any(|above| known.contains(above))
        {
            known.insert(name);
            found.push(name.to_owned());
        }
    }
    found
}

/// The names of modules that were called.
fn called(model: &Model) -> HashSet<&str> {
    let names = model.calls.iter().map(|call| call.module.as_str());
    names.filter(|name| !name.is_empty()).collect()
}

/// Whether a module is `block`, or a part of it.
pub(crate) fn is_inside(module: &str, block: &str) -> bool {
    let rest = module.strip_prefix(block);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The repeated blocks with weights whose owner is `chosen`; without such blocks, the layers with weights that are worth a copy.
pub(crate) fn with_weights(model: &Model, chosen: impl Fn(&str) -> bool) -> Vec<String> {
    let mut own: HashMap<&str, u64> = HashMap::new();
    for (module, sizes) in &model.parameter_sizes {
        if chosen(module) {
            *own.entry(module).or_default() += sizes.iter().sum::<u64>();
        }
    }
    let mut blocks = repeated(model);
    blocks.retain(|block| own.keys().any(|owner| is_inside(owner, block)));
    if blocks.is_empty() {
        let layers = model.modules.iter().filter(|module| {
            own.get(module.name.as_str()).copied().unwrap_or(0) >= LEAST_BYTES
                && module.name.contains('.')
        });
        blocks = layers.map(|module| module.name.clone()).collect();
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn ancestors_of_a_name() {
        let found: Vec<&str> = ancestors("GPT.blocks.0.mlp").collect();
        assert_eq!(found, ["GPT.blocks.0", "GPT.blocks", "GPT"]);
    }
}
