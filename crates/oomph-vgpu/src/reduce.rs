//! NCCL's types of elements and reductions, computed on the CPU.

use crate::driver;

/// A `ncclDataType_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind(pub u8);

/// Elements of the largest floating result that is carried between ranks: as many as the value
/// layer computes (`FLOAT_LIMIT` of `limits.py`).
const FLOATS: u64 = 1 << 18;
/// Bytes of the largest integral result that is carried: token ids, counts, pickled objects.
const INTEGRAL: u64 = 4 << 20;

impl Kind {
    pub const UINT64: Self = Self(5);

    /// Bytes of one element.
    pub const fn bytes(self) -> u64 {
        match self.0 {
            4 | 5 | 8 => 8,
            6 | 9 => 2,
            0 | 1 | 10 | 11 => 1,
            _ => 4,
        }
    }

    pub const fn name(self) -> &'static str {
        const NAMES: [&str; 12] = [
            "int8",
            "uint8",
            "int32",
            "uint32",
            "int64",
            "uint64",
            "float16",
            "float32",
            "float64",
            "bfloat16",
            "float8_e4m3",
            "float8_e5m2",
        ];
        if (self.0 as usize) < NAMES.len() {
            NAMES[self.0 as usize]
        } else {
            "elements of an unknown type"
        }
    }

    /// Whether a result of `count` elements has real values.
    pub const fn carries(self, count: u64) -> bool {
        match self.0 {
            0..=5 => count.saturating_mul(self.bytes()) <= INTEGRAL,
            6..=9 => count <= FLOATS,
            _ => false,
        }
    }
}

/// A `ncclRedOp_t`. Those that a program makes multiply by a number first (`ncclRedOpCreatePreMulSum`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation(pub u32);

impl Operation {
    pub const SUM: Self = Self(0);

    pub const fn name(self) -> &'static str {
        match self.0 {
            0 => "sum",
            1 => "product",
            2 => "max",
            3 => "min",
            4 => "average",
            _ => "scaled sum",
        }
    }
}

/// Copies bytes between buffers, which may be the same.
///
/// # Safety
/// Both must be valid for `len` bytes.
pub unsafe fn copy(to: u64, from: u64, len: u64) {
    if to != from && len > 0 {
        // SAFETY: the caller's contract.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, len as usize) }
    }
}

/// Makes a buffer read as zeros.
///
/// # Safety
/// It must be valid for `len` bytes.
pub unsafe fn clear(at: u64, len: u64) {
    if driver::device_of(at).is_some() {
        // SAFETY: the caller's contract.
        unsafe { crate::runtime::set(at, 0, len as usize) }
    }
}

fn half_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let (exponent, fraction) = (u32::from(bits >> 10 & 0x1f), u32::from(bits & 0x3ff));
    match exponent {
        0 => f32::from_bits(sign | 0x3380_0000) * fraction as f32,
        0x1f => f32::from_bits(sign | 0x7f80_0000 | fraction << 13),
        _ => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
    }
}

/// Rounds to the nearest half, ties to even.
fn f32_to_half(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return sign | 0x7e00;
    }
    if magnitude >= 0x4780_0000 {
        return sign | 0x7c00;
    }
    if magnitude < 0x3880_0000 {
        // Subnormal: units of 2^-24; the addition rounds as the processor does.
        let rounded = f32::from_bits(magnitude) * 16_777_216.0;
        let whole = rounded.round_ties_even() as u16;
        return sign | whole;
    }
    let rounded = magnitude + 0x0fff + (magnitude >> 13 & 1) - 0x3800_0000;
    sign | (rounded >> 13) as u16
}

