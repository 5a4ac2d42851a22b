"""The house rules as data: who may include whom, what is banned where, which names mean nothing here.

check.py enforces them and self_test.py plants a violation of each. A new room gets its row in ROOMS.
"""

# What the top of the tree holds, hidden files too.
TOP_LEVEL = {
    ".ci", ".clang-format", ".gitignore", "CMakeLists.txt", "README.md", "bench", "include", "mpi-launch",
    "offload", "optim", "src", "tests",
}

# Room: the rooms it may include besides itself. A room not listed here may not exist.
_GROUND = ["src/base", "src/telemetry", "src/layout", "src/memory", "src/device", "src/comm"]
_FIRST = ["offload/io", "offload/staging", "offload/tiers", "offload/prefetch"]
ROOMS = {
    "include/zerohold": [],
    "src/base": ["include/zerohold"],
    "src/telemetry": ["include/zerohold", "src/base"],
    "src/layout": ["include/zerohold", "src/base"],
    "src/memory": ["include/zerohold", "src/base", "src/telemetry"],
    "src/device": ["include/zerohold", "src/base", "src/telemetry", "src/memory"],
    "src/comm": ["include/zerohold", "src/base", "src/telemetry", "src/layout"],
    "offload/io": ["include/zerohold", "src/base", "src/telemetry"],
    "offload/staging": ["include/zerohold", "src/base", "src/telemetry", "src/memory", "src/device"],
    "offload/tiers": ["include/zerohold", "src/base", "src/telemetry", "src/layout", "src/memory", "offload/io",
                      "offload/staging"],
    "offload/prefetch": ["include/zerohold", "src/base", "src/telemetry", "src/memory", "src/device",
                         "offload/staging", "offload/tiers"],
    "optim/kernels": ["include/zerohold", "src/base"],
    "optim/engine": ["include/zerohold", "optim/kernels"] + _FIRST + _GROUND,
    "optim/api": ["include/zerohold", "optim/engine", "optim/kernels"] + _FIRST + _GROUND,
    "mpi-launch": ["include/zerohold"],
    "bench": ["include/zerohold", "optim/api", "optim/engine", "optim/kernels"] + _FIRST + _GROUND,
    "tests": ["include/zerohold", "optim/api", "optim/engine", "optim/kernels", "mpi-launch"] + _FIRST + _GROUND,
}

# The rooms that are linked into the library; the rest are programs, benches and tests.
LIBRARY = ("include/", "src/", "offload/", "optim/")
SHIPPED = LIBRARY + ("mpi-launch/",)

# The public headers that only their implementers may include.
FRONT_DOOR_INSIDE = {
    "zerohold/engine.h": ("optim/api/", "optim/engine/", "mpi-launch/", "bench/", "tests/"),
    "zerohold/mpi.h": ("optim/api/", "src/comm/mpi", "mpi-launch/", "bench/", "tests/"),
}

# (what, pattern of an include, path prefixes where it is allowed)
INCLUDE_BANS = [
    ("Boost", r"boost/", ("src/memory/",)),
    ("liburing", r"liburing", ("offload/io/",)),
    ("libnuma", r"^numa(if)?\.h$", ("offload/staging/", "tests/offload/staging/")),
    ("MPI", r"mpi(-ext)?\.h$",
     ("src/comm/mpi", "include/zerohold/mpi.h", "mpi-launch/", "bench/", "tests/")),
    ("CUDA or HIP", r"(cuda|hip/|hip_|cub/|thrust/|cooperative_groups|device_launch|nvtx)",
     ("src/device/gpu/", "optim/kernels/gpu/", "tests/gpu/")),
    ("NCCL or RCCL", r"(nccl|rccl)", ("src/comm/nccl",)),
    ("torch", r"(torch|ATen|c10|caffe2)/", ("mpi-launch/",)),
    ("JSON", r"nlohmann/", ("optim/api/", "mpi-launch/", "bench/", "tests/")),
    ("command lines", r"CLI/", ("mpi-launch/", "bench/", "tests/")),
    ("GoogleTest", r"(gtest|gmock)/", ("tests/",)),
]

