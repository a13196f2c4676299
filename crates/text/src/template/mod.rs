//! Chat templates: the model's own Jinja, run by minijinja with what Hugging Face transformers
//! adds to it.
//!
//! A template comes with the model, from strangers. It has no access to anything but the values
//! it is given, and it runs on fuel: loops, recursion and the data it builds are bounded.

mod additions;
mod message;
mod python;
mod segments;

#[cfg(test)]
mod tests;

use std::sync::{Arc, mpsc};
use std::time::Duration;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, ErrorKind, State};
use serde_json::{Map, Value};

use crate::TextError;
pub use message::{Content, ContentPart, Message};
use message::{ContentStyle, to_value};
pub use python::Clock;
pub use segments::Origin;
use segments::{Marking, Marks, collect_strings};

/// Instructions, and blocks of 64 bytes of data, that one rendering may take. A chat of a million
/// words takes a part of it; it is used up in about a second.
const FUEL: u64 = 2_000_000;

/// Values that a template nests are dropped one inside the other. Fuel bounds how many there are;
/// this much stack holds them all.
const STACK: usize = 256 << 20;

/// Longest wait for a rendering: some operations of the template engine cost more than they are
/// charged.
const PATIENCE: Duration = Duration::from_secs(15);

/// Depth of macros, includes and recursive loops.
const RECURSION: usize = 100;

const NAME: &str = "chat";

/// The token strings that templates print.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// `bos_token`.
    pub bos: Option<String>,
    /// `eos_token`.
    pub eos: Option<String>,
    /// `unk_token`.
    pub unk: Option<String>,
    /// `pad_token`.
    pub pad: Option<String>,
}

/// What a template is given besides the messages.
#[derive(Debug, Clone, Default)]
pub struct RenderOptions {
    /// End with the beginning of an answer.
    pub add_generation_prompt: bool,
    /// Descriptions of the tools that the model may call; `None` for no tools.
    pub tools: Option<Vec<Value>>,
    /// More variables (`enable_thinking`); they win over those of this crate.
    pub extra: Map<String, Value>,
    /// The time for `strftime_now`.
    pub clock: Clock,
}

/// A stretch of a rendered prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// The text.
    pub text: String,
    /// Who wrote it.
    pub origin: Origin,
}

impl Segment {
    /// True for text that the template wrote.
    #[must_use]
    pub fn from_template(&self) -> bool {
        self.origin == Origin::Template
    }
}

/// A rendered prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The prompt, in order.
    pub segments: Vec<Segment>,
    /// Text of messages that could not be told from the template's. It must hold no control
    /// token; [`crate::encode_chat`] sees to that.
    pub(crate) inseparable: Option<String>,
}

impl Rendered {
    /// The whole prompt.
    #[must_use]
    pub fn text(&self) -> String {
        self.segments.iter().map(|segment| segment.text.as_str()).collect()
    }
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Arc<Environment<'static>>,
    source: String,
    special: SpecialTokens,
    content: ContentStyle,
}

