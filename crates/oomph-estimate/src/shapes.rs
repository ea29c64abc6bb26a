//! Shapes of ONNX values that the file leaves out, for the operators of which most networks consist.
//!
//! Sizes are numbers here: open dimensions were given theirs before. An operator that is not
//! listed, or whose shape depends on values, gives `None`, and the value counts as unknown.

use std::collections::HashMap;

use crate::dtype::DType;

/// A value with its type and sizes, and its elements where they are few, constant and int64 (the
/// shapes that `Reshape` and its kin are given).
#[derive(Debug, Clone)]
pub(crate) struct Typed {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<u64>,
    pub(crate) values: Option<Vec<i64>>,
}

/// What an operator needs beside its inputs.
#[derive(Debug, Default)]
pub(crate) struct Attributes {
    pub(crate) ints: HashMap<String, Vec<i64>>,
    /// `auto_pad` other than `NOTSET`, and other texts.
    pub(crate) texts: HashMap<String, String>,
}

impl Attributes {
    fn int(&self, name: &str) -> Option<i64> {
        self.ints.get(name)?.first().copied()
    }

    fn list(&self, name: &str) -> Option<&[i64]> {
        self.ints.get(name).map(Vec::as_slice)
    }
}

/// Constants longer than this are no shapes.
const MAX_VALUES: usize = 64;

/// Type and shape of an operator's output, and its values where it computes with shapes. `output`
/// is which of how many; most operators' further outputs (masks, statistics) are unknown.
pub(crate) fn infer(
    operator: &str,
    inputs: &[Option<&Typed>],
    attributes: &Attributes,
    constant: Option<&Typed>,
    output: (usize, usize),
) -> Option<Typed> {
    match operator {
        "Split" => return split(inputs, attributes, output),
        "LSTM" | "GRU" | "RNN" => return recurrent(inputs, attributes, output.0),
        _ if output.0 > 0 => return None,
        _ => {}
    }
    let mut typed = shape(operator, inputs, attributes)?;
    if operator == "ConstantOfShape"
        && let Some(constant) = constant
    {
        typed.dtype = constant.dtype;
        let fill = constant.values.as_deref().and_then(<[i64]>::first);
        let count = crate::dtype::elements(&typed.shape).unwrap_or(u64::MAX);
        if let Some(&fill) = fill
            && count <= MAX_VALUES as u64
        {
            typed.values = Some(vec![fill; count as usize]);
        }
    }
    if typed.values.is_none() && matches!(typed.dtype, DType::I64 | DType::BOOL) {
        typed.values = values(operator, inputs, attributes).filter(|values| {
            values.len() <= MAX_VALUES
                && crate::dtype::elements(&typed.shape) == Some(values.len() as u64)
        });
    }
    Some(typed)
}

fn split(
    inputs: &[Option<&Typed>],
    attributes: &Attributes,
    (index, count): (usize, usize),
) -> Option<Typed> {
    let mut typed = inputs.first().copied().flatten()?.clone();
    let axis = axis(attributes.int("axis").unwrap_or(0), typed.shape.len())?;
    let size = typed.shape.get_mut(axis)?;
    let sizes = match inputs.get(1) {
        Some(sizes) => Some((*sizes)?.values.as_deref()?),
        None => attributes.list("split"),
    };
    *size = if let Some(sizes) = sizes {
        u64::try_from(*sizes.get(index)?).ok()?
    } else {
        let each = size.div_ceil(count as u64);
        // The last one takes what is left.
        size.checked_sub(each.checked_mul(index as u64)?)?.min(each)
    };
    typed.values = None;
    Some(typed)
}

