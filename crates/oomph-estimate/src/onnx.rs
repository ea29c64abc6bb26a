//! ONNX: a protobuf message, read field by field, skipping the weights' bytes.
//!
//! Only what sizes need is decoded: initializers (shape and type), the types of values, and which
//! node reads and writes which value. Field numbers are those of `onnx.proto`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{Read, Seek};

use crate::dtype::{DType, elements};
use crate::error::EstimateError;
use crate::input::Input;
use crate::model::{Activations, Format, Model, Tensor};
use crate::shapes::{Attributes, Typed, infer};

const FORMAT: &str = "ONNX";
/// Names of tensors and dimensions.
const MAX_NAME: u64 = 1 << 16;
/// Dimensions of a tensor.
const MAX_DIMENSIONS: usize = 64;
/// Nodes, names and weights; exported models of every size have fewer than a million.
const MAX_ITEMS: u64 = 16_000_000;
/// Elements of the constants whose values are read: shapes and axes.
const MAX_VALUES: usize = MAX_DIMENSIONS;
/// Bodies of `If` and `Loop` within each other.
const MAX_DEPTH: u32 = 16;

/// How to read dimensions that the file leaves open.
#[derive(Debug, Clone)]
pub struct OnnxOptions {
    /// Sizes of named dimensions (`batch_size`).
    pub dimensions: BTreeMap<String, u64>,
    /// Size of open dimensions that are named after the batch, and of open first dimensions
    /// without a name.
    pub batch: u64,
}

impl Default for OnnxOptions {
    fn default() -> Self {
        Self {
            dimensions: BTreeMap::new(),
            batch: 1,
        }
    }
}

/// Reads an ONNX model.
pub fn read_onnx<R: Read + Seek>(reader: R, options: &OnnxOptions) -> Result<Model, EstimateError> {
    read(Input::new(reader)?, options)
}

pub(crate) fn read<R: Read + Seek>(
    input: Input<R>,
    options: &OnnxOptions,
) -> Result<Model, EstimateError> {
    let mut reader = Reader {
        input,
        model: Model::new(Format::Onnx),
        shapes: HashMap::new(),
        weights: HashMap::new(),
        items: 0,
    };
    let end = reader.input.length();
    let mut graph = None;
    while let Some(field) = reader.field(end)? {
        match (field.number, field.bytes_end) {
            // ModelProto.graph
            (7, Some(end)) => graph = Some(reader.graph(end, 0)?),
            (_, Some(end)) => reader.skip_to(end)?,
            _ => {}
        }
    }
    let Some(graph) = graph else {
        return Err(EstimateError::Malformed {
            format: FORMAT,
            offset: 0,
            expected: "a model with a graph".to_owned(),
            found: "none".to_owned(),
        });
    };
    Ok(reader.finish(graph, options))
}

/// One field of a message.
struct Field {
    number: u32,
    /// Where its bytes end, if it is length-delimited; the input stands at their start.
    bytes_end: Option<u64>,
    /// Its value, if it is a varint.
    varint: u64,
}

#[derive(Default)]
struct Graph {
    nodes: Vec<Node>,
    inputs: Vec<String>,
    outputs: Vec<String>,
    weights: BTreeSet<String>,
}

#[derive(Default)]
struct Node {
    operator: String,
    inputs: Vec<String>,
    outputs: Vec<String>,
    attributes: Attributes,
    /// The tensor of a `Constant`, or with which a `ConstantOfShape` fills.
    constant: Option<Typed>,
    /// Outer values that the bodies of an `If` or `Loop` read.
    captured: Vec<String>,
}

enum Dimension {
    Known(u64),
    Named(String),
    Open,
}

struct Shape {
    dtype: DType,
    dimensions: Vec<Dimension>,
}

struct Reader<R> {
    input: Input<R>,
    model: Model,
    shapes: HashMap<String, Shape>,
    /// Initializers that have a name.
    weights: HashMap<String, Typed>,
    /// Nodes, names and weights so far, counted against [`MAX_ITEMS`].
    items: u64,
}

impl<R: Read + Seek> Reader<R> {
    fn malformed(&self, expected: &str, found: impl Into<String>) -> EstimateError {
        EstimateError::Malformed {
            format: FORMAT,
            offset: self.input.position(),
            expected: expected.to_owned(),
            found: found.into(),
        }
    }

