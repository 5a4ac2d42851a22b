// Not a program: what host and device compilers must compile, as C++17. Every rule of the table and
// every conversion, in functions of both sides.
#include "optim/kernels/operands.h"
#include "optim/kernels/rule_table.h"
#include "src/base/convert.h"

namespace zerohold::kernels {

#define ZH_PROBE(value, Rule)                                                                   \
  ZH_HOST_DEVICE Element Update##Rule(const Rule::Constants& c, Element e, uint16_t gradient) { \
    return Rule::Update(c, e, base::BFloat16ToFloat(gradient));                                 \
  }
ZH_UPDATE_RULES(ZH_PROBE)
#undef ZH_PROBE

ZH_HOST_DEVICE uint16_t Narrow(uint16_t half) {
  return base::FloatToBFloat16(base::Float16ToFloat(half)) ^
         base::FloatToFloat16(base::BFloat16ToFloat(half));
}

}  // namespace zerohold::kernels
