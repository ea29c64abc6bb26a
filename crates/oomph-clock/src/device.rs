//! How long pieces of work take a GPU.
//!
//! What moves memory takes its bytes at the bandwidth that its kind of access reaches; what multiplies takes waves of tiles.
//! The coefficients are fitted to one H200 (`bench/time/README.md`); clocks, multiprocessors, bandwidth and caches are the
//! GPU's own.

use crate::figures::{Figures, MEASURED_HZ};
use crate::work::{Attention, Kind, Path, Product, Steps, Work};

/// What a piece of work takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Took {
    /// Seconds of the GPU, from the end of the work before.
    pub seconds: f64,
    /// How far that usually is off, as a part of it.
    pub deviation: f64,
    /// Whether the host waits for it.
    pub waits: bool,
    /// Whether only its launch is known.
    pub guessed: bool,
}

/// From the end of a kernel to the beginning of the next that is queued, and what the shortest kernel takes: seconds.
const GAP: f64 = 0.9e-6;
const SHORTEST: f64 = 1.3e-6;
/// The part of the L2 cache that what was written last stays in.
const CACHED: f64 = 0.5;
/// Bytes that the L2 cache gives each multiprocessor in a cycle: it grows with the multiprocessors, not with the memory.
const L2_BYTES: f64 = 32.0;
/// Blocks that a multiprocessor holds at most.
const BLOCKS: f64 = 32.0;
/// What a kernel takes whose threads walk, and cycles that a multiprocessor takes for each warp of it.
const WALKED: f64 = 1.82e-6;
const WARP: f64 = 61.6;
/// Bytes of a kernel of which only the launch is known, for each of its threads.
const UNKNOWN_BYTES: f64 = 48.0;

/// Kernels of one kind: parts of the name, and what they take.
#[derive(Clone, Copy)]
struct Class {
    parts: &'static [&'static str],
    /// Seconds that they take at least.
    least: f64,
    /// The part of the bandwidth that they reach beyond the L2 cache; 0 where the cache serves all that they read.
    reached: f64,
    /// The part of the cache's bandwidth that they reach within it.
    cached: f64,
    /// Cycles of a multiprocessor that a thread takes, where that is more than what it moves.
    cycles: f64,
    /// With fewer threads than this part of what the GPU holds, they are slower by as much.
    filling: f64,
    /// How far that is off in the median.
    deviation: f64,
}

/// `numbers`: microseconds at least, `reached`, `cached`, `cycles`, `filling`.
const fn class(parts: &'static [&'static str], numbers: [f64; 5], deviation: f64) -> Class {
    let [least, reached, cached, cycles, filling] = numbers;
    Class {
        parts,
        least: least * 1e-6,
        reached,
        cached,
        cycles,
        filling,
        deviation,
    }
}

