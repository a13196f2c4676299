//! A dimension: a number, or an expression over symbols such as `B` and `S` that a run binds.
//!
//! An expression is kept as a polynomial with integer coefficients over *factors*: symbols, and
//! the opaque results of floor division and of the maximum. Like terms are merged and terms are
//! ordered, so two equal polynomials are equal values; `B*S + B*S` and `2*S*B` are the same `Dim`.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Add, Mul, Sub};
use std::sync::Arc;

/// What a dimension is made of when it is no number.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Factor {
    Symbol(Arc<str>),
    FloorDiv(Box<Dim>, Box<Dim>),
    Max(Box<Dim>, Box<Dim>),
}

/// A monomial: its factors in order, repeated for powers.
type Term = Vec<Factor>;

/// A dimension of a shape.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dim(Sum);

/// Most dimensions are numbers, and graphs copy and compare them all the time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Sum {
    Number(i64),
    /// Monomial to non-zero coefficient, with at least one symbol. The empty monomial is the
    /// constant part.
    Terms(Arc<BTreeMap<Term, i64>>),
}

static NO_FACTORS: Term = Vec::new();

/// Values of the symbols for one run.
pub type Bindings = BTreeMap<Arc<str>, usize>;

/// Why a dimension has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DimError {
    #[error("symbol '{0}' has no value")]
    Unbound(Arc<str>),
    #[error("dimension {0} overflows")]
    Overflow(Dim),
    #[error("dimension {0} divides by zero")]
    DivideByZero(Dim),
    #[error("dimension {dim} is {value}")]
    Negative { dim: Dim, value: i64 },
}

impl Dim {
    pub fn symbol(name: &str) -> Dim {
        Dim::factor(Factor::Symbol(name.into()))
    }

    fn factor(f: Factor) -> Dim {
        Dim::of(BTreeMap::from([(vec![f], 1)]))
    }

    fn constant(n: i64) -> Dim {
        Dim(Sum::Number(n))
    }

    /// The sum of terms with coefficients that are not 0.
    fn of(terms: BTreeMap<Term, i64>) -> Dim {
        match terms.last_key_value() {
            None => Dim::constant(0),
            // It sorts first, so it is alone.
            Some((term, &c)) if term.is_empty() => Dim::constant(c),
            Some(_) => Dim(Sum::Terms(Arc::new(terms))),
        }
    }

    /// Monomials with their coefficients, in order.
    fn terms(&self) -> impl Iterator<Item = (&Term, i64)> {
        let (number, terms) = match &self.0 {
            Sum::Number(0) => (None, None),
            Sum::Number(n) => (Some((&NO_FACTORS, *n)), None),
            Sum::Terms(terms) => (None, Some(terms)),
        };
        let terms = terms.into_iter().flat_map(|terms| terms.iter().map(|(t, c)| (t, *c)));
        number.into_iter().chain(terms)
    }

    /// The term, when there is only one.
    fn monomial(&self) -> Option<(&Term, i64)> {
        let mut terms = self.terms();
        terms.next().filter(|_| terms.next().is_none())
    }

    /// The number, when no symbol is left.
    pub fn known(&self) -> Option<usize> {
        self.signed().and_then(|n| usize::try_from(n).ok())
    }

    fn signed(&self) -> Option<i64> {
        match self.0 {
            Sum::Number(n) => Some(n),
            Sum::Terms(_) => None,
        }
    }

    /// The symbol's name, when the dimension is just one.
    pub fn as_symbol(&self) -> Option<&str> {
        match self.monomial() {
            Some((term, 1)) => match term.as_slice() {
                [Factor::Symbol(name)] => Some(name),
                _ => None,
            },
            _ => None,
        }
    }

    /// The quotient rounded down. Exact division of every coefficient stays a polynomial.
    pub fn floor_div(&self, by: &Dim) -> Dim {
        if let Some(n) = by.signed().filter(|&n| n > 0) {
            if let Some(m) = self.signed() {
                return Dim::constant(m.div_euclid(n));
            }
            if self.terms().all(|(_, c)| c % n == 0) {
                return Dim::of(self.terms().map(|(t, c)| (t.clone(), c / n)).collect());
            }
        }
        if self == by {
            return Dim::constant(1);
        }
        if let Some(quotient) = self.divide_by_monomial(by) {
            return quotient;
        }
        Dim::factor(Factor::FloorDiv(Box::new(self.clone()), Box::new(by.clone())))
    }

    /// The exact quotient by a single term, when it divides every term.
    fn divide_by_monomial(&self, by: &Dim) -> Option<Dim> {
        let (divisor, coefficient) = by.monomial()?;
        let mut terms = BTreeMap::new();
        for (term, c) in self.terms() {
            if c % coefficient != 0 {
                return None;
            }
            let mut rest = term.clone();
            for factor in divisor {
                let at = rest.iter().position(|f| f == factor)?;
                rest.remove(at);
            }
            terms.insert(rest, c / coefficient);
        }
        Some(Dim::of(terms))
    }

