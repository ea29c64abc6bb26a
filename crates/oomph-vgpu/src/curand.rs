//! cuRAND's generators on the host. They draw nothing; what they fill reads as zeros.

use std::ffi::{c_int, c_uint, c_ulonglong};

use crate::arguments::Out;
use crate::streams::opaque_handle;
use crate::{export, kernels};

const SUCCESS: c_int = 0;
/// `CURAND_STATUS_INTERNAL_ERROR`.
const INTERNAL: c_int = 999;

/// A generator's kernel starts. Its stream is not kept: the default one stands for all.
fn draw() -> c_int {
    kernels::launched(0);
    SUCCESS
}

export! {
    fn curandCreateGenerator(out: Out<u64>, _kind: c_int) -> c_int, or INTERNAL; {
        out.put(opaque_handle());
        SUCCESS
    }
    fn curandDestroyGenerator(_generator: u64) -> c_int, or INTERNAL; { SUCCESS }
    fn curandSetStream(_generator: u64, _stream: u64) -> c_int, or INTERNAL; { SUCCESS }
    fn curandSetPseudoRandomGeneratorSeed(_generator: u64, _seed: c_ulonglong) -> c_int, or INTERNAL; { SUCCESS }
    fn curandSetQuasiRandomGeneratorDimensions(_generator: u64, _count: c_uint) -> c_int, or INTERNAL; { SUCCESS }
    fn curandSetGeneratorOffset(_generator: u64, _offset: c_ulonglong) -> c_int, or INTERNAL; { SUCCESS }
    fn curandSetGeneratorOrdering(_generator: u64, _order: c_int) -> c_int, or INTERNAL; { SUCCESS }
    fn curandGenerateSeeds(_generator: u64) -> c_int, or INTERNAL; { draw() }
    fn curandGenerate(_generator: u64) -> c_int, or INTERNAL; { draw() }
    fn curandGenerateLongLong(_generator: u64) -> c_int, or INTERNAL; { draw() }
    fn curandGenerateUniform(_generator: u64) -> c_int, or INTERNAL; { draw() }
    fn curandGenerateUniformDouble(_generator: u64) -> c_int, or INTERNAL; { draw() }
    fn curandGenerateNormal(_generator: u64) -> c_int, or INTERNAL; { draw() }
    fn curandGenerateNormalDouble(_generator: u64) -> c_int, or INTERNAL; { draw() }
    fn curandGenerateLogNormal(_generator: u64) -> c_int, or INTERNAL; { draw() }
    fn curandGenerateLogNormalDouble(_generator: u64) -> c_int, or INTERNAL; { draw() }
    fn curandGeneratePoisson(_generator: u64) -> c_int, or INTERNAL; { draw() }
}
