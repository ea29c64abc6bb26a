//! Estimates how long cuDNN's plans take, from the tensors and operations that a program describes.
//!
//! The library's heuristics return the fastest plan first, so each later plan of a graph is
//! assumed to be slower than the one before it: benchmark mode then usually picks what the heuristics
//! would. XLA makes a graph for each plan, so there each later plan of a convolution is.

use std::collections::{HashMap, HashSet};
use std::ffi::{c_int, c_void};
use std::time::Duration;

use crate::clock::{ALIGNED, Kind, LAUNCH, Product, Rates};
use crate::sync::Mutex;
use crate::work::{self, Work};

/// Kinds of descriptors and types of attributes in `cudnn_graph.h`.
const PLAN_DESCRIPTOR: c_int = 5;
const GRAPH_DESCRIPTOR: c_int = 15;
const TYPE_DATA_TYPE: c_int = 1;
const TYPE_INT64: c_int = 3;
const TYPE_BOOLEAN: c_int = 2;
const TYPE_POINTWISE_MODE: c_int = 14;
const TYPE_DESCRIPTOR: c_int = 15;

/// A number for each place of a tensor, which a causal mask is made of.
const GENERATED_INDEX: c_int = 501;

/// Attributes in `cudnn_graph.h`.
const POINTWISE_MODE: c_int = 0;
const POINTWISE_DESCRIPTOR: c_int = 750;
const GRAPH_OPERATIONS: c_int = 801;
const TENSOR_KIND: c_int = 901;
const TENSOR_DIMENSIONS: c_int = 902;
const TENSOR_STRIDES: c_int = 903;
const TENSOR_VIRTUAL: c_int = 907;
/// Weights and results of convolutions forward, backward to the data and to the filter. What each was given as data
/// lies between.
const CONVOLUTIONS: [(c_int, c_int); 3] = [(703, 705), (709, 711), (715, 717)];
/// The images, or their gradient, of the same.
const CONVOLVED: [Option<c_int>; 3] = [Some(704), Some(710), Some(716)];
const PRODUCT_A: c_int = 1520;
const PRODUCT_B: c_int = 1521;
/// Queries and keys of attention that is one operation, and the products that it makes of them.
const ATTENTION: [(c_int, c_int, u8); 2] = [(2800, 2801, 2), (2851, 2852, 5)];

/// How much slower a plan is than the one before it.
const STEP: f64 = 0.03;
/// How much slower the gradients of a convolution are than the convolution.
const BACKWARD: f64 = 1.35;

#[derive(Debug, Clone, Default)]
struct Tensor {
    kind: c_int,
    dims: Vec<u64>,
    strides: Vec<u64>,
    within: bool,
}

impl Tensor {
    fn elements(&self) -> u64 {
        self.dims.iter().product()
    }

    const fn bytes_per_element(&self) -> u64 {
        match self.kind {
            1 | 10 => 8,
            2 | 9 => 2,
            3 | 6 | 11 | 12 | 13 => 1,
            _ => 4,
        }
    }
}

#[derive(Debug, Default)]
struct Described {
    tensors: HashMap<u64, Tensor>,
    /// The descriptors that each operation was given, by attribute.
    operations: HashMap<u64, Vec<(c_int, u64)>>,
    /// Descriptors of `GENERATED_INDEX`, and of operations that are that.
    indices: HashSet<u64>,
    graphs: HashMap<u64, Vec<u64>>,
    /// The graph finalized last, for which plans are made: its time, its work, and how many it has.
    current: (Duration, Option<Work>, u32),
    plans: HashMap<u64, (Duration, Option<Work>)>,
    /// How many plans XLA has made for a convolution.
    tried: HashMap<Work, u32>,
}

static DESCRIBED: std::sync::LazyLock<Mutex<Described>> =
    std::sync::LazyLock::new(|| Mutex::new(Described::default()));

