//! How long pieces of work take a GPU.
//!
//! What moves memory takes its bytes at the bandwidth that its kind of access reaches; what multiplies takes waves of tiles.
//! The coefficients are fitted to one H200 (`bench/time/README.md`); clocks, multiprocessors, bandwidth and caches are the
//! GPU's own.

use crate::figures::Figures;
use crate::work::{Kind, Path, Product, Steps, Work};

/// What a piece of work takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Took {
    /// Seconds of the GPU, from the end of the work before.
    pub seconds: f64,
    /// How far that usually is off, as a part of it.
    pub deviation: f64,
    /// Launches of the host.
    pub launches: u32,
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
/// Bytes of a kernel of which only the launch is known, for each of its threads.
const UNKNOWN_BYTES: f64 = 48.0;

/// Kernels of one kind: parts of the name, seconds that they take at least, the part of the bandwidth that they reach beyond
/// the L2 cache and within it, and how far that is off in the median.
#[derive(Clone, Copy)]
struct Class {
    parts: &'static [&'static str],
    least: f64,
    reached: f64,
    cached: f64,
    deviation: f64,
    /// With fewer threads than this part of what the GPU holds, it is slower by as much.
    filling: f64,
}

const fn class(
    parts: &'static [&'static str],
    least: f64,
    reached: f64,
    cached: f64,
    deviation: f64,
) -> Class {
    Class {
        parts,
        least: least * 1e-6,
        reached,
        cached,
        deviation,
        filling: 0.0,
    }
}

const fn filling(part: f64, class: Class) -> Class {
    Class {
        filling: part,
        ..class
    }
}

/// The first counts whose parts are all in the name. Fitted to `bench/time/results/h200_*`.
const CLASSES: &[Class] = &[
    class(&["multi_tensor_apply", "FusedAdam"], 2.7, 0.50, 0.25, 0.13),
    class(&["multi_tensor_apply"], 12.0, 1.15, 0.80, 0.09),
    filling(0.2, class(&["GammaBetaBackward"], 3.3, 0.5, 1.0, 0.18)),
    class(&["layer_norm_grad_input"], 2.2, 0.58, 0.93, 0.12),
    class(&["layer_norm"], 2.7, 0.90, 0.90, 0.16),
    filling(1.0, class(&["RowwiseMoments"], 8.0, 0.9, 0.9, 0.25)),
    class(&["cunn_SoftMaxForward"], 16.0, 1.0, 0.5, 0.10),
    class(&["cunn_SoftMaxBackward"], 8.0, 1.0, 1.6, 0.05),
    class(&["softmax_warp_forward"], 2.7, 0.58, 0.58, 0.18),
    class(&["softmax_warp_backward"], 2.7, 0.82, 1.64, 0.13),
    class(&["fused_dropout"], 1.5, 0.66, 0.66, 0.09),
    class(&["reduce_kernel"], 4.0, 0.90, 0.32, 0.35),
    class(&["CatArrayBatchedCopy_"], 1.5, 0.82, 0.41, 0.30),
    class(&["CatArrayBatchedCopy"], 1.5, 0.25, 0.17, 0.10),
    class(&["batch_norm_transform_input"], 8.0, 0.17, 0.3, 0.15),
    filling(
        0.4,
        class(
            &["batch_norm_collect_statistics_kernel"],
            5.0,
            0.08,
            0.16,
            0.10,
        ),
    ),
    class(&["batch_norm_collect_statistics"], 13.0, 0.17, 0.34, 0.5),
    filling(
        0.6,
        class(&["batch_norm_backward_kernel"], 8.0, 0.08, 0.08, 0.10),
    ),
    class(&["batch_norm_backward"], 6.5, 0.25, 0.4, 0.5),
    class(
        &["conv_depthwise2d_forward_kernel_generic"],
        5.0,
        0.05,
        0.03,
        0.25,
    ),
    class(&["conv_depthwise2d_forward"], 2.2, 0.25, 0.09, 0.35),
    class(&["conv_depthwise2d_backward"], 10.0, 0.05, 0.05, 0.33),
    class(&["conv_depthwise2d_grad_weight"], 30.0, 0.17, 0.03, 0.60),
    class(&["max_pool"], 1.2, 1.0, 1.0, 0.2),
    class(&["avg_pool"], 1.8, 0.58, 0.75, 0.16),
    class(&["upsample"], 8.0, 1.15, 2.3, 0.4),
    class(&["vectorized_gather"], 2.2, 0.82, 1.07, 0.1),
    class(&["vectorized", "FillFunctor"], 1.0, 2.0, 3.2, 0.22),
    class(
        &["vectorized", "float16_copy_kernel"],
        1.2,
        1.15,
        1.84,
        0.11,
    ),
    class(&["vectorized", "GeluBackward"], 1.5, 0.74, 0.74, 0.08),
    class(&["vectorized_elementwise"], 1.2, 0.90, 1.44, 0.16),
    class(&["unrolled", "direct_copy"], 2.2, 0.42, 0.55, 0.11),
    class(&["unrolled_elementwise"], 1.8, 0.58, 0.58, 0.07),
    class(
        &["elementwise_kernel", "direct_copy"],
        1.5,
        0.35,
        0.35,
        0.20,
    ),
    class(&["elementwise_kernel"], 1.5, 0.82, 0.82, 0.21),
    class(&["distribution_elementwise"], 1.5, 0.35, 0.35, 0.12),
    class(&["nll_loss"], 3.0, 0.05, 0.03, 0.6),
    class(&["sum_and_scatter"], 1.5, 1.4, 1.8, 0.2),
    class(&["compute_grad_weight"], 4.0, 1.4, 2.8, 0.2),
    class(&["index"], 1.8, 1.15, 0.57, 0.3),
    class(&["adix"], 6.5, 0.5, 0.5, 0.5),
];
/// Everything else, by its threads.
const OTHER: Class = class(&[], 1.8, 1.0, 0.7, 0.5);

