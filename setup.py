"""Builds the compiled core; all other facts of the package are in pyproject.toml.

Every `ext/tbmq/<name>.pyx` becomes the module `tbmq.<name>`. The folder mirrors the package because Cython finds a
`.pxd` by its module name: beside a source outside a `tbmq/` folder it would silently be ignored.

The environment chooses the kind of build; each kind keeps its files apart, so one never spoils the other:

    (nothing)       build/core   fast and portable: no bounds checks, no -march=native
    TBMQ_ASAN=1     build/asan   bounds checks and AddressSanitizer, for the fuzzer (./dev test --asan)
    TBMQ_NO_EXT=1   -            no extension at all: ./dev installs the commands first and compiles afterwards
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup

ASAN = os.environ.get("TBMQ_ASAN") == "1"
NO_EXT = os.environ.get("TBMQ_NO_EXT") == "1"

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": ASAN,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
    "embedsignature": True,
}
COMPILE_FLAGS = ["-fno-strict-aliasing", "-fno-plt"]
if ASAN:
    COMPILE_FLAGS += ["-O1", "-g", "-fsanitize=address", "-fno-omit-frame-pointer", "-DTBMQ_ASAN=1"]
    LINK_FLAGS = ["-fsanitize=address"]
else:
    COMPILE_FLAGS += ["-O3"]
    LINK_FLAGS = []


def extensions() -> list[Extension]:
    from Cython.Build import cythonize
    from Cython.Compiler.Errors import CompileError

    # Cython itself follows .pxd and .pxi files to the modules that use them; C headers it does not see.
    headers = [str(path) for path in sorted(Path("ext").rglob("*.h"))]
    modules = [
        Extension(
            f"tbmq.{source.stem}",
            [str(source)],
            include_dirs=["ext", "ext/tbmq"],
            depends=headers,
            extra_compile_args=COMPILE_FLAGS,
            extra_link_args=LINK_FLAGS,
        )
        for source in sorted(Path("ext/tbmq").glob("*.pyx"))
    ]
    try:
        return cythonize(
            modules,
            include_path=["ext"],
            build_dir="build/asan/cython" if ASAN else "build/core/cython",
            compiler_directives=DIRECTIVES,
            nthreads=min(len(modules), os.cpu_count() or 1),
        )
    except CompileError as error:  # told above; a traceback through the process pool would only bury it
        sys.exit(f"does not compile: {error}")


if __name__ == "__main__":
    setup(ext_modules=[] if NO_EXT else extensions())