/// Y, Y_h and Y_c of a recurrent layer; weights W are [directions, gates × hidden, input] and R
/// are [directions, gates × hidden, hidden].
fn recurrent(inputs: &[Option<&Typed>], attributes: &Attributes, index: usize) -> Option<Typed> {
    let first = inputs.first().copied().flatten()?;
    let weights = inputs.get(2).copied().flatten()?;
    let (&[length, batch, _], &[directions, _, hidden]) =
        (first.shape.as_slice(), weights.shape.as_slice())
    else {
        return None;
    };
    if attributes.int("layout").unwrap_or(0) != 0 {
        return None;
    }
    let shape = match index {
        0 => vec![length, directions, batch, hidden],
        1 | 2 => vec![directions, batch, hidden],
        _ => return None,
    };
    Some(Typed {
        dtype: first.dtype,
        shape,
        values: None,
    })
}

/// What exporters compute with shapes: parts of them, joined, scaled, chosen.
fn values(operator: &str, inputs: &[Option<&Typed>], attributes: &Attributes) -> Option<Vec<i64>> {
    let at = |index: usize| inputs.get(index).copied().flatten();
    let of = |index: usize| at(index)?.values.as_deref();
    match operator {
        "Identity" | "Cast" | "Unsqueeze" | "Squeeze" | "Reshape" => of(0).map(<[i64]>::to_vec),
        "Shape" => at(0)?
            .shape
            .iter()
            .map(|&size| i64::try_from(size).ok())
            .collect(),
        "Gather" => {
            let from = of(0)?;
            of(1)?
                .iter()
                .map(|&index| from.get(axis(index, from.len())?).copied())
                .collect()
        }
        "Concat" => {
            let mut joined = Vec::new();
            for index in 0..inputs.len() {
                joined.extend_from_slice(of(index)?);
                if joined.len() > MAX_VALUES {
                    return None;
                }
            }
            Some(joined)
        }
        "Add" | "Sub" | "Mul" | "Div" | "Mod" => {
            let (a, b) = (of(0)?, of(1)?);
            pairs(a, b)?
                .map(|(a, b)| match operator {
                    "Add" => a.checked_add(b),
                    "Sub" => a.checked_sub(b),
                    "Mul" => a.checked_mul(b),
                    "Div" => a.checked_div(b),
                    _ => a.checked_rem_euclid(b),
                })
                .collect()
        }
        "Equal" => Some(
            pairs(of(0)?, of(1)?)?
                .map(|(a, b)| i64::from(a == b))
                .collect(),
        ),
        "Where" => {
            let condition = of(0)?;
            let chosen: Vec<(i64, i64)> = pairs(of(1)?, of(2)?)?.collect();
            if condition.len() != chosen.len() {
                return None;
            }
            Some(
                condition
                    .iter()
                    .zip(chosen)
                    .map(|(&yes, (a, b))| if yes == 0 { b } else { a })
                    .collect(),
            )
        }
        "Slice" => {
            let from = of(0)?;
            let [range] = slices(at(0)?, inputs, attributes)?[..] else {
                return None;
            };
            let (start, step, count) = range;
            (0..count)
                .map(|index| {
                    let offset = i64::try_from(index).ok()?.checked_mul(step)?;
                    from.get(usize::try_from(start.checked_add(offset)?).ok()?)
                        .copied()
                })
                .collect()
        }
        _ => None,
    }
}

/// Elements side by side, a single one against each.
fn pairs<'a>(a: &'a [i64], b: &'a [i64]) -> Option<impl Iterator<Item = (i64, i64)> + 'a> {
    let count = a.len().max(b.len());
    if (a.len() != count && a.len() != 1) || (b.len() != count && b.len() != 1) {
        return None;
    }
    Some((0..count).map(move |index| {
        (
            a.get(index).or(a.first()).copied().unwrap_or(0),
            b.get(index).or(b.first()).copied().unwrap_or(0),
        )
    }))
}