/// The first counts whose parts are all in the name. Fitted to `bench/time/results/h200_*`.
#[rustfmt::skip]
const CLASSES: &[Class] = &[
    class(&["multi_tensor_apply", "FusedAdam"], [34.8, 0.697, 0.247, 37.5, 0.0], 0.05),
    class(&["multi_tensor_apply"], [10.4, 0.884, 1.03, 26.0, 0.0], 0.12),
    class(&["GammaBetaBackward"], [2.31, 0.75, 1.0, 0.175, 0.333], 0.09),
    class(&["layer_norm_grad_input"], [2.4, 0.761, 0.579, 1.7, 0.0], 0.06),
    class(&["layer_norm"], [3.34, 0.876, 0.64, 2.85, 0.0], 0.07),
    class(&["RowwiseMoments"], [2.0, 0.786, 0.251, 1.0, 0.531], 0.04),
    class(&["cunn_SoftMaxForward"], [12.6, 0.904, 2.33, 0.0, 0.0], 0.06),
    class(&["cunn_SoftMaxBackward"], [8.62, 1.05, 0.284, 0.037, 0.0], 0.04),
    class(&["softmax_warp_forward"], [2.37, 0.8, 0.526, 2.42, 0.0], 0.25),
    class(&["softmax_warp_backward"], [2.78, 0.825, 0.985, 0.2, 0.0], 0.25),
    class(&["fused_dropout"], [1.77, 0.756, 0.388, 0.0, 0.0], 0.06),
    class(&["reduce_kernel", "MaxOps"], [3.2, 0.35, 0.25, 3.1, 0.033], 0.32),
    class(&["reduce_kernel", "MinOps"], [3.2, 0.35, 0.25, 3.1, 0.033], 0.32),
    class(&["reduce_kernel"], [3.9, 0.575, 0.217, 1.66, 0.033], 0.32),
    class(&["CatArrayBatchedCopy_"], [1.44, 0.8, 0.655, 1.16, 0.0], 0.06),
    class(&["CatArrayBatchedCopy"], [1.91, 1.01, 0.111, 0.056, 0.0], 0.18),
    class(&["batch_norm_transform_input_channels"], [3.04, 0.407, 0.6, 0.0, 0.0], 0.04),
    class(&["batch_norm_transform_input"], [1.74, 0.0, 0.114, 2.28, 0.3], 0.05),
    class(&["batch_norm_collect_statistics_kernel"], [6.67, 0.0, 0.184, 3.38, 1.01], 0.17),
    class(&["batch_norm_collect_statistics"], [8.63, 0.0962, 0.125, 0.0, 0.606], 0.10),
    class(&["batch_norm_backward_kernel"], [19.9, 0.0, 0.117, 0.45, 1.47], 0.09),
    class(&["batch_norm_backward_reduce"], [3.0, 0.708, 0.189, 0.0, 0.222], 0.10),
    class(&["batch_norm_backward"], [3.26, 0.66, 0.6, 0.0, 0.0], 0.07),
    class(&["conv_depthwise2d_forward_kernelILi3"], [1.46, 0.85, 0.4, 2.35, 0.0], 0.04),
    class(&["conv_depthwise2d_forward_kernelILi5"], [5.6, 0.85, 0.6, 3.96, 0.0], 0.06),
    class(&["conv_depthwise2d_forward"], [9.31, 0.3, 0.116, 0.0, 0.0], 0.04),
    class(&["conv_depthwise2d_backward"], [2.0, 0.85, 0.178, 4.15, 0.0], 0.04),
    class(&["conv_depthwise2d_grad_weight"], [35.5, 0.0, 0.64, 0.0, 0.329], 0.28),
    class(&["max_pool_backward"], [50.5, 0.0, 0.675, 0.0, 0.0], 0.13),
    class(&["max_pool"], [3.96, 0.8, 0.356, 3.75, 0.0], 0.29),
    class(&["avg_pool"], [2.36, 0.55, 0.6, 0.0, 0.0], 0.17),
    class(&["upsample"], [21.0, 1.1, 2.94, 0.0, 0.0], 0.57),
    class(&["vectorized_elementwise", "FillFunctor"], [0.767, 0.97, 0.584, 1.19, 0.0], 0.04),
    class(&["vectorized_elementwise", "float16_copy_kernel"], [1.37, 0.908, 0.529, 0.02, 0.0], 0.1),
    class(&["vectorized_elementwise", "Gelu"], [1.14, 0.903, 0.357, 2.83, 0.0], 0.08),
    class(&["vectorized_elementwise", "silu"], [1.64, 0.8, 0.582, 0.0, 0.0], 0.04),
    class(&["vectorized_elementwise", "tanh"], [1.06, 0.877, 0.599, 3.32, 0.0], 0.04),
    class(&["vectorized_elementwise"], [1.29, 0.85, 0.75, 0.0, 0.0], 0.09),
    class(&["unrolled_elementwise", "direct_copy"], [2.06, 0.85, 0.433, 2.66, 0.0], 0.17),
    class(&["unrolled_elementwise"], [1.56, 0.85, 0.335, 3.75, 0.0], 0.07),
    class(&["index_elementwise_kernel", "flip"], [1.3, 4.0, 4.0, 2.7, 0.0], 0.05),
    class(&["elementwise_kernelILi128ELi4E", "direct_copy"], [2.09, 0.85, 0.6, 2.73, 0.0], 0.14),
    class(&["elementwise_kernelILi128ELi2E", "direct_copy"], [1.66, 0.756, 0.339, 1.48, 0.0], 0.09),
    class(&["elementwise_kernelILi128ELi4E", "nocast"], [1.97, 0.85, 1.11, 2.42, 0.0], 0.15),
    class(&["elementwise_kernelILi128ELi4E"], [3.35, 0.85, 0.6, 4.12, 0.0], 0.16),
    class(&["elementwise_kernelILi128ELi2E"], [1.7, 0.778, 0.582, 1.15, 0.0], 0.08),
    class(&["distribution_elementwise"], [1.36, 0.756, 0.189, 3.13, 0.0], 0.04),
    class(&["roll_cuda_kernel"], [2.0, 4.0, 4.0, 1.28, 0.0], 0.1),
    class(&["reflection_pad"], [2.0, 4.0, 4.0, 1.6, 0.0], 0.2),
    class(&["deformable_im2col"], [2.0, 4.0, 4.0, 10.3, 0.0], 0.1),
    class(&["deformable_col2im"], [2.0, 4.0, 4.0, 5.7, 0.0], 0.1),
    class(&["nll_loss"], [1.19, 0.78, 0.166, 0.314, 3.38], 0.37),
    class(&["sum_and_scatter"], [0.271, 1.2, 2.94, 1.39, 0.0], 0.13),
    class(&["compute_grad_weight"], [5.36, 1.28, 2.94, 1.57, 0.0], 0.27),
    class(&["index"], [0.819, 0.476, 0.849, 0.0705, 0.0], 0.16),
    class(&["RadixSortOnesweep"], [7.5, 4.0, 4.0, 38.0, 0.0], 0.1),
    class(&["RadixSortHistogram"], [3.0, 4.0, 4.0, 23.0, 0.0], 0.4),
    class(&["computeBlockDigitCounts"], [2.0, 4.0, 4.0, 6.0, 0.0], 0.4),
    class(&["computeDigitCumSum"], [1.5, 4.0, 4.0, 0.9, 0.0], 0.2),
    class(&["computeBlockwiseWithinKCounts"], [2.0, 4.0, 4.0, 1.5, 0.0], 0.2),
    class(&["mbtopk", "gatherTopK"], [3.0, 4.0, 4.0, 15.0, 0.0], 0.3),
    class(&["adix"], [1.13, 0.603, 0.229, 0.341, 0.0], 0.14),
];
/// Everything else, by its threads.
const OTHER: Class = class(&[], [3.6, 1.28, 0.207, 0.0, 0.0], 1.0);

