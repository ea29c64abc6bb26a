//! Kernels whose time their bytes do not tell: threads that walk along a row, blocks that take a row each.
//!
//! What a step or a block costs is fitted to `bench/time/results/h200_shapes.jsonl.gz`, in cycles of that H200.

use std::ffi::c_void;

use crate::moved::viewed;
use crate::work::Work;

/// What a kernel walks over, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Walk {
    /// A scan along the innermost dimension; `dear` where sums are of exponentials.
    Scan { dear: bool },
    /// A softmax over a dimension that is not the innermost: each thread walks along it.
    Softmax { backward: bool, bytes: u8 },
    /// The largest of each row, by one block for each.
    Largest,
    /// Rows that a block sorts in shared memory, several at a time.
    SortedShort,
    /// A row that a block sorts.
    Sorted,
    /// Rows that are taken by their numbers, a block for each.
    Gathered,
    /// A mean over windows: a thread for each.
    Pooled { backward: bool, bytes: u8 },
    /// Volumes that are enlarged: a thread for each place, which walks over images and channels.
    Enlarged { backward: bool, half: bool },
    /// The gradient of a short embedding: each block goes through all indices.
    Embedded,
    /// Windows that become columns: a thread for each place, which walks over its window.
    Columns { bytes: u8 },
    /// Sums for the gradient of a group normalization: a block for each channel of an image.
    Moments { bytes: u8 },
    /// A convolution of single channels over a window that the kernel was not compiled for.
    Windowed,
    /// The gradient of a deformed convolution's offsets: a thread for each, which walks over the channels.
    Offsets,
}

/// Elements that lie beyond the L2 cache take a thread twice as long to come by.
const CACHED: u128 = 40 << 20;
/// Cycles of a minute.
const MOST: u128 = 120_000_000_000;

impl Walk {
    /// By a kernel's mangled name and the bytes of its elements.
    pub fn of(name: &str, bytes: u8) -> Option<Self> {
        let backward = name.contains("ackward");
        let half = bytes == 2;
        let has = |part| name.contains(part);
        Some(if has("tensor_kernel_scan_innermost_dim") {
            let dear = has("logcumsumexp");
            Self::Scan { dear }
        } else if has("cunn_SpatialSoftMax") {
            Self::Softmax { backward, bytes }
        } else if has("6sbtopk10gatherTopK") {
            Self::Largest
        } else if has("bitonicSortKVInPlace") {
            Self::SortedShort
        } else if has("radixSortKVInPlace") {
            Self::Sorted
        } else if has("vectorized_gather_kernel") {
            Self::Gathered
        } else if has("adaptive_average_pool") || has("atomic_adaptive_average_gradinput") {
            let backward = has("gradinput");
            Self::Pooled { backward, bytes }
        } else if has("upsample_trilinear3d") {
            Self::Enlarged { backward, half }
        } else if has("embedding_backward_feature_kernel") {
            Self::Embedded
        } else if has("13im2col_kernel") {
            Self::Columns { bytes }
        } else if has("ComputeInternalGradientsCUDAKernel") {
            Self::Moments { bytes }
        } else if has("conv_depthwise2d_forward_kernel_generic")
            || has("conv_depthwise2d_backward_kernelILi0E")
        {
            Self::Windowed
        } else if has("deformable_col2im_coord_kernel") {
            Self::Offsets
        } else {
            return None;
        })
    }

