//! Element types of all formats, and the bytes they take.

/// The type of a tensor's elements. Quantised types come in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DType {
    name: &'static str,
    block_elements: u32,
    /// In bits, because a block of some types is smaller than a byte.
    block_bits: u32,
    float: bool,
}

macro_rules! plain {
    ($($constant:ident $name:literal $bits:literal $float:literal;)*) => {
        $(
            #[doc = concat!("`", $name, "`")]
            pub const $constant: Self = Self::plain($name, $bits, $float);
        )*
    };
}

impl DType {
    plain! {
        F64 "f64" 64 true;
        F32 "f32" 32 true;
        F16 "f16" 16 true;
        BF16 "bf16" 16 true;
        F8_E4M3 "f8_e4m3" 8 true;
        F8_E5M2 "f8_e5m2" 8 true;
        F8_E8M0 "f8_e8m0" 8 true;
        F6 "f6" 6 true;
        F4 "f4" 4 true;
        I64 "i64" 64 false;
        I32 "i32" 32 false;
        I16 "i16" 16 false;
        I8 "i8" 8 false;
        I4 "i4" 4 false;
        U64 "u64" 64 false;
        U32 "u32" 32 false;
        U16 "u16" 16 false;
        U8 "u8" 8 false;
        U4 "u4" 4 false;
        BOOL "bool" 8 false;
        C32 "c32" 32 false;
        C64 "c64" 64 false;
        C128 "c128" 128 false;
    }

    const fn plain(name: &'static str, bits: u32, float: bool) -> Self {
        Self {
            name,
            block_elements: 1,
            block_bits: bits,
            float,
        }
    }

    /// A type of `block_bytes` for every `block_elements` elements.
    pub(crate) const fn blocks(name: &'static str, block_elements: u32, block_bytes: u32) -> Self {
        Self {
            name,
            block_elements,
            block_bits: block_bytes * 8,
            float: false,
        }
    }

    /// `bf16`, `q4_k`, …
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// Whether it is a plain floating type, which a cast (`model.half()`) changes.
    pub const fn is_float(self) -> bool {
        self.float
    }

    /// Bytes of `elements` elements, whole blocks; `None` where that exceeds 64 bits.
    pub fn bytes_for(self, elements: u64) -> Option<u64> {
        let blocks = elements.div_ceil(u64::from(self.block_elements));
        let bits = u128::from(blocks) * u128::from(self.block_bits);
        u64::try_from(bits.div_ceil(8)).ok()
    }

    /// A floating type by the name that people and `config.json` give it.
    pub fn float_by_name(name: &str) -> Option<Self> {
        Some(match name.trim().trim_start_matches("torch.") {
            "float64" | "f64" | "fp64" | "double" => Self::F64,
            "float32" | "f32" | "fp32" | "float" => Self::F32,
            "float16" | "f16" | "fp16" | "half" => Self::F16,
            "bfloat16" | "bf16" => Self::BF16,
            "float8_e4m3fn" | "float8" | "f8" | "fp8" => Self::F8_E4M3,
            "float8_e5m2" => Self::F8_E5M2,
            "int8" | "i8" => Self::I8,
            "int4" | "i4" => Self::I4,
            _ => return None,
        })
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.pad(self.name)
    }
}

/// The product of a shape; `None` where it exceeds 64 bits.
pub(crate) fn elements(shape: &[u64]) -> Option<u64> {
    // A zero anywhere makes it zero, even beside sizes that would overflow.
    if shape.contains(&0) {
        return Some(0);
    }
    shape
        .iter()
        .try_fold(1_u64, |product, size| product.checked_mul(*size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes() {
        assert_eq!(DType::BF16.bytes_for(3), Some(6));
        assert_eq!(DType::I4.bytes_for(3), Some(2));
        assert_eq!(DType::blocks("q4_0", 32, 18).bytes_for(64), Some(36));
        assert_eq!(DType::blocks("q4_0", 32, 18).bytes_for(65), Some(54));
        assert_eq!(DType::F64.bytes_for(u64::MAX), None);
        assert_eq!(elements(&[]), Some(1));
        assert_eq!(elements(&[u64::MAX, 2]), None);
        assert_eq!(elements(&[u64::MAX, 2, 0]), Some(0));
    }
}