    fn varint(&mut self, end: u64) -> Result<u64, EstimateError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            if self.input.position() >= end {
                return Err(self.malformed("the rest of a number", "the end of its message"));
            }
            let byte = self.input.byte("a number")?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.malformed("a number of at most ten bytes", "more"))
    }

    /// The next field of the message that ends at `end`; fixed-width values are skipped.
    fn field(&mut self, end: u64) -> Result<Option<Field>, EstimateError> {
        if self.input.position() >= end {
            return Ok(None);
        }
        let key = self.varint(end)?;
        let number = u32::try_from(key >> 3).unwrap_or(0);
        if number == 0 || number >= 1 << 29 {
            return Err(self.malformed("a field number", (key >> 3).to_string()));
        }
        let mut field = Field {
            number,
            bytes_end: None,
            varint: 0,
        };
        match key & 7 {
            0 => field.varint = self.varint(end)?,
            1 => self.input.skip(8, "a fixed-width number")?,
            5 => self.input.skip(4, "a fixed-width number")?,
            2 => {
                let length = self.varint(end)?;
                let start = self.input.position();
                let bytes_end = start.saturating_add(length);
                if bytes_end > self.input.length() {
                    return Err(EstimateError::Truncated {
                        what: "an ONNX message",
                        length: self.input.length(),
                    });
                }
                if bytes_end > end {
                    return Err(self.malformed(
                        &format!("a field of at most {} bytes", end - start),
                        format!("{length}"),
                    ));
                }
                field.bytes_end = Some(bytes_end);
            }
            wire => return Err(self.malformed("wire type 0, 1, 2 or 5", wire.to_string())),
        }
        Ok(Some(field))
    }

    /// Counts what is kept: two bytes of a hostile file can ask for a node.
    fn spend(&mut self) -> Result<(), EstimateError> {
        self.items += 1;
        if self.items > MAX_ITEMS {
            return Err(EstimateError::Limit {
                format: FORMAT,
                what: "the number of nodes, names and weights",
                value: self.items,
                limit: MAX_ITEMS,
            });
        }
        Ok(())
    }

    fn skip_to(&mut self, end: u64) -> Result<(), EstimateError> {
        self.input
            .skip(end.saturating_sub(self.input.position()), "an ONNX message")
    }

    fn string(&mut self, end: u64) -> Result<String, EstimateError> {
        self.spend()?;
        let length = end.saturating_sub(self.input.position());
        let bytes = self
            .input
            .bytes(length, MAX_NAME, FORMAT, "the length of a name")?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn graph(&mut self, end: u64, depth: u32) -> Result<Graph, EstimateError> {
        if depth >= MAX_DEPTH {
            return Err(EstimateError::Limit {
                format: FORMAT,
                what: "the depth of graphs",
                value: u64::from(depth),
                limit: u64::from(MAX_DEPTH),
            });
        }
        let mut graph = Graph::default();
        while let Some(field) = self.field(end)? {
            let Some(field_end) = field.bytes_end else {
                continue;
            };
            match field.number {
                1 => {
                    let node = self.node(field_end, depth)?;
                    match (&node.constant, node.outputs.first()) {
                        // A weight in all but name.
                        (Some(typed), Some(name)) if node.operator == "Constant" => {
                            graph.weights.insert(name.clone());
                            self.weights.insert(name.clone(), typed.clone());
                        }
                        _ => graph.nodes.push(node),
                    }
                }
                5 => {
                    let (name, typed) = self.weight(field_end)?;
                    graph.weights.insert(name.clone());
                    if let Some(typed) = typed {
                        self.weights.insert(name, typed);
                    }
                }
                11 => {
                    let name = self.value_info(field_end)?;
                    graph.inputs.push(name);
                }
                12 => {
                    let name = self.value_info(field_end)?;
                    graph.outputs.push(name);
                }
                13 => {
                    self.value_info(field_end)?;
                }
                15 => {
                    self.model.problem(
                        "sparse initializers are not counted; the weights are a lower bound"
                            .to_owned(),
                    );
                    self.skip_to(field_end)?;
                }
                _ => self.skip_to(field_end)?,
            }
        }
        Ok(graph)
    }

    fn node(&mut self, end: u64, depth: u32) -> Result<Node, EstimateError> {
        self.spend()?;
        let mut node = Node::default();
        while let Some(field) = self.field(end)? {
            let Some(field_end) = field.bytes_end else {
                continue;
            };
            match field.number {
                1 => {
                    let name = self.string(field_end)?;
                    node.inputs.push(name);
                }
                2 => {
                    let name = self.string(field_end)?;
                    node.outputs.push(name);
                }
                4 => node.operator = self.string(field_end)?,
                5 => self.attribute(&mut node, field_end, depth)?,
                _ => self.skip_to(field_end)?,
            }
        }
        Ok(node)
    }

    /// Reads an AttributeProto into its node: integers, texts, tensors and graphs.
    fn attribute(&mut self, node: &mut Node, end: u64, depth: u32) -> Result<(), EstimateError> {
        let mut name = String::new();
        let mut ints = Vec::new();
        let mut text = None;
        while let Some(field) = self.field(end)? {
            match (field.number, field.bytes_end) {
                (1, Some(field_end)) => name = self.string(field_end)?,
                // i; ints, unpacked or packed
                (3 | 8, None) => ints.push(field.varint.cast_signed()),
                (8, Some(field_end)) => {
                    while self.input.position() < field_end && ints.len() <= MAX_VALUES {
                        ints.push(self.varint(field_end)?.cast_signed());
                    }
                    self.skip_to(field_end)?;
                }
                (4, Some(field_end)) => {
                    let length = field_end - self.input.position();
                    if length <= MAX_NAME {
                        text = Some(self.string(field_end)?);
                    } else {
                        self.skip_to(field_end)?;
                    }
                }
                // t, tensors: the value of a `Constant`.
                (5 | 10, Some(field_end)) => node.constant = self.weight(field_end)?.1,
                // g, graphs: the body of an `If`, `Loop` or `Scan`.
                (6 | 11, Some(field_end)) => {
                    let body = self.graph(field_end, depth + 1)?;
                    if !body.nodes.is_empty() {
                        let problem = "values inside the bodies of If, Loop and Scan are not part of the activations".to_owned();
                        if !self.model.problems.contains(&problem) {
                            self.model.problem(problem);
                        }
                    }
                    for inner in body.nodes {
                        node.captured.extend(inner.inputs);
                        node.captured.extend(inner.captured);
                    }
                }
                (_, Some(field_end)) => self.skip_to(field_end)?,
                _ => {}
            }
            if ints.len() > MAX_VALUES {
                // No attribute that tells a shape is as long.
                ints.truncate(MAX_VALUES);
            }
        }
        self.spend()?;
        if let Some(text) = text {
            node.attributes.texts.insert(name, text);
        } else if !ints.is_empty() {
            node.attributes.ints.insert(name, ints);
        }
        Ok(())
    }

    /// A TensorProto; its bytes are skipped unless they are a few integers. Returns its name and,
    /// where it can be sized, its type and shape.
    fn weight(&mut self, end: u64) -> Result<(String, Option<Typed>), EstimateError> {
        self.spend()?;
        let mut name = String::new();
        let mut shape = Vec::new();
        let mut kind = 0;
        let mut raw = None;
        let mut small = None;
        let mut values = Vec::new();
        while let Some(field) = self.field(end)? {
            match (field.number, field.bytes_end) {
                // dims, unpacked or packed
                (1, None) => shape.push(field.varint),
                (1, Some(field_end)) => {
                    while self.input.position() < field_end {
                        shape.push(self.varint(field_end)?);
                        if shape.len() > MAX_DIMENSIONS {
                            break;
                        }
                    }
                    self.skip_to(field_end)?;
                }
                (2, None) => kind = field.varint,
                (8, Some(field_end)) => name = self.string(field_end)?,
                (9, Some(field_end)) => {
                    let length = field_end - self.input.position();
                    raw = Some(length);
                    if length <= 8 * MAX_VALUES as u64 {
                        small = Some(self.input.bytes(length, length, FORMAT, "a small tensor")?);
                    } else {
                        self.skip_to(field_end)?;
                    }
                }
                // int64_data, unpacked or packed
                (7, None) if values.len() < MAX_VALUES => values.push(field.varint.cast_signed()),
                (7, Some(field_end)) => {
                    while self.input.position() < field_end && values.len() < MAX_VALUES {
                        values.push(self.varint(field_end)?.cast_signed());
                    }
                    self.skip_to(field_end)?;
                }
                (_, Some(field_end)) => self.skip_to(field_end)?,
                _ => {}
            }
            if shape.len() > MAX_DIMENSIONS {
                return Err(EstimateError::Limit {
                    format: FORMAT,
                    what: "the number of a tensor's dimensions",
                    value: shape.len() as u64,
                    limit: MAX_DIMENSIONS as u64,
                });
            }
        }
        // Dimensions are signed: a negative one arrives as a huge number and overflows.
        let sized = onnx_type(kind)
            .and_then(|dtype| elements(&shape).map(|count| (dtype, count)))
            .and_then(|(dtype, count)| Some((dtype, count, dtype.bytes_for(count)?)));
        match sized {
            Some((dtype, count, bytes)) => {
                if raw.is_some_and(|raw| raw != bytes) {
                    self.model.problem(format!(
                        "tensor `{name}` has {} bytes of data, but its shape and type need {bytes}; oomph counts the latter",
                        raw.unwrap_or(0)
                    ));
                }
                self.model.tensors.push(Tensor {
                    name: name.clone(),
                    dtype,
                    elements: count,
                    bytes,
                });
                if let Some(small) = small {
                    values = small
                        .chunks_exact(8)
                        .map(|bytes| {
                            let mut whole = [0; 8];
                            whole.copy_from_slice(bytes);
                            i64::from_le_bytes(whole)
                        })
                        .collect();
                }
                let known = dtype == DType::I64 && values.len() as u64 == count;
                let typed = Typed {
                    dtype,
                    shape,
                    values: known.then_some(values),
                };
                return Ok((name, Some(typed)));
            }
            // Strings (8) are never on a GPU.
            None if kind == 8 => {}
            None => self.model.problem(format!(
                "tensor `{name}` of type {kind} and shape {shape:?} has no known size; ignored"
            )),
        }
        Ok((name, None))
    }

    /// A ValueInfoProto: notes the shape and returns the name.
    fn value_info(&mut self, end: u64) -> Result<String, EstimateError> {
        let mut name = String::new();
        let mut shape = None;
        while let Some(field) = self.field(end)? {
            match (field.number, field.bytes_end) {
                (1, Some(field_end)) => name = self.string(field_end)?,
                (2, Some(field_end)) => shape = self.value_type(field_end)?,
                (_, Some(field_end)) => self.skip_to(field_end)?,
                _ => {}
            }
        }
        if let Some(shape) = shape {
            self.shapes.insert(name.clone(), shape);
        }
        Ok(name)
    }

    /// TypeProto, of which only `tensor_type` (1) has a size.
    fn value_type(&mut self, end: u64) -> Result<Option<Shape>, EstimateError> {
        let mut shape = None;
        while let Some(field) = self.field(end)? {
            match (field.number, field.bytes_end) {
                (1, Some(field_end)) => shape = self.tensor_type(field_end)?,
                (_, Some(field_end)) => self.skip_to(field_end)?,
                _ => {}
            }
        }
        Ok(shape)
    }

    fn tensor_type(&mut self, end: u64) -> Result<Option<Shape>, EstimateError> {
        let mut dtype = None;
        let mut dimensions = None;
        while let Some(field) = self.field(end)? {
            match (field.number, field.bytes_end) {
                (1, None) => dtype = onnx_type(field.varint),
                (2, Some(field_end)) => dimensions = Some(self.dimensions(field_end)?),
                (_, Some(field_end)) => self.skip_to(field_end)?,
                _ => {}
            }
        }
        Ok(dtype
            .zip(dimensions)
            .map(|(dtype, dimensions)| Shape { dtype, dimensions }))
    }

    fn dimensions(&mut self, end: u64) -> Result<Vec<Dimension>, EstimateError> {
        let mut dimensions = Vec::new();
        while let Some(field) = self.field(end)? {
            match (field.number, field.bytes_end) {
                (1, Some(field_end)) => {
                    let dimension = self.dimension(field_end)?;
                    dimensions.push(dimension);
                    if dimensions.len() > MAX_DIMENSIONS {
                        return Err(EstimateError::Limit {
                            format: FORMAT,
                            what: "the number of a value's dimensions",
                            value: dimensions.len() as u64,
                            limit: MAX_DIMENSIONS as u64,
                        });
                    }
                }
                (_, Some(field_end)) => self.skip_to(field_end)?,
                _ => {}
            }
        }
        Ok(dimensions)
    }

    fn dimension(&mut self, end: u64) -> Result<Dimension, EstimateError> {
        self.spend()?;
        let mut dimension = Dimension::Open;
        while let Some(field) = self.field(end)? {
            match (field.number, field.bytes_end) {
                (1, None) => {
                    dimension = if field.varint.cast_signed() < 0 {
                        Dimension::Open
                    } else {
                        Dimension::Known(field.varint)
                    };
                }
                (2, Some(field_end)) => dimension = Dimension::Named(self.string(field_end)?),
                (_, Some(field_end)) => self.skip_to(field_end)?,
                _ => {}
            }
        }
        Ok(dimension)
    }

    fn finish(mut self, mut graph: Graph, options: &OnnxOptions) -> Model {
        // Exporters write tied weights as `Identity` of one another: no memory of their own.
        for node in &graph.nodes {
            if let ("Identity", [from, ..], [to, ..]) =
                (node.operator.as_str(), &node.inputs[..], &node.outputs[..])
                && graph.weights.contains(from)
            {
                graph.weights.insert(to.clone());
                if let Some(typed) = self.weights.get(from).cloned() {
                    self.weights.insert(to.clone(), typed);
                }
            }
        }
        let graph = &graph;
        let mut guesses = Guesses::default();
        let mut first_unknown = None;
        let mut known: HashMap<String, Typed> = HashMap::new();
        for name in &graph.inputs {
            if let Some(shape) = self.shapes.get(name) {
                known.insert(name.clone(), shape.resolve(options, &mut guesses));
            }
        }
        for node in &graph.nodes {
            for (index, name) in node.outputs.iter().enumerate() {
                let stated = self.shapes.get(name);
                // Numbers in the file are best; a shape inferred from the inputs is better
                // than a stated shape with open dimensions.
                let certain = stated.filter(|shape| shape.is_certain(options));
                let inputs: Vec<Option<&Typed>> = node
                    .inputs
                    .iter()
                    .map(|input| known.get(input).or_else(|| self.weights.get(input)))
                    .collect();
                let inferred = infer(
                    &node.operator,
                    &inputs,
                    &node.attributes,
                    node.constant.as_ref(),
                    (index, node.outputs.len()),
                )
                // Operators that join shapes could double the rank at each node.
                .filter(|typed| typed.shape.len() <= MAX_DIMENSIONS);
                let typed = match (certain, inferred) {
                    (Some(shape), inferred) => {
                        let mut typed = shape.resolve(options, &mut guesses);
                        typed.values = inferred
                            .filter(|inferred| inferred.shape == typed.shape)
                            .and_then(|inferred| inferred.values);
                        Some(typed)
                    }
                    (None, Some(inferred)) => Some(inferred),
                    (None, None) => stated.map(|shape| shape.resolve(options, &mut guesses)),
                };
                if let Some(typed) = typed {
                    known.insert(name.clone(), typed);
                } else if !name.is_empty() && !graph.weights.contains(name) {
                    first_unknown.get_or_insert((name, &node.operator));
                }
            }
        }
        let sizes: HashMap<&str, u64> = known
            .iter()
            .filter_map(|(name, typed)| {
                let bytes = elements(&typed.shape).and_then(|count| typed.dtype.bytes_for(count));
                Some((name.as_str(), bytes?))
            })
            .collect();
        let Guesses { named, open } = guesses;
        let activations = peak(graph, &sizes);
        for (name, size) in named {
            self.model.assumptions.push(format!(
                "dimension `{name}` assumed to be {size}; set it with --dim {name}=N"
            ));
        }
        if open > 0 {
            self.model.assumptions.push(format!(
                "{open} dimensions have neither size nor name: a first one is assumed to be the batch, {}, any other 1",
                options.batch
            ));
        }
        for name in options.dimensions.keys() {
            let exists = self.shapes.values().any(|shape| {
                shape
                    .dimensions
                    .iter()
                    .any(|dimension| matches!(dimension, Dimension::Named(named) if named == name))
            });
            if !exists {
                self.model.problem(format!(
                    "no dimension is named `{name}`; --dim {name} has no effect"
                ));
            }
        }
        if activations.unknown > 0 {
            let first = first_unknown.map_or_else(String::new, |(name, operator)| {
                format!(" (the first is `{name}`, of {operator})")
            });
            self.model.problem(format!(
                "{} of {} intermediate values have no shape in the file and oomph cannot infer it{first}, so the activations are a lower bound; onnx.shape_inference.infer_shapes may add shapes",
                activations.unknown,
                activations.unknown + activations.known
            ));
        }
        if activations.known > 0 {
            self.model.assumptions.push(
                "activations: nodes run in the file's order, each value lives from its node to its last reader, nothing is reused in place".to_owned(),
            );
        }
        self.model.activations = Some(activations);
        self.model
    }
}