/// Records an attribute of any descriptor.
///
/// # Safety
/// `values` must hold `count` values of the type `kind`.
pub unsafe fn described(
    descriptor: u64,
    attribute: c_int,
    kind: c_int,
    count: i64,
    values: *const c_void,
) {
    /// Longer lists than any tensor or graph has are not read.
    const LONGEST: i64 = 256;
    if values.is_null() || !(1..=LONGEST).contains(&count) {
        return;
    }
    // SAFETY: there are `count` values; it is called for kinds of eight bytes only.
    let wide =
        || (0..count as usize).map(|at| unsafe { values.cast::<u64>().add(at).read_unaligned() });
    let mut all = DESCRIBED.lock();
    match (attribute, kind) {
        (TENSOR_DIMENSIONS, TYPE_INT64) => {
            all.tensors.entry(descriptor).or_default().dims = wide().collect();
        }
        (TENSOR_STRIDES, TYPE_INT64) => {
            all.tensors.entry(descriptor).or_default().strides = wide().collect();
        }
        (TENSOR_KIND, TYPE_DATA_TYPE) => {
            // SAFETY: there is one value, and this kind is a C enumeration.
            all.tensors.entry(descriptor).or_default().kind =
                unsafe { values.cast::<c_int>().read_unaligned() };
        }
        (TENSOR_VIRTUAL, TYPE_BOOLEAN) => {
            // SAFETY: there is one value, and this kind is a byte.
            all.tensors.entry(descriptor).or_default().within =
                unsafe { values.cast::<u8>().read() } != 0;
        }
        (POINTWISE_MODE, TYPE_POINTWISE_MODE)
            // SAFETY: there is one value, and this kind is a C enumeration.
            if unsafe { values.cast::<c_int>().read_unaligned() } == GENERATED_INDEX =>
        {
            all.indices.insert(descriptor);
        }
        (GRAPH_OPERATIONS, TYPE_DESCRIPTOR) => {
            all.graphs.insert(descriptor, wide().collect());
        }
        (700..=799 | 1500..=2899, TYPE_DESCRIPTOR) => {
            // What tells the kind of an operation may be gone before the operation.
            if attribute == POINTWISE_DESCRIPTOR && wide().any(|kind| all.indices.contains(&kind)) {
                all.indices.insert(descriptor);
            }
            all.operations
                .entry(descriptor)
                .or_default()
                .extend(wide().map(|given| (attribute, given)));
        }
        _ => {}
    }
}

/// A descriptor was made.
pub fn created(descriptor: u64, kind: c_int) {
    let mut all = DESCRIBED.lock();
    // It may lie where another one was whose end was not seen.
    all.forget(descriptor);
    match kind {
        GRAPH_DESCRIPTOR => drop(all.graphs.insert(descriptor, Vec::new())),
        PLAN_DESCRIPTOR => drop(all.plans.insert(descriptor, (LAUNCH, None))),
        _ => {}
    }
}

/// A descriptor was finalized. XLA makes a graph for each plan that it tries, in the order that the heuristics gave.
pub fn finalized(rates: &Rates, descriptor: u64, by_xla: bool) {
    let mut all = DESCRIBED.lock();
    if all.graphs.contains_key(&descriptor) {
        all.current = (
            all.graph_time(rates, descriptor),
            all.graph_work(descriptor),
            0,
        );
    } else if all.plans.contains_key(&descriptor) {
        let (time, work, of_graph) = all.current;
        all.current.2 += 1;
        let earlier = match work {
            Some(convolution @ Work::Convolution { .. }) if by_xla => {
                let made = all.tried.entry(convolution).or_default();
                *made += 1;
                *made - 1
            }
            _ => of_graph,
        };
        let slower = time.mul_f64(1.0 + STEP * f64::from(earlier));
        all.plans.insert(descriptor, (slower, work));
    }
}

