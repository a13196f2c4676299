//! A machine for Python pickles that knows tensors and nothing else.
//!
//! A pickle is a program that may call anything. This one builds numbers, strings, lists and
//! tables, and of all callables knows those by which PyTorch rebuilds tensors; whatever else a
//! pickle names is refused by name, whether or not it would be called. Values live in an arena, so
//! that nesting costs no stack, and every instruction costs a byte of the file, which bounds what
//! is built.
//!
//! Reference: <https://docs.python.org/3/library/pickletools.html> and `torch/serialization.py`.

use std::collections::HashMap;

use cyb_tensor::DType;

use crate::text::Excerpt;

/// What is wrong with a pickle.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PickleError {
    #[error("the pickle is cut at byte {0}; fetch the file again")]
    Cut(usize),
    #[error(
        "the pickle has the instruction {code:#04x} at byte {at}, which no tensors need; it is damaged or no checkpoint"
    )]
    Instruction { code: u8, at: usize },
    #[error(
        "the pickle asks for {}, which is no part of a tensor and could be any program; it is \
         refused: convert the model to safetensors where it is trusted",
        Excerpt(.0)
    )]
    Refused(String),
    #[error("the pickle is not well-formed at byte {at}: {why}; the file is damaged")]
    Malformed { at: usize, why: &'static str },
}

/// A value; those that hold others are in the arena.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Mark,
    Callable(Callable),
    Storage(usize),
    Tensor(usize),
    Text(usize),
    List(usize),
    Table(usize),
}

/// What a pickle may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Callable {
    Rebuild,
    RebuildParameter,
    OrderedDict,
    Size,
    StorageOf(DType),
}

/// A block of numbers that tensors are views of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Storage {
    pub(crate) key: String,
    pub(crate) dtype: DType,
    /// How many numbers it has.
    pub(crate) len: usize,
}

/// A view of a storage, in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) storage: usize,
    pub(crate) offset: usize,
    pub(crate) shape: Vec<usize>,
    pub(crate) strides: Vec<usize>,
}

/// Everything that a pickle has built.
#[derive(Debug, Default)]
pub(crate) struct Built {
    pub(crate) texts: Vec<String>,
    pub(crate) lists: Vec<Vec<Value>>,
    pub(crate) tables: Vec<Vec<(Value, Value)>>,
    pub(crate) storages: Vec<Storage>,
    pub(crate) views: Vec<View>,
}

impl Built {
    pub(crate) fn text(&self, value: Value) -> Option<&str> {
        match value {
            Value::Text(i) => self.texts.get(i).map(String::as_str),
            _ => None,
        }
    }

    fn list(&self, value: Value) -> Option<&[Value]> {
        match value {
            Value::List(i) => self.lists.get(i).map(Vec::as_slice),
            _ => None,
        }
    }

    /// A copy of a list. Long ones, of which there could be many copies, are none.
    fn short(&self, value: Value) -> Option<Vec<Value>> {
        const LONGEST: usize = 16;
        self.list(value).filter(|list| list.len() <= LONGEST).map(<[Value]>::to_vec)
    }

    fn sizes(&self, value: Value) -> Option<Vec<usize>> {
        self.short(value)?.into_iter().map(size).collect()
    }
}

fn size(value: Value) -> Option<usize> {
    match value {
        Value::Int(n) => usize::try_from(n).ok(),
        _ => None,
    }
}

fn callable(name: &str) -> Option<Callable> {
    Some(match name {
        "torch._utils._rebuild_tensor_v2" | "torch._utils._rebuild_tensor" => Callable::Rebuild,
        "torch._utils._rebuild_parameter" => Callable::RebuildParameter,
        "collections.OrderedDict" => Callable::OrderedDict,
        "torch.Size" => Callable::Size,
        "torch.FloatStorage" => Callable::StorageOf(DType::F32),
        "torch.DoubleStorage" => Callable::StorageOf(DType::F64),
        "torch.HalfStorage" => Callable::StorageOf(DType::F16),
        "torch.BFloat16Storage" => Callable::StorageOf(DType::BF16),
        "torch.LongStorage" => Callable::StorageOf(DType::I64),
        "torch.IntStorage" => Callable::StorageOf(DType::I32),
        "torch.ShortStorage" => Callable::StorageOf(DType::I16),
        "torch.CharStorage" => Callable::StorageOf(DType::I8),
        "torch.ByteStorage" => Callable::StorageOf(DType::U8),
        "torch.BoolStorage" => Callable::StorageOf(DType::Bool),
        _ => return None,
    })
}

