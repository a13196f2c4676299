//! The text form of a graph: one line per value or node; what is printed parses back.
//!
//! ```text
//! %0 = input "x" : f32[S, 64]
//! %1 = const : f32[] 0x00000040
//! %2 = mul(%0, %1) : f32[S, 64] @ "blk.0"
//! %3 = jet rmsnorm {eps=1e-5} (%2, %4) : f32[S, 64]
//! output "y" %3
//! ```
//!
//! A weight is named, not printed: parsing asks for its tensor.

use std::fmt::Write as _;
use std::sync::Arc;

use cyb_tensor::{AlignedBytes, Bytes, DType, Dim, Tensor};

use crate::{
    Atom, Attr, Attrs, Cmp, Exp, Fact, Float, Graph, Jet, Node, NodeId, Op, Read, Reduce,
    Residency, Scatter, Slide, Source, Value, ValueId, Write,
};

/// Prints `graph`.
pub fn print(graph: &Graph) -> String {
    let mut out = String::new();
    let ids =
        |values: &[ValueId]| values.iter().map(|v| v.to_string()).collect::<Vec<_>>().join(", ");
    // Writing to a string cannot fail.
    for v in graph.value_ids() {
        let value = graph.value(v);
        let fact = &value.fact;
        let _ = match &value.source {
            Source::Input(name) => writeln!(out, "{v} = input {name:?} : {fact}"),
            Source::Weight(name, _, _) => writeln!(out, "{v} = weight {name:?} : {fact}"),
            Source::State(name) => writeln!(out, "{v} = state {name:?} : {fact}"),
            Source::Hole(name) => writeln!(out, "{v} = hole {name:?} : {fact}"),
            Source::Iota => writeln!(out, "{v} = iota : {fact}"),
            Source::Const(tensor) => {
                let hex: String =
                    tensor.bytes().as_slice().iter().map(|b| format!("{b:02x}")).collect();
                writeln!(out, "{v} = const : {fact} 0x{hex}")
            }
            Source::Node(n, 0) => {
                let node = graph.node(*n);
                let facts: Vec<String> =
                    node.outputs.iter().map(|&o| graph.fact(o).to_string()).collect();
                let label = match &*node.label {
                    "" => String::new(),
                    label => format!(" @ {label:?}"),
                };
                let op = op_text(&node.op);
                let (to, from) = (ids(&node.outputs), ids(&node.inputs));
                writeln!(out, "{to} = {op}({from}) : {}{label}", facts.join("; "))
            }
            Source::Node(..) => Ok(()),
        };
    }
    for (name, v) in &graph.outputs {
        let _ = writeln!(out, "output {name:?} {v}");
    }
    for (state, v) in &graph.updates {
        let _ = writeln!(out, "update {state} {v}");
    }
    out
}

fn op_text(op: &Op) -> String {
    match op {
        Op::Atom(atom) => atom_form(atom),
        Op::Jet(jet, attrs) if attrs.is_empty() => format!("jet {} ", jet.name),
        Op::Jet(jet, attrs) => {
            let attrs: Vec<String> = attrs.iter().map(|(k, v)| format!("{k}={v}")).collect();
            format!("jet {} {{{}}} ", jet.name, attrs.join(", "))
        }
    }
}

fn list<T: std::fmt::Display>(items: &[T]) -> String {
    items.iter().map(|i| i.to_string()).collect::<Vec<_>>().join(", ")
}

macro_rules! spelled {
    ($print:ident $parse:ident $ty:ident { $($variant:ident $name:literal)* }) => {
        fn $print(kind: $ty) -> &'static str {
            match kind { $($ty::$variant => $name,)* }
        }
        fn $parse(name: &str) -> Option<$ty> {
            match name { $($name => Some($ty::$variant),)* _ => None }
        }
    };
}

spelled! { cmp_name parse_cmp Cmp { Max "max" Min "min" Lt "lt" Eq "eq" Select "select" } }
spelled! { exp_name parse_exp Exp {
    Exp "exp" Ln "ln" Sqrt "sqrt" Rsqrt "rsqrt" Recip "recip" Sin "sin" Cos "cos" Erf "erf"
    Floor "floor"
} }
spelled! { reduce_name parse_reduce Reduce {
    Sum "sum" Prod "prod" Max "max" Min "min" Argmax "argmax" Argmin "argmin"
} }
spelled! { scatter_name parse_scatter Scatter {
    Set "set" Add "add" Mul "mul" Max "max" Min "min"
} }