fn bfloat_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Rounds to the nearest bfloat16, ties to even.
fn f32_to_bfloat(value: f32) -> u16 {
    if value.is_nan() {
        return 0x7fc0;
    }
    let bits = value.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// A type that elements are computed in.
trait Number: Copy {
    fn combine(self, other: Self, operation: Operation) -> Self;
    fn finish(self, operation: Operation, ranks: u32) -> Self;
}

macro_rules! number {
    ($($ty:ty: $add:expr, $times:expr, $max:expr, $min:expr, $divide:expr;)*) => { $(
        impl Number for $ty {
            fn combine(self, other: Self, operation: Operation) -> Self {
                match operation.0 {
                    1 => $times(self, other),
                    2 => $max(self, other),
                    3 => $min(self, other),
                    _ => $add(self, other),
                }
            }
            fn finish(self, operation: Operation, ranks: u32) -> Self {
                match operation.0 {
                    4 => $divide(self, ranks),
                    _ => self,
                }
            }
        }
    )* };
}

number! {
    i8: Self::wrapping_add, Self::wrapping_mul, Ord::max, Ord::min, |sum: Self, ranks| (i128::from(sum) / i128::from(ranks)) as Self;
    u8: Self::wrapping_add, Self::wrapping_mul, Ord::max, Ord::min, |sum: Self, ranks| (i128::from(sum) / i128::from(ranks)) as Self;
    i32: Self::wrapping_add, Self::wrapping_mul, Ord::max, Ord::min, |sum: Self, ranks| (i128::from(sum) / i128::from(ranks)) as Self;
    u32: Self::wrapping_add, Self::wrapping_mul, Ord::max, Ord::min, |sum: Self, ranks| (i128::from(sum) / i128::from(ranks)) as Self;
    i64: Self::wrapping_add, Self::wrapping_mul, Ord::max, Ord::min, |sum: Self, ranks| (i128::from(sum) / i128::from(ranks)) as Self;
    u64: Self::wrapping_add, Self::wrapping_mul, Ord::max, Ord::min, |sum: Self, ranks| (i128::from(sum) / i128::from(ranks)) as Self;
    // As fmaxf and fminf, which NCCL uses: of a number and a NaN, the number.
    f32: std::ops::Add::add, std::ops::Mul::mul, Self::max, Self::min, |sum: Self, ranks| sum / ranks as Self;
    f64: std::ops::Add::add, std::ops::Mul::mul, Self::max, Self::min, |sum: Self, ranks| sum / Self::from(ranks);
}

/// One reduction: `ranks` contributions, the first at `from`, each `apart` bytes after the other,
/// to `to`, which may be the first.
struct Work {
    operation: Operation,
    from: u64,
    apart: u64,
    ranks: u32,
    to: u64,
    count: u64,
}

impl Work {
    /// # Safety
    /// All contributions and the result must be valid for `count` elements of `S`.
    unsafe fn run<S: Copy, N: Number>(&self, read: impl Fn(S) -> N, write: impl Fn(N) -> S) {
        for index in 0..self.count as usize {
            // SAFETY: the caller's contract; NCCL's buffers need no alignment.
            let at = |rank: u32| unsafe {
                read(
                    ((self.from + u64::from(rank) * self.apart) as *const S)
                        .add(index)
                        .read_unaligned(),
                )
            };
            let sum =
                (1..self.ranks).fold(at(0), |sum, rank| sum.combine(at(rank), self.operation));
            let result = write(sum.finish(self.operation, self.ranks));
            // SAFETY: the caller's contract; NCCL's buffers need no alignment.
            unsafe { (self.to as *mut S).add(index).write_unaligned(result) };
        }
    }
}

/// Reduces `count` elements of `ranks` contributions that lie `apart` bytes from each other.
///
/// # Safety
/// The contributions and the result must be valid for `count` elements of `kind`.
pub unsafe fn reduce(
    kind: Kind,
    operation: Operation,
    from: u64,
    apart: u64,
    ranks: u32,
    to: u64,
    count: u64,
) {
    let work = Work {
        operation,
        from,
        apart,
        ranks,
        to,
        count,
    };
    // SAFETY: the caller's contract.
    unsafe {
        match kind.0 {
            0 => work.run::<i8, i8>(|x| x, |x| x),
            1 => work.run::<u8, u8>(|x| x, |x| x),
            2 => work.run::<i32, i32>(|x| x, |x| x),
            3 => work.run::<u32, u32>(|x| x, |x| x),
            4 => work.run::<i64, i64>(|x| x, |x| x),
            5 => work.run::<u64, u64>(|x| x, |x| x),
            6 => work.run::<u16, f32>(half_to_f32, f32_to_half),
            7 => work.run::<f32, f32>(|x| x, |x| x),
            8 => work.run::<f64, f64>(|x| x, |x| x),
            9 => work.run::<u16, f32>(bfloat_to_f32, f32_to_bfloat),
            _ => {}
        }
    }
}

/// Multiplies `count` elements in place, as operations do that a program made.
///
/// # Safety
/// The buffer must be valid for `count` elements of `kind`.
pub unsafe fn scale(kind: Kind, at: u64, count: u64, by: f64) {
    /// # Safety
    /// As for [`scale`].
    unsafe fn each<S: Copy>(at: u64, count: u64, change: impl Fn(S) -> S) {
        for index in 0..count as usize {
            // SAFETY: the caller's contract.
            unsafe {
                let place = (at as *mut S).add(index);
                place.write_unaligned(change(place.read_unaligned()));
            }
        }
    }
    // SAFETY: the caller's contract.
    unsafe {
        match kind.0 {
            6 => each::<u16>(at, count, |x| f32_to_half(half_to_f32(x) * by as f32)),
            7 => each::<f32>(at, count, |x| x * by as f32),
            8 => each::<f64>(at, count, |x| x * by),
            9 => each::<u16>(at, count, |x| f32_to_bfloat(bfloat_to_f32(x) * by as f32)),
            _ => {}
        }
    }
}

/// The number at `at`, a scalar of `kind`.
///
/// # Safety
/// It must be valid for one element.
pub unsafe fn scalar(kind: Kind, at: u64) -> f64 {
    // SAFETY: the caller's contract.
    unsafe {
        match kind.0 {
            6 => f64::from(half_to_f32((at as *const u16).read_unaligned())),
            7 => f64::from((at as *const f32).read_unaligned()),
            8 => (at as *const f64).read_unaligned(),
            9 => f64::from(bfloat_to_f32((at as *const u16).read_unaligned())),
            _ => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_come_back_and_round_to_even() {
        for bits in (0..=u16::MAX).filter(|bits| bits & 0x7c00 != 0x7c00) {
            assert_eq!(f32_to_half(half_to_f32(bits)), bits);
        }
        assert_eq!(f32_to_half(1.0 + 1.0 / 2048.0), 0x3c00);
        assert_eq!(f32_to_half(1.0 + 3.0 / 2048.0), 0x3c02);
        assert_eq!(f32_to_half(1e6), 0x7c00);
        assert_eq!(f32_to_bfloat(1.0 + 1.0 / 256.0), 0x3f80);
        assert_eq!(f32_to_bfloat(1.0 + 3.0 / 256.0), 0x3f82);
    }

    #[test]
    fn no_number_is_neither_greatest_nor_least() {
        for order in [[f32::NAN, 2.0], [2.0, f32::NAN]] {
            for operation in [2, 3] {
                let mut result = 0.0_f32;
                let (from, to) = (order.as_ptr() as u64, &raw mut result as u64);
                // SAFETY: an array and a number of this test.
                unsafe { reduce(Kind(7), Operation(operation), from, 4, 2, to, 1) };
                assert!((result - 2.0).abs() < f32::EPSILON, "{order:?}: {result}");
            }
        }
    }

    #[test]
    fn reductions_are_nccls() {
        let given = [[1.0_f32, -2.0], [3.0, 5.0], [2.0, 0.0]];
        for (operation, expected) in [
            (0, [6.0, 3.0]),
            (1, [6.0, 0.0]),
            (2, [3.0, 5.0]),
            (3, [1.0, -2.0]),
            (4, [2.0, 1.0]),
        ] {
            let mut result = [0.0_f32; 2];
            // SAFETY: arrays of this test.
            unsafe {
                reduce(
                    Kind(7),
                    Operation(operation),
                    given.as_ptr() as u64,
                    8,
                    3,
                    result.as_mut_ptr() as u64,
                    2,
                );
            }
            let off: f32 = result
                .iter()
                .zip(&expected)
                .map(|(a, b)| (a - b).abs())
                .sum();
            assert!(off < f32::EPSILON, "{operation}: {result:?}");
        }
    }
}
