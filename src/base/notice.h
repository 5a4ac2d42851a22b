// Where a room says, once, what people should know: a fallback taken, a doubtful environment.
#pragma once

#include <functional>
#include <string>

namespace zerohold::base {

// One line without a newline; called on any thread; never empty when a room gets it.
using NoticeSink = std::function<void(const std::string&)>;

}  // namespace zerohold::base