/// The time of a piece of work; nothing for what keeps only the host busy.
pub fn took(work: &Work, steps: &Steps, gpu: &Figures) -> Took {
    let took = estimated(work, steps, gpu);
    Took {
        seconds: took.seconds * gpu.slower,
        ..took
    }
}

fn estimated(work: &Work, steps: &Steps, gpu: &Figures) -> Took {
    let kernel = |seconds: f64, deviation: f64| Took {
        seconds: GAP + seconds,
        deviation,
        waits: false,
        guessed: false,
    };
    match work {
        Work::Kernel {
            name,
            blocks,
            threads,
            bytes,
            ..
        } => {
            let name = steps.names.get(*name).map_or("", String::as_str);
            let class = CLASSES
                .iter()
                .find(|class| class.parts.iter().all(|part| name.contains(part)))
                .unwrap_or(&OTHER);
            let known = *bytes > 0.0;
            let bytes = if known {
                *bytes
            } else {
                blocks * threads * UNKNOWN_BYTES
            };
            let held = blocks * threads / (gpu.sms * gpu.threads_per_sm);
            let filled = if class.filling > 0.0 {
                (held / class.filling).clamp(1e-3, 1.0)
            } else {
                1.0
            };
            let moved = moving(bytes, class.reached, class.cached, gpu) / filled;
            let computed = blocks * threads * class.cycles / (gpu.sms * gpu.clock);
            let time = class.least + moved.max(computed);
            Took {
                guessed: !known && class.parts.is_empty(),
                ..kernel(time, class.deviation)
            }
        }
        Work::Product(shape) => kernel(product(shape, gpu), 0.12),
        Work::Convolution {
            direction,
            product: shape,
            groups,
            window,
            outside,
            last,
        } => kernel(
            convolution(*direction, shape, *groups, *window, *outside, *last, gpu),
            0.25,
        ),
        Work::Attention(heads) => kernel(attention(heads, gpu), 0.15),
        Work::Moving(bytes, _) => kernel(moving(*bytes, 0.8, 0.5, gpu) + SHORTEST, 0.2),
        Work::BatchNorm {
            bytes,
            channels,
            last,
            backward,
            element,
        } => {
            let (least, passes) = match (backward, last) {
                (false, true) => (8e-6, 6.0),
                (true, true) => (6e-6, 8.0),
                (false, false) => (3e-6, 5.0),
                (true, false) => (3e-6, 8.0),
            };
            // A block for each channel takes its elements one after the other, unless channels come last.
            let (cycles, blocks) = if *backward { (2.56, 1.5) } else { (0.92, 1.0) };
            let alone = if *last {
                0.0
            } else {
                let turns = (channels / (gpu.sms * blocks)).max(1.0);
                bytes / element / channels * cycles * turns / gpu.clock
            };
            kernel(
                least + alone.max(moving(*bytes, 1.0, 1.0, gpu) * passes),
                0.15,
            )
        }
        Work::Copy(path, bytes, _) => {
            let seconds = match path {
                Path::Within => SHORTEST + moving(2.0 * bytes, 0.85, 0.76, gpu),
                Path::Between | Path::Pinned => 2.6e-6 + bytes / (gpu.link * 0.9),
                Path::Pageable => 9e-6 + bytes / (gpu.link * 0.4),
            };
            Took {
                waits: *path == Path::Pageable,
                ..kernel(seconds, 0.15)
            }
        }
        Work::Chain(cycles, work, bytes, _) => {
            let alone = cycles * gpu.cycle / MEASURED_HZ;
            let together = work / (gpu.sms * gpu.clock);
            let seconds = alone.max(together).max(moving(*bytes, 0.8, 0.5, gpu));
            kernel(SHORTEST + seconds, 0.3)
        }
        Work::Walk {
            cycles,
            tail,
            blocks,
            threads,
            bytes,
            ..
        } => {
            let held = (gpu.threads_per_sm / threads).floor().clamp(1.0, BLOCKS);
            let waves = (blocks / (gpu.sms * held)).max(1.0);
            let walked = waves * cycles * gpu.cycle / MEASURED_HZ;
            let begun = blocks * threads / 32.0 * WARP / (gpu.sms * gpu.clock);
            let moved = moving(*bytes, 0.635, 0.311, gpu);
            let last = tail * gpu.cycle / MEASURED_HZ;
            kernel(WALKED + walked.max(begun).max(moved) + last, 0.14)
        }
        Work::Fixed(seconds, _) => kernel(*seconds, 0.3),
        _ => Took {
            seconds: 0.0,
            deviation: 0.0,
            waits: false,
            guessed: false,
        },
    }
}