/// Runs one pickle at `start`; gives its value and where it ends. What it builds is added to
/// `built`.
pub(crate) fn run(
    bytes: &[u8],
    start: usize,
    built: &mut Built,
) -> Result<(Value, usize), PickleError> {
    let mut machine = Machine { bytes, at: start, stack: Vec::new(), memo: HashMap::new(), built };
    loop {
        if let Some(value) = machine.step()? {
            return Ok((value, machine.at));
        }
    }
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Value>,
    memo: HashMap<u64, Value>,
    built: &'a mut Built,
}

impl<'a> Machine<'a> {
    fn malformed(&self, why: &'static str) -> PickleError {
        PickleError::Malformed { at: self.at, why }
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8], PickleError> {
        let bytes = self.bytes;
        let end = self.at.checked_add(n).filter(|&end| end <= bytes.len());
        let end = end.ok_or(PickleError::Cut(bytes.len()))?;
        let taken = &bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn number(&mut self, width: usize) -> Result<u64, PickleError> {
        let mut wide = [0; 8];
        wide[..width].copy_from_slice(self.take(width)?);
        Ok(u64::from_le_bytes(wide))
    }

    fn length(&mut self, width: usize) -> Result<usize, PickleError> {
        let n = self.number(width)?;
        usize::try_from(n).map_err(|_| PickleError::Cut(self.bytes.len()))
    }

    fn line(&mut self) -> Result<&'a str, PickleError> {
        let rest = &self.bytes[self.at..];
        let len = rest.iter().position(|&b| b == b'\n');
        let len = len.ok_or(PickleError::Cut(self.bytes.len()))?;
        self.at += len + 1;
        std::str::from_utf8(&rest[..len]).map_err(|_| self.malformed("a line is no text"))
    }

    fn pop(&mut self) -> Result<Value, PickleError> {
        match self.stack.pop() {
            Some(Value::Mark) | None => Err(self.malformed("a value is missing")),
            Some(value) => Ok(value),
        }
    }

    /// The values after the last mark, which is taken away.
    fn marked(&mut self) -> Result<Vec<Value>, PickleError> {
        let mark = self.stack.iter().rposition(|v| *v == Value::Mark);
        let mark = mark.ok_or_else(|| self.malformed("a mark is missing"))?;
        let values = self.stack.split_off(mark + 1);
        self.stack.pop();
        Ok(values)
    }

    fn text(&mut self, bytes: &[u8]) -> Value {
        self.built.texts.push(String::from_utf8_lossy(bytes).into_owned());
        Value::Text(self.built.texts.len() - 1)
    }

    fn list(&mut self, values: Vec<Value>) -> Value {
        self.built.lists.push(values);
        Value::List(self.built.lists.len() - 1)
    }

    fn table(&mut self) -> Value {
        self.built.tables.push(Vec::new());
        Value::Table(self.built.tables.len() - 1)
    }

    fn named(&mut self, module: &str, name: &str) -> Result<Value, PickleError> {
        let full = format!("{module}.{name}");
        callable(&full).map(Value::Callable).ok_or(PickleError::Refused(full))
    }

    fn top(&self) -> Result<Value, PickleError> {
        self.stack.last().copied().ok_or_else(|| self.malformed("a value is missing"))
    }

    fn remember(&mut self, key: u64) -> Result<(), PickleError> {
        let value = self.top()?;
        self.memo.insert(key, value);
        Ok(())
    }

    fn recall(&mut self, key: u64) -> Result<(), PickleError> {
        let value = self.memo.get(&key).copied();
        self.stack.push(value.ok_or_else(|| self.malformed("nothing is remembered there"))?);
        Ok(())
    }

