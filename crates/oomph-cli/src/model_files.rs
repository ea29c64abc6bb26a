//! Models on disk: a file, or the files of a directory that make one model.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use oomph_estimate::{
    Adapter, AdapterSettings, EstimateError, Model, ModelConfig, OnnxOptions, parse_config,
    parse_index, read_any,
};

/// A `config.json` or an index of shards has at most a few megabytes.
const MAX_JSON: u64 = 64 << 20;

/// Why a model could not be read from its files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelFileError {
    /// The system could not open, read or list it.
    #[error("cannot {action} {}: {error}", path.display())]
    Io {
        /// What was tried: `open`, `read` or `list`.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// What a file holds could not be read.
    #[error("{}: {error}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: EstimateError,
    },
    /// The files do not say which model is meant, or are not a model.
    #[error("{0}")]
    Unclear(String),
}

impl ModelFileError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::Io {
            action,
            path,
            error,
        }
    }

    fn of(path: &Path) -> impl FnOnce(EstimateError) -> Self {
        let path = path.to_owned();
        move |error| Self::Content { path, error }
    }
}

/// Reads a file, or the files of a directory that make one model.
pub fn read_model(path: &Path, options: &OnnxOptions) -> Result<Model, ModelFileError> {
    let metadata = std::fs::metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => not_there(path),
        _ => ModelFileError::io("read", path)(error),
    })?;
    if metadata.is_dir() {
        return read_directory(path, options);
    }
    let name = file_name(path);
    if name.ends_with(".index.json") {
        let directory = path.parent().unwrap_or(Path::new("."));
        let files = parse_index(&read_text(path)?).map_err(ModelFileError::of(path))?;
        return read_parts(directory, &files, options);
    }
    if extension(path) == "json" {
        return Ok(Model::from_config(read_config(path)?));
    }
    let mut model = read_file(path, options)?;
    if let Some((part, of)) = shard(&name) {
        model.problem(format!(
            "this is part {part} of {of}; give the directory or the .index.json for the whole model"
        ));
    }
    let config = path.with_file_name("config.json");
    if model.config.is_none()
        && matches!(
            extension(path).as_str(),
            "safetensors" | "bin" | "pt" | "pth"
        )
        && config.is_file()
    {
        add_config(&mut model, &config);
    }
    Ok(model)
}

/// What may have been meant by a path where nothing is: a model of the Hub by its name is not downloaded.
fn not_there(path: &Path) -> ModelFileError {
    let shown = path.display();
    let name = path.is_relative() && path.components().count() <= 2 && path.extension().is_none();
    let of_the_hub = if name {
        format!(" (for a model of the Hugging Face Hub: hf download {shown} config.json)")
    } else {
        String::new()
    };
    ModelFileError::Unclear(format!(
        "{shown}: no such file or directory. Expected a model's file, its directory or its config.json{of_the_hub}"
    ))
}

/// An adapter's settings; its tensors are in one of these.
const ADAPTER_CONFIG: &str = "adapter_config.json";
const ADAPTER_FILES: [&str; 2] = ["adapter_model.safetensors", "adapter_model.bin"];

/// Reads a directory in which peft saved an adapter.
pub fn read_adapter(directory: &Path, options: &OnnxOptions) -> Result<Adapter, ModelFileError> {
    let config = directory.join(ADAPTER_CONFIG);
    let file = ADAPTER_FILES
        .iter()
        .map(|name| directory.join(name))
        .find(|path| path.is_file());
    let Some(file) = file.filter(|_| config.is_file()) else {
        return Err(ModelFileError::Unclear(format!(
            "{}: expected {ADAPTER_CONFIG} and {}, as peft saves them",
            directory.display(),
            ADAPTER_FILES.join(" or ")
        )));
    };
    let tensors = read_file(&file, options)?;
    Adapter::new(&read_text(&config)?, tensors).map_err(ModelFileError::of(&config))
}

/// A directory's model, with the adapter that lies beside it.
fn read_directory(directory: &Path, options: &OnnxOptions) -> Result<Model, ModelFileError> {
    let config = directory.join(ADAPTER_CONFIG);
    let mut model = match read_base(directory, options) {
        Err(ModelFileError::Unclear(_)) if config.is_file() => {
            let settings = AdapterSettings::parse(&read_text(&config)?)
                .map_err(ModelFileError::of(&config))?;
            return Err(ModelFileError::Unclear(format!(
                "{0} holds an adapter without its model ({1}); give that model's directory and --adapter {0}",
                directory.display(),
                settings.base.as_deref().unwrap_or("unnamed"),
            )));
        }
        other => other?,
    };
    if config.is_file() {
        model.adapter = Some(read_adapter(directory, options)?);
    }
    Ok(model)
}

