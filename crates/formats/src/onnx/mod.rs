//! ONNX files: a graph of named operators with its weights, as protobuf messages.
//!
//! [`Model`] is the file made typed and checked: every tensor has the bytes its shape asks for,
//! every value a node reads is made before it, and names are unique where they must be. What the
//! operators mean is not known here. The format is that of
//! <https://github.com/onnx/onnx/blob/main/docs/IR.md>.

mod elem;
mod proto;
mod tensor;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cyb_tensor::MappedFile;
use indexmap::IndexMap;
use prost::Message;
use prost::bytes::Bytes;

use crate::error::FormatError;
use crate::text::Excerpt;
use proto::{AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, ValueInfoProto};
use tensor::Store;

pub use elem::{Elem, NarrowFloat};
pub use tensor::{Constant, TensorProblem};

/// What is wrong with an ONNX file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OnnxError {
    #[error("it is no ONNX model: {0}; fetch it again")]
    Decode(String),
    #[error("it has no graph; export the model again")]
    NoGraph,
    #[error("tensor {}: {problem}", Excerpt(name))]
    Tensor { name: String, problem: TensorProblem },
    #[error("node {}: attribute {}: {problem}", Excerpt(node), Excerpt(attribute))]
    Attribute { node: String, attribute: String, problem: String },
    #[error("two values are named {}; the file is damaged", Excerpt(.0))]
    Twice(String),
    #[error(
        "node {} reads {}, which no initializer, input or earlier node makes; the file is damaged",
        Excerpt(node),
        Excerpt(value)
    )]
    Undefined { node: String, value: String },
    #[error("output {} is made by no node; the file is damaged", Excerpt(.0))]
    NoOutput(String),
    #[error("value {}: {problem}; the file is damaged", Excerpt(name))]
    Value { name: String, problem: &'static str },
}

/// An ONNX model.
#[derive(Clone, Debug)]
pub struct Model {
    pub ir_version: i64,
    pub producer: String,
    /// Domain to the version of its operator set. The default domain is the empty string.
    pub opsets: BTreeMap<String, i64>,
    pub graph: Arc<Graph>,
    /// Functions of the model by (domain, name).
    pub functions: HashMap<(String, String), Arc<Function>>,
    pub metadata: IndexMap<String, String>,
    /// Where the model came from, when it came from a file.
    pub path: Option<PathBuf>,
}

/// A graph: the model's, or an attribute of a control-flow node.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    pub name: String,
    /// In topological order, whatever the file's.
    pub nodes: Vec<Node>,
    pub initializers: IndexMap<String, Constant>,
    /// Inputs that no initializer gives.
    pub inputs: Vec<ValueInfo>,
    pub outputs: Vec<ValueInfo>,
}

/// An operator applied to named values. An empty name is an input left out or an output that is
/// not wanted.
#[derive(Clone, Debug)]
pub struct Node {
    /// The node's name, or its first output's.
    pub name: String,
    pub op: String,
    /// The default domain is the empty string.
    pub domain: String,
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
    pub attributes: IndexMap<String, Attribute>,
}

/// An attribute's value.
#[derive(Clone, Debug)]
pub enum Attribute {
    Float(f32),
    Int(i64),
    Str(Vec<u8>),
    Floats(Vec<f32>),
    Ints(Vec<i64>),
    Strs(Vec<Vec<u8>>),
    Tensor(Constant),
    Graph(Arc<Graph>),
    Type(Type),
    /// In a function: the attribute of the call with this name.
    Ref(String),
}

/// A function of the model: a graph in terms of its inputs and attributes.
#[derive(Clone, Debug)]
pub struct Function {
    pub name: String,
    pub domain: String,
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
    pub defaults: IndexMap<String, Attribute>,
    pub opsets: BTreeMap<String, i64>,
    pub nodes: Vec<Node>,
}

/// The declared type of an input or output.
#[derive(Clone, Debug)]
pub struct ValueInfo {
    pub name: String,
    pub ty: Type,
}

/// A declared type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    /// The shape is `None` when the rank is not declared.
    Tensor {
        elem: Elem,
        shape: Option<Vec<Dimension>>,
    },
    Sequence,
    Map,
    Optional,
    Unknown,
}

/// A declared dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dimension {
    Known(usize),
    Symbol(String),
    Unknown,
}

impl Model {
    /// Opens a model; external data is read from its folder.
    pub fn open(path: &Path) -> Result<Model, FormatError> {
        Model::of_file(MappedFile::open(path)?)
    }

