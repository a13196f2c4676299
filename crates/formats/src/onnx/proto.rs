//! The messages of `onnx.proto` with the fields that the runtime reads; other fields are skipped.
//! Numbers and types are those of <https://github.com/onnx/onnx/blob/main/onnx/onnx.proto>.
//!
//! Prost refuses messages nested more than 100 deep, which bounds the depth of sub-graphs.

use prost::bytes::Bytes;

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ModelProto {
    #[prost(int64, tag = "1")]
    pub(super) ir_version: i64,
    #[prost(string, tag = "2")]
    pub(super) producer_name: String,
    #[prost(message, optional, tag = "7")]
    pub(super) graph: Option<GraphProto>,
    #[prost(message, repeated, tag = "8")]
    pub(super) opset_import: Vec<OperatorSetIdProto>,
    #[prost(message, repeated, tag = "14")]
    pub(super) metadata_props: Vec<StringStringEntryProto>,
    #[prost(message, repeated, tag = "25")]
    pub(super) functions: Vec<FunctionProto>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct OperatorSetIdProto {
    #[prost(string, tag = "1")]
    pub(super) domain: String,
    #[prost(int64, tag = "2")]
    pub(super) version: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StringStringEntryProto {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct FunctionProto {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, repeated, tag = "4")]
    pub(super) input: Vec<String>,
    #[prost(string, repeated, tag = "5")]
    pub(super) output: Vec<String>,
    #[prost(message, repeated, tag = "7")]
    pub(super) node: Vec<NodeProto>,
    #[prost(message, repeated, tag = "9")]
    pub(super) opset_import: Vec<OperatorSetIdProto>,
    #[prost(string, tag = "10")]
    pub(super) domain: String,
    #[prost(message, repeated, tag = "11")]
    pub(super) attribute_proto: Vec<AttributeProto>,
    #[prost(string, tag = "13")]
    pub(super) overload: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    pub(super) node: Vec<NodeProto>,
    #[prost(string, tag = "2")]
    pub(super) name: String,
    #[prost(message, repeated, tag = "5")]
    pub(super) initializer: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    pub(super) input: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "12")]
    pub(super) output: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "15")]
    pub(super) sparse_initializer: Vec<SparseTensorProto>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct NodeProto {
    #[prost(string, repeated, tag = "1")]
    pub(super) input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(super) output: Vec<String>,
    #[prost(string, tag = "3")]
    pub(super) name: String,
    #[prost(string, tag = "4")]
    pub(super) op_type: String,
    #[prost(message, repeated, tag = "5")]
    pub(super) attribute: Vec<AttributeProto>,
    #[prost(string, tag = "7")]
    pub(super) domain: String,
    #[prost(string, tag = "8")]
    pub(super) overload: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct AttributeProto {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(float, optional, tag = "2")]
    pub(super) f: Option<f32>,
    #[prost(int64, optional, tag = "3")]
    pub(super) i: Option<i64>,
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub(super) s: Option<Bytes>,
    #[prost(message, optional, tag = "5")]
    pub(super) t: Option<TensorProto>,
    #[prost(message, optional, boxed, tag = "6")]
    pub(super) g: Option<Box<GraphProto>>,
    #[prost(float, repeated, tag = "7")]
    pub(super) floats: Vec<f32>,
    #[prost(int64, repeated, tag = "8")]
    pub(super) ints: Vec<i64>,
    #[prost(bytes = "bytes", repeated, tag = "9")]
    pub(super) strings: Vec<Bytes>,
    #[prost(message, optional, tag = "14")]
    pub(super) tp: Option<TypeProto>,
    #[prost(int32, tag = "20")]
    pub(super) r#type: i32,
    #[prost(string, tag = "21")]
    pub(super) ref_attr_name: String,
    #[prost(message, optional, tag = "22")]
    pub(super) sparse_tensor: Option<SparseTensorProto>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TensorProto {
    #[prost(int64, repeated, tag = "1")]
    pub(super) dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    pub(super) data_type: i32,
    #[prost(float, repeated, tag = "4")]
    pub(super) float_data: Vec<f32>,
    #[prost(int32, repeated, tag = "5")]
    pub(super) int32_data: Vec<i32>,
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub(super) string_data: Vec<Bytes>,
    #[prost(int64, repeated, tag = "7")]
    pub(super) int64_data: Vec<i64>,
    #[prost(string, tag = "8")]
    pub(super) name: String,
    #[prost(bytes = "bytes", optional, tag = "9")]
    pub(super) raw_data: Option<Bytes>,
    #[prost(double, repeated, tag = "10")]
    pub(super) double_data: Vec<f64>,
    #[prost(uint64, repeated, tag = "11")]
    pub(super) uint64_data: Vec<u64>,
    #[prost(message, repeated, tag = "13")]
    pub(super) external_data: Vec<StringStringEntryProto>,
    #[prost(int32, tag = "14")]
    pub(super) data_location: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SparseTensorProto {
    #[prost(message, optional, tag = "1")]
    pub(super) values: Option<TensorProto>,
    #[prost(message, optional, tag = "2")]
    pub(super) indices: Option<TensorProto>,
    #[prost(int64, repeated, tag = "3")]
    pub(super) dims: Vec<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ValueInfoProto {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, optional, tag = "2")]
    pub(super) r#type: Option<TypeProto>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TypeProto {
    #[prost(message, optional, tag = "1")]
    pub(super) tensor_type: Option<TensorTypeProto>,
    #[prost(message, optional, tag = "4")]
    pub(super) sequence_type: Option<EmptyProto>,
    #[prost(message, optional, tag = "5")]
    pub(super) map_type: Option<EmptyProto>,
    #[prost(message, optional, tag = "9")]
    pub(super) optional_type: Option<EmptyProto>,
}

/// A message whose content is not read.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct EmptyProto {}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TensorTypeProto {
    #[prost(int32, tag = "1")]
    pub(super) elem_type: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) shape: Option<TensorShapeProto>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TensorShapeProto {
    #[prost(message, repeated, tag = "1")]
    pub(super) dim: Vec<DimensionProto>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct DimensionProto {
    #[prost(int64, optional, tag = "1")]
    pub(super) dim_value: Option<i64>,
    #[prost(string, tag = "2")]
    pub(super) dim_param: String,
}
