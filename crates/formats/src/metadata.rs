//! Metadata of a model file: an ordered map from key to typed value, and getters whose errors name
//! the file, the key and what was wanted.
//!
//! Vocabularies have hundreds of thousands of strings, so an array of strings is one buffer with
//! offsets, and other arrays are vectors of their element type.

use std::fmt;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;

use crate::text::{Excerpt, nearest};

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(String),
    Array(Array),
}

/// An array of values of one type.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    String(StringArray),
    Array(Vec<Array>),
}

/// Many strings in one buffer.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct StringArray {
    text: String,
    /// Where each string ends in `text`; it starts where the one before ends.
    ends: Vec<usize>,
}

impl StringArray {
    /// From concatenated text and the end of each string. `None` when an end is out of order, out
    /// of range or inside a character, or when text is left over.
    pub fn from_parts(text: String, ends: Vec<usize>) -> Option<StringArray> {
        let in_order = ends.is_sorted() && ends.last().copied().unwrap_or(0) == text.len();
        let whole = in_order && ends.iter().all(|&end| text.is_char_boundary(end));
        whole.then_some(StringArray { text, ends })
    }

    pub fn push(&mut self, s: &str) {
        self.text.push_str(s);
        self.ends.push(self.text.len());
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub fn get(&self, i: usize) -> Option<&str> {
        let end = *self.ends.get(i)?;
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        Some(&self.text[start..end])
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        let mut start = 0;
        self.ends.iter().map(move |&end| &self.text[std::mem::replace(&mut start, end)..end])
    }
}

impl fmt::Debug for StringArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<S: AsRef<str>> FromIterator<S> for StringArray {
    fn from_iter<I: IntoIterator<Item = S>>(iter: I) -> StringArray {
        let mut out = StringArray::default();
        iter.into_iter().for_each(|s| out.push(s.as_ref()));
        out
    }
}

/// Why a metadata value cannot be had. Every message names the file and the key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    #[error("{}: metadata has no {} ({want} wanted){hint}", file.display(), Excerpt(key))]
    Missing { file: PathBuf, key: String, want: &'static str, hint: String },
    #[error("{}: metadata {} is {got}, but {want} is wanted", file.display(), Excerpt(key))]
    WrongType { file: PathBuf, key: String, want: &'static str, got: String },
    #[error("{}: metadata {} is {got}, which does not fit {want}", file.display(), Excerpt(key))]
    OutOfRange { file: PathBuf, key: String, want: &'static str, got: String },
    #[error("{}: metadata {} has {got} values, but {want} are wanted", file.display(), Excerpt(key))]
    WrongLength { file: PathBuf, key: String, want: usize, got: usize },
}

/// An ordered map from key to value that knows its file, for error messages.
#[derive(Clone, Debug, PartialEq)]
pub struct Metadata {
    file: PathBuf,
    entries: IndexMap<String, Value>,
}

impl Metadata {
    pub fn new(file: impl Into<PathBuf>) -> Metadata {
        Metadata { file: file.into(), entries: IndexMap::new() }
    }

    pub(crate) fn from_entries(file: &Path, entries: IndexMap<String, Value>) -> Metadata {
        Metadata { file: file.to_owned(), entries }
    }

    /// The file that the metadata is of, which errors name.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Sets a value; a key that exists keeps its place.
    pub fn insert(&mut self, key: impl Into<String>, value: impl Into<Value>) {
        self.entries.insert(key.into(), value.into());
    }

    /// Removes a value, keeping the order of the others.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        self.entries.shift_remove(key)
    }

    pub fn value(&self, key: &str) -> Option<&Value> {
        self.entries.get(key)
    }

    pub fn contains(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Entries in the file's order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// The value of `key` as `T`; an error when it is absent. Integers of any width convert when
    /// they fit, and integers convert to floats when that is exact.
    pub fn get<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, MetadataError> {
        self.opt(key)?.ok_or_else(|| {
            let near = nearest(key, self.entries.keys().map(String::as_str));
            MetadataError::Missing {
                file: self.file.clone(),
                key: key.to_owned(),
                want: T::WANT,
                hint: near.map_or(String::new(), |k| format!("; the nearest is {}", Excerpt(k))),
            }
        })
    }

    /// The value of `key` as `T`, `None` when it is absent. A value of another type is an error.
    pub fn opt<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>, MetadataError> {
        let Some(value) = self.entries.get(key) else { return Ok(None) };
        T::from_value(value).map(Some).map_err(|mismatch| {
            let (file, key) = (self.file.clone(), key.to_owned());
            let got = value.to_string();
            match mismatch {
                Mismatch::Type => MetadataError::WrongType { file, key, want: T::WANT, got },
                Mismatch::Range => MetadataError::OutOfRange { file, key, want: T::WANT, got },
            }
        })
    }

    pub fn u32(&self, key: &str) -> Result<u32, MetadataError> {
        self.get(key)
    }

    pub fn u64(&self, key: &str) -> Result<u64, MetadataError> {
        self.get(key)
    }

    pub fn usize(&self, key: &str) -> Result<usize, MetadataError> {
        self.get(key)
    }

    pub fn f32(&self, key: &str) -> Result<f32, MetadataError> {
        self.get(key)
    }

    pub fn bool(&self, key: &str) -> Result<bool, MetadataError> {
        self.get(key)
    }

    pub fn str(&self, key: &str) -> Result<&str, MetadataError> {
        self.get(key)
    }

    pub fn strings(&self, key: &str) -> Result<&StringArray, MetadataError> {
        self.get(key)
    }

    /// One value for each of `n` layers: an array of `n`, or one value that holds for all.
    pub fn per_layer<T>(&self, key: &str, n: usize) -> Result<Vec<T>, MetadataError>
    where
        T: Clone + for<'a> FromValue<'a>,
        Vec<T>: for<'a> FromValue<'a>,
    {
        if !matches!(self.entries.get(key), Some(Value::Array(_))) {
            return Ok(vec![self.get::<T>(key)?; n]);
        }
        let values = self.get::<Vec<T>>(key)?;
        if values.len() != n {
            let (file, key) = (self.file.clone(), key.to_owned());
            return Err(MetadataError::WrongLength { file, key, want: n, got: values.len() });
        }
        Ok(values)
    }
}

/// How a value is not what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    Type,
    Range,
}

/// A Rust type that a metadata value can be read as.
pub trait FromValue<'a>: Sized {
    /// What is wanted, for messages: "an unsigned 32-bit integer".
    const WANT: &'static str;
    fn from_value(value: &'a Value) -> Result<Self, Mismatch>;
}

impl Value {
    /// Any integer, wide enough for all of them.
    fn integer(&self) -> Option<i128> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::I8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::I16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::I32(v) => Some(v.into()),
            Value::U64(v) => Some(v.into()),
            Value::I64(v) => Some(v.into()),
            Value::F32(_) | Value::F64(_) => None,
            Value::Bool(_) | Value::String(_) | Value::Array(_) => None,
        }
    }

