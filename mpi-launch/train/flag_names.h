// What the engine says of its options, in the words of whoever gave flags.
#pragma once

#include <string>

namespace zerohold::train {

// `text` with the flag in place of each option that has one, and without the advice that no flag
// follows.
std::string InFlags(std::string text);

}  // namespace zerohold::train