/// Sizes that were not stated.
#[derive(Default)]
struct Guesses {
    named: BTreeMap<String, u64>,
    open: u64,
}

impl Shape {
    /// Whether every dimension has a number, from the file or from the user.
    fn is_certain(&self, options: &OnnxOptions) -> bool {
        self.dimensions.iter().all(|dimension| match dimension {
            Dimension::Known(_) => true,
            Dimension::Named(name) => options.dimensions.contains_key(name),
            Dimension::Open => false,
        })
    }

    fn resolve(&self, options: &OnnxOptions, guesses: &mut Guesses) -> Typed {
        let shape = self
            .dimensions
            .iter()
            .enumerate()
            .map(|(index, dimension)| match dimension {
                Dimension::Known(size) => *size,
                Dimension::Named(name) => {
                    options.dimensions.get(name).copied().unwrap_or_else(|| {
                        let size = if is_batch(name) { options.batch } else { 1 };
                        guesses.named.insert(name.clone(), size);
                        size
                    })
                }
                Dimension::Open => {
                    guesses.open += 1;
                    if index == 0 { options.batch } else { 1 }
                }
            })
            .collect();
        Typed {
            dtype: self.dtype,
            shape,
            values: None,
        }
    }
}

/// How exporters name the batch.
fn is_batch(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.contains("batch") || matches!(name.as_str(), "n" | "b" | "bs")
}

