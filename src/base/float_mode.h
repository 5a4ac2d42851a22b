// The floating-point state that our arithmetic assumes: round to nearest, denormals kept. A trainer
// may have set another one (torch::set_flush_denormal), and new threads inherit their creator's.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace zerohold::base {

// Sets it for the calling thread, and puts back what was there at the end.
class StandardFloatMode {
 public:
#if defined(__x86_64__)
  StandardFloatMode() : before_(_mm_getcsr()) { _mm_setcsr(kStandard); }
  ~StandardFloatMode() { _mm_setcsr(before_); }

 private:
  static constexpr unsigned kStandard = 0x1f80;  // all exceptions masked, nothing else set
  const unsigned before_;
#elif defined(__aarch64__)
  StandardFloatMode() : before_(__builtin_aarch64_get_fpcr()) { __builtin_aarch64_set_fpcr(0); }
  ~StandardFloatMode() { __builtin_aarch64_set_fpcr(before_); }

 private:
  const unsigned before_;
#else
#error "say how this processor's floating-point state is set"
#endif

 public:
  StandardFloatMode(const StandardFloatMode&) = delete;
  StandardFloatMode& operator=(const StandardFloatMode&) = delete;
};

}  // namespace zerohold::base
