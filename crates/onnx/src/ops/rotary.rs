//! Rotary embeddings spelled out: products of a tensor and of its turned form with cosines and sines.
//!
//! What is turned is found by following each element of a row back to where it comes from, so that it
//! does not matter whether halves were sliced, split, gathered, stacked or flattened.

use cyb_ir::{Atom, Attrs, Op, Read, ValueId, Write};
use cyb_jets::ROTARY;
use cyb_tensor::DType;

use super::fused::{number, operands, unshaped};
use crate::context::{Context, Made};
use crate::error::{OpError, bad};
use crate::value::to_ints;

/// The widest rows that are followed, and how far.
const WIDEST: usize = 1024;
const FARTHEST: usize = 10;

/// Where an element of a row comes from in the row of another tensor, and whether its sign is turned.
type Element = (usize, bool);

/// The index along each axis of element `flat` of a row of shape `dims`.
fn unraveled(mut flat: usize, dims: &[usize]) -> Vec<usize> {
    let mut index = vec![0; dims.len()];
    for (i, &n) in index.iter_mut().zip(dims).rev() {
        *i = flat % n;
        flat /= n;
    }
    index
}

fn raveled(index: &[usize], dims: &[usize]) -> Option<usize> {
    let inside = index.iter().zip(dims).all(|(i, n)| i < n);
    inside.then(|| index.iter().zip(dims).fold(0, |flat, (i, n)| flat * n + i))
}

/// What each element of a row of `v` is of the row of `x`, a row being what lies behind the leading
/// axes `lead`. `None` where it is anything else.
fn row_of(
    c: &Context<'_>,
    v: ValueId,
    x: ValueId,
    lead: &[usize],
    depth: usize,
) -> Option<Vec<Element>> {
    let dims = c.dims(v).ok()?;
    let row = dims.strip_prefix(lead)?;
    let len = row.iter().try_fold(1, |len: usize, &n| len.checked_mul(n))?;
    if len > WIDEST {
        return None;
    }
    if v == x {
        return Some((0..len).map(|i| (i, false)).collect());
    }
    let depth = depth.checked_sub(1)?;
    let graph = c.b.graph();
    let node = graph.producer(v)?;
    let Op::Atom(atom) = &node.op else { return None };
    let (n, from) = (lead.len(), *node.inputs.first()?);
    // The row of an input, and its shape.
    let input = |v: ValueId| {
        let elements = row_of(c, v, x, lead, depth)?;
        Some((elements, c.dims(v).ok()?.split_off(n)))
    };
    let picked = |place: &dyn Fn(&mut Vec<usize>) -> Option<()>| {
        let (elements, shape) = input(from)?;
        let each = (0..len).map(|flat| {
            let mut index = unraveled(flat, row);
            place(&mut index)?;
            elements.get(raveled(&index, &shape)?).copied()
        });
        each.collect::<Option<Vec<Element>>>()
    };
    match atom {
        Atom::Read(Read::Reshape(_)) => input(from).map(|(elements, _)| elements),
        Atom::Read(Read::Permute(perm)) => {
            if !perm.iter().take(n).enumerate().all(|(i, &p)| i == p) {
                return None;
            }
            picked(&|index| {
                let mut own = vec![0; index.len()];
                for (i, &p) in index.iter().zip(&perm[n..]) {
                    own[p - n] = *i;
                }
                *index = own;
                Some(())
            })
        }
        Atom::Read(Read::Slice { axis, start, step, .. }) if *axis >= n => {
            let (start, step) = (start.known()?, isize::try_from(*step).ok()?);
            picked(&|index| {
                let i = index.get_mut(axis - n)?;
                *i = start.checked_add_signed(step.checked_mul(isize::try_from(*i).ok()?)?)?;
                Some(())
            })
        }
        Atom::Read(Read::Gather { axis }) if *axis >= n => {
            let places = graph.tensor(*node.inputs.get(1)?)?;
            let (at, shape) = (to_ints(places).ok()?, places.shape().to_vec());
            picked(&|index| {
                let rest = index.split_off(axis - n + shape.len());
                let place = index.split_off(axis - n);
                index.push(usize::try_from(*at.get(raveled(&place, &shape)?)?).ok()?);
                index.extend(rest);
                Some(())
            })
        }
        Atom::Write(Write::Concat { axis }) if *axis >= n => {
            let parts = node.inputs.iter().map(|&v| input(v)).collect::<Option<Vec<_>>>()?;
            let each = (0..len).map(|flat| {
                let mut index = unraveled(flat, row);
                for (elements, shape) in &parts {
                    if index[axis - n] < shape[axis - n] {
                        return elements.get(raveled(&index, shape)?).copied();
                    }
                    index[axis - n] -= shape[axis - n];
                }
                None
            });
            each.collect()
        }
        Atom::Mul => {
            let (kept, _) = with_minus(c, v)?;
            let (elements, _) = input(kept)?;
            Some(elements.into_iter().map(|(i, minus)| (i, !minus)).collect())
        }
        _ => None,
    }
}

