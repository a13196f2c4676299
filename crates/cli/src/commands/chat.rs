//! The interactive chat of `run`.

use std::borrow::Cow;
use std::path::PathBuf;

use cyb_llm::{Content, Generation, Message, Model, SamplingParams};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Editor, Helper};

use crate::failure::Failure;
use crate::{interrupt, output};

/// Opens and closes a message of several lines.
const FENCE: &str = "\"\"\"";

/// A command inside the chat.
struct Command {
    name: &'static str,
    about: &'static str,
    act: fn(&mut Chat<'_>, &str) -> Result<Next, Failure>,
}

enum Next {
    Prompt,
    Answer,
    End,
}

const COMMANDS: &[Command] = &[
    Command { name: "help", about: "show this", act: help },
    Command { name: "clear", about: "forget the conversation", act: clear },
    Command { name: "system", about: "set the system message: /system TEXT", act: system },
    Command { name: "set", about: "set a sampling parameter: /set temperature 0.2", act: set },
    Command { name: "params", about: "show the sampling parameters", act: show_params },
    Command { name: "retry", about: "answer the last message anew", act: retry },
    Command { name: "history", about: "show the conversation", act: history },
    Command { name: "metrics", about: "show what the last answer took", act: metrics },
    Command { name: "info", about: "show the model", act: info },
    Command { name: "quit", about: "end", act: |_, _| Ok(Next::End) },
    Command { name: "exit", about: "end", act: |_, _| Ok(Next::End) },
];

struct Chat<'m> {
    model: &'m Model,
    system: Option<String>,
    params: SamplingParams,
    messages: Vec<Message>,
    as_chat: bool,
}

/// A prompt as messages.
pub(super) fn opening(system: Option<&str>, prompt: &str) -> Vec<Message> {
    let system = system.map(|text| Message::new("system", text));
    system.into_iter().chain([Message::new("user", prompt)]).collect()
}

pub(super) fn run(
    model: &Model,
    system: Option<&str>,
    params: SamplingParams,
    as_chat: bool,
) -> Result<(), Failure> {
    let failed = |error: ReadlineError| Failure::work(format!("cannot read the terminal: {error}"));
    let mut editor: Editor<Lines, FileHistory> = Editor::new().map_err(failed)?;
    editor.set_helper(Some(Lines));
    let history = history_file();
    if let Some(path) = &history {
        // The first chat has no history yet.
        let _ = editor.load_history(path);
    }
    output::note(format_args!(
        "{}; /help shows commands, {FENCE} begins and ends several lines, Ctrl-D ends",
        model.id()
    ));
    let mut chat =
        Chat { model, system: system.map(str::to_owned), params, messages: Vec::new(), as_chat };
    let result = chat.talk(&mut editor);
    if let Some(path) = &history {
        let saved = path.parent().map_or(Ok(()), std::fs::create_dir_all).is_ok();
        // A history that cannot be kept is no reason to fail at the end of a chat.
        let _ = saved.then(|| editor.save_history(path));
    }
    result
}

