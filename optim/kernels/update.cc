// Constants by rule, loops by rule and instruction set.
#include "optim/kernels/update.h"

#include <cstring>
#include <iterator>

#include "optim/kernels/cpu/cpu_features.h"
#include "optim/kernels/cpu/loops.h"
#include "optim/kernels/masters.h"
#include "optim/kernels/rule_table.h"
#include "src/base/check.h"

namespace zerohold::kernels {
namespace {

#define ZH_CHECK_ROW(value, Rule) \
  static_assert(static_cast<int>(UpdateRule::value) == static_cast<int>(RuleRow::value));
ZH_UPDATE_RULES(ZH_CHECK_ROW)
#undef ZH_CHECK_ROW

#define ZH_CHECK_TYPE(value, Type)                                                   \
  static_assert(static_cast<int>(DType::value) == static_cast<int>(TypeRow::value)); \
  static_assert(static_cast<int>(DType::value) == static_cast<int>(FormRow::value));
ZH_ELEMENT_TYPES(ZH_CHECK_TYPE)
#undef ZH_CHECK_TYPE

constexpr RuleFacts kFacts[] = {
#define ZH_FACTS(value, Rule) {#Rule, Rule::kMoment1, Rule::kMoment2, Rule::kReads},
    ZH_UPDATE_RULES(ZH_FACTS)
#undef ZH_FACTS
};

template <typename Rule>
UpdateConstants Pack(const RuleSettings& settings) {
  const typename Rule::Constants made = Rule::MakeConstants(settings);
  UpdateConstants constants;
  static_assert(sizeof made <= sizeof constants.values);
  std::memcpy(constants.values, &made, sizeof made);
  return constants;
}

}  // namespace

const RuleFacts* FactsOf(UpdateRule rule) {
  const auto index = static_cast<size_t>(rule);
  return index < std::size(kFacts) ? &kFacts[index] : nullptr;
}

UpdateConstants MakeConstants(UpdateRule rule, const GroupOptions& group, double learning_rate,
                              int64_t step, double gradient_scale) {
  const RuleSettings settings{.learning_rate = learning_rate,
                              .beta1 = group.beta1,
                              .beta2 = group.beta2,
                              .epsilon = group.epsilon,
                              .weight_decay = group.weight_decay,
                              .momentum = group.momentum,
                              .nesterov = group.nesterov,
                              .gradient_scale = gradient_scale,
                              .step = step};
  switch (rule) {
#define ZH_PACK(value, Rule) \
  case UpdateRule::value:    \
    return Pack<Rule>(settings);
    ZH_UPDATE_RULES(ZH_PACK)
#undef ZH_PACK
  }
  ZH_CHECK(false, static_cast<int>(rule));
}

UpdateFunction SelectUpdate(const UpdateShape& shape, InstructionSet set) {
  ZH_CHECK(Supports(set), NameOf(set));
  const LoopShape row{static_cast<RuleRow>(shape.rule), static_cast<TypeRow>(shape.gradient),
                      FormOf({shape.copy, shape.master})};
  UpdateFunction loop = nullptr;
  switch (set == InstructionSet::kBest ? BestInstructionSet() : set) {
#if defined(__x86_64__)
    case InstructionSet::kV4:
      loop = V4Loop(row);
      break;
    case InstructionSet::kV3:
      loop = V3Loop(row);
      break;
#endif
    default:
      loop = BaselineLoop(row);
  }
  ZH_CHECK(loop != nullptr, static_cast<int>(shape.rule));
  return loop;
}

bool Supports(InstructionSet set) { return Supports(DetectCpuFeatures(), set); }

InstructionSet BestInstructionSet() { return WidestSet(DetectCpuFeatures()); }

const char* NameOf(InstructionSet set) {
  switch (set) {
    case InstructionSet::kBest:
      return "best";
    case InstructionSet::kBaseline:
      return "baseline";
    case InstructionSet::kV3:
      return "v3";
    case InstructionSet::kV4:
      return "v4";
  }
  return "unknown";
}

}  // namespace zerohold::kernels