/// Error that `raise_exception` raises, found again at the end of the chain.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// If it is not valid; the error names the line.
    pub fn compile(source: &str, special: SpecialTokens) -> Result<Self, TextError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        let syntax = syntax.map_err(|error| render_error(&error))?;
        environment.set_syntax(syntax.clone());
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(RECURSION);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_formatter(|out, _, value| {
            out.write_str(&python::to_str(value)?).map_err(minijinja::Error::from)
        });
        environment.add_filter(
            "tojson",
            |state: &State, value: minijinja::Value, options: Kwargs| {
                let json = python::tojson(&value, &options)?;
                charge(state, json)
            },
        );
        environment.add_filter(additions::FILTER, additions::charged);
        environment.add_filter("string", |state: &State, value: minijinja::Value| {
            charge(state, python::to_str(&value)?)
        });
        environment.add_function("raise_exception", |message: minijinja::Value| {
            let message = python::to_str(&message)?;
            let error = minijinja::Error::new(ErrorKind::InvalidOperation, message.clone());
            Err::<String, _>(error.with_source(Raised(message)))
        });
        let plain = additions::charge(&plain_generation_tags(source), syntax);
        environment.add_template_owned(NAME, plain).map_err(|error| match error.kind() {
            ErrorKind::OutOfFuel => too_long(),
            _ => TextError::TemplateSyntax {
                line: error.line().unwrap_or(1),
                reason: describe(&error),
            },
        })?;
        let source = source.to_owned();
        let environment = Arc::new(environment);
        let mut template = Self { environment, source, special, content: ContentStyle::Text };
        template.content = template.probe_content();
        Ok(template)
    }

    /// The template's source.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders messages.
    ///
    /// # Errors
    /// If the template raises an exception, fails, or does not end within its limits.
    pub fn render(
        &self,
        messages: &[Message],
        options: &RenderOptions,
    ) -> Result<Rendered, TextError> {
        match self.render_values(&self.values(messages, false), options) {
            // A template that adds content to strings fails on none; the empty string is as good.
            Err(error @ TextError::TemplateRender { .. })
                if messages.iter().any(|message| message.content.is_none()) =>
            {
                self.render_values(&self.values(messages, true), options).map_err(|_| error)
            }
            result => result,
        }
    }

    fn values(&self, messages: &[Message], none_as_empty: bool) -> Vec<Value> {
        let values = messages.iter().map(|message| to_value(message, self.content, none_as_empty));
        values.collect()
    }

    fn render_values(
        &self,
        messages: &[Value],
        options: &RenderOptions,
    ) -> Result<Rendered, TextError> {
        let tools = options.tools.clone().map_or(Value::Null, Value::Array);
        let plain = self.run(messages, &tools, options)?;
        let mut strings = self.source.clone();
        messages.iter().chain([&tools]).for_each(|value| collect_strings(value, &mut strings));
        if let Some(marks) = Marks::unused([plain.as_str(), &strings].into_iter()) {
            for marking in [Marking::All, Marking::Contents] {
                let (mut marked, mut marked_tools) = (messages.to_vec(), tools.clone());
                marked.iter_mut().for_each(|message| marks.mark_message(message, marking));
                if marking == Marking::All {
                    marks.mark_tools(&mut marked_tools);
                }
                let rendered = self.run(&marked, &marked_tools, options).ok();
                let segments = rendered.and_then(|rendered| marks.split(&rendered));
                if let Some(segments) = segments
                    && segments.iter().map(|segment| segment.text.as_str()).eq_text(&plain)
                {
                    let rest =
                        (marking == Marking::Contents).then(|| unmarked_strings(messages, &tools));
                    return Ok(Rendered { segments, inseparable: rest });
                }
            }
        }
        let mut all = String::new();
        messages.iter().chain([&tools]).for_each(|value| collect_strings(value, &mut all));
        let segments = vec![Segment { text: plain, origin: Origin::Template }];
        Ok(Rendered { segments, inseparable: Some(all) })
    }

    fn run(
        &self,
        messages: &[Value],
        tools: &Value,
        options: &RenderOptions,
    ) -> Result<String, TextError> {
        let mut variables: Vec<(String, minijinja::Value)> = vec![
            ("messages".into(), to_jinja(messages)),
            ("tools".into(), to_jinja(tools)),
            ("documents".into(), ().into()),
            ("add_generation_prompt".into(), options.add_generation_prompt.into()),
        ];
        let SpecialTokens { bos, eos, unk, pad } = &self.special;
        let tokens =
            [("bos_token", bos), ("eos_token", eos), ("unk_token", unk), ("pad_token", pad)];
        for (name, token) in tokens {
            variables.extend(token.as_ref().map(|token| (name.into(), token.into())));
        }
        let clock = options.clock;
        let now = move |format: String| clock.format(&format);
        variables.push(("strftime_now".into(), minijinja::Value::from_function(now)));
        for (name, value) in &options.extra {
            variables.push((name.clone(), to_jinja(value)));
        }
        let context: minijinja::Value = minijinja::Value::from_pairs(variables);
        let environment = Arc::clone(&self.environment);
        in_own_thread(move || environment.get_template(NAME)?.render(context))
    }

    /// Finds out, by trying, whether the template takes strings, lists of parts, or both.
    fn probe_content(&self) -> ContentStyle {
        let needle = "needle-7f3a";
        let options = RenderOptions::default();
        let shows = |content: Value| {
            let message = serde_json::json!({"role": "user", "content": content});
            let text = self.run(&[message], &Value::Null, &options).unwrap_or_default();
            text.contains(needle) && !text.contains("'type'") && !text.contains("\"type\"")
        };
        let parts = shows(serde_json::json!([{"type": "text", "text": needle}]));
        match (shows(needle.into()), parts) {
            (true, true) => ContentStyle::Either,
            (false, true) => ContentStyle::Parts,
            (_, false) => ContentStyle::Text,
        }
    }
}