/// An atom with its attributes, exactly.
pub(crate) fn atom_form(atom: &Atom) -> String {
    match atom {
        Atom::Mul => "mul".into(),
        Atom::Add => "add".into(),
        Atom::Cmp(kind) => format!("cmp.{}", cmp_name(*kind)),
        Atom::Exp(kind) => format!("exp.{}", exp_name(*kind)),
        Atom::Read(Read::Reshape(dims)) => format!("read.reshape[{}]", list(dims)),
        Atom::Read(Read::Permute(perm)) => format!("read.permute[{}]", list(perm)),
        Atom::Read(Read::Slice { axis, start, len, step }) => {
            format!("read.slice[{axis}, {start}, {len}, {step}]")
        }
        Atom::Read(Read::Broadcast(dims)) => format!("read.broadcast[{}]", list(dims)),
        Atom::Read(Read::Pad { axis, before, after, value }) => {
            format!("read.pad[{axis}, {before}, {after}, {value:?}]")
        }
        Atom::Read(Read::Gather { axis }) => format!("read.gather[{axis}]"),
        Atom::Read(Read::Cast(dtype)) => format!("read.cast[{dtype}]"),
        Atom::Write(Write::Scatter { axis, mode }) => {
            format!("write.scatter[{axis}, {}]", scatter_name(*mode))
        }
        Atom::Write(Write::Concat { axis }) => format!("write.concat[{axis}]"),
        Atom::Write(Write::Encode(dtype)) => format!("write.encode[{dtype}]"),
        Atom::Reduce { kind, axes } => format!("reduce.{}[{}]", reduce_name(*kind), list(axes)),
        Atom::Slide(Slide::Window { axis, size, stride, dilation }) => {
            format!("slide.window[{axis}, {size}, {stride}, {dilation}]")
        }
        Atom::Slide(Slide::Scan { states, body }) => {
            format!("slide.scan[{states}, {:?}]", print(body))
        }
    }
}

/// Text that is no graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct ParseError {
    pub line: usize,
    pub what: String,
}

/// Parses what [`print`] prints. `jet` finds a jet by name, `weight` a tensor by name.
pub fn parse(
    text: &str,
    jet: &dyn Fn(&str) -> Option<&'static Jet>,
    weight: &dyn Fn(&str) -> Option<Tensor>,
) -> Result<Graph, ParseError> {
    let mut graph = Graph::default();
    for (i, line) in text.lines().enumerate() {
        let mut cursor = Cursor { rest: line.trim() };
        if cursor.rest.is_empty() {
            continue;
        }
        parse_line(&mut graph, &mut cursor, jet, weight)
            .map_err(|what| ParseError { line: i + 1, what })?;
    }
    Ok(graph)
}

type Parsed<T> = Result<T, String>;

fn parse_line(
    graph: &mut Graph,
    c: &mut Cursor<'_>,
    jet: &dyn Fn(&str) -> Option<&'static Jet>,
    weight: &dyn Fn(&str) -> Option<Tensor>,
) -> Parsed<()> {
    if c.eat("output ") {
        let name = c.string()?;
        let v = c.value(graph)?;
        graph.outputs.push((name.into(), v));
        return Ok(());
    }
    if c.eat("update ") {
        let state = c.value(graph)?;
        let v = c.value(graph)?;
        graph.updates.push((state, v));
        return Ok(());
    }
    let first = graph.values.len();
    let mut count = 0;
    loop {
        let id = c.id()?;
        if id.index() != first + count {
            return Err(format!("{id} is out of order"));
        }
        count += 1;
        if !c.eat(",") {
            break;
        }
    }
    c.expect("=")?;
    let source = match c.word() {
        "input" => Some(Source::Input(c.string()?.into())),
        "state" => Some(Source::State(c.string()?.into())),
        "hole" => Some(Source::Hole(c.string()?.into())),
        "iota" => Some(Source::Iota),
        "weight" => {
            let name = c.string()?;
            let tensor = weight(&name).ok_or_else(|| format!("there is no weight {name:?}"))?;
            Some(Source::Weight(name.into(), tensor, Residency::default()))
        }
        "const" => {
            c.expect(":")?;
            let fact = c.fact()?;
            let tensor = c.tensor(&fact)?;
            graph.values.push(Value { fact, source: Source::Const(tensor) });
            return Ok(());
        }
        word => return parse_node(graph, c, word, first, count, jet),
    };
    if let Some(source) = source {
        c.expect(":")?;
        graph.values.push(Value { fact: c.fact()?, source });
    }
    Ok(())
}

