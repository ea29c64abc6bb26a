//! `save_on_cpu`: whatever autograd saves for the backward pass waits in pinned host memory, whichever code
//! saves it.
//!
//! It knows no modules, so it helps where nothing else can: a loss that saves much, functional code, models whose
//! samples cannot be parted, gradients of gradients. Memory: a saved tensor is freed once its copy is done; so many
//! bytes are under way at a time, and as many are fetched ahead of the backward pass. Time: the link's, as far as the
//! step does not hide it. Results: exact.

use rustc_hash::FxHashMap as HashMap;
use serde::{Deserialize, Serialize};

use oomph_trace::{Category, Phase};

use crate::blocks::{self, Edits};
use crate::by_hand::{Context, Script, Work, loops};
use crate::draft::Draft;
use crate::host_copies::{self, IN_FLIGHT, LEAST_BYTES, Moved};
use crate::lever::{Facets, Group, Results, Stage};
use crate::levers::Lever;
use crate::model::{Event, Model};
use crate::search::Options;
use crate::sharding::Sharing;

/// Bytes under way at a time, where memory is dearer than time.
const FEW_IN_FLIGHT: u64 = 16 << 20;

/// What autograd saves waits in pinned host memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SaveOnCpu {
    /// Bytes that may be under way each way: the more, the better they hide.
    pub in_flight: u64,
    /// Bytes that may be on the host at a time: what is saved when there are as many stays on the GPU. All go without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<u64>,
}

impl SaveOnCpu {
    /// The same with so many bytes on the host at a time.
    #[must_use]
    pub fn with_most(&self, most: u64) -> Self {
        Self {
            most: Some(most),
            ..self.clone()
        }
    }
}

impl Facets for SaveOnCpu {
    fn results(&self) -> Results {
        Results::Exact
    }

    fn label(&self) -> String {
        let most = self.most.map_or_else(String::new, |most| {
            format!("up to {} of ", oomph_trace::Bytes(most))
        });
        format!(
            "{most}saved tensors in host memory ({} under way)",
            oomph_trace::Bytes(self.in_flight)
        )
    }

    fn order() -> u32 {
        8 // outside of whatever else is done to a model's forward: what others still save is what leaves
    }

    fn stage() -> Stage {
        Stage::Combined(Group::Recomputation)
    }

    fn candidates(model: &Model, _options: &Options) -> Vec<Self> {
        let in_flight = [IN_FLIGHT, FEW_IN_FLIGHT].into_iter();
        in_flight
            .filter(|_| model.trains && !is_compiled_as_a_whole(model))
            .map(|in_flight| Self {
                in_flight,
                most: None,
            })
            .collect()
    }

    fn excluded(model: &Model) -> Option<&'static str> {
        (model.trains && is_compiled_as_a_whole(model)).then_some(
            "the model is compiled as a whole, so its backward pass fetches all that it saved at once: compile its blocks instead",
        )
    }

    fn goes_with(&self, others: &[Lever]) -> bool {
        // The same copies.
        !others
            .iter()
            .any(|lever| matches!(lever, Lever::OffloadActivations(_)))
    }

    fn goes_with_sharing(&self, sharing: Sharing) -> bool {
        // It knows of plain tensors only.
        sharing.is_whole()
    }

    fn taught_as(&self) -> Option<&'static str> {
        // How much goes, and with it what is left, follows from this plan's own figures.
        self.most.map(|_| "save_on_cpu, a part")
    }

    fn is_applied_last(&self) -> bool {
        true
    }

    fn is_last_resort(&self) -> bool {
        self.in_flight == FEW_IN_FLIGHT && self.most.is_none()
    }

    fn apply(&self, draft: &mut Draft<'_>) {
        let (_, positions) = blocks::find(draft, &[]);
        // An input is the script's own, which holds it anyway; what outlives the step is no saved tensor.
        let leaves = |category: Category| {
            matches!(
                category,
                Category::Activation | Category::Temporary | Category::Unknown
            )
        };
        let mut made: HashMap<u32, usize> = HashMap::default();
        for (at, event) in draft.template.body.iter().enumerate() {
            if let Event::Alloc(number) = event {
                made.insert(*number, at);
            }
        }
        let mut moved: Vec<Moved> = Vec::new();
        for (&number, &from) in &made {
            let tensor = draft.template.tensors.get(number as usize);
            let freed = positions.frees.get(&number);
            if let (Some(tensor), Some(&freed)) = (tensor, freed)
                && draft.template.part_bytes(tensor) >= LEAST_BYTES
                && leaves(tensor.category)
                && matches!(tensor.phase, Phase::Forward | Phase::Backward)
                && positions.waits(number, from)
            {
                moved.push(Moved {
                    number,
                    bytes: draft.template.part_bytes(tensor),
                    made: from,
                    held: from,
                    freed,
                });
            }
        }
        moved.sort_unstable_by_key(|moved| (moved.made, moved.number));
        if let Some(most) = self.most {
            // Spread over all that is saved, as the lever does it (`Transfers._goes` in `host_copies.py`).
            let is_large = |moved: &Moved| 8 * moved.bytes > most;
            let small = moved.iter().filter(|moved| !is_large(moved));
            let total: u64 = small.map(|moved| moved.bytes).sum();
            let (mut seen, mut sent) = (0, 0);
            moved.retain(|moved| {
                seen += if is_large(moved) { 0 } else { moved.bytes };
                let share = u128::from(most) * u128::from(seen) / u128::from(total.max(1));
                let allowed = match total >= most {
                    true if is_large(moved) => 0,
                    true => (share as u64).max(self.in_flight).min(most),
                    false => most,
                };
                let goes = sent + moved.bytes <= allowed;
                sent += if goes { moved.bytes } else { 0 };
                goes
            });
        }
        let of_part: u64 = moved.iter().map(|moved| moved.bytes).sum();
        let total = of_part * u64::from(draft.template.parts.max(1));
        let mut edits = Edits::default();
        let backward = |moved: &Moved| positions.backward_after(moved.made);
        for pass in moved.chunk_by_mut(|a, b| backward(a) == backward(b)) {
            let begins = pass.first().map_or(0, backward);
            host_copies::leave(pass, begins, self.in_flight, &mut edits);
            host_copies::come_back(draft, pass, begins, self.in_flight, &mut edits);
        }
        draft.template.body = edits.apply(&draft.template.body);
        // Few bytes under way are waited for at once.
        let hides = (self.in_flight as f64 / IN_FLIGHT as f64).min(1.0);
        draft.waits += host_copies::wait(draft, total, hides);
    }

    fn waits_by_hand(&self) -> bool {
        true
    }

    fn snippet(&self) -> String {
        "around the forward pass and the loss:\nwith torch.autograd.graph.save_on_cpu(pin_memory=True):\n    ..."
            .to_owned()
    }

    fn place(&self, work: &mut Work<'_>, levers: &[Lever]) -> Option<()> {
        loops::place(work, &self.clone().into(), levers)
    }

    fn line(&self, script: &Script<'_>) -> Option<usize> {
        script.training_line()
    }

    fn context(&self) -> Option<Context> {
        Some(Context {
            text: "torch.autograd.graph.save_on_cpu(pin_memory=True)".to_owned(),
            import: None,
        })
    }
}

/// Whether one backward pass of compiled code needs all that it has saved at its begin.
fn is_compiled_as_a_whole(model: &Model) -> bool {
    model.facts.compiled && model.facts.compilations < 2
}
