//! The tensors of a file, checked against what the configuration asks for, and which of them the
//! graph uses.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;

use cyb_formats::ModelFile;
use cyb_ir::{Builder, ValueId};
use cyb_tensor::{DType, Tensor};

use crate::ModelError;
use crate::names::Checkpoint;

/// Tensors that older converters wrote and that repeat what the metadata says.
const REDUNDANT: [&str; 3] =
    [".attn_rot_embd.weight", ".attention.rotary_emb.inv_freq", ".self_attn.rotary_emb.inv_freq"];

/// The tensors of a model file.
pub(crate) struct Weights<'f> {
    file: &'f ModelFile,
    used: RefCell<BTreeSet<String>>,
    /// A tensor used twice is one value of the graph.
    made: HashMap<String, ValueId>,
    /// How names are translated when the file is a checkpoint of transformers.
    checkpoint: Option<Checkpoint>,
    /// Whether norm weights are stored less 1.
    norms_less_one: bool,
}

impl<'f> Weights<'f> {
    pub(crate) fn new(file: &'f ModelFile) -> Weights<'f> {
        Weights {
            file,
            used: RefCell::default(),
            made: HashMap::new(),
            checkpoint: None,
            norms_less_one: false,
        }
    }

    /// From here on names are those of GGUF files, and are translated into those of a checkpoint of
    /// transformers. `sandwich` as in [`Checkpoint`].
    pub(crate) fn checkpoint(&mut self, sandwich: bool) {
        // A base model's tensors have no prefix.
        let based = self.file.tensors.contains_key("embed_tokens.weight");
        let prefix = if based { "" } else { "model." };
        self.checkpoint = Some(Checkpoint { prefix, sandwich });
    }

    /// Norm weights are stored less 1, as the Gemma checkpoints have them.
    pub(crate) fn norms_less_one(&mut self) {
        self.norms_less_one = true;
    }

    pub(crate) fn is_checkpoint(&self) -> bool {
        self.checkpoint.is_some()
    }

    /// The file's name of a tensor.
    fn name(&self, name: &str) -> String {
        self.checkpoint.map_or_else(|| name.to_owned(), |checkpoint| checkpoint.name(name))
    }

    /// Marks a tensor as known that is left out on purpose.
    pub(crate) fn leave(&mut self, name: &str) {
        self.used.borrow_mut().insert(self.name(name));
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.file.metadata.file().to_owned()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.file.tensors.contains_key(&self.name(name))
    }

    /// The length of a tensor's outermost axis.
    pub(crate) fn rows(&self, name: &str) -> Result<usize, ModelError> {
        Ok(self.file.tensor(&self.name(name))?.shape().first().copied().unwrap_or(1))
    }

    /// A tensor as a value of the graph.
    pub(crate) fn value(
        &mut self,
        b: &mut Builder,
        name: &str,
        shape: &[usize],
    ) -> Result<ValueId, ModelError> {
        let name = &self.name(name);
        let tensor = self.file.tensor(name)?;
        self.check(name, tensor.shape(), shape)?;
        if let Some(&v) = self.made.get(name) {
            return Ok(v);
        }
        self.used.borrow_mut().insert(name.clone());
        let v = b.weight(name, self.vector_as_f32(name, tensor)?);
        self.made.insert(name.clone(), v);
        Ok(v)
    }

    /// Vectors are small, and what reads them wants `F32`.
    fn vector_as_f32(&self, name: &str, tensor: Tensor) -> Result<Tensor, ModelError> {
        let less_one = self.norms_less_one && name.ends_with("norm.weight");
        if tensor.shape().len() != 1 || (tensor.dtype() == DType::F32 && !less_one) {
            return Ok(tensor);
        }
        let kind = |got: String| ModelError::TensorKind {
            file: self.path(),
            tensor: name.to_owned(),
            want: "a float type",
            got,
        };
        let mut values = vec![0.0; tensor.elems()];
        cyb_tensor::quant::decode(tensor.dtype(), tensor.bytes().as_slice(), &mut values)
            .map_err(|_| kind(tensor.dtype().to_string()))?;
        if less_one {
            values.iter_mut().for_each(|v| *v += 1.0);
        }
        Tensor::from_f32(tensor.shape().to_vec(), &values).map_err(|e| kind(e.to_string()))
    }

    /// The numbers of a small `F32` tensor that shapes the graph, when it is there.
    pub(crate) fn floats(
        &self,
        name: &str,
        shape: &[usize],
    ) -> Result<Option<Vec<f32>>, ModelError> {
        let Some(tensor) = self.file.tensors.get(name) else { return Ok(None) };
        self.check(name, tensor.shape(), shape)?;
        if tensor.dtype() != DType::F32 {
            let (tensor, got) = (name.to_owned(), tensor.dtype().to_string());
            return Err(ModelError::TensorKind { file: self.path(), tensor, want: "f32", got });
        }
        self.used.borrow_mut().insert(name.to_owned());
        Ok(tensor.to_f32_vec().ok())
    }

    /// The numbers of a small tensor of floats that shapes the graph, row by row.
    pub(crate) fn numbers(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        let name = &self.name(name);
        let tensor = self.file.tensor(name)?;
        self.check(name, tensor.shape(), shape)?;
        self.used.borrow_mut().insert(name.clone());
        let mut values = vec![0.0; tensor.elems()];
        cyb_tensor::quant::decode(tensor.dtype(), tensor.bytes().as_slice(), &mut values).map_err(
            |_| ModelError::TensorKind {
                file: self.path(),
                tensor: name.clone(),
                want: "a float type",
                got: tensor.dtype().to_string(),
            },
        )?;
        Ok(values)
    }

    /// As [`Weights::value`], with the elements in another shape.
    pub(crate) fn reshaped(
        &mut self,
        b: &mut Builder,
        name: &str,
        shape: &[usize],
        to: &[usize],
    ) -> Result<ValueId, ModelError> {
        let name = &self.name(name);
        let tensor = self.file.tensor(name)?;
        self.check(name, tensor.shape(), shape)?;
        self.used.borrow_mut().insert(name.clone());
        let tensor = Tensor::new(tensor.dtype(), to.to_vec(), tensor.bytes().clone())
            .map_err(ModelError::tensor)?;
        Ok(b.weight(name, tensor))
    }

    /// Prepares for another graph: values are those of one.
    pub(crate) fn forget_values(&mut self) {
        self.made.clear();
    }

    fn check(&self, name: &str, got: &[usize], want: &[usize]) -> Result<(), ModelError> {
        if got == want {
            return Ok(());
        }
        let (want, got) = (want.to_vec(), got.to_vec());
        Err(ModelError::Shape { file: self.path(), tensor: name.to_owned(), want, got })
    }

    /// Elements of all tensors together.
    pub(crate) fn parameters(&self) -> u64 {
        self.file.tensors.values().map(|t| t.elems() as u64).sum()
    }

    /// Fails when a tensor is left over that `part` says the result depends on; tells of others.
    pub(crate) fn finish(
        &self,
        family: &'static str,
        part: impl Fn(&str) -> bool,
    ) -> Result<Vec<String>, ModelError> {
        let used = self.used.borrow();
        let unused: Vec<&str> =
            self.file.tensors.keys().map(String::as_str).filter(|n| !used.contains(*n)).collect();
        let redundant = |name: &str| REDUNDANT.iter().any(|r| name.ends_with(r));
        let (parts, rest): (Vec<&str>, Vec<&str>) =
            unused.into_iter().partition(|name| part(name) && !redundant(name));
        if let Some(first) = parts.first() {
            let more = match parts.len() {
                1 => String::new(),
                n => format!(" and {} more", n - 1),
            };
            let tensors = format!("tensor '{}'{more}", first.escape_debug());
            return Err(ModelError::UnusedTensors { file: self.path(), family, tensors });
        }
        Ok(rest.into_iter().map(|n| format!("tensor '{}' is not used", n.escape_debug())).collect())
    }
}
