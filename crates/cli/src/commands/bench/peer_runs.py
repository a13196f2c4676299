"""What the measurements of whole runs share; it is put before each of them."""

import json
import resource
import sys
import time


def peak_memory_mb():
    """Of this process. On Linux `ru_maxrss` begins at what the program that started it held."""
    if sys.platform == "linux":
        lines = open("/proc/self/status").read().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def measure(version, run, repeat):
    """Prints one JSON object: how long each run takes, after two that do not count."""
    times = []
    for number in range(-2, repeat):
        start = time.perf_counter()
        run()
        if number >= 0:
            times.append((time.perf_counter() - start) * 1000)
    print(json.dumps({"version": version, "run_ms": times, "peak_memory_mb": peak_memory_mb()}))
