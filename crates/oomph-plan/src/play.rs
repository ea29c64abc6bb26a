//! Plays a template through PyTorch's allocator, simulated.

use oomph_allocator::simulator::{BlockId, Simulator};
use oomph_allocator::{AddressModel, Config, Device};
use oomph_trace::{Category, PoolId};

use crate::model::{Event, Template};

/// Steps that are played: the first, in which the optimizer's state appears, and a whole one.
const STEPS: usize = 2;

/// Micro-batches that are played in a step: the first, which makes the gradients, one that adds to
/// them, and one that finds what that one left. The others are like it.
const PARTS: u32 = 3;

/// What playing a job came to: the greatest amounts in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Played {
    /// In tensors.
    pub allocated: u64,
    /// Held by the allocator.
    pub reserved: u64,
    /// Whether the device was large enough.
    pub fits: bool,
    /// Times that everything cached had to be given back to go on.
    pub retries: u64,
}

/// Events that playing `template` goes through.
pub fn length(template: &Template) -> usize {
    let parts = template.parts.clamp(1, PARTS) as usize;
    template.setup.len()
        + STEPS * parts * template.body.len()
        + template.first_tail.len()
        + (STEPS - 1) * template.tail.len()
}

/// Plays `template` with the allocator's settings `config` on `device`.
pub fn play(template: &Template, config: &Config, device: Device) -> Played {
    let driver = AddressModel::new(device.capacity).with_limit(device.limit);
    let mut player = Player {
        template,
        simulator: Simulator::new(config.clone(), driver),
        live: vec![None; template.tensors.len()],
        previous: vec![None; template.tensors.len()],
        round: 0,
        fits: true,
        in_parts: false,
        accumulates: false,
    };
    player.run();
    let stats = player.simulator.stats();
    Played {
        allocated: stats.allocated_peak,
        reserved: stats.reserved_peak,
        fits: player.fits,
        retries: stats.retries,
    }
}

struct Player<'a> {
    template: &'a Template,
    simulator: Simulator<AddressModel>,
    /// The block of each tensor, and the round that it is of.
    live: Vec<Option<(BlockId, u32)>>,
    /// Those of the round before that were there when the next ones were made.
    previous: Vec<Option<BlockId>>,
    /// Counts the bodies.
    round: u32,
    fits: bool,
    /// Whether a part of a batch runs at once: after the setup.
    in_parts: bool,
    /// Whether gradients are there already, and added to.
    accumulates: bool,
}

impl Player<'_> {
    fn run(&mut self) {
        let template = self.template;
        self.events(&template.setup);
        let parts = template.parts.clamp(1, PARTS);
        for step in 0..if template.once { 1 } else { STEPS } {
            for part in 0..parts {
                self.in_parts = true;
                self.round += 1;
                self.accumulates = part > 0;
                self.events(&template.body);
            }
            self.accumulates = false;
            self.events(if step == 0 {
                &template.first_tail
            } else {
                &template.tail
            });
        }
    }

    fn events(&mut self, events: &[Event]) {
        for &event in events {
            if !self.fits {
                return;
            }
            match event {
                Event::Alloc(number) => self.alloc(number),
                Event::Free(number) => self.free(number),
                Event::FreePrevious(number) => self.free_previous(number),
                Event::EmptyCache => self.simulator.empty_cache(),
            }
        }
    }

    fn alloc(&mut self, number: u32) {
        let Some(tensor) = self.template.tensors.get(number as usize) else {
            return;
        };
        let bytes = if self.in_parts {
            self.template.part_bytes(tensor)
        } else {
            tensor.bytes
        };
        let old = self.live.get(number as usize).copied().flatten();
        let adds = self.accumulates && tensor.category == Category::Gradient && old.is_some();
        match self.simulator.malloc(bytes, tensor.stream, PoolId::DEFAULT) {
            // Added to the one that is there, and gone.
            Ok(block) if adds => self.simulator.free(block),
            Ok(block) => {
                if let Some((old, _)) = old {
                    self.keep(number, old);
                }
                if let Some(slot) = self.live.get_mut(number as usize) {
                    *slot = Some((block, self.round));
                }
            }
            Err(_) => self.fits = false,
        }
    }

    /// Keeps one block of the round before; what no round frees is not kept twice.
    fn keep(&mut self, number: u32, block: BlockId) {
        if let Some(older) = self
            .previous
            .get_mut(number as usize)
            .and_then(|slot| slot.replace(block))
        {
            self.simulator.free(older);
        }
    }

    fn free(&mut self, number: u32) {
        // What this round made goes when it did: the gradient of a pass of the script's that is added to an earlier one's.
        let made = |live: &(BlockId, u32)| live.1 == self.round;
        let live = self.live.get(number as usize).copied().flatten();
        if self.stays(number) && !live.as_ref().is_some_and(made) {
            return;
        }
        if let Some((block, _)) = self.live.get_mut(number as usize).and_then(Option::take) {
            self.simulator.free(block);
        }
    }

    fn free_previous(&mut self, number: u32) {
        if self.stays(number) {
            return;
        }
        if let Some(block) = self
            .previous
            .get_mut(number as usize)
            .and_then(Option::take)
        {
            self.simulator.free(block);
        } else if let Some(slot) = self.live.get_mut(number as usize)
            && let Some((block, round)) = *slot
            && round < self.round
        {
            *slot = None;
            self.simulator.free(block);
        }
    }

    /// Gradients stay until the last micro-batch has been added to them.
    fn stays(&self, number: u32) -> bool {
        self.accumulates
            && self
                .template
                .tensors
                .get(number as usize)
                .is_some_and(|tensor| tensor.category == Category::Gradient)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Tensor;
    use oomph_trace::Phase;

    /// A script that goes backward twice before a step: the second pass's gradient is added to the first one's, in each part.
    #[test]
    fn gradients_that_are_added_within_a_batch_do_not_stay() {
        let gradient = Tensor {
            bytes: 100 << 20,
            stream: 0,
            category: Category::Gradient,
            phase: Phase::Backward,
            call: 0,
            op: 0,
            scope: 0,
            batched: false,
        };
        let template = |parts| Template {
            tensors: vec![gradient; 2],
            body: vec![Event::Alloc(0), Event::Alloc(1), Event::Free(1)],
            first_tail: vec![Event::Free(0)],
            tail: vec![Event::Free(0)],
            parts,
            batch: 8,
            ..Template::default()
        };
        let peak = |parts| {
            let played = play(&template(parts), &Config::default(), Device::UNLIMITED);
            played.allocated >> 20
        };
        assert_eq!((peak(1), peak(4)), (200, 200));
    }
}
