//! Symbols as small numbers, so that a run can resolve shapes without looking up names.

use std::sync::Arc;

use cyb_tensor::{Bindings, Dim, DimError};

use cyb_ir::Graph;

/// The symbols of a graph, in a fixed order. A run binds them by position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Symbols(Vec<Arc<str>>);

impl Symbols {
    /// Every symbol in the shapes of `graph`, in order of name.
    pub fn of(graph: &Graph) -> Symbols {
        let dims = graph.values.iter().flat_map(|v| &v.fact.shape);
        let mut names: Vec<Arc<str>> = dims.flat_map(Dim::symbols).collect();
        names.sort();
        names.dedup();
        Symbols(names)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn names(&self) -> &[Arc<str>] {
        &self.0
    }

    pub fn index(&self, name: &str) -> Option<usize> {
        self.0.iter().position(|n| **n == *name)
    }

    /// `values`, one per symbol, by name.
    pub fn bind(&self, values: &[usize]) -> Bindings {
        self.0.iter().cloned().zip(values.iter().copied()).collect()
    }

    pub fn compile(&self, dim: &Dim) -> CompiledDim {
        if let Some(n) = dim.known() {
            return CompiledDim::Known(n);
        }
        match dim.as_symbol().and_then(|name| self.index(name)) {
            Some(i) => CompiledDim::Symbol(i),
            None => CompiledDim::Expression(dim.clone(), self.clone()),
        }
    }
}

/// A dimension ready to be resolved; only expressions need an allocation to do so.
#[derive(Clone, Debug)]
pub enum CompiledDim {
    Known(usize),
    Symbol(usize),
    Expression(Dim, Symbols),
}

impl CompiledDim {
    pub fn resolve(&self, values: &[usize]) -> Result<usize, DimError> {
        match self {
            CompiledDim::Known(n) => Ok(*n),
            CompiledDim::Symbol(i) => Ok(values[*i]),
            CompiledDim::Expression(dim, symbols) => dim.eval(&symbols.bind(values)),
        }
    }
}
