//! What a run would have needed if there had been less of something in it: its history again, without that.

use std::collections::HashSet;

use oomph_allocator::Device;
use oomph_allocator::program::{NO_ROW, Op};
use oomph_allocator::replay::predict;

use crate::facts::{Facts, Live};

/// The bytes alive after each allocation of a history, in two parts.
#[derive(Debug)]
pub(crate) struct Split {
    /// What would be the same, and what there would be less of.
    parts: Vec<(u64, u64)>,
}

impl Split {
    /// The most bytes alive at once, if a share `left` of the second part were there.
    fn needs(&self, left: f64) -> u64 {
        let needs = |&(rest, part): &(u64, u64)| rest + (part as f64 * left) as u64;
        self.parts.iter().map(needs).max().unwrap_or(0)
    }

    /// By how much less the run would have needed. Another moment may be the highest then.
    pub(crate) fn saves(&self, left: f64) -> u64 {
        self.needs(1.0).saturating_sub(self.needs(left))
    }
}

impl Facts<'_> {
    /// The history in two parts: what is `wanted`, and the rest.
    pub(crate) fn split(&self, wanted: impl Fn(&Live) -> bool) -> Split {
        let (mut rest, mut part) = (0_u64, 0_u64);
        let is_wanted: Vec<bool> = self.every().map(|block| wanted(&block)).collect();
        let bytes = |id: u32| {
            let allocation = self.program.allocations.get(id as usize);
            allocation.map_or(0, |one| self.config.round_size(one.requested))
        };
        let of = |id: u32| is_wanted.get(id as usize).copied().unwrap_or(false);
        for (id, allocation) in self.program.allocations.iter().enumerate() {
            if allocation.alloc_row == NO_ROW && !allocation.failed {
                let side = if of(id as u32) { &mut part } else { &mut rest };
                *side += bytes(id as u32);
            }
        }
        let mut parts = vec![(rest, part)];
        for op in &self.program.ops {
            match *op {
                Op::Alloc(id) => {
                    let side = if of(id) { &mut part } else { &mut rest };
                    *side += bytes(id);
                    parts.push((rest, part));
                }
                Op::Free(id) => {
                    let side = if of(id) { &mut part } else { &mut rest };
                    *side = side.saturating_sub(bytes(id));
                }
                _ => {}
            }
        }
        // What failed comes on top of what was alive then.
        if self.request > 0 {
            let failed = self.program.allocations.iter().position(|one| one.failed);
            if failed.is_some_and(|id| of(id as u32)) {
                part += self.request;
            } else {
                rest += self.request;
            }
            parts.push((rest, part));
        }
        Split { parts }
    }

    /// Whether every request is served within `limit` bytes, by a replay of the history without what is `unwanted`.
    pub(crate) fn fits_without(&self, limit: u64, unwanted: impl Fn(&Live) -> bool) -> bool {
        let gone: HashSet<u32> = (self.every().filter(unwanted))
            .map(|block| block.id)
            .collect();
        let stays = |op: &Op| match *op {
            Op::Alloc(id) | Op::Free(id) | Op::Fail(id) => !gone.contains(&id),
            _ => true,
        };
        let mut program = self.program.clone();
        program.ops.retain(stays);
        let device = Device {
            limit: Some(limit),
            ..Device::UNLIMITED
        };
        predict(&program, &self.config, device).fits()
    }

    /// By how much less the run would have needed without what is `wanted`.
    pub(crate) fn saves(&self, wanted: impl Fn(&Live) -> bool) -> u64 {
        self.split(wanted).saves(0.0)
    }
}
