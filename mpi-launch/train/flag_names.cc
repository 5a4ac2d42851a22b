#include "mpi-launch/train/flag_names.h"

#include <cctype>
#include <string_view>
#include <utility>

namespace zerohold::train {
namespace {

using Pair = std::pair<std::string_view, std::string_view>;

// Wherever they stand.
constexpr Pair kPhrases[] = {
    {"groups[0].", ""},
    {"groups[1].", ""},
    {", look at its inputs, or raise loss_scale.max_skips", " or look at its inputs"},
    {", or nesterov false", ", or no nesterov"},
    {"or use the host tier",
     "or leave --offload, --params-offload and --gradients-offload at host"},
};

// Whole words.
constexpr Pair kWords[] = {
    {"bucket_elems", "--bucket-elems"},
    {"beta1", "--beta1"},
    {"beta2", "--beta2"},
    {"clip_grad_norm", "--clip"},
    {"communication_timeout_s", "--communication-timeout"},
    {"device_budget", "--device-budget"},
    {"epsilon", "--epsilon"},
    {"instruction_set", "--instruction-set"},
    {"learning_rate", "--learning-rate"},
    {"loss_scale.growth_interval", "--loss-scale-interval"},
    {"loss_scale.initial", "--loss-scale"},  // that of a dynamic one is checked before
    {"max_live_gradients_bytes", "--max-live-gradients"},
    {"max_live_parameters_bytes", "--max-live-parameters"},
    {"max_micro_batches", "--accumulate"},
    {"momentum", "--momentum"},
    {"nesterov", "--nesterov"},
    {"nvme_paths", "--nvme-path"},
    {"offload.faults", "--offload-faults"},
    {"offload.host.states", "--host-budget"},
    {"offload.host.gradients", "--gradients-offload"},
    {"offload.host.parameters", "--params-offload"},
    {"offload.io_engine", "--io-engine"},
    {"offload.nvme_paths", "--nvme-path"},
    {"offload.require_pinned", "--require-pinned"},
    {"offload.window", "--window"},
    {"overlap_next_forward", "--overlap-next-forward"},
    {"persistence_threshold_elems", "--persistence-threshold"},
    {"require_pinned", "--require-pinned"},
    {"schedule.total_steps", "--total-steps"},
    {"schedule.warmup_steps", "--warmup"},
    {"update_threads", "--update-threads"},
    {"weight_decay", "--weight-decay"},
    {"zero_stage", "--zero-stage"},
};

// Of a word or of a path; the names of tensors and folders stay.
bool Continues(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         std::string_view("_./-\"").find(c) != std::string_view::npos;
}

// The option that begins at `at`, or null.
const Pair* OptionAt(std::string_view text, size_t at) {
  if (at > 0 && Continues(text[at - 1])) return nullptr;
  for (const Pair& word : kWords) {
    if (!text.substr(at).starts_with(word.first)) continue;
    const size_t end = at + word.first.size();
    if (end == text.size() || !Continues(text[end])) return &word;
  }
  return nullptr;
}

}  // namespace

std::string InFlags(std::string text) {
  for (const auto& [said, meant] : kPhrases) {
    for (size_t at; (at = text.find(said)) != std::string::npos;) {
      text.replace(at, said.size(), meant);
    }
  }
  for (size_t at = 0; at < text.size(); ++at) {
    const Pair* const option = OptionAt(text, at);
    if (option == nullptr) continue;
    text.replace(at, option->first.size(), option->second);
    at += option->second.size() - 1;
  }
  return text;
}

}  // namespace zerohold::train
