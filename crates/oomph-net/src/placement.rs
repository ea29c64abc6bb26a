//! Which units lie on the device in which part of a step, so that least goes over the link.
//!
//! A step is cut into windows, and repeats. While a unit lies on the host, what kernels read and write of it
//! goes over the link; to move it out or back costs its size once. Device memory holds `capacity` bytes in
//! each window. With a price for device memory in each window each unit decides for itself, in a few
//! additions (it goes round the step twice); prices rise where more is wanted than there is, until all fits.
//! That is Belady's rule (who is needed last goes first) extended to units that are cheaper read where they
//! lie. What the prices leave undecided is decided by the best saving a byte.

/// One unit.
#[derive(Debug, Clone)]
pub struct Unit {
    /// Bytes.
    pub size: u64,
    /// Bytes over the link in each window if it lies on the host.
    pub traffic: Vec<u64>,
}

/// The step's units, and the room for them.
#[derive(Debug, Clone)]
pub struct Step {
    pub units: Vec<Unit>,
    /// How many windows: each unit's `traffic` has as many.
    pub windows: usize,
    /// Bytes of device memory.
    pub capacity: u64,
    /// What moving a byte costs, in bytes read where they lie.
    pub move_cost: f64,
}

/// For each unit, whether it lies on the device in each window.
pub type Placement = Vec<Vec<bool>>;

/// Shares of a unit's size that are tried as what needs it on the device.
const NEEDED: [f64; 3] = [0.0, 0.5, 2.0];
/// Rounds of prices.
const ROUNDS: usize = 120;

impl Step {
    /// What `placement` costs a step, in bytes over the link.
    pub fn cost(&self, placement: &Placement) -> f64 {
        self.units
            .iter()
            .zip(placement)
            .map(|(unit, place)| self.cost_of(unit, place))
            .sum()
    }

    fn cost_of(&self, unit: &Unit, place: &[bool]) -> f64 {
        let mut cost = 0.0;
        for window in 0..self.windows {
            if !place[window] {
                cost += unit.traffic[window] as f64;
            }
            if place[window] != place[(window + 1) % self.windows] {
                cost += self.move_cost * unit.size as f64;
            }
        }
        cost
    }

    /// Bytes on the device in each window.
    pub fn used(&self, placement: &Placement) -> Vec<u64> {
        let mut used = vec![0; self.windows];
        for (unit, place) in self.units.iter().zip(placement) {
            for (used, &device) in used.iter_mut().zip(place) {
                *used += if device { unit.size } else { 0 };
            }
        }
        used
    }

    /// The cheapest placement found that fits.
    pub fn place(&self) -> Placement {
        let total: u64 = self.units.iter().map(|unit| unit.size).sum();
        if total <= self.capacity || self.windows == 0 {
            return vec![vec![true; self.windows]; self.units.len()];
        }
        let mut best = self.resting();
        let mut least = self.cost(&best);
        let mut prices = vec![0.0; self.windows];
        // A byte on the device is worth about what it saves: start with steps of that size.
        let traffic: f64 = self
            .units
            .iter()
            .flat_map(|unit| &unit.traffic)
            .map(|&bytes| bytes as f64)
            .sum();
        let scale = (traffic / total as f64 / self.windows as f64)
            .max(self.move_cost / self.windows as f64);
        for round in 0..ROUNDS {
            let mut placement: Placement = self
                .units
                .iter()
                .map(|unit| self.best_of(unit, &prices))
                .collect();
            let stride = 4.0 * scale / (1.0 + round as f64 / 6.0);
            for (price, used) in prices.iter_mut().zip(self.used(&placement)) {
                let excess = (used as f64 - self.capacity as f64) / self.capacity.max(1) as f64;
                *price = f64::max(0.0, *price + stride * excess);
            }
            // The first rounds are far from fitting.
            if round >= ROUNDS / 8 && round % 2 == 0 {
                self.repair(&mut placement);
                let cost = self.cost(&placement);
                if cost < least {
                    (best, least) = (placement, cost);
                }
            }
        }
        self.improve(&mut best);
        for share in NEEDED {
            let mut placement = self.by_next_need(share);
            self.improve(&mut placement);
            if self.cost(&placement) < self.cost(&best) {
                best = placement;
            }
        }
        best
    }

