//! A pass through a network as a list of operators, and what of it is in memory at each moment.
//!
//! The tape knows no network: `network.rs` writes it. It follows PyTorch: a value lives from its
//! operator to its last reader; what autograd saves lives until the operator's backward; a
//! gradient from the operator that makes it to the one that takes it. Bytes are `f64`: exact up to
//! 8 PiB, and what hostile sizes make of them saturates when it is converted.

use std::ops::Range;

/// The caching allocator hands out whole blocks of this.
const BLOCK: f64 = 512.0;

/// A value on the tape.
pub(crate) type Value = usize;

/// A parameter, so that one that is used twice has one gradient.
pub(crate) type Parameter = usize;

#[derive(Debug, Clone, Copy)]
struct Tensor {
    elements: f64,
    /// Bytes of one element.
    size: f64,
    gradient: bool,
    /// Read last by this operator; `usize::MAX` until the pass ends.
    last: usize,
}

impl Tensor {
    fn bytes(&self) -> f64 {
        (self.elements * self.size / BLOCK).ceil() * BLOCK
    }
}

/// One operator.
#[derive(Debug, Default)]
pub(crate) struct Operator {
    /// What it reads; those that require a gradient get one.
    pub(crate) reads: Vec<Value>,
    /// What it makes.
    pub(crate) writes: Vec<Value>,
    /// What autograd keeps for its backward.
    pub(crate) saves: Vec<Value>,
    /// Bytes that are there only while it runs.
    pub(crate) scratch: f64,
    /// The same for its backward.
    pub(crate) backward_scratch: f64,
    /// Parameters whose gradients its backward makes, and their bytes.
    pub(crate) parameters: Vec<(Parameter, f64)>,
    /// The gradient of its output is that of its inputs, without a copy.
    pub(crate) shares_gradient: bool,
}

/// How a tape is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pass {
    /// Forward alone; nothing is saved.
    Inference,
    /// Forward and backward; the first of a step, where no gradients exist.
    First,
    /// Forward and backward while gradients of earlier passes exist.
    Later,
}

/// The operators of a pass.
#[derive(Debug, Default)]
pub(crate) struct Tape {
    tensors: Vec<Tensor>,
    operators: Vec<Operator>,
    parameters: usize,
    blocks: Vec<Range<usize>>,
}

impl Tape {
    /// A value that the next operator writes.
    pub(crate) fn value(&mut self, elements: f64, size: f64, gradient: bool) -> Value {
        self.tensors.push(Tensor {
            elements,
            size,
            gradient,
            last: 0,
        });
        self.tensors.len() - 1
    }

    pub(crate) fn parameter(&mut self) -> Parameter {
        self.parameters += 1;
        self.parameters - 1
    }

    pub(crate) fn push(&mut self, operator: Operator) {
        let index = self.operators.len();
        for &value in operator.reads.iter().chain(&operator.writes) {
            let last = &mut self.tensors[value].last;
            *last = index.max(*last);
        }
        self.operators.push(operator);
    }

    /// A caller's variables that hold these values up to here.
    pub(crate) fn hold(&mut self, values: &[Value]) {
        self.push(Operator {
            reads: values.to_vec(),
            shares_gradient: true,
            ..Operator::default()
        });
    }

    /// Keeps a value until the whole pass ends.
    pub(crate) fn keep(&mut self, value: Value) {
        self.tensors[value].last = usize::MAX;
    }

    /// Operators from `start` on are one block, which checkpointing computes again.
    pub(crate) fn block(&mut self, start: usize) {
        self.blocks.push(start..self.operators.len());
    }

    /// Lets the operator that was pushed last save one value more.
    pub(crate) fn save_more(&mut self, value: Value) {
        if let Some(operator) = self.operators.last_mut() {
            operator.saves.push(value);
        }
    }

    pub(crate) fn require_gradient(&mut self, value: Value) {
        self.tensors[value].gradient = true;
    }

    pub(crate) fn len(&self) -> usize {
        self.operators.len()
    }

    pub(crate) fn elements(&self, value: Value) -> f64 {
        self.tensors[value].elements
    }

    pub(crate) fn size(&self, value: Value) -> f64 {
        self.tensors[value].size
    }

    pub(crate) fn bytes(&self, value: Value) -> f64 {
        self.tensors[value].bytes()
    }

    pub(crate) fn needs_gradient(&self, value: Value) -> bool {
        self.tensors[value].gradient
    }

