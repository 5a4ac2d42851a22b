// Not a program: what host and device compilers must compile, as C++17. Every rule of the table and
// every way in and out of an array, in functions of both sides.
#include "optim/kernels/operands.h"
#include "optim/kernels/rule_table.h"
#include "optim/kernels/storage.h"
#include "src/base/convert.h"

namespace zerohold::kernels {

#define ZH_PROBE(value, Rule)                                                                   \
  ZH_HOST_DEVICE Element Update##Rule(const Rule::Constants& c, Element e, uint16_t gradient) { \
    return Rule::Update(c, e, base::BFloat16ToFloat(gradient));                                 \
  }
ZH_UPDATE_RULES(ZH_PROBE)
#undef ZH_PROBE

#define ZH_PROBE(value, Type) \
  ZH_HOST_DEVICE float Widen##Type(Type::Stored stored) { return Type::Widen(stored); }
ZH_ELEMENT_TYPES(ZH_PROBE)
#undef ZH_PROBE

#define ZH_PROBE(value, ...)                                                                 \
  ZH_HOST_DEVICE float Halve_##value(__VA_ARGS__::Copy* copy, __VA_ARGS__::Master* master) { \
    __VA_ARGS__::Set(0.5f * __VA_ARGS__::Get(copy, master, 0), copy, master, 0);             \
    return __VA_ARGS__::Get(copy, master, 0);                                                \
  }
ZH_WEIGHT_FORMS(ZH_PROBE)
#undef ZH_PROBE

}  // namespace zerohold::kernels