/// The most that live values take together.
fn peak(graph: &Graph, sizes: &HashMap<&str, u64>) -> Activations {
    let last = graph.nodes.len();
    // When each value is read for the last time; graph outputs are kept to the end.
    let mut last_use: HashMap<&str, usize> = HashMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        for name in node.inputs.iter().chain(&node.captured) {
            last_use.insert(name, index);
        }
    }
    for name in &graph.outputs {
        last_use.insert(name, last);
    }
    let mut frees: Vec<Vec<&str>> = vec![Vec::new(); last + 1];
    let mut live = 0_u64;
    let mut known = 0;
    let mut unknown = 0;
    let mut born = BTreeSet::new();
    let mut begin = |name: &str, at: usize, live: &mut u64| -> Option<usize> {
        if name.is_empty() || graph.weights.contains(name) || !born.insert(name.to_owned()) {
            return None;
        }
        let Some(bytes) = sizes.get(name) else {
            unknown += 1;
            return None;
        };
        known += 1;
        *live = live.saturating_add(*bytes);
        // A value without readers is freed after its node.
        Some(last_use.get(name).copied().unwrap_or(at).max(at))
    };
    for name in &graph.inputs {
        if let Some(end) = begin(name, 0, &mut live) {
            frees[end].push(name);
        }
    }
    let mut peak = live;
    for (index, node) in graph.nodes.iter().enumerate() {
        for name in &node.outputs {
            if let Some(end) = begin(name, index, &mut live) {
                frees[end].push(name);
            }
        }
        peak = peak.max(live);
        for name in &frees[index] {
            live = live.saturating_sub(sizes.get(name).copied().unwrap_or(0));
        }
    }
    Activations {
        peak_bytes: peak,
        known,
        unknown,
    }
}

