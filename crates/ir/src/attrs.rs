//! Attributes of a jet: a small ordered map of named values.

use std::collections::BTreeMap;
use std::fmt;

use cyb_tensor::DType;

use crate::{Float, IrError};

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Attr {
    Bool(bool),
    Int(i64),
    Float(Float),
    Str(String),
    Ints(Vec<i64>),
    Floats(Vec<Float>),
    DType(DType),
    /// In a pattern: a scalar that the match binds.
    Hole,
}

/// Named attribute values, in the order of their names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attrs(BTreeMap<String, Attr>);

impl Attrs {
    pub fn new() -> Attrs {
        Attrs::default()
    }

    pub fn with(mut self, name: &str, value: impl Into<Attr>) -> Attrs {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    pub fn get(&self, name: &str) -> Option<&Attr> {
        self.0.get(name)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Attr)> {
        self.0.iter().map(|(k, v)| (k.as_str(), v))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn float(&self, name: &str) -> Result<f64, IrError> {
        match self.get(name) {
            Some(Attr::Float(v)) => Ok(v.get()),
            got => Err(self.wrong(name, "a float", got)),
        }
    }

    pub fn int(&self, name: &str) -> Result<i64, IrError> {
        match self.get(name) {
            Some(Attr::Int(v)) => Ok(*v),
            got => Err(self.wrong(name, "an integer", got)),
        }
    }

    pub fn size(&self, name: &str) -> Result<usize, IrError> {
        usize::try_from(self.int(name)?).map_err(|_| self.wrong(name, "a size", self.get(name)))
    }

    pub fn ints(&self, name: &str) -> Result<&[i64], IrError> {
        match self.get(name) {
            Some(Attr::Ints(v)) => Ok(v),
            got => Err(self.wrong(name, "a list of integers", got)),
        }
    }

    pub fn floats(&self, name: &str) -> Result<Vec<f64>, IrError> {
        match self.get(name) {
            Some(Attr::Floats(v)) => Ok(v.iter().map(|x| x.get()).collect()),
            got => Err(self.wrong(name, "a list of floats", got)),
        }
    }

    /// A list of sizes or axes.
    pub fn sizes(&self, name: &str) -> Result<Vec<usize>, IrError> {
        let ints = self.ints(name)?;
        let sizes: Result<Vec<usize>, _> = ints.iter().map(|&n| usize::try_from(n)).collect();
        sizes.map_err(|_| self.wrong(name, "a list of sizes", self.get(name)))
    }

    pub fn text(&self, name: &str) -> Result<&str, IrError> {
        match self.get(name) {
            Some(Attr::Str(v)) => Ok(v),
            got => Err(self.wrong(name, "a string", got)),
        }
    }

    pub fn flag(&self, name: &str) -> Result<bool, IrError> {
        match self.get(name) {
            Some(Attr::Bool(v)) => Ok(*v),
            got => Err(self.wrong(name, "a boolean", got)),
        }
    }

    pub fn dtype(&self, name: &str) -> Result<DType, IrError> {
        match self.get(name) {
            Some(Attr::DType(v)) => Ok(*v),
            got => Err(self.wrong(name, "a dtype", got)),
        }
    }

    fn wrong(&self, name: &str, want: &'static str, got: Option<&Attr>) -> IrError {
        let got = got.map_or_else(|| "nothing".to_owned(), |a| a.to_string());
        IrError::Attr { name: name.to_owned(), want, got }
    }
}

impl FromIterator<(String, Attr)> for Attrs {
    fn from_iter<I: IntoIterator<Item = (String, Attr)>>(iter: I) -> Attrs {
        Attrs(iter.into_iter().collect())
    }
}

impl From<bool> for Attr {
    fn from(v: bool) -> Attr {
        Attr::Bool(v)
    }
}
impl From<i64> for Attr {
    fn from(v: i64) -> Attr {
        Attr::Int(v)
    }
}
impl From<usize> for Attr {
    fn from(v: usize) -> Attr {
        Attr::Int(i64::try_from(v).unwrap_or(i64::MAX))
    }
}
impl From<f64> for Attr {
    fn from(v: f64) -> Attr {
        Attr::Float(Float::new(v))
    }
}
impl From<f32> for Attr {
    fn from(v: f32) -> Attr {
        Attr::Float(Float::new(f64::from(v)))
    }
}
impl From<&str> for Attr {
    fn from(v: &str) -> Attr {
        Attr::Str(v.to_owned())
    }
}
impl From<DType> for Attr {
    fn from(v: DType) -> Attr {
        Attr::DType(v)
    }
}
impl From<&[usize]> for Attr {
    fn from(v: &[usize]) -> Attr {
        Attr::Ints(v.iter().map(|&n| i64::try_from(n).unwrap_or(i64::MAX)).collect())
    }
}
impl From<&[f64]> for Attr {
    fn from(v: &[f64]) -> Attr {
        Attr::Floats(v.iter().map(|&x| Float::new(x)).collect())
    }
}
impl From<Vec<i64>> for Attr {
    fn from(v: Vec<i64>) -> Attr {
        Attr::Ints(v)
    }
}

/// The value as the text form writes it; every kind parses back to itself.
impl fmt::Display for Attr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn list<T: fmt::Debug>(f: &mut fmt::Formatter<'_>, items: &[T]) -> fmt::Result {
            f.write_str("[")?;
            for (i, item) in items.iter().enumerate() {
                let comma = if i > 0 { ", " } else { "" };
                write!(f, "{comma}{item:?}")?;
            }
            f.write_str("]")
        }
        match self {
            Attr::Bool(v) => write!(f, "{v}"),
            Attr::Int(v) => write!(f, "{v}"),
            Attr::Float(v) => write!(f, "{v:?}"),
            Attr::Str(v) => write!(f, "{v:?}"),
            Attr::Ints(v) => list(f, v),
            Attr::Floats(v) => {
                f.write_str("f")?;
                list(f, v)
            }
            Attr::DType(v) => write!(f, "{v}"),
            Attr::Hole => f.write_str("_"),
        }
    }
}