/// Start, step and number of elements that `Slice` takes of each dimension.
fn slices(
    from: &Typed,
    inputs: &[Option<&Typed>],
    attributes: &Attributes,
) -> Option<Vec<(i64, i64, u64)>> {
    let mut ranges: Vec<(i64, i64, u64)> = from.shape.iter().map(|&size| (0, 1, size)).collect();
    // Inputs since opset 10, attributes before; an input left out is not the same as an unknown
    // one.
    let given = |index: usize, name: &str| -> Option<Option<&[i64]>> {
        match inputs.get(index) {
            Some(Some(typed)) => Some(Some(typed.values.as_deref()?)),
            Some(None) => None,
            None => Some(attributes.list(name)),
        }
    };
    let starts = given(1, "starts")??;
    let ends = given(2, "ends")??;
    let axes = given(3, "axes")?;
    let steps = given(4, "steps")?;
    for (index, (&start, &end)) in starts.iter().zip(ends).enumerate() {
        let at = match axes {
            Some(axes) => axis(*axes.get(index)?, from.shape.len())?,
            None => index,
        };
        let step = match steps {
            Some(steps) => *steps.get(index)?,
            None => 1,
        };
        let size = i64::try_from(*from.shape.get(at)?).ok()?;
        // Backwards is rare and has other bounds.
        if step < 1 {
            return None;
        }
        let clamp = |bound: i64| {
            if bound < 0 {
                bound.saturating_add(size)
            } else {
                bound
            }
            .clamp(0, size)
        };
        let (start, end) = (clamp(start), clamp(end));
        let length = u64::try_from(end.checked_sub(start)?.max(0)).ok()?;
        *ranges.get_mut(at)? = (start, step, length.div_ceil(u64::try_from(step).ok()?));
    }
    Some(ranges)
}

/// A node of the graph whose output is wanted.
struct Node<'a> {
    operator: &'a str,
    inputs: &'a [Option<&'a Typed>],
    attributes: &'a Attributes,
}

impl Node<'_> {
    fn first(&self) -> Option<&Typed> {
        self.inputs.first().copied().flatten()
    }

    fn second(&self) -> Option<&Typed> {
        self.inputs.get(1).copied().flatten()
    }
}

/// A value of which no numbers are known.
fn value_of(dtype: DType, shape: Vec<u64>) -> Typed {
    Typed {
        dtype,
        shape,
        values: None,
    }
}

fn shape(operator: &str, inputs: &[Option<&Typed>], attributes: &Attributes) -> Option<Typed> {
    let node = Node {
        operator,
        inputs,
        attributes,
    };
    match operator {
        "Constant" | "ConstantOfShape" | "Shape" => constant(&node),
        "ReduceMean" | "ReduceSum" | "ReduceMax" | "ReduceMin" | "ReduceL2" | "ReduceProd"
        | "ArgMax" | "ArgMin" => reduction(&node),
        "Conv" | "MaxPool" | "AveragePool" | "GlobalAveragePool" | "GlobalMaxPool" => {
            windowed(&node)
        }
        "Gemm" => gemm(&node),
        "MatMul" => matrix_product(&node),
        "Slice" | "Expand" | "Flatten" | "Concat" | "Transpose" | "Reshape" | "Unsqueeze"
        | "Squeeze" | "Gather" => rearranged(&node),
        _ => elementwise(&node),
    }
}