/// A descriptor is gone.
pub fn forgotten(descriptor: u64) {
    DESCRIBED.lock().forget(descriptor);
}

/// The estimated time of a plan.
pub fn time(plan: u64) -> Duration {
    let all = DESCRIBED.lock();
    all.plans.get(&plan).map_or(LAUNCH, |plan| plan.0)
}

/// What is assumed where XLA compares plans.
const IN_ORDER: &str = "XLA tries many of cuDNN's engines for a convolution; here the first that cuDNN names is the quickest: on a GPU it may be another, with \
    another work space, and close to the limit the verdict may be another there";

/// Notes what a plan does.
pub fn note(plan: u64) {
    let work = DESCRIBED.lock().plans.get(&plan).and_then(|plan| plan.1);
    if matches!(work, Some(Work::Convolution { .. })) && crate::device::look().is_xla {
        crate::ledger::assume("cuDNN", IN_ORDER);
    }
    work::note(work.unwrap_or(Work::Moving {
        bytes: 0,
        what: "cudnn",
    }));
}

/// An estimate of the work space that the first plan for a graph asks for, in bytes, after what cuDNN 9.19 says for an
/// H200 (the tests have its answers): tensors whose channels do not come last are copied, in an order in which they do, and 16-bit
/// ones padded to full vectors; partial sums of a weight's gradient are added up in the end.
pub fn work_space(graph: u64) -> u64 {
    let all = DESCRIBED.lock();
    let operations = all.graphs.get(&graph).map_or(&[][..], Vec::as_slice);
    operations
        .iter()
        .filter_map(|operation| all.operations.get(operation))
        .map(|given| all.convolution_work_space(given))
        .sum()
}

/// Where in [`CONVOLUTIONS`] the gradient of the weights is.
const OF_WEIGHTS: usize = 2;
/// The partial sums of a weight's gradient: so many, in so many bytes at most.
const PARTIAL_SUMS: u64 = 14;
const PARTIAL_BYTES: u64 = 8 << 20;
/// Channels come in vectors of this many 16-bit numbers.
const VECTOR: u64 = 8;