impl Chat<'_> {
    fn talk(&mut self, editor: &mut Editor<Lines, FileHistory>) -> Result<(), Failure> {
        loop {
            let line = match editor.readline("> ") {
                Ok(line) => line,
                Err(ReadlineError::Interrupted) => continue,
                Err(ReadlineError::Eof) => return Ok(()),
                Err(error) => {
                    return Err(Failure::work(format!("cannot read the terminal: {error}")));
                }
            };
            let text = unfenced(&line);
            if text.trim().is_empty() {
                continue;
            }
            // A history that cannot grow is no reason to stop.
            let _ = editor.add_history_entry(line.as_str());
            let next = match text.trim().strip_prefix('/') {
                Some(command) => self.command(command),
                None => {
                    self.messages.push(Message::new("user", &text));
                    Ok(Next::Answer)
                }
            };
            match next {
                Ok(Next::Prompt) => {}
                Ok(Next::End) => return Ok(()),
                Ok(Next::Answer) => match self.answer() {
                    Ok(()) | Err(Failure::Interrupted) => {}
                    Err(Failure::ClosedPipe) => return Err(Failure::ClosedPipe),
                    Err(failure) => {
                        output::note(format_args!("error: {}", failure.text()));
                        self.messages.pop();
                    }
                },
                Err(Failure::ClosedPipe) => return Err(Failure::ClosedPipe),
                Err(failure) => output::note(format_args!("error: {}", failure.text())),
            }
        }
    }

    fn command(&mut self, line: &str) -> Result<Next, Failure> {
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match COMMANDS.iter().find(|command| command.name == name) {
            Some(command) => (command.act)(self, rest.trim()),
            None => Err(Failure::usage(format!("there is no /{name}; /help shows the commands"))),
        }
    }

    fn answer(&mut self) -> Result<(), Failure> {
        let cancel = interrupt::cancel();
        cancel.clear();
        let system = self.system.as_deref().map(|text| Message::new("system", text));
        let messages: Vec<Message> = system.into_iter().chain(self.messages.clone()).collect();
        let params = self.params.clone();
        let generation = match self.as_chat {
            true => self.model.chat(&messages, params)?,
            false => self.model.generate(&plain(&messages), params)?,
        };
        let mut answer = String::new();
        let result = show(generation, &mut answer);
        cancel.clear();
        // What was said before an interrupt is part of the conversation; a question that got no
        // word of an answer is not.
        match (&result, answer.is_empty()) {
            (Ok(()), _) | (Err(_), false) => {
                self.messages.push(Message::new("assistant", &answer));
            }
            (Err(Failure::Interrupted), true) => drop(self.messages.pop()),
            (Err(_), true) => {}
        }
        result
    }
}

fn show(generation: Generation<'_>, answer: &mut String) -> Result<(), Failure> {
    for piece in generation {
        match piece {
            Ok(piece) => {
                output::text(&piece.text)?;
                answer.push_str(&piece.text);
            }
            Err(error) => {
                output::text("\n")?;
                return Err(error.into());
            }
        }
    }
    output::text("\n")
}

/// A conversation for a model without a template: the texts after each other.
fn plain(messages: &[Message]) -> String {
    messages.iter().map(text_of).collect()
}

fn text_of(message: &Message) -> &str {
    match &message.content {
        Some(Content::Text(text)) => text,
        Some(Content::Parts(_)) | None => "",
    }
}

fn help(_: &mut Chat<'_>, _: &str) -> Result<Next, Failure> {
    let rows: Vec<Vec<String>> = COMMANDS
        .iter()
        .map(|command| vec![format!("/{}", command.name), command.about.to_owned()])
        .collect();
    output::text(&output::table(&rows))?;
    Ok(Next::Prompt)
}

fn clear(chat: &mut Chat<'_>, _: &str) -> Result<Next, Failure> {
    chat.messages.clear();
    Ok(Next::Prompt)
}

fn system(chat: &mut Chat<'_>, text: &str) -> Result<Next, Failure> {
    chat.system = (!text.is_empty()).then(|| text.to_owned());
    Ok(Next::Prompt)
}

fn set(chat: &mut Chat<'_>, words: &str) -> Result<Next, Failure> {
    let (name, value) = words
        .split_once(char::is_whitespace)
        .ok_or_else(|| Failure::usage("give a parameter and a value: /set temperature 0.2"))?;
    let mut params = chat.params.clone();
    params.set(name, value.trim()).map_err(cyb_llm::Error::from)?;
    chat.params = params;
    Ok(Next::Prompt)
}

fn show_params(chat: &mut Chat<'_>, _: &str) -> Result<Next, Failure> {
    let rows: Vec<Vec<String>> = cyb_llm::PARAMETERS
        .iter()
        .map(|parameter| {
            let value = parameter.value(&chat.params).unwrap_or_else(|| "none".to_owned());
            vec![parameter.name.to_owned(), value, parameter.summary.to_owned()]
        })
        .collect();
    output::text(&output::table(&rows))?;
    Ok(Next::Prompt)
}

fn retry(chat: &mut Chat<'_>, _: &str) -> Result<Next, Failure> {
    while chat.messages.last().is_some_and(|message| message.role != "user") {
        chat.messages.pop();
    }
    match chat.messages.is_empty() {
        true => Err(Failure::usage("there is no message to answer yet")),
        false => Ok(Next::Answer),
    }
}