    /// Belady's rule: what a window needs comes to the device, and who is needed last makes room. Who has less
    /// traffic in a window than this share of its size does not need it there.
    fn by_next_need(&self, share: f64) -> Placement {
        let needs = |unit: &Unit, window: usize| {
            unit.traffic[window % self.windows] as f64 > share * unit.size as f64
        };
        // How many windows later each unit is needed, from each window on.
        let ahead: Vec<Vec<usize>> = self
            .units
            .iter()
            .map(|unit| {
                let mut next = vec![2 * self.windows; self.windows];
                let mut last = 2 * self.windows;
                for window in (0..2 * self.windows).rev() {
                    last = if needs(unit, window) { 0 } else { last + 1 };
                    next[window % self.windows] = last;
                }
                next
            })
            .collect();
        let mut placement = vec![vec![false; self.windows]; self.units.len()];
        let mut on_device = vec![false; self.units.len()];
        let mut room = self.capacity;
        // Twice round, so that the end of the step meets its beginning.
        for window in (0..self.windows).chain(0..self.windows) {
            let mut leaving: Vec<usize> = (0..self.units.len())
                .filter(|&unit| on_device[unit] && ahead[unit][window] > 0)
                .collect();
            leaving.sort_by_key(|&unit| ahead[unit][window]);
            for unit in 0..self.units.len() {
                if on_device[unit] || ahead[unit][window] > 0 {
                    continue;
                }
                while room < self.units[unit].size
                    && let Some(other) = leaving.pop()
                {
                    on_device[other] = false;
                    room += self.units[other].size;
                }
                if let Some(rest) = room.checked_sub(self.units[unit].size) {
                    (on_device[unit], room) = (true, rest);
                }
            }
            for (place, &on) in placement.iter_mut().zip(&on_device) {
                place[window] = on;
            }
        }
        // In the first window of the second round others may lie on the device than after its last: it is one step.
        self.repair(&mut placement);
        placement
    }

    /// A good placement in which nothing moves: units by what they save a byte, or before them the one that saves most,
    /// which many small ones may leave no room for.
    fn resting(&self) -> Placement {
        let saved = |index: &usize| self.units[*index].traffic.iter().sum::<u64>() as f64;
        let a_byte = |index: &usize| saved(index) / self.units[*index].size.max(1) as f64;
        let mut order: Vec<usize> = (0..self.units.len()).collect();
        order.sort_by(|a, b| a_byte(b).total_cmp(&a_byte(a)));
        let filled = |order: &[usize]| {
            let mut placement = vec![vec![false; self.windows]; self.units.len()];
            let mut room = self.capacity;
            for &index in order {
                if let Some(rest) = room.checked_sub(self.units[index].size) {
                    room = rest;
                    placement[index].fill(true);
                }
            }
            placement
        };
        let by_byte = filled(&order);
        order.sort_by(|a, b| {
            let large = |index: &usize| self.units[*index].size <= self.capacity;
            large(b).cmp(&large(a)).then(saved(b).total_cmp(&saved(a)))
        });
        if let Some((_, rest)) = order.split_first_mut() {
            rest.sort_by(|a, b| a_byte(b).total_cmp(&a_byte(a)));
        }
        let by_unit = filled(&order);
        if self.cost(&by_unit) < self.cost(&by_byte) {
            by_unit
        } else {
            by_byte
        }
    }

    /// The cheapest way round the step for one unit, at these prices for a byte in each window.
    fn best_of(&self, unit: &Unit, prices: &[f64]) -> Vec<bool> {
        let size = unit.size as f64;
        let change = self.move_cost * size;
        let cost = |window: usize, device: bool| {
            if device {
                prices[window] * size
            } else {
                unit.traffic[window] as f64
            }
        };
        let way = |first: bool| {
            // The least cost of each window's two places, and from where.
            let mut from = vec![[false; 2]; self.windows];
            let mut least = [f64::INFINITY; 2];
            least[usize::from(first)] = cost(0, first);
            for (window, from) in from.iter_mut().enumerate().skip(1) {
                let mut next = [0.0; 2];
                for device in [false, true] {
                    let here = usize::from(device);
                    let (stays, moves) = (least[here], least[1 - here] + change);
                    from[here] = if stays <= moves { device } else { !device };
                    next[here] = stays.min(moves) + cost(window, device);
                }
                least = next;
            }
            // And back to where it began.
            let (stays, moves) = (
                least[usize::from(first)],
                least[usize::from(!first)] + change,
            );
            let mut place = vec![first; self.windows];
            let mut device = if stays <= moves { first } else { !first };
            for window in (0..self.windows).rev() {
                place[window] = device;
                device = from[window][usize::from(device)];
            }
            (stays.min(moves), place)
        };
        let (host, device) = (way(false), way(true));
        if host.0 <= device.0 { host.1 } else { device.1 }
    }