/// `x` where `v` is `-x`, and whether it is; else `None`.
fn with_minus(c: &Context<'_>, v: ValueId) -> Option<(ValueId, bool)> {
    let (a, b) = operands(c, v, &Atom::Mul)?;
    match (number(c, a), number(c, b)) {
        (None, Some(-1.0)) => Some((a, true)),
        (Some(-1.0), None) => Some((b, true)),
        _ => None,
    }
}

/// The style of pairs in which a row is exchanged, or why it is no rotation.
fn style_of(row: &[Element], minus: bool) -> Result<&'static str, &'static str> {
    let half = row.len() / 2;
    let is = |other: &dyn Fn(usize) -> usize, first: &dyn Fn(usize) -> bool, turned: bool| {
        row.iter()
            .enumerate()
            .all(|(i, &(from, sign))| from == other(i) && (sign != minus) == (first(i) != turned))
    };
    let halves = |turned| is(&|i| (i + half) % (2 * half), &|i| i < half, turned);
    let pairs = |turned| is(&|i| i ^ 1, &|i| i % 2 == 0, turned);
    match () {
        () if !row.len().is_multiple_of(2) || half == 0 => Err("its rows have no two halves"),
        () if halves(false) => Ok("half"),
        () if pairs(false) => Ok("pairs"),
        () if halves(true) || pairs(true) => {
            Err("it turns the other way: by the angles' negatives")
        }
        () => Err("its rows are not exchanged by halves or pairs"),
    }
}

/// Whether a value is parts joined, whatever its shape is.
fn is_joined(c: &Context<'_>, v: ValueId) -> bool {
    let node = c.b.graph().producer(unshaped(c, v));
    node.is_some_and(|node| matches!(node.op, Op::Atom(Atom::Write(Write::Concat { .. }))))
}

/// The rotation that `a + b` is: `x cos + turned(x) sin`.
pub(super) fn turned_sum(
    c: &mut Context<'_>,
    a: ValueId,
    b: ValueId,
) -> Result<Option<ValueId>, OpError> {
    for (plain, other) in [(a, b), (b, a)] {
        let (other, minus) = with_minus(c, other).unwrap_or((other, false));
        let Some(p) = operands(c, plain, &Atom::Mul) else { continue };
        let Some(q) = operands(c, other, &Atom::Mul) else { continue };
        for (turned, sin) in [q, (q.1, q.0)] {
            if !is_joined(c, turned) {
                continue;
            }
            for (x, cos) in [p, (p.1, p.0)] {
                let dims = c.dims(x)?;
                let Some((&width, lead)) = dims.split_last() else { continue };
                let Some(row) = row_of(c, turned, x, lead, FARTHEST) else { continue };
                let style = match style_of(&row, minus) {
                    Ok(style) => style,
                    Err(why) => {
                        c.missed(ROTARY.name, why);
                        continue;
                    }
                };
                if c.dtype(x) != DType::F32 {
                    c.missed(ROTARY.name, "it is not computed in f32");
                    continue;
                }
                if c.dims(plain)? != dims || c.dims(other)? != dims || c.dims(turned)? != dims {
                    c.missed(
                        ROTARY.name,
                        "cosines or sines have more axes or elements than it has",
                    );
                    continue;
                }
                let wide = |t: ValueId| Ok::<_, OpError>(c.dims(t)?.last() == Some(&width));
                if !wide(cos)? || !wide(sin)? {
                    c.missed(ROTARY.name, "there is no cosine and sine for each element");
                    continue;
                }
                c.found(ROTARY.name);
                let attrs = Attrs::new().with("style", style);
                return Ok(Some(c.b.jet(&ROTARY, attrs, &[x, cos, sin])?));
            }
        }
    }
    Ok(None)
}

