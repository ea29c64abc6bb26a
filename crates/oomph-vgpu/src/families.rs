//! Families of kernels, recognized by their names, and how long a launch of each takes.
//!
//! In most kernels each thread handles sixteen bytes of each of three tensors, so the number of threads
//! determines the bytes moved. The families below differ: their grids are as large as the GPU, or
//! their threads walk along rows whose length is an argument. What they move for an element, or would
//! in the time that they take, follows `bench/gpu/results/h200_operators.json`.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use crate::clock::{Kind, LAUNCH, Product, Rates};
use crate::{cublaslt, ledger, reductions};

/// How the time of a kernel follows from its launch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Family {
    /// Each thread moves the same.
    #[default]
    Usual,
    /// PyTorch's concatenation: the lengths of its inputs lie in its second argument.
    Concatenation(Concatenation),
    /// Each block walks along a row: this argument is its length, and each element costs so many
    /// bytes.
    Rows { argument: usize, bytes: u8 },
    /// A sum over the rows of a matrix: its two sizes are the first arguments.
    Columns { bytes: u8 },
    /// The threads share so many elements as this argument says.
    Elements { argument: usize, bytes: u8 },
    /// PyTorch's reduction, which says in its argument what it reads.
    Reduction,
    /// A step over lists of tensors: each block has a piece of one.
    Lists { bytes: u8 },
    /// Compiled matrix products of Triton, whose depth is unknown: a wave of blocks takes longer than a library takes for a tile
    /// of any usual depth.
    MatrixTemplate,
    /// XLA's products by Triton. Its autotuner asks cuBLASLt for the algorithms of a product before it tries kernels for it.
    TriedProduct,
    /// PyTorch's copy of a tensor that is not dense: its strides lie in its second argument.
    StridedCopy,
}

/// What the name of a concatenation says of its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Concatenation {
    /// Bytes of an element.
    element: u8,
    /// Whether lengths are 64 bits wide.
    wide: bool,
    /// Inputs that the argument has room for.
    room: u16,
    /// Whether elements are moved several at once.
    wholesale: bool,
}

/// What a typical thread moves.
const BYTES_PER_THREAD: f64 = 48.0;
/// What an element of a concatenation costs unless it is moved with others, as bytes.
const BYTES_PER_SINGLE_ELEMENT: f64 = 16.0;
/// How many times longer a reduction takes than reading its input, as wide as it is summed, would.
const REDUCTION: f64 = 1.6;
/// What an element costs that neighbouring threads do not read from neighbouring addresses: most of
/// a sector of 32 bytes. Transposing 8192×50257 bf16 on an H200 while padding it took 2.6 ms
/// (`pads` in `bench/gpu/results/h200_clock.json`, less the product and the filling).
const BYTES_PER_SCATTERED_ELEMENT: f64 = 27.0;