# A public header includes the C++ standard library, absl::Status and its neighbours, and nothing else.
FRONT_DOOR_INCLUDES = r"(zerohold/\w+\.h|absl/status/status(or)?\.h|[a-z_]+)$"

# The layout is pure: the same result on every rank, without devices, files, threads or time.
PURE = ("src/layout/",)
PURE_BAN = (r"(atomic|barrier|chrono|condition_variable|ctime|filesystem|fstream|future|iostream|latch"
            r"|mutex|random|semaphore|shared_mutex|stop_token|thread|time\.h|unistd\.h|fcntl\.h|sys/.*)$")

# (what, pattern in code without comments and strings, where it is looked for, where it is allowed)
CODE_BANS = [
    # mpi_front_door.cc compares the launcher's variables with the local rank, only to warn.
    ("reads the environment", r"\b(secure_)?getenv\b", LIBRARY, ("optim/api/", "src/comm/mpi_front_door.cc")),
    ("ends the process", r"\b(std::)?(exit|_exit|quick_exit|_Exit)\s*\(", LIBRARY, ()),
    ("aborts", r"\b(std::)?(abort|terminate)\s*\(", LIBRARY, ("src/base/check",)),
    ("throws", r"\bthrow\b", LIBRARY, ()),
    # Opt-in: ExplainFaults.
    ("installs a signal handler", r"\b(std::)?(signal|sigaction)\s*\(", LIBRARY, ("src/memory/fault_reporter.cc",)),
    ("fast-math by pragma or attribute", r"(pragma\s+GCC\s+optimize|__attribute__\s*\(\(\s*optimize"
     r"|gnu::optimize|pragma\s+STDC\s+FP_CONTRACT\s+ON)", SHIPPED, ()),
    ("fuses or approximates: elements use + - * / and sqrt alone",
     r"\b(std::)?(fma|pow|exp|exp2|expm1|log|log2|log1p|cbrt|hypot|tanh|rsqrt|_mm\w*fn?m(add|sub)\w*)f?\s*\(",
     ("optim/kernels/element/",), ()),
    ("a GPU word outside the GPU rooms", r"\b__(host|device|global|shared|constant)__\b|<<<", SHIPPED,
     ("src/device/gpu/", "optim/kernels/gpu/", "src/base/host_device.h")),
    ("absl types where the front door speaks std ones", r"\babsl::(?!Status\b|StatusOr\b)\w+",
     ("include/",), ()),
    ("a test that never runs", r"\bDISABLED_\w+", ("tests/",), ()),
]

# State of the whole process: a signal handler has no other.
STATE_ALLOWED = ("src/memory/fault_reporter.cc",)

# (what, pattern, in build files and scripts)
BUILD_BANS = [
    ("fast-math", r"-(ffast-math|Ofast|funsafe-math-optimizations|fassociative-math|ffp-contract=fast)"),
    ("code for one machine", r"-m(arch|tune)=native"),
    ("sources that are not listed by hand", r"\bfile\s*\(\s*GLOB"),
    ("downloads while configuring", r"(FetchContent|ExternalProject|file\s*\(\s*DOWNLOAD)"),
]

# Words that no name of ours contains; `swap` alone is the standard library's.
BANNED_WORDS = {"bounce", "manager", "helper", "helpers", "util", "utils", "swap", "swapped", "swapper"}
WORDS_OF_OTHERS = {"swap"}
NAMES_OF_OTHERS = r"(?m)^\s*#\s*include.*$|\b(absl|at|boost|c10|CLI|nlohmann|std|testing|torch)(::\w+)+"
# chunk is a piece of a file, nowhere else.
CHUNK_ALLOWED = ("offload/io/", "optim/checkpoint/", "mpi-launch/", "tests/offload/", "tests/launch/")

MAX_FILE_LINES = 499
MAX_FUNCTION_LINES = 60
MAX_COLUMNS = 100
MAX_README_LINES = 150