/// Each element of the output follows from the elements at its place.
fn elementwise(node: &Node) -> Option<Typed> {
    let first = node.first();
    match node.operator {
        "Relu"
        | "LeakyRelu"
        | "PRelu"
        | "Elu"
        | "Selu"
        | "Celu"
        | "Sigmoid"
        | "HardSigmoid"
        | "HardSwish"
        | "Tanh"
        | "Gelu"
        | "Mish"
        | "Softplus"
        | "Softsign"
        | "Clip"
        | "Erf"
        | "Exp"
        | "Log"
        | "Sqrt"
        | "Neg"
        | "Abs"
        | "Reciprocal"
        | "Floor"
        | "Ceil"
        | "Round"
        | "Sin"
        | "Cos"
        | "Identity"
        | "Dropout"
        | "Softmax"
        | "LogSoftmax"
        | "BatchNormalization"
        | "InstanceNormalization"
        | "LayerNormalization"
        | "GroupNormalization"
        | "LpNormalization"
        | "LRN"
        | "CumSum"
        | "Trilu" => Some(value_of(first?.dtype, first?.shape.clone())),
        "Not" | "IsNaN" => Some(value_of(DType::BOOL, first?.shape.clone())),
        "Cast" => {
            let to = u64::try_from(node.attributes.int("to")?).ok()?;
            Some(value_of(crate::onnx::onnx_type(to)?, first?.shape.clone()))
        }
        "Add" | "Sub" | "Mul" | "Div" | "Pow" | "Min" | "Max" | "Mod" | "Sum" | "Mean" => {
            Some(value_of(first?.dtype, broadcast_all(node.inputs)?))
        }
        "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" | "And" | "Or" | "Xor" => {
            Some(value_of(DType::BOOL, broadcast_all(node.inputs)?))
        }
        "Where" => Some(value_of(node.second()?.dtype, broadcast_all(node.inputs)?)),
        _ => None,
    }
}

/// Values that do not depend on the numbers of a tensor.
fn constant(node: &Node) -> Option<Typed> {
    match node.operator {
        "Shape" => Some(value_of(DType::I64, vec![node.first()?.shape.len() as u64])),
        // The type is that of an attribute, fp32 where it is left out; shapes are what count.
        "ConstantOfShape" => Some(value_of(
            DType::F32,
            sizes(node.first()?.values.as_deref()?)?,
        )),
        _ => {
            let values = node
                .attributes
                .list("value_ints")
                .or(node.attributes.list("value_int"))?;
            let scalar = node.attributes.ints.contains_key("value_int");
            Some(Typed {
                dtype: DType::I64,
                shape: if scalar {
                    Vec::new()
                } else {
                    vec![values.len() as u64]
                },
                values: Some(values.to_vec()),
            })
        }
    }
}

fn sizes(values: &[i64]) -> Option<Vec<u64>> {
    values
        .iter()
        .map(|&size| u64::try_from(size).ok())
        .collect()
}

/// Some dimensions become one element, or go.
fn reduction(node: &Node) -> Option<Typed> {
    let index = node.operator.starts_with("Arg");
    let axes: Option<Vec<i64>> = if index {
        Some(vec![node.attributes.int("axis").unwrap_or(0)])
    } else {
        match node.inputs.get(1) {
            Some(axes) => Some((*axes)?.values.clone()?),
            None => node.attributes.list("axes").map(<[i64]>::to_vec),
        }
    };
    let shape = &node.first()?.shape;
    let keep = node.attributes.int("keepdims").unwrap_or(1) != 0;
    let reduced: Vec<i64> = axes.unwrap_or_else(|| (0..shape.len() as i64).collect());
    let mut gone = Vec::new();
    for at in reduced {
        gone.push(axis(at, shape.len())?);
    }
    let left = shape
        .iter()
        .enumerate()
        .filter(|(at, _)| keep || !gone.contains(at))
        .map(|(at, &size)| if gone.contains(&at) { 1 } else { size })
        .collect();
    Some(value_of(
        if index {
            DType::I64
        } else {
            node.first()?.dtype
        },
        left,
    ))
}

/// Windows that move over the spatial dimensions.
fn windowed(node: &Node) -> Option<Typed> {
    let first = node.first()?;
    let shape = match node.operator {
        "Conv" => {
            let weight = node.second()?;
            let mut shape = first.shape.get(..1)?.to_vec();
            shape.push(*weight.shape.first()?);
            shape.extend(windows(
                first.shape.get(2..)?,
                weight.shape.get(2..)?,
                node.attributes,
            )?);
            shape
        }
        "MaxPool" | "AveragePool" => {
            let kernel = sizes(node.attributes.list("kernel_shape")?)?;
            let mut shape = first.shape.get(..2)?.to_vec();
            shape.extend(windows(first.shape.get(2..)?, &kernel, node.attributes)?);
            shape
        }
        _ => {
            let mut pooled = first.shape.get(..2)?.to_vec();
            pooled.resize(first.shape.len(), 1);
            pooled
        }
    };
    Some(value_of(first.dtype, shape))
}