impl Family {
    /// The family of a kernel by its mangled name.
    pub fn of(name: &str) -> Self {
        /// Prefixes of the kernels that Inductor makes from its templates.
        const TEMPLATES: [&str; 5] = [
            "triton_tem_",
            "triton_mm",
            "triton_bmm",
            "triton_addmm",
            "triton_convolution",
        ];
        let bytes = if name.contains("BFloat16") || name.contains("4Half") {
            2
        } else {
            4
        };
        // Rows that do not fit into a multiprocessor are read again for each of several passes.
        let passes = |fitting: u8, long: u8| if name.contains("Smem") { fitting } else { long };
        if name.contains("CatArrayBatchedCopy") {
            Concatenation::of(name).map_or(Self::Usual, Self::Concatenation)
        } else if name.contains("cunn_SoftMax") && name.contains("Forward") {
            Self::Rows {
                argument: 2,
                bytes: passes(2, 4) * bytes,
            }
        } else if name.contains("cunn_SoftMaxBackward") {
            Self::Rows {
                argument: 3,
                bytes: passes(3, 5) * bytes,
            }
        } else if name.contains("vectorized_layer_norm_kernel") {
            Self::Rows {
                argument: 0,
                bytes: 4 * bytes,
            }
        } else if name.contains("RowwiseMomentsCUDAKernel")
            || name.contains("LayerNormForwardCUDAKernel")
        {
            Self::Rows {
                argument: 0,
                bytes: 2 * bytes,
            }
        } else if name.contains("layer_norm_grad_input_kernel") {
            Self::Rows {
                argument: 6,
                bytes: 3 * bytes,
            }
        } else if name.contains("GammaBetaBackwardCUDAKernel") {
            Self::Columns { bytes: 7 * bytes }
        } else if name.contains("fused_dropout_kernel") {
            Self::Elements {
                argument: 3,
                bytes: 2 * bytes + 1,
            }
        } else if name.contains("13reduce_kernelILi") {
            Self::Reduction
        } else if name.contains("multi_tensor_apply_kernel") {
            Self::Lists {
                bytes: (lists(name) + 1) * bytes,
            }
        } else if TEMPLATES.iter().any(|prefix| name.starts_with(prefix)) {
            Self::MatrixTemplate
        } else if name.starts_with("gemm_fusion_") || name.starts_with("triton_gemm_") {
            Self::TriedProduct
        } else if name.contains("18elementwise_kernel")
            && name.contains("gpu_kernel_impl_nocast")
            && name.contains("direct_copy_kernel_cuda")
        {
            Self::StridedCopy
        } else {
            Self::Usual
        }
    }

    /// The time of a launch with this grid, so many threads in a block, and so many bytes of shared memory for it.
    ///
    /// # Safety
    /// `arguments` must be null or those of a kernel of this family.
    pub unsafe fn time(
        self,
        rates: &Rates,
        grid: [u32; 3],
        threads: f64,
        shared: u32,
        arguments: *const *mut c_void,
    ) -> Duration {
        let blocks: f64 = grid.iter().map(|&size| f64::from(size)).product();
        let usual = blocks * threads * BYTES_PER_THREAD;
        match self {
            Self::Concatenation(found) if !arguments.is_null() => {
                // SAFETY: the caller's contract.
                rates.moving(unsafe { found.bytes(grid[1], arguments) })
            }
            Self::Rows { argument, bytes } if !arguments.is_null() => {
                // SAFETY: the caller's contract; where the length is wider, this is its lower half.
                let length = unsafe { (*arguments.add(argument)).cast::<c_int>().read_unaligned() };
                rates.moving(blocks * f64::from(length) * f64::from(bytes))
            }
            Self::Columns { bytes } if !arguments.is_null() => {
                // SAFETY: the caller's contract: both are 64 bits wide.
                let [rows, columns] = [0, 1].map(|argument| unsafe {
                    (*arguments.add(argument)).cast::<i64>().read_unaligned() as f64
                });
                rates.moving(rows * columns * f64::from(bytes))
            }
            Self::Elements { argument, bytes } if !arguments.is_null() => {
                // SAFETY: the caller's contract; where the count is wider, this is its lower half.
                let count = unsafe { (*arguments.add(argument)).cast::<u32>().read_unaligned() };
                rates.moving(f64::from(count) * f64::from(bytes))
            }
            Self::Reduction if !arguments.is_null() => {
                // SAFETY: the caller's contract.
                let read = unsafe { reductions::bytes(*arguments) };
                rates.moving(read.map_or(usual, |read| read * REDUCTION))
            }
            Self::Lists { bytes } => {
                /// Elements of a piece: `kChunkSize`.
                const PIECE: f64 = 65_536.0;
                rates.moving(blocks * PIECE * f64::from(bytes))
            }
            Self::MatrixTemplate => {
                ledger::assume(
                    "Triton",
                    "matrix templates are assumed to be slower than the library's products",
                );
                LAUNCH + Duration::from_micros(60).mul_f64(rates.waves(blocks))
            }
            Self::TriedProduct => {
                let asked = cublaslt::asked();
                asked.map_or_else(|| rates.moving(usual), |it| by_triton(rates, &it, shared))
            }
            Self::StridedCopy if !arguments.is_null() => {
                // SAFETY: the caller's contract.
                let scattered = unsafe { scattered_elements(arguments) };
                rates.moving(usual.max(scattered * BYTES_PER_SCATTERED_ELEMENT))
            }
            _ => rates.moving(usual),
        }
    }
}

