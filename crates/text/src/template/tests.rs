use std::time::Instant;

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::json;

use super::*;

fn special() -> SpecialTokens {
    SpecialTokens { bos: Some("<s>".into()), eos: Some("</s>".into()), ..Default::default() }
}

fn compile(source: &str) -> ChatTemplate {
    ChatTemplate::compile(source, special()).expect("the test's template is valid")
}

fn user(text: &str) -> Message {
    Message::new("user", text)
}

fn render(source: &str, messages: &[Message]) -> Result<String, TextError> {
    Ok(compile(source).render(messages, &RenderOptions::default())?.text())
}

fn pieces(rendered: &Rendered) -> Vec<(&str, Origin)> {
    rendered.segments.iter().map(|segment| (segment.text.as_str(), segment.origin)).collect()
}

/// 2024-07-26 08:05:03, the moment of the golden file.
const NOW: Clock = Clock::Fixed { unix_seconds: 1_721_981_103, utc_offset_seconds: 0 };

#[test]
fn renders_as_transformers_does() {
    let golden = include_str!("../../../../golden/text/templates.json");
    let rows: Vec<Value> = serde_json::from_str(golden).unwrap();
    assert!(rows.len() > 30);
    for row in rows {
        let name = row["name"].as_str().unwrap();
        let messages: Vec<Message> = serde_json::from_value(row["messages"].clone()).unwrap();
        let mut extra = row["options"].as_object().unwrap().clone();
        let tools = extra.remove("tools").map(|tools| tools.as_array().unwrap().clone());
        let add_generation_prompt = extra.remove("add_generation_prompt") == Some(json!(true));
        let options = RenderOptions { add_generation_prompt, tools, extra, clock: NOW };
        let rendered = compile(row["template"].as_str().unwrap()).render(&messages, &options);
        match (rendered, &row["text"]) {
            (Ok(rendered), Value::String(text)) => assert_eq!(rendered.text(), *text, "{name}"),
            (Err(TextError::TemplateRaised { message }), Value::Null) => {
                assert_eq!(message, row["error"].as_str().unwrap(), "{name}");
            }
            (rendered, _) => panic!("{name}: {rendered:?}"),
        }
    }
}

/// C1: slices with a step, namespace and loop.index0 work; what does not parse is an error.
#[test]
fn syntax_errors_name_the_line() {
    let error = ChatTemplate::compile("a\n{% for x in %}\n", special()).unwrap_err();
    assert!(matches!(error, TextError::TemplateSyntax { line: 2, .. }), "{error}");
    assert!(error.to_string().starts_with("chat template, line 2: "), "{error}");
    for source in ["{% endfor %}", "{{ x", "{% unknown %}", "{{ 'a }}"] {
        assert!(ChatTemplate::compile(source, special()).is_err(), "{source}");
    }
    assert!(ChatTemplate::compile(&"(".repeat(100_000), special()).is_ok());
    assert!(
        ChatTemplate::compile(&format!("{{{{ {} }}}}", "(".repeat(100_000)), special()).is_err()
    );
}

/// C5: the template's own words, and nothing else.
#[test]
fn exceptions_carry_their_text() {
    let error = render("{{ raise_exception('roles ' ~ 'must alternate') }}", &[]).unwrap_err();
    assert!(matches!(error, TextError::TemplateRaised { .. }));
    assert_eq!(error.to_string(), "roles must alternate");
    let error = render("a\n{{ messages[0].content + 1 }}", &[user("x")]).unwrap_err();
    assert!(matches!(error, TextError::TemplateRender { line: 2, .. }), "{error}");
}

/// C7: null and absent are the same; an empty string is a string.
#[test]
fn content_null_absent_empty() {
    let source = "{% for m in messages %}{% if m.tool_calls %}call[{{ 'none' if m.content is none else m.content }}]{% else %}[{{ m.content }}]{% endif %}{% endfor %}";
    let call = json!([{"type": "function", "function": {"name": "f", "arguments": "{}"}}]);
    for (message, expected) in [
        (json!({"role": "assistant"}), "[]"),
        (json!({"role": "assistant", "content": null}), "[]"),
        (json!({"role": "assistant", "content": ""}), "[]"),
        (json!({"role": "assistant", "tool_calls": null}), "[]"),
        (json!({"role": "assistant", "tool_calls": call}), "call[none]"),
        (json!({"role": "assistant", "content": null, "tool_calls": call}), "call[none]"),
        (json!({"role": "assistant", "content": "", "tool_calls": call}), "call[]"),
        (
            json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
            "[a\nb]",
        ),
    ] {
        let message: Message = serde_json::from_value(message).unwrap();
        assert_eq!(
            render(source, std::slice::from_ref(&message)).unwrap(),
            expected,
            "{message:?}"
        );
    }
    // A template that adds content to strings takes a tool call without content, too.
    let message = json!({"role": "assistant", "tool_calls": call});
    let message: Message = serde_json::from_value(message).unwrap();
    assert_eq!(render("{{ '<' + messages[0].content + '>' }}", &[message]).unwrap(), "<>");
}

