//! Layers spelled out: what is found in them, and what is told of those that nearly are.

use super::*;
use crate::Note;

/// Sizes of the tensor that is turned: [1, 2, 3, 8].
const HEADS: usize = 2;
const STEPS: usize = 3;
const WIDTH: usize = 8;

fn list(name: &str, ints: &[i64]) -> Node {
    node("Constant", &[], name, &[("value_ints", Attribute::Ints(ints.to_vec()))])
}

fn slice(x: &str, from: &str, to: &str, step: &str, y: &str) -> Node {
    node("Slice", &[x, from, to, "axes", step], y, &[])
}

fn axis(i: i64) -> [(&'static str, Attribute); 1] {
    [("axis", Attribute::Int(i))]
}

/// The constants that the graphs below slice by.
fn numbers() -> Vec<Node> {
    [("zero", 0), ("one", 1), ("two", 2), ("three", 3), ("half", 4), ("end", 8), ("axes", -1)]
        .map(|(name, n)| list(name, &[n]))
        .into()
}

/// Runs nodes on x [1, 2, 3, 8], cos and sin [3, `columns`]; the inputs, the output and the notes.
fn turn(nodes: Vec<Node>, columns: usize) -> ([Vec<f32>; 4], Vec<Note>) {
    let spread =
        |n: usize, step: f32| -> Vec<f32> { (0..n).map(|i| (i as f32 * step).sin()).collect() };
    let x = spread(HEADS * STEPS * WIDTH, 0.7);
    let (cos, sin) = (spread(STEPS * columns, 0.3), spread(STEPS * columns, 1.1));
    let tensors = [
        ("x", floats(&[1, HEADS, STEPS, WIDTH], &x)),
        ("cos", floats(&[STEPS, columns], &cos)),
        ("sin", floats(&[STEPS, columns], &sin)),
    ];
    let inputs = vec![any("x", Elem::F32, 4), any("cos", Elem::F32, 2), any("sin", Elem::F32, 2)];
    let nodes = numbers().into_iter().chain(nodes).collect();
    let onnx = Onnx::new(model(17, nodes, inputs, &["y"]), Box::new(Interpreter)).unwrap();
    let named = tensors.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect();
    let y = onnx.run(&named).unwrap().swap_remove_index(0).unwrap().1;
    ([x, cos, sin, y.to_f32_vec().unwrap()], onnx.notes())
}

/// What a rotation gives, element by element; `place(i, second)` is where an element of pair `i` lies.
fn want(all: &[Vec<f32>; 4], columns: usize, place: fn(usize, usize) -> usize) -> Vec<f32> {
    let [x, cos, sin, _] = all;
    let mut y = vec![0.0; x.len()];
    for row in 0..HEADS * STEPS {
        for i in 0..WIDTH / 2 {
            let (first, second) = (place(i, 0), place(i, 1));
            let column = |at: usize| row % STEPS * columns + if columns == WIDTH { at } else { i };
            let (a, b) = (x[row * WIDTH + first], x[row * WIDTH + second]);
            let (p, q) = (column(first), column(second));
            y[row * WIDTH + first] = a * cos[p] - b * sin[p];
            y[row * WIDTH + second] = b * cos[q] + a * sin[q];
        }
    }
    y
}

fn close(got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    for (g, w) in got.iter().zip(want) {
        assert!((g - w).abs() < 1e-5, "{got:?} are not {want:?}");
    }
}

fn found(notes: &[Note], jet: &str) -> usize {
    notes.iter().filter(|n| n.jet == jet && n.missed.is_none()).count()
}

fn missed(notes: &[Note], jet: &str) -> Vec<String> {
    notes.iter().filter(|n| n.jet == jet).filter_map(|n| n.missed.clone()).collect()
}

const HALVES: fn(usize, usize) -> usize = |i, second| i + second * WIDTH / 2;
const PAIRS: fn(usize, usize) -> usize = |i, second| 2 * i + second;

/// `x * cos + turned * sin`
fn sum_of(mut nodes: Vec<Node>) -> Vec<Node> {
    nodes.extend([
        node("Mul", &["x", "cos"], "plain", &[]),
        node("Mul", &["turned", "sin"], "other", &[]),
        node("Add", &["plain", "other"], "y", &[]),
    ]);
    nodes
}

#[test]
fn halves_exchanged_by_slices_are_a_rotation() {
    let nodes = sum_of(vec![
        slice("x", "zero", "half", "one", "x1"),
        slice("x", "half", "end", "one", "x2"),
        node("Neg", &["x2"], "minus", &[]),
        node("Concat", &["minus", "x1"], "turned", &axis(-1)),
    ]);
    let (all, notes) = turn(nodes, WIDTH);
    assert_eq!(found(&notes, "rotary"), 1, "{notes:?}");
    close(&all[3], &want(&all, WIDTH, HALVES));
}

#[test]
fn halves_exchanged_by_a_split_are_a_rotation() {
    let mut split = node("Split", &["x"], "x1", &axis(-1));
    split.outputs.push("x2".into());
    split.inputs.push("sizes".into());
    let nodes = sum_of(vec![
        list("sizes", &[4, 4]),
        split,
        node("Neg", &["x2"], "minus", &[]),
        node("Concat", &["minus", "x1"], "turned", &axis(3)),
    ]);
    let (all, notes) = turn(nodes, WIDTH);
    assert_eq!(found(&notes, "rotary"), 1, "{notes:?}");
    close(&all[3], &want(&all, WIDTH, HALVES));
}

/// Strided slices, stacked and made flat; the rows are subtracted with the other sign.
#[test]
fn pairs_exchanged_are_a_rotation() {
    let nodes = vec![
        list("last", &[4]),
        list("flat", &[1, 2, 3, 8]),
        slice("x", "zero", "end", "two", "x1"),
        slice("x", "one", "end", "two", "x2"),
        node("Neg", &["x1"], "minus", &[]),
        node("Unsqueeze", &["x2", "last"], "a", &[]),
        node("Unsqueeze", &["minus", "last"], "b", &[]),
        node("Concat", &["a", "b"], "stack", &axis(-1)),
        node("Reshape", &["stack", "flat"], "turned", &[]),
        node("Mul", &["cos", "x"], "plain", &[]),
        node("Mul", &["sin", "turned"], "other", &[]),
        node("Sub", &["plain", "other"], "y", &[]),
    ];
    let (all, notes) = turn(nodes, WIDTH);
    assert_eq!(found(&notes, "rotary"), 1, "{notes:?}");
    close(&all[3], &want(&all, WIDTH, PAIRS));
}

/// `x1 cos - x2 sin` and `x2 cos + x1 sin` of halves that are called `x1` and `x2`.
fn both(first: &str, second: &str) -> Vec<Node> {
    vec![
        node("Mul", &[first, "cos"], "a", &[]),
        node("Mul", &[second, "sin"], "b", &[]),
        node("Sub", &["a", "b"], "y1", &[]),
        node("Mul", &["cos", second], "c", &[]),
        node("Mul", &[first, "sin"], "d", &[]),
        node("Add", &["c", "d"], "y2", &[]),
    ]
}

#[test]
fn halves_turned_and_joined_are_a_rotation() {
    let mut nodes =
        vec![slice("x", "zero", "half", "one", "x1"), slice("x", "half", "end", "one", "x2")];
    nodes.extend(both("x1", "x2"));
    nodes.push(node("Concat", &["y1", "y2"], "y", &axis(-1)));
    let (all, notes) = turn(nodes, WIDTH / 2);
    assert_eq!(found(&notes, "rotary"), 1, "{notes:?}");
    close(&all[3], &want(&all, WIDTH / 2, HALVES));
}

/// Pairs as an axis of their own, gathered, turned and stacked.
#[test]
fn pairs_turned_and_stacked_are_a_rotation() {
    let index = |n: i64| [("value_int", Attribute::Int(n))];
    let mut nodes = vec![
        list("pairs", &[1, 2, 3, 4, 2]),
        list("flat", &[1, 2, 3, 8]),
        list("last", &[4]),
        node("Constant", &[], "first", &index(0)),
        node("Constant", &[], "second", &index(1)),
        node("Reshape", &["x", "pairs"], "p", &[]),
        node("Gather", &["p", "first"], "x1", &axis(-1)),
        node("Gather", &["p", "second"], "x2", &axis(-1)),
    ];
    nodes.extend(both("x1", "x2"));
    nodes.extend([
        node("Unsqueeze", &["y1", "last"], "s1", &[]),
        node("Unsqueeze", &["y2", "last"], "s2", &[]),
        node("Concat", &["s1", "s2"], "stack", &axis(-1)),
        node("Reshape", &["stack", "flat"], "y", &[]),
    ]);
    let (all, notes) = turn(nodes, WIDTH / 2);
    assert_eq!(found(&notes, "rotary"), 1, "{notes:?}");
    close(&all[3], &want(&all, WIDTH / 2, PAIRS));
}

#[test]
fn what_is_nearly_a_rotation_is_told() {
    // The other half is negated: a rotation backward.
    let nodes = sum_of(vec![
        slice("x", "zero", "half", "one", "x1"),
        slice("x", "half", "end", "one", "x2"),
        node("Neg", &["x1"], "minus", &[]),
        node("Concat", &["x2", "minus"], "turned", &axis(-1)),
    ]);
    let (all, notes) = turn(nodes, WIDTH);
    assert_eq!(missed(&notes, "rotary"), ["it turns the other way: by the angles' negatives"]);
    let [x, cos, sin, y] = &all;
    assert!((y[0] - (x[0] * cos[0] + x[4] * sin[0])).abs() < 1e-5);

    // Parts that are no halves.
    let nodes = sum_of(vec![
        slice("x", "zero", "three", "one", "x1"),
        slice("x", "three", "end", "one", "x2"),
        node("Neg", &["x2"], "minus", &[]),
        node("Concat", &["minus", "x1"], "turned", &axis(-1)),
    ]);
    let (all, notes) = turn(nodes, WIDTH);
    assert_eq!(missed(&notes, "rotary"), ["its rows are not exchanged by halves or pairs"]);
    let [x, cos, sin, y] = &all;
    assert!((y[0] - (x[0] * cos[0] - x[3] * sin[0])).abs() < 1e-5);

    // Halves that come out as pairs.
    let mut nodes = vec![
        list("last", &[4]),
        list("flat", &[1, 2, 3, 8]),
        slice("x", "zero", "half", "one", "x1"),
        slice("x", "half", "end", "one", "x2"),
    ];
    nodes.extend(both("x1", "x2"));
    nodes.extend([
        node("Unsqueeze", &["y1", "last"], "s1", &[]),
        node("Unsqueeze", &["y2", "last"], "s2", &[]),
        node("Concat", &["s1", "s2"], "stack", &axis(-1)),
        node("Reshape", &["stack", "flat"], "y", &[]),
    ]);
    let (all, notes) = turn(nodes, WIDTH / 2);
    let why = "it is read by halves and written by pairs, or the other way round";
    assert_eq!(missed(&notes, "rotary"), [why]);
    let [x, cos, sin, y] = &all;
    assert!((y[1] - (x[4] * cos[0] + x[0] * sin[0])).abs() < 1e-5);

    // One pair of halves of two tensors.
    let mut nodes = vec![
        slice("x", "zero", "half", "one", "x1"),
        slice("x", "half", "end", "one", "x3"),
        node("Exp", &["x3"], "x2", &[]),
    ];
    nodes.extend(both("x1", "x2"));
    nodes.push(node("Concat", &["y1", "y2"], "y", &axis(-1)));
    let (_, notes) = turn(nodes, WIDTH / 2);
    let why = "what is turned is not the two halves or the pairs of one tensor";
    assert_eq!(missed(&notes, "rotary"), [why]);
}

#[test]
fn products_that_are_no_linear_layer_are_told() {
    let weight = |shape: &[usize]| {
        let n = shape.iter().product();
        constant(Elem::F32, floats(shape, &vec![0.5; n]))
    };
    let cases: [(&[usize], &[usize], &str); 2] = [
        (&[2, 3, 4], &[1], "its weight has more than two axes"),
        (&[3, 4], &[2, 1], "what is added is no vector along the last axis"),
    ];
    for (w, bias, why) in cases {
        let nodes = vec![
            node("Constant", &[], "w", &[("value", weight(w))]),
            node("Constant", &[], "b", &[("value", weight(bias))]),
            node("MatMul", &["x", "w"], "p", &[]),
            node("Add", &["p", "b"], "y", &[]),
        ];
        let model = model(17, nodes, vec![any("x", Elem::F32, 2)], &["y"]);
        let onnx = Onnx::new(model, Box::new(Interpreter)).unwrap();
        let x = floats(&[2, 3], &[1.0; 6]);
        let y = onnx.run(&IndexMap::from([("x".to_owned(), x)])).unwrap();
        assert!(y[0].to_f32_vec().unwrap().iter().all(|v| *v == 2.0));
        assert_eq!(missed(&onnx.notes(), "linear"), [why]);
    }
}