/// A product in a sum.
#[derive(Clone, Copy)]
struct Term {
    factors: [ValueId; 2],
    minus: bool,
}

/// The two products that a value is the sum or difference of.
fn terms(c: &Context<'_>, v: ValueId) -> Option<[Term; 2]> {
    let term = |v: ValueId| {
        let (v, minus) = with_minus(c, v).unwrap_or((v, false));
        let (a, b) = operands(c, v, &Atom::Mul)?;
        Some(Term { factors: [a, b], minus })
    };
    let (a, b) = operands(c, v, &Atom::Add)?;
    Some([term(a)?, term(b)?])
}

/// Halves `x1` and `x2` turned: `x1 c1 - x2 s1` and `x2 c2 + x1 s2`.
struct Halves {
    x: [ValueId; 2],
    cos: [ValueId; 2],
    sin: [ValueId; 2],
}

fn halves(c: &Context<'_>, first: ValueId, second: ValueId) -> Option<Halves> {
    let (a, b) = (terms(c, first)?, terms(c, second)?);
    let (plus, minus) = match (a[0].minus, a[1].minus) {
        (false, true) => (a[0], a[1]),
        (true, false) => (a[1], a[0]),
        _ => return None,
    };
    if b.iter().any(|term| term.minus) {
        return None;
    }
    // The other factor of a term that has `x`.
    let beside = |term: Term, x: ValueId| {
        let at = term.factors.iter().position(|&f| f == x)?;
        Some(term.factors[1 - at])
    };
    for (x1, c1) in [(0, 1), (1, 0)].map(|(i, j)| (plus.factors[i], plus.factors[j])) {
        for (x2, s1) in [(0, 1), (1, 0)].map(|(i, j)| (minus.factors[i], minus.factors[j])) {
            for (p, q) in [(b[0], b[1]), (b[1], b[0])] {
                if let (Some(c2), Some(s2)) = (beside(p, x2), beside(q, x1))
                    && x1 != x2
                {
                    return Some(Halves { x: [x1, x2], cos: [c1, c2], sin: [s1, s2] });
                }
            }
        }
    }
    None
}

/// What two halves were taken from, and in which style.
fn whole(c: &Context<'_>, x: [ValueId; 2]) -> Option<(ValueId, &'static str)> {
    let dims = c.dims(x[0]).ok()?;
    let (&half, lead) = dims.split_last()?;
    let mut all = lead.to_vec();
    all.push(half.saturating_mul(2));
    let mut v = x[0];
    for _ in 0..FARTHEST {
        let node = c.b.graph().producer(v)?;
        if !matches!(node.op, Op::Atom(Atom::Read(_))) {
            return None;
        }
        v = *node.inputs.first()?;
        if c.dims(v).ok()? != all {
            continue;
        }
        let rows = [row_of(c, x[0], v, lead, FARTHEST)?, row_of(c, x[1], v, lead, FARTHEST)?];
        let is = |second: usize, place: &dyn Fn(usize) -> usize| {
            rows[second].iter().enumerate().all(|(i, e)| *e == (place(i), false))
        };
        if is(0, &|i| i) && is(1, &|i| half + i) {
            return Some((v, "half"));
        }
        if is(0, &|i| 2 * i) && is(1, &|i| 2 * i + 1) {
            return Some((v, "pairs"));
        }
        return None;
    }
    None
}

