//! Models of a node or a few, made here, on the interpreter.

use std::collections::BTreeMap;
use std::sync::Arc;

use cyb_formats::onnx::{
    Attribute, Constant, Dimension, Elem, Graph, Model, Node, Type, ValueInfo,
};
use cyb_tensor::{DType, Tensor};
use indexmap::IndexMap;

use crate::{Interpreter, Onnx, OnnxError};

mod recognition;

fn info(name: &str, elem: Elem, dims: &[Dimension]) -> ValueInfo {
    let ty = Type::Tensor { elem, shape: Some(dims.to_vec()) };
    ValueInfo { name: name.to_owned(), ty }
}

fn any(name: &str, elem: Elem, rank: usize) -> ValueInfo {
    info(name, elem, &vec![Dimension::Unknown; rank])
}

fn node(op: &str, inputs: &[&str], output: &str, attributes: &[(&str, Attribute)]) -> Node {
    Node {
        name: format!("the {op}"),
        op: op.to_owned(),
        domain: String::new(),
        inputs: inputs.iter().map(|s| (*s).to_owned()).collect(),
        outputs: vec![output.to_owned()],
        attributes: attributes.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect(),
    }
}

fn model(opset: i64, nodes: Vec<Node>, inputs: Vec<ValueInfo>, outputs: &[&str]) -> Model {
    let unknown = |name: &&str| ValueInfo { name: (*name).to_owned(), ty: Type::Unknown };
    let graph = Graph {
        name: "test".into(),
        nodes,
        initializers: IndexMap::new(),
        inputs,
        outputs: outputs.iter().map(unknown).collect(),
    };
    Model {
        ir_version: 10,
        producer: String::new(),
        opsets: BTreeMap::from([(String::new(), opset), ("com.microsoft".to_owned(), 1)]),
        graph: Arc::new(graph),
        functions: Default::default(),
        metadata: IndexMap::new(),
        path: None,
    }
}

fn floats(shape: &[usize], values: &[f32]) -> Tensor {
    Tensor::from_f32(shape.to_vec(), values).unwrap()
}

fn ints(shape: &[usize], values: &[i64]) -> Tensor {
    Tensor::from_elems(DType::I64, shape.to_vec(), values).unwrap()
}

fn try_run(model: Model, inputs: &[(&str, Tensor)]) -> Result<IndexMap<String, Tensor>, OnnxError> {
    let inputs = inputs.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
    Onnx::new(model, Box::new(Interpreter))?.run(&inputs)
}

fn run(model: Model, inputs: &[(&str, Tensor)]) -> Tensor {
    try_run(model, inputs).unwrap().swap_remove_index(0).unwrap().1
}

fn constant(elem: Elem, tensor: Tensor) -> Attribute {
    Attribute::Tensor(Constant::Tensor { elem, tensor })
}

#[test]
fn softmax_before_opset_13_takes_all_axes_from_its_own() {
    for (opset, want) in [(11, 1.0 / 12.0), (13, 0.25)] {
        let nodes = vec![node("Softmax", &["x"], "y", &[])];
        let y = run(
            model(opset, nodes, vec![any("x", Elem::F32, 3)], &["y"]),
            &[("x", floats(&[2, 3, 4], &[0.0; 24]))],
        );
        assert!(y.to_f32_vec().unwrap().iter().all(|v| (v - want).abs() < 1e-6));
    }
}

#[test]
fn a_partial_last_window_counts_what_it_has() {
    let x: Vec<f32> = (1..=16).map(|i| i as f32).collect();
    let attributes = [
        ("kernel_shape", Attribute::Ints(vec![3, 3])),
        ("strides", Attribute::Ints(vec![2, 2])),
        ("ceil_mode", Attribute::Int(1)),
    ];
    let nodes = vec![node("AveragePool", &["x"], "y", &attributes)];
    let y = run(
        model(19, nodes, vec![any("x", Elem::F32, 4)], &["y"]),
        &[("x", floats(&[1, 1, 4, 4], &x))],
    );
    assert_eq!(y.to_f32_vec().unwrap(), [6.0, 7.5, 12.0, 13.5]);
}

