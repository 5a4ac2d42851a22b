// Says which parameter a segmentation fault has touched, and which call mends it.
#pragma once

#include "zerohold/export.h"
#include "zerohold/status.h"

namespace zerohold {

// From now on a fault at the address of a parameter (stage 3) or gradient (stages 2 and 3) that is
// not acquired prints one line on stderr, parameter, unit and call, before it goes the way it would
// have gone: to the SIGSEGV handler that is there now, or to the default action. What stays in
// memory between acquires, at lower stages, gives no fault. Changes the whole process, and for
// good; later calls do nothing. Install handlers of your own before it, or hand on to it what is
// not yours.
//
// Not collective, not blocking; engines created before and after are explained alike.
// Errors: Internal, when the system refuses the handler.
ZH_EXPORT Status ExplainFaults();

}  // namespace zerohold