fn read_base(directory: &Path, options: &OnnxOptions) -> Result<Model, ModelFileError> {
    let mut names = BTreeSet::new();
    let entries = std::fs::read_dir(directory).map_err(ModelFileError::io("list", directory))?;
    for entry in entries {
        let entry = entry.map_err(ModelFileError::io("list", directory))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !ADAPTER_FILES.contains(&name.as_str()) {
            names.insert(name);
        }
    }
    // What transformers would load, in its order of preference.
    for index in [
        "model.safetensors.index.json",
        "pytorch_model.bin.index.json",
    ] {
        if names.contains(index) {
            let path = directory.join(index);
            let files = parse_index(&read_text(&path)?).map_err(ModelFileError::of(&path))?;
            return read_parts(directory, &files, options);
        }
    }
    for single in ["model.safetensors", "pytorch_model.bin"] {
        if names.contains(single) {
            return read_parts(directory, &[single.to_owned()], options);
        }
    }
    for wanted in ["safetensors", "gguf", "onnx", "bin", "pt", "pth"] {
        let files: Vec<String> = names
            .iter()
            .filter(|name| extension(Path::new(name)) == wanted)
            .cloned()
            .collect();
        match files.as_slice() {
            [] => {}
            [_] => return read_parts(directory, &files, options),
            [first, ..] if files.iter().all(|name| shard(name).is_some()) => {
                // Several models may be sharded side by side; their parts say so.
                let of = shard(first).map(|(_, of)| of);
                if usize::try_from(of.unwrap_or(0)).ok() == Some(files.len()) {
                    return read_parts(directory, &files, options);
                }
                return Err(ModelFileError::Unclear(format!(
                    "{}: expected one sharded model of {} files, found {}; name an .index.json or a file",
                    directory.display(),
                    of.unwrap_or(0),
                    files.len()
                )));
            }
            _ => {
                return Err(ModelFileError::Unclear(format!(
                    "{} holds {} .{wanted} files and no index: which one? {}",
                    directory.display(),
                    files.len(),
                    files.join(", ")
                )));
            }
        }
    }
    if names.contains("config.json") {
        return Ok(Model::from_config(read_config(
            &directory.join("config.json"),
        )?));
    }
    Err(ModelFileError::Unclear(format!(
        "{}: expected .safetensors, .gguf, .onnx, .pt/.pth/.bin files or a config.json, found none",
        directory.display()
    )))
}

fn read_parts(
    directory: &Path,
    files: &[String],
    options: &OnnxOptions,
) -> Result<Model, ModelFileError> {
    let mut model: Option<Model> = None;
    let mut missing = Vec::new();
    for name in files {
        let path = directory.join(name);
        if !path.is_file() {
            missing.push(name.as_str());
            continue;
        }
        let part = read_file(&path, options)?;
        match &mut model {
            None => model = Some(part),
            Some(model) => model.extend(part),
        }
    }
    let config = directory.join("config.json");
    let Some(mut model) = model else {
        if config.is_file() {
            let mut model = Model::from_config(read_config(&config)?);
            model.problem(format!("found no weights: {} missing", missing.join(", ")));
            return Ok(model);
        }
        return Err(ModelFileError::Unclear(format!(
            "{}: none of the model's files exists: {}",
            directory.display(),
            missing.join(", ")
        )));
    };
    if !missing.is_empty() {
        model.problem(format!(
            "the weights are a lower bound: {} of {} files missing ({})",
            missing.len(),
            files.len(),
            missing.join(", ")
        ));
    }
    if config.is_file() && model.config.is_none() {
        add_config(&mut model, &config);
    }
    Ok(model)
}

fn read_file(path: &Path, options: &OnnxOptions) -> Result<Model, ModelFileError> {
    let file = File::open(path).map_err(ModelFileError::io("open", path))?;
    read_any(file, &extension(path), options).map_err(ModelFileError::of(path))
}

fn read_text(path: &Path) -> Result<String, ModelFileError> {
    let length = std::fs::metadata(path)
        .map_err(ModelFileError::io("read", path))?
        .len();
    if length > MAX_JSON {
        return Err(ModelFileError::Unclear(format!(
            "{} has {length} bytes; expected at most {MAX_JSON} of JSON",
            path.display()
        )));
    }
    std::fs::read_to_string(path).map_err(ModelFileError::io("read", path))
}