#[test]
fn resizing_to_one_element() {
    let x: Vec<f32> = (0..10).map(|i| i as f32).collect();
    for (mode, want) in [("pytorch_half_pixel", 0.0), ("half_pixel", 4.5)] {
        let size = constant(Elem::I64, ints(&[3], &[1, 1, 1]));
        let attributes = [
            ("mode", Attribute::Str(b"linear".to_vec())),
            ("coordinate_transformation_mode", Attribute::Str(mode.into())),
        ];
        let nodes = vec![
            node("Constant", &[], "size", &[("value", size)]),
            node("Resize", &["x", "", "", "size"], "y", &attributes),
        ];
        let y = run(
            model(19, nodes, vec![any("x", Elem::F32, 3)], &["y"]),
            &[("x", floats(&[1, 1, 10], &x))],
        );
        assert_eq!(y.to_f32_vec().unwrap(), [want]);
    }
}

#[test]
fn reshapes_of_empty_tensors_keep_zeros_when_told_to() {
    let nodes = vec![
        node("Constant", &[], "a", &[("value_ints", Attribute::Ints(vec![4, 2, 0]))]),
        node("Constant", &[], "b", &[("value_ints", Attribute::Ints(vec![0, 0, 4]))]),
        node("Reshape", &["x", "a"], "m", &[("allowzero", Attribute::Int(1))]),
        node("Reshape", &["m", "b"], "y", &[("allowzero", Attribute::Int(1))]),
    ];
    let y = run(
        model(14, nodes, vec![any("x", Elem::F32, 3)], &["y"]),
        &[("x", floats(&[0, 8, 2], &[]))],
    );
    assert_eq!(y.shape(), [0, 0, 4]);
}

fn nbits(k: i64, n: i64, block: i64) -> Node {
    let mut node = node(
        "MatMulNBits",
        &["a", "b", "s", "z"],
        "y",
        &[
            ("K", Attribute::Int(k)),
            ("N", Attribute::Int(n)),
            ("bits", Attribute::Int(4)),
            ("block_size", Attribute::Int(block)),
        ],
    );
    node.domain = "com.microsoft".into();
    node
}

fn bytes(shape: &[usize], value: u8) -> Attribute {
    let n = shape.iter().product();
    constant(Elem::U8, Tensor::from_elems(DType::U8, shape.to_vec(), &vec![value; n]).unwrap())
}

#[test]
fn blocks_of_512_codes() {
    let nodes = vec![
        node("Constant", &[], "b", &[("value", bytes(&[2, 4, 256], 0x22))]),
        node("Constant", &[], "s", &[("value", constant(Elem::F32, floats(&[8], &[0.5; 8])))]),
        node("Constant", &[], "z", &[("value", bytes(&[2, 2], 0x33))]),
        nbits(2048, 2, 512),
    ];
    let y = run(
        model(17, nodes, vec![any("a", Elem::F32, 2)], &["y"]),
        &[("a", floats(&[1, 2048], &[1.0; 2048]))],
    );
    assert_eq!(y.to_f32_vec().unwrap(), [-1024.0, -1024.0]);
}

#[test]
fn zero_points_in_one_axis_or_two_or_none() {
    let mut results = Vec::new();
    for zeros in [Some(&[4usize][..]), Some(&[2, 2]), None] {
        let mut nodes = vec![
            node("Constant", &[], "b", &[("value", bytes(&[2, 3, 8], 0x5a))]),
            node("Constant", &[], "s", &[("value", constant(Elem::F32, floats(&[6], &[0.5; 6])))]),
        ];
        let mut product = nbits(48, 2, 16);
        match zeros {
            Some(shape) => {
                nodes.push(node("Constant", &[], "z", &[("value", bytes(shape, 0x88))]));
            }
            None => product.inputs.truncate(3),
        }
        nodes.push(product);
        let a: Vec<f32> = (0..48).map(|i| i as f32).collect();
        let inputs = [("a", floats(&[1, 48], &a))];
        let y = run(model(17, nodes, vec![any("a", Elem::F32, 2)], &["y"]), &inputs);
        results.push(y.to_f32_vec().unwrap());
    }
    // Codes 10 and 5 alternate, so weights are 1 and -1.5.
    assert_eq!(results[0], [552.0 - 1.5 * 576.0; 2]);
    assert!(results.iter().all(|r| *r == results[0]));
}