    pub(crate) fn of_file(file: MappedFile) -> Result<Model, FormatError> {
        /// A mapped file as an owner of bytes that slices share.
        struct Whole(Arc<MappedFile>);
        impl AsRef<[u8]> for Whole {
            fn as_ref(&self) -> &[u8] {
                self.0.bytes()
            }
        }
        let file = Arc::new(file);
        let path = file.path().to_owned();
        // A bare file name has the empty path as its parent.
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
        let folder = Some(parent.unwrap_or(Path::new(".")).to_owned());
        let bytes = Bytes::from_owner(Whole(file.clone()));
        let store = Store { file: Some(file), folder, external: HashMap::new() };
        match decode(bytes, store) {
            Ok(model) => Ok(Model { path: Some(path), ..model }),
            Err(problem) => Err(FormatError::Onnx { path, problem }),
        }
    }

    /// Reads a model from memory. Without a `folder`, external data is an error.
    pub fn from_bytes(bytes: Vec<u8>, folder: Option<&Path>) -> Result<Model, OnnxError> {
        let folder = folder.map(Path::to_owned);
        decode(Bytes::from(bytes), Store { file: None, folder, external: HashMap::new() })
    }

    /// The version of a domain's operator set.
    pub fn opset(&self, domain: &str) -> Option<i64> {
        self.opsets.get(domain).copied()
    }
}

/// Reads one serialised `TensorProto`, as test data and quantisation tools store them.
pub fn tensor_from_bytes(bytes: &[u8]) -> Result<Constant, OnnxError> {
    let proto = proto::TensorProto::decode(bytes).map_err(|e| OnnxError::Decode(e.to_string()))?;
    let mut store = Store { file: None, folder: None, external: HashMap::new() };
    store.constant(&proto).map_err(|problem| OnnxError::Tensor { name: proto.name, problem })
}

fn decode(bytes: Bytes, mut store: Store) -> Result<Model, OnnxError> {
    let proto = ModelProto::decode(bytes).map_err(|e| OnnxError::Decode(e.to_string()))?;
    let graph = proto.graph.as_ref().ok_or(OnnxError::NoGraph)?;
    let graph = store.graph(graph, &Scope::default())?;
    let mut functions = HashMap::new();
    for f in &proto.functions {
        let f = store.function(f)?;
        functions.insert((f.domain.clone(), f.name.clone()), Arc::new(f));
    }
    let metadata = proto.metadata_props.into_iter().map(|e| (e.key, e.value)).collect();
    Ok(Model {
        ir_version: proto.ir_version,
        producer: proto.producer_name,
        opsets: opsets(&proto.opset_import),
        graph: Arc::new(graph),
        functions,
        metadata,
        path: None,
    })
}

/// `ai.onnx` is another spelling of the default domain.
fn domain(name: &str) -> String {
    if name == "ai.onnx" { String::new() } else { name.to_owned() }
}

fn opsets(list: &[proto::OperatorSetIdProto]) -> BTreeMap<String, i64> {
    list.iter().map(|o| (domain(&o.domain), o.version)).collect()
}

/// Names that are visible in a graph: its own and those of the graphs around it.
#[derive(Default)]
struct Scope<'a> {
    names: HashSet<&'a str>,
    outer: Option<&'a Scope<'a>>,
}

impl Scope<'_> {
    fn has(&self, name: &str) -> bool {
        self.names.contains(name) || self.outer.is_some_and(|o| o.has(name))
    }
}

impl Store {
    fn graph(&mut self, proto: &GraphProto, outer: &Scope<'_>) -> Result<Graph, OnnxError> {
        let mut initializers = IndexMap::with_capacity(proto.initializer.len());
        for t in &proto.initializer {
            let value = self.constant(t).map_err(|problem| tensor_error(&t.name, problem))?;
            if initializers.insert(t.name.clone(), value).is_some() {
                return Err(OnnxError::Twice(t.name.clone()));
            }
        }
        for t in &proto.sparse_initializer {
            let (name, value) = self.dense(t).map_err(|problem| {
                let name = t.values.as_ref().map_or("", |v| v.name.as_str());
                tensor_error(name, problem)
            })?;
            if initializers.insert(name.clone(), value).is_some() {
                return Err(OnnxError::Twice(name));
            }
        }
        let names: HashSet<&str> = proto
            .initializer
            .iter()
            .map(|t| t.name.as_str())
            .chain(
                proto
                    .sparse_initializer
                    .iter()
                    .filter_map(|t| t.values.as_ref())
                    .map(|v| v.name.as_str()),
            )
            .collect();
        let mut scope = Scope { names, outer: Some(outer) };
        let mut inputs = Vec::new();
        let mut seen = HashSet::new();
        for info in &proto.input {
            if !seen.insert(info.name.as_str()) {
                return Err(OnnxError::Twice(info.name.clone()));
            }
            // Old files list initializers among the inputs.
            if !initializers.contains_key(&info.name) {
                inputs.push(value_info(info)?);
            }
            scope.names.insert(&info.name);
        }
        let nodes = self.nodes(&proto.node, &mut scope)?;
        let outputs = proto.output.iter().map(value_info).collect::<Result<Vec<_>, _>>()?;
        if let Some(missing) = outputs.iter().find(|o| !scope.has(&o.name)) {
            return Err(OnnxError::NoOutput(missing.name.clone()));
        }
        Ok(Graph { name: proto.name.clone(), nodes, initializers, inputs, outputs })
    }