fn read_config(path: &Path) -> Result<ModelConfig, ModelFileError> {
    parse_config(&read_text(path)?).map_err(ModelFileError::of(path))
}

/// The weights count; a `config.json` beside them adds the KV cache if possible.
fn add_config(model: &mut Model, path: &Path) {
    match read_config(path) {
        Ok(config) => {
            // Both counts are of parameters; files add buffers, and may lack tied weights.
            if let Some(parameters) = config.parameters {
                let read = model.elements();
                if read.abs_diff(parameters) > parameters / 20 {
                    model.problem(format!(
                        "the files hold {read} elements where config.json describes {parameters} parameters"
                    ));
                }
            }
            model.config = Some(config);
        }
        Err(error) => model.problem(format!("no KV cache: {error}")),
    }
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

fn extension(path: &Path) -> String {
    path.extension()
        .map(|extension| extension.to_string_lossy().to_ascii_lowercase())
        .unwrap_or_default()
}

/// `model-00001-of-00002.safetensors` is part 1 of 2.
fn shard(name: &str) -> Option<(u32, u32)> {
    let (stem, _) = name.rsplit_once('.')?;
    let (rest, of) = stem.rsplit_once("-of-")?;
    let (_, part) = rest.rsplit_once('-')?;
    Some((part.parse().ok()?, of.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA: &str = r#"{"model_type":"llama","hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"vocab_size":128256,"torch_dtype":"bfloat16","max_position_embeddings":8192}"#;

    #[test]
    fn shards_are_recognized() {
        assert_eq!(shard("model-00001-of-00002.safetensors"), Some((1, 2)));
        assert_eq!(shard("m-1-of-30.gguf"), Some((1, 30)));
        assert_eq!(shard("model.safetensors"), None);
        assert_eq!(shard("state-of-the-art.bin"), None);
    }

    /// A safetensors file of one tensor.
    fn safetensors(elements: u64) -> Vec<u8> {
        let header = format!(
            r#"{{"w{elements}":{{"dtype":"F16","shape":[{elements}],"data_offsets":[0,{}]}}}}"#,
            elements * 2
        );
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.resize(bytes.len() + elements as usize * 2, 0);
        bytes
    }

    #[test]
    fn a_name_of_the_hub_is_not_downloaded() {
        let said = |path: &str| {
            let error = read_model(Path::new(path), &OnnxOptions::default());
            error.err().unwrap().to_string()
        };
        assert!(said("nobody/model").contains("hf download nobody/model config.json"));
        assert!(!said("nobody/model.gguf").contains("hf download"));
        assert!(!said("/nobody/model").contains("hf download"));
    }

    #[test]
    fn directories_are_read_as_transformers_would() {
        let directory = tempfile::tempdir().expect("directory");
        let at = |name: &str| directory.path().join(name);
        let read = || read_model(directory.path(), &OnnxOptions::default());
        let message =
            |result: Result<Model, ModelFileError>| result.expect_err("error").to_string();
        assert!(message(read()).contains("found none"));
        std::fs::write(at("config.json"), "{}").expect("write");
        assert_eq!(message(read()).matches("config.json: ").count(), 1);
        std::fs::write(at("config.json"), LLAMA).expect("write");
        assert_eq!(read().expect("config").elements(), 8_030_261_248);
        std::fs::write(at("a.safetensors"), safetensors(10)).expect("write");
        let model = read().expect("weights");
        assert_eq!(model.elements(), 10);
        assert!(
            model.problems[0].contains("config.json describes"),
            "{:?}",
            model.problems
        );
        assert!(model.config.is_some());
        std::fs::write(at("b.safetensors"), safetensors(20)).expect("write");
        assert!(message(read()).contains("which one? a.safetensors, b.safetensors"));
        std::fs::write(
            at("model.safetensors.index.json"),
            r#"{"weight_map":{"w10":"a.safetensors","w20":"b.safetensors","w30":"c.safetensors"}}"#,
        )
        .expect("write");
        let model = read().expect("index");
        assert_eq!(model.elements(), 30);
        assert!(
            model
                .problems
                .iter()
                .any(|p| p.contains("1 of 3 files missing (c.safetensors)"))
        );
        assert!(message(read_model(&at("none.pt"), &OnnxOptions::default())).contains("none.pt"));
    }
}