impl Described {
    fn convolution_work_space(&self, given: &[(c_int, u64)]) -> u64 {
        let find = |attribute| {
            let found = given.iter().find(|(each, _)| *each == attribute);
            found.and_then(|(_, tensor)| self.tensors.get(tensor))
        };
        let mut kinds = CONVOLUTIONS.into_iter().enumerate();
        let Some((kind, [weights, data, result])) = kinds.find_map(|(kind, (weights, result))| {
            let three = [weights, weights + 1, result].map(find);
            let [Some(weights), Some(data), Some(result)] = three else {
                return None;
            };
            Some((kind, [weights, data, result]))
        }) else {
            return 0;
        };
        let (Some(&depth), Some(&channels)) = (weights.dims.get(1), data.dims.get(1)) else {
            return 0;
        };
        if depth == 1 {
            return 0; // each channel by itself, or only one
        }
        let space = |tensor: &'_ Tensor| {
            tensor
                .dims
                .get(2..)
                .map(<[u64]>::to_vec)
                .unwrap_or_default()
        };
        let window: u64 = space(weights).iter().product();
        let pixels: u64 = space(data).iter().product();
        let is_product = window == 1 && space(data) == space(result);
        let first = |tensor: &Tensor| tensor.strides.get(1).is_some_and(|&step| step != 1);
        let mut bytes = 0;
        if !(is_product && first(data) && pixels.is_multiple_of(4)) {
            for tensor in [data, weights, result] {
                let across = tensor.dims.get(1).copied().unwrap_or(1).max(1);
                let padded = if tensor.bytes_per_element() == 2 && depth == channels {
                    across.next_multiple_of(VECTOR)
                } else {
                    across
                };
                if first(tensor) || padded != across {
                    bytes += tensor.elements() / across * padded * tensor.bytes_per_element();
                }
            }
        }
        if kind == OF_WEIGHTS {
            bytes += (PARTIAL_SUMS * 4 * weights.elements()).min(PARTIAL_BYTES);
        }
        bytes
    }

    fn forget(&mut self, descriptor: u64) {
        self.tensors.remove(&descriptor);
        self.operations.remove(&descriptor);
        self.indices.remove(&descriptor);
        self.graphs.remove(&descriptor);
        self.plans.remove(&descriptor);
    }

    /// The attributes of each operation of a graph.
    fn given(&self, graph: u64) -> impl Iterator<Item = &Vec<(c_int, u64)>> + Clone {
        let operations = self.graphs.get(&graph).map_or(&[][..], Vec::as_slice);
        operations
            .iter()
            .filter_map(|operation| self.operations.get(operation))
    }

    /// What a graph reads and writes of the device's memory.
    fn outside(&self, graph: u64) -> impl Iterator<Item = &Tensor> + Clone {
        self.given(graph)
            .flatten()
            .filter_map(|(_, tensor)| self.tensors.get(tensor))
            .filter(|tensor| !tensor.within)
    }

    /// What a graph does: its first convolution, or its products, or what it moves.
    fn graph_work(&self, graph: u64) -> Option<Work> {
        let outside = self.outside(graph);
        let kind = outside.clone().map(|tensor| tensor.kind);
        let kind = if kind.clone().any(|kind| kind == 9) {
            Kind::Bf16
        } else if kind.clone().any(|kind| kind == 2) {
            Kind::Fp16
        } else {
            Kind::Tf32
        };
        let bytes: u64 = outside
            .map(|tensor| tensor.elements() * tensor.bytes_per_element())
            .sum();
        let mut scores: Option<[u64; 4]> = None;
        let mut products = 0;
        let operations = self.graphs.get(&graph).map_or(&[][..], Vec::as_slice);
        let causal = operations.iter().any(|each| self.indices.contains(each));
        for given in self.given(graph) {
            let find = |attribute| {
                given
                    .iter()
                    .find(|(each, _)| *each == attribute)
                    .and_then(|(_, tensor)| self.tensors.get(tensor))
            };
            for (direction, &(weights, result)) in CONVOLUTIONS.iter().enumerate() {
                let (Some(weights), Some(result)) = (find(weights), find(result)) else {
                    continue;
                };
                let images = CONVOLVED[direction].and_then(find);
                let (Some(images), Some(&[filters, depth, ..])) = (images, weights.dims.get(..2))
                else {
                    continue;
                };
                let channels = images.dims.get(1).copied().unwrap_or(depth);
                let window: u64 = weights.dims[2..].iter().product();
                let pixels = result.dims.iter().product::<u64>() / result.dims.get(1)?.max(&1);
                let number = images.dims.first().copied().unwrap_or(1);
                return Some(Work::Convolution {
                    direction: direction as u8,
                    product: Product {
                        m: pixels,
                        n: filters,
                        k: depth,
                        batch: number,
                        kind,
                        alignment: ALIGNED,
                    },
                    groups: channels / depth.max(1),
                    window,
                    outside: bytes,
                    last: result.strides.get(1) == Some(&1),
                });
            }
            for (queries, keys, of_each) in ATTENTION {
                if let (Some(queries), Some(keys)) = (find(queries), find(keys))
                    && let (&[.., rows, features], &[.., a, b]) =
                        (&queries.dims[..], &keys.dims[..])
                {
                    let heads = queries.elements() / (rows * features).max(1);
                    let columns = if b == features { a } else { b };
                    scores.get_or_insert([heads, rows, columns, features]);
                    products += of_each;
                }
            }
            if let (Some(left), Some(right)) = (find(PRODUCT_A), find(PRODUCT_B))
                && let (Some(&[m, k]), Some(&n)) = (left.dims.last_chunk(), right.dims.last())
            {
                // The first one is that of queries and keys.
                let heads: u64 = left.dims[..left.dims.len() - 2].iter().product();
                scores.get_or_insert([heads, m, n, k]);
                products += 1;
            }
        }
        Some(match scores {
            Some([heads, queries, keys, features]) => Work::Attention {
                heads,
                queries,
                keys,
                features,
                causal,
                products,
                kind: kind as u8,
                bytes,
            },
            None => Work::Moving {
                bytes,
                what: "cudnn",
            },
        })
    }

    fn graph_time(&self, rates: &Rates, graph: u64) -> Duration {
        let outside = self.outside(graph);
        let halves = outside
            .clone()
            .any(|tensor| tensor.bytes_per_element() == 2);
        let bytes: u64 = outside
            .map(|tensor| tensor.elements() * tensor.bytes_per_element())
            .sum();
        let computing: Duration = self
            .given(graph)
            .map(|given| self.operation_time(rates, given, halves))
            .sum();
        computing.max(rates.moving(bytes as f64))
    }

    /// The time of one operation, where it is a product at heart.
    fn operation_time(&self, rates: &Rates, given: &[(c_int, u64)], halves: bool) -> Duration {
        let find = |attribute| {
            given
                .iter()
                .find(|(each, _)| *each == attribute)
                .and_then(|(_, tensor)| self.tensors.get(tensor))
        };
        let kind = if halves { Kind::Bf16 } else { Kind::Tf32 };
        for (index, (weights, result)) in CONVOLUTIONS.into_iter().enumerate() {
            let (Some(weights), Some(result)) = (find(weights), find(result)) else {
                continue;
            };
            let (Some(&[filters, depth, ..]), Some(&[count, channels, ..])) =
                (weights.dims.get(..4), result.dims.get(..4))
            else {
                continue;
            };
            let window: u64 = weights.dims[2..].iter().product();
            let pixels = count * result.dims[2..].iter().product::<u64>();
            // Groups cannot be told apart from here; their products are as deep as one group's.
            let product = Product {
                m: pixels,
                n: filters.max(channels),
                k: depth * window,
                batch: 1,
                kind,
                alignment: ALIGNED,
            };
            let slower = if index == 0 { 1.0 } else { BACKWARD };
            let mut time = rates.product(&product).mul_f64(slower);
            // Channels come last inside; anything else is turned around first and after.
            if result.strides.get(1).is_some_and(|&stride| stride != 1) {
                time += rates.moving((4 * result.elements() * result.bytes_per_element()) as f64);
            }
            return time;
        }
        let (Some(left), Some(right)) = (find(PRODUCT_A), find(PRODUCT_B)) else {
            return Duration::ZERO;
        };
        let (Some(&[m, k]), Some(&n)) = (left.dims.last_chunk(), right.dims.last()) else {
            return Duration::ZERO;
        };
        let batch = left.dims[..left.dims.len() - 2].iter().product();
        // What lies between two products never leaves the chip, so only the operations count.
        let flat = Product {
            m,
            n,
            k,
            batch,
            kind,
            alignment: ALIGNED,
        };
        rates
            .computing(&flat)
            .div_f64(attention_efficiency(n.max(k)))
    }
}

