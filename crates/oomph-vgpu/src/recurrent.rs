//! What cuDNN's recurrent layers take the GPU, by the algorithm that it chooses from the sizes, for the clock.
//!
//! Small layers run all steps in one kernel that keeps the matrix in registers; the others launch a product and a cell for each
//! step. Which is which, and what they take, was read from `bench/time/kinds.py recurrent` on an H200 (cuDNN 9).

use crate::clock::{Kind, Product, alignment};
use crate::work::Work;

/// What is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// The outputs.
    Forward,
    /// The gradients of inputs and states.
    Data,
    /// The gradients of matrices and biases.
    Weights,
}

/// One direction of a layer.
#[derive(Debug, Clone, Copy)]
pub struct Layer {
    /// 4 of an LSTM, 3 of a GRU, else 1.
    pub gates: u64,
    /// Columns of its input matrix.
    pub input: u64,
    /// Elements of its state.
    pub hidden: u64,
    /// Whether elements have 16 bits, else 32.
    pub half: bool,
    /// Whether there is no other direction.
    pub alone: bool,
    /// Whether what it passes on is a product of the state.
    pub projects: bool,
}

/// How the steps are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Steps {
    /// By one kernel with a block for so many sequences, each step of which takes so many nanoseconds.
    Together { sequences: u64, nanoseconds: u64 },
    /// By kernels of their own.
    Each,
}

/// Cycles of a nanosecond, in hundredths, at the clock that chains are given in.
const CYCLES: u64 = 198;
/// Multiprocessors of the GPU that was measured.
const PROCESSORS: u64 = 132;
/// Widest states that one block computes: of LSTMs and GRUs, and of plain cells.
const WIDEST: [u64; 2] = [128, 256];
/// Sequences of a block that uses tensor cores.
const SEQUENCES: u64 = 8;
/// Nanoseconds until a kernel of all steps has read its matrix.
const BEGIN: u64 = 2000;
/// Largest batch for which a few blocks compute wide LSTMs of 16 bits together.
const FEW: u64 = 16;
const WHAT: &str = "recurrent cells";
/// What the clock of the host knows a layer's backward pass by.
const BIASES: &str = "gradients of recurrent biases";

impl Layer {
    /// The work of a pass over `rows` elements of sequences, in `steps` steps with `batch` sequences at most.
    pub fn work(&self, pass: Pass, steps: u64, rows: u64, batch: u64) -> Vec<Work> {
        let wide = self.gates * self.hidden;
        if pass == Pass::Weights {
            let mut work = vec![
                self.product(self.input, rows),
                self.product(self.hidden, rows),
            ];
            work.push(chain(BIASES, rows * self.bias_picoseconds() / 1000, 0));
            return work;
        }
        let mut work = vec![self.product(rows, self.input)];
        match self.steps(pass, batch) {
            Steps::Together {
                sequences,
                nanoseconds,
            } => {
                let blocks = batch.div_ceil(sequences);
                work.push(chain(WHAT, BEGIN + steps * nanoseconds, blocks));
            }
            Steps::Each => {
                for _ in 0..steps {
                    work.push(self.step(batch));
                    work.push(Work::Moving {
                        bytes: 2 * batch * wide * self.bytes(),
                        what: WHAT,
                    });
                }
            }
        }
        work
    }

    const fn bytes(&self) -> u64 {
        if self.half { 2 } else { 4 }
    }

    fn product(&self, n: u64, k: u64) -> Work {
        Work::Product(Product {
            m: self.gates * self.hidden,
            n,
            k,
            batch: 1,
            kind: if self.half { Kind::Fp16 } else { Kind::Tf32 },
            alignment: alignment(self.hidden * self.bytes()),
        })
    }