    /// The work of a launch; nothing if it would take a GPU minutes, as arguments do that are others than this expects.
    ///
    /// # Safety
    /// `arguments` must be those of the kernel that this was made for.
    pub unsafe fn work(
        self,
        grid: [u32; 3],
        threads: u32,
        arguments: *const *mut c_void,
    ) -> Option<Work> {
        // In numbers so wide that no argument makes them overflow.
        let blocks: u128 = grid.iter().map(|&size| u128::from(size)).product();
        let [across, down, _] = grid.map(u128::from);
        let threads = u128::from(threads);
        // SAFETY: the caller's contract; counts that are wider lie lower half first.
        let count = |index: usize| unsafe {
            u128::from((*arguments.add(index)).cast::<u32>().read_unaligned())
        };
        if let Some((cycles, bytes)) = self.walked(count, blocks, threads) {
            return (cycles < MOST && bytes < 1 << 44).then(|| Work::Walk {
                cycles: cycles as u64,
                tail: 0,
                blocks: blocks as u64,
                threads: threads as u32,
                bytes: bytes as u64,
                what: self.what(),
            });
        }
        let (cycles, work, bytes) = match self {
            Self::Windowed => {
                // SAFETY: as above: what is made, and the weights.
                let [made, weights] = [1, 2].map(|at| unsafe { viewed(*arguments.add(at), 4) });
                let elements: u128 = made?.iter().map(|&size| u128::from(size)).product();
                let [_, _, high, wide] = weights?.map(u128::from);
                (0, elements.checked_mul(high * wide)? * 22 / 100, 0)
            }
            Self::Scan { dear } => {
                let (rows, size) = (count(2), count(3));
                let along = 1 << count(4).min(9);
                let steps = size.div_ceil(2 * along) * if dear { 8 } else { 5 } / 5;
                let beyond = if 8 * rows * size > 2 * CACHED { 2 } else { 1 };
                (2_900 * steps * beyond, 1_400 * steps * blocks, 0)
            }
            Self::Softmax { backward, bytes } => {
                // Behind the output and the input, and the gradient of a backward pass.
                let [outer, size, inner] = [2, 3, 4].map(|at| count(at + usize::from(backward)));
                let side = inner.clamp(1, 1024).min(threads);
                let along = (threads / side).max(1);
                let rounds = outer.div_ceil(across) * inner.div_ceil(side * down);
                let moved = outer * size * inner * u128::from(bytes);
                let far = moved > CACHED || along > 1;
                let each = match (backward, far) {
                    (false, false) => 1_200,
                    (false, true) => 2_300,
                    (true, false) => 570,
                    (true, true) => 1_090,
                };
                (rounds * size.div_ceil(along) * each, 0, 3 * moved)
            }
            Self::Largest => {
                let cycles = if count(1) <= 32 { 10_000 } else { 25_000 };
                let held = (2048 / threads.max(1)).clamp(1, 32);
                (cycles, count(4).min(blocks) * cycles / held, 0)
            }
            Self::SortedShort => {
                let rows = (threads / 16).max(1);
                let blocks = count(1).div_ceil(rows).min(blocks);
                (8_500, blocks * threads * 10, 0)
            }
            Self::Sorted => {
                let (rows, size) = (count(1).min(blocks), count(2));
                let halves = if threads <= 32 { 40 } else { 13 };
                (6_000 + 18 * size, rows * size * halves / 2, 0)
            }
            Self::Gathered => {
                let [rows, size, of] = [3, 4, 5].map(count);
                (0, blocks * 145, (rows + rows.min(of)) * size)
            }
            Self::Pooled { backward, bytes } => {
                let [height, width, high, wide] = [2, 3, 4, 5].map(|index| count(index).max(1));
                let window = height.div_ceil(high) * width.div_ceil(wide);
                let each = if bytes == 2 { 45 } else { 80 };
                let rounds = wide.div_ceil(32) * high.div_ceil(8 * down);
                let of_block = high.div_ceil(down) * wide.div_ceil(32) * window;
                let work = blocks * of_block * if backward { 36 } else { 9 } / 2;
                (rounds * window * each, work, 0)
            }
            Self::Enlarged { backward, half } => {
                // SAFETY: as above.
                let view = unsafe { viewed(*arguments.add(5), 5) };
                let planes = view.map_or(0, |[images, channels, ..]| {
                    u128::from(images) * u128::from(channels)
                });
                let (cycles, tenths) = match (backward, half) {
                    (false, _) => (780, 16),
                    (true, false) => (1_300, 34),
                    (true, true) => (2_760, 70),
                };
                (planes * cycles, planes * count(0) * tenths / 10, 0)
            }
            Self::Embedded | Self::Columns { .. } | Self::Moments { .. } | Self::Offsets => {
                return None;
            }
        };
        (cycles < MOST && work < MOST * 132 && bytes < 1 << 44).then(|| Work::Chain {
            cycles: cycles as u64,
            work: work as u64,
            bytes: bytes as u64,
            what: self.what(),
        })
    }