    /// Lets each unit decide again, with the room that the others leave.
    fn improve(&self, placement: &mut Placement) {
        for _ in 0..2 {
            let mut used = self.used(placement);
            for (unit, place) in self.units.iter().zip(placement.iter_mut()) {
                let others: Vec<u64> = used
                    .iter()
                    .zip(&*place)
                    .map(|(&used, &device)| used - if device { unit.size } else { 0 })
                    .collect();
                let full = |&others: &u64| {
                    if others + unit.size > self.capacity {
                        f64::INFINITY
                    } else {
                        0.0
                    }
                };
                let better = self.best_of(unit, &others.iter().map(full).collect::<Vec<f64>>());
                if self.cost_of(unit, &better) < self.cost_of(unit, place) {
                    *place = better;
                }
                for ((used, others), &device) in used.iter_mut().zip(others).zip(&*place) {
                    *used = others + if device { unit.size } else { 0 };
                }
            }
        }
    }

    /// Moves units out of windows that hold too much, and into those that have room, by what it saves a byte.
    fn repair(&self, placement: &mut Placement) {
        for window in 0..self.windows {
            let mut used: u64 = self
                .units
                .iter()
                .zip(&*placement)
                .map(|(unit, place)| if place[window] { unit.size } else { 0 })
                .sum();
            let mut order: Vec<(f64, usize)> = (0..self.units.len())
                .map(|index| (self.worth(index, window, &placement[index]), index))
                .collect();
            order.sort_by(|a, b| a.0.total_cmp(&b.0));
            for &(_, index) in &order {
                if used <= self.capacity {
                    break;
                }
                if placement[index][window] {
                    placement[index][window] = false;
                    used -= self.units[index].size;
                }
            }
            for &(worth, index) in order.iter().rev() {
                let size = self.units[index].size;
                if worth > 0.0 && !placement[index][window] && used + size <= self.capacity {
                    placement[index][window] = true;
                    used += size;
                }
            }
        }
    }