    /// Any float, or an integer that a float of 64 bits holds exactly.
    fn float(&self) -> Result<f64, Mismatch> {
        const EXACT: i128 = 1 << f64::MANTISSA_DIGITS;
        match *self {
            Value::F32(v) => Ok(v.into()),
            Value::F64(v) => Ok(v),
            _ => match self.integer().ok_or(Mismatch::Type)? {
                n if (-EXACT..=EXACT).contains(&n) => Ok(n as f64),
                _ => Err(Mismatch::Range),
            },
        }
    }
}

impl Array {
    pub fn len(&self) -> usize {
        match self {
            Array::U8(v) => v.len(),
            Array::I8(v) => v.len(),
            Array::U16(v) => v.len(),
            Array::I16(v) => v.len(),
            Array::U32(v) => v.len(),
            Array::I32(v) => v.len(),
            Array::U64(v) => v.len(),
            Array::I64(v) => v.len(),
            Array::F32(v) => v.len(),
            Array::F64(v) => v.len(),
            Array::Bool(v) => v.len(),
            Array::String(v) => v.len(),
            Array::Array(v) => v.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element `i` as a value; strings and inner arrays are copied.
    pub fn get(&self, i: usize) -> Option<Value> {
        match self {
            Array::U8(v) => v.get(i).copied().map(Value::U8),
            Array::I8(v) => v.get(i).copied().map(Value::I8),
            Array::U16(v) => v.get(i).copied().map(Value::U16),
            Array::I16(v) => v.get(i).copied().map(Value::I16),
            Array::U32(v) => v.get(i).copied().map(Value::U32),
            Array::I32(v) => v.get(i).copied().map(Value::I32),
            Array::U64(v) => v.get(i).copied().map(Value::U64),
            Array::I64(v) => v.get(i).copied().map(Value::I64),
            Array::F32(v) => v.get(i).copied().map(Value::F32),
            Array::F64(v) => v.get(i).copied().map(Value::F64),
            Array::Bool(v) => v.get(i).copied().map(Value::Bool),
            Array::String(v) => v.get(i).map(|s| Value::String(s.to_owned())),
            Array::Array(v) => v.get(i).cloned().map(Value::Array),
        }
    }

    fn type_name(&self) -> &'static str {
        match self {
            Array::U8(_) => "u8",
            Array::I8(_) => "i8",
            Array::U16(_) => "u16",
            Array::I16(_) => "i16",
            Array::U32(_) => "u32",
            Array::I32(_) => "i32",
            Array::U64(_) => "u64",
            Array::I64(_) => "i64",
            Array::F32(_) => "f32",
            Array::F64(_) => "f64",
            Array::Bool(_) => "bool",
            Array::String(_) => "string",
            Array::Array(_) => "array",
        }
    }

    /// Every element as `T`.
    fn map<T: for<'a> FromValue<'a>>(&self) -> Result<Vec<T>, Mismatch> {
        (0..self.len())
            .map(|i| self.get(i).ok_or(Mismatch::Range).and_then(|v| T::from_value(&v)))
            .collect()
    }
}

macro_rules! integers {
    ($($ty:ty, $want:literal, $wants:literal;)*) => {$(
        impl FromValue<'_> for $ty {
            const WANT: &'static str = $want;
            fn from_value(value: &Value) -> Result<$ty, Mismatch> {
                let n = value.integer().ok_or(Mismatch::Type)?;
                <$ty>::try_from(n).map_err(|_| Mismatch::Range)
            }
        }

        impl FromValue<'_> for Vec<$ty> {
            const WANT: &'static str = $wants;
            fn from_value(value: &Value) -> Result<Vec<$ty>, Mismatch> {
                match value {
                    Value::Array(array) => array.map(),
                    _ => Err(Mismatch::Type),
                }
            }
        }
    )*};
}