/// A product of two matrices, each of which may be transposed.
fn gemm(node: &Node) -> Option<Typed> {
    let [a, b] = [node.first()?, node.second()?];
    let side = |value: &Typed, transposed: &str, index: usize| {
        let flip = node.attributes.int(transposed).unwrap_or(0) != 0;
        value
            .shape
            .get(if flip { 1 - index } else { index })
            .copied()
    };
    Some(value_of(
        a.dtype,
        vec![side(a, "transA", 0)?, side(b, "transB", 1)?],
    ))
}

/// A product of matrices or of batches of them.
fn matrix_product(node: &Node) -> Option<Typed> {
    let [a, b] = [node.first()?, node.second()?];
    // Vectors are promoted and squeezed again; leave those to the exporter.
    let (rows, a_batch) = a
        .shape
        .split_last_chunk::<2>()
        .map(|(batch, m)| (m[0], batch))?;
    let (columns, b_batch) = b
        .shape
        .split_last_chunk::<2>()
        .map(|(batch, m)| (m[1], batch))?;
    let mut shape = broadcast(a_batch, b_batch)?;
    shape.extend([rows, columns]);
    Some(value_of(a.dtype, shape))
}

/// The same elements in another shape, some of them, or some more than once.
fn rearranged(node: &Node) -> Option<Typed> {
    let first = node.first()?;
    let shape = match node.operator {
        "Slice" => {
            let ranges = slices(first, node.inputs, node.attributes)?;
            ranges.iter().map(|(_, _, count)| *count).collect()
        }
        "Expand" => broadcast(&first.shape, &sizes(node.second()?.values.as_deref()?)?)?,
        "Flatten" => {
            let axis = axis(
                node.attributes.int("axis").unwrap_or(1),
                first.shape.len() + 1,
            )?;
            let (rows, columns) = first.shape.split_at_checked(axis)?;
            vec![
                crate::dtype::elements(rows)?,
                crate::dtype::elements(columns)?,
            ]
        }
        "Concat" => concatenated(node, first)?,
        "Transpose" => transposed(node, first)?,
        "Reshape" => reshape(
            &first.shape,
            node.second()?.values.as_deref()?,
            node.attributes,
        )?,
        "Gather" => {
            let indices = node.second()?;
            let axis = axis(node.attributes.int("axis").unwrap_or(0), first.shape.len())?;
            let mut gathered = first.shape.get(..axis)?.to_vec();
            gathered.extend(&indices.shape);
            gathered.extend(first.shape.get(axis + 1..)?);
            gathered
        }
        _ => {
            let axes = node
                .second()
                .and_then(|axes| axes.values.as_deref())
                .or_else(|| node.attributes.list("axes"))?;
            squeeze(&first.shape, axes, node.operator == "Unsqueeze")?
        }
    };
    Some(value_of(first.dtype, shape))
}

fn concatenated(node: &Node, first: &Typed) -> Option<Vec<u64>> {
    let mut shape = first.shape.clone();
    let axis = axis(node.attributes.int("axis")?, shape.len())?;
    let mut total = 0_u64;
    for input in node.inputs {
        total = total.checked_add(*input.as_ref()?.shape.get(axis)?)?;
    }
    *shape.get_mut(axis)? = total;
    Some(shape)
}

