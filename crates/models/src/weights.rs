//! The tensors of a file, checked against what the configuration asks for, and which of them the
//! graph uses.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;

use cyb_formats::ModelFile;
use cyb_ir::{Builder, ValueId};
use cyb_tensor::DType;

use crate::ModelError;

/// Tensors that older converters wrote and that repeat what the metadata says.
const REDUNDANT: [&str; 2] = [".attn_rot_embd.weight", ".attention.rotary_emb.inv_freq"];

/// The tensors of a model file.
pub(crate) struct Weights<'f> {
    file: &'f ModelFile,
    used: RefCell<BTreeSet<String>>,
    /// A tensor used twice is one value of the graph.
    made: HashMap<String, ValueId>,
}

impl<'f> Weights<'f> {
    pub(crate) fn new(file: &'f ModelFile) -> Weights<'f> {
        Weights { file, used: RefCell::default(), made: HashMap::new() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.file.metadata.file().to_owned()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.file.tensors.contains_key(name)
    }

    /// The length of a tensor's outermost axis.
    pub(crate) fn rows(&self, name: &str) -> Result<usize, ModelError> {
        Ok(self.file.tensor(name)?.shape().first().copied().unwrap_or(1))
    }

    /// A tensor as a value of the graph.
    pub(crate) fn value(
        &mut self,
        b: &mut Builder,
        name: &str,
        shape: &[usize],
    ) -> Result<ValueId, ModelError> {
        let tensor = self.file.tensor(name)?;
        self.check(name, tensor.shape(), shape)?;
        if let Some(&v) = self.made.get(name) {
            return Ok(v);
        }
        self.used.borrow_mut().insert(name.to_owned());
        let v = b.weight(name, tensor);
        self.made.insert(name.to_owned(), v);
        Ok(v)
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

    /// Fails when a part of the decoder is left over; tells of other tensors that are.
    pub(crate) fn finish(&self, family: &'static str) -> Result<Vec<String>, ModelError> {
        let used = self.used.borrow();
        let unused: Vec<&str> =
            self.file.tensors.keys().map(String::as_str).filter(|n| !used.contains(*n)).collect();
        let redundant = |name: &str| REDUNDANT.iter().any(|r| name.ends_with(r));
        let part = |name: &str| {
            ["blk.", "output", "token_embd", "rope_"].iter().any(|p| name.starts_with(p))
        };
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
