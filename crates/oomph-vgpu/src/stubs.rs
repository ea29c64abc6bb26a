//! The functions that need no model: they succeed and are counted.
//!
//! C passes at least as many arguments as these declare and takes back the same registers, so a
//! function that ignores its arguments need not declare them.

use std::ffi::{c_char, c_int};

use crate::arguments::Out;
use crate::context::Charge;
use crate::device::{self, machine};
use crate::streams::opaque_handle;
use crate::{cublas, export, kernels, ledger, work};

/// Success of every library.
const SUCCESS: c_int = 0;
/// Returned after a panic: an internal error for most of these libraries.
const INTERNAL: c_int = 7;

/// Setters, destructors and the like: nothing happens.
macro_rules! idle {
    ($($name:ident)*) => { export! {$( fn $name() -> c_int, or INTERNAL; { SUCCESS } )*} };
}

/// Matrix and vector products of cuBLAS: work on the GPU.
macro_rules! products {
    ($($name:ident)*) => { export! {$(
        fn $name() -> c_int, or INTERNAL; {
            cublas::multiplied();
            SUCCESS
        }
    )*} };
}

/// Other work on the GPU.
macro_rules! work {
    ($($name:ident)*) => { export! {$(
        fn $name() -> c_int, or INTERNAL; {
            kernels::launched(0);
            SUCCESS
        }
    )*} };
}

