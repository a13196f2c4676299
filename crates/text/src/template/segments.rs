//! Telling template text from message text in a rendered prompt.
//!
//! The messages are rendered twice: as they are, and with a mark before and after each string
//! that came from outside. The marks are private-use characters that occur in no input, so they
//! cannot be forged. If the second rendering without its marks equals the first, the marks say
//! exactly what came from where. If not, the template looked into the strings and did otherwise
//! because of the marks; then fewer strings are marked, and what is not marked is remembered so
//! that control-token text in it can be refused.
//!
//! Marks go inside the white space around a string, because templates trim content.

use serde_json::Value;

use super::Segment;

/// Who wrote a stretch of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The template.
    Template,
    /// A message of the user, the system or a tool; a tool description.
    Message,
    /// A message of the assistant: what the model itself said before.
    Answer,
}

/// Which strings are marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Marking {
    /// All that came from outside, tools and tool calls too.
    All,
    /// The contents of messages.
    Contents,
}

/// The characters that stand for the borders.
#[derive(Debug, Clone, Copy)]
pub(super) struct Marks {
    message: char,
    answer: char,
    end: char,
}

/// Reasoning and call markup that templates look for in what the assistant said. It stays outside
/// the marks so that they find it.
const ANSWER_TAGS: [&str; 6] =
    ["<think>", "</think>", "<tool_call>", "</tool_call>", "<thinking>", "</thinking>"];

impl Marks {
    /// Three characters that are in none of the texts; `None` if all are taken.
    pub(super) fn unused<'t>(texts: impl Iterator<Item = &'t str> + Clone) -> Option<Self> {
        let private = '\u{f0000}'..='\u{ffffd}';
        let mut free = private.filter(|&mark| texts.clone().all(|text| !text.contains(mark)));
        Some(Self { message: free.next()?, answer: free.next()?, end: free.next()? })
    }

    fn wrap(self, text: &str, origin: Origin) -> String {
        let open = if origin == Origin::Answer { self.answer } else { self.message };
        let core = text.trim();
        if core.is_empty() {
            return text.to_owned();
        }
        let start = text.len() - text.trim_start().len();
        let (before, after) = (&text[..start], &text[start + core.len()..]);
        format!("{before}{open}{core}{}{after}", self.end)
    }

    fn wrap_answer(self, text: &str) -> String {
        let mut out = String::with_capacity(text.len() + 16);
        let mut rest = text;
        loop {
            let tags = ANSWER_TAGS.iter().filter_map(|tag| Some((rest.find(tag)?, tag.len())));
            let Some((at, len)) = tags.min() else { break };
            out.push_str(&self.wrap(&rest[..at], Origin::Answer));
            out.push_str(&rest[at..at + len]);
            rest = &rest[at + len..];
        }
        out.push_str(&self.wrap(rest, Origin::Answer));
        out
    }

    fn mark(self, text: &mut String, origin: Origin) {
        *text = match origin {
            Origin::Answer => self.wrap_answer(text),
            Origin::Message | Origin::Template => self.wrap(text, origin),
        };
    }

    /// Marks every string below, except under keys that templates compare.
    fn mark_all(self, value: &mut Value, origin: Origin) {
        match value {
            Value::String(text) => self.mark(text, origin),
            Value::Array(items) => items.iter_mut().for_each(|item| self.mark_all(item, origin)),
            Value::Object(fields) => {
                let named =
                    fields.iter_mut().filter(|(key, _)| !matches!(key.as_str(), "type" | "role"));
                named.for_each(|(_, value)| self.mark_all(value, origin));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Marks a message as the template sees it.
    pub(super) fn mark_message(self, message: &mut Value, marking: Marking) {
        let assistant = message.get("role").and_then(Value::as_str) == Some("assistant");
        let origin = if assistant { Origin::Answer } else { Origin::Message };
        match marking {
            Marking::All => self.mark_all(message, origin),
            Marking::Contents => {
                if let Some(content) = message.get_mut("content") {
                    self.mark_all(content, origin);
                }
            }
        }
    }

    pub(super) fn mark_tools(self, tools: &mut Value) {
        self.mark_all(tools, Origin::Message);
    }

    /// Splits a marked rendering; `None` if the marks do not pair.
    pub(super) fn split(self, marked: &str) -> Option<Vec<Segment>> {
        let mut segments: Vec<Segment> = Vec::new();
        let mut origin = Origin::Template;
        let mut start = 0;
        let mut close = |start: usize, end: usize, origin: Origin| {
            if start < end {
                let text = &marked[start..end];
                match segments.last_mut().filter(|last| last.origin == origin) {
                    Some(last) => last.text.push_str(text),
                    None => segments.push(Segment { text: text.to_owned(), origin }),
                }
            }
        };
        for (at, character) in marked.char_indices() {
            let next = match (character == self.end, origin) {
                (true, Origin::Message | Origin::Answer) => Origin::Template,
                (true, Origin::Template) => return None,
                (false, _) if character == self.message => Origin::Message,
                (false, _) if character == self.answer => Origin::Answer,
                (false, _) => continue,
            };
            if next != Origin::Template && origin != Origin::Template {
                return None;
            }
            close(start, at, origin);
            origin = next;
            start = at + character.len_utf8();
        }
        close(start, marked.len(), origin);
        (origin == Origin::Template).then_some(segments)
    }
}

/// Every string below, for the search of control-token text.
pub(super) fn collect_strings(value: &Value, out: &mut String) {
    match value {
        Value::String(text) => out.push_str(text),
        Value::Array(items) => items.iter().for_each(|item| collect_strings(item, out)),
        Value::Object(fields) => fields.iter().for_each(|(key, value)| {
            out.push_str(key);
            collect_strings(value, out);
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
