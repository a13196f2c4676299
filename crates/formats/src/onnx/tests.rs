use prost::Message;

use super::proto::*;
use super::*;

fn float(name: &str, dims: &[i64], values: &[f32]) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: dims.to_vec(),
        data_type: 1,
        raw_data: Some(values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>().into()),
        ..TensorProto::default()
    }
}

fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        op_type: op.into(),
        input: inputs.iter().map(|s| s.to_string()).collect(),
        output: outputs.iter().map(|s| s.to_string()).collect(),
        ..NodeProto::default()
    }
}

fn value(name: &str) -> ValueInfoProto {
    ValueInfoProto { name: name.into(), r#type: None }
}

fn model(graph: GraphProto) -> Vec<u8> {
    let opset = OperatorSetIdProto { domain: "ai.onnx".into(), version: 17 };
    ModelProto {
        ir_version: 8,
        graph: Some(graph),
        opset_import: vec![opset],
        ..ModelProto::default()
    }
    .encode_to_vec()
}

fn add_graph() -> GraphProto {
    GraphProto {
        node: vec![node("Add", &["x", "w"], &["y"])],
        initializer: vec![float("w", &[2], &[1.0, 2.0])],
        input: vec![value("x"), value("w")],
        output: vec![value("y")],
        ..GraphProto::default()
    }
}

fn error(graph: GraphProto) -> String {
    Model::from_bytes(model(graph), None).unwrap_err().to_string()
}

#[test]
fn a_model_is_read() {
    let m = Model::from_bytes(model(add_graph()), None).unwrap();
    assert_eq!(m.opset(""), Some(17));
    assert_eq!(m.graph.nodes[0].name, "y");
    // An initializer that is listed as an input is none.
    assert_eq!(m.graph.inputs.len(), 1);
    let w = m.graph.initializers["w"].tensor().unwrap();
    assert_eq!(w.to_f32_vec().unwrap(), [1.0, 2.0]);
}

#[test]
fn damaged_graphs_are_named() {
    let mut g = add_graph();
    g.node[0].input[0] = "y".into();
    assert!(error(g).contains("node 'y' reads 'y', which no"), "a cycle");
    let mut g = add_graph();
    g.node.push(node("Neg", &["x"], &["y"]));
    assert!(error(g).contains("two values are named 'y'"));
    let mut g = add_graph();
    g.output = vec![value("z")];
    assert!(error(g).contains("output 'z' is made by no node"));
    let mut g = add_graph();
    g.initializer[0].dims = vec![3];
    assert!(error(g).contains("takes 12 bytes, but there are 8"));
    let mut g = add_graph();
    g.initializer[0].dims = vec![1 << 40, 1 << 40];
    assert!(error(g).contains("more bytes than can be addressed"));
    let mut g = add_graph();
    g.initializer[0].dims = vec![-2];
    assert!(error(g).contains("dimension -2 is negative"));
    let mut g = add_graph();
    g.initializer[0].data_type = 99;
    assert!(error(g).contains("element type 99 is unknown"));
    assert!(Model::from_bytes(b"\x08\x08\x3a\xff\xff\xff\xff\x0f".to_vec(), None).is_err());
    assert_eq!(Model::from_bytes(vec![8, 8], None).unwrap_err(), OnnxError::NoGraph);
}

#[test]
fn deep_graphs_are_refused() {
    // `encode` recurses as deep as the message, so that the bytes are nested by hand.
    let mut bytes = Vec::new();
    for depth in 0..9_999 {
        let field: u8 = match depth % 3 {
            0 => 0x32, // AttributeProto.g
            1 => 0x2a, // NodeProto.attribute
            _ => 0x0a, // GraphProto.node
        };
        let mut outer = vec![field];
        prost::encoding::encode_varint(bytes.len() as u64, &mut outer);
        outer.extend_from_slice(&bytes);
        bytes = outer;
    }
    let mut file = vec![0x08, 8, 0x3a];
    prost::encoding::encode_varint(bytes.len() as u64, &mut file);
    file.extend_from_slice(&bytes);
    let error = Model::from_bytes(file, None).unwrap_err();
    assert!(matches!(error, OnnxError::Decode(_)), "{error}");
}

fn external(location: &str, offset: &str, length: &str) -> Vec<u8> {
    let entry = |k: &str, v: &str| StringStringEntryProto { key: k.into(), value: v.into() };
    let mut g = add_graph();
    g.initializer[0].raw_data = None;
    g.initializer[0].data_location = 1;
    g.initializer[0].external_data =
        vec![entry("location", location), entry("offset", offset), entry("length", length)];
    model(g)
}

/// Case O19: external data of a model that was given as bytes.
#[test]
fn external_data_stays_in_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    let data: Vec<u8> = [0.0f32, 5.0, 6.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    std::fs::write(dir.path().join("w.bin"), &data).unwrap();
    let read = |bytes: Vec<u8>| Model::from_bytes(bytes, Some(dir.path()));
    let m = read(external("w.bin", "4", "8")).unwrap();
    assert_eq!(m.graph.initializers["w"].tensor().unwrap().to_f32_vec().unwrap(), [5.0, 6.0]);

    let bare = Model::from_bytes(external("w.bin", "4", "8"), None).unwrap_err().to_string();
    assert!(bare.contains("the model has no folder; give the model by its path"), "{bare}");
    let fails = |location: &str, offset: &str, length: &str, why: &str| {
        let e = read(external(location, offset, length)).unwrap_err().to_string();
        assert!(e.contains(why), "{e}");
    };
    fails("../w.bin", "0", "8", "not inside the model's folder");
    fails("/etc/passwd", "0", "8", "not inside the model's folder");
    fails("", "0", "8", "not inside the model's folder");
    fails("gone.bin", "0", "8", "gone.bin");
    fails("w.bin", "8", "8", "are not inside 'w.bin' (12 bytes)");
    fails("w.bin", "18446744073709551615", "8", "are not inside");
    fails("w.bin", "0", "12", "takes 8 bytes, but there are 12");
    fails("w.bin", "-1", "8", "offset '-1'");
    #[cfg(unix)]
    {
        let elsewhere = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(elsewhere.path(), &data).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), dir.path().join("link.bin")).unwrap();
        fails("link.bin", "0", "8", "not inside the model's folder");
    }
}