fn parse_node(
    graph: &mut Graph,
    c: &mut Cursor<'_>,
    word: &str,
    first: usize,
    count: usize,
    jet: &dyn Fn(&str) -> Option<&'static Jet>,
) -> Parsed<()> {
    let op = if word == "jet" {
        let name = c.word();
        let jet = jet(name).ok_or_else(|| format!("there is no jet '{name}'"))?;
        Op::Jet(jet, c.attrs()?)
    } else {
        Op::Atom(parse_atom(c, word)?)
    };
    c.expect("(")?;
    let mut inputs = Vec::new();
    while !c.eat(")") {
        inputs.push(c.value(graph)?);
        c.eat(",");
    }
    c.expect(":")?;
    let node = NodeId(graph.nodes.len() as u32);
    for output in 0..count {
        if output > 0 {
            c.expect(";")?;
        }
        graph.values.push(Value { fact: c.fact()?, source: Source::Node(node, output) });
    }
    let label = if c.eat("@") { c.string()? } else { String::new() };
    let outputs = (first..first + count).map(|i| ValueId(i as u32)).collect();
    graph.nodes.push(Node { op, inputs, outputs, label: label.into(), backend_hint: None });
    Ok(())
}

fn parse_atom(c: &mut Cursor<'_>, word: &str) -> Parsed<Atom> {
    let unknown = || format!("there is no operation '{word}'");
    let (family, kind) = word.split_once('.').unwrap_or((word, ""));
    Ok(match (family, kind) {
        ("mul", "") => Atom::Mul,
        ("add", "") => Atom::Add,
        ("cmp", kind) => Atom::Cmp(parse_cmp(kind).ok_or_else(unknown)?),
        ("exp", kind) => Atom::Exp(parse_exp(kind).ok_or_else(unknown)?),
        ("reduce", kind) => {
            Atom::Reduce { kind: parse_reduce(kind).ok_or_else(unknown)?, axes: c.sizes()? }
        }
        ("read", "reshape") => Atom::Read(Read::Reshape(c.dims()?)),
        ("read", "broadcast") => Atom::Read(Read::Broadcast(c.dims()?)),
        ("read", "permute") => Atom::Read(Read::Permute(c.sizes()?)),
        ("read", "gather") => Atom::Read(Read::Gather { axis: c.bracketed(Cursor::number)? }),
        ("read", "cast") => Atom::Read(Read::Cast(c.bracketed(Cursor::dtype)?)),
        ("read", "slice") => Atom::Read(c.bracketed(|c| {
            let axis = c.number_then(",")?;
            let start = c.dim_then(",")?;
            let len = c.dim_then(",")?;
            Ok(Read::Slice { axis, start, len, step: c.number()? })
        })?),
        ("read", "pad") => Atom::Read(c.bracketed(|c| {
            let axis = c.number_then(",")?;
            let before = c.dim_then(",")?;
            let after = c.dim_then(",")?;
            Ok(Read::Pad { axis, before, after, value: Float::new(c.number()?) })
        })?),
        ("write", "scatter") => Atom::Write(c.bracketed(|c| {
            let axis = c.number_then(",")?;
            let mode = parse_scatter(c.word()).ok_or_else(unknown)?;
            Ok(Write::Scatter { axis, mode })
        })?),
        ("write", "concat") => Atom::Write(Write::Concat { axis: c.bracketed(Cursor::number)? }),
        ("write", "encode") => Atom::Write(Write::Encode(c.bracketed(Cursor::dtype)?)),
        ("slide", "window") => Atom::Slide(c.bracketed(|c| {
            Ok(Slide::Window {
                axis: c.number_then(",")?,
                size: c.number_then(",")?,
                stride: c.number_then(",")?,
                dilation: c.number()?,
            })
        })?),
        ("slide", "scan") => Atom::Slide(c.bracketed(|c| {
            let states = c.number_then(",")?;
            let body = c.string()?;
            // A scan's body is made of atoms and literals only.
            let body = parse(&body, &|_| None, &|_| None).map_err(|e| format!("scan: {e}"))?;
            Ok(Slide::Scan { states, body: Arc::new(body) })
        })?),
        _ => return Err(unknown()),
    })
}

