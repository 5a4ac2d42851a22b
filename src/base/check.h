// Checks of our own invariants: a failure prints file, line, expression and values, and aborts.
// Never used on input.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace zerohold::base {

template <typename... Values>
[[noreturn, gnu::cold, gnu::noinline]] void CheckFailed(const char* file, int line,
                                                        const char* expression,
                                                        const Values&... values) {
  std::ostringstream text;
  text << file << ':' << line << ": check failed: " << expression;
  ((text << ' ' << values), ...);
  std::fprintf(stderr, "%s\n", text.str().c_str());
  std::abort();
}

}  // namespace zerohold::base

// ZH_CHECK(a == b, a, b);
#define ZH_CHECK(condition, ...)                                                                \
  do {                                                                                          \
    if (!(condition)) [[unlikely]]                                                              \
      ::zerohold::base::CheckFailed(__FILE__, __LINE__, #condition __VA_OPT__(, ) __VA_ARGS__); \
  } while (false)