    fn put(&mut self, pairs: Vec<Value>) -> Result<(), PickleError> {
        let Value::Table(table) = self.top()? else {
            return Err(self.malformed("an entry is put into what is no table"));
        };
        if !pairs.len().is_multiple_of(2) {
            return Err(self.malformed("a key has no value"));
        }
        let entries = pairs.chunks_exact(2).map(|pair| (pair[0], pair[1]));
        self.built.tables[table].extend(entries);
        Ok(())
    }

    fn append(&mut self, values: Vec<Value>) -> Result<(), PickleError> {
        let Value::List(list) = self.top()? else {
            return Err(self.malformed("a value is appended to what is no list"));
        };
        self.built.lists[list].extend(values);
        Ok(())
    }

    fn decimal(&mut self) -> Result<i64, PickleError> {
        let line = self.line()?;
        line.trim_end_matches('L').parse().map_err(|_| self.malformed("a number is none"))
    }

    /// Runs an instruction; gives the value when it is the last.
    fn step(&mut self) -> Result<Option<Value>, PickleError> {
        let at = self.at;
        let code = self.take(1)?[0];
        let value = match code {
            0x80 => return self.take(1).map(|_| None),
            0x95 => return self.take(8).map(|_| None),
            b'.' => return self.pop().map(Some),
            b'(' => Value::Mark,
            b'N' => Value::None,
            0x88 => Value::Bool(true),
            0x89 => Value::Bool(false),
            b'K' => Value::Int(self.number(1)? as i64),
            b'M' => Value::Int(self.number(2)? as i64),
            b'J' => Value::Int(i64::from(self.number(4)? as u32 as i32)),
            b'I' | b'L' => match self.bytes.get(self.at..self.at + 3) {
                Some(b"00\n") if code == b'I' => self.take(3).map(|_| Value::Bool(false))?,
                Some(b"01\n") if code == b'I' => self.take(3).map(|_| Value::Bool(true))?,
                _ => Value::Int(self.decimal()?),
            },
            0x8a | 0x8b => {
                let n = self.length(if code == 0x8a { 1 } else { 4 })?;
                let bytes = self.take(n)?;
                // Longer numbers, such as the magic one, need no value.
                let negative = bytes.last().is_some_and(|&b| b >= 0x80);
                let mut wide = [if negative { 0xff } else { 0 }; 8];
                let kept = n.min(8);
                wide[..kept].copy_from_slice(&bytes[..kept]);
                Value::Int(i64::from_le_bytes(wide))
            }
            b'G' => {
                let bits = self.number(8)?.swap_bytes();
                Value::Float(f64::from_bits(bits))
            }
            b'F' => {
                let line = self.line()?;
                Value::Float(line.parse().map_err(|_| self.malformed("a number is none"))?)
            }
            b'X' | b'T' | b'B' | 0x8c | b'U' | b'C' | 0x8d | 0x8e => {
                let width = match code {
                    b'X' | b'T' | b'B' => 4,
                    0x8d | 0x8e => 8,
                    _ => 1,
                };
                let n = self.length(width)?;
                let bytes = self.take(n)?;
                self.text(bytes)
            }
            b'V' | b'S' => {
                let line = self.line()?;
                self.text(line.trim_matches(['\'', '"']).as_bytes())
            }
            b')' => self.list(Vec::new()),
            b']' => self.list(Vec::new()),
            b'}' => self.table(),
            b't' | b'l' => {
                let values = self.marked()?;
                self.list(values)
            }
            0x85..=0x87 => {
                let n = usize::from(code - 0x84);
                let mut values = Vec::with_capacity(n);
                for _ in 0..n {
                    values.push(self.pop()?);
                }
                values.reverse();
                self.list(values)
            }
            b'd' => {
                let pairs = self.marked()?;
                let table = self.table();
                self.stack.push(table);
                return self.put(pairs).map(|()| None);
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                return self.put(vec![key, value]).map(|()| None);
            }
            b'u' => {
                let pairs = self.marked()?;
                return self.put(pairs).map(|()| None);
            }
            b'a' => {
                let value = self.pop()?;
                return self.append(vec![value]).map(|()| None);
            }
            b'e' => {
                let values = self.marked()?;
                return self.append(values).map(|()| None);
            }
            b'q' => return self.number(1).and_then(|key| self.remember(key)).map(|()| None),
            b'r' => return self.number(4).and_then(|key| self.remember(key)).map(|()| None),
            b'p' => {
                let key = self.decimal()?;
                return self.remember(key as u64).map(|()| None);
            }
            0x94 => return self.remember(self.memo.len() as u64).map(|()| None),
            b'h' => return self.number(1).and_then(|key| self.recall(key)).map(|()| None),
            b'j' => return self.number(4).and_then(|key| self.recall(key)).map(|()| None),
            b'g' => {
                let key = self.decimal()?;
                return self.recall(key as u64).map(|()| None);
            }
            b'0' => {
                return self
                    .stack
                    .pop()
                    .map(|_| None)
                    .ok_or_else(|| self.malformed("nothing is left"));
            }
            b'1' => return self.marked().map(|_| None),
            b'2' => self.top()?,
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.named(module, name)?
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let part = |v: Value| self.built.text(v).map(str::to_owned);
                let Some((module, name)) = part(module).zip(part(name)) else {
                    return Err(self.malformed("a name is no text"));
                };
                self.named(&module, &name)?
            }
            b'Q' => {
                let id = self.pop()?;
                self.storage(id)?
            }
            b'R' | 0x81 => {
                let (arguments, callable) = (self.pop()?, self.pop()?);
                self.call(callable, arguments)?
            }
            // The state of a table: what PyTorch notes about versions.
            b'b' => return self.pop().map(|_| None),
            _ => return Err(PickleError::Instruction { code, at }),
        };
        self.stack.push(value);
        Ok(None)
    }

    /// `('storage', type, key, location, length)`, for parts of others with a sixth value.
    fn storage(&mut self, id: Value) -> Result<Value, PickleError> {
        let parts = self.built.short(id).unwrap_or_default();
        let found = match parts.as_slice() {
            &[kind, Value::Callable(Callable::StorageOf(dtype)), key, _, len]
            | &[kind, Value::Callable(Callable::StorageOf(dtype)), key, _, len, Value::None]
                if self.built.text(kind) == Some("storage") =>
            {
                let key = self.built.text(key).map(str::to_owned);
                key.zip(size(len)).map(|(key, len)| Storage { key, dtype, len })
            }
            _ => None,
        };
        let storage = found.ok_or_else(|| self.malformed("a storage is not described"))?;
        let known = self.built.storages.iter().position(|s| s.key == storage.key);
        if let Some(i) = known {
            return match self.built.storages[i] == storage {
                true => Ok(Value::Storage(i)),
                false => Err(self.malformed("a storage is described in two ways")),
            };
        }
        self.built.storages.push(storage);
        Ok(Value::Storage(self.built.storages.len() - 1))
    }

    fn call(&mut self, callable: Value, arguments: Value) -> Result<Value, PickleError> {
        let given = self.built.short(arguments);
        let Some(given) = given else { return Err(self.malformed("arguments are no short list")) };
        match (callable, given.as_slice()) {
            (
                Value::Callable(Callable::Rebuild),
                &[Value::Storage(storage), offset, shape, strides, ..],
            ) => {
                let shape = self.built.sizes(shape);
                let parts = size(offset).zip(shape).zip(self.built.sizes(strides));
                let Some(((offset, shape), strides)) = parts else {
                    return Err(self.malformed("a tensor's sizes are none"));
                };
                self.built.views.push(View { storage, offset, shape, strides });
                Ok(Value::Tensor(self.built.views.len() - 1))
            }
            (Value::Callable(Callable::RebuildParameter), &[Value::Tensor(view), ..]) => {
                Ok(Value::Tensor(view))
            }
            (Value::Callable(Callable::OrderedDict), []) => Ok(self.table()),
            (Value::Callable(Callable::Size), &[Value::List(sizes)]) => Ok(Value::List(sizes)),
            _ => Err(self.malformed("a call does not fit what is called")),
        }
    }
}