    fn nodes<'a>(
        &mut self,
        protos: &'a [NodeProto],
        scope: &mut Scope<'a>,
    ) -> Result<Vec<Node>, OnnxError> {
        let mut nodes = Vec::with_capacity(protos.len());
        for proto in in_order(protos) {
            let first = proto.output.iter().find(|o| !o.is_empty());
            let name = if proto.name.is_empty() { first.cloned() } else { None };
            let name = name.unwrap_or_else(|| proto.name.clone());
            if let Some(value) = proto.input.iter().find(|i| !i.is_empty() && !scope.has(i)) {
                return Err(OnnxError::Undefined { node: name, value: value.clone() });
            }
            let mut attributes = IndexMap::with_capacity(proto.attribute.len());
            for a in &proto.attribute {
                attributes.insert(a.name.clone(), self.attribute(a, &name, scope)?);
            }
            for output in proto.output.iter().filter(|o| !o.is_empty()) {
                if !scope.names.insert(output) {
                    return Err(OnnxError::Twice(output.clone()));
                }
            }
            nodes.push(Node {
                name,
                op: proto.op_type.clone(),
                domain: domain(&proto.domain),
                inputs: proto.input.clone(),
                outputs: proto.output.clone(),
                attributes,
            });
        }
        Ok(nodes)
    }

    fn attribute(
        &mut self,
        a: &AttributeProto,
        node: &str,
        scope: &Scope<'_>,
    ) -> Result<Attribute, OnnxError> {
        let problem = |problem: String| OnnxError::Attribute {
            node: node.to_owned(),
            attribute: a.name.clone(),
            problem,
        };
        let lacks = || problem("its value is missing; the file is damaged".into());
        if !a.ref_attr_name.is_empty() {
            return Ok(Attribute::Ref(a.ref_attr_name.clone()));
        }
        // Numbers of `AttributeProto.AttributeType`; proto2 leaves out values equal to a default.
        Ok(match a.r#type {
            1 => Attribute::Float(a.f.unwrap_or(0.0)),
            2 => Attribute::Int(a.i.unwrap_or(0)),
            3 => Attribute::Str(a.s.as_deref().unwrap_or_default().to_vec()),
            4 => {
                let t = a.t.as_ref().ok_or_else(lacks)?;
                Attribute::Tensor(self.constant(t).map_err(|e| problem(e.to_string()))?)
            }
            5 => {
                let g = a.g.as_ref().ok_or_else(lacks)?;
                Attribute::Graph(Arc::new(self.graph(g, scope)?))
            }
            6 => Attribute::Floats(a.floats.clone()),
            7 => Attribute::Ints(a.ints.clone()),
            8 => Attribute::Strs(a.strings.iter().map(|s| s.to_vec()).collect()),
            11 => {
                let t = a.sparse_tensor.as_ref().ok_or_else(lacks)?;
                Attribute::Tensor(self.dense(t).map_err(|e| problem(e.to_string()))?.1)
            }
            13 => Attribute::Type(self::ty(a.tp.as_ref()).map_err(|e| problem(e.into()))?),
            // Files of IR version 1 have no types.
            0 if a.f.is_some() => Attribute::Float(a.f.unwrap_or(0.0)),
            0 if a.i.is_some() => Attribute::Int(a.i.unwrap_or(0)),
            0 if a.s.is_some() => Attribute::Str(a.s.as_deref().unwrap_or_default().to_vec()),
            0 if !a.floats.is_empty() => Attribute::Floats(a.floats.clone()),
            0 if !a.strings.is_empty() => {
                Attribute::Strs(a.strings.iter().map(|s| s.to_vec()).collect())
            }
            0 => Attribute::Ints(a.ints.clone()),
            n => return Err(problem(format!("type {n} is not supported; export without it"))),
        })
    }

    fn function(&mut self, f: &FunctionProto) -> Result<Function, OnnxError> {
        let names = f.input.iter().map(String::as_str).collect();
        let mut scope = Scope { names, outer: None };
        let nodes = self.nodes(&f.node, &mut scope)?;
        if let Some(missing) = f.output.iter().find(|o| !scope.has(o)) {
            return Err(OnnxError::NoOutput(missing.clone()));
        }
        let mut defaults = IndexMap::new();
        for a in &f.attribute_proto {
            defaults.insert(a.name.clone(), self.attribute(a, &f.name, &scope)?);
        }
        Ok(Function {
            name: f.name.clone(),
            domain: domain(&f.domain),
            inputs: f.input.clone(),
            outputs: f.output.clone(),
            defaults,
            opsets: opsets(&f.opset_import),
            nodes,
        })
    }
}