fn transposed(node: &Node, first: &Typed) -> Option<Vec<u64>> {
    let shape = &first.shape;
    match node.attributes.list("perm") {
        Some(order) if order.len() == shape.len() => order
            .iter()
            .map(|&index| shape.get(usize::try_from(index).ok()?).copied())
            .collect(),
        Some(_) => None,
        None => Some(shape.iter().rev().copied().collect()),
    }
}

/// Where windows of size `kernel` fit, per spatial dimension.
fn windows(input: &[u64], kernel: &[u64], attributes: &Attributes) -> Option<Vec<u64>> {
    if input.len() != kernel.len() {
        return None;
    }
    let at = |name: &str, index: usize, default: u64| match attributes.list(name) {
        Some(list) => u64::try_from(*list.get(index)?).ok(),
        None => Some(default),
    };
    let auto = attributes.texts.get("auto_pad").map(String::as_str);
    let round_up = attributes.int("ceil_mode").unwrap_or(0) != 0;
    (0..input.len())
        .map(|index| {
            let stride = at("strides", index, 1)?;
            if stride == 0 {
                return None;
            }
            let size = *input.get(index)?;
            if matches!(auto, Some("SAME_UPPER" | "SAME_LOWER")) {
                return Some(size.div_ceil(stride));
            }
            let padding = if auto == Some("VALID") {
                0
            } else {
                at("pads", index, 0)?.checked_add(at("pads", index + input.len(), 0)?)?
            };
            let reach = kernel
                .get(index)?
                .checked_sub(1)?
                .checked_mul(at("dilations", index, 1)?)?
                .checked_add(1)?;
            let room = size.checked_add(padding)?.checked_sub(reach)?;
            let steps = if round_up {
                room.div_ceil(stride)
            } else {
                room / stride
            };
            steps.checked_add(1)
        })
        .collect()
}

fn broadcast_all(inputs: &[Option<&Typed>]) -> Option<Vec<u64>> {
    let mut shape = Vec::new();
    for input in inputs {
        shape = broadcast(&shape, &input.as_ref()?.shape)?;
    }
    Some(shape)
}

fn broadcast(a: &[u64], b: &[u64]) -> Option<Vec<u64>> {
    let length = a.len().max(b.len());
    let at = |shape: &[u64], index: usize| {
        (index + shape.len())
            .checked_sub(length)
            .and_then(|index| shape.get(index))
            .copied()
            .unwrap_or(1)
    };
    (0..length)
        .map(|index| match (at(a, index), at(b, index)) {
            (a, b) if a == b => Some(a),
            (1, size) | (size, 1) => Some(size),
            _ => None,
        })
        .collect()
}

fn axis(axis: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    let positive = if axis < 0 {
        axis.checked_add(rank)?
    } else {
        axis
    };
    (0..rank)
        .contains(&positive)
        .then(|| usize::try_from(positive).ok())?
}

/// 0 keeps a size (unless `allowzero`), −1 takes what is left.
fn reshape(from: &[u64], wanted: &[i64], attributes: &Attributes) -> Option<Vec<u64>> {
    let keep_zero = attributes.int("allowzero").unwrap_or(0) != 0;
    let mut shape = Vec::with_capacity(wanted.len());
    let mut rest = None;
    for (index, &size) in wanted.iter().enumerate() {
        shape.push(match size {
            -1 if rest.is_none() => {
                rest = Some(index);
                1
            }
            0 if !keep_zero => *from.get(index)?,
            size => u64::try_from(size).ok()?,
        });
    }
    let total = crate::dtype::elements(from)?;
    let others = crate::dtype::elements(&shape)?;
    if let Some(index) = rest {
        if others == 0 || !total.is_multiple_of(others) {
            return None;
        }
        *shape.get_mut(index)? = total / others;
    } else if total != others {
        return None;
    }
    Some(shape)
}

