"""What `import aotadmm_timm` adds to `import timm`, which it needs: fresh processes in turns, median of their times.

    python tests/benchmarks/import_time.py [--repeats 15]

One process imports timm, then aotadmm_timm, and times both; the next imports aotadmm_timm first, which loads the same
modules in another order. Processor time, which other work on the machine hardly disturbs. The first turn fills the disk
cache and is left out.
"""

import argparse
import statistics
import subprocess
import sys

CODE = """
import importlib, sys, time
for name in sys.argv[1:]:
    began = time.process_time()
    importlib.import_module(name)
    print(time.process_time() - began)
"""


def milliseconds(*names: str) -> list[float]:
    """Of importing each of these in a new process, one after the other."""
    done = subprocess.run([sys.executable, "-c", CODE, *names], check=True, capture_output=True, text=True)
    return [1e3 * float(line) for line in done.stdout.split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    rows = [[*milliseconds("timm", "aotadmm_timm"), *milliseconds("aotadmm_timm")] for _ in range(args.repeats + 1)]
    timm, added, first = (statistics.median(column) for column in zip(*rows[1:], strict=True))
    print("| timm [ms] | aotadmm_timm after it [ms] | both / timm | aotadmm_timm first [ms] |\n|---|---|---|---|")
    print(f"| {timm:.0f} | {added:.1f} | {(timm + added) / timm:.4f} | {first:.0f} |")


if __name__ == "__main__":
    main()
