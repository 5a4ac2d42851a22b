// Counts calls of operator new in the whole program, to show that a warm path makes none.
#pragma once

#include <cstdint>

namespace zerohold {

int64_t NewCalls();

}  // namespace zerohold