/// The time of XLA's best kernel of Triton for a product: by how much it is slower than cuBLASLt's best where tensor cores decide.
/// Where memory or the launch does, the two were as quick on an H100 (46 products, `bench/gpu/results/h100_xla_products.json`).
fn by_triton(rates: &Rates, product: &Product, shared: u32) -> Duration {
    /// Shared memory of the one tile that is tried (`jax_recorder.py`), with inputs of 16 bits. Both inputs need more if they are
    /// converted to them on the way.
    const TILES: u32 = 16 << 10;
    /// What a kernel's beginning hides of it.
    const HIDDEN: Duration = Duration::from_micros(2);
    let computing = rates.computing(product);
    let slower = match product.kind {
        Kind::Bf16 | Kind::Fp16 if shared > TILES => computing.mul_f64(1.7),
        Kind::Bf16 | Kind::Fp16 => computing.mul_f64(0.17),
        Kind::Tf32 => computing.mul_f64(1.1).saturating_sub(HIDDEN),
        // No GPU has measured the others.
        _ => computing.mul_f64(0.3),
    };
    rates.product(product) + slower
}

/// Lists of tensors that a kernel of steps over lists takes, by its name.
pub fn lists(name: &str) -> u8 {
    // `…TensorListMetadataILi3EEE…`, `…TensorListScalarListMetadataIfLi3EEE…`.
    let depth = || {
        let (_, rest) = name.split_once("ListMetadataI")?;
        let (_, rest) = rest.split_once("Li")?;
        rest.chars().next()?.to_digit(10)
    };
    depth().map_or(2, |depth| depth as u8)
}

/// Elements that a strided copy reads or writes one by one, or none.
///
/// # Safety
/// `arguments` must be those of PyTorch's `elementwise_kernel` of one input.
unsafe fn scattered_elements(arguments: *const *mut c_void) -> f64 {
    /// `OffsetCalculator`: the number of dimensions, then for 25 of them a divider of three words,
    /// then the strides in bytes of output and input.
    const STRIDES: usize = 1 + 25 * 3;
    const SECTOR: u32 = 32;
    // SAFETY: the caller's contract; the calculator is the first that the kernel's function holds.
    let (elements, dimensions, output, input) = unsafe {
        let words = (*arguments.add(1)).cast::<u32>();
        (
            (*arguments).cast::<c_int>().read_unaligned(),
            words.read_unaligned(),
            words.add(STRIDES).read_unaligned(),
            words.add(STRIDES + 1).read_unaligned(),
        )
    };
    if (1..=25).contains(&dimensions) && output.max(input) >= SECTOR {
        f64::from(elements.max(0))
    } else {
        0.0
    }
}

impl Concatenation {
    /// From a name like `…CatArrayBatchedCopyINS1_10OpaqueTypeILj4EEEjLi2ELi64ELi64EEEv…`.
    fn of(name: &str) -> Option<Self> {
        let (_, rest) = name.split_once("OpaqueTypeILj")?;
        let (element, rest) = rest.split_once("EEE")?;
        let mut numbers = rest.get(1..)?.split("Li").skip(2);
        let room = numbers.next()?.trim_end_matches('E').parse().ok()?;
        Some(Self {
            element: element.parse().ok()?,
            wide: !rest.starts_with(['j', 'i']),
            room,
            wholesale: name.contains("vectorized")
                || name.contains("alignedK")
                || name.contains("aligned16"),
        })
    }