/// Seconds to move bytes that reach this part of the memory's bandwidth beyond the L2 cache (0: nothing is beyond it), and this
/// part of the cache's within it.
fn moving(bytes: f64, reached: f64, cached: f64, gpu: &Figures) -> f64 {
    let l2 = gpu.sms * gpu.clock * L2_BYTES;
    if reached <= 0.0 {
        return bytes / (cached * l2);
    }
    let within = bytes.min(gpu.l2 * CACHED);
    within / (cached * l2) + (bytes - within) / (reached * gpu.memory)
}

/// What decides how long products take: the part of the rate that each tile of `TILES` reaches, what a product and each wave
/// takes beside, and a sum that is split; microseconds.
struct Products {
    reached: [f64; 8],
    least: f64,
    wave: f64,
    split: f64,
    memory: f64,
    cached: f64,
}

/// Tiles of products that libraries have kernels for.
const TILES: [(f64, f64); 8] = [
    (256.0, 128.0),
    (128.0, 256.0),
    (128.0, 128.0),
    (128.0, 64.0),
    (64.0, 128.0),
    (64.0, 64.0),
    (64.0, 32.0),
    (32.0, 64.0),
];
/// On tensor cores, and without.
const TENSOR: Products = Products {
    reached: [0.276, 0.313, 0.779, 0.385, 0.844, 0.868, 0.479, 0.404],
    least: 2.39,
    wave: 0.424,
    split: 0.95,
    memory: 0.72,
    cached: 0.51,
};
const SIMT: Products = Products {
    reached: [0.773, 0.773, 0.666, 0.636, 0.438, 0.649, 0.211, 0.45],
    least: 2.8,
    wave: 0.655,
    split: 3.0,
    memory: 0.87,
    cached: 0.36,
};

/// Operands that lie beyond the L2 cache: seconds until they flow, and the part of the bandwidth that they reach then
/// (`bench/time/results/h200_graphs.jsonl`).
const COLD: (f64, f64) = (3.2e-6, 0.92);

/// The part of its rate that no product exceeds: tiles are filled and emptied.
const FULL: f64 = 0.95;

fn product(shape: &Product, gpu: &Figures) -> f64 {
    let Product {
        m,
        n,
        k,
        batch,
        kind,
        alignment,
        cold,
    } = *shape;
    if m * n * batch == 0.0 {
        return SHORTEST;
    }
    if m.min(n) <= 1.0 {
        // A kernel of its own reads the matrix once; nothing is computed in tiles.
        let bytes = batch * kind.bytes() * (m * k + k * n + m * n);
        return TENSOR.least * 1e-6 * gpu.cycle + moving(bytes, TENSOR.memory, TENSOR.cached, gpu);
    }
    let plain = matches!(
        kind,
        Kind::Fp32 | Kind::Fp64 | Kind::Complex64 | Kind::Complex128
    );
    let fitted = if plain { &SIMT } else { &TENSOR };
    let bytes = batch * kind.bytes() * (m * k + k * n + m * n);
    let read = if cold > 0.0 {
        COLD.0 * gpu.cycle + cold / (COLD.1 * gpu.memory)
    } else {
        0.0
    };
    let memory = read + moving(bytes - cold, fitted.memory, fitted.cached, gpu);
    let computing = tiled(shape, fitted, gpu);
    fitted.least * 1e-6 * gpu.cycle + (computing * misaligned(kind, alignment)).max(memory)
}

