use proptest::prelude::*;

use super::table::SPECS;
use super::*;

fn words<'t>(pre: &PreTokenizer, text: &'t str) -> Vec<&'t str> {
    let mut ends = Vec::new();
    pre.split(text, &mut ends).expect("no expression gives up on these texts");
    let starts = std::iter::once(0).chain(ends.iter().copied());
    starts.zip(&ends).map(|(start, &end)| &text[start..end]).collect()
}

fn named(name: &str) -> PreTokenizer {
    let spec = PreTokenizerSpec::from_name(Some(name)).expect("a known name");
    PreTokenizer::new(spec.cuts).expect("expressions of the table compile")
}

#[test]
fn names_are_unique_and_every_expression_compiles_and_keeps_the_text() {
    let mut names = known_pre_tokenizers();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    let text = "It's 12345 déjà-vu!!\r\n\t  x = {a: 'b'};  你好 안녕 مرحبا 𝟙👩‍👩‍👧 \n\n  ";
    for spec in SPECS {
        let pre = PreTokenizer::new(spec.cuts).unwrap();
        let words = words(&pre, text);
        assert_eq!(words.concat(), text, "{:?}", spec.names);
        assert!(words.iter().all(|word| !word.is_empty()), "{:?}", spec.names);
    }
}

#[test]
fn unknown_name_is_an_error_that_lists_the_known() {
    let error = PreTokenizerSpec::from_name(Some("nope")).unwrap_err().to_string();
    assert!(error.contains("\"nope\"") && error.contains("qwen2"), "{error}");
}

/// T1 of the case list: models of the two shapes cut digits and symbols differently.
#[test]
fn digits_and_symbols() {
    let text = "a->b (x):\n 123456 don't";
    assert_eq!(
        words(&named("qwen2"), text),
        ["a", "->", "b", " (", "x", "):\n", " ", "1", "2", "3", "4", "5", "6", " don", "'t"]
    );
    assert_eq!(
        words(&named("llama-bpe"), text),
        ["a", "->", "b", " (", "x", "):\n", " ", "123", "456", " don", "'t"]
    );
    assert_eq!(
        words(&named("gpt-2"), text),
        ["a", "->", "b", " (", "x", "):", "\n", " 123456", " don", "'t"]
    );
    assert_eq!(words(&named("smollm"), " 12 x"), [" ", "1", "2", " x"]);
    assert_eq!(words(&named("superbpe"), "12345"), ["12", "345"]);
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

fn cl100k_pattern(rules: Cl100k) -> String {
    let contractions = if rules.contractions {
        "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|"
    } else {
        ""
    };
    let digits = match rules.digits {
        0 => r"\p{N}+".to_owned(),
        digits => format!(r"\p{{N}}{{1,{digits}}}"),
    };
    let mark = if rules.marks { r"\p{M}" } else { "" };
    format!(
        r"{contractions}[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}{mark}]+|{digits}| ?[^\s\p{{L}}{mark}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
}

fn by_regex<'t>(pattern: &str, text: &'t str) -> Vec<&'t str> {
    let regex = Regex::new(pattern).unwrap();
    let mut ends = Vec::new();
    split_by_regex(&regex, text, 0, &mut ends).unwrap();
    let starts = std::iter::once(0).chain(ends.iter().copied());
    starts.zip(&ends).map(|(start, &end)| &text[start..end]).collect()
}

/// Text dense in the characters that the grammars treat apart.
fn awkward_text() -> impl Strategy<Value = String> {
    let atoms = prop_oneof![
        8 => prop::sample::select(vec![
            "'", "'s", "'RE", "'ll", " ", "  ", "\t", "\n", "\r\n", "\u{a0}", "\u{3000}", "\u{85}",
            "a", "Zé", "你", "ß", "1", "23", "٣", "Ⅳ", "½", "!", "->", "_", "👩‍👧", "\u{301}", "क्",
            "ǅ", "ʰ", "\u{0}", "\u{200d}", "ſ", "…",
        ]).prop_map(str::to_owned),
        2 => any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(atoms, 0..24).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn scanners_equal_the_expressions(text in awkward_text(), digits in 0usize..4, marks: bool, contractions: bool) {
        let gpt2 = PreTokenizer::new(&[Cut::Gpt2]).unwrap();
        prop_assert_eq!(words(&gpt2, &text), by_regex(GPT2, &text));
        let rules = Cl100k { digits, marks, contractions };
        let cl100k = PreTokenizer::new(&[Cut::Cl100k(rules)]).unwrap();
        prop_assert_eq!(words(&cl100k, &text), by_regex(&cl100k_pattern(rules), &text));
        let isolated = PreTokenizer::new(&[Cut::Digits]).unwrap();
        prop_assert_eq!(words(&isolated, &text), by_regex(r"\p{N}", &text));
        let lines = PreTokenizer::new(&[Cut::Lines]).unwrap();
        prop_assert_eq!(words(&lines, &text), by_regex(r"[^\n]+|[\n]+", &text));
    }
}