    /// Bytes of an element.
    pub const fn element(self) -> u8 {
        self.element
    }

    /// Elements of so many inputs.
    ///
    /// # Safety
    /// `arguments` must be those of the kernel.
    pub unsafe fn elements(self, inputs: u32, arguments: *const *mut c_void) -> u64 {
        // `CatArrInputTensorMetadata`: addresses, offsets, lengths along the dimension, lengths.
        let word = if self.wide { 8 } else { 4 };
        let room = usize::from(self.room);
        let lengths = room * 8 + 2 * room * word;
        (0..(inputs as usize).min(room))
            .map(|input| {
                // SAFETY: inside the structure above.
                unsafe {
                    let at = (*arguments.add(1)).cast::<u8>().add(lengths + input * word);
                    if self.wide {
                        at.cast::<u64>().read_unaligned()
                    } else {
                        u64::from(at.cast::<u32>().read_unaligned())
                    }
                }
            })
            .sum()
    }

    /// What a launch over so many inputs moves.
    ///
    /// # Safety
    /// `arguments` must be those of the kernel.
    unsafe fn bytes(self, inputs: u32, arguments: *const *mut c_void) -> f64 {
        // SAFETY: the caller's contract.
        let elements = unsafe { self.elements(inputs, arguments) } as f64;
        let each = 2.0 * f64::from(self.element);
        elements
            * if self.wholesale {
                each
            } else {
                each.max(BYTES_PER_SINGLE_ELEMENT)
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Out;
    use crate::clock;
    use crate::config::Config;
    use crate::device::Properties;

    const CAT: &str = "_ZN2at6native40_GLOBAL__N__0f1a8107_8_Shape_cu_49f7391c19CatArrayBatchedCopyINS1_10OpaqueTypeILj2EEEjLi2ELi64ELi64EEEvPT_NS1_25CatArrInputTensorMetadataIS5_T0_XT2_EXT3_EEENS1_16TensorSizeStrideIS8_Lj4EEEiS8_";

    fn rates() -> Rates {
        let config = Config::parse("");
        Rates::new(&config, &Properties::new(&config))
    }

    #[test]
    fn names_tell_families() {
        let expected = Concatenation {
            element: 2,
            wide: false,
            room: 64,
            wholesale: false,
        };
        assert_eq!(Family::of(CAT), Family::Concatenation(expected));
        assert_eq!(Family::of("CatArrayBatchedCopy"), Family::Usual);
        assert_eq!(
            Family::of("19cunn_SoftMaxForwardILi8EN3c108BFloat16EfS4_"),
            Family::Rows {
                argument: 2,
                bytes: 8
            }
        );
        let step = "_ZN2at6native57_GLOBAL__N__25multi_tensor_apply_kernelINS1_28TensorListScalarListMetadataIfLi3EEENS1_28PointwiseOpScalarListFunctorIfLi3ELi3ELi0EEEJSt7dividesIfEEEEvT_T0_DpT1_";
        assert_eq!(Family::of(step), Family::Lists { bytes: 16 });
        let norm = "_ZN2at6native12_GLOBAL__N_135GammaBetaBackwardCUDAKernelTemplateIffLj32ELj32ELj256ELb0ELb1ELb0EEEvllPKT_S5_PKT0_S8_PS3_S9_";
        assert_eq!(Family::of(norm), Family::Columns { bytes: 28 });
        assert_eq!(Family::of("triton_mm_12"), Family::MatrixTemplate);
        assert_eq!(Family::of("triton_poi_fused_add_0"), Family::Usual);
    }

    /// XLA asks cuBLASLt for several algorithms of a product, then times kernels for it, Triton's first.
    #[test]
    fn a_product_that_is_tried_takes_longer_than_the_librarys() {
        let layout = |rows, columns| [0_u64, 0, rows, columns, rows, 1, 0, 0];
        let mut results = [cublaslt::HeuristicResult::default(); 16];
        let mut found = 0;
        let mut ask = |rows, inner, columns, wanted| {
            // SAFETY: there is room for as many results as are wanted.
            unsafe {
                cublaslt::cublasLtMatmulAlgoGetHeuristic(
                    1,
                    Some(&[0; 32]),
                    Some(&layout(rows, inner)),
                    Some(&layout(inner, columns)),
                    0,
                    Some(&layout(rows, columns)),
                    None,
                    wanted,
                    Out::new(results.as_mut_ptr()),
                    Out::from(&mut found),
                );
            }
            found
        };
        // SAFETY: no arguments.
        let time = || unsafe {
            Family::of("gemm_fusion_dot_3").time(&rates(), [128, 1, 1], 128.0, 0, std::ptr::null())
        };
        assert_eq!(ask(2048, 256, 1024, 16), 8);
        let small = time();
        // Who asks for one, as PyTorch does, tries nothing.
        assert_eq!(ask(8192, 8192, 8192, 1), 1);
        assert_eq!(time(), small);
        assert_eq!(ask(8192, 8192, 8192, 16), 8);
        assert!(time() > 20 * small);
    }

    /// What XLA chose on an H100: `bench/gpu/results/h100_xla_products.json`. It takes what needs no work space if that is slower by
    /// two microseconds at most.
    #[test]
    fn triton_is_preferred_where_an_h100_preferred_it() {
        let is_preferred = |kind, m, k, n, batch| {
            let product = Product {
                m,
                n,
                k,
                batch,
                kind,
                alignment: clock::ALIGNED,
            };
            by_triton(&rates(), &product, 0) <= rates().product(&product) + Duration::from_micros(2)
        };
        for (kind, m, k, n, batch, chosen) in [
            (Kind::Bf16, 4096, 4096, 4096, 1, false),
            (Kind::Bf16, 2048, 1024, 512, 1, true),
            (Kind::Bf16, 8192, 1024, 4096, 1, false),
            (Kind::Bf16, 256, 2048, 1024, 1, true),
            (Kind::Bf16, 1024, 8192, 1024, 1, false),
            (Kind::Bf16, 32, 2048, 6144, 1, true),
            (Kind::Tf32, 4096, 4096, 4096, 1, false),
            (Kind::Tf32, 2048, 1024, 512, 1, false),
            (Kind::Tf32, 256, 2048, 1024, 1, true),
            (Kind::Tf32, 512, 64, 512, 64, false),
            (Kind::Tf32, 2048, 256, 1024, 1, true),
            (Kind::Tf32, 32, 2048, 6144, 1, true),
            (Kind::Tf32, 16384, 64, 16384, 1, false),
        ] {
            let found = is_preferred(kind, m, k, n, batch);
            assert_eq!(found, chosen, "{kind:?} {m} {k} {n} {batch}");
        }
        let large = Product {
            m: 4096,
            n: 4096,
            k: 4096,
            batch: 1,
            kind: Kind::Bf16,
            alignment: clock::ALIGNED,
        };
        // Inputs that are converted on the way: 449 µs, and the library 173 without the conversion.
        let ratio = by_triton(&rates(), &large, 20 << 10).div_duration_f64(rates().product(&large));
        assert!((2.3..3.0).contains(&ratio), "{ratio}");
    }

    /// As an H200 ran them in GPT-2, BERT and ViT: `bench/gpu/results/h200_operators.json`.
    #[test]
    fn sums_and_steps_take_about_what_they_took_on_an_h200() {
        let time = |family: Family, blocks: u32, arguments: &[*mut c_void]| {
            // SAFETY: the arguments are those of the family.
            let time =
                unsafe { family.time(&rates(), [blocks, 1, 1], 512.0, 0, arguments.as_ptr()) };
            time.as_secs_f64() * 1e6
        };
        let near = |estimate: f64, truth: f64| {
            assert!(
                (0.65..1.5).contains(&(estimate / truth)),
                "{estimate:.1} us, on an H200 {truth} us"
            );
        };
        let (mut rows, mut columns) = (16_384_i64, 768_i64);
        let sizes = [(&raw mut rows).cast(), (&raw mut columns).cast()];
        near(time(Family::Columns { bytes: 28 }, 24, &sizes), 77.0);
        // One word of operation, a neutral element, then what is reduced.
        let mut words = [0_i32; 24];
        words[2..6].copy_from_slice(&[4, 16_384, 768, 1]);
        near(
            time(Family::Reduction, 12, &[words.as_mut_ptr().cast()]),
            20.0,
        );
        let mut unlike = [0_i32; 24];
        // As far as is known: by its threads.
        assert!(time(Family::Reduction, 12, &[unlike.as_mut_ptr().cast()]) < 5.0);
        let mut classes = 50_257_i32;
        let unused = std::ptr::null_mut();
        let softmax = [unused, unused, unused, (&raw mut classes).cast()];
        let back = Family::Rows {
            argument: 3,
            bytes: 20,
        };
        near(time(back, 8192, &softmax), 1740.0);
        // A step of AdamW over 124 million parameters multiplies them in about 2000 pieces.
        near(time(Family::Lists { bytes: 8 }, 2000, &[]), 285.0);
    }

    #[test]
    fn a_concatenation_reads_its_lengths() {
        let Family::Concatenation(cat) = Family::of(CAT) else {
            return;
        };
        let mut metadata = vec![0_u32; 64 * 2 + 3 * 64 + 64];
        metadata[64 * 2 + 2 * 64] = 8192 * 50_257;
        metadata[64 * 2 + 2 * 64 + 1] = 8192 * 7;
        metadata[64 * 2 + 2 * 64 + 2] = 12_345;
        let arguments = [std::ptr::null_mut(), metadata.as_mut_ptr().cast()];
        // SAFETY: the arguments are laid out as the kernel's.
        let time = unsafe {
            Family::Concatenation(cat).time(&rates(), [264, 2, 1], 512.0, 0, arguments.as_ptr())
        };
        let measured = 1498.8e-6;
        assert!(
            (0.8..1.25).contains(&(time.as_secs_f64() / measured)),
            "{time:?}"
        );
    }

    #[test]
    fn a_transposing_copy_takes_longer_than_a_plain_one() {
        let copy = Family::of(
            "_ZN2at6native18elementwise_kernelILi128ELi4EZNS0_22gpu_kernel_impl_nocastIZZZNS0_23direct_copy_kernel_cudaERNS_18TensorIteratorBaseE",
        );
        assert_eq!(copy, Family::StridedCopy);
        let (mut elements, mut calculator) = (8192 * 50_257_i32, vec![0_u32; 1 + 25 * 3 + 25 * 2]);
        calculator[0] = 2;
        let mut time = |output, input| {
            (calculator[76], calculator[77]) = (output, input);
            let arguments = [
                (&raw mut elements).cast(),
                calculator.as_mut_ptr().cast::<c_void>(),
            ];
            let blocks = 8192 * 50_257 / 512;
            // SAFETY: the arguments are laid out as the kernel's.
            unsafe { copy.time(&rates(), [blocks, 1, 1], 128.0, 0, arguments.as_ptr()) }
                .as_secs_f64()
        };
        assert!((0.8..1.25).contains(&(time(2, 100_514) / 2.6e-3)));
        assert!((0.7..1.4).contains(&(time(2, 2) / 0.9e-3)));
    }

    #[test]
    fn threads_say_what_usual_kernels_move() {
        // Adding two bf16 tensors of 2^28 elements on an H200.
        // SAFETY: no arguments.
        let time =
            unsafe { Family::Usual.time(&rates(), [262_144, 1, 1], 128.0, 0, std::ptr::null()) };
        assert!(
            (0.8..1.25).contains(&(time.as_secs_f64() / 369.9e-6)),
            "{time:?}"
        );
    }
}
