"""Compiles the kernels to PTX with NVRTC from the PyPI package; needs no GPU.

`cargo xtask kernels` calls it. modules.txt has a line `name source architectures defines...` for
each module; each becomes ../ptx/name.arch.ptx.gz for every architecture, unless it is there and of
the present sources.
"""

import ctypes
import glob
import gzip
import hashlib
import os
import sys

import nvidia.cuda_nvrtc


def nvrtc():
    folder = os.path.join(list(nvidia.cuda_nvrtc.__path__)[0], "lib")
    names = [n for n in glob.glob(os.path.join(folder, "libnvrtc.so*")) if "builtins" not in n]
    for builtins in glob.glob(os.path.join(folder, "libnvrtc-builtins*")):
        ctypes.CDLL(builtins, ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(names[0])


def compile_module(lib, folder, source, arch, defines):
    text = open(os.path.join(folder, source), "rb").read()
    program = ctypes.c_void_p()
    check = lambda code: code == 0 or sys.exit(f"NVRTC error {code} in {source}")
    check(lib.nvrtcCreateProgram(ctypes.byref(program), text, source.encode(), 0, None, None))
    options = [f"--gpu-architecture=compute_{arch}", f"--include-path={folder}", "--std=c++17"]
    options += [f"-D{d}" for d in defines]
    array = (ctypes.c_char_p * len(options))(*[o.encode() for o in options])
    code = lib.nvrtcCompileProgram(program, len(options), array)
    size = ctypes.c_size_t()
    lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    lib.nvrtcGetProgramLog(program, log)
    if code != 0 or log.value.strip():
        print(log.value.decode(), file=sys.stderr)
    check(code)
    check(lib.nvrtcGetPTXSize(program, ctypes.byref(size)))
    ptx = ctypes.create_string_buffer(size.value)
    check(lib.nvrtcGetPTX(program, ptx))
    return ptx.value.decode()


def shorten(ptx):
    """Without comments and empty lines."""
    lines = (line.split("//")[0].rstrip() for line in ptx.splitlines())
    return "\n".join(line for line in lines if line.strip()) + "\n"


def digest(folder, source, options):
    """What the PTX was made from; a test of the crate computes the same."""
    all_of_it = hashlib.sha256()
    headers = sorted(n for n in os.listdir(folder) if n.endswith(".cuh"))
    for name in ["compile.py", *headers, source]:
        all_of_it.update(open(os.path.join(folder, name), "rb").read())
    all_of_it.update(" ".join(options).encode())
    return all_of_it.hexdigest()


def is_of(path, first_line):
    """Whether a module is there and of its present sources."""
    if not os.path.exists(path):
        return False
    with gzip.open(path, "rt") as file:
        return file.readline().rstrip() == first_line


def main():
    folder = os.path.dirname(os.path.abspath(__file__))
    out = os.path.join(folder, "..", "ptx")
    os.makedirs(out, exist_ok=True)
    lib = nvrtc()
    for line in open(os.path.join(folder, "modules.txt")):
        name, source, archs, *defines = line.split()
        for arch in archs.split(","):
            path = os.path.join(out, f"{name}.{arch}.ptx.gz")
            first_line = f"// {digest(folder, source, [arch] + defines)}"
            if is_of(path, first_line):
                continue
            ptx = shorten(compile_module(lib, folder, source, arch, defines))
            with open(path, "wb") as file:
                file.write(gzip.compress(f"{first_line}\n{ptx}".encode(), mtime=0))


main()