    /// What it saves to have a unit on the device in one window, the others as they are, for each byte.
    fn worth(&self, index: usize, window: usize, place: &[bool]) -> f64 {
        let unit = &self.units[index];
        let before = place[(window + self.windows - 1) % self.windows];
        let after = place[(window + 1) % self.windows];
        let moves =
            |device: bool| f64::from(u8::from(device != before) + u8::from(device != after));
        let change = self.move_cost * (moves(false) - moves(true));
        change + unit.traffic[window] as f64 / unit.size.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn step(most_units: usize, windows: std::ops::Range<usize>) -> impl Strategy<Value = Step> {
        windows.prop_flat_map(move |windows| {
            let traffic =
                proptest::collection::vec(prop_oneof![3 => Just(0_u64), 2 => 1..40_u64], windows);
            let unit = (1..8_u64, traffic).prop_map(|(size, traffic)| Unit {
                size,
                traffic: traffic.into_iter().map(|times| times * size / 4).collect(),
            });
            (
                proptest::collection::vec(unit, 1..most_units),
                0..30_u64,
                0.3..3.0_f64,
            )
                .prop_map(move |(units, capacity, move_cost)| Step {
                    units,
                    windows,
                    capacity,
                    move_cost,
                })
        })
    }

    fn fits(step: &Step, placement: &Placement) -> bool {
        step.used(placement)
            .iter()
            .all(|&used| used <= step.capacity)
    }

    /// Belady's rule: what a window needs comes to the device, and who is needed last makes room. Twice
    /// round, so that the end of the step meets its beginning.
    fn belady(step: &Step) -> Placement {
        let mut placement = vec![vec![false; step.windows]; step.units.len()];
        let mut on_device = vec![false; step.units.len()];
        for window in (0..step.windows).chain(0..step.windows) {
            let next = |index: usize| {
                (0..step.windows)
                    .find(|ahead| step.units[index].traffic[(window + ahead) % step.windows] > 0)
            };
            for index in 0..step.units.len() {
                let size = step.units[index].size;
                if step.units[index].traffic[window] == 0
                    || on_device[index]
                    || size > step.capacity
                {
                    continue;
                }
                let mut order: Vec<usize> = (0..step.units.len())
                    .filter(|&other| on_device[other])
                    .collect();
                order.sort_by_key(|&other| std::cmp::Reverse(next(other).unwrap_or(usize::MAX)));
                let used = |on_device: &[bool]| -> u64 {
                    step.units
                        .iter()
                        .zip(on_device)
                        .map(|(unit, &on)| if on { unit.size } else { 0 })
                        .sum()
                };
                for other in order {
                    if used(&on_device) + size > step.capacity && next(other) != Some(0) {
                        on_device[other] = false;
                    }
                }
                on_device[index] = used(&on_device) + size <= step.capacity;
            }
            for (place, &on) in placement.iter_mut().zip(&on_device) {
                place[window] = on;
            }
        }
        placement
    }

    /// All placements, tried.
    fn least_of_all(step: &Step) -> f64 {
        let bits = step.units.len() * step.windows;
        (0..1_u64 << bits)
            .map(|number| -> Placement {
                (0..step.units.len())
                    .map(|unit| {
                        (0..step.windows)
                            .map(|window| number >> (unit * step.windows + window) & 1 == 1)
                            .collect()
                    })
                    .collect()
            })
            .filter(|placement| fits(step, placement))
            .map(|placement| step.cost(&placement))
            .min_by(f64::total_cmp)
            .expect("nothing on the device always fits")
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn a_placement_fits_and_costs_no_more_than_one_at_rest(step in step(24, 1..12)) {
            let placement = step.place();
            prop_assert!(fits(&step, &placement));
            prop_assert!(step.cost(&placement) <= step.cost(&step.resting()));
        }

        #[test]
        fn where_all_fits_nothing_moves_and_nothing_is_on_the_host(mut step in step(12, 1..8)) {
            step.capacity = step.units.iter().map(|unit| unit.size).sum();
            prop_assert!(step.cost(&step.place()) < f64::EPSILON);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn of_all_placements_it_finds_nearly_the_cheapest(step in step(4, 2..5)) {
            let least = least_of_all(&step);
            let found = step.cost(&step.place());
            let none = step.units.iter().flat_map(|unit| &unit.traffic).sum::<u64>() as f64;
            prop_assert!(found - least <= 0.25 * none, "found {found}, least {least}, without device memory {none}");
        }
    }

    #[test]
    fn a_large_unit_is_not_kept_out_by_a_small_one_that_saves_more_a_byte() {
        let unit = |size, traffic: [u64; 4]| Unit {
            size,
            traffic: traffic.to_vec(),
        };
        let step = Step {
            units: vec![unit(7, [14, 0, 0, 8]), unit(1, [0, 0, 3, 1])],
            windows: 4,
            capacity: 7,
            move_cost: 1.4,
        };
        assert!((step.cost(&step.place()) - 4.0).abs() < 1e-9);
    }

    /// A training step: each layer writes its activations in the forward pass and reads them in the backward
    /// pass, in the other order.
    fn training(layers: usize, capacity: u64) -> Step {
        let windows = 2 * layers;
        let unit = |layer: usize| {
            let mut traffic = vec![0; windows];
            traffic[layer] = 300;
            traffic[windows - 1 - layer] = 300;
            Unit { size: 100, traffic }
        };
        Step {
            units: (0..layers).map(unit).collect(),
            windows,
            capacity,
            move_cost: 0.5,
        }
    }

    #[test]
    fn a_training_step_costs_no_more_than_by_beladys_rule() {
        for layers in [6, 12, 16] {
            for share in [90, 75, 50, 25] {
                let step = training(layers, layers as u64 * share);
                let (found, belady) = (step.cost(&step.place()), step.cost(&belady(&step)));
                assert!(fits(&step, &step.place()));
                assert!(
                    found <= belady * 1.01,
                    "{layers} layers at {share} %: {found} against {belady}"
                );
            }
        }
    }

    /// A step as an H200 did it: where moving costs little, Belady's rule is a better start than prices, and where it
    /// costs as much as today, a placement that moves some units is better than one at rest.
    #[test]
    fn a_recorded_step_is_placed_as_well_as_is_known() {
        let numbers = |line: &str| -> Vec<u64> {
            line.split(' ')
                .map(|number| number.parse().unwrap())
                .collect()
        };
        let text = include_str!("../fixtures/unet_step.txt");
        let mut lines = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(numbers);
        let capacity = lines.next().unwrap()[0];
        let units: Vec<Unit> = lines
            .map(|line| Unit {
                size: line[0],
                traffic: line[1..].to_vec(),
            })
            .collect();
        let windows = units[0].traffic.len();
        // MiB over the link.
        for (move_cost, known) in [(1.1, 2630.0), (0.56, 1400.0), (0.0, 0.0)] {
            let step = Step {
                units: units.clone(),
                windows,
                capacity,
                move_cost,
            };
            let placement = step.place();
            let cost = step.cost(&placement) / 1024.0;
            assert!(fits(&step, &placement));
            assert!(cost <= known * 1.02, "{move_cost}: {cost}");
        }
    }
}
