//! What Python does in a template and minijinja does otherwise: printing values, JSON with
//! Python's spaces, the clock.
//!
//! Reference: Jinja2, and `chat_template_utils.py` of Hugging Face transformers.

use jiff::Timestamp;
use jiff::tz::{Offset, TimeZone};
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// The time that `strftime_now` tells.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Clock {
    /// Now, in the time zone of the machine.
    #[default]
    System,
    /// Always the same moment.
    Fixed {
        /// Seconds since 1970-01-01 00:00 UTC.
        unix_seconds: i64,
        /// East of Greenwich.
        utc_offset_seconds: i32,
    },
}

impl Clock {
    /// The time by a format of `strftime`.
    pub(super) fn format(self, format: &str) -> Result<String, Error> {
        let failed = |error: jiff::Error| {
            Error::new(ErrorKind::InvalidOperation, format!("strftime_now({format:?}): {error}"))
        };
        let now = match self {
            Self::System => jiff::ZonedDateTime::now(),
            Self::Fixed { unix_seconds, utc_offset_seconds } => {
                let offset = Offset::from_seconds(utc_offset_seconds).map_err(failed)?;
                let time = Timestamp::from_second(unix_seconds).map_err(failed)?;
                time.to_zoned_datetime(TimeZone::fixed(offset))
            }
        };
        jiff::fmt::strtime::format(format, &now).map_err(failed)
    }
}

/// A value as `str()` of Python shows it.
///
/// # Errors
/// If the value is too large to be shown: a template can nest one list in another so often that
/// its text would not fit anywhere.
pub(super) fn to_str(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let mut text = String::new();
    write_repr(value, &mut text, &mut Budget::new())?;
    Ok(text)
}

/// Bounds on the walk through a value.
struct Budget {
    values: u32,
    depth: u32,
}

impl Budget {
    fn new() -> Self {
        Self { values: 1_000_000, depth: 64 }
    }

    /// Goes one level down, or says that this is enough.
    fn enter(&mut self) -> Result<(), Error> {
        let left = self.values.checked_sub(1).zip(self.depth.checked_sub(1));
        (self.values, self.depth) = left.ok_or_else(|| {
            Error::new(ErrorKind::InvalidOperation, "a value is too large or nested too deep")
        })?;
        Ok(())
    }

    fn leave(&mut self) {
        self.depth += 1;
    }
}

fn write_repr(value: &Value, out: &mut String, budget: &mut Budget) -> Result<(), Error> {
    budget.enter()?;
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => match f64::try_from(value.clone()) {
            Ok(number) if !value.is_integer() => out.push_str(&float_repr(number)),
            _ => out.push_str(&value.to_string()),
        },
        ValueKind::String => write_str_repr(value.as_str().unwrap_or_default(), out),
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(&key, out, budget)?;
                out.push_str(": ");
                write_repr(&value.get_item(&key)?, out, budget)?;
            }
            out.push('}');
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let tuple = value.is_tuple();
            out.push(if tuple { '(' } else { '[' });
            let mut count = 0;
            for item in value.try_iter()? {
                out.push_str(if count > 0 { ", " } else { "" });
                write_repr(&item, out, budget)?;
                count += 1;
            }
            out.push_str(if tuple && count == 1 { "," } else { "" });
            out.push(if tuple { ')' } else { ']' });
        }
        _ => out.push_str(&value.to_string()),
    }
    budget.leave();
    Ok(())
}

fn write_str_repr(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            _ if character == quote => out.extend(['\\', character]),
            _ if character.is_ascii_control() => {
                out.push_str(&format!("\\x{:02x}", character as u32));
            }
            _ => out.push(character),
        }
    }
    out.push(quote);
}

/// The shortest text that reads back as the number, with Python's choice of notation.
fn float_repr(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if number != 0.0 && !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
        _ => format!("{number:?}"),
    }
}

/// `json.dumps(value, ensure_ascii=False)` with the options that templates use.
pub(super) fn tojson(value: &Value, options: &Kwargs) -> Result<String, Error> {
    let indent = match options.get::<Option<Value>>("indent")? {
        Some(indent) if !indent.is_none() => {
            match (usize::try_from(indent.clone()), indent.as_str()) {
                (Ok(spaces), _) => Some(" ".repeat(spaces.min(64))),
                (_, Some(text)) => Some(text.to_owned()),
                _ => {
                    return Err(Error::new(
                        ErrorKind::InvalidOperation,
                        "tojson: indent is no number",
                    ));
                }
            }
        }
        _ => None,
    };
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => {
            return Err(Error::new(ErrorKind::InvalidOperation, "tojson: separators are two"));
        }
        None if indent.is_some() => (",".into(), ": ".into()),
        None => (", ".into(), ": ".into()),
    };
    let style = JsonStyle {
        indent,
        item,
        key,
        ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    let mut out = String::new();
    style.write(value, 0, &mut out, &mut Budget::new())?;
    Ok(out)
}

struct JsonStyle {
    indent: Option<String>,
    item: String,
    key: String,
    ascii: bool,
    sort: bool,
}

impl JsonStyle {
    fn write(
        &self,
        value: &Value,
        level: usize,
        out: &mut String,
        budget: &mut Budget,
    ) -> Result<(), Error> {
        budget.enter()?;
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => match f64::try_from(value.clone()) {
                Ok(number) if !value.is_integer() => out.push_str(&float_repr(number)),
                _ => out.push_str(&value.to_string()),
            },
            ValueKind::String => self.write_string(value.as_str().unwrap_or_default(), out),
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort {
                    keys.sort();
                }
                out.push('{');
                for (index, key) in keys.iter().enumerate() {
                    out.push_str(if index > 0 { &self.item } else { "" });
                    self.new_line(level + 1, out);
                    self.write_string(&to_str(key)?, out);
                    out.push_str(&self.key);
                    self.write(&value.get_item(key)?, level + 1, out, budget)?;
                }
                if !keys.is_empty() {
                    self.new_line(level, out);
                }
                out.push('}');
            }
            ValueKind::Seq | ValueKind::Iterable => {
                out.push('[');
                let mut empty = true;
                for item in value.try_iter()? {
                    out.push_str(if empty { "" } else { &self.item });
                    empty = false;
                    self.new_line(level + 1, out);
                    self.write(&item, level + 1, out, budget)?;
                }
                if !empty {
                    self.new_line(level, out);
                }
                out.push(']');
            }
            kind => {
                let reason = format!("tojson: a value of type {kind} is not JSON");
                return Err(Error::new(ErrorKind::BadSerialization, reason));
            }
        }
        budget.leave();
        Ok(())
    }

    fn new_line(&self, level: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..level).for_each(|_| out.push_str(indent));
        }
    }

    fn write_string(&self, text: &str, out: &mut String) {
        out.push('"');
        for character in text.chars() {
            match character {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                '\0'..='\u{1f}' => out.push_str(&format!("\\u{:04x}", character as u32)),
                '\u{7f}'.. if self.ascii && character as u32 > 0x7f => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                _ => out.push(character),
            }
        }
        out.push('"');
    }
}
