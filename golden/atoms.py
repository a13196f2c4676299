"""Random chains of atoms as NumPy computes them.

Writes atoms.npz. Case I is `I.graph`, a graph in the text form as bytes; its inputs `I.in.NAME`;
and its outputs `I.out.NAME`: the value after every step. Numbers are small integers and quarters,
so that every sum is exact and its order does not matter.
"""

from pathlib import Path

import numpy as np

OUT = Path(__file__).parent / "atoms.npz"
CASES = 120
MAX_ELEMS = 600
NAMES = {"float32": "f32", "float64": "f64", "float16": "f16", "int64": "i64", "int32": "i32",
         "int8": "i8", "uint8": "u8", "uint64": "u64", "bool": "bool"}


def plain(rng, dtype, shape):
    if dtype == "bool":
        return np.asarray(rng.integers(0, 2, shape), dtype=bool)
    x = rng.integers(0 if dtype[0] == "u" else -20, 20, shape)
    if dtype.startswith("float"):
        x = np.where(rng.random(shape) < 0.04, rng.choice([np.nan, np.inf, -np.inf]), x / 4)
    return np.asarray(x, dtype=dtype)


class Case:
    def __init__(self, rng):
        self.rng, self.lines, self.inputs, self.outputs = rng, [], {}, []
        dtype = rng.choice(list(NAMES))
        shape = tuple(rng.integers(0 if rng.random() < 0.1 else 1, 6, rng.integers(0, 4)))
        self.at, self.x = self.leaf(plain(rng, dtype, shape))

    def line(self, op, value):
        at = len(self.lines)
        dims = ", ".join(str(n) for n in value.shape)
        self.lines.append(f"%{at} = {op} : {NAMES[str(value.dtype)]}[{dims}]")
        return at

    def leaf(self, value):
        name = f"x{len(self.inputs)}"
        self.inputs[name] = value
        return self.line(f'input "{name}"', value), value

    def then(self, op, operands, value):
        if value.size <= MAX_ELEMS and value.ndim <= 5:
            ids = ", ".join(f"%{v}" for v in operands)
            self.at, self.x = self.line(f"{op}({ids})", value), value
            self.outputs.append((self.at, value))

    def other(self):
        """An operand that broadcasts with the current value."""
        keep = self.rng.random(self.x.ndim) < 0.6
        shape = tuple(n if k else 1 for n, k in zip(self.x.shape, keep))
        return self.leaf(plain(self.rng, str(self.x.dtype), shape[self.rng.integers(0, 2):]))

    def step(self):
        rng, at, x = self.rng, self.at, self.x
        kind = rng.choice(["permute", "slice", "broadcast", "reshape", "pad", "gather", "cast",
                           "binary", "compare", "select", "reduce", "arg", "window", "concat",
                           "scatter", "floor"])
        axis = int(rng.integers(0, x.ndim)) if x.ndim else None
        if kind in ("permute", "slice", "pad", "gather", "reduce", "arg", "window", "concat",
                    "scatter") and axis is None:
            return
        if kind == "permute":
            perm = [int(i) for i in rng.permutation(x.ndim)]
            self.then(f"read.permute{perm}", [at], x.transpose(perm))
        elif kind == "slice" and x.shape[axis] > 0:
            step = int(rng.choice([-2, -1, 1, 2, 3]))
            indexes = np.arange(x.shape[axis])[::step]
            first = int(rng.integers(0, len(indexes)))
            indexes = indexes[first:]
            value = np.take(x, indexes, axis)
            self.then(f"read.slice[{axis}, {indexes[0]}, {len(indexes)}, {step}]", [at], value)
        elif kind == "broadcast":
            shape = [int(rng.integers(1, 4)) if n == 1 else n for n in x.shape]
            shape = [int(n) for n in rng.integers(1, 3, rng.integers(0, 2))] + shape
            self.then(f"read.broadcast[{', '.join(map(str, shape))}]", [at],
                      np.broadcast_to(x, shape))
        elif kind == "reshape":
            first = int(rng.choice([n for n in (1, 2, 3, 4, 6) if x.size % n == 0]))
            self.then(f"read.reshape[{first}, {x.size // first}]", [at],
                      x.reshape(first, x.size // first))
        elif kind == "pad":
            before, after = (int(n) for n in rng.integers(0, 3, 2))
            value = 1.0 if x.dtype == bool else 7.0
            widths = [(before, after) if i == axis else (0, 0) for i in range(x.ndim)]
            self.then(f"read.pad[{axis}, {before}, {after}, {value}]", [at],
                      np.pad(x, widths, constant_values=x.dtype.type(value)))
        elif kind in ("gather", "scatter") and x.shape[axis] > 0:
            shape = tuple(rng.integers(0, 4, rng.integers(0, 3) if kind == "gather" else 1))
            to, index = self.leaf(np.asarray(rng.integers(0, x.shape[axis], shape), dtype=np.int64))
            if kind == "gather":
                return self.then(f"read.gather[{axis}]", [at, to], np.take(x, index, axis))
            rows = list(x.shape)
            rows[axis] = len(index)
            updates, rows = self.leaf(plain(rng, str(x.dtype), tuple(rows)))
            modes = {"set": None, "add": np.add, "max": np.maximum, "min": np.minimum}
            mode = str(rng.choice(list(modes)))
            value = x.copy()
            key = (slice(None),) * axis + (index,)
            if mode == "set":
                value[key] = rows
            else:
                modes[mode].at(value, key, rows)
            self.then(f"write.scatter[{axis}, {mode}]", [at, to, updates], value)
        elif kind == "cast":
            # NumPy leaves a float that no integer of the dtype holds undefined.
            if x.dtype.kind == "f" and not np.all(np.abs(x) < 100):
                return
            to = str(rng.choice(list(NAMES)))
            if x.dtype.kind == "f" and to.startswith("u") and (x <= -1).any():
                return
            with np.errstate(over="ignore"):
                self.then(f"read.cast[{NAMES[to]}]", [at], x.astype(to))
        elif kind == "binary":
            to, y = self.other()
            op, f = [("mul", np.multiply), ("add", np.add), ("cmp.max", np.maximum),
                     ("cmp.min", np.minimum)][rng.integers(0, 4)]
            self.then(op, [at, to], f(x, y))
        elif kind == "compare":
            to, y = self.other()
            op, f = [("cmp.lt", np.less), ("cmp.eq", np.equal)][rng.integers(0, 2)]
            self.then(op, [at, to], f(x, y))
        elif kind == "select":
            to, y = self.other()
            condition, c = self.leaf(plain(rng, "bool", x.shape))
            self.then("cmp.select", [condition, at, to], np.where(c, x, y))
        elif kind == "reduce":
            axes = tuple(int(i) for i in np.flatnonzero(rng.random(x.ndim) < 0.5))
            empty = any(x.shape[i] == 0 for i in axes)
            op = str(rng.choice(["sum"] if empty else ["sum", "max", "min"]))
            if x.dtype == bool and op == "sum":
                value = np.any(x, axis=axes)
            elif op == "sum":
                wide = np.float64 if x.dtype.kind == "f" else x.dtype
                value = np.sum(x, axis=axes, dtype=wide).astype(x.dtype)
            else:
                value = (np.max if op == "max" else np.min)(x, axis=axes)
            self.then(f"reduce.{op}{list(axes)}", [at], np.asarray(value))
        elif kind == "arg" and x.shape[axis] > 0:
            op = str(rng.choice(["argmax", "argmin"]))
            value = (np.argmax if op == "argmax" else np.argmin)(x, axis=axis)
            self.then(f"reduce.{op}[{axis}]", [at], np.asarray(value, dtype=np.int64))
        elif kind == "window":
            size, stride, dilation = (int(n) for n in rng.integers(1, 4, 3))
            span = dilation * (size - 1) + 1
            if x.shape[axis] >= span:
                value = np.lib.stride_tricks.sliding_window_view(x, span, axis)
                value = np.moveaxis(np.moveaxis(value, axis, 0)[::stride], 0, axis)
                self.then(f"slide.window[{axis}, {size}, {stride}, {dilation}]", [at],
                          value[..., ::dilation])
        elif kind == "concat":
            shape = list(x.shape)
            shape[axis] = int(rng.integers(0, 3))
            to, y = self.leaf(plain(rng, str(x.dtype), tuple(shape)))
            self.then(f"write.concat[{axis}]", [at, to, at], np.concatenate([x, y, x], axis))
        elif kind == "floor" and x.dtype.kind == "f":
            self.then("exp.floor", [at], np.floor(x))


def main():
    np.seterr(invalid="ignore")
    arrays = {}
    for i in range(CASES):
        case = Case(np.random.default_rng(i))
        while len(case.outputs) < 5 and len(case.lines) < 40:
            case.step()
        text = case.lines + [f'output "{v}" %{v}' for v, _ in case.outputs]
        arrays[f"{i}.graph"] = np.frombuffer("\n".join(text).encode(), dtype=np.uint8)
        arrays |= {f"{i}.in.{name}": x for name, x in case.inputs.items()}
        arrays |= {f"{i}.out.{v}": np.ascontiguousarray(x) if x.ndim else x
                   for v, x in case.outputs}
    np.savez_compressed(OUT, **arrays)


main()
