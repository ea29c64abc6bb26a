//! What a kernel moves, from its name and arguments: the bytes that `oomph-clock` prices.
//!
//! Arguments are read only where the name says which kernel of PyTorch's it is; what does not look as expected counts
//! as unknown.

use std::ffi::{c_int, c_void};

use crate::clock::Kind;
use crate::families::{Family, lists};
use crate::reductions;
use crate::walks::Walk;
use crate::work::Work;

/// How the work of a launch follows from its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// It does not.
    Unknown,
    /// The first argument counts elements, of which each moves so many bytes.
    Pointwise { bytes: u8 },
    /// The same, with the sizes of so many inputs in the sixth argument and the output's in the seventh.
    Casting { inputs: u8 },
    /// This argument is the length of a block's row.
    Rows { argument: u8, bytes: u8 },
    /// The first two arguments are rows and columns.
    Columns { bytes: u8 },
    /// This argument counts elements.
    Elements { argument: u8, bytes: u8 },
    /// A reduction of elements of so many bytes.
    Reduction { bytes: u8 },
    /// A step over lists of tensors, so many deep, with so many bytes beside each tensor's size.
    Lists { depth: u8, bytes: u8, beside: u8 },
    /// The first two arguments are views of tensors with so many dimensions (`PackedTensorAccessor`).
    Viewed {
        dimensions: u8,
        views: u8,
        bytes: u8,
    },
    /// Each block reads a channel of the first two arguments, which are images: a warp takes a whole image.
    FilterGradient { bytes: u8 },
    /// These arguments are rows and columns.
    Area { arguments: [u8; 2], bytes: u8 },
    /// A number of dependent steps, each of so many cycles: what this argument counts, or batches times channels of the view there.
    Chain {
        argument: u8,
        view: bool,
        cycles: u16,
    },
    /// Elements that this argument counts, times the channels of the tensor behind it if `channels`; each takes an SM so many tenths
    /// of a cycle.
    Worked {
        argument: u8,
        channels: bool,
        tenths: u8,
    },
    /// As its walk over rows says.
    Walks(Walk),
    /// As the family says.
    Concatenation,
    /// Attention: products for each pair of a query and a key.
    Attention {
        products: u8,
        causal: bool,
        kind: Kind,
    },
}

/// Bytes of the type that a mangled name has at its beginning, and what follows it. Only types with names of their own are
/// written again as `S4_`: those have the bytes of `named`, the last such type.
fn width(text: &str, named: u8) -> Option<(u8, &str)> {
    const NAMED: [(&str, u8); 3] = [
        ("N3c108BFloat16E", 2),
        ("N3c104HalfE", 2),
        ("N3c107complexIfEE", 8),
    ];
    if let Some((bytes, rest)) = NAMED
        .iter()
        .find_map(|&(name, bytes)| Some((bytes, text.strip_prefix(name)?)))
    {
        return Some((bytes, rest));
    }
    if let Some(rest) = text.strip_prefix('S') {
        let (number, rest) = rest.split_once('_')?;
        let is_number = number
            .chars()
            .all(|c| c.is_ascii_digit() || c.is_ascii_uppercase());
        return is_number.then_some((named, rest));
    }
    let bytes = match text.as_bytes().first()? {
        b'f' | b'i' | b'j' => 4,
        b'd' | b'l' | b'm' => 8,
        b'b' | b'h' | b'a' => 1,
        b's' | b't' => 2,
        _ => return None,
    };
    Some((bytes, &text[1..]))
}

/// Bytes of the types that a mangled name has at its beginning.
fn widths(mut text: &str) -> Vec<u8> {
    let mut found = Vec::new();
    let mut named = 2;
    while let Some((bytes, rest)) = width(text, named) {
        if text.starts_with('N') {
            named = bytes;
        }
        found.push(bytes);
        text = rest;
    }
    found
}

