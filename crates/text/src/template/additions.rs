//! A price for adding lists.
//!
//! The template engine joins lists lazily, and at some depth all at once, without charging fuel:
//! `l + l` some forty times over asks for a list of 2^40 items. So each operand of a `+` is passed
//! through a filter that charges for its items and bounds them, `(a)|FILTER + (b)|FILTER`; what is
//! no list passes freely. The rewriting works on tokens: an operand reaches from the nearest
//! bracket, separator or operator that binds no closer than `+` to the next one.

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};

/// The name of the filter: nothing that a template would call something of its own.
pub(super) const FILTER: &str = "operand_of_addition_7f3a";

/// The most items that an operand may have.
const MOST: usize = 1_000_000;

/// Items that one unit of fuel pays for.
const PER_FUEL: u64 = 4;

/// Charges for the items of a list.
pub(super) fn charged(state: &State, value: Value) -> Result<Value, Error> {
    if matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
        && let Some(items) = value.len()
    {
        if items > MOST {
            return Err(Error::from(ErrorKind::OutOfFuel));
        }
        state.consume_fuel(items as u64 / PER_FUEL)?;
    }
    Ok(value)
}

/// The stretch of source that may turn out to be an operand of a `+`.
#[derive(Default)]
struct Operand {
    span: Option<(usize, usize)>,
    added: bool,
}

impl Operand {
    fn extend(&mut self, start: usize, end: usize) {
        self.span = Some((self.span.map_or(start, |span| span.0), end));
    }

    /// Ends it; the next one begins.
    fn end(&mut self, operands: &mut Vec<(usize, usize)>) {
        let operand = std::mem::take(self);
        operands.extend(operand.span.filter(|_| operand.added));
    }
}

/// The source with every operand of a `+` charged for. A source that is not valid stays as it is.
pub(super) fn charge(source: &str, syntax: SyntaxConfig) -> String {
    let mut operands = Vec::new();
    // One operand for each bracket that is open, the innermost last.
    let mut open = vec![Operand::default()];
    let (mut keyword_next, mut name_next, mut after_operator) = (false, false, false);
    for token in tokenize(source, false, syntax) {
        let Ok((token, span)) = token else { return source.to_owned() };
        let (start, end) = (span.start_offset as usize, span.end_offset as usize);
        let Some(operand) = open.last_mut() else { return source.to_owned() };
        let is_keyword = keyword_next
            || (!name_next
                && matches!(
                    token,
                    Token::Ident("and" | "or" | "not" | "in" | "if" | "else" | "recursive")
                ));
        match token {
            Token::TemplateData(_) => {}
            Token::Plus => {
                operand.added = true;
                operand.end(&mut operands);
                operand.added = true;
            }
            Token::Minus if operand.span.is_some() && !after_operator => {
                operand.end(&mut operands);
            }
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => {
                operand.extend(start, end);
                open.push(Operand::default());
            }
            Token::ParenClose | Token::BracketClose | Token::BraceClose => {
                operand.end(&mut operands);
                open.pop();
                let Some(outer) = open.last_mut() else { return source.to_owned() };
                outer.extend(start, end);
            }
            Token::Ident(_) if is_keyword => operand.end(&mut operands),
            Token::VariableStart
            | Token::VariableEnd
            | Token::BlockStart
            | Token::BlockEnd
            | Token::Comma
            | Token::Colon
            | Token::Assign
            | Token::Eq
            | Token::Ne
            | Token::Gt
            | Token::Gte
            | Token::Lt
            | Token::Lte => operand.end(&mut operands),
            _ => operand.extend(start, end),
        }
        keyword_next = matches!(token, Token::BlockStart);
        // Tests bind closer than `+`: `a + b is not none` is `a + (b is not none)`.
        name_next = matches!(token, Token::Dot | Token::Pipe | Token::Ident("is"))
            || (name_next && matches!(token, Token::Ident("not")));
        after_operator = matches!(
            token,
            Token::Tilde | Token::Mul | Token::Div | Token::FloorDiv | Token::Mod | Token::Pow
        );
    }
    let mut edits: Vec<(usize, bool)> =
        operands.iter().flat_map(|&(start, end)| [(start, true), (end, false)]).collect();
    edits.sort_unstable();
    let (mut charged, mut from) = (String::with_capacity(source.len()), 0);
    for (at, opens) in edits {
        let Some(piece) = source.get(from..at) else { return source.to_owned() };
        charged.push_str(piece);
        match opens {
            true => charged.push('('),
            false => charged.extend([")|", FILTER]),
        }
        from = at;
    }
    charged.push_str(&source[from..]);
    charged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_are_found() {
        for (source, expected) in [
            ("a + b", "(a)! + (b)!"),
            ("a + b - c * -d + e", "(a)! + (b)! - (c * -d)! + (e)!"),
            ("x.l[i + 1] + [y] | list", "(x.l[(i)! + (1)!])! + ([y] | list)!"),
            ("f(l + l, n=a + b)", "f((l)! + (l)!, n=(a)! + (b)!)"),
            ("'a+b' ~ c", "'a+b' ~ c"),
            ("a + b if c + d is defined else e", "(a)! + (b)! if (c)! + (d is defined)! else e"),
            ("x is divisibleby 3 + y is not none", "(x is divisibleby 3)! + (y is not none)!"),
            ("not a + b == c and x.not + y", "not (a)! + (b)! == c and (x.not)! + (y)!"),
            ("(a + b) + {'k': c + d}", "(((a)! + (b)!))! + ({'k': (c)! + (d)!})!"),
        ] {
            let source = format!("+{{% set x = {source} %}}+{{{{ y }}}}");
            let expected = expected.replace('!', &format!("|{FILTER}"));
            let expected = format!("+{{% set x = {expected} %}}+{{{{ y }}}}");
            assert_eq!(charge(&source, SyntaxConfig::default()), expected);
        }
        let raw = "{% raw %}{{ a + b }}{% endraw %}";
        assert_eq!(charge(raw, SyntaxConfig::default()), raw);
        assert_eq!(charge("{{ a + 'b }}", SyntaxConfig::default()), "{{ a + 'b }}");
    }
}
