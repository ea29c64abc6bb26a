//! A pickle machine that builds shapes and sizes and runs nothing.
//!
//! Values live in one arena and refer to each other by index, so that shared and cyclic structures
//! cost nothing special. A call (`REDUCE`) makes an inert [`Value::Object`], except for the few
//! functions by which PyTorch rebuilds tensors, whose meaning is known. Opcodes are allowed by
//! list.

use std::collections::HashMap;
use std::io::{Read, Seek};

use crate::dtype::{DType, elements};
use crate::error::{EstimateError, show};
use crate::input::Input;

const FORMAT: &str = "pickle";
/// Values and references in one file; a state dict of 100,000 tensors has about three million.
const MAX_VALUES: u64 = 8_000_000;
/// Dimensions of a tensor.
const MAX_DIMENSIONS: usize = 64;
/// Arguments that any known function or persistent id has; a longer tuple is not looked through.
const MAX_ARGUMENTS: usize = 16;
/// One string or bytes object: parameter names are short, embedded numpy arrays are skipped.
const MAX_TEXT: u64 = 1 << 20;
/// Text lines of protocol 0.
const MAX_LINE: usize = 1 << 16;

/// Index of a value in its [`Machine`].
pub(crate) type Id = u32;

/// A value of the pickle.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    /// `None`, numbers with a fraction, bytes, and whatever else has no part in sizes.
    Opaque,
    Int(i64),
    Text(String),
    Global(String),
    /// Tuple, list or set.
    Sequence(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Storage(u32),
    Tensor(TensorValue),
    /// The result of a call: its arguments, and what was set on it later.
    Object(Vec<Id>),
}

/// A rebuilt tensor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TensorValue {
    pub(crate) storage: u32,
    pub(crate) dtype: Option<DType>,
    pub(crate) elements: u64,
}

/// A storage that the pickle refers to.
#[derive(Debug, Clone)]
pub(crate) struct Storage {
    pub(crate) key: String,
    /// `None` for an untyped storage, whose tensors carry the type.
    pub(crate) dtype: Option<DType>,
    /// `None` for an unknown storage class.
    pub(crate) bytes: Option<u64>,
}

/// The state of the machine and, after [`Machine::run`], everything that was built.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    values: Vec<Value>,
    /// The one value that stands for everything without a size.
    opaque: Option<Id>,
    /// Values and references so far, counted against [`MAX_VALUES`].
    spent: u64,
    pub(crate) storages: Vec<Storage>,
    storage_by_key: HashMap<String, u32>,
    pub(crate) problems: Vec<String>,
}

/// What an opcode left on the stack: a value or a mark.
#[derive(Clone, Copy)]
enum Slot {
    Value(Id),
    Mark,
}

struct Execution<'a, R> {
    machine: &'a mut Machine,
    input: &'a mut Input<R>,
    stack: Vec<Slot>,
    memo: HashMap<u64, Id>,
}

impl Machine {
    pub(crate) fn value(&self, id: Id) -> &Value {
        self.values.get(id as usize).unwrap_or(&Value::Opaque)
    }