#[test]
fn gather_takes_scalars_and_counts_from_the_end() {
    let x = floats(&[3, 2], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    for (index, shape, want) in [
        (ints(&[], &[-1]), vec![2], vec![4.0, 5.0]),
        (ints(&[1, 2], &[0, -2]), vec![1, 2, 2], vec![0.0, 1.0, 2.0, 3.0]),
    ] {
        let rank = index.shape().len();
        let inputs = vec![any("x", Elem::F32, 2), any("i", Elem::I64, rank)];
        let nodes = vec![node("Gather", &["x", "i"], "y", &[])];
        let y = run(model(13, nodes, inputs, &["y"]), &[("x", x.clone()), ("i", index)]);
        assert_eq!(y.shape(), shape);
        assert_eq!(y.to_f32_vec().unwrap(), want);
    }
}

#[test]
fn declared_output_shapes_do_not_matter() {
    let mut m = model(13, vec![node("Relu", &["x"], "y", &[])], vec![], &[]);
    let graph = Graph {
        inputs: vec![info("x", Elem::F32, &[Dimension::Symbol("unk__6".into())])],
        outputs: vec![info(
            "y",
            Elem::F32,
            &[Dimension::Symbol("a.b".into()), Dimension::Known(9)],
        )],
        ..(*m.graph).clone()
    };
    m.graph = Arc::new(graph);
    assert_eq!(run(m, &[("x", floats(&[3], &[1.0, -1.0, 0.5]))]).shape(), [3]);
}

#[test]
fn a_batch_that_the_export_fixed_is_named() {
    let nodes = vec![
        node("Constant", &[], "s", &[("value_ints", Attribute::Ints(vec![1, 8]))]),
        node("Reshape", &["x", "s"], "y", &[]),
    ];
    let m = model(13, nodes, vec![any("x", Elem::F32, 3)], &["y"]);
    let error = try_run(m, &[("x", floats(&[3, 2, 4], &[0.0; 24]))]).unwrap_err().to_string();
    assert!(error.contains("the Reshape") && error.contains("[1, 8]"), "{error}");
}

#[test]
fn unsupported_nodes_are_listed_at_once() {
    let nodes = vec![node("Frob", &["x"], "m", &[]), node("StringConcat", &["m", "m"], "y", &[])];
    let error = try_run(model(20, nodes, vec![any("x", Elem::F32, 1)], &["y"]), &[]).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("the Frob") && text.contains("the StringConcat"), "{text}");
    let OnnxError::Unsupported(list) = error else { panic!("{text}") };
    assert_eq!(list.len(), 2);
}

fn suppress(boxes: Tensor, scores: Tensor, limits: [Tensor; 3]) -> Vec<i64> {
    let inputs = vec![
        any("boxes", Elem::F32, 3),
        any("scores", Elem::F32, 3),
        any("most", Elem::I64, limits[0].shape().len()),
        any("iou", Elem::F32, limits[1].shape().len()),
        any("score", Elem::F32, limits[2].shape().len()),
    ];
    let nodes =
        vec![node("NonMaxSuppression", &["boxes", "scores", "most", "iou", "score"], "y", &[])];
    let [most, iou, score] = limits;
    let y = run(
        model(11, nodes, inputs, &["y"]),
        &[("boxes", boxes), ("scores", scores), ("most", most), ("iou", iou), ("score", score)],
    );
    y.to_vec::<i64>(DType::I64).unwrap().chunks(3).map(|r| r[2]).collect()
}

#[test]
fn suppression_takes_corners_in_any_order() {
    // Pairs that overlap by much, with corners exchanged.
    let boxes = [
        [0.0, 0.0, 1.0, 1.0],
        [1.0, 1.1, 0.0, 0.1],
        [0.0, 0.9, 1.0, -0.1],
        [0.0, 10.0, 1.0, 11.0],
        [1.0, 10.1, 0.0, 11.1],
        [1.0, 101.0, 0.0, 100.0],
    ];
    let kept = suppress(
        floats(&[1, 6, 4], boxes.as_flattened()),
        floats(&[1, 1, 6], &[0.9, 0.75, 0.6, 0.95, 0.5, 0.3]),
        [ints(&[1], &[3]), floats(&[1], &[0.5]), floats(&[1], &[0.0])],
    );
    assert_eq!(kept, [3, 0, 5]);
}