integers! {
    u8, "an unsigned 8-bit integer", "an array of unsigned 8-bit integers";
    i32, "a signed 32-bit integer", "an array of signed 32-bit integers";
    u32, "an unsigned 32-bit integer", "an array of unsigned 32-bit integers";
    i64, "a signed 64-bit integer", "an array of signed 64-bit integers";
    u64, "an unsigned 64-bit integer", "an array of unsigned 64-bit integers";
    usize, "a size", "an array of sizes";
}

impl FromValue<'_> for f64 {
    const WANT: &'static str = "a number";
    fn from_value(value: &Value) -> Result<f64, Mismatch> {
        value.float()
    }
}

impl FromValue<'_> for f32 {
    const WANT: &'static str = "a number";
    fn from_value(value: &Value) -> Result<f32, Mismatch> {
        let wide = value.float()?;
        // Rounding is what a float of 32 bits means; overflow to infinity is not.
        let narrow = wide as f32;
        if narrow.is_infinite() && wide.is_finite() { Err(Mismatch::Range) } else { Ok(narrow) }
    }
}

impl FromValue<'_> for Vec<f32> {
    const WANT: &'static str = "an array of numbers";
    fn from_value(value: &Value) -> Result<Vec<f32>, Mismatch> {
        match value {
            Value::Array(Array::F32(v)) => Ok(v.clone()),
            Value::Array(array) => array.map(),
            _ => Err(Mismatch::Type),
        }
    }
}

impl FromValue<'_> for bool {
    const WANT: &'static str = "true or false";
    fn from_value(value: &Value) -> Result<bool, Mismatch> {
        match value {
            Value::Bool(v) => Ok(*v),
            _ => Err(Mismatch::Type),
        }
    }
}

impl FromValue<'_> for Vec<bool> {
    const WANT: &'static str = "an array of true or false";
    fn from_value(value: &Value) -> Result<Vec<bool>, Mismatch> {
        match value {
            Value::Array(Array::Bool(v)) => Ok(v.clone()),
            _ => Err(Mismatch::Type),
        }
    }
}

impl<'a> FromValue<'a> for &'a str {
    const WANT: &'static str = "a string";
    fn from_value(value: &'a Value) -> Result<&'a str, Mismatch> {
        match value {
            Value::String(v) => Ok(v),
            _ => Err(Mismatch::Type),
        }
    }
}

impl<'a> FromValue<'a> for &'a StringArray {
    const WANT: &'static str = "an array of strings";
    fn from_value(value: &'a Value) -> Result<&'a StringArray, Mismatch> {
        match value {
            Value::Array(Array::String(v)) => Ok(v),
            _ => Err(Mismatch::Type),
        }
    }
}

macro_rules! into_value {
    ($($ty:ty => $variant:ident;)*) => {$(
        impl From<$ty> for Value {
            fn from(v: $ty) -> Value { Value::$variant(v.into()) }
        }

        impl From<Vec<$ty>> for Value {
            fn from(v: Vec<$ty>) -> Value { Value::Array(Array::$variant(v.into_iter().collect())) }
        }
    )*};
}