    pub(crate) fn text(&self, id: Id) -> Option<&str> {
        match self.value(id) {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Runs one pickle from the input's position and returns its result.
    pub(crate) fn run<R: Read + Seek>(
        &mut self,
        input: &mut Input<R>,
    ) -> Result<Id, EstimateError> {
        Execution {
            machine: self,
            input,
            stack: Vec::new(),
            memo: HashMap::new(),
        }
        .run()
    }

    /// Counts what the pickle makes us keep: without it, a few bytes that copy a long tuple again
    /// and again would fill the memory.
    fn spend(&mut self, count: usize) -> Result<(), EstimateError> {
        self.spent = self.spent.saturating_add(count as u64);
        if self.spent > MAX_VALUES {
            return Err(EstimateError::Limit {
                format: FORMAT,
                what: "the number of values",
                value: self.spent,
                limit: MAX_VALUES,
            });
        }
        Ok(())
    }

    fn new_value(&mut self, value: Value) -> Result<Id, EstimateError> {
        if let (Value::Opaque, Some(id)) = (&value, self.opaque) {
            return Ok(id);
        }
        self.spend(match &value {
            Value::Sequence(items) | Value::Object(items) => 1 + items.len(),
            Value::Dict(pairs) => 1 + 2 * pairs.len(),
            _ => 1,
        })?;
        // MAX_VALUES is below 2^32.
        let id = self.values.len() as Id;
        if matches!(value, Value::Opaque) {
            self.opaque = Some(id);
        }
        self.values.push(value);
        Ok(id)
    }

    /// The first items of a tuple of arguments.
    fn arguments(&self, id: Id) -> Vec<Id> {
        let items = self.sequence(id);
        items.iter().take(MAX_ARGUMENTS).copied().collect()
    }

    /// A call whose meaning is unknown, with all its arguments.
    fn object(&self, arguments: Id) -> Value {
        let items = self.sequence(arguments);
        // More than can be spent anyway is not worth the copy.
        let left = MAX_VALUES.saturating_sub(self.spent).saturating_add(1) as usize;
        Value::Object(items.iter().take(left).copied().collect())
    }

    fn sequence(&self, id: Id) -> &[Id] {
        match self.value(id) {
            Value::Sequence(items) => items,
            _ => &[],
        }
    }

    fn int(&self, id: Id) -> Option<u64> {
        match self.value(id) {
            Value::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    fn global(&self, id: Id) -> Option<&str> {
        match self.value(id) {
            Value::Global(name) => Some(name),
            _ => None,
        }
    }

    /// `('storage', class, key, location, elements)`, which PyTorch's pickler writes for each
    /// storage.
    fn persistent(&mut self, pid: Id) -> Result<Id, EstimateError> {
        let items = self.arguments(pid);
        let [kind, class, key, _, count, ..] = items[..] else {
            self.problems
                .push("a persistent id that is no storage; its memory is not counted".to_owned());
            return self.new_value(Value::Opaque);
        };
        let key_text = match self.value(key) {
            Value::Text(text) => text.clone(),
            Value::Int(number) => number.to_string(),
            _ => String::new(),
        };
        if self.text(kind) != Some("storage") {
            self.problems
                .push("a persistent id that is no storage; its memory is not counted".to_owned());
            return self.new_value(Value::Opaque);
        }
        if let Some(&known) = self.storage_by_key.get(&key_text) {
            return self.new_value(Value::Storage(known));
        }
        let class = self.global(class).unwrap_or_default().to_owned();
        let (dtype, untyped) = storage_class(&class);
        let count = self.int(count);
        let bytes = match (dtype, untyped, count) {
            (Some(dtype), _, Some(count)) => dtype.bytes_for(count),
            (None, true, Some(count)) => Some(count),
            _ => None,
        };
        if bytes.is_none() {
            self.problems.push(format!(
                "storage `{key_text}` of class `{class}` has an unknown size; it is not counted"
            ));
        }
        let index = self.storages.len() as u32;
        self.storages.push(Storage {
            key: key_text.clone(),
            dtype,
            bytes,
        });
        self.storage_by_key.insert(key_text, index);
        self.new_value(Value::Storage(index))
    }

    /// The value of `callable(*arguments)`.
    fn call(&mut self, callable: Id, arguments: Id, depth: u32) -> Result<Value, EstimateError> {
        /// `_rebuild_from_type_v2` wraps another rebuild; twice for a subclass of a parameter.
        const MAX_NESTED: u32 = 4;
        let items = self.arguments(arguments);
        let name = self.global(callable).unwrap_or_default().to_owned();
        match name.as_str() {
            "collections OrderedDict" | "builtins dict" | "collections defaultdict" => {
                // OrderedDict([(key, value), …]) is how protocol 0 and 1 may write it.
                let pairs = items
                    .first()
                    .map(|&first| {
                        self.sequence(first)
                            .iter()
                            .filter_map(|&pair| match self.sequence(pair) {
                                [key, value] => Some((*key, *value)),
                                _ => None,
                            })
                            .collect()
                    })
                    .unwrap_or_default();
                Ok(Value::Dict(pairs))
            }
            "torch._utils _rebuild_tensor"
            | "torch._utils _rebuild_tensor_v2"
            | "torch._utils _rebuild_qtensor"
            | "torch._utils _rebuild_tensor_v3" => {
                let [storage, _, size, ..] = items[..] else {
                    return Ok(self.object(arguments));
                };
                let Value::Storage(storage) = *self.value(storage) else {
                    return Ok(self.object(arguments));
                };
                let dimensions = self.sequence(size);
                let shape: Option<Vec<u64>> = if dimensions.len() <= MAX_DIMENSIONS {
                    dimensions.iter().map(|&id| self.int(id)).collect()
                } else {
                    None
                };
                let Some(count) = shape.as_deref().and_then(elements) else {
                    self.problems.push(
                        "a tensor with an impossible shape; its storage is counted".to_owned(),
                    );
                    return Ok(self.object(arguments));
                };
                let dtype = if name.ends_with("_v3") {
                    // (storage, offset, size, stride, requires_grad, hooks, dtype, …)
                    items
                        .get(6)
                        .and_then(|&id| self.global(id))
                        .and_then(|name| name.strip_prefix("torch "))
                        .and_then(torch_dtype)
                } else {
                    None
                };
                Ok(Value::Tensor(TensorValue {
                    storage,
                    dtype,
                    elements: count,
                }))
            }
            "torch._utils _rebuild_parameter" | "torch._utils _rebuild_parameter_with_state" => {
                Ok(match items.first() {
                    Some(&data) => match self.value(data) {
                        Value::Tensor(tensor) => Value::Tensor(*tensor),
                        _ => self.object(arguments),
                    },
                    None => Value::Opaque,
                })
            }
            "torch._tensor _rebuild_from_type_v2" if depth < MAX_NESTED => match items[..] {
                // (function, type, arguments, state)
                [function, _, arguments, ..] => self.call(function, arguments, depth + 1),
                _ => Ok(self.object(arguments)),
            },
            _ => Ok(self.object(arguments)),
        }
    }
}

impl<R: Read + Seek> Execution<'_, R> {
    fn run(mut self) -> Result<Id, EstimateError> {
        loop {
            let offset = self.input.position();
            let opcode = self.input.byte("a pickle")?;
            if opcode == b'.' {
                return self.pop();
            }
            // Marks, copies and memo entries cost a byte each in the file.
            let kept = (self.stack.len() + self.memo.len()) as u64;
            if kept > MAX_VALUES {
                return Err(EstimateError::Limit {
                    format: FORMAT,
                    what: "the number of values on the stack and remembered",
                    value: kept,
                    limit: MAX_VALUES,
                });
            }
            self.step(opcode, offset)?;
        }
    }

    fn step(&mut self, opcode: u8, offset: u64) -> Result<(), EstimateError> {
        const WHAT: &str = "a pickle";
        match opcode {
            // PROTO, FRAME
            0x80 => self.input.skip(1, WHAT),
            0x95 => self.input.skip(8, WHAT),
            b'(' => {
                self.stack.push(Slot::Mark);
                Ok(())
            }
            b'0' => {
                self.stack.pop();
                Ok(())
            }
            b'1' => self.pop_to_mark().map(|_| ()),
            b'2' => {
                let top = self.peek()?;
                self.stack.push(Slot::Value(top));
                Ok(())
            }
            // NONE, NEWTRUE, NEWFALSE
            b'N' | 0x88 | 0x89 => self.push(Value::Opaque),
            b'J' => {
                let number = i64::from(self.input.u32(WHAT)?.cast_signed());
                self.push(Value::Int(number))
            }
            b'K' => {
                let number = i64::from(self.input.byte(WHAT)?);
                self.push(Value::Int(number))
            }
            b'M' => {
                let number = i64::from(self.input.u16(WHAT)?);
                self.push(Value::Int(number))
            }
            b'I' | b'L' => {
                let line = self.line()?;
                let value = line
                    .trim_end_matches('L')
                    .parse()
                    .map_or(Value::Opaque, Value::Int);
                self.push(value)
            }
            // LONG1, LONG4
            0x8a => {
                let length = u64::from(self.input.byte(WHAT)?);
                self.long(length)
            }
            0x8b => {
                let length = u64::from(self.input.u32(WHAT)?);
                self.long(length)
            }
            b'G' => {
                self.input.skip(8, WHAT)?;
                self.push(Value::Opaque)
            }
            b'F' => {
                self.line()?;
                self.push(Value::Opaque)
            }
            // BINUNICODE, SHORT_BINUNICODE, BINUNICODE8, and Python 2's strings
            b'X' | b'T' => {
                let length = u64::from(self.input.u32(WHAT)?);
                self.text(length)
            }
            0x8c | b'U' => {
                let length = u64::from(self.input.byte(WHAT)?);
                self.text(length)
            }
            0x8d => {
                let length = self.input.u64(WHAT)?;
                self.text(length)
            }
            b'S' | b'V' => {
                let line = self.line()?;
                let text = line.trim_matches(['\'', '"']).to_owned();
                self.push(Value::Text(text))
            }
            // BINBYTES, SHORT_BINBYTES, BINBYTES8, BYTEARRAY8
            b'B' => {
                let length = u64::from(self.input.u32(WHAT)?);
                self.opaque_bytes(length)
            }
            b'C' => {
                let length = u64::from(self.input.byte(WHAT)?);
                self.opaque_bytes(length)
            }
            0x8e | 0x96 => {
                let length = self.input.u64(WHAT)?;
                self.opaque_bytes(length)
            }
            b'}' => self.push(Value::Dict(Vec::new())),
            b']' | b')' | 0x8f => self.push(Value::Sequence(Vec::new())),
            // TUPLE, LIST, FROZENSET
            b't' | b'l' | 0x91 => {
                let items = self.pop_to_mark()?;
                self.push(Value::Sequence(items))
            }
            // TUPLE1, TUPLE2, TUPLE3
            0x85..=0x87 => {
                let count = usize::from(opcode - 0x84);
                let mut items = Vec::with_capacity(count);
                for _ in 0..count {
                    items.push(self.pop()?);
                }
                items.reverse();
                self.push(Value::Sequence(items))
            }
            b'd' => {
                let items = self.pop_to_mark()?;
                self.push(Value::Dict(pairs(&items)))
            }
            // APPEND, APPENDS, ADDITEMS
            b'a' => {
                let item = self.pop()?;
                self.add_items(&[item])
            }
            b'e' | 0x90 => {
                let items = self.pop_to_mark()?;
                self.add_items(&items)
            }
            // SETITEM, SETITEMS
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.add_pairs(&[key, value])
            }
            b'u' => {
                let items = self.pop_to_mark()?;
                self.add_pairs(&items)
            }
            // PUT, BINPUT, LONG_BINPUT, MEMOIZE
            b'p' => {
                let index = self.line_index(offset)?;
                self.remember(index)
            }
            b'q' => {
                let index = u64::from(self.input.byte(WHAT)?);
                self.remember(index)
            }
            b'r' => {
                let index = u64::from(self.input.u32(WHAT)?);
                self.remember(index)
            }
            0x94 => {
                let index = self.memo.len() as u64;
                self.remember(index)
            }
            // GET, BINGET, LONG_BINGET
            b'g' => {
                let index = self.line_index(offset)?;
                self.recall(index, offset)
            }
            b'h' => {
                let index = u64::from(self.input.byte(WHAT)?);
                self.recall(index, offset)
            }
            b'j' => {
                let index = u64::from(self.input.u32(WHAT)?);
                self.recall(index, offset)
            }
            b'c' => {
                let module = self.line()?;
                let name = self.line()?;
                self.push(Value::Global(format!("{module} {name}")))
            }
            // STACK_GLOBAL
            0x93 => {
                let name = self.pop()?;
                let module = self.pop()?;
                let global = format!(
                    "{} {}",
                    self.machine.text(module).unwrap_or_default(),
                    self.machine.text(name).unwrap_or_default()
                );
                self.push(Value::Global(global))
            }
            // REDUCE, NEWOBJ
            b'R' | 0x81 => {
                let arguments = self.pop()?;
                let callable = self.pop()?;
                let value = self.machine.call(callable, arguments, 0)?;
                self.push(value)
            }
            // NEWOBJ_EX
            0x92 => {
                let keywords = self.pop()?;
                let arguments = self.pop()?;
                self.pop()?;
                self.push(Value::Object(vec![arguments, keywords]))
            }
            // OBJ, INST
            b'o' => {
                let items = self.pop_to_mark()?;
                self.push(Value::Object(items))
            }
            b'i' => {
                self.line()?;
                self.line()?;
                let items = self.pop_to_mark()?;
                self.push(Value::Object(items))
            }
            b'b' => self.build(),
            // BINPERSID
            b'Q' => {
                let pid = self.pop()?;
                let id = self.machine.persistent(pid)?;
                self.stack.push(Slot::Value(id));
                Ok(())
            }
            _ => Err(EstimateError::Malformed {
                format: FORMAT,
                offset,
                expected: "a pickle opcode that checkpoints use".to_owned(),
                found: show(&[opcode]),
            }),
        }
    }

    fn push(&mut self, value: Value) -> Result<(), EstimateError> {
        let id = self.machine.new_value(value)?;
        self.stack.push(Slot::Value(id));
        Ok(())
    }

    fn underflow(&self) -> EstimateError {
        EstimateError::Malformed {
            format: FORMAT,
            offset: self.input.position(),
            expected: "a value on the stack".to_owned(),
            found: "none".to_owned(),
        }
    }

    fn pop(&mut self) -> Result<Id, EstimateError> {
        match self.stack.pop() {
            Some(Slot::Value(id)) => Ok(id),
            _ => Err(self.underflow()),
        }
    }

    fn peek(&self) -> Result<Id, EstimateError> {
        match self.stack.last() {
            Some(Slot::Value(id)) => Ok(*id),
            _ => Err(self.underflow()),
        }
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Id>, EstimateError> {
        let Some(mark) = self
            .stack
            .iter()
            .rposition(|slot| matches!(slot, Slot::Mark))
        else {
            return Err(self.underflow());
        };
        let items = self
            .stack
            .drain(mark..)
            .filter_map(|slot| match slot {
                Slot::Value(id) => Some(id),
                Slot::Mark => None,
            })
            .collect();
        Ok(items)
    }

    fn top_mut(&mut self) -> Result<&mut Value, EstimateError> {
        let id = self.peek()?;
        let error = self.underflow();
        self.machine.values.get_mut(id as usize).ok_or(error)
    }

    fn add_items(&mut self, items: &[Id]) -> Result<(), EstimateError> {
        self.machine.spend(items.len())?;
        match self.top_mut()? {
            Value::Sequence(list) | Value::Object(list) => list.extend_from_slice(items),
            _ => {}
        }
        Ok(())
    }

    fn add_pairs(&mut self, items: &[Id]) -> Result<(), EstimateError> {
        self.machine.spend(items.len())?;
        match self.top_mut()? {
            Value::Dict(dict) => dict.extend(pairs(items)),
            Value::Object(list) => list.extend_from_slice(items),
            _ => {}
        }
        Ok(())
    }

    fn build(&mut self) -> Result<(), EstimateError> {
        let state = self.pop()?;
        // An OrderedDict's `_metadata`, a parameter's attributes: no sizes there.
        if let Value::Object(parts) = self.top_mut()? {
            parts.push(state);
        }
        Ok(())
    }

    fn remember(&mut self, index: u64) -> Result<(), EstimateError> {
        let id = self.peek()?;
        self.memo.insert(index, id);
        Ok(())
    }

    fn recall(&mut self, index: u64, offset: u64) -> Result<(), EstimateError> {
        match self.memo.get(&index) {
            Some(&id) => {
                self.stack.push(Slot::Value(id));
                Ok(())
            }
            None => Err(EstimateError::Malformed {
                format: FORMAT,
                offset,
                expected: "a value that was remembered".to_owned(),
                found: format!("number {index}"),
            }),
        }
    }

    fn text(&mut self, length: u64) -> Result<(), EstimateError> {
        if length > MAX_TEXT {
            return self.opaque_bytes(length);
        }
        let bytes = self
            .input
            .bytes(length, MAX_TEXT, FORMAT, "a pickled string")?;
        self.push(Value::Text(String::from_utf8_lossy(&bytes).into_owned()))
    }

    fn opaque_bytes(&mut self, length: u64) -> Result<(), EstimateError> {
        self.input.skip(length, "pickled bytes")?;
        self.push(Value::Opaque)
    }

    fn long(&mut self, length: u64) -> Result<(), EstimateError> {
        if length > 8 {
            return self.opaque_bytes(length);
        }
        let bytes = self.input.bytes(length, 8, FORMAT, "a pickled integer")?;
        // Little-endian two's complement: extend the sign.
        let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut whole = [if negative { 0xff } else { 0 }; 8];
        whole[..bytes.len()].copy_from_slice(&bytes);
        self.push(Value::Int(i64::from_le_bytes(whole)))
    }

    fn line(&mut self) -> Result<String, EstimateError> {
        let mut line = Vec::new();
        loop {
            let byte = self.input.byte("a pickled line")?;
            if byte == b'\n' {
                return Ok(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            if line.len() >= MAX_LINE {
                return Err(EstimateError::Limit {
                    format: FORMAT,
                    what: "the length of a line",
                    value: line.len() as u64 + 1,
                    limit: MAX_LINE as u64,
                });
            }
            line.push(byte);
        }
    }

    fn line_index(&mut self, offset: u64) -> Result<u64, EstimateError> {
        let line = self.line()?;
        line.parse().map_err(|_| EstimateError::Malformed {
            format: FORMAT,
            offset,
            expected: "a number".to_owned(),
            found: show(line.as_bytes()),
        })
    }
}

fn pairs(items: &[Id]) -> Vec<(Id, Id)> {
    items
        .chunks_exact(2)
        .map(|pair| (pair[0], pair[1]))
        .collect()
}

/// The element type of a storage class, and whether it is untyped (counted in bytes).
fn storage_class(class: &str) -> (Option<DType>, bool) {
    let name = class.rsplit([' ', '.']).next().unwrap_or(class);
    let dtype = match name {
        "DoubleStorage" => DType::F64,
        "FloatStorage" => DType::F32,
        "HalfStorage" => DType::F16,
        "BFloat16Storage" => DType::BF16,
        "LongStorage" => DType::I64,
        "IntStorage" | "QInt32Storage" => DType::I32,
        "ShortStorage" => DType::I16,
        "CharStorage" | "QInt8Storage" => DType::I8,
        "ByteStorage" | "QUInt8Storage" => DType::U8,
        "BoolStorage" => DType::BOOL,
        "ComplexFloatStorage" => DType::C64,
        "ComplexDoubleStorage" => DType::C128,
        "UntypedStorage" => return (None, true),
        _ => return (None, false),
    };
    (Some(dtype), false)
}

fn torch_dtype(name: &str) -> Option<DType> {
    Some(match name {
        "float8_e4m3fn" | "float8_e4m3fnuz" => DType::F8_E4M3,
        "float8_e5m2" | "float8_e5m2fnuz" => DType::F8_E5M2,
        "float8_e8m0fnu" => DType::F8_E8M0,
        "uint16" => DType::U16,
        "uint32" => DType::U32,
        "uint64" => DType::U64,
        "uint8" => DType::U8,
        "int8" => DType::I8,
        "complex32" => DType::C32,
        _ => return DType::float_by_name(name),
    })
}