/// Factorizations and what solves with them: columns that follow each other, of which each takes so many cycles. `$slot` is the
/// argument that counts them.
macro_rules! chains {
    ($slot:literal $cycles:ident [$($name:ident)*]) => { export! {$(
        fn $name(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_int, or INTERNAL; {
            let columns = [a, b, c, d, e, f][$slot] as u32;
            work::note(work::Work::Chain {
                cycles: u64::from(columns) * $cycles,
                work: 0,
                bytes: 0,
                what: "linear algebra",
            });
            kernels::launched(0);
            SUCCESS
        }
    )*} };
}

/// Cycles of a column, as an H200 of 1,980 MHz takes for matrices of 256 to 1,024 (`bench/time/results/h200_kinds.jsonl.gz`): Cholesky's,
/// with pivots, of a triangle that is solved, of a Householder reflection, and of its products.
const CHOLESKY: u64 = 710;
const PIVOTS: u64 = 3300;
const TRIANGLES: u64 = 750;
const REFLECTIONS: u64 = 7000;
const PRODUCTS: u64 = 1000;
/// Jacobi's rotations: nine sweeps over blocks of 16 columns.
const ROTATIONS: u64 = 46_000;
/// Not measured: a reflection of both sides for each column, and what makes the vectors.
const TRIDIAGONAL: u64 = 20_000;

/// Constructors: write an opaque handle to their first argument.
macro_rules! handles {
    ($($name:ident)*) => { export! {$(
        fn $name(out: Out<u64>) -> c_int, or INTERNAL; {
            out.put(opaque_handle());
            SUCCESS
        }
    )*} };
}

/// The assumption for every workspace query below.
const NO_WORK_SPACE: &str = "the workspace of this routine is not modelled and assumed to be empty";

/// Queries that write the size of a work space. `$skip` are the arguments before the output;
/// integers and pointers each take one slot.
macro_rules! sizes {
    ($ty:ty, $skip:tt, $($name:ident)*) => { $( size! { $ty, $skip, $name } )* };
}

macro_rules! size {
    ($ty:ty, [$($skip:ident)*], $name:ident) => { export! {
        fn $name($($skip: usize,)* out: Out<$ty>) -> c_int, or INTERNAL; {
            let _ = ($($skip,)*);
            ledger::assume(stringify!($name), NO_WORK_SPACE);
            out.put(0);
            SUCCESS
        }
    } };
}

/// The same, for a device size and a host size one after the other.
macro_rules! two_sizes {
    ($skip:tt, $($name:ident)*) => { $( size_pair! { $skip, $name } )* };
}

macro_rules! size_pair {
    ([$($skip:ident)*], $name:ident) => { export! {
        fn $name($($skip: usize,)* device: Out<usize>, host: Out<usize>) -> c_int, or INTERNAL; {
            let _ = ($($skip,)*);
            ledger::assume(stringify!($name), NO_WORK_SPACE);
            device.put(0);
            host.put(0);
            SUCCESS
        }
    } };
}

idle! {
    cuMulticastAddDevice cuMulticastBindMem cuMulticastUnbind cublasGetMatrixAsync
    cublasGetVectorAsync cublasSetMatrixAsync cublasSetVectorAsync
    cufftSetAutoAllocation cufftSetStream cufftSetWorkArea cuptiActivityDisable
    cuptiActivityEnable cuptiActivityEnableCudaEventDeviceTimestamps cuptiActivityEnableDriverApi
    cuptiActivityEnableRuntimeApi cuptiActivityFlushAll cuptiActivityGetNumDroppedRecords
    cuptiActivityPopExternalCorrelationId cuptiActivityPushExternalCorrelationId
    cuptiActivityRegisterCallbacks cuptiActivityRegisterTimestampCallback cuptiActivitySetAttribute
    cuptiEnableCallback cuptiEnableDomain cuptiFinalize cuptiSubscribe
    cuptiUnsubscribe cusolverDnDestroy cusolverDnDestroyGesvdjInfo cusolverDnDestroyParams
    cusolverDnDestroySyevjInfo cusolverDnSetStream cusparseCreateIdentityPermutation cusparseDestroy
    cusparseDestroyBsrsm2Info cusparseDestroyBsrsv2Info cusparseDestroyDnVec
    cusparseDestroyMatDescr cusparseSetMatDiagType cusparseSetMatFillMode
    cusparseSetMatIndexBase cusparseSetMatType cusparseSetPointerMode cusparseSetStream
    cublasLtMatmulAlgoConfigSetAttribute cublasSetSmCountTarget
    ncclCommDeregister ncclCommRegister ncclCommResume ncclCommRevoke
    ncclCommSuspend ncclCommWindowDeregister ncclCommWindowRegister ncclDevCommCreate
    ncclDevCommDestroy ncclGroupSimulateEnd nvshmem_barrier_all
    nvshmem_free nvshmem_info_get_version
    nvshmem_init nvshmem_selected_device_transport nvshmem_team_n_pes nvshmem_team_split_strided nvshmemid_hostlib_finalize
    nvshmemid_hostlib_init_attr nvshmemid_init_status nvshmemx_alltoallmem_on_stream
    nvshmemx_broadcastmem_on_stream nvshmemx_cumodule_init nvshmemx_get_uniqueid
    nvshmemx_getmem_on_stream nvshmemx_putmem_on_stream nvshmemx_putmem_signal_on_stream
    nvshmemx_set_attr_uniqueid_args nvshmemx_signal_wait_until_on_stream
}

products! {
    cublasCaxpy_v2 cublasCcopy_v2 cublasCdgmm cublasCdotc_v2 cublasCdotu_v2
    cublasCgeam cublasCgemv_v2 cublasCgetriBatched cublasDdgmm cublasSdgmm
    cublasZdgmm cublasZgeam cublasZgetriBatched
    cublasCgerc_v2 cublasCgeru_v2 cublasChemm_v2
    cublasChemv_v2 cublasCher2_v2 cublasCher2k_v2 cublasCher_v2 cublasCherk_v2 cublasCrot_v2
    cublasCrotg_v2 cublasCscal_v2 cublasCsrot_v2 cublasCsscal_v2 cublasCswap_v2 cublasCsymm_v2
    cublasCsymv_v2 cublasCsyr2_v2 cublasCsyr2k_v2 cublasCsyr_v2 cublasCsyrk_v2 cublasCtrmm_v2
    cublasCtrmv_v2 cublasCtrsv_v2 cublasDasum_v2 cublasDaxpy_v2
    cublasDcopy_v2 cublasDdot_v2 cublasDgeam cublasDgetriBatched
    cublasDgemv_v2 cublasDger_v2
    cublasDnrm2_v2 cublasDotEx cublasDrot_v2 cublasDrotg_v2 cublasDrotm_v2
    cublasDrotmg_v2 cublasDscal_v2 cublasDswap_v2 cublasDsymm_v2 cublasDsymv_v2 cublasDsyr2_v2
    cublasDsyr2k_v2 cublasDsyr_v2 cublasDsyrk_v2 cublasDtrmm_v2 cublasDtrmv_v2
    cublasDtrsv_v2 cublasDzasum_v2 cublasDznrm2_v2
    cublasIcamax_v2 cublasIcamin_v2 cublasIdamax_v2 cublasIdamin_v2
    cublasIsamax_v2 cublasIsamin_v2 cublasIzamax_v2 cublasIzamin_v2 cublasSasum_v2 cublasSaxpy_v2
    cublasScasum_v2 cublasScnrm2_v2 cublasScopy_v2 cublasSdot_v2 cublasSgeam
    cublasSgetriBatched
    cublasSgemv_v2
    cublasSger_v2 cublasSnrm2_v2
    cublasSrot_v2 cublasSrotg_v2 cublasSrotm_v2 cublasSrotmg_v2 cublasSscal_v2 cublasSswap_v2
    cublasSsymm_v2 cublasSsymv_v2 cublasSsyr2_v2 cublasSsyr2k_v2 cublasSsyr_v2 cublasSsyrk_v2
    cublasStrmm_v2 cublasStrmv_v2 cublasStrsv_v2 cublasZaxpy_v2
    cublasZcopy_v2 cublasZdotc_v2 cublasZdotu_v2 cublasZdrot_v2 cublasZdscal_v2
    cublasZgemv_v2
    cublasZgerc_v2 cublasZgeru_v2 cublasZhemm_v2
    cublasZhemv_v2 cublasZher2_v2 cublasZher2k_v2 cublasZher_v2 cublasZherk_v2 cublasZrot_v2
    cublasZrotg_v2 cublasZscal_v2 cublasZswap_v2 cublasZsymm_v2 cublasZsymv_v2 cublasZsyr2_v2
    cublasZsyr2k_v2 cublasZsyr_v2 cublasZsyrk_v2 cublasZtrmm_v2 cublasZtrmv_v2
    cublasZtrsv_v2
}

work! {
    cudnnActivationBackward cudnnActivationForward cudnnAddTensor cudnnBatchNormalizationBackward
    cudnnBatchNormalizationForwardInference cudnnBatchNormalizationForwardTraining
    cudnnCTCLoss cudnnCTCLoss_v8
    cudnnConvolutionBackwardBias cudnnConvolutionBackwardData cudnnConvolutionBackwardFilter
    cudnnConvolutionBiasActivationForward cudnnConvolutionForward cudnnLRNCrossChannelBackward
    cudnnLRNCrossChannelForward cudnnOpTensor cudnnPoolingBackward cudnnPoolingForward
    cudnnReduceTensor cudnnScaleTensor cudnnSetTensor cudnnSoftmaxBackward cudnnSoftmaxForward
    cudnnSpatialTfGridGeneratorBackward cudnnSpatialTfGridGeneratorForward
    cudnnSpatialTfSamplerBackward cudnnSpatialTfSamplerForward

    cusolverDnCgesvdaStridedBatched cusolverDnCgesvdjBatched
    cusolverDnCheevjBatched

    cusolverDnCsytrf
    cusolverDnDgesvdaStridedBatched cusolverDnDgesvdjBatched


    cusolverDnDsyevjBatched cusolverDnDsytrf
    cusolverDnSgesvdaStridedBatched cusolverDnSgesvdjBatched


    cusolverDnSsyevjBatched cusolverDnSsytrf cusolverDnXgeev
    cusolverDnXgesvdjSetMaxSweeps cusolverDnXgesvdjSetSortEig cusolverDnXgesvdjSetTolerance cusolverDnXsyevjSetSortEig
    cusolverDnXpotrs cusolverDnXsyevBatched cusolverDnXsytrs
    cusolverDnZgesvdaStridedBatched
    cusolverDnZgesvdjBatched
    cusolverDnZheevjBatched
    cusolverDnZsytrf cusparseCbsrmm
    cusparseCbsrmv cusparseCbsrsm2_analysis cusparseCbsrsm2_solve cusparseCbsrsv2_analysis
    cusparseCbsrsv2_solve cusparseCcsrgeam2 cusparseCsrSetPointers cusparseCsrSetStridedBatch
    cusparseDbsrmm cusparseDbsrmv cusparseDbsrsm2_analysis cusparseDbsrsm2_solve
    cusparseDbsrsv2_analysis cusparseDbsrsv2_solve cusparseDcsrgeam2 cusparseDnMatSetStridedBatch
    cusparseLtDenseDescriptorInit cusparseLtInit cusparseLtMatDescriptorDestroy cusparseLtMatmul
    cusparseLtMatmulAlgGetAttribute cusparseLtMatmulAlgSelectionInit
    cusparseLtMatmulAlgSetAttribute cusparseLtMatmulDescSetAttribute cusparseLtMatmulDescriptorInit
    cusparseLtMatmulGetWorkspace cusparseLtMatmulPlanDestroy cusparseLtMatmulPlanInit
    cusparseLtMatmulSearch cusparseLtSpMMACompress2 cusparseLtSpMMACompressedSize2
    cusparseLtStructuredDescriptorInit cusparseSDDMM cusparseSDDMM_preprocess cusparseSbsrmm
    cusparseSbsrmv cusparseSbsrsm2_analysis cusparseSbsrsm2_solve cusparseSbsrsv2_analysis
    cusparseSbsrsv2_solve cusparseScsrgeam2 cusparseSpGEMM_compute cusparseSpGEMM_copy
    cusparseSpGEMM_destroyDescr cusparseSpMatSetAttribute
    cusparseSpSM_analysis cusparseSpSM_destroyDescr cusparseSpSM_solve cusparseSpSV_analysis
    cusparseSpSV_destroyDescr cusparseSpSV_solve cusparseCsr2cscEx2 cusparseDenseToSparse_analysis
    cusparseDenseToSparse_convert cusparseSparseToDense cusparseXcoosortByColumn cusparseXcscsort
    cusparseXcsr2coo cusparseXbsrsm2_zeroPivot
    cusparseXbsrsv2_zeroPivot cusparseXcoo2csr cusparseXcoosortByRow cusparseXcsrgeam2Nnz
    cusparseXcsrsort cusparseZbsrmm cusparseZbsrmv cusparseZbsrsm2_analysis cusparseZbsrsm2_solve
    cusparseZbsrsv2_analysis cusparseZbsrsv2_solve cusparseZcsrgeam2
}

chains! { 2 CHOLESKY [
    cusolverDnCpotrf cusolverDnDpotrf cusolverDnSpotrf cusolverDnZpotrf cusolverDnCpotrfBatched cusolverDnDpotrfBatched cusolverDnSpotrfBatched cusolverDnZpotrfBatched
] }
chains! { 3 CHOLESKY [
    cusolverDnXpotrf
] }
chains! { 2 TRIANGLES [
    cusolverDnCpotrs cusolverDnDpotrs cusolverDnSpotrs cusolverDnZpotrs cusolverDnCpotrsBatched cusolverDnDpotrsBatched cusolverDnSpotrsBatched cusolverDnZpotrsBatched
] }
chains! { 2 PIVOTS [
    cusolverDnCgetrf cusolverDnDgetrf cusolverDnSgetrf cusolverDnZgetrf
] }
chains! { 2 TRIANGLES [
    cusolverDnCgetrs cusolverDnDgetrs cusolverDnSgetrs cusolverDnZgetrs
] }
chains! { 2 REFLECTIONS [
    cusolverDnCgeqrf cusolverDnDgeqrf cusolverDnSgeqrf cusolverDnZgeqrf
] }
chains! { 3 REFLECTIONS [
    cusolverDnXgeqrf
] }
chains! { 3 PRODUCTS [
    cusolverDnCungqr cusolverDnDorgqr cusolverDnSorgqr cusolverDnZungqr
] }
chains! { 5 PRODUCTS [
    cusolverDnCunmqr cusolverDnDormqr cusolverDnSormqr cusolverDnZunmqr
] }
chains! { 3 ROTATIONS [
    cusolverDnCheevj cusolverDnDsyevj cusolverDnSsyevj cusolverDnZheevj
] }
chains! { 3 TRIDIAGONAL [
    cusolverDnCheevd cusolverDnDsyevd cusolverDnSsyevd cusolverDnZheevd
] }
chains! { 4 TRIDIAGONAL [
    cusolverDnXsyevd
] }
chains! { 5 TRIDIAGONAL [
    cusolverDnXgesvd
] }
chains! { 4 ROTATIONS [
    cusolverDnCgesvdj cusolverDnDgesvdj cusolverDnSgesvdj cusolverDnZgesvdj
] }
chains! { 4 TRIDIAGONAL [
    cusolverDnCgesvd cusolverDnDgesvd cusolverDnSgesvd cusolverDnZgesvd
] }
chains! { 1 PIVOTS [
    cublasCgetrfBatched cublasDgetrfBatched cublasSgetrfBatched cublasZgetrfBatched
] }
chains! { 5 TRIANGLES [
    cublasCtrsm_v2 cublasDtrsm_v2 cublasStrsm_v2 cublasZtrsm_v2 cublasCtrsmBatched cublasDtrsmBatched cublasStrsmBatched cublasZtrsmBatched
] }

handles! {
    cusolverDnCreateGesvdjInfo cusolverDnCreateParams cusolverDnCreateSyevjInfo
    cusparseCreate cusparseCreateBsrsm2Info cusparseCreateBsrsv2Info cusparseCreateCoo
    cusparseCreateDnVec cusparseCreateMatDescr
    cusparseSpGEMM_createDescr cusparseSpSM_createDescr cusparseSpSV_createDescr
}

sizes! { c_int, [a0 a1 a2 a3],
    cusolverDnCsytrf_bufferSize cusolverDnDsytrf_bufferSize cusolverDnSsytrf_bufferSize
    cusolverDnZsytrf_bufferSize
}

sizes! { usize, [a0 a1 a2 a3 a4 a5],
    cusparseXcoosort_bufferSizeExt cusparseXcscsort_bufferSizeExt cusparseXcsrsort_bufferSizeExt
}

sizes! { usize, [a0 a1 a2 a3],
    cusparseDenseToSparse_bufferSize cusparseSparseToDense_bufferSize
}

sizes! { usize, [a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 a10 a11 a12 a13],
    cusparseCsr2cscEx2_bufferSize
}

sizes! { usize, [a0 a1 a2 a3 a4 a5 a6 a7 a8],
    cusparseSpSV_bufferSize
}

sizes! { usize, [a0 a1 a2 a3 a4 a5 a6 a7 a8 a9],
    cusparseSDDMM_bufferSize cusparseSpSM_bufferSize
}

sizes! { c_int, [a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 a10],
    cusparseCbsrsv2_bufferSize
    cusparseDbsrsv2_bufferSize cusparseSbsrsv2_bufferSize cusparseZbsrsv2_bufferSize
}

sizes! { usize, [a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 a10],
    cusparseSpGEMM_workEstimation
}

sizes! { c_int, [a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 a10 a11 a12],
    cusparseCbsrsm2_bufferSize cusparseDbsrsm2_bufferSize cusparseSbsrsm2_bufferSize
    cusparseZbsrsm2_bufferSize
}

sizes! { c_int, [a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 a10 a11 a12 a13 a14 a15],
    cusolverDnCgesvdaStridedBatched_bufferSize cusolverDnDgesvdaStridedBatched_bufferSize
    cusolverDnSgesvdaStridedBatched_bufferSize cusolverDnZgesvdaStridedBatched_bufferSize
}

sizes! { usize, [a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 a10 a11 a12 a13 a14 a15 a16 a17 a18],
    cusparseCcsrgeam2_bufferSizeExt cusparseDcsrgeam2_bufferSizeExt cusparseScsrgeam2_bufferSizeExt
    cusparseZcsrgeam2_bufferSizeExt
}

two_sizes! { [a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 a10],
    cusolverDnXsytrs_bufferSize
}

/// cuFile returns a pair of status codes in one register.
macro_rules! files {
    ($($name:ident)*) => { export! {$( fn $name() -> i64, or 0; { 0 } )*} };
}

files! {
    cuFileBufDeregister cuFileBufRegister cuFileHandleDeregister cuFileHandleRegister cuFileRead
    cuFileWrite
}

/// `CUPTI_ERROR_NOT_SUPPORTED`: there are no counters to read. Torch up to 2.5 asks for them.
const CUPTI_NOT_SUPPORTED: c_int = 27;

macro_rules! unsupported {
    ($($name:ident)*) => { export! {$( fn $name() -> c_int, or CUPTI_NOT_SUPPORTED; { CUPTI_NOT_SUPPORTED } )*} };
}

unsupported! {
    cuptiEventGetAttribute cuptiEventGetIdFromName cuptiEventGroupGetAttribute
    cuptiEventGroupReadEvent cuptiEventGroupSetAttribute cuptiEventGroupSetDisable
    cuptiEventGroupSetEnable cuptiEventGroupSetsCreate cuptiEventGroupSetsDestroy cuptiGetDeviceId
    cuptiMetricEnumEvents cuptiMetricGetAttribute cuptiMetricGetIdFromName cuptiMetricGetNumEvents
    cuptiMetricGetValue cuptiSetEventCollectionMode
}

/// The end of CUPTI's list of records.
const CUPTI_NO_MORE: c_int = 12;

export! {
    fn cuptiActivityGetNextRecord() -> c_int, or CUPTI_NO_MORE; { CUPTI_NO_MORE }
    fn cuptiGetResultString(_status: c_int, out: Out<*const c_char>) -> c_int, or INTERNAL; {
        out.put(c"no error".as_ptr());
        SUCCESS
    }
    /// `CUPTI_API_VERSION` of CUDA 13.0: programs compare it with the one that they were built with.
    fn cuptiGetVersion(version: Out<u32>) -> c_int, or INTERNAL; {
        version.put(130_000);
        SUCCESS
    }
    fn cuptiGetCallbackName(_domain: c_int, _callback: c_int, out: Out<*const c_char>) -> c_int, or INTERNAL; {
        out.put(c"".as_ptr());
        SUCCESS
    }
    fn cusparseGetErrorString(_status: c_int) -> *const c_char, or std::ptr::null(); { c"success".as_ptr() }
    fn cusparseGetErrorName(_status: c_int) -> *const c_char, or std::ptr::null(); { c"CUSPARSE_STATUS_SUCCESS".as_ptr() }
    fn cusparseSpMatGetSize(_matrix: usize, rows: Out<i64>, columns: Out<i64>, nonzeros: Out<i64>) -> c_int, or INTERNAL; {
        ledger::assume("cusparseSpMatGetSize", "the result of a sparse product is assumed to have no entries");
        rows.put(0);
        columns.put(0);
        nonzeros.put(0);
        SUCCESS
    }
    fn cusolverDnCreate(out: Out<u64>) -> c_int, or INTERNAL; {
        machine().costs.charge(device::current(), Charge::CusolverHandle);
        out.put(opaque_handle());
        SUCCESS
    }
    fn nvshmem_malloc(_size: usize) -> usize, or 0; { 0 }
    fn nvshmem_ptr(_at: usize, _pe: c_int) -> usize, or 0; { 0 }
    fn nvshmemx_mc_ptr(_team: usize, _at: usize) -> usize, or 0; { 0 }
}
