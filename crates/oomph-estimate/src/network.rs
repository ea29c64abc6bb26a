//! The operators of known networks, as transformers runs them, written on a tape.
//!
//! Attention is `scaled_dot_product_attention`, without a mask for padding; losses are those of the
//! model classes. Each function here stands for one line or one module of transformers.

use crate::structure::{Activation, Body, Head, Structure};
use crate::tape::{Operator, Parameter, Tape, Value};

/// How the network is run.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    pub(crate) batch: f64,
    pub(crate) tokens: f64,
    /// Bytes of one element of the weights.
    pub(crate) size: f64,
    /// Bytes of one element where autocast computes.
    pub(crate) autocast: Option<f64>,
    /// Whether gradients are computed: dropout works, and there is a loss.
    pub(crate) train: bool,
    pub(crate) checkpointing: bool,
    pub(crate) adapter: Option<AdapterSetting>,
}

/// Low-rank matrices beside frozen layers.
#[derive(Debug, Clone)]
pub(crate) struct AdapterSetting {
    pub(crate) rank: f64,
    pub(crate) modules: Vec<String>,
    pub(crate) dropout: bool,
}

/// Adapters are trained in fp32 whatever the model is in.
pub(crate) const ADAPTER_SIZE: f64 = 4.0;

/// Writes a pass through the network.
pub(crate) fn tape(structure: &Structure, setting: &Setting) -> Tape {
    let mut network = Network {
        tape: Tape::default(),
        s: structure,
        set: setting,
        rows: setting.batch * setting.tokens,
        frozen: setting.adapter.is_some(),
        embedding: None,
    };
    match &structure.body {
        Body::Decoder { .. } => network.decoder(),
        Body::Gpt2 => network.gpt2(),
        Body::Bert { .. } => network.bert(),
        Body::Vit { .. } => network.vit(),
        Body::T5 { .. } => network.t5(),
        Body::Whisper { .. } => network.whisper(),
    }
    network.tape
}

struct Network<'a> {
    tape: Tape,
    s: &'a Structure,
    set: &'a Setting,
    /// Tokens of the whole batch.
    rows: f64,
    /// Whether the weights get no gradients.
    frozen: bool,
    /// The table of the embedding, which a tied head uses again.
    embedding: Option<Parameter>,
}