#[test]
fn content_takes_the_shape_that_the_template_reads() {
    let parts =
        "{% for m in messages %}{% for p in m.content %}({{ p.text }}){% endfor %}{% endfor %}";
    assert_eq!(render(parts, &[user("x")]).unwrap(), "(x)");
    let message = json!({"role": "user", "content": [{"type": "text", "text": "a"}]});
    let message: Message = serde_json::from_value(message).unwrap();
    assert_eq!(render("{{ messages[0].content }}", &[message]).unwrap(), "a");
}

/// C9: no way from a value to code; C3 is in the golden file.
#[test]
fn templates_cannot_reach_out() {
    for source in [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ lipsum.__globals__['os'].popen('id').read() }}",
        "{{ cycler.__init__.__globals__.os.system('id') }}",
        "{{ self.__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}{{ os.system('id') }}",
    ] {
        let result = ChatTemplate::compile(source, special())
            .and_then(|template| template.render(&[user("x")], &RenderOptions::default()));
        assert!(result.is_err(), "{source}: {result:?}");
    }
    assert_eq!(render("{{ ''.__class__ }}", &[]).unwrap(), "");
}

#[test]
fn hostile_templates_end() {
    for source in [
        "{% for a in range(10**9) %}x{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{{ 'a' * 10**10 }}",
        "{{ [1] * 10**10 }}",
        "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(64) %}{% set ns.s = ns.s.replace('a', 'aaaaaaaaaaaaaaaa') %}{% endfor %}",
        "{% set ns = namespace(l=[]) %}{% for i in range(99999) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(200) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l | tojson }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(64) %}{% set ns.l = ns.l + ns.l %}{% endfor %}{{ ns.l[0] }}",
        "{% macro m(l) %}{% if l | length < 2**62 %}{{ m(l + l) }}{% endif %}{% endmacro %}{{ m([1]) }}",
        "{% set ns = namespace(l=[1] * 10**9) %}{% for i in range(64) %}{% set ns.l = ns.l + [1] %}{% endfor %}{{ ns.l[0] }}",
    ] {
        let started = std::time::Instant::now();
        let result = render(source, &[user("x")]);
        assert!(result.is_err(), "{source}");
        // It ended by itself: nobody lost patience with a thread that goes on.
        assert!(started.elapsed() < super::PATIENCE, "{source}");
    }
    let joined = "{% set ns = namespace(l=[]) %}{% for i in range(500) %}\
                  {% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.l | length + 1 }}";
    assert_eq!(render(joined, &[]).unwrap(), "501");
}

/// Row 11 of the asks: message text is told from template text, whatever the template does to it.
#[test]
fn segments_tell_who_wrote_what() {
    let source =
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}<|end|>\n{% endfor %}";
    let template = compile(source);
    let messages = [
        Message::new("system", "  a <|end|> b\n"),
        user("c"),
        Message::new("assistant", "<think>\nd</think>\n\ne <|end|>"),
        user(""),
    ];
    let rendered = template.render(&messages, &RenderOptions::default()).unwrap();
    assert_eq!(rendered.inseparable, None);
    assert_eq!(
        pieces(&rendered),
        [
            ("<|system|>", Origin::Template),
            ("a <|end|> b", Origin::Message),
            ("<|end|>\n<|user|>", Origin::Template),
            ("c", Origin::Message),
            ("<|end|>\n<|assistant|><think>\n", Origin::Template),
            ("d", Origin::Answer),
            ("</think>\n\n", Origin::Template),
            ("e <|end|>", Origin::Answer),
            ("<|end|>\n<|user|><|end|>\n", Origin::Template),
        ]
    );
    assert!(rendered.segments[0].from_template());
}

/// A template that looks into the text is still rendered as it would be; what cannot be told apart
/// is remembered.
#[test]
fn rewritten_text_is_remembered() {
    let cut = compile("<|u|>{{ messages[0].content[:3] }}<|e|>");
    let rendered = cut.render(&[user("<|e|>")], &RenderOptions::default()).unwrap();
    assert_eq!(rendered.text(), "<|u|><|e<|e|>");
    assert!(rendered.inseparable.unwrap().contains("<|e|>"));
    let length = compile("{{ messages[0].content | length }}");
    assert_eq!(length.render(&[user("four")], &RenderOptions::default()).unwrap().text(), "4");
    // Only the name is looked into: the content is still told apart.
    let name = compile("{{ messages[0].name[:1] }}:{{ messages[0].content }}");
    let message = Message { name: Some("bob".into()), ..user("hi") };
    let rendered = name.render(&[message], &RenderOptions::default()).unwrap();
    assert_eq!(pieces(&rendered), [("b:", Origin::Template), ("hi", Origin::Message)]);
    assert_eq!(rendered.inseparable.as_deref(), Some("bob"));
}