/// The time of a piece of work; nothing for what keeps only the host busy.
pub fn took(work: &Work, steps: &Steps, gpu: &Figures) -> Took {
    let kernel = |seconds: f64, deviation: f64| Took {
        seconds: GAP + seconds,
        deviation,
        launches: 1,
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
            let time = class.least + moving(bytes, class.reached, class.cached, gpu) / filled;
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
        } => {
            let (seconds, launches) =
                convolution(*direction, shape, *groups, *window, *outside, *last, gpu);
            Took {
                launches,
                ..kernel(seconds, 0.25)
            }
        }
        Work::Fused {
            operations,
            bytes,
            length,
            kind,
        } => {
            let rate = gpu.rate(*kind) * fused_efficiency(*length);
            let filled = bytes / (gpu.memory * 0.8);
            kernel(SHORTEST + (operations / rate).max(filled), 0.2)
        }
        Work::Moving(bytes, what) => {
            let least = if what == "recurrent cells" {
                7e-6
            } else {
                SHORTEST
            };
            kernel(moving(*bytes, 0.8, 0.8, gpu) + least, 0.2)
        }
        Work::BatchNorm {
            bytes,
            channels,
            last,
            backward,
        } => {
            // A block for each channel, unless channels come last.
            let passes = match (backward, last) {
                (false, _) => 4.9,
                (true, true) => 6.3,
                (true, false) => 10.0,
            };
            let filled = if *last {
                1.0
            } else {
                (channels / (2.4 * gpu.sms)).min(1.0)
            };
            kernel(3e-6 + bytes * passes / gpu.memory / filled, 0.2)
        }
        Work::Copy(path, bytes) => {
            let seconds = match path {
                Path::Within => SHORTEST + moving(2.0 * bytes, 0.85, 1.2, gpu),
                Path::Between | Path::Pinned => 2.6e-6 + bytes / (gpu.link * 0.9),
                Path::Pageable => 9e-6 + bytes / (gpu.link * 0.4),
            };
            Took {
                waits: *path == Path::Pageable,
                ..kernel(seconds, 0.15)
            }
        }
        Work::Fixed(seconds, _) => kernel(*seconds, 0.3),
        _ => Took {
            seconds: 0.0,
            deviation: 0.0,
            launches: 0,
            waits: false,
            guessed: false,
        },
    }
}

/// Seconds to move bytes that reach this part of the bandwidth beyond the L2 cache, and this within it.
fn moving(bytes: f64, reached: f64, cached: f64, gpu: &Figures) -> f64 {
    let within = bytes.min(gpu.l2 * CACHED);
    (within / cached + (bytes - within) / reached) / gpu.memory
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
    cached: 0.81,
};
const SIMT: Products = Products {
    reached: [0.835, 0.835, 0.719, 0.687, 0.473, 0.701, 0.228, 0.486],
    least: 2.8,
    wave: 0.655,
    split: 3.0,
    memory: 0.87,
    cached: 0.57,
};