    /// The most bytes that exist at one moment, beside weights, gradients of earlier passes and the
    /// optimizer's state.
    pub(crate) fn peak(&self, pass: Pass, checkpointing: bool) -> f64 {
        let mut player = Player::new(self, pass == Pass::Later);
        let train = pass != Pass::Inference;
        let blocks: &[Range<usize>] = if train && checkpointing {
            &self.blocks
        } else {
            &[]
        };
        let mut at = 0;
        for block in blocks {
            player.forward(at..block.start, train);
            player.save_inputs(block);
            player.forward(block.clone(), false);
            at = block.end;
        }
        player.forward(at..self.operators.len(), train);
        player.end_forward();
        if train {
            let mut end = self.operators.len();
            for block in blocks.iter().rev() {
                player.backward(block.end..end);
                player.forward(block.clone(), true);
                player.drop_made(block);
                player.backward(block.clone());
                player.release_inputs(block);
                end = block.start;
            }
            player.backward(0..end);
        }
        player.peak
    }
}

struct Player<'a> {
    tape: &'a Tape,
    live: f64,
    peak: f64,
    /// References to each value: from the running program, and from what autograd saved.
    held: Vec<bool>,
    saved: Vec<u32>,
    /// Which gradient each value has.
    gradient_of: Vec<Option<usize>>,
    /// Bytes of each gradient, and how many values it is that of.
    gradients: Vec<(f64, u32)>,
    /// Parameters that have their gradient.
    done: Vec<bool>,
}

impl<'a> Player<'a> {
    fn new(tape: &'a Tape, done: bool) -> Self {
        let values = tape.tensors.len();
        Self {
            tape,
            live: 0.0,
            peak: 0.0,
            held: vec![false; values],
            saved: vec![0; values],
            gradient_of: vec![None; values],
            gradients: Vec::new(),
            done: vec![done; tape.parameters],
        }
    }

    fn take(&mut self, bytes: f64) {
        self.live += bytes;
        self.peak = self.peak.max(self.live);
    }

    fn drop_hold(&mut self, value: Value) {
        if std::mem::take(&mut self.held[value]) && self.saved[value] == 0 {
            self.live -= self.tape.bytes(value);
        }
    }

    fn save(&mut self, value: Value) {
        if self.held[value] || self.saved[value] > 0 {
            self.saved[value] += 1;
        }
    }

    fn release(&mut self, value: Value) {
        if self.saved[value] > 0 {
            self.saved[value] -= 1;
            if self.saved[value] == 0 && !self.held[value] {
                self.live -= self.tape.bytes(value);
            }
        }
    }

    fn forward(&mut self, range: Range<usize>, save: bool) {
        for index in range {
            let operator = &self.tape.operators[index];
            for &value in &operator.writes {
                self.take(self.tape.bytes(value));
                self.held[value] = true;
            }
            self.peak = self.peak.max(self.live + operator.scratch);
            if save {
                for &value in &operator.saves {
                    self.save(value);
                }
            }
            for &value in operator.reads.iter().chain(&operator.writes) {
                if self.tape.tensors[value].last == index {
                    self.drop_hold(value);
                }
            }
        }
    }

    /// The program lets go of what it kept.
    fn end_forward(&mut self) {
        for value in 0..self.held.len() {
            self.drop_hold(value);
        }
    }

    /// What a block reads from before it.
    fn inputs(&self, block: &Range<usize>) -> Vec<Value> {
        let operators = &self.tape.operators[block.clone()];
        let made: Vec<Value> = operators.iter().flat_map(|o| o.writes.clone()).collect();
        let mut inputs: Vec<Value> = operators.iter().flat_map(|o| o.reads.clone()).collect();
        inputs.sort_unstable();
        inputs.dedup();
        inputs.retain(|value| !made.contains(value));
        inputs
    }

    fn save_inputs(&mut self, block: &Range<usize>) {
        for value in self.inputs(block) {
            self.save(value);
        }
    }

    fn release_inputs(&mut self, block: &Range<usize>) {
        for value in self.inputs(block) {
            self.release(value);
        }
    }

    fn drop_made(&mut self, block: &Range<usize>) {
        for operator in &self.tape.operators[block.clone()] {
            for &value in &operator.writes {
                self.drop_hold(value);
            }
        }
    }

    fn new_gradient(&mut self, value: Value) -> usize {
        let bytes = self.tape.bytes(value);
        self.take(bytes);
        self.gradients.push((bytes, 1));
        self.gradients.len() - 1
    }

    fn drop_gradient(&mut self, gradient: usize) {
        let (bytes, references) = &mut self.gradients[gradient];
        *references -= 1;
        if *references == 0 {
            self.live -= *bytes;
        }
    }