/// Seconds of the waves of the best tiles.
fn tiled(shape: &Product, fitted: &Products, gpu: &Figures) -> f64 {
    let Product {
        m,
        n,
        k,
        batch,
        kind,
        ..
    } = *shape;
    let complex = if matches!(kind, Kind::Complex64 | Kind::Complex128) {
        4.0
    } else {
        1.0
    };
    let sm = gpu.rate(kind) * gpu.held / gpu.sms;
    let is_spare = gpu.spare && matches!(kind, Kind::Fp32 | Kind::Complex64);
    // cuBLAS turns rows and columns around.
    TILES
        .iter()
        .zip(fitted.reached)
        .map(|(&(rows, columns), reached)| {
            let reached = if is_spare {
                (2.0 * reached).min(FULL)
            } else {
                reached
            };
            let tiles = batch * (n / rows).ceil() * (m / columns).ceil();
            let wave = 2.0 * rows * columns * k * complex / (sm * reached);
            // Long sums are split where the tiles are few.
            let pieces = (gpu.sms / tiles).floor().max(1.0).min((k / 256.0).max(1.0));
            let waves = (tiles * pieces / gpu.sms).ceil();
            let sums = if pieces > 1.0 {
                fitted.split * 1e-6 * gpu.cycle + m * n * batch * 4.0 * pieces / (gpu.memory * 1.5)
            } else {
                0.0
            };
            waves * (wave / pieces + fitted.wave * 1e-6 * gpu.cycle) + sums
        })
        .fold(f64::INFINITY, f64::min)
}

/// How many times slower a product is whose rows do not begin where tensor cores can read them.
const fn misaligned(kind: Kind, alignment: u64) -> f64 {
    match (kind, alignment) {
        (_, 16..) => 1.0,
        (Kind::Fp16 | Kind::Bf16, 4..) => 2.9,
        (Kind::Fp16 | Kind::Bf16, _) => 6.5,
        (Kind::Tf32, _) => 3.0,
        (Kind::Fp8 | Kind::Int8, _) => 4.0,
        _ => 1.0,
    }
}

/// What convolutions of one form take for each direction: microseconds beside the rest, the products' time as a multiple of a
/// plain product's, cycles of a multiprocessor for each multiplication, and how many times their tensors pass.
struct Form {
    least: f64,
    products: f64,
    cycles: f64,
    passes: f64,
}

const fn form(least: f64, products: f64, cycles: f64, passes: f64) -> Form {
    Form {
        least,
        products,
        cycles,
        passes,
    }
}

/// Kinds of convolutions that libraries have kernels of their own for.
#[derive(Clone, Copy)]
enum Shape {
    /// Windows over many channels.
    Full,
    /// A product for each pixel.
    One,
    /// The same, of some pixels only.
    Strided,
    /// Windows over the few channels of an image.
    Thin,
    /// Groups of channels.
    Grouped,
    /// Each channel by itself.
    Single,
    /// The same with a large window.
    Wide,
}

impl Shape {
    /// `elements` are those of all tensors.
    fn of(product: &Product, groups: f64, window: f64, elements: f64) -> Self {
        let (pixels, filters, depth) = (product.m, product.n, product.k);
        if groups > 1.0 && depth < 8.0 {
            if window > 25.0 {
                Self::Wide
            } else {
                Self::Single
            }
        } else if groups > 1.0 {
            Self::Grouped
        } else if window > 1.0 {
            if depth < 16.0 { Self::Thin } else { Self::Full }
        } else if elements - filters * (depth + pixels) > 1.5 * pixels * depth {
            Self::Strided
        } else {
            Self::One
        }
    }