/// TensorProto.DataType
pub(crate) fn onnx_type(kind: u64) -> Option<DType> {
    Some(match kind {
        1 => DType::F32,
        2 => DType::U8,
        3 => DType::I8,
        4 => DType::U16,
        5 => DType::I16,
        6 => DType::I32,
        7 => DType::I64,
        9 => DType::BOOL,
        10 => DType::F16,
        11 => DType::F64,
        12 => DType::U32,
        13 => DType::U64,
        14 => DType::C64,
        15 => DType::C128,
        16 => DType::BF16,
        17 | 18 => DType::F8_E4M3,
        19 | 20 => DType::F8_E5M2,
        21 => DType::U4,
        22 => DType::I4,
        23 => DType::F4,
        24 => DType::F8_E8M0,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn varint(mut value: u64) -> Vec<u8> {
        let mut out = Vec::new();
        loop {
            let byte = (value & 0x7f) as u8;
            value >>= 7;
            if value == 0 {
                out.push(byte);
                return out;
            }
            out.push(byte | 0x80);
        }
    }

    fn number(field: u64, value: u64) -> Vec<u8> {
        [varint(field << 3), varint(value)].concat()
    }

    fn message(field: u64, content: &[u8]) -> Vec<u8> {
        [
            varint(field << 3 | 2),
            varint(content.len() as u64),
            content.to_vec(),
        ]
        .concat()
    }

    fn value(name: &str, kind: u64, shape: &[Result<u64, &str>]) -> Vec<u8> {
        let dimensions: Vec<u8> = shape
            .iter()
            .flat_map(|size| {
                message(
                    1,
                    &match size {
                        Ok(size) => number(1, *size),
                        Err(name) => message(2, name.as_bytes()),
                    },
                )
            })
            .collect();
        let tensor = [number(1, kind), message(2, &dimensions)].concat();
        [
            message(1, name.as_bytes()),
            message(2, &message(1, &tensor)),
        ]
        .concat()
    }

    fn node(inputs: &[&str], outputs: &[&str]) -> Vec<u8> {
        let mut out = Vec::new();
        for name in inputs {
            out.extend(message(1, name.as_bytes()));
        }
        for name in outputs {
            out.extend(message(2, name.as_bytes()));
        }
        out
    }

    /// x -> (w) -> a -> b -> c, where a is read again by the last node.
    fn small() -> Vec<u8> {
        let weight = [
            number(1, 4),
            number(1, 8),
            number(2, 1),
            message(8, b"w"),
            message(9, &[0; 128]),
        ]
        .concat();
        let graph = [
            message(1, &node(&["x", "w"], &["a"])),
            message(1, &node(&["a"], &["b"])),
            message(1, &node(&["b", "a"], &["c"])),
            message(5, &weight),
            message(11, &value("x", 1, &[Err("batch"), Ok(4)])),
            message(12, &value("c", 1, &[Err("batch"), Ok(8)])),
            message(13, &value("a", 1, &[Err("batch"), Ok(8)])),
            message(13, &value("b", 10, &[Err("batch"), Ok(8)])),
        ]
        .concat();
        [number(1, 8), message(7, &graph)].concat()
    }

    #[test]
    fn a_small_model() {
        let model = read_onnx(Cursor::new(small()), &OnnxOptions::default()).expect("reads");
        assert_eq!(model.weight_bytes(), 128);
        let activations = model.activations.expect("activations");
        // a 32 + b 16 + c 32; x (16) is gone by then.
        assert_eq!(activations.peak_bytes, 80);
        assert_eq!((activations.known, activations.unknown), (4, 0));
        assert!(model.assumptions[0].contains("`batch` assumed to be 1"));
        let options = OnnxOptions {
            dimensions: [("batch".to_owned(), 10)].into(),
            ..OnnxOptions::default()
        };
        let model = read_onnx(Cursor::new(small()), &options).expect("reads");
        assert_eq!(model.activations.expect("activations").peak_bytes, 800);
        assert_eq!(model.problems, Vec::<String>::new());
    }

    #[test]
    fn every_truncation_is_an_error() {
        let whole = small();
        for length in 0..whole.len() {
            assert!(
                read_onnx(Cursor::new(&whole[..length]), &OnnxOptions::default()).is_err(),
                "{length}"
            );
        }
    }

    #[test]
    fn graphs_within_graphs_end() {
        let mut graph = Vec::new();
        for _ in 0..40 {
            graph = message(1, &message(5, &message(6, &graph)));
        }
        let error = read_onnx(Cursor::new(message(7, &graph)), &OnnxOptions::default())
            .expect_err("too deep");
        assert!(matches!(error, EstimateError::Limit { .. }), "{error}");
    }
}
