//! Chat messages, in the shape that OpenAI-compatible clients send and templates expect.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One turn of a chat. Fields that are not listed are kept and given to the template.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool` or what else the template knows.
    pub role: String,
    /// Absent and `null` are the same: no content. An empty string is content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    /// Name of the speaker or of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Calls that the assistant made: `{"type": "function", "function": {"name", "arguments"}}`.
    #[serde(default, deserialize_with = "null_is_empty", skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<Value>,
    /// Everything else: `tool_call_id`, `reasoning_content`.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Text of a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// A string.
    Text(String),
    /// Parts of several kinds.
    Parts(Vec<ContentPart>),
}

/// One part of a message: `{"type": "text", "text": "…"}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContentPart {
    /// `text`, `image`, `audio` or what else the template knows.
    #[serde(rename = "type")]
    pub kind: String,
    /// The text of a `text` part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Everything else.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Message {
    /// A message of text.
    #[must_use]
    pub fn new(role: &str, text: &str) -> Self {
        let content = Some(Content::Text(text.to_owned()));
        Self { role: role.to_owned(), content, ..Self::default() }
    }
}

fn null_is_empty<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<Value>, D::Error> {
    Ok(Option::<Vec<Value>>::deserialize(from)?.unwrap_or_default())
}

/// How a template wants content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContentStyle {
    /// Strings; text parts are joined by newlines.
    Text,
    /// As it comes.
    Either,
    /// Lists of parts; a string becomes a list of one.
    Parts,
}

/// The message as the template sees it.
///
/// No content is `none` beside tool calls, where templates look for it, and an empty string
/// elsewhere, where they add it to other strings. JSON text of tool arguments becomes the object
/// that it says, which is what templates written for Hugging Face expect.
pub(super) fn to_value(message: &Message, style: ContentStyle, none_as_empty: bool) -> Value {
    let mut fields = Map::new();
    fields.insert("role".into(), message.role.clone().into());
    let content = match &message.content {
        None if message.tool_calls.is_empty() || none_as_empty => Value::String(String::new()),
        None => Value::Null,
        Some(Content::Text(text)) if style == ContentStyle::Parts => {
            serde_json::json!([{"type": "text", "text": text}])
        }
        Some(Content::Text(text)) => text.clone().into(),
        Some(Content::Parts(parts)) => {
            match joined(parts).filter(|_| style == ContentStyle::Text) {
                Some(text) => text.into(),
                None => serde_json::to_value(parts).unwrap_or_default(),
            }
        }
    };
    fields.insert("content".into(), content);
    if let Some(name) = &message.name {
        fields.insert("name".into(), name.clone().into());
    }
    if !message.tool_calls.is_empty() {
        let calls = message.tool_calls.iter().cloned().map(parse_arguments).collect();
        fields.insert("tool_calls".into(), Value::Array(calls));
    }
    fields.extend(message.extra.iter().map(|(key, value)| (key.clone(), value.clone())));
    Value::Object(fields)
}

/// The text of parts that are all text.
fn joined(parts: &[ContentPart]) -> Option<String> {
    let texts: Option<Vec<&str>> =
        parts.iter().map(|part| part.text.as_deref().filter(|_| part.kind == "text")).collect();
    texts.map(|texts| texts.join("\n"))
}

fn parse_arguments(mut call: Value) -> Value {
    let function = match call.get_mut("function") {
        Some(function) => function,
        None => &mut call,
    };
    if let Some(arguments) = function.get_mut("arguments")
        && let Some(Value::Object(parsed)) =
            arguments.as_str().and_then(|text| serde_json::from_str(text).ok())
    {
        *arguments = Value::Object(parsed);
    }
    call
}