    /// By whether it is a gradient, whether channels come last, and whether elements have more than 16 bits. Fitted to
    /// `bench/time/results/h200_*` and `h100_fresh_*`, where both gradients of a shape were measured together.
    #[rustfmt::skip]
    const fn form(self, gradient: bool, last: bool, single: bool) -> Form {
        use Shape::{Full, Grouped, One, Single, Strided, Thin, Wide};
        match (self, gradient, last, single) {
            (Full, false, true, false) => form(4.8, 1.09, 0.0, 0.58),
            (Full, false, true, true) => form(11.3, 0.913, 0.0, 0.567),
            (Full, false, false, false) => form(14.3, 1.07, 0.0, 5.26),
            (Full, false, false, true) => form(16.4, 0.903, 0.0, 3.62),
            (Full, true, true, false) => form(7.8, 1.09, 0.0, 0.773),
            (Full, true, true, true) => form(20.0, 1.33, 0.0, 1.43),
            (Full, true, false, false) => form(16.2, 1.13, 0.0, 6.15),
            (Full, true, false, true) => form(20.8, 1.26, 0.0, 5.15),
            (One, false, true, false) => form(2.4, 0.788, 0.0, 0.708),
            (One, false, true, true) => form(3.3, 0.982, 0.0, 0.947),
            (One, false, false, false) => form(4.8, 0.855, 0.0, 0.633),
            (One, false, false, true) => form(5.6, 1.13, 0.0, 0.829),
            (One, true, true, false) => form(3.0, 0.779, 0.0, 1.11),
            (One, true, true, true) => form(3.2, 1.82, 0.0, 0.675),
            (One, true, false, false) => form(5.0, 1.15, 0.0, 0.777),
            (One, true, false, true) => form(8.2, 1.5, 0.0, 0.847),
            (Strided, false, false, false) => form(13.7, 1.23, 0.0, 4.01),
            (Strided, false, false, true) => form(12.8, 1.16, 0.0, 2.6),
            (Strided, true, false, false) => form(23.2, 0.0, 0.0, 5.49),
            (Strided, true, false, true) => form(23.8, 1.22, 0.0, 3.45),
            (Thin, false, true, false) => form(9.6, 0.036, 0.012, 2.33),
            (Thin, false, true, true) => form(7.0, 2.04, 0.00879, 0.0),
            (Thin, false, false, false) => form(17.2, 0.704, 0.0173, 2.16),
            (Thin, false, false, true) => form(10.9, 2.51, 0.0144, 0.271),
            (Thin, true, true, false) => form(10.5, 8.26, 0.0, 3.2),
            (Thin, true, true, true) => form(24.1, 7.14, 0.0007, 1.42),
            (Thin, true, false, false) => form(26.5, 9.96, 0.0, 9.47),
            (Thin, true, false, true) => form(44.7, 0.559, 0.0111, 2.59),
            (Grouped, false, true, false) => form(3.3, 0.673, 0.00196, 0.517),
            (Grouped, false, true, true) => form(61.0, 0.0, 0.00823, 11.6),
            (Grouped, false, false, false) => form(12.6, 0.0, 0.0034, 5.28),
            (Grouped, false, false, true) => form(44.4, 0.0, 0.0022, 4.67),
            (Grouped, true, true, false) => form(1.6, 0.711, 0.00143, 4.07),
            (Grouped, true, true, true) => form(12.5, 0.0, 0.0, 31.4),
            (Grouped, true, false, false) => form(15.1, 0.0, 0.0024, 10.2),
            (Grouped, true, false, true) => form(19.0, 0.0, 0.0124, 12.0),
            (Single, false, true, false) => form(4.3, 0.0, 0.0149, 1.89),
            (Single, false, true, true) => form(3.1, 0.0, 0.0384, 0.858),
            (Single, false, false, _) => form(7.6, 0.0, 0.0903, 0.0),
            (Single, true, true, false) => form(3.7, 0.0, 0.0444, 4.7),
            (Single, true, true, true) => form(21.5, 0.0, 0.0299, 2.58),
            (Single, true, false, _) => form(8.6, 0.0, 0.0, 5.43),
            (Wide, false, true, false) => form(14.4, 0.0, 0.0338, 0.0),
            (Wide, false, true, true) => form(12.8, 0.0, 0.0865, 0.0),
            (Wide, false, false, _) => form(0.0, 0.0, 0.0631, 0.0),
            (Wide, true, true, false) => form(5.0, 0.0, 0.0582, 0.0),
            (Wide, true, true, true) => form(113.0, 0.0, 0.606, 0.0),
            (Wide, true, false, _) => form(0.0, 0.0, 0.282, 0.0),
            (Strided, gradient, true, single) => One.form(gradient, true, single),
        }
    }
}

/// Seconds of a convolution.
fn convolution(
    direction: u8,
    shape: &Product,
    groups: f64,
    window: f64,
    outside: f64,
    last: bool,
    gpu: &Figures,
) -> f64 {
    let (pixels, filters, depth, kind) = (shape.m, shape.n, shape.k, shape.kind);
    let single = kind.bytes() > 2.0;
    let own = Shape::of(shape, groups, window, outside / kind.bytes());
    let form = own.form(direction > 0, last, single);
    let plane = matches!(own, Shape::One) && !last;
    // Planes of channels are products as they lie, a batch of them, whose rows are as long as an image is large.
    let image = pixels / shape.batch.max(1.0);
    let (rows, batch) = if plane && direction < 2 {
        (image, shape.batch)
    } else {
        (pixels, groups)
    };
    let each = |m, n, k, batch| {
        let product = Product {
            m,
            n,
            k,
            batch,
            kind,
            alignment: 16,
            cold: 0.0,
        };
        tiled(&product, &TENSOR, gpu)
    };
    let products = if form.products > 0.0 {
        match direction {
            0 => each(rows, filters / groups, depth * window, batch),
            1 => each(rows, depth, filters / groups * window, batch),
            _ => each(filters / groups, depth * window, pixels, groups),
        }
    } else {
        0.0
    };
    let slower = if plane && (image * kind.bytes()) % 16.0 > 0.0 {
        if single { 2.0 } else { 3.0 }
    } else {
        1.0
    };
    // Where planes of channels are turned around first, a group fills tiles of 32 channels.
    let tile = if matches!(own, Shape::Grouped) && !last {
        32.0
    } else {
        0.0
    };
    let multiplications = pixels * filters * depth.max(tile) * window;
    form.least * 1e-6
        + products * form.products * slower
        + multiplications * form.cycles / (gpu.sms * gpu.clock)
        + moving(outside, 1.0, 1.0, gpu) * form.passes
}