#[test]
fn suppression_at_its_limits() {
    let boxes = floats(&[1, 2, 4], &[0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0]);
    let scores = floats(&[1, 1, 2], &[0.5, 0.6]);
    let with = |most: i64, iou: f32, shape: &[usize]| {
        let limits = [ints(shape, &[most]), floats(shape, &[iou]), floats(shape, &[0.0])];
        suppress(boxes.clone(), scores.clone(), limits)
    };
    assert!(with(0, 0.5, &[1]).is_empty());
    assert_eq!(with(9, 0.0, &[]), [1, 0]);
    // Boxes without area overlap nothing.
    let flat = floats(&[1, 2, 4], &[0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
    let limits = [ints(&[], &[9]), floats(&[], &[0.1]), floats(&[], &[0.0])];
    assert_eq!(suppress(flat, scores.clone(), limits), [1, 0]);
}

/// Counts down from the input until it is below 1: the trips depend on a number of the run.
#[test]
fn a_loop_ends_when_its_condition_does() {
    let scalar = |x: f32| constant(Elem::F32, floats(&[], &[x]));
    let body = Graph {
        name: "body".into(),
        nodes: vec![
            node("Constant", &[], "one", &[("value", scalar(1.0))]),
            node("Sub", &["v", "one"], "less", &[]),
            node("Less", &["one", "less"], "go", &[]),
        ],
        initializers: IndexMap::new(),
        inputs: vec![any("i", Elem::I64, 0), any("c", Elem::Bool, 0), any("v", Elem::F32, 0)],
        outputs: ["go", "less", "less"]
            .iter()
            .map(|n| ValueInfo { name: (*n).to_owned(), ty: Type::Unknown })
            .collect(),
    };
    let mut looped =
        node("Loop", &["", "", "x"], "last", &[("body", Attribute::Graph(Arc::new(body)))]);
    looped.outputs.push("all".into());
    let m = model(16, vec![looped], vec![any("x", Elem::F32, 0)], &["last", "all"]);
    let onnx = Onnx::new(m, Box::new(Interpreter)).unwrap();
    for (x, last, all) in [(3.5, 0.5, vec![2.5, 1.5, 0.5]), (2.0, 1.0, vec![1.0])] {
        let outputs = onnx.run(&IndexMap::from([("x".to_owned(), floats(&[], &[x]))])).unwrap();
        assert_eq!(outputs["last"].to_f32_vec().unwrap(), [last]);
        assert_eq!(outputs["all"].to_f32_vec().unwrap(), all);
    }
}

#[test]
fn hostile_sizes_are_errors() {
    let huge = constant(Elem::I64, ints(&[2], &[1 << 40, 1 << 40]));
    let nodes =
        vec![node("Constant", &[], "s", &[("value", huge)]), node("Expand", &["x", "s"], "y", &[])];
    let m = model(13, nodes, vec![any("x", Elem::F32, 1)], &["y"]);
    let error = try_run(m, &[("x", floats(&[1], &[0.0]))]).unwrap_err().to_string();
    assert!(error.contains("the Expand"), "{error}");
}

/// Prepares nothing, but tells which operations the graphs have.
struct Listing(std::sync::Mutex<Vec<&'static str>>);

impl crate::Runner for Arc<Listing> {
    fn prepare(&self, graph: cyb_ir::Graph) -> Result<Box<dyn crate::Program>, String> {
        let (_, live) = graph.live();
        let names = graph.nodes.iter().zip(live).filter(|(_, live)| *live);
        self.0.lock().unwrap().extend(names.map(|(node, _)| node.op.name()));
        Interpreter.prepare(graph)
    }
}

#[test]
fn spelled_out_layers_become_jets() {
    let number = |x: f32| constant(Elem::F32, floats(&[], &[x]));
    let row = |x: f32| constant(Elem::F32, floats(&[4], &[x; 4]));
    let axes = Attribute::Ints(vec![-1]);
    let mean = |from: &str, to: &str| node("ReduceMean", &[from], to, &[("axes", axes.clone())]);
    let nodes = vec![
        node("Constant", &[], "two", &[("value", number(2.0))]),
        node("Constant", &[], "eps", &[("value", number(1e-5))]),
        node("Constant", &[], "w", &[("value", row(1.5))]),
        node("Constant", &[], "b", &[("value", row(0.25))]),
        mean("x", "mean"),
        node("Sub", &["x", "mean"], "centered", &[]),
        node("Pow", &["centered", "two"], "square", &[]),
        mean("square", "variance"),
        node("Add", &["variance", "eps"], "above", &[]),
        node("Sqrt", &["above"], "deviation", &[]),
        node("Div", &["centered", "deviation"], "normed", &[]),
        node("Mul", &["normed", "w"], "weighted", &[]),
        node("Add", &["weighted", "b"], "n", &[]),
        node("Constant", &[], "root", &[("value", number(std::f32::consts::SQRT_2))]),
        node("Constant", &[], "one", &[("value", number(1.0))]),
        node("Constant", &[], "half", &[("value", number(0.5))]),
        node("Div", &["n", "root"], "d", &[]),
        node("Erf", &["d"], "e", &[]),
        node("Add", &["e", "one"], "e1", &[]),
        node("Mul", &["n", "e1"], "m", &[]),
        node("Mul", &["m", "half"], "g", &[]),
        node("Sigmoid", &["g"], "s", &[]),
        node("Mul", &["g", "s"], "y", &[]),
    ];
    let m = model(13, nodes, vec![any("x", Elem::F32, 2)], &["y"]);
    let list = Arc::new(Listing(std::sync::Mutex::default()));
    let onnx = Onnx::new(m, Box::new(list.clone())).unwrap();
    let x = floats(&[2, 4], &[1.0, 2.0, 3.0, 5.0, -1.0, 0.0, 0.5, 0.25]);
    let y = onnx.run(&IndexMap::from([("x".to_owned(), x)])).unwrap();
    assert_eq!(*list.0.lock().unwrap(), ["layernorm", "gelu", "silu"]);
    // By hand: the last of the first row is 1.5 * 2.25 / sqrt(2.1875) + 0.25 after the norm.
    let n = 1.5 * 2.25 / (2.1875f64 + 1e-5).sqrt() + 0.25;
    // erf(n / sqrt(2)), from a table.
    let g = 0.5 * n * (1.0 + 0.988656);
    let want = g / (1.0 + (-g).exp());
    assert!((f64::from(y["y"].to_f32_vec().unwrap()[3]) - want).abs() < 1e-4);
}

/// Sizes of which one is 0 hide others that multiply beyond what memory has.
#[test]
fn sizes_that_are_too_large_are_refused() {
    let huge = constant(Elem::I64, ints(&[3], &[0, 1 << 40, 1 << 40]));
    let nodes = vec![
        node("Constant", &[], "shape", &[("value", huge)]),
        node("Reshape", &["x", "shape"], "y", &[("allowzero", Attribute::Int(1))]),
    ];
    let x = floats(&[0, 4], &[]);
    let error = try_run(model(14, nodes, vec![any("x", Elem::F32, 2)], &["y"]), &[("x", x)]);
    assert!(error.unwrap_err().to_string().contains("takes more than"));
    let attributes =
        [("mode", Attribute::Str(b"linear".to_vec())), ("antialias", Attribute::Int(1))];
    let size = constant(Elem::I64, ints(&[3], &[1, 1, 1 << 40]));
    let nodes = vec![
        node("Constant", &[], "size", &[("value", size)]),
        node("Resize", &["x", "", "", "size"], "y", &attributes),
    ];
    let x = floats(&[1, 1, 4], &[0.0; 4]);
    let error = try_run(model(19, nodes, vec![any("x", Elem::F32, 3)], &["y"]), &[("x", x)]);
    let text = error.unwrap_err().to_string();
    assert!(text.contains("too large"), "{text}");
}
