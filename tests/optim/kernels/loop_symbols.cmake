# Looks at the objects of the wide instruction sets (cpu/loop.h): a symbol that the linker may merge, or code that
# runs at start-up, would reach processors that cannot run it.
#   cmake -DNM=nm -DLIBRARY=libzh_kernels.a -P loop_symbols.cmake
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND ${NM} -A -C --defined-only ${LIBRARY} OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE "\n" ";" lines "${text}")
list(FILTER lines INCLUDE REGEX "loop_v[0-9]+\\.cc")
set(exported ${lines})
list(FILTER exported INCLUDE REGEX " T .*V[0-9]Loop")
list(LENGTH exported count)
if(NOT count EQUAL 2)
  message(FATAL_ERROR "V3Loop and V4Loop should be there: ${exported}")
endif()
list(FILTER lines INCLUDE REGEX " [VWuiv] | T |_GLOBAL__sub_I|__cxx_global")
list(REMOVE_ITEM lines ${exported})
if(lines)
  list(JOIN lines "\n" lines)
  message(FATAL_ERROR "these must not be there:\n${lines}")
endif()