/// The rotation that two parts joined along the last axis are: halves turned, one after another or
/// stacked as pairs.
pub(super) fn turned_parts(
    c: &mut Context<'_>,
    parts: &[ValueId],
    axis: usize,
) -> Result<Option<ValueId>, OpError> {
    let &[a, b] = parts else { return Ok(None) };
    if axis + 1 != c.rank(a) {
        return Ok(None);
    }
    // Pairs are stacked along a new last axis.
    let (first, second) = (unshaped(c, a), unshaped(c, b));
    let Some(Halves { x, cos, sin }) = halves(c, first, second) else { return Ok(None) };
    let dims = c.dims(first)?;
    let mut stacked = dims.clone();
    stacked.push(1);
    let written = match () {
        () if a == first && b == second => "half",
        () if c.dims(a)? == stacked && c.dims(b)? == stacked => "pairs",
        () => return Ok(None),
    };
    let Some((x, read)) = whole(c, x) else {
        c.missed(ROTARY.name, "what is turned is not the two halves or the pairs of one tensor");
        return Ok(None);
    };
    if read != written {
        c.missed(ROTARY.name, "it is read by halves and written by pairs, or the other way round");
        return Ok(None);
    }
    let Some(&half) = dims.last() else { return Ok(None) };
    if c.dtype(x) != DType::F32 {
        c.missed(ROTARY.name, "it is not computed in f32");
        return Ok(None);
    }
    let broad = |table: ValueId| {
        let own = c.dims(table)?;
        let lined_up = own.iter().rev().zip(dims.iter().rev()).all(|(t, n)| t == n || *t == 1);
        Ok::<_, OpError>(own.len() > dims.len() || !lined_up || own.last() != Some(&half))
    };
    for table in [cos, sin].into_iter().flatten() {
        if broad(table)? {
            c.missed(ROTARY.name, "there is no cosine and sine for each pair");
            return Ok(None);
        }
    }
    let tables = match (cos[0] == cos[1] && sin[0] == sin[1], read) {
        (true, _) => [cos[0], sin[0]],
        (false, "half")
            if c.dims(cos[0])? == c.dims(cos[1])? && c.dims(sin[0])? == c.dims(sin[1])? =>
        {
            let mut joined = [cos[0]; 2];
            for (to, table) in joined.iter_mut().zip([cos, sin]) {
                let last = c.rank(table[0]) - 1;
                *to = c.b.concat(&table, last)?;
            }
            joined
        }
        _ => {
            c.missed(ROTARY.name, "the two of a pair are turned by different angles");
            return Ok(None);
        }
    };
    c.found(ROTARY.name);
    let attrs = Attrs::new().with("style", read);
    let y = c.b.jet(&ROTARY, attrs, &[x, tables[0], tables[1]])?;
    if written == "pairs" {
        let mut dims = dims;
        dims.push(2);
        return Ok(Some(c.reshape(y, &dims)?));
    }
    Ok(Some(y))
}

/// Turns x [B, S, H, D] by angles whose cosines and sines are [B or 1, S, 1, D/2 at most].
pub(super) fn rotate(
    c: &mut Context<'_>,
    x: ValueId,
    cos: ValueId,
    sin: ValueId,
    interleaved: bool,
) -> Made {
    let (d, half) = (c.dims(x)?[3], c.dims(cos)?[3]);
    let turned = half.saturating_mul(2);
    if turned > d {
        return bad(format!("{half} angles are too many for heads of {d}"));
    }
    let attrs = Attrs::new().with("style", if interleaved { "pairs" } else { "half" });
    if turned == d {
        return Ok(c.b.jet(&ROTARY, attrs, &[x, cos, sin])?);
    }
    let part = c.b.slice(x, 3, 0, turned)?;
    let y = c.b.jet(&ROTARY, attrs, &[part, cos, sin])?;
    let rest = c.b.slice(x, 3, turned, d - turned)?;
    Ok(c.b.concat(&[y, rest], 3)?)
}
