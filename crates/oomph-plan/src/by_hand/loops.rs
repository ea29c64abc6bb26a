//! Levers of the training loop: contexts around the model's call and the loss, and batches in parts.

use crate::by_hand::Work;
use crate::levers::Lever;

/// Places `lever`. All levers of the loop are placed together, when the last of them comes.
pub(crate) fn place(work: &mut Work<'_>, lever: &Lever, levers: &[Lever]) -> Option<()> {
    let is_of_loop =
        |other: &&Lever| other.micro_batches().is_some() || other.facets().context().is_some();
    let places = work.places();
    let parts = levers.iter().find_map(Lever::micro_batches);
    let contexts: Vec<_> = levers
        .iter()
        .filter_map(|other| other.facets().context())
        .collect();
    let texts: Vec<String> = contexts.iter().map(|one| one.text.clone()).collect();
    let is_split = lever.micro_batches().is_some();
    let mut edit = places.rewritten(&work.script(), &texts, parts);
    if edit.is_none() && !is_split {
        // The batch cannot be split, which contexts do not mind.
        edit = places.rewritten(&work.script(), &texts, None);
    }
    let edit = edit?;
    let is_last = levers.iter().rfind(is_of_loop) == Some(lever);
    let is_alone = parts.is_some() && !is_split && !places.can_split(&work.script());
    let last_context = levers
        .iter()
        .rfind(|other| other.facets().context().is_some());
    if is_last || is_alone && last_context == Some(lever) {
        for import in contexts.iter().filter_map(|one| one.import) {
            work.import(import);
        }
        work.apply(vec![edit]);
    }
    Some(())
}