/// Bytes that a functor of `TensorIterator` moves for each element: those of its inputs and of its result. `arrays` counts
/// them where the kernel says how many there are.
fn element(functor: &str, arrays: Option<u8>) -> u8 {
    let after = |name: &str| functor.split_once(name).map(|(_, rest)| widths(rest));
    // The last lambda that takes anything is what is called for each element.
    let lambda = || {
        let lambdas = functor
            .match_indices("EUl")
            .map(|(at, _)| widths(&functor[at + 3..]));
        lambdas.filter(|types| !types.is_empty()).last()
    };
    let known = if let Some(types) = after("13BinaryFunctorI") {
        types.get(..3).map(<[u8]>::to_vec)
    } else if let Some(types) = after("13AUnaryFunctorI").or_else(|| after("13BUnaryFunctorI")) {
        types.get(..3).map(|types| vec![types[0], types[2]])
    } else if let Some(types) = after("15CUDAFunctor_addI") {
        types.first().map(|&bytes| vec![bytes; 3])
    } else if let Some(types) = after("OnSelf_addI").or_else(|| after("OnOther_addI")) {
        types.first().map(|&bytes| vec![bytes; 2])
    } else if let Some(types) = after("11FillFunctorI") {
        types.first().map(|&bytes| vec![bytes])
    } else {
        lambda().map(|mut types| {
            let result = if functor.contains("float16_copy_kernel") {
                2
            } else if functor.contains("where_kernel") {
                types[types.len() - 1]
            } else {
                types[0]
            };
            types.push(result);
            types
        })
    };
    let each = known
        .as_ref()
        .and_then(|types| types.first().copied())
        .or_else(|| after("FunctorI").and_then(|types| types.first().copied()))
        .unwrap_or(if is_half(functor) { 2 } else { 4 });
    match (known, arrays) {
        (Some(types), Some(arrays)) if types.len() != usize::from(arrays) => arrays * each,
        (Some(types), _) => types.iter().sum(),
        (None, arrays) => arrays.unwrap_or(2) * each,
    }
}

fn is_half(name: &str) -> bool {
    name.contains("BFloat16") || name.contains("4Half")
}

/// Kernels that compute each element by itself.
const POINTWISE: [&str; 3] = [
    "29vectorized_elementwise_kernelI",
    "27unrolled_elementwise_kernelI",
    "18elementwise_kernelI",
];