impl Network<'_> {
    // Operators.

    /// Bytes of an element of what products compute.
    fn compute(&self) -> f64 {
        self.set.autocast.unwrap_or(self.set.size)
    }

    fn gradient(&self, values: &[Value]) -> bool {
        self.set.train && values.iter().any(|&value| self.tape.needs_gradient(value))
    }

    /// An operator with one output.
    fn op(&mut self, elements: f64, size: f64, mut operator: Operator) -> Value {
        let gradient =
            self.gradient(&operator.reads) || self.set.train && !operator.parameters.is_empty();
        let out = self.tape.value(elements, size, gradient);
        operator.writes.insert(0, out);
        self.tape.push(operator);
        out
    }

    /// A parameter's gradient, unless it is frozen.
    fn weight(&mut self, elements: f64) -> Vec<(Parameter, f64)> {
        if self.frozen {
            return Vec::new();
        }
        let parameter = self.tape.parameter();
        vec![(parameter, elements * self.set.size)]
    }

    /// An elementwise function of one value.
    fn map(&mut self, x: Value, saves: Saves) -> Value {
        let (elements, size) = (self.tape.elements(x), self.tape.size(x));
        let reads = vec![x];
        let keeps_input = self.gradient(&reads) && saves == Saves::Input;
        let kept = if keeps_input { vec![x] } else { Vec::new() };
        let out = self.op(
            elements,
            size,
            Operator {
                reads,
                saves: kept,
                ..Operator::default()
            },
        );
        if saves == Saves::Output {
            self.also_save(out);
        }
        out
    }

    /// Lets the last operator save a value.
    fn also_save(&mut self, value: Value) {
        if self.gradient(&[value]) {
            self.tape.save_more(value);
        }
    }

    fn cast(&mut self, x: Value, size: f64) -> Value {
        if is_same(self.tape.size(x), size) {
            return x;
        }
        let elements = self.tape.elements(x);
        self.op(
            elements,
            size,
            Operator {
                reads: vec![x],
                ..Operator::default()
            },
        )
    }

    fn add(&mut self, a: Value, b: Value) -> Value {
        let size = self.tape.size(a).max(self.tape.size(b));
        let same = is_same(self.tape.size(a), self.tape.size(b));
        let elements = self.tape.elements(a);
        self.op(
            elements,
            size,
            Operator {
                reads: vec![a, b],
                shares_gradient: same,
                ..Operator::default()
            },
        )
    }

    fn mul(&mut self, a: Value, b: Value) -> Value {
        let size = self.tape.size(a).max(self.tape.size(b));
        let elements = self.tape.elements(a);
        let mut saves = Vec::new();
        if self.gradient(&[b]) {
            saves.push(a);
        }
        if self.gradient(&[a]) {
            saves.push(b);
        }
        self.op(
            elements,
            size,
            Operator {
                reads: vec![a, b],
                saves,
                ..Operator::default()
            },
        )
    }

    fn dropout(&mut self, x: Value, probability: f64) -> Value {
        if !self.set.train || probability == 0.0 {
            return x;
        }
        let (elements, size) = (self.tape.elements(x), self.tape.size(x));
        let gradient = self.gradient(&[x]);
        let mask = self.tape.value(elements, 1.0, false);
        self.op(
            elements,
            size,
            Operator {
                reads: vec![x],
                writes: vec![mask],
                saves: if gradient { vec![mask] } else { Vec::new() },
                ..Operator::default()
            },
        )
    }

    /// `x` times a matrix. `name` is that of the module, for adapters.
    fn linear(&mut self, name: &str, x: Value, inputs: f64, outputs: f64, bias: bool) -> Value {
        let weight = self.weight(inputs * outputs);
        let base = self.product(x, inputs, outputs, bias, weight);
        match &self.set.adapter {
            Some(adapter) if adapter.modules.iter().any(|module| module == name) => {
                let (rank, dropout) = (adapter.rank, adapter.dropout);
                self.adapted(base, x, (inputs, outputs), rank, dropout)
            }
            _ => base,
        }
    }

    fn product(
        &mut self,
        x: Value,
        inputs: f64,
        outputs: f64,
        bias: bool,
        mut weight: Vec<(Parameter, f64)>,
    ) -> Value {
        let size = self.compute();
        let rows = self.tape.elements(x) / inputs;
        let x = self.cast(x, size);
        let needs = self.gradient(&[x]);
        let mut saves = if self.set.train && !weight.is_empty() {
            vec![x]
        } else {
            Vec::new()
        };
        let mut reads = vec![x];
        let mut backward_scratch = 0.0;
        if self.set.autocast.is_some() && !is_same(size, self.set.size) {
            // Casts of weights that are trained stay in autocast's cache until its context ends.
            let cast = self.tape.value(inputs * outputs, size, false);
            self.tape.push(Operator {
                writes: vec![cast],
                ..Operator::default()
            });
            if !weight.is_empty() {
                self.tape.keep(cast);
            }
            reads.push(cast);
            if needs {
                saves.push(cast);
            }
            // The gradient arrives in the type of the computation.
            backward_scratch = inputs * outputs * size;
        }
        if bias && !weight.is_empty() {
            weight.extend(self.weight(outputs));
        }
        self.op(
            rows * outputs,
            size,
            Operator {
                reads,
                saves,
                backward_scratch,
                parameters: weight,
                ..Operator::default()
            },
        )
    }

    /// peft's layer: the frozen product, and beside it two thin ones in fp32.
    fn adapted(
        &mut self,
        base: Value,
        x: Value,
        (inputs, outputs): (f64, f64),
        rank: f64,
        dropout: bool,
    ) -> Value {
        let x = self.cast(x, ADAPTER_SIZE);
        let dropped = self.dropout(x, if dropout { 0.5 } else { 0.0 });
        let down = self.thin(dropped, inputs, rank);
        let up = self.thin(down, rank, outputs);
        let scaled = self.map(up, Saves::Nothing);
        let sum = self.add(base, scaled);
        let size = self.tape.size(base);
        self.cast(sum, size)
    }

    fn thin(&mut self, x: Value, inputs: f64, outputs: f64) -> Value {
        let size = self.set.autocast.unwrap_or(ADAPTER_SIZE);
        let x = self.cast(x, size);
        let parameter = self.tape.parameter();
        let rows = self.tape.elements(x) / inputs;
        let train = self.set.train;
        self.op(
            rows * outputs,
            size,
            Operator {
                reads: vec![x],
                saves: if train { vec![x] } else { Vec::new() },
                parameters: vec![(parameter, inputs * outputs * ADAPTER_SIZE)],
                ..Operator::default()
            },
        )
    }

    fn embedding(&mut self, rows: f64, entries: f64, width: f64) -> (Value, Vec<(Parameter, f64)>) {
        let weight = self.weight(entries * width);
        let out = self.op(
            rows * width,
            self.set.size,
            Operator {
                parameters: weight.clone(),
                ..Operator::default()
            },
        );
        (out, weight)
    }

    /// Embeddings of tokens, which a tied head uses again.
    fn tokens(&mut self, rows: f64) -> Value {
        let (out, weight) = match self.embedding {
            Some(parameter) => {
                let bytes = self.s.vocabulary * self.s.hidden * self.set.size;
                let weight = vec![(parameter, bytes)];
                let out = self.op(
                    rows * self.s.hidden,
                    self.set.size,
                    Operator {
                        parameters: weight.clone(),
                        ..Operator::default()
                    },
                );
                (out, weight)
            }
            None => self.embedding(rows, self.s.vocabulary, self.s.hidden),
        };
        self.embedding = weight.first().map(|&(parameter, _)| parameter);
        if self.set.train && self.frozen && self.set.checkpointing {
            // Checkpointed blocks need an input with a gradient: `enable_input_require_grads`.
            self.tape.require_gradient(out);
        }
        out
    }

    /// `nn.LayerNorm`: one kernel, which autocast runs in fp32.
    fn layer_norm(&mut self, x: Value, width: f64) -> Value {
        let size = if self.set.autocast.is_some() {
            4.0
        } else {
            self.tape.size(x)
        };
        let x = self.cast(x, size);
        let elements = self.tape.elements(x);
        let weight = self.weight(2.0 * width);
        let train = self.gradient(&[x]) || self.set.train && !self.frozen;
        let statistics = self.tape.value(2.0 * elements / width, 4.0, false);
        self.op(
            elements,
            size,
            Operator {
                reads: vec![x],
                writes: vec![statistics],
                saves: if train {
                    vec![x, statistics]
                } else {
                    Vec::new()
                },
                parameters: weight,
                ..Operator::default()
            },
        )
    }

    /// The norm of Llama and its kin, in single operators and fp32.
    fn rms_norm(&mut self, x: Value, width: f64) -> Value {
        let size = self.tape.size(x);
        let wide = self.cast(x, 4.0);
        let bytes = self.tape.bytes(wide);
        let rows = self.tape.elements(x) / width;
        let needs = self.gradient(&[x]);
        // pow(2), mean and rsqrt.
        let root = self.op(
            rows,
            4.0,
            Operator {
                reads: vec![wide],
                saves: if needs { vec![wide] } else { Vec::new() },
                scratch: bytes,
                backward_scratch: 2.0 * bytes,
                ..Operator::default()
            },
        );
        let elements = self.tape.elements(x);
        let normed = self.op(
            elements,
            4.0,
            Operator {
                reads: vec![wide, root],
                saves: if needs { vec![wide, root] } else { Vec::new() },
                backward_scratch: bytes,
                ..Operator::default()
            },
        );
        let narrow = self.cast(normed, size);
        let weight = self.weight(width);
        // Products of types promote: fp32 weights make the output fp32.
        let out_size = size.max(self.set.size);
        let scratch = if weight.is_empty() { 0.0 } else { bytes };
        let out = self.op(
            elements,
            out_size,
            Operator {
                reads: vec![narrow],
                saves: if self.set.train && !weight.is_empty() {
                    vec![narrow]
                } else {
                    Vec::new()
                },
                parameters: weight,
                backward_scratch: scratch,
                ..Operator::default()
            },
        );
        self.tape.hold(&[normed]);
        out
    }

    fn activation(&mut self, x: Value) -> Value {
        match self.s.activation {
            Activation::Silu | Activation::Gelu => self.map(x, Saves::Input),
            Activation::Relu => self.map(x, Saves::Output),
            Activation::NewGelu => self.new_gelu(x),
        }
    }

    /// 0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³))), operator by operator.
    fn new_gelu(&mut self, x: Value) -> Value {
        let half = self.map(x, Saves::Nothing);
        // Autocast computes powers in fp32.
        let wide = if self.set.autocast.is_some() {
            self.cast(x, 4.0)
        } else {
            x
        };
        let cube = self.map(wide, Saves::Input);
        let scaled = self.map(cube, Saves::Nothing);
        let sum = self.add(scaled, x);
        let inner = self.map(sum, Saves::Nothing);
        let tanh = self.map(inner, Saves::Output);
        let one = self.map(tanh, Saves::Nothing);
        let out = self.mul(half, one);
        self.tape.hold(&[x]);
        out
    }

    /// Keys or values as a cache keeps them.
    fn cached(&mut self, x: Value) -> Value {
        let (elements, size) = (self.tape.elements(x), self.tape.size(x));
        let out = self.op(
            elements,
            size,
            Operator {
                reads: vec![x],
                shares_gradient: true,
                ..Operator::default()
            },
        );
        self.tape.keep(out);
        out
    }

    /// Whether the model keeps a cache while it runs: only checkpointing turns it off.
    fn caches(&self) -> bool {
        !(self.set.train && self.set.checkpointing)
    }

    /// The fused kernels: they save their inputs, the output, and a number for each row and head.
    /// None of them computes the gradient of a bias.
    fn attention(&mut self, [q, k, v]: [Value; 3], bias: Option<Value>) -> Value {
        let size = self.compute();
        let (q, k, v) = (self.cast(q, size), self.cast(k, size), self.cast(v, size));
        if bias.is_some_and(|bias| self.gradient(&[bias])) {
            return self.written_out_attention([q, k, v], bias);
        }
        if size > 2.0 && self.s.kv_heads < self.s.heads {
            // In fp32, no fused kernel takes fewer heads of keys than of queries.
            let [k, v] = [k, v].map(|value| self.repeated(value));
            return self.written_out_attention([q, k, v], bias);
        }
        let elements = self.tape.elements(q);
        let mut reads = vec![q, k, v];
        reads.extend(bias);
        let needs = self.gradient(&reads);
        self.fused_attention(reads, needs, elements, size, 0.0)
    }

    /// One kernel. If the backward `needs` it, it saves what it reads, its output and the sums of its rows.
    fn fused_attention(
        &mut self,
        reads: Vec<Value>,
        needs: bool,
        elements: f64,
        size: f64,
        backward_scratch: f64,
    ) -> Value {
        let sums = self.tape.value(elements / self.s.head, 4.0, false);
        let mut saves = Vec::new();
        if needs {
            saves.clone_from(&reads);
            saves.push(sums);
        }
        let out = self.op(
            elements,
            size,
            Operator {
                reads,
                writes: vec![sums],
                saves,
                backward_scratch,
                ..Operator::default()
            },
        );
        self.also_save(out);
        out
    }

    /// Keys or values for each head of the queries.
    fn repeated(&mut self, x: Value) -> Value {
        let (elements, size) = (self.tape.elements(x), self.tape.size(x));
        self.op(
            elements * self.s.heads / self.s.kv_heads,
            size,
            Operator {
                reads: vec![x],
                ..Operator::default()
            },
        )
    }

    /// Attention in single operators, with a score for each pair of tokens.
    fn written_out_attention(&mut self, inputs: [Value; 3], bias: Option<Value>) -> Value {
        // Products want rows that lie together.
        let [q, k, v] = inputs.map(|value| self.map(value, Saves::Nothing));
        let size = self.tape.size(q);
        let elements = self.tape.elements(q);
        // Keys may be of another length.
        let keys = self.tape.elements(k) / (self.set.batch * self.s.heads * self.s.head);
        let pairs = elements / self.s.head * keys;
        let scores = self.op(
            pairs,
            size,
            Operator {
                reads: [q, k].into_iter().chain(bias).collect(),
                saves: if self.gradient(&[q, k]) {
                    vec![q, k]
                } else {
                    Vec::new()
                },
                ..Operator::default()
            },
        );
        let weights = self.map(scores, Saves::Output);
        let weights = self.dropout(weights, self.s.dropout);
        let out = self.op(
            elements,
            size,
            Operator {
                reads: vec![weights, v],
                saves: if self.gradient(&[weights, v]) {
                    vec![weights, v]
                } else {
                    Vec::new()
                },
                ..Operator::default()
            },
        );
        let joined = self.map(out, Saves::Nothing);
        // The function's variables.
        self.tape.hold(&inputs);
        self.tape.hold(&[q, k, v, weights]);
        joined
    }

    // Heads and losses.

    fn head(&mut self, x: Value) {
        match self.s.head_kind {
            Head::Language { tied, upcast } => {
                let logits = self.words(x, tied, false);
                if self.set.train {
                    let logits = if upcast {
                        self.cast(logits, 4.0)
                    } else {
                        logits
                    };
                    self.cross_entropy(logits);
                    self.tape.hold(&[logits]);
                }
            }
            Head::Masked { tied } => {
                let width = self.s.hidden;
                let dense = self.linear("dense", x, width, width, true);
                let active = self.activation(dense);
                let normed = self.layer_norm(active, width);
                let logits = self.words(normed, tied, true);
                if self.set.train {
                    self.cross_entropy(logits);
                }
            }
            Head::TokenLabels { count } => {
                let x = self.dropout(x, self.s.dropout);
                let logits = self.linear("classifier", x, self.s.hidden, count, true);
                self.tape.keep(logits);
                if self.set.train {
                    self.cross_entropy(logits);
                }
            }
            Head::Labels { pooler, count } => {
                let first = self.op(
                    self.set.batch * self.s.hidden,
                    self.tape.size(x),
                    Operator {
                        reads: vec![x],
                        ..Operator::default()
                    },
                );
                let mut pooled = first;
                if pooler {
                    pooled = self.linear("dense", first, self.s.hidden, self.s.hidden, true);
                    pooled = self.map(pooled, Saves::Output);
                }
                if count > 0.0 {
                    let logits = self.linear("classifier", pooled, self.s.hidden, count, true);
                    if self.set.train {
                        self.cross_entropy(logits);
                    }
                }
            }
        }
    }

    /// A number for each word of the vocabulary and each row, which the model returns.
    fn words(&mut self, x: Value, tied: bool, bias: bool) -> Value {
        let (inputs, outputs) = (self.s.hidden, self.s.vocabulary);
        let weight = match self.embedding {
            Some(parameter) if tied => vec![(parameter, inputs * outputs * self.set.size)],
            _ => self.weight(inputs * outputs),
        };
        let logits = self.product(x, inputs, outputs, bias, weight);
        self.tape.keep(logits);
        logits
    }

    fn cross_entropy(&mut self, logits: Value) {
        // Autocast computes losses in fp32.
        let logits = if self.set.autocast.is_some() {
            self.cast(logits, 4.0)
        } else {
            logits
        };
        let probabilities = self.map(logits, Saves::Output);
        // The class's likelihood: a number for each row; its gradient is as large as the logits'.
        let loss = self.op(
            1.0,
            4.0,
            Operator {
                reads: vec![probabilities],
                ..Operator::default()
            },
        );
        self.also_save(probabilities);
        self.tape.keep(loss);
    }

    // Networks.

    /// Llama, Mistral, Qwen2, Qwen3 and Mixtral.
    fn decoder(&mut self) {
        let embedded = self.tokens(self.rows);
        let mut x = embedded;
        for _ in 0..self.s.layers {
            let start = self.tape.len();
            let layer_input = x;
            let normed = self.rms_norm(x, self.s.hidden);
            let attended = self.rotary_attention(normed);
            self.tape.hold(&[normed]);
            let y = self.add(x, attended);
            let normed = self.rms_norm(y, self.s.hidden);
            let fed = match self.s.experts {
                Some((experts, chosen)) => self.experts(normed, experts, chosen),
                None => self.gated(normed),
            };
            self.tape.hold(&[normed]);
            x = self.add(y, fed);
            self.tape.hold(&[layer_input]);
            self.tape.block(start);
        }
        let last = self.rms_norm(x, self.s.hidden);
        self.tape.hold(&[embedded]);
        self.head(last);
    }

    fn rotary_attention(&mut self, x: Value) -> Value {
        let s = self.s;
        let Body::Decoder { bias, norms } = s.body else {
            return x;
        };
        let (q_width, kv_width) = (s.heads * s.head, s.kv_heads * s.head);
        let mut q = self.linear("q_proj", x, s.hidden, q_width, bias);
        if norms {
            q = self.rms_norm(q, s.head);
        }
        let mut keys = self.linear("k_proj", x, s.hidden, kv_width, bias);
        if norms {
            keys = self.rms_norm(keys, s.head);
        }
        let mut values = self.linear("v_proj", x, s.hidden, kv_width, bias);
        // Cosines and sines have the type of the residual stream.
        q = self.rotary(q, x);
        keys = self.rotary(keys, x);
        if self.caches() {
            keys = self.cached(keys);
            values = self.cached(values);
        }
        let out = self.attention([q, keys, values], None);
        let projected = self.linear("o_proj", out, q_width, s.hidden, s.output_bias);
        self.tape.hold(&[q, keys, values, out]);
        projected
    }

    /// q · cos + rotate_half(q) · sin.
    fn rotary(&mut self, q: Value, stream: Value) -> Value {
        let size = self.tape.size(q).max(self.tape.size(stream));
        let elements = self.tape.elements(q);
        let scratch = 2.0 * elements * size;
        self.op(
            elements,
            size,
            Operator {
                reads: vec![q],
                scratch,
                backward_scratch: scratch,
                ..Operator::default()
            },
        )
    }

    fn gated(&mut self, x: Value) -> Value {
        let (hidden, inner) = (self.s.hidden, self.s.intermediate);
        let gate = self.linear("gate_proj", x, hidden, inner, self.s.feed_bias);
        let active = self.activation(gate);
        let up = self.linear("up_proj", x, hidden, inner, self.s.feed_bias);
        let product = self.mul(active, up);
        self.linear("down_proj", product, inner, hidden, self.s.feed_bias)
    }

    /// `grouped_mm_experts_forward`: every expert's tokens in one product.
    fn experts(&mut self, x: Value, experts: f64, chosen: f64) -> Value {
        let (hidden, inner, size) = (self.s.hidden, self.s.intermediate, self.set.size);
        let rows = self.rows * chosen;
        let scores = self.linear("gate", x, hidden, experts, false);
        let selected = self.op(
            rows * hidden,
            self.tape.size(x),
            Operator {
                reads: vec![x, scores],
                ..Operator::default()
            },
        );
        let narrow = self.cast(selected, size);
        let both = self.grouped(narrow, rows * 2.0 * inner, experts * 2.0 * inner * hidden);
        let both = self.map(both, Saves::Nothing);
        // The gate and the other half are views of one value.
        let active = self.op(
            rows * inner,
            size,
            Operator {
                reads: vec![both],
                ..Operator::default()
            },
        );
        self.also_save(both);
        let product = self.op(
            rows * inner,
            size,
            Operator {
                reads: vec![active, both],
                ..Operator::default()
            },
        );
        self.also_save(both);
        self.also_save(active);
        self.tape.hold(&[both]);
        let out = self.grouped(product, rows * hidden, experts * inner * hidden);
        let out = self.map(out, Saves::Nothing);
        // Weighted by scores in fp32.
        let weighted = self.op(
            rows * hidden,
            4.0,
            Operator {
                reads: vec![out],
                ..Operator::default()
            },
        );
        self.also_save(out);
        let ordered = self.map(weighted, Saves::Nothing);
        let sum = self.op(
            self.rows * hidden,
            4.0,
            Operator {
                reads: vec![ordered],
                ..Operator::default()
            },
        );
        self.tape.hold(&[selected, out, ordered]);
        let size = self.tape.size(x);
        self.cast(sum, size)
    }

    fn grouped(&mut self, x: Value, outputs: f64, weights: f64) -> Value {
        let weight = self.weight(weights);
        let saves = if self.set.train && !weight.is_empty() {
            vec![x]
        } else {
            Vec::new()
        };
        self.op(
            outputs,
            self.set.size,
            Operator {
                reads: vec![x],
                saves,
                parameters: weight,
                ..Operator::default()
            },
        )
    }

    fn gpt2(&mut self) {
        let s = self.s;
        let (width, inner) = (s.hidden, s.intermediate);
        let embedded = self.tokens(self.rows);
        let (positions, _) = self.embedding(self.set.tokens, s.positions, width);
        let sum = self.add(embedded, positions);
        let mut x = self.dropout(sum, s.dropout);
        for _ in 0..s.layers {
            let start = self.tape.len();
            let layer_input = x;
            let normed = self.layer_norm(x, width);
            let joined = self.linear("c_attn", normed, width, 3.0 * width, true);
            let out = self.joined_attention(joined);
            let out = self.linear("c_proj", out, width, width, true);
            let out = self.dropout(out, s.dropout);
            self.tape.hold(&[normed, joined]);
            let y = self.add(out, x);
            let normed = self.layer_norm(y, width);
            let fed = self.linear("c_fc", normed, width, inner, true);
            let fed = self.activation(fed);
            let fed = self.linear("c_proj", fed, inner, width, true);
            let fed = self.dropout(fed, s.dropout);
            self.tape.hold(&[normed]);
            x = self.add(y, fed);
            self.tape.hold(&[layer_input]);
            self.tape.block(start);
        }
        let last = self.layer_norm(x, width);
        self.tape.hold(&[embedded]);
        self.head(last);
    }

    /// Attention whose queries, keys and values are views of one value.
    fn joined_attention(&mut self, joined: Value) -> Value {
        let size = self.tape.size(joined);
        let elements = self.tape.elements(joined) / 3.0;
        let needs = self.gradient(&[joined]);
        let mut reads = vec![joined];
        if self.caches() {
            for _ in 0..2 {
                let copy = self.tape.value(elements, size, false);
                self.tape.push(Operator {
                    writes: vec![copy],
                    ..Operator::default()
                });
                self.tape.keep(copy);
                reads.push(copy);
            }
        }
        // In the backward pass three gradients become one.
        self.fused_attention(reads, needs, elements, size, 3.0 * elements * size)
    }

    /// Queries of one stream, keys and values of the same or another, and the projection of the result.
    fn plain_attention(
        &mut self,
        names: [&str; 3],
        projection: Option<&str>,
        (x, source): (Value, Value),
        bias: Option<Value>,
        cache: bool,
    ) -> Value {
        let (width, inner) = (self.s.hidden, self.s.heads * self.s.head);
        let with_bias = self.s.attention_bias;
        let q = self.linear(names[0], x, width, inner, with_bias);
        let k = self.linear(names[1], source, width, inner, with_bias);
        let v = self.linear(names[2], source, width, inner, with_bias);
        let (k, v) = if cache && self.caches() {
            (self.cached(k), self.cached(v))
        } else {
            (k, v)
        };
        let out = self.attention([q, k, v], bias);
        // The variables live until the module returns.
        let out = match projection {
            Some(name) => self.linear(name, out, inner, width, self.s.output_bias),
            None => out,
        };
        self.tape.hold(&[q, k, v]);
        out
    }

    fn bert(&mut self) {
        let s = self.s;
        let (width, inner) = (s.hidden, s.intermediate);
        let words = self.tokens(self.rows);
        let Body::Bert { types } = s.body else { return };
        let (kinds, _) = self.embedding(self.rows, types, width);
        let sum = self.add(words, kinds);
        let (positions, _) = self.embedding(self.set.tokens, s.positions, width);
        let sum = self.add(sum, positions);
        let normed = self.layer_norm(sum, width);
        let mut x = self.dropout(normed, s.dropout);
        for _ in 0..s.layers {
            let start = self.tape.len();
            let layer_input = x;
            let out = self.plain_attention(["query", "key", "value"], None, (x, x), None, false);
            let dense = self.linear("dense", out, width, width, true);
            let dense = self.dropout(dense, s.dropout);
            let sum = self.add(dense, x);
            let y = self.layer_norm(sum, width);
            let fed = self.linear("dense", y, width, inner, true);
            let active = self.activation(fed);
            let dense = self.linear("dense", active, inner, width, true);
            self.tape.hold(&[active]);
            let dense = self.dropout(dense, s.dropout);
            let sum = self.add(dense, y);
            x = self.layer_norm(sum, width);
            self.tape.hold(&[layer_input]);
            self.tape.block(start);
        }
        self.head(x);
    }

    fn vit(&mut self) {
        let s = self.s;
        let (width, inner) = (s.hidden, s.intermediate);
        let Body::Vit { patch_inputs, .. } = s.body else {
            return;
        };
        let pixels = self
            .tape
            .value(self.rows * patch_inputs, self.set.size, false);
        self.tape.push(Operator {
            writes: vec![pixels],
            ..Operator::default()
        });
        self.tape.keep(pixels);
        let patches = self.linear("projection", pixels, patch_inputs, width, true);
        let joined = self.map(patches, Saves::Nothing);
        let joined = self.cast(joined, self.set.size);
        let (positions, _) = self.embedding(self.set.tokens, self.set.tokens, width);
        let sum = self.add(joined, positions);
        let mut x = self.dropout(sum, s.dropout);
        for _ in 0..s.layers {
            let start = self.tape.len();
            let layer_input = x;
            let normed = self.layer_norm(x, width);
            let out = self.plain_attention(
                ["q_proj", "k_proj", "v_proj"],
                Some("o_proj"),
                (normed, normed),
                None,
                false,
            );
            self.tape.hold(&[normed]);
            let out = self.dropout(out, s.dropout);
            let y = self.add(out, x);
            let normed = self.layer_norm(y, width);
            let fed = self.feed_forward(normed, ["fc1", "fc2"], inner, 0.0);
            let fed = self.dropout(fed, s.dropout);
            x = self.add(fed, y);
            self.tape.hold(&[layer_input]);
            self.tape.block(start);
        }
        let last = self.layer_norm(x, width);
        self.head(last);
    }

    fn feed_forward(&mut self, x: Value, names: [&str; 2], inner: f64, dropout: f64) -> Value {
        let width = self.s.hidden;
        let fed = self.linear(names[0], x, width, inner, self.s.feed_bias);
        let active = self.activation(fed);
        let active = self.dropout(active, dropout);
        let out = self.linear(names[1], active, inner, width, self.s.feed_bias);
        self.tape.hold(&[active]);
        out
    }

    /// T5's norm: fp32 inside, the type of the weights outside.
    fn t5_norm(&mut self, x: Value) -> Value {
        self.rms_norm(x, self.s.hidden)
    }

    fn t5(&mut self) {
        let Body::T5 {
            decoder_layers,
            gated,
            buckets,
        } = self.s.body
        else {
            return;
        };
        let encoded = self.t5_stack(self.s.layers, gated, buckets, None);
        let decoded = self.t5_stack(decoder_layers, gated, buckets, Some(encoded));
        let scaled = match self.s.head_kind {
            Head::Language { tied: true, .. } => self.map(decoded, Saves::Nothing),
            _ => decoded,
        };
        self.head(scaled);
    }

    fn t5_stack(&mut self, layers: u64, gated: bool, buckets: f64, source: Option<Value>) -> Value {
        let s = self.s;
        let embedded = self.tokens(self.rows);
        let mut x = self.dropout(embedded, s.dropout);
        let scores = s.heads * self.set.tokens * self.set.tokens;
        // A bias for each pair of positions and head, which all layers share.
        let table = self.weight(buckets * s.heads);
        let index = self.tape.value(scores / s.heads, 8.0, false);
        let bias = self.op(
            scores,
            self.set.size,
            Operator {
                writes: vec![index],
                saves: vec![index],
                parameters: table,
                ..Operator::default()
            },
        );
        self.tape.keep(bias);
        let cross = source.map(|_| {
            let zeros = self.tape.value(scores, self.set.size, false);
            self.tape.push(Operator {
                writes: vec![zeros],
                ..Operator::default()
            });
            self.tape.keep(zeros);
            zeros
        });
        for _ in 0..layers {
            let start = self.tape.len();
            let layer_input = x;
            let normed = self.t5_norm(x);
            // A causal mask makes a bias of each layer.
            let own = if source.is_some() {
                self.map(bias, Saves::Nothing)
            } else {
                bias
            };
            x = self.t5_attention(x, (normed, normed), own, source.is_some());
            if let (Some(source), Some(cross)) = (source, cross) {
                let normed = self.t5_norm(x);
                x = self.t5_attention(x, (normed, source), cross, true);
            }
            let normed = self.t5_norm(x);
            let fed = self.t5_feed_forward(normed, gated);
            let fed = self.dropout(fed, s.dropout);
            x = self.add(x, fed);
            self.tape.hold(&[layer_input]);
            self.tape.block(start);
        }
        let last = self.t5_norm(x);
        let last = self.dropout(last, s.dropout);
        self.tape.hold(&[embedded]);
        self.tape.keep(last);
        last
    }

    fn t5_attention(
        &mut self,
        x: Value,
        (normed, source): (Value, Value),
        bias: Value,
        cache: bool,
    ) -> Value {
        let out = self.plain_attention(
            ["q", "k", "v"],
            Some("o"),
            (normed, source),
            Some(bias),
            cache,
        );
        self.tape.hold(&[normed]);
        let out = self.dropout(out, self.s.dropout);
        self.add(x, out)
    }

    fn t5_feed_forward(&mut self, x: Value, gated: bool) -> Value {
        let (hidden, inner) = (self.s.hidden, self.s.intermediate);
        if !gated {
            return self.feed_forward(x, ["wi", "wo"], inner, self.s.dropout);
        }
        let gate = self.linear("wi_0", x, hidden, inner, false);
        let active = self.activation(gate);
        let up = self.linear("wi_1", x, hidden, inner, false);
        let product = self.mul(active, up);
        let product = self.dropout(product, self.s.dropout);
        self.linear("wo", product, inner, hidden, false)
    }

    fn whisper(&mut self) {
        let s = self.s;
        let Body::Whisper {
            decoder_layers,
            decoder_inner,
            frames,
            bins,
        } = s.body
        else {
            return;
        };
        let encoded = self.whisper_encoder(frames, bins);
        let embedded = self.tokens(self.rows);
        let (positions, _) = self.embedding(self.rows, s.positions, s.hidden);
        let sum = self.add(embedded, positions);
        let mut x = self.dropout(sum, s.dropout);
        for _ in 0..decoder_layers {
            let start = self.tape.len();
            let layer_input = x;
            x = self.whisper_attention(x, None, true);
            x = self.whisper_attention(x, Some(encoded), true);
            x = self.whisper_feed_forward(x, decoder_inner);
            self.tape.hold(&[layer_input]);
            self.tape.block(start);
        }
        let last = self.layer_norm(x, s.hidden);
        self.tape.hold(&[embedded, positions]);
        self.tape.keep(encoded);
        self.head(last);
    }

    /// Two convolutions over the sound, of which the second halves its length, and the layers.
    fn whisper_encoder(&mut self, frames: f64, bins: f64) -> Value {
        let (width, batch) = (self.s.hidden, self.set.batch);
        let sound = self
            .tape
            .value(batch * 2.0 * frames * bins, self.set.size, false);
        self.tape.push(Operator {
            writes: vec![sound],
            ..Operator::default()
        });
        self.tape.keep(sound);
        let first = self.convolution(sound, bins, batch * 2.0 * frames * width);
        let first = self.map(first, Saves::Input);
        let second = self.convolution(first, width, batch * frames * width);
        let second = self.map(second, Saves::Input);
        // The sum with the table of positions, which is frozen.
        let sum = self.map(second, Saves::Nothing);
        let mut x = self.dropout(sum, self.s.dropout);
        for _ in 0..self.s.layers {
            let start = self.tape.len();
            let layer_input = x;
            x = self.whisper_attention(x, None, false);
            x = self.whisper_feed_forward(x, self.s.intermediate);
            self.tape.hold(&[layer_input]);
            self.tape.block(start);
        }
        let last = self.layer_norm(x, width);
        self.tape.hold(&[second]);
        last
    }

    /// A convolution of width 3 with `channels` inputs.
    fn convolution(&mut self, x: Value, channels: f64, outputs: f64) -> Value {
        let size = self.compute();
        let x = self.cast(x, size);
        let parameters = self.weight(3.0 * channels * self.s.hidden);
        let saves = if self.set.train && !parameters.is_empty() {
            vec![x]
        } else {
            Vec::new()
        };
        self.op(
            outputs,
            size,
            Operator {
                reads: vec![x],
                saves,
                parameters,
                ..Operator::default()
            },
        )
    }

    fn whisper_attention(&mut self, x: Value, source: Option<Value>, cache: bool) -> Value {
        let normed = self.layer_norm(x, self.s.hidden);
        let out = self.plain_attention(
            ["q_proj", "k_proj", "v_proj"],
            Some("out_proj"),
            (normed, source.unwrap_or(normed)),
            None,
            cache,
        );
        self.tape.hold(&[normed]);
        let out = self.dropout(out, self.s.dropout);
        self.add(x, out)
    }

    fn whisper_feed_forward(&mut self, x: Value, inner: f64) -> Value {
        let normed = self.layer_norm(x, self.s.hidden);
        let fed = self.feed_forward(normed, ["fc1", "fc2"], inner, 0.0);
        let fed = self.dropout(fed, self.s.dropout);
        self.add(x, fed)
    }
}

/// What an elementwise function saves for its backward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Saves {
    Nothing,
    Input,
    Output,
}
/// Whether two elements have as many bytes.
fn is_same(one: f64, other: f64) -> bool {
    (one - other).abs() < f64::EPSILON
}
