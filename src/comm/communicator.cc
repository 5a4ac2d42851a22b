#include "src/comm/communicator.h"

#include <cstdio>
#include <string>

#include "src/base/align.h"
#include "src/base/hash.h"
#include "src/base/status_macros.h"
#include "src/comm/label.h"

namespace zerohold::comm {
namespace {

// Finds the lowest rank for which `mine` is true, without a table of ranks: the world's size for
// none.
absl::StatusOr<int> LowestRankWith(Communicator& communicator, const Label& label, bool mine) {
  const int world = communicator.size();
  int64_t distance = mine ? world - communicator.rank() : 0;
  ZH_RETURN_IF_ERROR(communicator.AllReduce(label, {}, {&distance, 1}, {}));
  return static_cast<int>(world - distance);
}

absl::StatusOr<std::string> BroadcastText(Communicator& communicator, const Label& label,
                                          std::string_view text, int root) {
  int64_t bytes = static_cast<int64_t>(text.size());
  ZH_RETURN_IF_ERROR(communicator.Broadcast(label, &bytes, sizeof(bytes), root));
  std::string copy(text);
  copy.resize(bytes);
  ZH_RETURN_IF_ERROR(communicator.Broadcast(label, copy.data(), bytes, root));
  return copy;
}

// Takes the next line off the front; "nothing" after the last.
std::string TakeLine(std::string_view& text) {
  if (text.empty()) return "nothing";
  const size_t end = text.find('\n');
  std::string line = '"' + std::string(text.substr(0, end)) + '"';
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return line;
}

}  // namespace

size_t FormatLabel(const Label& label, std::span<char> out) {
  const char* of_item = label.item[0] == '\0' ? "" : " of ";
  char index[24] = "";
  if (label.index >= 0) {
    std::snprintf(index, sizeof(index), " %lld", static_cast<long long>(label.index));
  }
  const char* joint = label.of.empty()                            ? ""
                      : label.item[0] == '\0' || label.index >= 0 ? " of "
                                                                  : " ";
  return std::snprintf(out.data(), out.size(), "%s%s%s%s%s%.*s", label.verb, of_item, label.item,
                       index, joint, static_cast<int>(label.of.size()), label.of.data());
}

std::string ToString(const Label& label) {
  std::string text(FormatLabel(label, {}), '\0');
  FormatLabel(label, {text.data(), text.size() + 1});
  return text;
}

int64_t Communicator::ScratchBytes(int64_t max_shard_elems, DType dtype, int world) {
  return world * base::AlignUp(max_shard_elems * SizeOf(dtype), kScratchAlignBytes);
}

absl::Status Agree(Communicator& communicator, const absl::Status& mine) {
  const Label label{.verb = "Agree"};
  ZH_ASSIGN_OR_RETURN(const int failed, LowestRankWith(communicator, label, !mine.ok()));
  if (failed == communicator.size()) return absl::OkStatus();
  int64_t code = mine.raw_code();
  ZH_RETURN_IF_ERROR(communicator.Broadcast(label, &code, sizeof(code), failed));
  const std::string_view message(mine.message().data(), mine.message().size());
  ZH_ASSIGN_OR_RETURN(const std::string text, BroadcastText(communicator, label, message, failed));
  return absl::Status(static_cast<absl::StatusCode>(code),
                      "rank " + std::to_string(failed) + ": " + text);
}

absl::Status AgreeOnText(Communicator& communicator, std::string_view what, std::string_view text) {
  const Label label{.verb = "Agree", .of = what};
  uint64_t hash = base::Hash(text);
  ZH_RETURN_IF_ERROR(communicator.Broadcast(label, &hash, sizeof(hash), 0));
  ZH_ASSIGN_OR_RETURN(const int other,
                      LowestRankWith(communicator, label, hash != base::Hash(text)));
  if (other == communicator.size()) return absl::OkStatus();
  ZH_ASSIGN_OR_RETURN(const std::string first_text, BroadcastText(communicator, label, text, 0));
  ZH_ASSIGN_OR_RETURN(const std::string other_text,
                      BroadcastText(communicator, label, text, other));
  std::string_view first_rest = first_text;
  std::string_view other_rest = other_text;
  std::string first_line;
  std::string other_line;
  do {
    first_line = TakeLine(first_rest);
    other_line = TakeLine(other_rest);
  } while (first_line == other_line && !(first_rest.empty() && other_rest.empty()));
  return absl::FailedPreconditionError(std::string(what) + ": rank 0 has " + first_line +
                                       ", rank " + std::to_string(other) + " has " + other_line);
}

}  // namespace zerohold::comm
