//! What steps do, as the virtual GPU writes it down (`oomph-vgpu`, `work.rs`).

use serde::Deserialize;

/// What the newest steps did.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Steps {
    /// Names of kernels.
    #[serde(default)]
    pub names: Vec<String>,
    /// Phases of the script and modules, which [`Work::Place`] numbers.
    #[serde(default)]
    pub places: Vec<(String, String)>,
    /// Each piece of work that occurs, once.
    #[serde(default)]
    pub table: Vec<Work>,
    /// Steps in order; those that follow each other and are equal are one.
    #[serde(default)]
    pub steps: Vec<Step>,
}

/// Equal steps: how many, and what each does.
#[derive(Debug, Clone, Deserialize)]
pub struct Step(pub u32, pub Vec<Line>);

/// A line of [`Steps::table`].
pub type Line = u32;

/// A piece of work.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "Written")]
pub enum Work {
    /// An operator of PyTorch begins: does autograd's engine call it?
    Operator(bool),
    /// So many modules were called in the step, nodes of autograd's made, and gradients used by optimizers.
    Modules([f64; 3]),
    /// From here on the work is that of one of [`Steps::places`].
    Place(usize),
    /// The host waits for the GPU.
    Wait,
    /// A kernel with a name.
    Kernel {
        /// Of [`Steps::names`].
        name: usize,
        /// Blocks.
        blocks: f64,
        /// Threads of a block.
        threads: f64,
        /// What it moves; 0 where nobody knows.
        bytes: f64,
    },
    /// A matrix product.
    Product(Product),
    /// A convolution as a product for each place of its window.
    Convolution {
        /// 0 forward, 1 the gradient of the data, 2 of the filter.
        direction: u8,
        /// Pixels of all results, filters, channels of a group; `batch` are the images.
        product: Product,
        /// Groups of channels.
        groups: f64,
        /// Places of the window.
        window: f64,
        /// Bytes of all its tensors.
        outside: f64,
        /// Whether channels come last.
        last: bool,
    },
    /// Attention whose scores stay on the chip.
    Attention(Attention),
    /// Something of a library that moves so many bytes.
    Moving(f64, String),
    /// A batch normalization of cuDNN's.
    BatchNorm {
        /// Bytes of the tensor.
        bytes: f64,
        /// Its channels.
        channels: f64,
        /// Whether they come last.
        last: bool,
        /// Whether it is the gradient.
        backward: bool,
        /// Bytes of an element.
        element: f64,
    },
    /// A copy, and which way it goes if it runs beside kernels, in a stream of its own.
    Copy(Path, f64, Option<Way>),
    /// Cycles of steps that follow each other, cycles of all multiprocessors together, or bytes: whichever takes longest.
    Chain(f64, f64, f64, String),
    /// Blocks whose threads each walk so many cycles, with so many of the last one's beside; they read so many bytes.
    Walk {
        /// Cycles of each thread, one after the other.
        cycles: f64,
        /// Cycles of the last block when the others are done.
        tail: f64,
        /// Blocks.
        blocks: f64,
        /// Threads of a block.
        threads: f64,
        /// What they read.
        bytes: f64,
        /// What it counts as.
        what: String,
    },
    /// What takes so many seconds on the GPU that was rehearsed; its work is not known.
    Fixed(f64, String),
    /// Written by another version.
    Unknown,
}

/// A batch of products `m`×`k` times `k`×`n`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Product {
    /// Columns of the result, as cuBLAS has them.
    pub m: f64,
    /// Rows of the result.
    pub n: f64,
    /// The sum's length.
    pub k: f64,
    /// Products.
    pub batch: f64,
    /// What they are computed in.
    pub kind: Kind,
    /// What divides all addresses, bytes.
    pub alignment: u64,
    /// Bytes of the operands that surely lie beyond the L2 cache.
    pub cold: f64,
}

/// Attention of `heads` heads of all sequences together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attention {
    /// Heads of the queries, of all sequences.
    pub heads: f64,
    /// Queries of a head.
    pub queries: f64,
    /// Keys of a head.
    pub keys: f64,
    /// Features of a head.
    pub features: f64,
    /// Whether a query attends to no later key.
    pub causal: bool,
    /// Products for each pair of a query and a key: 2, or 5 for the gradients.
    pub products: f64,
    /// What it computes in.
    pub kind: Kind,
    /// Bytes of its tensors, or 0 where only the kernel is known, which then was written for older GPUs.
    pub bytes: f64,
}

/// What is computed in.
#[expect(missing_docs, reason = "the names say it")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Fp64,
    Fp32,
    Tf32,
    Fp16,
    Bf16,
    Fp8,
    Int8,
    Complex64,
    Complex128,
}