    pub fn max_with(&self, other: &Dim) -> Dim {
        match (self.signed(), other.signed()) {
            (Some(a), Some(b)) => Dim::constant(a.max(b)),
            _ if self == other => self.clone(),
            _ => {
                let (a, b) = if self <= other { (self, other) } else { (other, self) };
                Dim::factor(Factor::Max(Box::new(a.clone()), Box::new(b.clone())))
            }
        }
    }

    /// The value under `bindings`.
    pub fn eval(&self, bindings: &Bindings) -> Result<usize, DimError> {
        let value = self.eval_signed(bindings)?;
        usize::try_from(value).map_err(|_| DimError::Negative { dim: self.clone(), value })
    }

    fn eval_signed(&self, bindings: &Bindings) -> Result<i64, DimError> {
        let overflow = || DimError::Overflow(self.clone());
        let mut sum = 0i64;
        for (term, coefficient) in self.terms() {
            let mut product = coefficient;
            for factor in term {
                let value = match factor {
                    Factor::Symbol(name) => {
                        let n = bindings.get(name).ok_or(DimError::Unbound(name.clone()))?;
                        i64::try_from(*n).map_err(|_| overflow())?
                    }
                    Factor::FloorDiv(a, b) => {
                        let (a, b) = (a.eval_signed(bindings)?, b.eval_signed(bindings)?);
                        a.checked_div_euclid(b)
                            .ok_or_else(|| DimError::DivideByZero(self.clone()))?
                    }
                    Factor::Max(a, b) => a.eval_signed(bindings)?.max(b.eval_signed(bindings)?),
                };
                product = product.checked_mul(value).ok_or_else(overflow)?;
            }
            sum = sum.checked_add(product).ok_or_else(overflow)?;
        }
        Ok(sum)
    }

    /// Replaces symbols by dimensions; symbols that `with` does not know stay.
    pub fn substitute(&self, with: &dyn Fn(&str) -> Option<Dim>) -> Dim {
        let mut sum = Dim::constant(0);
        for (term, coefficient) in self.terms() {
            let product = term.iter().fold(Dim::constant(coefficient), |p, factor| {
                let value = match factor {
                    Factor::Symbol(name) => with(name).unwrap_or_else(|| Dim::symbol(name)),
                    Factor::FloorDiv(a, b) => a.substitute(with).floor_div(&b.substitute(with)),
                    Factor::Max(a, b) => a.substitute(with).max_with(&b.substitute(with)),
                };
                p * value
            });
            sum = sum + product;
        }
        sum
    }

    /// Every symbol that occurs.
    pub fn symbols(&self) -> Vec<Arc<str>> {
        let mut out = Vec::new();
        self.collect_symbols(&mut out);
        out.sort();
        out.dedup();
        out
    }

    fn collect_symbols(&self, out: &mut Vec<Arc<str>>) {
        for factor in self.terms().flat_map(|(term, _)| term) {
            match factor {
                Factor::Symbol(name) => out.push(name.clone()),
                Factor::FloorDiv(a, b) | Factor::Max(a, b) => {
                    a.collect_symbols(out);
                    b.collect_symbols(out);
                }
            }
        }
    }
}

impl From<usize> for Dim {
    /// Sizes of memory fit `i64`; a larger number saturates and fails when it is evaluated.
    fn from(n: usize) -> Dim {
        Dim::constant(i64::try_from(n).unwrap_or(i64::MAX))
    }
}

impl PartialEq<usize> for Dim {
    fn eq(&self, other: &usize) -> bool {
        self.known() == Some(*other)
    }
}

/// As sums of terms, so that the order is one of what dimensions are and not of how they are kept.
impl Ord for Dim {
    fn cmp(&self, other: &Dim) -> Ordering {
        self.terms().cmp(other.terms())
    }
}

