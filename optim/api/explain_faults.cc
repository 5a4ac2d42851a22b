// The front door of the fault reporter.
#include "zerohold/explain_faults.h"

#include "src/memory/fault_reporter.h"

namespace zerohold {

Status ExplainFaults() { return memory::InstallFaultReporter(); }

}  // namespace zerohold