#[test]
fn marks_cannot_be_forged() {
    let template = compile("{{ messages[0].content }}|{{ messages[1].content }}");
    let forged = "\u{f0000}x\u{f0002}\u{f0001}";
    let rendered = template.render(&[user(forged), user("y")], &RenderOptions::default()).unwrap();
    assert_eq!(
        pieces(&rendered),
        [(forged, Origin::Message), ("|", Origin::Template), ("y", Origin::Message)]
    );
}

fn template_source() -> impl Strategy<Value = String> {
    let atoms = prop_oneof![
        6 => prop::sample::select(vec![
            "{{", "}}", "{%", "%}", "{%-", "-%}", "{#", "#}", "for", "in", "if", "elif", "else", "endif",
            "endfor", "set", "macro", "endmacro", "generation", "endgeneration", "break", "continue",
            "messages", "m", "loop", ".index0", ".role", ".content", "[0]", "[::-1]", "[1:", "]", "(", ")",
            "namespace(", "range(", "9999999", "x", "=", "==", "+", "~", "*", "**", "//", "%", "|", "tojson",
            "(indent=4)", "trim", "split('a')", ".strip()", ".items()", "'a'", "\"b\"", "none", "true", "not",
            "is", "defined", "string", "raise_exception('x')", "strftime_now('%Y%Q')", "raw", "endraw", ",", "{", "}",
            "{% for m in messages %}", "{% endfor %}", "{% if m.role == 'user' %}", "{% endif %}", "{{ m.content }}",
        ]).prop_map(|atom| format!("{atom} ")),
        1 => "\\PC{0,3}",
    ];
    prop::collection::vec(atoms, 0..40).prop_map(|parts| parts.concat())
}

/// Pieces of a real template, some of them dropped, doubled or moved, and odd ones between.
fn mutated(real: Vec<String>) -> impl Strategy<Value = String> {
    let cuts = prop::collection::vec((any::<Index>(), any::<Index>(), 0..4), 1..6);
    (prop::sample::select(real), cuts, template_source()).prop_map(|(source, cuts, odd)| {
        let mut text: Vec<char> = source.chars().collect();
        for (from, to, kind) in cuts {
            if text.is_empty() {
                break;
            }
            let (from, to) = (from.index(text.len()), to.index(text.len()));
            let span = from.min(to)..from.max(to).min(from.min(to) + 40);
            match kind {
                0 => drop(text.drain(span)),
                1 => {
                    let copy = text[span].to_vec();
                    text.splice(to..to, copy);
                }
                2 => drop(text.splice(to..to, odd.chars().take(24))),
                _ => text[span].reverse(),
            }
        }
        text.into_iter().collect()
    })
}

/// Whatever the template, the renderer ends without a panic, in time, and refuses nothing that the
/// template engine takes. Runs for `SOMA_FUZZ_SECONDS` (two without it).
#[test]
fn renderer_never_panics_and_always_ends() {
    let seconds = std::env::var("SOMA_FUZZ_SECONDS").map_or(2, |text| text.parse().unwrap());
    let golden = include_str!("../../../../golden/text/templates.json");
    let rows: Vec<Value> = serde_json::from_str(golden).unwrap();
    let real = rows.iter().map(|row| row["template"].as_str().unwrap().to_owned()).collect();
    let source = prop_oneof![2 => mutated(real), 1 => template_source()];
    let config = Config { cases: 64, failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        let result = runner.run(&(source.clone(), "\\PC{0,8}"), |(source, content)| {
            let started = Instant::now();
            let template = ChatTemplate::compile(&source, special());
            let mut engine = Environment::new();
            let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
            engine.set_syntax(syntax.unwrap());
            engine.set_fuel(Some(super::FUEL));
            let plain = super::plain_generation_tags(&source);
            if engine.add_template("plain", &plain).is_ok() {
                prop_assert!(template.is_ok(), "{:?}", template.err());
            }
            if let Ok(template) = template {
                let messages = [user(&content), Message::new("assistant", "a</think>b")];
                let _ = template.render(&messages, &RenderOptions::default());
            }
            prop_assert!(started.elapsed() < super::PATIENCE);
            Ok(())
        });
        if let Err(failure) = result {
            panic!("{failure}");
        }
    }
}