impl PartialOrd for Dim {
    fn partial_cmp(&self, other: &Dim) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

fn combine(a: Dim, b: &Dim, sign: i64) -> Dim {
    let mut terms = match (a.0, &b.0) {
        (Sum::Number(a), Sum::Number(b)) => {
            return Dim::constant(a.saturating_add(b.saturating_mul(sign)));
        }
        (a, Sum::Number(0)) => return Dim(a),
        (Sum::Number(0), _) => BTreeMap::new(),
        (Sum::Number(a), _) => BTreeMap::from([(Term::new(), a)]),
        (Sum::Terms(a), _) => Arc::unwrap_or_clone(a),
    };
    for (term, c) in b.terms() {
        add_term(&mut terms, term.clone(), c.saturating_mul(sign));
    }
    Dim::of(terms)
}

fn add_term(terms: &mut BTreeMap<Term, i64>, term: Term, c: i64) {
    let sum = terms.get(&term).copied().unwrap_or(0).saturating_add(c);
    if sum == 0 {
        terms.remove(&term);
    } else {
        terms.insert(term, sum);
    }
}

impl Add for Dim {
    type Output = Dim;
    fn add(self, other: Dim) -> Dim {
        combine(self, &other, 1)
    }
}

impl Sub for Dim {
    type Output = Dim;
    fn sub(self, other: Dim) -> Dim {
        combine(self, &other, -1)
    }
}

impl Mul for Dim {
    type Output = Dim;
    fn mul(self, other: Dim) -> Dim {
        if let (Sum::Number(a), Sum::Number(b)) = (&self.0, &other.0) {
            return Dim::constant(a.saturating_mul(*b));
        }
        let mut terms = BTreeMap::new();
        for (ta, ca) in self.terms() {
            for (tb, cb) in other.terms() {
                let mut term: Term = ta.iter().chain(tb).cloned().collect();
                term.sort();
                add_term(&mut terms, term, ca.saturating_mul(cb));
            }
        }
        Dim::of(terms)
    }
}

impl fmt::Display for Factor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Factor::Symbol(name) => f.write_str(name),
            Factor::FloorDiv(a, b) => write!(f, "div({a}, {b})"),
            Factor::Max(a, b) => write!(f, "max({a}, {b})"),
        }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Sum::Number(n) = self.0 {
            return write!(f, "{n}");
        }
        // The constant, which sorts first, reads best last.
        let (constants, rest): (Vec<_>, Vec<_>) = self.terms().partition(|(t, _)| t.is_empty());
        for (i, (term, c)) in rest.into_iter().chain(constants).enumerate() {
            match (i, c < 0) {
                (0, true) => f.write_str("-")?,
                (0, false) => {}
                (_, true) => f.write_str(" - ")?,
                (_, false) => f.write_str(" + ")?,
            }
            let c = c.unsigned_abs();
            if term.is_empty() || c != 1 {
                write!(f, "{c}")?;
                if !term.is_empty() {
                    f.write_str("*")?;
                }
            }
            for (j, factor) in term.iter().enumerate() {
                if j > 0 {
                    f.write_str("*")?;
                }
                write!(f, "{factor}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(name: &str) -> Dim {
        Dim::symbol(name)
    }

    #[test]
    fn equal_polynomials_are_equal_values() {
        let a = s("B") * s("S") + s("S") * s("B");
        assert_eq!(a, Dim::from(2) * s("B") * s("S"));
        assert_eq!(a.clone() - a, Dim::from(0));
        assert_eq!((s("S") * Dim::from(64)).floor_div(&Dim::from(64)), s("S"));
        assert_eq!((s("B") * s("S") * 3.into()).floor_div(&(s("S") * 3.into())), s("B"));
        assert_eq!(s("S").max_with(&s("B")), s("B").max_with(&s("S")));
    }

    #[test]
    fn evaluation_is_checked() {
        let bind = Bindings::from([("S".into(), 10), ("Z".into(), 0)]);
        let pooled = (s("S") + 2.into() - 3.into()).floor_div(&2.into()) + 1.into();
        assert_eq!(pooled.eval(&bind), Ok(5));
        assert_eq!(
            (s("S") - 11.into()).eval(&bind).unwrap_err().to_string(),
            "dimension S - 11 is -1"
        );
        assert!(matches!(s("B").eval(&bind), Err(DimError::Unbound(_))));
        assert!(matches!(s("S").floor_div(&s("Z")).eval(&bind), Err(DimError::DivideByZero(_))));
        let huge = s("S") * Dim::from(usize::MAX) * Dim::from(usize::MAX);
        assert!(matches!(huge.eval(&bind), Err(DimError::Overflow(_))));
        assert_eq!(pooled.substitute(&|_| Some(4.into())), Dim::from(2));
    }

    #[test]
    fn sums_that_are_numbers_are_like_numbers() {
        let three = s("S") + 3.into() - s("S");
        assert_eq!(three, Dim::from(3));
        assert_eq!(three.known(), Some(3));
        assert_eq!(three.cmp(&3.into()), Ordering::Equal);
        assert_eq!(s("S") * 0.into(), Dim::from(0));
        assert_eq!(Dim::from(0).divide_by_monomial(&s("S")), Some(Dim::from(0)));
        // The order of sums: 0 first, then by the constant part.
        let mut dims = [s("S"), s("S") + 2.into(), 3.into(), 0.into(), s("B")];
        dims.sort();
        assert_eq!(dims, [0.into(), s("S") + 2.into(), 3.into(), s("B"), s("S")]);
        assert_eq!((Dim::from(2) - 5.into()).to_string(), "-3");
    }

    #[test]
    fn prints_readably() {
        assert_eq!((s("S") * 2.into() - 1.into()).to_string(), "2*S - 1");
        assert_eq!(s("S").floor_div(&3.into()).to_string(), "div(S, 3)");
    }
}