    fn backward(&mut self, range: Range<usize>) {
        for index in range.rev() {
            let operator = &self.tape.operators[index];
            if !operator.writes.is_empty() {
                self.backward_of(operator);
            }
            for &value in &operator.saves {
                self.release(value);
            }
        }
    }

    fn backward_of(&mut self, operator: &Operator) {
        let arriving: Vec<usize> = operator
            .writes
            .iter()
            .filter_map(|&value| self.gradient_of[value].take())
            .collect();
        let wanted: Vec<Value> = operator
            .reads
            .iter()
            .copied()
            .filter(|&value| self.tape.needs_gradient(value))
            .collect();
        let mut made = Vec::new();
        for &value in &wanted {
            let shared = arriving
                .first()
                .filter(|_| operator.shares_gradient)
                .copied();
            let gradient = match shared {
                Some(gradient) => {
                    self.gradients[gradient].1 += 1;
                    gradient
                }
                None => self.new_gradient(value),
            };
            made.push((value, gradient));
        }
        let mut temporary = operator.backward_scratch;
        for &(parameter, bytes) in &operator.parameters {
            if std::mem::replace(&mut self.done[parameter], true) {
                temporary += bytes;
            } else {
                self.take(bytes);
            }
        }
        self.peak = self.peak.max(self.live + temporary);
        for (value, gradient) in made {
            match self.gradient_of[value] {
                None => self.gradient_of[value] = Some(gradient),
                // Added in place, unless another operator still reads the old one.
                Some(old) if self.gradients[old].1 == 1 => self.drop_gradient(gradient),
                Some(old) => {
                    self.drop_gradient(old);
                    self.gradient_of[value] = Some(gradient);
                }
            }
        }
        for gradient in arriving {
            self.drop_gradient(gradient);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `layers` times a product with a parameter of the same size as its output, which saves its input.
    fn chain(layers: usize) -> Tape {
        let mut tape = Tape::default();
        let mut at = tape.value(256.0, 4.0, true);
        tape.push(Operator {
            writes: vec![at],
            ..Operator::default()
        });
        for _ in 0..layers {
            let start = tape.len();
            let next = tape.value(256.0, 4.0, true);
            let parameter = tape.parameter();
            tape.push(Operator {
                reads: vec![at],
                writes: vec![next],
                saves: vec![at],
                parameters: vec![(parameter, 1024.0)],
                ..Operator::default()
            });
            tape.block(start);
            at = next;
        }
        tape
    }

    #[test]
    fn inference_keeps_one_layer_and_training_all() {
        let tape = chain(10);
        let kib = |pass| (tape.peak(pass, false) / 1024.0) as u64;
        assert_eq!(kib(Pass::Inference), 2);
        // Ten saved inputs, and the gradients of the last output, of its input and of its parameter, which a later pass
        // has already; then as many gradients of parameters come as saved inputs go.
        assert_eq!([kib(Pass::First), kib(Pass::Later)], [13, 12]);
    }

    #[test]
    fn a_gradient_that_is_shared_takes_no_memory() {
        let mut tape = Tape::default();
        let (a, b) = (tape.value(256.0, 4.0, true), tape.value(256.0, 4.0, true));
        tape.push(Operator {
            writes: vec![a],
            ..Operator::default()
        });
        tape.push(Operator {
            reads: vec![a],
            writes: vec![b],
            shares_gradient: true,
            ..Operator::default()
        });
        assert_eq!(tape.peak(Pass::First, false) as u64, 2048);
    }

    #[test]
    fn checkpointed_blocks_keep_their_inputs_alone() {
        // Each layer is two operators, of which the inner value is as large as eight outer ones.
        let mut tape = Tape::default();
        let mut at = tape.value(128.0, 4.0, true);
        tape.push(Operator {
            writes: vec![at],
            ..Operator::default()
        });
        for _ in 0..10 {
            let start = tape.len();
            let (inner, next) = (tape.value(1024.0, 4.0, true), tape.value(128.0, 4.0, true));
            tape.push(Operator {
                reads: vec![at],
                writes: vec![inner],
                saves: vec![at],
                ..Operator::default()
            });
            tape.push(Operator {
                reads: vec![inner],
                writes: vec![next],
                saves: vec![inner],
                ..Operator::default()
            });
            tape.block(start);
            at = next;
        }
        let plain = tape.peak(Pass::First, false);
        let checkpointed = tape.peak(Pass::First, true);
        assert!(plain > 11.0 * 4096.0 && plain < 13.0 * 4096.0, "{plain}");
        assert!(checkpointed < 4.0 * 4096.0, "{checkpointed}");
        assert!(checkpointed > 2.0 * 4096.0, "{checkpointed}");
    }
}
