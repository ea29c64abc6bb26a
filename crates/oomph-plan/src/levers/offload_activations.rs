//! `offload_activations`: what chosen modules save for the backward pass waits in pinned host
//! memory.
//!
//! Memory: a saved tensor is freed once its copy is done; so many bytes are under way at a time,
//! and as many are fetched ahead of the backward pass. Time: the link's, as far as the work of those
//! modules does not hide it. Results: exact.

use rustc_hash::FxHashMap as HashMap;
use serde::{Deserialize, Serialize};

use crate::blocks::{self, Block, Edits};
use crate::by_hand::{Script, Work, modules};
use crate::draft::Draft;
use crate::host_copies::{self, IN_FLIGHT, LEAST_BYTES, Moved};
use crate::lever::{Facets, Results, Stage, comments, places};
use crate::levers::Lever;
use crate::model::{Call, Event, Model};
use crate::sharding::Sharing;
use crate::units::{self, Sequence};

/// Saved activations wait in pinned host memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OffloadActivations {
    /// Whose activations.
    pub modules: Vec<String>,
}

impl Facets for OffloadActivations {
    fn results(&self) -> Results {
        Results::Exact
    }

    fn label(&self) -> String {
        format!("offload activations of {}", places(&self.modules))
    }

    fn order() -> u32 {
        45 // outside of checkpointing: a checkpointed module's inputs are then what is offloaded
    }

    fn modules_mut(&mut self) -> Option<&mut Vec<String>> {
        Some(&mut self.modules)
    }

    fn stage() -> Stage {
        Stage::Modules
    }

    fn excluded(model: &Model) -> Option<&'static str> {
        model.compiled(true)
    }

    fn sequence(draft: &Draft<'_>) -> Sequence {
        if !draft.model.trains || draft.model.facts.compiled {
            return Sequence::default();
        }
        units::first_to_last(draft)
    }

    fn of_modules(modules: Vec<String>) -> Option<Self> {
        Some(Self { modules })
    }

    fn takes_arguments() -> bool {
        true
    }

    fn is_midway() -> bool {
        true
    }

    fn goes_with_sharing(&self, sharing: Sharing) -> bool {
        // It knows of plain tensors only.
        sharing.is_whole()
    }

    fn apply(&self, draft: &mut Draft<'_>) {
        let (found, positions) = blocks::find(draft, &self.modules);
        let mut made: HashMap<u32, usize> = HashMap::default();
        let mut allocations: Vec<usize> = Vec::new();
        for (at, event) in draft.template.body.iter().enumerate() {
            if let Event::Alloc(number) = event {
                allocations.push(at);
                made.insert(*number, at);
            }
        }
        let empty = Call::default();
        let call = |block: &Block| draft.model.calls.get(block.call as usize).unwrap_or(&empty);
        // Which chosen block made a result, and which takes it last.
        let mut makers: HashMap<u32, &Block> = HashMap::default();
        let mut takers: HashMap<u32, &Block> = HashMap::default();
        for block in &found {
            makers.extend(call(block).outputs.iter().map(|&output| (output, block)));
            takers.extend(call(block).inputs.iter().map(|&input| (input, block)));
        }
        let mut moved: Vec<Moved> = Vec::new();
        let mut leaves = |number: u32, from: usize, held: usize, freed: usize| {
            let tensor = draft.template.tensors.get(number as usize);
            let bytes = tensor.map_or(0, |tensor| draft.template.part_bytes(tensor));
            if bytes >= LEAST_BYTES {
                moved.push(Moved {
                    number,
                    bytes,
                    made: from,
                    held,
                    freed,
                });
            }
        };
        for block in &found {
            for number in &block.saved {
                let places = (made.get(number), positions.frees.get(number));
                if let (false, (Some(&from), Some(&freed))) = (makers.contains_key(number), places)
                {
                    // Autocast keeps weights in another precision until the forward pass is over.
                    let cast = block.casts.contains(number);
                    let held = if cast {
                        positions.backward_after(from)
                    } else {
                        0
                    };
                    leaves(*number, from, held, freed);
                }
            }
        }
        // What a block takes is saved in it, and held by its caller until it is done; unless others
        // save it as well, which keep it for longer.
        let mut takers: Vec<(u32, &Block)> = takers.into_iter().collect();
        takers.sort_unstable_by_key(|&(number, _)| number);
        for (number, taker) in takers {
            let makers = makers.get(&number).into_iter().copied();
            let Some(&freed) = positions.frees.get(&number) else {
                continue;
            };
            if made.contains_key(&number)
                && makers.chain([taker]).any(|block| {
                    let next = allocations.partition_point(|&at| at < block.backward.end);
                    let next = allocations.get(next).copied().unwrap_or(usize::MAX);
                    (block.backward.start..=next).contains(&freed)
                })
            {
                leaves(number, taker.forward.start, taker.forward.end, freed);
            }
        }
        let mut edits = Edits::default();
        moved.sort_by_key(|moved| moved.made);
        let backward = |moved: &Moved| positions.backward_after(moved.made);
        // Those of one backward pass after those of the other.
        for pass in moved.chunk_by_mut(|a, b| backward(a) == backward(b)) {
            let begins = pass.first().map_or(0, backward);
            // The lever waits for what is under way when the last block is done.
            let ends = found.iter().map(|block| block.forward.end);
            let last = ends.filter(|&end| end <= begins).max();
            host_copies::leave(pass, last.unwrap_or(begins), IN_FLIGHT, &mut edits);
            host_copies::come_back(draft, pass, begins, IN_FLIGHT, &mut edits);
        }
        draft.template.body = edits.apply(&draft.template.body);
        let of_part: u64 = moved.iter().map(|moved| moved.bytes).sum();
        let total = of_part * u64::from(draft.template.parts.max(1));
        // Copies begin in the first block and are waited for after the last; they come back as those blocks
        // need them, not before.
        let blocks = found
            .iter()
            .map(|block| draft.forward_load(block.call).busy);
        let meanwhile = (blocks.sum::<f64>() / host_copies::forward(draft).max(1.0)).min(1.0);
        draft.waits += host_copies::wait(draft, total, meanwhile);
    }

    fn waits_by_hand(&self) -> bool {
        true
    }

    fn snippet(&self) -> String {
        format!(
            "inside the forward of these modules:\nwith torch.autograd.graph.save_on_cpu(pin_memory=True):\n    ...\n{}",
            comments(&self.modules)
        )
    }

    fn place(&self, work: &mut Work<'_>, _levers: &[Lever]) -> Option<()> {
        let offloaded = work.free_name("offloaded");
        let change = modules::Change {
            paths: modules::paths(&self.modules),
            imports: &["import functools"],
            before: vec![
                "# The GPU waits for each copy.".to_owned(),
                format!("def {offloaded}(forward, *args, **kwargs):"),
                "    with torch.autograd.graph.save_on_cpu(pin_memory=True):".to_owned(),
                "        return forward(*args, **kwargs)".to_owned(),
            ],
        };
        modules::for_each(work, Some(change), |names| {
            let (block, module) = (&names.block, &names.module);
            vec![
                format!("{block} = {module}"),
                format!("{block}.forward = functools.partial({offloaded}, {block}.forward)"),
            ]
        })
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.model_line()
    }
}