/// Seconds of attention: tiles of 128 queries and 128 keys, each two products (five for the gradients) and a softmax, in
/// blocks of so many queries. Fitted to cuDNN's kernels and CUTLASS's in `bench/time/results/h200_kinds_more.jsonl.gz`.
fn attention(work: &Attention, gpu: &Figures) -> f64 {
    const TILE: f64 = 128.0;
    let backward = work.products > 2.0;
    // cuDNN's tensors are known. Other kernels are written for the tensor cores of compute capability 8.0, or without any.
    let tensor = matches!(work.kind, Kind::Fp16 | Kind::Bf16);
    let own = tensor && (work.bytes > 0.0 || gpu.generation < 9);
    let reached = match (tensor, own) {
        (true, true) => 1.0,
        (true, false) => OLDER,
        (false, _) => 0.5,
    };
    let features = if work.features > 64.0 {
        (work.features / 64.0).ceil() * 64.0
    } else {
        work.features
    };
    // Gradients of short sequences take tiles of half the size, and so do kernels without tensor cores.
    let short = backward && work.keys.max(work.queries) <= TILE / 2.0;
    let tile = if short || !tensor { TILE / 2.0 } else { TILE };
    let scores = tile * tile;
    let softmax = softmax(gpu, own) * if backward { 3.0 } else { 1.0 } * scores / (TILE * TILE);
    let each = work.products * 2.0 * scores * features * gpu.sms / (gpu.rate(work.kind) * reached)
        + softmax / gpu.clock;
    let (rows, columns) = ((work.queries / tile).ceil(), (work.keys / tile).ceil());
    let tiles = if work.causal {
        // Those on the diagonal are masked.
        let met = columns - (rows - 1.0).min(columns - 1.0) / 2.0;
        rows * (met + 0.5)
    } else {
        rows * columns
    };
    let begun = if backward { 7000.0 } else { 2500.0 } / gpu.clock;
    let busy = work.heads * (tiles * each + rows * begun) / gpu.sms;
    let longest = columns * each + begun;
    let moved = work.bytes / (gpu.memory * 0.8);
    1e-6 + busy.max(longest).max(moved)
}

/// The part of a newer GPU's rate that kernels written for older tensor cores reach.
const OLDER: f64 = 0.15;