into_value! {
    u8 => U8; i8 => I8; u16 => U16; i16 => I16; u32 => U32; i32 => I32; u64 => U64; i64 => I64;
    f32 => F32; f64 => F64; bool => Bool; &str => String; String => String;
}

impl From<Array> for Value {
    fn from(v: Array) -> Value {
        Value::Array(v)
    }
}

impl From<StringArray> for Value {
    fn from(v: StringArray) -> Value {
        Value::Array(Array::String(v))
    }
}

/// One line with the type: long strings and arrays are cut, control characters are escaped.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::U8(v) => write!(f, "{v} (u8)"),
            Value::I8(v) => write!(f, "{v} (i8)"),
            Value::U16(v) => write!(f, "{v} (u16)"),
            Value::I16(v) => write!(f, "{v} (i16)"),
            Value::U32(v) => write!(f, "{v} (u32)"),
            Value::I32(v) => write!(f, "{v} (i32)"),
            Value::U64(v) => write!(f, "{v} (u64)"),
            Value::I64(v) => write!(f, "{v} (i64)"),
            Value::F32(v) => write!(f, "{v} (f32)"),
            Value::F64(v) => write!(f, "{v} (f64)"),
            Value::Bool(v) => write!(f, "{v} (bool)"),
            Value::String(v) => write!(f, "{} (string)", Excerpt(v)),
            Value::Array(v) => write!(f, "an array of {} {}", v.len(), v.type_name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Metadata {
        let mut m = Metadata::new("m.gguf");
        m.insert("llama.block_count", 30u16);
        m.insert("llama.heads", vec![9u32, 3]);
        m.insert("eps", 1e-5f32);
        m.insert("base", 10000i32);
        m.insert("name", "a\nb");
        m.insert("minus", -1i8);
        m.insert("tokens", vec!["<s>", "", "é"]);
        m
    }

    #[test]
    fn numbers_convert_when_they_fit() {
        let m = sample();
        assert_eq!(m.u32("llama.block_count"), Ok(30));
        assert_eq!(m.f32("eps"), Ok(1e-5));
        assert_eq!(m.f32("base"), Ok(10000.0));
        assert_eq!(m.per_layer::<u32>("llama.heads", 2), Ok(vec![9, 3]));
        assert_eq!(m.per_layer::<u32>("llama.block_count", 3), Ok(vec![30; 3]));
        assert_eq!(m.opt::<u32>("absent"), Ok(None));
        let mut m = Metadata::new("m");
        m.insert("big", u64::MAX);
        m.insert("huge", 1e300f64);
        assert!(matches!(m.f32("big"), Err(MetadataError::OutOfRange { .. })));
        assert!(matches!(m.f32("huge"), Err(MetadataError::OutOfRange { .. })));
    }

    #[test]
    fn errors_name_file_key_and_want() {
        let m = sample();
        let text = |e: MetadataError| e.to_string();
        assert_eq!(
            text(m.u32("llama.block_coun").unwrap_err()),
            "m.gguf: metadata has no 'llama.block_coun' (an unsigned 32-bit integer wanted); \
             the nearest is 'llama.block_count'"
        );
        assert_eq!(
            text(m.u32("name").unwrap_err()),
            "m.gguf: metadata 'name' is 'a\\nb' (string), but an unsigned 32-bit integer is wanted"
        );
        assert_eq!(
            text(m.u32("minus").unwrap_err()),
            "m.gguf: metadata 'minus' is -1 (i8), which does not fit an unsigned 32-bit integer"
        );
        assert_eq!(
            text(m.str("tokens").unwrap_err()),
            "m.gguf: metadata 'tokens' is an array of 3 string, but a string is wanted"
        );
        assert_eq!(
            text(m.per_layer::<u32>("llama.heads", 3).unwrap_err()),
            "m.gguf: metadata 'llama.heads' has 2 values, but 3 are wanted"
        );
    }

    #[test]
    fn string_arrays_are_arenas() {
        let m = sample();
        let tokens = m.strings("tokens").unwrap();
        assert_eq!(tokens.iter().collect::<Vec<_>>(), ["<s>", "", "é"]);
        assert_eq!(tokens.get(2), Some("é"));
        assert_eq!(tokens.get(3), None);
        assert!(StringArray::from_parts("é".into(), vec![1, 2]).is_none());
        assert!(StringArray::from_parts("ab".into(), vec![2, 1]).is_none());
        assert!(StringArray::from_parts("ab".into(), vec![1]).is_none());
        assert!(StringArray::from_parts("ab".into(), vec![3]).is_none());
        assert!(StringArray::from_parts(String::new(), vec![]).is_some());
    }
}
