//! JSON files beside a model's weights, as metadata: nested objects become dotted keys.
//!
//! `{"rope_parameters": {"rope_theta": 1e4}}` under the prefix `config` is the entry
//! `config.rope_parameters.rope_theta`. A list of one kind of number, boolean or string is an array;
//! elements of any other list are entries of their own (`modules.0.path`). What is null is absent.

use std::fmt;
use std::path::Path;

use cyb_tensor::MappedFile;
use indexmap::IndexMap;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::error::FormatError;
use crate::metadata::{Metadata, Value};
use crate::text::Excerpt;

/// Configurations are kilobytes; tokenizers, which are not read here, tens of megabytes.
const LONGEST_FILE: usize = 16 << 20;

/// A JSON value whose objects have no key twice.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    String(String),
    List(Vec<Json>),
    Object(IndexMap<String, Json>),
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        struct JsonVisitor;
        impl<'de> Visitor<'de> for JsonVisitor {
            type Value = Json;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON value")
            }
            fn visit_unit<E: Error>(self) -> Result<Json, E> {
                Ok(Json::Null)
            }
            fn visit_bool<E: Error>(self, v: bool) -> Result<Json, E> {
                Ok(Json::Bool(v))
            }
            fn visit_i64<E: Error>(self, v: i64) -> Result<Json, E> {
                Ok(Json::Int(v))
            }
            fn visit_u64<E: Error>(self, v: u64) -> Result<Json, E> {
                // Tokenizers write 1e30 for "no limit"; as a float it stays what it is.
                Ok(i64::try_from(v).map_or(Json::Float(v as f64), Json::Int))
            }
            fn visit_f64<E: Error>(self, v: f64) -> Result<Json, E> {
                Ok(Json::Float(v))
            }
            fn visit_str<E: Error>(self, v: &str) -> Result<Json, E> {
                Ok(Json::String(v.to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Json, A::Error> {
                let mut list = Vec::new();
                while let Some(element) = seq.next_element()? {
                    list.push(element);
                }
                Ok(Json::List(list))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
                let mut object = IndexMap::new();
                while let Some(key) = map.next_key::<String>()? {
                    if object.insert(key.clone(), map.next_value()?).is_some() {
                        return Err(A::Error::custom(format!("{} occurs twice", Excerpt(&key))));
                    }
                }
                Ok(Json::Object(object))
            }
        }
        deserializer.deserialize_any(JsonVisitor)
    }
}

/// Reads a JSON file; `None` when there is none.
pub(crate) fn read(path: &Path) -> Result<Option<Json>, FormatError> {
    if !path.is_file() {
        return Ok(None);
    }
    let file = MappedFile::open(path)?;
    let fail = |problem: String| FormatError::Json { path: path.to_owned(), problem };
    if file.bytes().len() > LONGEST_FILE {
        return Err(fail(format!("it is {} bytes long", file.bytes().len())));
    }
    parse(file.bytes()).map(Some).map_err(fail)
}

fn parse(bytes: &[u8]) -> Result<Json, String> {
    serde_json::from_slice(bytes).map_err(|e| e.to_string())
}

/// Puts a value into metadata under `key`.
pub(crate) fn flatten(metadata: &mut Metadata, key: &str, json: Json) {
    match json {
        Json::Null => {}
        Json::Bool(v) => metadata.insert(key, v),
        Json::Int(v) => metadata.insert(key, v),
        Json::Float(v) => metadata.insert(key, v),
        Json::String(v) => metadata.insert(key, v),
        Json::Object(entries) => {
            for (name, value) in entries {
                flatten(metadata, &format!("{key}.{name}"), value);
            }
        }
        Json::List(list) => match array(&list) {
            Some(array) => metadata.insert(key, array),
            None => {
                for (i, element) in list.into_iter().enumerate() {
                    flatten(metadata, &format!("{key}.{i}"), element);
                }
            }
        },
    }
}

/// A list of one kind; integers among floats are floats.
fn array(list: &[Json]) -> Option<Value> {
    fn all<T>(list: &[Json], element: fn(&Json) -> Option<T>) -> Option<Vec<T>> {
        list.iter().map(element).collect()
    }
    let ints = all(list, |v| if let Json::Int(n) = v { Some(*n) } else { None });
    if let Some(ints) = ints {
        return Some(ints.into());
    }
    let floats = all(list, |v| match v {
        Json::Int(n) => Some(*n as f64),
        Json::Float(x) => Some(*x),
        Json::Null | Json::Bool(_) | Json::String(_) | Json::List(_) | Json::Object(_) => None,
    });
    if let Some(floats) = floats {
        return Some(floats.into());
    }
    if let Some(flags) = all(list, |v| if let Json::Bool(b) = v { Some(*b) } else { None }) {
        return Some(flags.into());
    }
    all(list, |v| if let Json::String(s) = v { Some(s.clone()) } else { None }).map(Value::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flat(text: &str) -> Metadata {
        let mut metadata = Metadata::new("m");
        flatten(&mut metadata, "c", parse(text.as_bytes()).unwrap());
        metadata
    }

    #[test]
    fn nested_objects_are_dotted_keys() {
        let m = flat(
            r#"{"a": {"b": 1, "c": [1, 2.5], "n": null}, "l": [{"p": "x"}, {"p": ""}],
                "t": [true, false], "s": ["u", "v"], "e": [], "big": 18446744073709551615}"#,
        );
        assert_eq!(m.usize("c.a.b"), Ok(1));
        assert_eq!(m.get::<Vec<f32>>("c.a.c"), Ok(vec![1.0, 2.5]));
        assert!(!m.contains("c.a.n"));
        assert_eq!((m.str("c.l.0.p"), m.str("c.l.1.p")), (Ok("x"), Ok("")));
        assert_eq!(m.get::<Vec<bool>>("c.t"), Ok(vec![true, false]));
        assert_eq!(m.strings("c.s").unwrap().get(1), Some("v"));
        assert_eq!(m.get::<Vec<usize>>("c.e"), Ok(vec![]));
        assert!(m.f32("c.big").unwrap() > 1.8e19);
    }

    #[test]
    fn doubled_keys_and_deep_nesting_are_errors() {
        assert!(parse(br#"{"a": 1, "b": {"x": 1, "x": 2}}"#).unwrap_err().contains("'x'"));
        let deep = [vec![b'['; 1 << 20], vec![b']'; 1 << 20]].concat();
        assert!(parse(&deep).is_err());
        assert!(parse(b"{").is_err());
    }
}