/// What is left of a line.
struct Cursor<'t> {
    rest: &'t str,
}

impl<'t> Cursor<'t> {
    fn skip(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn eat(&mut self, token: &str) -> bool {
        self.skip();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, token: &str) -> Parsed<()> {
        if self.eat(token) {
            Ok(())
        } else {
            Err(format!("'{token}' is missing at '{}'", self.rest))
        }
    }

    fn take_while(&mut self, keep: impl Fn(char) -> bool) -> &'t str {
        self.skip();
        let end = self.rest.find(|ch| !keep(ch)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn word(&mut self) -> &'t str {
        self.take_while(|ch| ch.is_alphanumeric() || ch == '_' || ch == '.')
    }

    /// A number; `inf` and `NaN` are words that Rust prints and parses for floats.
    fn number<T: std::str::FromStr>(&mut self) -> Parsed<T> {
        let word = self.take_while(|ch| ch.is_alphanumeric() || matches!(ch, '.' | '-' | '+'));
        word.parse().map_err(|_| format!("'{word}' is no number"))
    }

    fn number_then<T: std::str::FromStr>(&mut self, token: &str) -> Parsed<T> {
        let n = self.number()?;
        self.expect(token)?;
        Ok(n)
    }

    fn dtype(&mut self) -> Parsed<DType> {
        self.word().parse().map_err(|e| format!("{e}"))
    }

    fn id(&mut self) -> Parsed<ValueId> {
        self.expect("%")?;
        let digits = self.take_while(|ch| ch.is_ascii_digit());
        digits.parse().map(ValueId).map_err(|_| format!("'%{digits}' is no value"))
    }

    fn value(&mut self, graph: &Graph) -> Parsed<ValueId> {
        let id = self.id()?;
        if id.index() < graph.values.len() { Ok(id) } else { Err(format!("{id} is not defined")) }
    }

    /// A string in the escapes of Rust's `Debug`.
    fn string(&mut self) -> Parsed<String> {
        self.expect("\"")?;
        let mut out = String::new();
        let mut chars = self.rest.char_indices();
        while let Some((i, ch)) = chars.next() {
            match ch {
                '"' => {
                    self.rest = &self.rest[i + 1..];
                    return Ok(out);
                }
                '\\' => match chars.next().map(|(_, ch)| ch) {
                    Some('n') => out.push('\n'),
                    Some('t') => out.push('\t'),
                    Some('r') => out.push('\r'),
                    Some('0') => out.push('\0'),
                    Some('u') => {
                        let code: String = chars
                            .by_ref()
                            .map(|(_, ch)| ch)
                            .skip(1)
                            .take_while(|&ch| ch != '}')
                            .collect();
                        let ch = u32::from_str_radix(&code, 16).ok().and_then(char::from_u32);
                        out.push(ch.ok_or_else(|| format!("'{code}' is no character"))?);
                    }
                    Some(ch) => out.push(ch),
                    None => break,
                },
                ch => out.push(ch),
            }
        }
        Err("a string does not end".into())
    }

    fn bracketed<T>(&mut self, inner: impl Fn(&mut Self) -> Parsed<T>) -> Parsed<T> {
        self.expect("[")?;
        let value = inner(self)?;
        self.expect("]")?;
        Ok(value)
    }

    fn items<T>(&mut self, item: impl Fn(&mut Self) -> Parsed<T>) -> Parsed<Vec<T>> {
        self.expect("[")?;
        let mut out = Vec::new();
        while !self.eat("]") {
            out.push(item(self)?);
            self.eat(",");
        }
        Ok(out)
    }

    fn sizes(&mut self) -> Parsed<Vec<usize>> {
        self.items(Cursor::number)
    }

    fn dims(&mut self) -> Parsed<Vec<Dim>> {
        self.items(Cursor::dim)
    }

    fn dim_then(&mut self, token: &str) -> Parsed<Dim> {
        let dim = self.dim()?;
        self.expect(token)?;
        Ok(dim)
    }

    fn dim(&mut self) -> Parsed<Dim> {
        let mut sum =
            if self.eat("-") { Dim::from(0) - self.dim_term()? } else { self.dim_term()? };
        loop {
            if self.eat("+") {
                sum = sum + self.dim_term()?;
            } else if self.eat("-") {
                sum = sum - self.dim_term()?;
            } else {
                return Ok(sum);
            }
        }
    }

    fn dim_term(&mut self) -> Parsed<Dim> {
        let mut product = self.dim_factor()?;
        while self.eat("*") {
            product = product * self.dim_factor()?;
        }
        Ok(product)
    }

    fn dim_factor(&mut self) -> Parsed<Dim> {
        for (name, combine) in [
            ("div(", Dim::floor_div as fn(&Dim, &Dim) -> Dim),
            ("max(", Dim::max_with as fn(&Dim, &Dim) -> Dim),
        ] {
            if self.eat(name) {
                let a = self.dim_then(",")?;
                let b = self.dim_then(")")?;
                return Ok(combine(&a, &b));
            }
        }
        let word = self.word();
        match word.parse::<usize>() {
            Ok(n) => Ok(n.into()),
            Err(_) if word.is_empty() => Err(format!("a dimension is missing at '{}'", self.rest)),
            Err(_) => Ok(Dim::symbol(word)),
        }
    }

    fn fact(&mut self) -> Parsed<Fact> {
        let dtype = self.dtype()?;
        Ok(Fact { dtype, shape: self.dims()? })
    }

    fn tensor(&mut self, fact: &Fact) -> Parsed<Tensor> {
        self.expect("0x")?;
        let hex = self.take_while(|ch| ch.is_ascii_hexdigit()).as_bytes();
        let digit = |d: u8| char::from(d).to_digit(16).unwrap_or(0) as u8;
        let bytes: Vec<u8> = hex.chunks_exact(2).map(|p| digit(p[0]) << 4 | digit(p[1])).collect();
        let shape: Option<Vec<usize>> = fact.shape.iter().map(Dim::known).collect();
        let shape = shape.ok_or("a constant needs a known shape")?;
        let bytes = Bytes::owned(AlignedBytes::from_slice(&bytes));
        Tensor::new(fact.dtype, shape, bytes).map_err(|e| e.to_string())
    }

    fn attrs(&mut self) -> Parsed<Attrs> {
        if !self.eat("{") {
            return Ok(Attrs::new());
        }
        let mut out = Vec::new();
        while !self.eat("}") {
            let name = self.word().to_owned();
            self.expect("=")?;
            out.push((name, self.attr()?));
            self.eat(",");
        }
        Ok(out.into_iter().collect())
    }

    fn attr(&mut self) -> Parsed<Attr> {
        self.skip();
        if self.rest.starts_with('"') {
            return self.string().map(Attr::Str);
        }
        if self.rest.starts_with('[') {
            return self.items(Cursor::number).map(Attr::Ints);
        }
        if self.rest.starts_with("f[") {
            self.expect("f")?;
            let floats = self.items(Cursor::number)?;
            return Ok(Attr::Floats(floats.into_iter().map(Float::new).collect()));
        }
        let word =
            self.take_while(|ch| ch.is_alphanumeric() || matches!(ch, '.' | '-' | '+' | '_'));
        Ok(match word {
            "_" => Attr::Hole,
            "true" => Attr::Bool(true),
            "false" => Attr::Bool(false),
            _ => {
                if let Ok(n) = word.parse::<i64>() {
                    Attr::Int(n)
                } else if let Ok(dtype) = word.parse::<DType>() {
                    Attr::DType(dtype)
                } else if let Ok(x) = word.parse::<f64>() {
                    Attr::Float(Float::new(x))
                } else {
                    return Err(format!("'{word}' is no attribute value"));
                }
            }
        })
    }
}
