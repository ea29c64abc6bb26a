//! Families of kernels, told by their names, and how long a launch of each takes.
//!
//! Most kernels give each thread sixteen bytes of each of three tensors, so the threads of a
//! launch say what it moves. The families below do not: their grids are as large as the GPU, or
//! their threads walk along rows whose length is an argument.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use crate::clock::{LAUNCH, Rates};
use crate::ledger;

/// How the time of a kernel follows from its launch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Family {
    /// Each thread moves the same.
    #[default]
    Usual,
    /// PyTorch's concatenation: the lengths of its inputs lie in its second argument.
    Concatenation(Concatenation),
    /// Each block walks along a row: this argument is its length in elements of so many bytes.
    Rows { argument: usize, bytes: u8 },
    /// Compiled matrix products of Triton, whose depth is not known.
    MatrixTemplate,
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

/// What a usual thread moves.
const BYTES_PER_THREAD: f64 = 48.0;
/// What an element of a concatenation costs unless it is moved with others, as bytes.
const BYTES_PER_SINGLE_ELEMENT: f64 = 16.0;
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
        if name.contains("CatArrayBatchedCopy") {
            Concatenation::of(name).map_or(Self::Usual, Self::Concatenation)
        } else if name.contains("cunn_SoftMax") && name.contains("Forward") {
            Self::Rows { argument: 2, bytes }
        } else if name.contains("vectorized_layer_norm_kernel")
            || name.contains("RowwiseMomentsCUDAKernel")
            || name.contains("LayerNormForwardCUDAKernel")
        {
            Self::Rows { argument: 0, bytes }
        } else if TEMPLATES.iter().any(|prefix| name.starts_with(prefix)) {
            Self::MatrixTemplate
        } else if name.contains("18elementwise_kernel")
            && name.contains("gpu_kernel_impl_nocast")
            && name.contains("direct_copy_kernel_cuda")
        {
            Self::StridedCopy
        } else {
            Self::Usual
        }
    }

    /// The time of a launch with this grid and so many threads in a block.
    ///
    /// # Safety
    /// `arguments` must be null or those of a kernel of this family.
    pub unsafe fn time(
        self,
        rates: &Rates,
        grid: [u32; 3],
        threads: f64,
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
                // A row is read and written.
                rates.moving(blocks * f64::from(length) * f64::from(bytes) * 2.0)
            }
            Self::MatrixTemplate => {
                /// Longer than a library takes for a tile of any usual depth.
                const WAVE: Duration = Duration::from_micros(60);
                ledger::assume(
                    "Triton",
                    "matrix templates are taken to be slower than the library's products",
                );
                LAUNCH + WAVE.mul_f64(rates.waves(blocks))
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

    /// What a launch over so many inputs moves.
    ///
    /// # Safety
    /// `arguments` must be those of the kernel.
    unsafe fn bytes(self, inputs: u32, arguments: *const *mut c_void) -> f64 {
        // `CatArrInputTensorMetadata`: addresses, offsets, lengths along the dimension, lengths.
        let word = if self.wide { 8 } else { 4 };
        let room = usize::from(self.room);
        let lengths = room * 8 + 2 * room * word;
        let elements: f64 = (0..(inputs as usize).min(room))
            .map(|input| {
                // SAFETY: inside the structure above.
                unsafe {
                    let at = (*arguments.add(1)).cast::<u8>().add(lengths + input * word);
                    if self.wide {
                        at.cast::<u64>().read_unaligned() as f64
                    } else {
                        f64::from(at.cast::<u32>().read_unaligned())
                    }
                }
            })
            .sum();
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
                bytes: 2
            }
        );
        assert_eq!(Family::of("triton_mm_12"), Family::MatrixTemplate);
        assert_eq!(Family::of("triton_poi_fused_add_0"), Family::Usual);
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
            Family::Concatenation(cat).time(&rates(), [264, 2, 1], 512.0, arguments.as_ptr())
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
            unsafe { copy.time(&rates(), [blocks, 1, 1], 128.0, arguments.as_ptr()) }.as_secs_f64()
        };
        assert!((0.8..1.25).contains(&(time(2, 100_514) / 2.6e-3)));
        assert!((0.7..1.4).contains(&(time(2, 2) / 0.9e-3)));
    }

    #[test]
    fn threads_say_what_usual_kernels_move() {
        // Adding two bf16 tensors of 2^28 elements on an H200.
        // SAFETY: no arguments.
        let time =
            unsafe { Family::Usual.time(&rates(), [262_144, 1, 1], 128.0, std::ptr::null()) };
        assert!(
            (0.8..1.25).contains(&(time.as_secs_f64() / 369.9e-6)),
            "{time:?}"
        );
    }
}