    /// Of kernels whose blocks come one after the other: cycles of each thread, and bytes. Fitted to `bench/time/results/*_profiles.jsonl.gz`.
    fn walked(
        self,
        count: impl Fn(usize) -> u128,
        blocks: u128,
        threads: u128,
    ) -> Option<(u128, u128)> {
        Some(match self {
            Self::Embedded => (count(3) * 89, 0),
            Self::Columns { bytes } => {
                let window = count(4) * count(5);
                (window * 363, count(0) * window * 2 * u128::from(bytes))
            }
            Self::Moments { bytes } => {
                let places = count(0);
                let moved = blocks * places * 2 * u128::from(bytes);
                (places.div_ceil(threads.max(1)) * 960, moved)
            }
            Self::Offsets => (count(5) / count(18).max(1) * 4_700, 0),
            _ => return None,
        })
    }

    fn what(self) -> &'static str {
        match self {
            Self::Scan { .. } => "scans",
            Self::Softmax { .. } => "softmax between dimensions",
            Self::Largest | Self::SortedShort | Self::Sorted => "sorting",
            Self::Gathered => "indexing",
            Self::Pooled { .. } => "pooling",
            Self::Enlarged { .. } => "resizing",
            Self::Embedded => "embeddings",
            Self::Columns { .. } | Self::Windowed | Self::Offsets => "convolutions",
            Self::Moments { .. } => "normalization",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cycles that follow each other, and those of all multiprocessors, of a kernel with these arguments.
    fn cycles(name: &str, grid: [u32; 3], threads: u32, mut values: Vec<u64>) -> (u64, u64) {
        let arguments: Vec<_> = (values.iter_mut())
            .map(|value| std::ptr::from_mut(value).cast::<c_void>())
            .collect();
        let walk = Walk::of(name, 4).expect(name);
        // SAFETY: as many arguments as these kernels read.
        match unsafe { walk.work(grid, threads, arguments.as_ptr()) } {
            Some(Work::Chain { cycles, work, .. }) => (cycles, work),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn arguments_that_make_no_sense_are_not_believed() {
        let softmax = "_ZN2at6native12_GLOBAL__N_126cunn_SpatialSoftMaxForwardIfffjNS1_21SoftMaxForwardEpilogueEEEvPT1_PKT_T2_S8_S8_";
        let mut values = [0, 0, u64::from(u32::MAX), 1 << 20, 4096];
        let arguments = values
            .each_mut()
            .map(|value| std::ptr::from_mut(value).cast::<c_void>());
        let walk = Walk::of(softmax, 4).unwrap();
        // SAFETY: as many arguments as this kernel reads.
        let work = unsafe { walk.work([1, 1, 1], 32, arguments.as_ptr()) };
        assert_eq!(work, None);
    }

    #[test]
    fn many_short_rows_take_a_block_each() {
        let scan =
            "_ZN2at6native32tensor_kernel_scan_innermost_dimIfSt4plusIfEEEvPT_PKS4_jjjS4_T1_";
        let (_, rows) = cycles(scan, [458_752, 1, 1], 512, vec![0, 0, 458_752, 16, 9]);
        assert_eq!(rows, 458_752 * 1_400);
        let (long, few) = cycles(scan, [64, 1, 1], 512, vec![0, 0, 64, 65_536, 9]);
        assert_eq!(long, 64 * 2_900);
        assert!(few < rows / 50);
    }

    #[test]
    fn a_softmax_between_dimensions_walks_along_it() {
        let softmax = "_ZN2at6native12_GLOBAL__N_126cunn_SpatialSoftMaxForwardIfffjNS1_21SoftMaxForwardEpilogueEEEvPT1_PKT_T2_S8_S8_";
        let (walked, _) = cycles(softmax, [8, 1, 1], 1024, vec![0, 0, 8, 2048, 1024]);
        assert_eq!(walked, 2048 * 2_300);
        let backward = "_ZN2at6native12_GLOBAL__N_127cunn_SpatialSoftMaxBackwardIfffNS1_22SoftMaxBackwardEpilogueEEEvPT1_PKT0_S6_jjj";
        let values = vec![0, 0, 1 << 40, 8, 2048, 1024];
        assert_eq!(cycles(backward, [8, 1, 1], 1024, values).0, 2048 * 1_090);
        // Of a segmentation each thread takes few classes, and many places.
        let (short, _) = cycles(softmax, [8, 128, 1], 1024, vec![0, 0, 8, 21, 262_144]);
        assert_eq!(short, 2 * 21 * 2_300);
    }

    #[test]
    fn threads_walk_over_indices_windows_and_channels() {
        let walked = |name: &str, grid, threads, values: Vec<u64>| {
            let mut values = values;
            let arguments: Vec<_> = (values.iter_mut())
                .map(|value| std::ptr::from_mut(value).cast::<c_void>())
                .collect();
            // SAFETY: as many arguments as these kernels read.
            match unsafe {
                Walk::of(name, 4)
                    .expect(name)
                    .work(grid, threads, arguments.as_ptr())
            } {
                Some(Work::Walk { cycles, bytes, .. }) => (cycles, bytes),
                other => panic!("{other:?}"),
            }
        };
        let short =
            "_ZN2at6native12_GLOBAL__N_133embedding_backward_feature_kernelIfflEEvPKT1_PKT_PS5_ili";
        let (cycles, _) = walked(short, [24, 1, 1], 1024, vec![0, 0, 0, 2048, 768, 0]);
        assert_eq!(cycles, 2048 * 89); // 92 us; 91 to 98 us on an H100 and an H200
        let columns = "_ZN2at6native13im2col_kernelIfEEvlPKT_lllllllllllllPS2_";
        let image = vec![588, 0, 224, 224, 16, 16];
        let (cycles, bytes) = walked(columns, [1, 1, 1], 1024, image);
        assert_eq!((cycles, bytes), (256 * 363, 588 * 256 * 8));
        let moments =
            "_ZN2at6native12_GLOBAL__N_134ComputeInternalGradientsCUDAKernelIfEEvlPKT_S5_PS3_S6_";
        assert_eq!(walked(moments, [64, 1, 1], 512, vec![122_880]).0, 240 * 960);
        let offsets = "_ZN6vision3ops12_GLOBAL__N_130deformable_col2im_coord_kernelIfiEEvT0_";
        let mut values = vec![0; 19];
        (values[5], values[18]) = (128, 2);
        assert_eq!(walked(offsets, [324, 1, 1], 512, values).0, 64 * 4_700);
    }

    #[test]
    fn blocks_beyond_the_rows_cost_nothing() {
        let top = "_ZN2at6native6sbtopk10gatherTopKIfjLi2ELb0EEEvNS_4cuda6detail10TensorInfoIKT_T0_EES7_S7_bS7_S7_";
        let values = |rows| vec![0, 64, 8, 1, rows, 1];
        let (_, all) = cycles(top, [65_535, 2, 1], 64, values(65_536));
        let (_, half) = cycles(top, [65_535, 2, 1], 64, values(32_768));
        assert_eq!(all, 2 * half);
    }
}
