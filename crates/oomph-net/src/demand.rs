//! Before a step is known: units come to the device when they have cost as much on the host as two moves, and who was not
//! touched for longest makes room. Where a job goes round and round in more than fits, that is the one who is needed next; so a unit that
//! has come before must have cost more to come again.

use std::collections::HashMap;

use crate::arena::Arena;
use crate::course::Orders;
use crate::gpu::{Gpu, Place};
use crate::known::{Kernels, Known, MOVE_COST};
use crate::rhythm::Log;

/// So many launches are looked at together.
const LATELY: usize = 32;

/// What units were needed for lately.
#[derive(Debug, Default)]
pub struct Demand {
    /// How often it was looked.
    looks: u64,
    /// By where units begin.
    units: HashMap<u64, Need>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Need {
    /// Bytes that went over the link since it lies on the host, by a guess.
    crossed: f64,
    /// The last look that found it touched.
    last: u64,
    /// How often it has come to the device.
    came: u32,
}

impl Demand {
    /// `log` has one launch more; what to move before it.
    pub fn launched<G: Gpu>(
        &mut self,
        log: &Log,
        arena: &Arena<G>,
        kernels: &Kernels,
    ) -> Option<Orders> {
        if !log.len().is_multiple_of(LATELY) {
            return None;
        }
        self.looks += 1;
        let lately = log.len() - LATELY..log.len();
        let known = Known::of(log, lately, arena, arena.device_capacity());
        for launch in &known.launches {
            for touched in launch.near() {
                let need = self.units.entry(known.units[touched.unit].0).or_default();
                need.crossed += launch.guess(touched, kernels);
                need.last = self.looks;
            }
        }
        self.orders(arena)
    }

    fn orders<G: Gpu>(&mut self, arena: &Arena<G>) -> Option<Orders> {
        let (mut coming, mut leaving) = (Vec::new(), Vec::new());
        let mut room = arena.device_capacity();
        for (at, size, place) in arena.units() {
            let need = self.units.entry(at).or_default();
            match place {
                Place::Host => {
                    let worth = need.crossed / (2.0 * MOVE_COST * size as f64);
                    if worth >= f64::from(1 + need.came) {
                        coming.push((worth, at, size));
                    }
                }
                Place::Device => {
                    need.crossed = 0.0;
                    room = room.saturating_sub(size);
                    if need.last < self.looks {
                        leaving.push((need.last, at, size));
                    }
                }
            }
        }
        coming.sort_by(|a, b| b.0.total_cmp(&a.0));
        leaving.sort_unstable_by(|a, b| b.cmp(a));
        let mut orders = Orders::default();
        for (_, at, size) in coming {
            while room < size
                && let Some((_, other, freed)) = leaving.pop()
            {
                orders.out.push(other);
                room += freed;
            }
            let Some(rest) = room.checked_sub(size) else {
                break;
            };
            room = rest;
            orders.back.push(at);
            self.units.entry(at).or_default().came += 1;
        }
        (!orders.back.is_empty()).then_some(orders)
    }
}