/// Nodes after those that make what they read: some converters put theirs at the end. Otherwise the
/// order stays as it is; nodes of a cycle come last.
fn in_order(protos: &[NodeProto]) -> Vec<&NodeProto> {
    let mut maker: HashMap<&str, usize> = HashMap::new();
    for (i, proto) in protos.iter().enumerate() {
        for output in proto.output.iter().filter(|o| !o.is_empty()) {
            maker.entry(output).or_insert(i);
        }
    }
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); protos.len()];
    let mut waits_for = vec![0usize; protos.len()];
    for (i, proto) in protos.iter().enumerate() {
        let mut before: Vec<usize> = Vec::new();
        each_read(proto, &mut |name| before.extend(maker.get(name).filter(|m| **m != i)));
        before.sort_unstable();
        before.dedup();
        waits_for[i] = before.len();
        before.into_iter().for_each(|m| readers[m].push(i));
    }
    let mut ready: BinaryHeap<Reverse<usize>> =
        (0..protos.len()).filter(|&i| waits_for[i] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(protos.len());
    while let Some(Reverse(i)) = ready.pop() {
        order.push(&protos[i]);
        for &reader in &readers[i] {
            waits_for[reader] -= 1;
            if waits_for[reader] == 0 {
                ready.push(Reverse(reader));
            }
        }
    }
    order.extend(protos.iter().zip(&waits_for).filter(|(_, n)| **n > 0).map(|(proto, _)| proto));
    order
}

/// Every name that a node, or a node of a graph inside it, reads.
fn each_read<'a>(proto: &'a NodeProto, visit: &mut dyn FnMut(&'a str)) {
    proto.input.iter().for_each(|name| visit(name));
    for graph in proto.attribute.iter().filter_map(|a| a.g.as_ref()) {
        graph.node.iter().for_each(|node| each_read(node, visit));
        graph.output.iter().for_each(|output| visit(&output.name));
    }
}

fn tensor_error(name: &str, problem: TensorProblem) -> OnnxError {
    OnnxError::Tensor { name: name.to_owned(), problem }
}

fn value_info(proto: &ValueInfoProto) -> Result<ValueInfo, OnnxError> {
    let ty = ty(proto.r#type.as_ref())
        .map_err(|problem| OnnxError::Value { name: proto.name.clone(), problem })?;
    Ok(ValueInfo { name: proto.name.clone(), ty })
}

fn ty(proto: Option<&proto::TypeProto>) -> Result<Type, &'static str> {
    let Some(proto) = proto else { return Ok(Type::Unknown) };
    if let Some(t) = &proto.tensor_type {
        if t.elem_type == 0 {
            return Ok(Type::Unknown);
        }
        let elem = Elem::from_id(i64::from(t.elem_type)).ok_or("its element type is unknown")?;
        let shape = match &t.shape {
            None => None,
            Some(shape) => Some(
                shape
                    .dim
                    .iter()
                    .map(|d| match d.dim_value {
                        Some(n) if n < 0 => Ok(Dimension::Unknown),
                        Some(n) => usize::try_from(n)
                            .map(Dimension::Known)
                            .map_err(|_| "a dimension is too large"),
                        None if d.dim_param.is_empty() => Ok(Dimension::Unknown),
                        None => Ok(Dimension::Symbol(d.dim_param.clone())),
                    })
                    .collect::<Result<Vec<_>, _>>()?,
            ),
        };
        return Ok(Type::Tensor { elem, shape });
    }
    Ok(match proto {
        p if p.sequence_type.is_some() => Type::Sequence,
        p if p.map_type.is_some() => Type::Map,
        p if p.optional_type.is_some() => Type::Optional,
        _ => Type::Unknown,
    })
}
