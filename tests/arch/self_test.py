#!/usr/bin/env python3
"""Plants one violation of each rule in a small clean tree and asserts that check.py names it."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import check
import cpp
import rules

CLEAN = {
    "CMakeLists.txt": "project(zerohold)\n",
    "README.md": "# ZeroHold\n",
    "include/zerohold/status.h": "// Status.\n#pragma once\n#include <absl/status/status.h>\n#include <string>\n",
    "include/zerohold/engine.h": "// The engine.\n#pragma once\n#include \"zerohold/status.h\"\n",
    "include/zerohold/mpi.h": "// MPI.\n#pragma once\n#include <mpi.h>\n",
    "src/base/align.h": "// Alignment.\n#pragma once\n#include <cstdint>\ninline constexpr int64_t kPage = 4096;\n",
    "src/layout/layout.h": "// Layout.\n#pragma once\n#include \"src/base/align.h\"\n",
    "src/layout/layout.cc": "#include \"src/layout/layout.h\"\n",
    "src/layout/CMakeLists.txt": "zh_room(layout SOURCES layout.cc LINKS zh_base)\n",
    "src/memory/segment.cc": "// Segment.\n#include <boost/interprocess/mapped_region.hpp>\n",
    "src/comm/mpi/mpi.cc": "// MPI.\n#include <mpi.h>\n#include \"zerohold/mpi.h\"\n",
    "optim/engine/step.cc": "// Step.\n#include \"src/layout/layout.h\"\nvoid Step() {}\n",
    "optim/kernels/element/adamw.h": "// AdamW.\nfloat Root(float x) { return __builtin_sqrtf(x); }\n",
    "mpi-launch/train.cc": "// Trains.\n#include <mpi.h>\n#include \"zerohold/engine.h\"\n",
}

# (check, file, content, line, a word of the message)
PLANTS = [
    ("arrows", "src/base/up.h", '// Up.\n#include "src/layout/layout.h"\n', 2, "may not include"),
    ("arrows", "src/layout/up.cc", '// Up.\n#include "src/comm/communicator.h"\n', 2, "may not include"),
    ("arrows", "src/comm/up.cc", '// Up.\n#include "optim/engine/step.h"\n', 2, "may not include"),
    ("arrows", "src/device/side.cc", '// Side.\n#include "../layout/layout.h"\n', 2, "may not include"),
    ("arrows", "include/zerohold/up.h", '// Up.\n#include "src/base/align.h"\n', 2, "may not include"),
    ("arrows", "mpi-launch/deep.cc", '// Deep.\n#include "src/base/align.h"\n', 2, "may not include"),
    ("arrows", "optim/kernels/k.cc", '// K.\n#include "src/comm/communicator.h"\n', 2, "may not include"),
    ("arrows", "src/base/e.cc", '// E.\n#include "zerohold/engine.h"\n', 2, "not for src/base"),
    ("arrows", "optim/engine/m.cc", '// M.\n#include "zerohold/mpi.h"\n', 2, "not for optim/engine"),
    ("arrows", "src/attic/a.cc", "// A.\n", 1, "no room"),
    ("arrows", "src/layout/CMakeLists.txt", "zh_room(layout SOURCES a.cc\n  LINKS zh_base zh_comm)\n", 1, "zh_comm"),
    ("bans", "src/base/b.cc", "// B.\n#include <boost/version.hpp>\n", 2, "Boost"),
    ("bans", "src/comm/u.cc", "// U.\n#include <liburing.h>\n", 2, "liburing"),
    ("bans", "src/memory/w.cc", "// W.\n#include <numa.h>\n", 2, "libnuma"),
    ("bans", "optim/engine/m.cc", "// M.\n#include <mpi.h>\n", 2, "MPI"),
    ("bans", "src/device/cpu/c.cc", "// C.\n#include <cuda_runtime.h>\n", 2, "CUDA"),
    ("bans", "optim/api/h.cc", "// H.\n#include <hip/hip_runtime.h>\n", 2, "CUDA or HIP"),
    ("bans", "src/comm/mpi/n.cc", "// N.\n#include <nccl.h>\n", 2, "NCCL"),
    ("bans", "optim/engine/t.cc", "// T.\n#include <torch/torch.h>\n", 2, "torch"),
    ("bans", "src/base/j.cc", "// J.\n#include <nlohmann/json.hpp>\n", 2, "JSON"),
    ("bans", "bench/c.cc", "// C.\n#include <gtest/gtest.h>\n", 2, "GoogleTest"),
    ("bans", "src/base/c.cc", "// C.\n#include <CLI/CLI.hpp>\n", 2, "command lines"),
    ("bans", "include/zerohold/m.h", "// M.\n#include <mpi.h>\n", 2, "MPI"),
    ("bans", "include/zerohold/s.h", "// S.\n#include <absl/strings/string_view.h>\n", 2, "public header"),
    ("bans", "include/zerohold/o.h", "// O.\nvoid F(absl::string_view name);\n", 2, "std ones"),
    ("bans", "src/layout/t.cc", "// T.\n#include <thread>\n", 2, "pure"),
    ("bans", "src/base/g.cc", '// G.\nvoid F() {\n  std::getenv("HOME");\n}\n', 3, "environment"),
    ("bans", "src/comm/x.cc", "// X.\nvoid F() { std::exit(1); }\n", 2, "ends the process"),
    ("bans", "src/comm/a.cc", "// A.\nvoid F() { abort(); }\n", 2, "aborts"),
    ("bans", "optim/engine/t.cc", "// T.\nvoid F() { throw 1; }\n", 2, "throws"),
    ("bans", "optim/api/s.cc", "// S.\nvoid F() { signal(2, nullptr); }\n", 2, "signal"),
    ("bans", "optim/kernels/cpu/p.cc", '// P.\n#pragma GCC optimize("fast-math")\n', 2, "fast-math"),
    ("bans", "optim/kernels/element/f.h", "// F.\nfloat F(float a) { return std::fma(a, a, a); }\n", 2, "fuses"),
    ("bans", "optim/kernels/cpu/g.cc", "// G.\n__device__ int F();\n", 2, "GPU word"),
    ("bans", "tests/src/d.cc", "// D.\nTEST(A, DISABLED_B) {}\n", 2, "never runs"),
    ("bans", "src/base/CMakeLists.txt", "\nadd_compile_options(-ffast-math)\n", 2, "fast-math"),
    ("bans", "src/cmake/f.cmake", "add_compile_options(-march=native)\n", 1, "one machine"),
    ("bans", "tests/run", "cmake -DCMAKE_CXX_FLAGS=-Ofast\n", 1, "fast-math"),
    ("bans", "src/base/CMakeLists.txt", "file(GLOB sources *.cc)\n", 1, "by hand"),
    ("bans", "tests/CMakeLists.txt", "include(FetchContent)\n", 1, "downloads"),
    ("state", "src/base/s.cc", "// S.\nint g_count = 0;\n", 2, "g_count"),
    ("state", "src/comm/s.cc", "// S.\nnamespace zh {\nnamespace {\nstd::atomic<int> count{0};\n}\n}\n", 4, "count"),
    ("state", "src/comm/s.cc", "// S.\nint Next() {\n  static int next = 0;\n  return ++next;\n}\n", 3, "next"),
    ("state", "optim/engine/s.h", "// S.\nstruct A {\n  inline static std::mutex mutex;\n};\n", 3, "mutex"),
    ("state", "optim/api/s.cc", "// S.\nthread_local std::string last_error;\n", 2, "last_error"),
    ("state", "src/base/s.cc", "// S.\nint Get() {\n  if (true) {\n    static Foo* f = new Foo();\n  }\n}\n", 4, "Foo"),
    ("words", "src/base/w.h", "// W.\nclass BufferManager {};\n", 2, "manager"),
    ("words", "src/base/file_utils.h", "// W.\n", 1, "utils"),
    ("words", "src/memory/w.h", "// W.\nvoid swap_out();\n", 2, "swap"),
    ("words", "src/memory/w.h", "// W.\nint bounceBuffer_;\n", 2, "bounce"),
    ("words", "optim/engine/w.h", "// W.\nint chunk_bytes;\n", 2, "chunk"),
    ("shape", "src/base/long.cc", "// L.\n" + "int F();\n" * 499, 500, "at most 499"),
    ("shape", "src/base/wide.cc", "// " + "w" * 98 + "\n", 1, "columns"),
    ("shape", "src/base/job.h", "#pragma once\n", 1, "job"),
    ("shape", "src/base/f.cc", "// F.\nvoid F() {\n" + "  G();\n" * 60 + "}\n", 2, "at most 60"),
    ("shape", "README.md", "line\n" * 151, 151, "at most 150"),
    ("top", "notes.txt", "x\n", 1, "card"),
    ("top", "third_party/x.h", "// X.\n", 1, "card"),
]

NOT_STATE = """
namespace zh {
constexpr int kA = 1;
const std::vector<int> kB = {1, 2};
inline constexpr std::array<int, 2> kC{1, 2};
static_assert(kA == 1);
using Fn = std::function<void(int)>;
struct S { int member = 0; static S Make(int x); static constexpr int kD = 3; };
enum class E : uint8_t { kX, kY };
class Forward;
template <typename T> struct Box { T value; };
static int Local(int a) { const int b = a; static const char kName[] = "n"; return b; }
extern "C" { void CFunction(int); }
absl::StatusOr<std::unique_ptr<S>> Create(const S& s, int n = 3);
S::S(int n) : member{n} {}
bool operator==(const S& a, const S& b) { return a.member == b.member; }
[[nodiscard]] int Attributed();
void Caller() { for (int i = 0; i < 3; ++i) { auto f = [&](int x) { int y = x; return y; }; f(i); } }
}  // namespace zh
"""


class ArchTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name, content in CLEAN.items():
            self.plant(name, content)

    def plant(self, name, content):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    def found(self, which):
        return list(check.CHECKS[which](check.Tree(self.root)))

    def test_clean_tree_passes(self):
        for which in check.CHECKS:
            self.assertEqual(self.found(which), [], which)

    def test_each_plant_is_found_and_no_ban_lacks_one(self):
        messages = []
        for which, name, content, line, word in PLANTS:
            with self.subTest(check=which, file=name, word=word):
                self.plant(name, content)
                place = name.partition("/")[0] if which == "top" else name
                found = self.found(which)
                hits = [what for where, at, what in found if (where, at) == (place, line) and word in what]
                self.assertTrue(hits, found)
                messages += hits
                if name in CLEAN:
                    self.plant(name, CLEAN[name])
                else:
                    (self.root / name).unlink()

        for ban in rules.INCLUDE_BANS + rules.CODE_BANS + rules.BUILD_BANS:
            self.assertTrue(any(what.startswith(ban[0]) for what in messages), ban[0])
        self.assertEqual({plant[0] for plant in PLANTS}, set(check.CHECKS))

    def test_constants_and_functions_are_not_state(self):
        self.assertEqual(list(cpp.mutable_statics(cpp.strip(NOT_STATE))), [])

    def test_comments_and_strings_are_not_code(self):
        self.plant("src/base/c.cc", '// C.\n// throw, abort(), class Manager\nconst char kA[] = "getenv(\\"X\\")";\n')
        for which in ("bans", "words", "state"):
            self.assertEqual(self.found(which), [], which)

    def test_a_public_header_that_leans_on_another_is_found(self):
        script = str(pathlib.Path(check.__file__).parent / "public_headers.sh")
        self.plant("alone/zerohold/a.h", "#pragma once\n#include <string>\nstd::string A();\n")
        command = ["bash", script, "c++", str(self.root / "alone")]
        self.assertEqual(subprocess.run(command, capture_output=True, check=False).returncode, 0)
        self.plant("alone/zerohold/b.h", "#pragma once\nstd::string B();\n")
        failed = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(failed.returncode, 1)
        self.assertIn("zerohold/b.h does not compile alone", failed.stdout)

    def test_the_command_fails_on_a_violation_and_only_then(self):
        script = pathlib.Path(check.__file__)
        command = [sys.executable, str(script), "--root", str(self.root)]
        self.assertEqual(subprocess.run(command, capture_output=True, check=False).returncode, 0)
        self.plant("src/base/b.cc", "// B.\n#include <mpi.h>\n")
        failed = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(failed.returncode, 1)
        self.assertIn("src/base/b.cc:2: MPI", failed.stdout)


if __name__ == "__main__":
    unittest.main()
