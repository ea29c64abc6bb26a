//! Levers of the training loop: contexts around the model's call and the loss, and batches in parts.

use crate::by_hand::Work;
use crate::levers::Lever;

/// Places `lever`. All levers of the loop are placed together, with the first of them.
pub(crate) fn place(work: &mut Work<'_>, lever: &Lever, levers: &[Lever]) -> Option<()> {
    if work.of_loop.is_none() {
        work.of_loop = Some(rewrite(work, levers));
    }
    let placed = work.of_loop.as_ref()?.contains(lever);
    work.changes |= placed;
    placed.then_some(())
}

/// Rewrites the loop for all levers that can be placed in it; which those are.
fn rewrite(work: &mut Work<'_>, levers: &[Lever]) -> Vec<Lever> {
    let levers: Vec<&Lever> = levers
        .iter()
        .filter(|lever| !work.of_framework.contains(lever))
        .collect();
    let contexts: Vec<_> = levers
        .iter()
        .filter_map(|other| other.facets().context())
        .collect();
    let texts: Vec<String> = contexts.iter().map(|one| one.text.clone()).collect();
    let mut parts = levers.iter().find_map(|lever| lever.micro_batches());
    let done = work.edit(|script| {
        let training = script.training.as_ref()?;
        // Where the batch cannot be split, contexts can still be placed.
        parts = parts.filter(|_| training.can_split());
        training
            .rewrite(script.module, &texts, parts)
            .filter(|edits| !edits.is_empty())
    });
    if done.is_none() {
        return Vec::new();
    }
    for import in contexts.iter().filter_map(|one| one.import) {
        work.import(import);
    }
    let is_in = |lever: &&&Lever| {
        lever.facets().context().is_some() || parts.is_some() && lever.micro_batches().is_some()
    };
    levers.iter().filter(is_in).copied().cloned().collect()
}