    /// The product of one step. In 32 bits its kernels go through the columns one after the other; with one row they read the
    /// matrix.
    fn step(&self, batch: u64) -> Work {
        let matrix = self.gates * self.hidden * self.hidden;
        match (self.half, batch) {
            (true, _) => self.product(batch, self.hidden),
            (false, 1) => chain(WHAT, 2000 + matrix / 1100, 0),
            (false, _) => chain(
                WHAT,
                2000 + 12 * self.hidden + 2 * matrix * batch / 95_000,
                0,
            ),
        }
    }

    fn steps(&self, pass: Pass, batch: u64) -> Steps {
        let widest = WIDEST[usize::from(self.gates == 1)];
        let backward = pass == Pass::Data;
        if self.projects {
            return Steps::Each;
        }
        if self.hidden <= widest {
            let width = self.hidden.next_power_of_two().max(32);
            let matrix = self.gates * width * width;
            let tensor_cores = self.half && self.hidden.is_multiple_of(32) && batch >= SEQUENCES;
            let nanoseconds = if tensor_cores {
                500 + 100 * self.gates * width / 32
            } else if matrix <= 49_152 {
                430 + 63 * matrix / 10_000
            } else {
                // More than the registers of a block.
                2100
            };
            return Steps::Together {
                sequences: if tensor_cores { SEQUENCES } else { 1 },
                nanoseconds: if backward {
                    nanoseconds * 11 / 10
                } else {
                    nanoseconds
                },
            };
        }
        let few = self.half && self.alone && self.gates == 4 && batch <= FEW;
        if few && self.hidden.is_multiple_of(64) && self.hidden <= 1024 {
            return Steps::Together {
                sequences: FEW,
                nanoseconds: if backward {
                    1300 + 3 * self.hidden
                } else {
                    1100 + self.hidden
                },
            };
        }
        Steps::Each
    }

    /// What one row of the inputs takes in the kernel that sums the gradients of biases: few blocks go through them all.
    const fn bias_picoseconds(&self) -> u64 {
        match (self.gates, self.half) {
            (4, _) => 9_500,
            (3, true) => 21_000,
            (3, false) => 35_000,
            _ => 3_000,
        }
    }
}

/// A kernel of steps that follow each other, with `blocks` of which each has a multiprocessor for itself.
const fn chain(what: &'static str, nanoseconds: u64, blocks: u64) -> Work {
    let cycles = nanoseconds * CYCLES / 100;
    Work::Chain {
        cycles,
        work: if blocks > PROCESSORS {
            blocks * cycles
        } else {
            0
        },
        bytes: 0,
        what,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(gates: u64, hidden: u64, half: bool) -> Layer {
        Layer {
            gates,
            input: 64,
            hidden,
            half,
            alone: true,
            projects: false,
        }
    }

    fn launches(layer: Layer, pass: Pass, batch: u64) -> usize {
        layer.work(pass, 100, 100 * batch, batch).len()
    }

    #[test]
    fn small_layers_take_one_kernel_for_all_steps_and_wide_ones_two_for_each() {
        assert_eq!(launches(layer(4, 128, false), Pass::Forward, 32), 2);
        assert_eq!(launches(layer(4, 300, false), Pass::Forward, 32), 201);
        assert_eq!(launches(layer(1, 256, true), Pass::Data, 32), 2);
        assert_eq!(launches(layer(1, 512, true), Pass::Data, 32), 201);
    }

    #[test]
    fn wide_lstms_of_16_bits_are_computed_together_for_a_small_batch_in_one_direction() {
        let wide = layer(4, 512, true);
        assert_eq!(launches(wide, Pass::Forward, 16), 2);
        assert_eq!(launches(wide, Pass::Forward, 32), 201);
        let both = Layer {
            alone: false,
            ..wide
        };
        assert_eq!(launches(both, Pass::Forward, 16), 201);
    }

    #[test]
    fn gradients_of_biases_take_a_time_for_each_row() {
        let work = layer(3, 100, false).work(Pass::Weights, 100, 6400, 64);
        let Some(&Work::Chain { cycles, .. }) = work.last() else {
            panic!("{work:?}");
        };
        assert_eq!(cycles, 6400 * 35 * CYCLES / 100);
    }
}