/// The number behind `before` in a name.
fn number(name: &str, before: &str) -> Option<u8> {
    let (_, rest) = name.split_once(before)?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

impl Moved {
    /// By the mangled name of a kernel and its family.
    pub fn of(name: &str, family: Family) -> Self {
        let bytes = if is_half(name) { 2 } else { 4 };
        let arrays = number(name, "St5arrayIPcLm");
        if name.contains("LoadWithCast") {
            return Self::Casting {
                inputs: arrays.unwrap_or(2) - 1,
            };
        }
        if let Some((_, functor)) = POINTWISE.iter().find_map(|kernel| name.split_once(kernel)) {
            // What follows is the kernel's own: its arrays, or the lambda that finds an element's place.
            let own = ["St5arrayIPc", "RKT_EUliE_"];
            let functor = own
                .iter()
                .fold(functor, |text, end| text.split(end).next().unwrap_or(text));
            return Self::Pointwise {
                bytes: element(functor, arrays),
            };
        }
        if let Some((_, op)) = name.split_once("13reduce_kernelI") {
            let input = op.split_once("ReduceOpI").map(|(_, op)| widths(op));
            return Self::Reduction {
                bytes: input
                    .and_then(|types| types.first().copied())
                    .unwrap_or(bytes),
            };
        }
        if name.contains("multi_tensor_apply_kernel") {
            return Self::Lists {
                depth: lists(name),
                bytes,
                beside: if name.contains("ScalarListMetadata") {
                    4
                } else if name.contains("FusedOptimizerTensorListMetadata") {
                    8 // the address of its count of steps
                } else {
                    0
                },
            };
        }
        let kind = if name.contains("f32") {
            Kind::Fp32
        } else {
            Kind::Bf16
        };
        // FlashAttention's kernels are compiled with dropout or not, then causal or not; CUTLASS's read it.
        let causal = name.split_once("EELb").is_some_and(|(_, compiled)| {
            compiled
                .get(1..)
                .is_some_and(|rest| rest.starts_with("ELb1E"))
        });
        if name.contains("flash_fwd") || name.contains("fmha_cutlassF") {
            return Self::Attention {
                products: 2,
                causal,
                kind,
            };
        }
        if name.contains("flash_bwd_dq") || name.contains("fmha_cutlassB") {
            return Self::Attention {
                products: 5,
                causal,
                kind,
            };
        }
        if name.contains("batch_norm_")
            && !name.contains("channels_last")
            && !name.contains("reduce_statistics")
        {
            return Self::Viewed {
                dimensions: 3,
                views: 1,
                bytes,
            };
        }
        if name.contains("batch_norm_") && name.contains("channels_last") {
            // Rows and columns lie where the kernel's other arguments end.
            let (first, tensors) = if name.contains("collect_statistics") {
                (5, 1)
            } else if name.contains("transform_input") {
                (7, 2)
            } else if name.contains("backward_reduce") {
                (10, 2)
            } else {
                (9, 3)
            };
            return Self::Area {
                arguments: [first, first + 1],
                bytes: tensors * bytes,
            };
        }
        if name.contains("conv_depthwise2d_grad_weight") {
            return Self::FilterGradient { bytes };
        }
        if let Some(walk) = Walk::of(name, bytes) {
            return Self::Walks(walk);
        }
        if name.contains("conv_depthwise2d") {
            return Self::Viewed {
                dimensions: 4,
                views: 2,
                bytes,
            };
        }
        if name.contains("softmax_warp_forward") {
            return Self::Area {
                arguments: [2, 4],
                bytes: 2 * bytes,
            };
        }
        if name.contains("softmax_warp_backward") {
            return Self::Area {
                arguments: [3, 5],
                bytes: 3 * bytes,
            };
        }
        if name.contains("distribution_elementwise") {
            return Self::Elements {
                argument: 0,
                bytes: 4,
            };
        }
        if let Some(&(_, moved)) = ALONE.iter().find(|(part, _)| name.contains(part)) {
            return moved;
        }
        match family {
            Family::Rows { argument, bytes } => Self::Rows {
                argument: argument as u8,
                bytes,
            },
            Family::Columns { .. } => Self::Columns { bytes: 2 * bytes },
            Family::Elements { argument, bytes } => Self::Elements {
                argument: argument as u8,
                bytes,
            },
            Family::Concatenation(_) => Self::Concatenation,
            _ => Self::Unknown,
        }
    }

    /// The work of a launch.
    ///
    /// # Safety
    /// `arguments` must be null or those of the kernel.
    pub unsafe fn work(
        self,
        family: Family,
        name: u32,
        grid: [u32; 3],
        threads: u32,
        arguments: *const *mut c_void,
    ) -> Work {
        let blocks = grid.iter().map(|&size| u64::from(size)).product();
        let mut bytes = 0;
        if !arguments.is_null() {
            // SAFETY: the caller's contract: the name says what the arguments are; counts that are wider lie lower half
            // first.
            unsafe {
                let count = |index: u8| {
                    u64::from(
                        (*arguments.add(usize::from(index)))
                            .cast::<u32>()
                            .read_unaligned(),
                    )
                };
                match self {
                    Self::Unknown => {}
                    Self::Walks(walk) => {
                        if let Some(work) = walk.work(grid, threads, arguments) {
                            return work;
                        }
                    }
                    Self::Pointwise { bytes: each } => bytes = count(0) * u64::from(each),
                    Self::Casting { inputs } => {
                        let size = |index: u8, of: u8, count: u8| {
                            let first = usize::from(count).next_multiple_of(4);
                            let at = (*arguments.add(usize::from(index))).cast::<u8>();
                            u64::from(
                                at.add(first + 4 * usize::from(of))
                                    .cast::<u32>()
                                    .read_unaligned(),
                            )
                            .min(16)
                        };
                        let each = (0..inputs).map(|input| size(5, input, inputs)).sum::<u64>()
                            + size(6, 0, 1);
                        bytes = count(0) * each;
                    }
                    Self::Rows {
                        argument,
                        bytes: each,
                    } => bytes = blocks * count(argument) * u64::from(each),
                    Self::Columns { bytes: each } => bytes = count(0) * count(1) * u64::from(each),
                    Self::Elements {
                        argument,
                        bytes: each,
                    } => bytes = count(argument) * u64::from(each),
                    Self::Viewed {
                        dimensions,
                        views,
                        bytes: each,
                    } => {
                        let elements = (0..usize::from(views)).filter_map(|view| {
                            let sizes = viewed(*arguments.add(view), usize::from(dimensions))?;
                            sizes
                                .iter()
                                .try_fold(1_u64, |all, &size| all.checked_mul(size))
                        });
                        bytes = elements.sum::<u64>() * u64::from(each);
                    }
                    Self::FilterGradient { bytes: each } => {
                        let image = viewed(*arguments, 4);
                        bytes = image.map_or(0, |[images, _, height, width]| {
                            let turns = (height * width).div_ceil(WARP) + IDLE_TURNS;
                            blocks * images * turns * WARP * 2 * u64::from(each)
                        });
                    }
                    Self::Area {
                        arguments: [rows, columns],
                        bytes: each,
                    } => {
                        bytes = count(rows) * count(columns) * u64::from(each);
                    }
                    Self::Reduction { bytes: each } => {
                        match reductions::work(*arguments, blocks, threads, u64::from(each)) {
                            Ok(work) => return work,
                            Err(read) => bytes = read,
                        }
                    }
                    Self::Lists {
                        depth,
                        bytes: each,
                        beside,
                    } => {
                        let elements = listed_elements(
                            *arguments,
                            usize::from(depth),
                            usize::from(beside),
                            blocks as usize,
                        );
                        bytes = elements * u64::from(depth + 1) * u64::from(each);
                    }
                    Self::Chain {
                        argument,
                        view,
                        cycles,
                    } => {
                        let steps = if view {
                            viewed(*arguments.add(usize::from(argument)), 4)
                                .map_or(0, |[images, channels, ..]| images * channels)
                        } else {
                            count(argument)
                        };
                        return Work::Chain {
                            cycles: steps * u64::from(cycles),
                            work: 0,
                            bytes: 0,
                            what: "scans and resizing",
                        };
                    }
                    Self::Worked {
                        argument,
                        channels,
                        tenths,
                    } => {
                        // `TensorInfo`: an address, then sizes of 32 bits.
                        let each = if channels {
                            let sizes = (*arguments.add(usize::from(argument) + 1)).cast::<u32>();
                            u64::from(sizes.add(3).read_unaligned())
                        } else {
                            1
                        };
                        return Work::Chain {
                            cycles: 0,
                            work: count(argument) * each * u64::from(tenths) / 10,
                            bytes: 0,
                            what: "indexing",
                        };
                    }
                    Self::Concatenation => {
                        if let Family::Concatenation(found) = family {
                            bytes =
                                2 * found.elements(grid[1], arguments) * u64::from(found.element());
                        }
                    }
                    Self::Attention {
                        products,
                        causal,
                        kind,
                    } => {
                        if let Some([queries, keys, features]) = attended(*arguments, grid) {
                            return Work::Attention {
                                heads: u64::from(grid[1]) * u64::from(grid[2]),
                                queries,
                                keys,
                                features,
                                causal,
                                products,
                                kind: kind as u8,
                                bytes: 0,
                            };
                        }
                    }
                }
            }
        }
        Work::Kernel {
            name,
            blocks,
            threads,
            bytes,
        }
    }
}

/// Kernels whose threads walk on alone, and those that are limited by their atomic or scattered accesses; cycles from
/// `bench/time/results/h200_kinds.jsonl.gz`.
#[rustfmt::skip]
const ALONE: [(&str, Moved); 8] = [
    ("tensor_kernel_scan_outer_dim", Moved::Chain { argument: 4, view: false, cycles: 715 }),
    ("upsample_bilinear2d_out_frame", Moved::Chain { argument: 4, view: true, cycles: 800 }),
    ("upsample_bicubic2d_out_frame", Moved::Chain { argument: 4, view: true, cycles: 1270 }),
    ("upsample_bicubic2d_backward_out_frame", Moved::Chain { argument: 4, view: true, cycles: 4570 }),
    ("grid_sampler_2d_kernel", Moved::Worked { argument: 0, channels: true, tenths: 26 }),
    ("grid_sampler_2d_backward_kernel", Moved::Worked { argument: 0, channels: true, tenths: 127 }),
    ("indexFuncLargeIndex", Moved::Worked { argument: 5, channels: false, tenths: 19 }),
    ("scatter_gather_elementwise_kernel", Moved::Worked { argument: 0, channels: false, tenths: 8 }),
];

/// Threads that go together, and what an image costs beside its pixels, as turns of these: fitted to `bench/time`.
const WARP: u64 = 32;
const IDLE_TURNS: u64 = 2;

/// Sizes of a view, of at most four dimensions; those that it lacks are 1. Behind its address they lie in 32 or 64 bits.
///
/// # Safety
/// `view` must point to a `PackedTensorAccessor` of so many dimensions.
pub unsafe fn viewed(view: *const c_void, dimensions: usize) -> Option<[u64; 4]> {
    // SAFETY: sizes and strides follow the address.
    let word = |at: usize| unsafe { view.cast::<u32>().add(2 + at).read_unaligned() };
    let is_wide = word(1) == 0;
    let mut sizes = [1; 4];
    for (dimension, size) in sizes.iter_mut().enumerate().take(dimensions) {
        *size = u64::from(word(if is_wide { 2 * dimension } else { dimension }));
    }
    sizes.iter().all(|&size| size > 0).then_some(sizes)
}

/// Elements of the pieces that a step over lists of tensors has (`TensorListMetadata` of `MultiTensorApply.cuh`; `beside` is how many bytes
/// `TensorListScalarListMetadata` and `FusedOptimizerTensorListMetadata` have for each tensor between sizes and pieces).
///
/// # Safety
/// `metadata` must point to that structure.
unsafe fn listed_elements(
    metadata: *const c_void,
    depth: usize,
    beside: usize,
    blocks: usize,
) -> u64 {
    const PIECE: i64 = 65_536;
    const BLOCKS: usize = 320;
    const ROOM: [usize; 5] = [110, 64, 48, 36, 30];
    let room = if beside > 0 && depth == 1 {
        96
    } else {
        ROOM[depth.clamp(1, 5) - 1]
    };
    let counts = depth.clamp(1, 5) * room * 8;
    let tensors = counts + room * (8 + beside);
    let pieces = tensors + BLOCKS;
    let at = metadata.cast::<u8>();
    (0..blocks.min(BLOCKS))
        .map(|block| {
            // SAFETY: inside the structure: blocks and tensors are bounded by its rooms.
            let (count, piece) = unsafe {
                let tensor = usize::from(at.add(tensors + block).read()).min(room - 1);
                let piece = at.add(pieces + 4 * block).cast::<c_int>().read_unaligned();
                (
                    at.add(counts + 8 * tensor).cast::<i64>().read_unaligned(),
                    piece,
                )
            };
            count
                .saturating_sub(i64::from(piece) * PIECE)
                .clamp(0, PIECE) as u64
        })
        .sum()
}

/// Queries, keys and features of a head, or nothing if the parameters of the kernel do not look as expected: batches or heads
/// and tiles of queries or keys are the grid's.
///
/// # Safety
/// `parameters` must point to the parameters of a kernel of FlashAttention or of CUTLASS's.
unsafe fn attended(parameters: *const c_void, grid: [u32; 3]) -> Option<[u64; 3]> {
    const WORDS: usize = 96;
    // SAFETY: these structures are longer.
    let words: Vec<u64> = (0..WORDS)
        .map(|word| u64::from(unsafe { parameters.cast::<u32>().add(word).read_unaligned() }))
        .collect();
    let fits = |length: u64, tile: u64| {
        length > 0 && length < 1 << 24 && length.div_ceil(tile) == u64::from(grid[0])
    };
    let feature = |d: u64| (8..=512).contains(&d) && d.is_multiple_of(4);
    words.windows(5).find_map(|w| {
        // CUTLASS: features, features of values, queries, keys.
        if feature(w[0])
            && w[0] == w[1]
            && w[2] > 0
            && w[2] < 1 << 24
            && w[3] > 0
            && w[3] < 1 << 24
            && [32, 64, 128]
                .iter()
                .any(|&tile| fits(w[2], tile) || fits(w[3], tile) || grid[0] == 1)
        {
            return Some([w[2], w[3], w[0]]);
        }
        // FlashAttention: batches, queries, keys, new keys, features.
        let tiles = [64, 80, 96, 128, 192, 256];
        (w[0] == u64::from(grid[1].min(grid[2]))
            || w[0] == u64::from(grid[1])
            || w[0] == u64::from(grid[2]))
        .then_some(())
        .filter(|()| w[3] == 0 && feature(w[4]))
        .filter(|()| {
            tiles
                .iter()
                .any(|&tile| fits(w[1], tile) || fits(w[2], tile))
        })
        .map(|()| [w[1], w[2], w[4]])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> Moved {
        Moved::of(name, Family::of(name))
    }

    #[test]
    fn names_tell_what_moves() {
        let add = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_";
        assert_eq!(of(add), Moved::Pointwise { bytes: 12 });
        let half = add.replace("_addIf", "_addIN3c108BFloat16E");
        assert_eq!(of(&half), Moved::Pointwise { bytes: 6 });
        let names = [
            (
                "_ZN2at6native29vectorized_elementwise_kernelILi8EZNS0_25bfloat16_copy_kernel_cudaERNS_18TensorIteratorBaseEEUlfE_St5arrayIPcLm2EEEEviT0_T1_",
                6,
            ),
            (
                "_ZN2at6native18elementwise_kernelILi128ELi2EZNS0_22gpu_kernel_impl_nocastINS0_13BinaryFunctorIffbNS0_12_GLOBAL__N_116CompareEqFunctorIfEEEEEEvRNS_18TensorIteratorBaseERKT_EUliE_EEviT1_",
                9,
            ),
            (
                "_ZN2at6native18elementwise_kernelILi128ELi2EZNS0_22gpu_kernel_impl_nocastIZZZNS0_49_GLOBAL__N__d2ba64fb_16_TensorCompare_cu_71e06f4e17where_kernel_implERNS_14TensorIteratorEENKUlvE_clEvENKUlvE6_clEvEUlbffE_EEvRNS_18TensorIteratorBaseERKT_EUliE_EEviT1_",
                13,
            ),
            (
                "_ZN2at6native29vectorized_elementwise_kernelILi8ENS0_13AUnaryFunctorIN3c108BFloat16ES4_S4_NS0_15binary_internal10MulFunctorIfEEEESt5arrayIPcLm2EEEEviT0_T1_",
                4,
            ),
            (
                "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIlEESt5arrayIPcLm1EEEEviT0_T1_",
                8,
            ),
        ];
        for (name, bytes) in names {
            assert_eq!(of(name), Moved::Pointwise { bytes }, "{name}");
        }
        let sum = "_ZN2at6native13reduce_kernelILi128ELi4ENS0_8ReduceOpIN3c108BFloat16ENS0_14func_wrapper_tIS4_";
        assert_eq!(of(sum), Moved::Reduction { bytes: 2 });
        assert_eq!(of("triton_poi_fused_add_0"), Moved::Unknown);
        let scan = "_ZN2at6native28tensor_kernel_scan_outer_dimIfjSt4plusIfEEEvPT_PKS4_jjjS4_T1_";
        let moved = of(scan);
        let mut values = [0_u64, 0, 1, 4096, 4096, 0];
        let arguments: Vec<_> = (values.iter_mut())
            .map(|value| std::ptr::from_mut(value).cast::<c_void>())
            .collect();
        // SAFETY: as many arguments as that kernel has.
        let work = unsafe { moved.work(Family::of(scan), 0, [1, 8, 1], 512, arguments.as_ptr()) };
        assert!(matches!(work, Work::Chain { cycles, .. } if cycles == 4096 * 715));
    }

    #[test]
    fn names_tell_which_attention_is_causal() {
        let flash = |compiled| {
            format!(
                "_ZN13pytorch_flash16flash_fwd_kernelI23Flash_fwd_kernel_traitsILi128ELi128ELi64ELi4ELb0ELb0EN7cutlass10bfloat16_tE19Flash_kernel_traitsILi128ELi128ELi64ELi4ES3_EE{compiled}ELb0ELb0ELb0ELb1ELb0ELb0EEEvNS_16Flash_fwd_paramsE"
            )
        };
        for (compiled, expected) in [("Lb0ELb0", false), ("Lb0ELb1", true), ("Lb1ELb1", true)] {
            let Moved::Attention { causal, .. } = of(&flash(compiled)) else {
                panic!("{compiled}")
            };
            assert_eq!(causal, expected, "{compiled}");
        }
    }

    #[test]
    fn lists_count_the_elements_of_their_pieces() {
        for (kind, depth, room, beside) in [
            ("TensorListMetadataILi2E", 2, 64, 0),
            ("TensorListScalarListMetadataIfLi1E", 1, 96, 4),
            ("FusedOptimizerTensorListMetadataILi4E", 4, 36, 8),
        ] {
            let mut metadata = vec![0xee_u8; 4000];
            let counts = depth * room * 8;
            metadata[counts..counts + 8].copy_from_slice(&70_000_i64.to_ne_bytes());
            let tensors = counts + room * (8 + beside);
            metadata[tensors..tensors + 2].fill(0);
            let pieces = tensors + 320;
            metadata[pieces..pieces + 4].copy_from_slice(&0_i32.to_ne_bytes());
            metadata[pieces + 4..pieces + 8].copy_from_slice(&1_i32.to_ne_bytes());
            let name = format!("_ZN2at6native25multi_tensor_apply_kernelINS1_{kind}EEE");
            let Moved::Lists { beside, .. } = of(&name) else {
                panic!("{name}")
            };
            let beside = usize::from(beside);
            // SAFETY: as long as the structure.
            let elements = unsafe { listed_elements(metadata.as_ptr().cast(), depth, beside, 2) };
            assert_eq!(elements, 70_000, "{kind}");
        }
    }
}