/// The part of large products' rate that products for attention over sequences of this length reach,
/// as measured on an H200 (`bench/gpu/results/h200_operators.json`): short ones fill it badly, and of
/// long causal ones half is left out.
fn attention_efficiency(length: u64) -> f64 {
    const MEASURED: [(f64, f64); 3] = [(512.0, 0.25), (1024.0, 0.38), (2048.0, 0.8)];
    let length = length as f64;
    let (mut below, mut efficiency) = MEASURED[0];
    for (at, reached) in MEASURED {
        if length <= at {
            let share = if at > below {
                (length - below) / (at - below)
            } else {
                1.0
            };
            return efficiency + (reached - efficiency) * share;
        }
        (below, efficiency) = (at, reached);
    }
    efficiency
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::device::Properties;

    fn rates() -> Rates {
        let config = Config::parse("");
        Rates::new(&config, &Properties::new(&config))
    }

    fn tensor(descriptor: u64, kind: c_int, dims: &[u64], strides: &[u64]) {
        // SAFETY: the counts are those of the values.
        unsafe {
            described(
                descriptor,
                TENSOR_KIND,
                TYPE_DATA_TYPE,
                1,
                (&raw const kind).cast(),
            );
            described(
                descriptor,
                TENSOR_DIMENSIONS,
                TYPE_INT64,
                dims.len() as i64,
                dims.as_ptr().cast(),
            );
            described(
                descriptor,
                TENSOR_STRIDES,
                TYPE_INT64,
                strides.len() as i64,
                strides.as_ptr().cast(),
            );
        }
    }

    #[test]
    fn attention_is_told_by_its_first_product_and_its_mask_by_an_index() {
        let (q, k, scores, index, graph) = (9001, 9002, 9003, 9004, 9005_u64);
        let (product, masking) = (9006, 9007_u64);
        created(graph, GRAPH_DESCRIPTOR);
        tensor(q, 9, &[2, 12, 512, 64], &[393_216, 32_768, 64, 1]);
        tensor(k, 9, &[2, 12, 64, 256], &[196_608, 16_384, 1, 64]);
        tensor(scores, 0, &[2, 12, 512, 256], &[1_572_864, 131_072, 256, 1]);
        let give = |to: u64, attribute, given: &[u64]| {
            // SAFETY: as many descriptors as are counted.
            unsafe {
                described(
                    to,
                    attribute,
                    TYPE_DESCRIPTOR,
                    given.len() as i64,
                    given.as_ptr().cast(),
                );
            }
        };
        give(product, PRODUCT_A, &[q]);
        give(product, PRODUCT_B, &[k]);
        give(masking, POINTWISE_DESCRIPTOR, &[index]);
        give(graph, GRAPH_OPERATIONS, &[product, masking]);
        let causal = || match DESCRIBED.lock().graph_work(graph) {
            Some(Work::Attention {
                heads: 24,
                queries: 512,
                keys: 256,
                features: 64,
                causal,
                products: 1,
                ..
            }) => causal,
            other => panic!("{other:?}"),
        };
        assert!(!causal());
        let mode = GENERATED_INDEX;
        // SAFETY: one value of a C enumeration.
        unsafe {
            described(
                index,
                POINTWISE_MODE,
                TYPE_POINTWISE_MODE,
                1,
                (&raw const mode).cast(),
            );
        }
        give(masking, POINTWISE_DESCRIPTOR, &[index]);
        forgotten(index);
        assert!(causal());
        // Attention without a mask is one operation.
        created(graph, GRAPH_DESCRIPTOR);
        forgotten(product);
        give(product, ATTENTION[0].0, &[q]);
        give(product, ATTENTION[0].1, &[k]);
        give(graph, GRAPH_OPERATIONS, &[product]);
        let work = DESCRIBED.lock().graph_work(graph);
        assert!(
            matches!(
                work,
                Some(Work::Attention {
                    keys: 256,
                    products: 2,
                    causal: false,
                    ..
                })
            ),
            "{work:?}"
        );
    }

    #[test]
    fn a_convolution_takes_its_time_and_later_plans_take_longer() {
        let (x, w, y, operation, graph) = (1, 2, 3, 4, 5_u64);
        created(graph, GRAPH_DESCRIPTOR);
        tensor(x, 9, &[64, 512, 28, 28], &[401_408, 1, 14_336, 512]);
        tensor(w, 9, &[512, 512, 3, 3], &[4608, 1, 1536, 512]);
        tensor(y, 9, &[64, 512, 28, 28], &[401_408, 1, 14_336, 512]);
        for (attribute, given) in [(703, w), (704, x), (705, y), (GRAPH_OPERATIONS, operation)] {
            let to = if attribute == GRAPH_OPERATIONS {
                graph
            } else {
                operation
            };
            // SAFETY: a count of one, and a descriptor is what `given` is.
            unsafe { described(to, attribute, TYPE_DESCRIPTOR, 1, (&raw const given).cast()) };
        }
        finalized(&rates(), graph, false);
        for plan in 10..14 {
            created(plan, PLAN_DESCRIPTOR);
            finalized(&rates(), plan, false);
        }
        let measured = 292.1;
        let first = time(10).as_secs_f64() * 1e6;
        assert!((0.8..1.25).contains(&(first / measured)), "{first} us");
        assert!((10..13).all(|plan| time(plan) < time(plan + 1)));
        // XLA's plans each have a graph of their own.
        for plan in 20..24 {
            finalized(&rates(), graph, true);
            created(plan, PLAN_DESCRIPTOR);
            finalized(&rates(), plan, true);
        }
        assert!((20..23).all(|plan| time(plan) < time(plan + 1)));
        forgotten(10);
        assert_eq!(time(10), LAUNCH);
    }

    /// What cuDNN 9.19 says for an H200: `bench/matrix/work_spaces.py`.
    #[test]
    fn estimated_work_spaces_are_mostly_those_of_a_newer_cudnn() {
        let text = include_str!("../../../bench/matrix/results/work_spaces.jsonl");
        let mut close = [0; 3];
        let mut next = 1_000_u64;
        for line in text.lines() {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            let shape: Vec<u64> = serde_json::from_value(row["shape"].clone()).unwrap();
            let &[
                count,
                channels,
                height,
                width,
                filters,
                window,
                stride,
                groups,
            ] = shape.as_slice()
            else {
                panic!("{line}");
            };
            let (kind, bytes) = if row["dtype"] == "float32" {
                (0, 4)
            } else {
                (9, 2)
            };
            let padding = if window < 16 { window / 2 } else { 0 };
            let out = |size: u64| (size + 2 * padding - window) / stride + 1;
            let sizes = [
                [filters, channels / groups, window, window],
                [count, channels, height, width],
                [count, filters, out(height), out(width)],
            ];
            let all: u64 = sizes.iter().map(|size| size.iter().product::<u64>()).sum();
            let made: Vec<u64> = sizes
                .iter()
                .map(|&[n, c, h, w]| {
                    next += 1;
                    let strides = if row["layout"] == "nhwc" {
                        [h * w * c, 1, w * c, c]
                    } else {
                        [c * h * w, h * w, w, 1]
                    };
                    tensor(next, kind, &[n, c, h, w], &strides);
                    next
                })
                .collect();
            for (which, name) in ["forward", "data", "weight"].into_iter().enumerate() {
                next += 2;
                let (operation, graph) = (next, next + 1);
                created(graph, GRAPH_DESCRIPTOR);
                for (at, given) in made.iter().enumerate() {
                    let attribute = CONVOLUTIONS[which].0 + at as c_int;
                    // SAFETY: a count of one, and a descriptor is what `given` is.
                    unsafe {
                        described(
                            operation,
                            attribute,
                            TYPE_DESCRIPTOR,
                            1,
                            std::ptr::from_ref(given).cast(),
                        );
                    }
                }
                // SAFETY: as above.
                unsafe {
                    described(
                        graph,
                        GRAPH_OPERATIONS,
                        TYPE_DESCRIPTOR,
                        1,
                        (&raw const operation).cast(),
                    );
                }
                let off = work_space(graph).abs_diff(row[name].as_u64().unwrap());
                close[which] += usize::from(off * 20 < all * bytes);
            }
        }
        assert_eq!(text.lines().count(), 104);
        assert_eq!(close, [84, 84, 62]);
    }
}