/// Cycles that a multiprocessor takes for the softmax of a tile beside its products. 16 exponentials a cycle, and six operations
/// of each lane for the rest. From compute capability 9.0 on products run beside it, which was measured; from 10.0 on
/// kernels compute half of the exponentials by multiplications.
const fn softmax(gpu: &Figures, own: bool) -> f64 {
    match gpu.generation {
        9 if own => 1200.0,
        10.. if own => 600.0,
        _ if gpu.spare => 1024.0 + 6.0 * 256.0,
        _ => 1024.0 + 6.0 * 128.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(gpu: &str, work: &Work) -> f64 {
        let steps = Steps {
            names: vec!["vectorized_elementwise_kernel".to_owned()],
            ..Steps::default()
        };
        let figures = Figures::of(oomph_gpus::find(gpu).unwrap()).unwrap();
        took(work, &steps, &figures).seconds
    }

    #[test]
    fn what_the_cache_holds_is_as_quick_beside_slower_memory() {
        let kernel = |bytes| Work::Kernel {
            name: 0,
            blocks: 1000.0,
            threads: 128.0,
            bytes,
        };
        let ratio = |bytes| seconds("h100-sxm", &kernel(bytes)) / seconds("h200", &kernel(bytes));
        assert!((ratio(4e6) - 1.0).abs() < 1e-9);
        assert!(ratio(4e9) > 1.4);
    }

    #[test]
    fn planes_of_odd_images_are_slower_products_than_even_ones() {
        let convolution = |image: f64, last| Work::Convolution {
            direction: 0,
            product: Product {
                m: 64.0 * image,
                n: 512.0,
                k: 512.0,
                batch: 64.0,
                kind: Kind::Fp16,
                alignment: 16,
                cold: 0.0,
            },
            groups: 1.0,
            window: 1.0,
            outside: 2.0 * (2.0 * 64.0 * image * 512.0 + 512.0 * 512.0),
            last,
        };
        let slower = |last| {
            seconds("h200", &convolution(225.0, last)) / seconds("h200", &convolution(224.0, last))
        };
        assert!(slower(false) > 1.5);
        assert!(slower(true) < 1.1);
    }

    #[test]
    fn attention_leaves_out_what_a_causal_mask_does_and_waits_for_the_softmax_of_small_heads() {
        let attention = |length: f64, features, causal, products| {
            Work::Attention(Attention {
                heads: 32.0,
                queries: length,
                keys: length,
                features,
                causal,
                products,
                kind: Kind::Bf16,
                bytes: 8.0 * 32.0 * length * features,
            })
        };
        let on_h200 = |length, features, causal, products| {
            seconds("h200", &attention(length, features, causal, products))
        };
        let ratio = on_h200(8192.0, 128.0, true, 2.0) / on_h200(8192.0, 128.0, false, 2.0);
        assert!((0.5..0.6).contains(&ratio), "{ratio}");
        let ratio = on_h200(8192.0, 64.0, false, 2.0) / on_h200(8192.0, 128.0, false, 2.0);
        assert!(ratio > 0.6, "{ratio}");
        // `bench/time/results/h200_kinds_more.jsonl.gz`.
        for (length, features, causal, products, measured) in [
            (8192.0, 128.0, false, 2.0, 1604e-6),
            (4096.0, 64.0, true, 2.0, 183e-6),
            (4096.0, 128.0, true, 5.0, 678e-6),
        ] {
            let off = on_h200(length, features, causal, products) / measured - 1.0;
            assert!(off.abs() < 0.2, "{off}");
        }
    }

    #[test]
    fn a_normalization_of_few_channels_fills_no_gpu() {
        let normalization = |channels| Work::BatchNorm {
            bytes: 4e8,
            channels,
            last: false,
            backward: true,
            element: 4.0,
        };
        let ratio = seconds("h200", &normalization(16.0)) / seconds("h200", &normalization(512.0));
        assert!(ratio > 10.0);
    }

    fn plain(m: f64, n: f64, k: f64, cold: f64) -> Work {
        Work::Product(Product {
            m,
            n,
            k,
            batch: 1.0,
            kind: Kind::Fp32,
            alignment: 16,
            cold,
        })
    }

    #[test]
    fn schedulers_of_16_lanes_reach_more_of_their_rate_and_cards_of_a_slot_hold_their_base_clock() {
        let reached = |id: &str| {
            let gpu = oomph_gpus::find(id).unwrap();
            2.0 * 8192_f64.powi(3)
                / gpu.rates.fp32
                / seconds(id, &plain(8192.0, 8192.0, 8192.0, 0.0))
        };
        assert!(reached("a100-80gb-pcie") > 0.9 && reached("v100-32gb-pcie") > 0.9);
        assert!(reached("h100-sxm") < 0.8);
        assert!(reached("l4") < 0.4);
    }

    #[test]
    fn a_matrix_times_a_vector_reads_it_once() {
        let vector = seconds("h200", &plain(1.0, 8192.0, 8192.0, 0.0));
        let reading = 4.0 * 8192.0 * 8192.0 / 4.9e12;
        assert!((1.0..2.0).contains(&(vector / reading)));
        let cold = seconds("h200", &plain(64.0, 1024.0, 1024.0, 4.0 * 1024.0 * 1024.0));
        assert!(cold >= seconds("h200", &plain(64.0, 1024.0, 1024.0, 0.0)));
    }

    #[test]
    fn blocks_that_find_no_room_walk_after_the_others() {
        let walk = |blocks, tail| {
            let work = Work::Walk {
                cycles: 1e5,
                tail,
                blocks,
                threads: 512.0,
                bytes: 0.0,
                what: "reductions".to_owned(),
            };
            seconds("h200", &work)
        };
        // 132 multiprocessors hold four blocks each.
        assert!((walk(528.0, 0.0) - walk(2.0, 0.0)).abs() < 1e-9);
        assert!(walk(1056.0, 0.0) > 1.9 * walk(528.0, 0.0));
        assert!((walk(2.0, 1.98e5) - walk(2.0, 0.0) - 1e-4).abs() < 1e-9);
    }

    #[test]
    fn steps_that_follow_each_other_take_as_long_on_any_gpu_of_a_clock() {
        let chain = |cycles, work| Work::Chain(cycles, work, 0.0, String::new());
        let ratio = |work: &Work| seconds("a100-80gb-sxm", work) / seconds("h200", work);
        assert!((ratio(&chain(1e8, 0.0)) - 1980.0 / 1410.0).abs() < 0.01);
        assert!(ratio(&chain(0.0, 1e9)) > 1980.0 / 1410.0);
    }
}