/// Runs a rendering where neither its depth nor its length can harm the caller.
fn in_own_thread(
    render: impl FnOnce() -> Result<String, minijinja::Error> + Send + 'static,
) -> Result<String, TextError> {
    let (sender, receiver) = mpsc::channel();
    let work = move || {
        // An error may hold values that are nested so deep that only this thread can drop them.
        let result = render().map_err(|error| render_error(&error));
        // The caller may have lost patience; then nobody wants the result.
        let _ = sender.send(result);
    };
    let thread = std::thread::Builder::new().name("chat-template".into()).stack_size(STACK);
    thread.spawn(work).map_err(|error| TextError::TemplateRender {
        line: 1,
        reason: format!("no thread for it: {error}"),
    })?;
    match receiver.recv_timeout(PATIENCE) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => {
            Err(TextError::TemplateTooLong { limit: format!("{} s", PATIENCE.as_secs()) })
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => Err(TextError::TemplateRender {
            line: 1,
            reason: "the template engine panicked".into(),
        }),
    }
}

/// Pays for text that a function of this crate made.
fn charge(state: &State, text: String) -> Result<String, minijinja::Error> {
    state.consume_fuel(text.len() as u64 / 64)?;
    Ok(text)
}

fn to_jinja<T: serde::Serialize>(value: T) -> minijinja::Value {
    minijinja::Value::from(Serde(value))
}

/// Comparison of pieces with a whole, without joining them.
trait EqText {
    fn eq_text(self, whole: &str) -> bool;
}

impl<'t, I: Iterator<Item = &'t str>> EqText for I {
    fn eq_text(mut self, mut whole: &str) -> bool {
        let prefix = self.all(|piece| match whole.strip_prefix(piece) {
            Some(rest) => {
                whole = rest;
                true
            }
            None => false,
        });
        prefix && whole.is_empty()
    }
}

/// All strings of the messages but their contents and roles, and those of the tools.
fn unmarked_strings(messages: &[Value], tools: &Value) -> String {
    let mut strings = String::new();
    for fields in messages.iter().filter_map(Value::as_object) {
        let others = fields.iter().filter(|(key, _)| !matches!(key.as_str(), "content" | "role"));
        others.for_each(|(_, value)| collect_strings(value, &mut strings));
    }
    collect_strings(tools, &mut strings);
    strings
}

/// `{% generation %}` marks the assistant's part for training and prints its body, so it is read
/// as a condition that always holds.
fn plain_generation_tags(source: &str) -> String {
    let mut plain = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        plain.push_str(before);
        let body = tag.trim_start_matches(['-', '+']).trim_start();
        let end = body.find("%}").unwrap_or(body.len());
        let name = body[..end].trim_end_matches(['-', '+']).trim_end();
        let condition = match name {
            "generation" => Some("if true"),
            "endgeneration" => Some("endif"),
            _ => None,
        };
        rest = tag;
        if let Some(condition) = condition {
            plain.push_str(&tag[..tag.len() - body.len()]);
            plain.push_str(condition);
            rest = &body[name.len()..];
        }
    }
    plain.push_str(rest);
    plain
}

fn too_long() -> TextError {
    TextError::TemplateTooLong { limit: format!("{FUEL} steps, {RECURSION} levels") }
}

fn describe(error: &minijinja::Error) -> String {
    error.detail().map_or_else(|| error.kind().to_string(), str::to_owned)
}

fn render_error(error: &minijinja::Error) -> TextError {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    let mut line = error.line();
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref() {
            return TextError::TemplateRaised { message: message.clone() };
        }
        if let Some(cause) = cause.downcast_ref::<minijinja::Error>() {
            if cause.kind() == ErrorKind::OutOfFuel {
                return too_long();
            }
            line = cause.line().or(line);
        }
        source = cause.source();
    }
    TextError::TemplateRender { line: line.unwrap_or(1), reason: describe(error) }
}