fn squeeze(from: &[u64], axes: &[i64], insert: bool) -> Option<Vec<u64>> {
    let rank = if insert {
        from.len() + axes.len()
    } else {
        from.len()
    };
    let axes: Option<Vec<usize>> = axes.iter().map(|&at| axis(at, rank)).collect();
    let axes = axes?;
    if !insert {
        return Some(
            from.iter()
                .enumerate()
                .filter(|(index, _)| !axes.contains(index))
                .map(|(_, size)| *size)
                .collect(),
        );
    }
    let mut sizes = from.iter();
    (0..rank)
        .map(|index| {
            if axes.contains(&index) {
                Some(1)
            } else {
                sizes.next().copied()
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(shape: &[u64]) -> Typed {
        Typed {
            dtype: DType::F32,
            shape: shape.to_vec(),
            values: None,
        }
    }

    fn shape_of(operator: &str, inputs: &[&Typed], ints: &[(&str, &[i64])]) -> Option<Vec<u64>> {
        let attributes = Attributes {
            ints: ints
                .iter()
                .map(|(name, values)| ((*name).to_owned(), values.to_vec()))
                .collect(),
            ..Attributes::default()
        };
        let inputs: Vec<Option<&Typed>> = inputs.iter().map(|&input| Some(input)).collect();
        infer(operator, &inputs, &attributes, None, (0, 1)).map(|typed| typed.shape)
    }

    #[test]
    fn operators() {
        let image = value(&[2, 3, 224, 224]);
        let kernel = value(&[64, 3, 7, 7]);
        assert_eq!(
            shape_of(
                "Conv",
                &[&image, &kernel],
                &[("strides", &[2, 2]), ("pads", &[3, 3, 3, 3])]
            ),
            Some(vec![2, 64, 112, 112])
        );
        assert_eq!(
            shape_of(
                "MaxPool",
                &[&image],
                &[
                    ("kernel_shape", &[3, 3]),
                    ("strides", &[2, 2]),
                    ("pads", &[1, 1, 1, 1])
                ]
            ),
            Some(vec![2, 3, 112, 112])
        );
        assert_eq!(shape_of("Flatten", &[&image], &[]), Some(vec![2, 150_528]));
        assert_eq!(
            shape_of("Add", &[&image, &value(&[3, 1, 1])], &[]),
            Some(vec![2, 3, 224, 224])
        );
        assert_eq!(shape_of("Add", &[&image, &value(&[5])], &[]), None);
        assert_eq!(
            shape_of(
                "MatMul",
                &[&value(&[8, 12, 7, 64]), &value(&[8, 12, 64, 7])],
                &[]
            ),
            Some(vec![8, 12, 7, 7])
        );
        assert_eq!(
            shape_of(
                "Gemm",
                &[&value(&[4, 9]), &value(&[10, 9])],
                &[("transB", &[1])]
            ),
            Some(vec![4, 10])
        );
        assert_eq!(
            shape_of("Concat", &[&image, &image], &[("axis", &[-3])]),
            Some(vec![2, 6, 224, 224])
        );
        assert_eq!(
            shape_of("Transpose", &[&value(&[1, 2, 3])], &[("perm", &[0, 2, 1])]),
            Some(vec![1, 3, 2])
        );
        let wanted = Typed {
            values: Some(vec![0, -1]),
            ..value(&[2])
        };
        assert_eq!(
            shape_of("Reshape", &[&image, &wanted], &[]),
            Some(vec![2, 150_528])
        );
        assert_eq!(
            shape_of("Gather", &[&value(&[1000, 64]), &value(&[2, 7])], &[]),
            Some(vec![2, 7, 64])
        );
        assert_eq!(
            shape_of("Unsqueeze", &[&value(&[2, 3])], &[("axes", &[0, -1])]),
            Some(vec![1, 2, 3, 1])
        );
        let split = |index| {
            let attributes = Attributes {
                ints: [("axis".to_owned(), vec![-1])].into(),
                ..Attributes::default()
            };
            infer(
                "Split",
                &[Some(&value(&[2, 7]))],
                &attributes,
                None,
                (index, 3),
            )
            .map(|typed| typed.shape)
        };
        assert_eq!(split(0), Some(vec![2, 3]));
        assert_eq!(split(2), Some(vec![2, 1]));
        assert_eq!(split(3), None);
        assert_eq!(shape_of("NonZero", &[&image], &[]), None);
    }

    #[test]
    fn shapes_that_are_computed_from_shapes() {
        let ints = |values: &[i64]| Typed {
            dtype: DType::I64,
            shape: vec![values.len() as u64],
            values: Some(values.to_vec()),
        };
        let run = |operator: &str, inputs: &[&Typed], axis: i64| {
            let inputs: Vec<Option<&Typed>> = inputs.iter().map(|&input| Some(input)).collect();
            let attributes = Attributes {
                ints: [("axis".to_owned(), vec![axis])].into(),
                ..Attributes::default()
            };
            infer(operator, &inputs, &attributes, None, (0, 1)).expect(operator)
        };
        // x.view(x.size(0), -1, 12, 64).transpose(1, 2), as exporters write it.
        let x = value(&[8, 197, 768]);
        let sizes = run("Shape", &[&x], 0);
        assert_eq!(sizes.values.as_deref(), Some([8, 197, 768].as_slice()));
        let zero = Typed {
            shape: Vec::new(),
            ..ints(&[0])
        };
        let batch = run("Gather", &[&sizes, &zero], 0);
        assert_eq!(batch.shape, Vec::<u64>::new());
        let batch = run("Unsqueeze", &[&batch, &ints(&[0])], 0);
        let wanted = run("Concat", &[&batch, &ints(&[-1, 12, 64])], 0);
        assert_eq!(wanted.values.as_deref(), Some([8, -1, 12, 64].as_slice()));
        assert_eq!(run("Reshape", &[&x, &wanted], 0).shape, [8, 197, 12, 64]);
        let slice = run("Slice", &[&x, &ints(&[0]), &ints(&[1]), &ints(&[1])], 0);
        assert_eq!(slice.shape, [8, 1, 768]);
        let last = run("Slice", &[&sizes, &ints(&[-2]), &ints(&[i64::MAX])], 0);
        assert_eq!(last.values.as_deref(), Some([197, 768].as_slice()));
        assert_eq!(
            run("Div", &[&last, &ints(&[2])], 0).values.as_deref(),
            Some([98, 384].as_slice())
        );
        assert_eq!(run("ReduceMean", &[&x, &ints(&[-1])], 0).shape, [8, 197, 1]);
        assert_eq!(
            run("Expand", &[&value(&[1, 1, 768]), &ints(&[8, 1, 1])], 0).shape,
            [8, 1, 768]
        );
    }

    #[test]
    fn nonsense_is_unknown() {
        let image = value(&[2, 3, 4, 4]);
        let kernel = value(&[8, 3, 9, 9]);
        assert_eq!(shape_of("Conv", &[&image, &kernel], &[]), None);
        assert_eq!(
            shape_of("Conv", &[&image, &kernel], &[("strides", &[0, 0])]),
            None
        );
        assert_eq!(shape_of("Conv", &[&value(&[]), &value(&[])], &[]), None);
        assert_eq!(
            shape_of("Flatten", &[&image], &[("axis", &[i64::MIN])]),
            None
        );
        assert_eq!(
            shape_of("Concat", &[&image], &[("axis", &[i64::MAX])]),
            None
        );
        assert_eq!(
            shape_of("Transpose", &[&image], &[("perm", &[0, 9, 1, 2])]),
            None
        );
        assert_eq!(
            infer("Relu", &[], &Attributes::default(), None, (0, 1)).map(|t| t.shape),
            None
        );
        assert_eq!(
            infer(
                "MatMul",
                &[None, None],
                &Attributes::default(),
                None,
                (0, 1)
            )
            .map(|t| t.shape),
            None
        );
    }
}