fn product(shape: &Product, gpu: &Figures) -> f64 {
    let Product {
        m,
        n,
        k,
        batch,
        kind,
        alignment,
    } = *shape;
    if m * n * batch == 0.0 {
        return SHORTEST;
    }
    let plain = matches!(
        kind,
        Kind::Fp32 | Kind::Fp64 | Kind::Complex64 | Kind::Complex128
    );
    let fitted = if plain { &SIMT } else { &TENSOR };
    let bytes = batch * kind.bytes() * (m * k + k * n + m * n);
    let memory = moving(bytes, fitted.memory, fitted.cached, gpu);
    let computing = tiled(shape, fitted, gpu);
    fitted.least * 1e-6 + (computing * misaligned(kind, alignment)).max(memory)
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
    let sm = gpu.rate(kind) / gpu.sms;
    // cuBLAS turns rows and columns around.
    TILES
        .iter()
        .zip(fitted.reached)
        .map(|(&(rows, columns), reached)| {
            let tiles = batch * (n / rows).ceil() * (m / columns).ceil();
            let wave = 2.0 * rows * columns * k * complex / (sm * reached);
            // Long sums are split where the tiles are few.
            let pieces = (gpu.sms / tiles).floor().max(1.0).min((k / 256.0).max(1.0));
            let waves = (tiles * pieces / gpu.sms).ceil();
            let sums = if pieces > 1.0 {
                fitted.split * 1e-6 + m * n * batch * 4.0 * pieces / (gpu.memory * 1.5)
            } else {
                0.0
            };
            waves * (wave / pieces + fitted.wave * 1e-6) + sums
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
        _ => 1.35,
    }
}

/// What convolutions of one form take: microseconds beside the rest, the products' time as a multiple of a plain product's,
/// and the part of the bandwidth at which their tensors pass.
struct Form {
    least: f64,
    products: f64,
    memory: f64,
}

const fn form(least: f64, products: f64, memory: f64) -> Form {
    Form {
        least,
        products,
        memory,
    }
}

/// Seconds and launches of a convolution.
fn convolution(
    direction: u8,
    shape: &Product,
    groups: f64,
    window: f64,
    outside: f64,
    last: bool,
    gpu: &Figures,
) -> (f64, u32) {
    let (pixels, filters, depth) = (shape.m, shape.n, shape.k);
    let single = shape.kind.bytes() > 2.0;
    let depthwise = groups > 1.0 && depth < 8.0;
    let back = direction > 0;
    // Fitted to `bench/time/results/h200_*`; of the two gradients together, so each has half of what they take at least.
    let form = match (back, last) {
        (false, true) if depthwise => form(3.0, 0.0, 0.5),
        (false, false) if depthwise => form(12.0, 0.0, 0.45),
        (true, true) if depthwise => form(12.0, 0.0, 0.35),
        (true, false) if depthwise => form(12.0, 0.0, 0.15),
        (false, _) if groups > 1.0 => form(6.0, 0.8, 0.18),
        (true, _) if groups > 1.0 => form(5.0, 1.5, 0.12),
        (false, true) if window <= 1.0 => form(3.0, if single { 1.0 } else { 0.5 }, 1.0),
        (false, false) if window <= 1.0 => form(10.0, if single { 0.8 } else { 1.5 }, 1.0),
        (true, true) if window <= 1.0 => form(3.0, if single { 1.5 } else { 0.8 }, 1.0),
        (true, false) if window <= 1.0 => form(7.5, if single { 1.9 } else { 2.4 }, 1.0),
        (false, false) if depth < 16.0 => form(18.0, 6.0, 0.85),
        (false, true) if depth < 16.0 => form(20.0, 5.0, 1.0),
        (true, false) if depth < 16.0 => form(28.0, 1.5, 0.22),
        (true, true) if depth < 16.0 => form(25.0, 1.5, 0.6),
        (false, true) => form(8.0, 0.8, 1.0),
        (false, false) => form(15.0, if single { 0.8 } else { 1.2 }, 0.25),
        (true, true) => form(11.0, if single { 1.5 } else { 0.8 }, 0.7),
        (true, false) => form(
            15.0,
            if single { 1.5 } else { 1.0 },
            if single { 0.25 } else { 0.18 },
        ),
    };
    let each = |n, m, k| {
        let product = Product {
            m,
            n,
            k,
            batch: groups,
            kind: shape.kind,
            alignment: 16,
        };
        if depthwise {
            0.0
        } else {
            tiled(&product, &TENSOR, gpu)
        }
    };
    let products = match direction {
        0 => each(pixels, filters / groups, depth * window),
        1 => each(pixels, depth, filters / groups * window),
        _ => each(filters / groups, depth * window, pixels),
    };
    let seconds = form.least * 1e-6
        + products * form.products
        + moving(outside, form.memory, form.memory * 1.3, gpu);
    (seconds, if last { 1 } else { 3 })
}

/// The part of the rate that products for attention over sequences of this length reach.
fn fused_efficiency(length: f64) -> f64 {
    const MEASURED: [(f64, f64); 3] = [(512.0, 0.22), (1024.0, 0.33), (2048.0, 0.7)];
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