#[test]
fn packed_types_are_widened() {
    let mut store = Store { file: None, folder: None, external: HashMap::new() };
    let mut read = |data_type: i32, raw: &[u8], n: i64| {
        let proto = TensorProto {
            dims: vec![n],
            data_type,
            raw_data: Some(raw.to_vec().into()),
            ..TensorProto::default()
        };
        store.constant(&proto).unwrap().tensor().unwrap().clone()
    };
    let int4 = read(22, &[0xf1, 0x08], 3);
    assert_eq!(int4.to_vec::<i8>(cyb_tensor::DType::I8).unwrap(), [1, -1, -8]);
    let uint2 = read(25, &[0b11_10_01_00], 4);
    assert_eq!(uint2.to_vec::<u8>(cyb_tensor::DType::U8).unwrap(), [0, 1, 2, 3]);
    let f4 = read(23, &[0xf2], 2);
    assert_eq!(f4.to_f32_vec().unwrap(), [1.0, -6.0]);
}

#[test]
fn sparse_tensors_become_dense() {
    let mut g = add_graph();
    let indices = TensorProto {
        dims: vec![2],
        data_type: 7,
        int64_data: vec![1, 3],
        ..TensorProto::default()
    };
    g.sparse_initializer = vec![SparseTensorProto {
        values: Some(float("s", &[2], &[7.0, 8.0])),
        indices: Some(indices),
        dims: vec![2, 2],
    }];
    let m = Model::from_bytes(model(g.clone()), None).unwrap();
    let s = m.graph.initializers["s"].tensor().unwrap();
    assert_eq!(s.to_f32_vec().unwrap(), [0.0, 7.0, 0.0, 8.0]);
    g.sparse_initializer[0].dims = vec![1 << 30, 1 << 10];
    assert!(error(g.clone()).contains("too large to be made dense"));
    g.sparse_initializer[0].dims = vec![2, 1];
    assert!(error(g).contains("an index outside its shape"));
}

proptest::proptest! {
    #[test]
    fn random_edits_never_panic(at in 0usize..200, byte: u8, cut in 0usize..200) {
        let mut bytes = model(add_graph());
        let n = bytes.len();
        bytes[at % n] = byte;
        let _ = Model::from_bytes(bytes.clone(), None);
        bytes.truncate(cut % n);
        let _ = Model::from_bytes(bytes, None);
    }
}

#[test]
fn nodes_in_any_order_are_put_in_one_that_works() {
    let mut graph = add_graph();
    graph.node = vec![
        node("Mul", &["b", "a"], &["y"]),
        node("Neg", &["a"], &["b"]),
        node("Add", &["x", "w"], &["a"]),
    ];
    let model = Model::from_bytes(model(graph), None).unwrap();
    let ops: Vec<&str> = model.graph.nodes.iter().map(|n| n.op.as_str()).collect();
    assert_eq!(ops, ["Add", "Neg", "Mul"]);
}

#[test]
fn a_cycle_is_an_error() {
    let mut graph = add_graph();
    graph.node = vec![node("Add", &["x", "b"], &["y"]), node("Neg", &["y"], &["b"])];
    let error = Model::from_bytes(model(graph), None).unwrap_err();
    assert!(matches!(error, OnnxError::Undefined { .. }), "{error}");
}