impl Kind {
    const ALL: [Self; 9] = [
        Self::Fp64,
        Self::Fp32,
        Self::Tf32,
        Self::Fp16,
        Self::Bf16,
        Self::Fp8,
        Self::Int8,
        Self::Complex64,
        Self::Complex128,
    ];

    /// Bytes of an element.
    pub const fn bytes(self) -> f64 {
        match self {
            Self::Complex128 => 16.0,
            Self::Fp64 | Self::Complex64 => 8.0,
            Self::Fp32 | Self::Tf32 => 4.0,
            Self::Fp16 | Self::Bf16 => 2.0,
            Self::Fp8 | Self::Int8 => 1.0,
        }
    }
}

/// Where a copy goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// From a device to itself.
    Within,
    /// From one device to another.
    Between,
    /// To or from pinned memory of the host.
    Pinned,
    /// To or from other memory of the host.
    Pageable,
}

/// Which way a copy goes over the link to the host. Logs of before 2026-11-27, 19:00 UTC have the first for both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// To the host.
    Out,
    /// From the host.
    In,
}

/// A line as it is written: the kind, then numbers and names.
#[derive(Deserialize)]
struct Written(Vec<Value>);

#[derive(Deserialize)]
#[serde(untagged)]
enum Value {
    Number(f64),
    Text(String),
}

impl From<Written> for Work {
    fn from(Written(values): Written) -> Self {
        let number = |at: usize| match values.get(at) {
            Some(Value::Number(number)) => *number,
            _ => 0.0,
        };
        let text = |at: usize| match values.get(at) {
            Some(Value::Text(text)) => text.clone(),
            _ => String::new(),
        };
        let kind = |at: usize| {
            Kind::ALL
                .get(number(at) as usize)
                .copied()
                .unwrap_or(Kind::Fp32)
        };
        let product = |at: usize| Product {
            m: number(at),
            n: number(at + 1),
            k: number(at + 2),
            batch: number(at + 3),
            kind: kind(at + 4),
            alignment: number(at + 5) as u64,
            cold: 0.0,
        };
        match text(0).as_str() {
            "operator" => Self::Operator(number(1) > 0.0),
            "modules" => Self::Modules([number(1), number(2), number(3)]),
            "place" => Self::Place(number(1) as usize),
            "wait" => Self::Wait,
            "kernel" => Self::Kernel {
                name: number(1) as usize,
                blocks: number(2),
                threads: number(3),
                bytes: number(4),
            },
            "product" => Self::Product(Product {
                cold: number(7),
                ..product(1)
            }),
            "convolution" => Self::Convolution {
                direction: number(1) as u8,
                product: product(2),
                groups: number(8),
                window: number(9),
                outside: number(10),
                last: number(11) > 0.0,
            },
            "attention" => Self::Attention(Attention {
                heads: number(1),
                queries: number(2),
                keys: number(3),
                features: number(4),
                causal: number(5) > 0.0,
                products: number(6),
                kind: kind(7),
                bytes: number(8),
            }),
            // Logs of before 2026-11-26 have operations, bytes, the longer sequence, and what it computes in.
            "fused" => {
                let (length, features, products) = (number(3).max(1.0), 64.0, 2.0);
                Self::Attention(Attention {
                    heads: number(1) / (2.0 * products * features * length * length),
                    queries: length,
                    keys: length,
                    features,
                    causal: false,
                    products,
                    kind: kind(4),
                    bytes: number(2),
                })
            }
            "moving" => Self::Moving(number(1), text(2)),
            "batch norm" => Self::BatchNorm {
                bytes: number(1),
                channels: number(2),
                last: number(3) > 0.0,
                backward: number(4) > 0.0,
                element: number(5).max(1.0),
            },
            "copy" => Self::Copy(
                match number(1) as u8 {
                    0 => Path::Within,
                    1 => Path::Between,
                    2 => Path::Pinned,
                    _ => Path::Pageable,
                },
                number(2),
                match number(3) as u8 {
                    0 => None,
                    2 => Some(Way::In),
                    _ => Some(Way::Out),
                },
            ),
            "chain" => Self::Chain(number(1), number(2), number(3), text(4)),
            "walk" => Self::Walk {
                cycles: number(1),
                tail: number(2),
                blocks: number(3),
                threads: number(4),
                bytes: number(5),
                what: text(6),
            },
            "fixed" => Self::Fixed(number(1) / 1e9, text(2)),
            _ => Self::Unknown,
        }
    }
}