fn history(chat: &mut Chat<'_>, _: &str) -> Result<Next, Failure> {
    let system = chat.system.as_ref().map(|text| Message::new("system", text));
    for message in system.iter().chain(&chat.messages) {
        output::line(format_args!("{}: {}", message.role, text_of(message)))?;
    }
    Ok(Next::Prompt)
}

fn metrics(chat: &mut Chat<'_>, _: &str) -> Result<Next, Failure> {
    let metrics = chat.model.metrics();
    output::line(format_args!(
        "prefill {:.0} ms ({:.1} tokens/s), decode {:.0} ms ({:.1} tokens/s), peak memory {:.0} MiB",
        metrics.prefill_ms,
        metrics.prefill_tok_per_sec,
        metrics.decode_ms,
        metrics.decode_tok_per_sec,
        metrics.peak_memory_mb
    ))?;
    for op in metrics.ops.iter().take(5) {
        output::line(format_args!(
            "  {:12} {:8} calls {:10.1} ms",
            op.name, op.calls, op.total_ms
        ))?;
    }
    Ok(Next::Prompt)
}

fn info(chat: &mut Chat<'_>, _: &str) -> Result<Next, Failure> {
    let info = chat.model.info();
    output::line(format_args!(
        "{}: {} family, {} parameters, context {} tokens, memory {}",
        info.id,
        info.family,
        info.parameters,
        info.context_length,
        output::bytes(info.memory.total())
    ))?;
    Ok(Next::Prompt)
}

/// `$XDG_STATE_HOME/soma/history`, else `~/.local/state/soma/history`.
fn history_file() -> Option<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder =
        var("XDG_STATE_HOME").or_else(|| var("HOME").map(|home| home.join(".local/state")));
    Some(folder?.join("soma/history"))
}

/// The message in what was typed: without the marks of several lines.
fn unfenced(line: &str) -> Cow<'_, str> {
    let trimmed = line.trim();
    if let Some(inner) = trimmed.strip_prefix(FENCE) {
        let inner = inner.strip_suffix(FENCE).unwrap_or(inner);
        return Cow::Borrowed(inner.trim_matches('\n'));
    }
    match line.contains("\\\n") {
        true => Cow::Owned(line.replace("\\\n", "\n")),
        false => Cow::Borrowed(line),
    }
}

/// Whether more lines belong to the message: an open fence, or a backslash at the end.
fn goes_on(line: &str) -> bool {
    let trimmed = line.trim();
    match trimmed.strip_prefix(FENCE) {
        Some(inner) => !inner.ends_with(FENCE),
        None => line.ends_with('\\'),
    }
}

/// Tells the line editor where a message ends.
struct Lines;

impl Helper for Lines {}

impl Highlighter for Lines {}

impl Hinter for Lines {
    type Hint = String;
}

impl Completer for Lines {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        at: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let typed = line.get(..at).and_then(|start| start.strip_prefix('/'));
        let names =
            COMMANDS.iter().filter(|c| typed.is_some_and(|typed| c.name.starts_with(typed)));
        Ok((0, names.map(|command| format!("/{}", command.name)).collect()))
    }
}

impl Validator for Lines {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match goes_on(context.input()) {
            true => ValidationResult::Incomplete,
            false => ValidationResult::Valid(None),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_lines_make_one_message() {
        assert!(goes_on("\"\"\"one"));
        assert!(!goes_on("\"\"\"one\ntwo\"\"\""));
        assert!(goes_on("one\\"));
        assert!(!goes_on("one"));
        assert_eq!(unfenced("\"\"\"one\ntwo\"\"\""), "one\ntwo");
        assert_eq!(unfenced("\"\"\"\none\n\"\"\""), "one");
        assert_eq!(unfenced("one\\\ntwo"), "one\ntwo");
    }

    #[test]
    fn commands_have_their_own_names() {
        let mut names: Vec<&str> = COMMANDS.iter().map(|command| command.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), COMMANDS.len());
    }
}
