# Finds the GPU compilers and NCCL. This version has no GPU device and no GPU collectives: the compilers serve one
# check, that the element headers compile as device code with them (tests/optim/kernels).
#
# Sets, when found and not switched off: ZH_NVCC, ZH_HIPCC (paths); and always ZH_CUDA_FOUND, ZH_HIP_FOUND,
# ZH_NCCL_FOUND (a version and a place for people, or "").

# zh_report(OPTION NAME FOUND_TEXT NOTE INSTALL): the one line of AUTO, or the error of ON.
function(zh_report option name found note install)
  if(ZEROHOLD_${option} STREQUAL "OFF")
    message(STATUS "${name}: switched off")
  elseif(found)
    message(STATUS "${name}: ${found}; ${note}")
  elseif(ZEROHOLD_${option} STREQUAL "ON")
    message(FATAL_ERROR "ZEROHOLD_${option}=ON, but ${name} was not found: ${install}")
  else()
    message(STATUS "${name}: not found")
  endif()
endfunction()

# zh_compiler(RESULT PROGRAM VERSION_REGEX HINTS ...): "version at path" if the program is there and runs, else "".
function(zh_compiler result program version_regex)
  find_program(ZH_${result}_PROGRAM ${program} HINTS ${ARGN})
  mark_as_advanced(ZH_${result}_PROGRAM)
  set(ZH_${result}_FOUND "" PARENT_SCOPE)
  if(NOT ZH_${result}_PROGRAM)
    return()
  endif()
  execute_process(COMMAND ${ZH_${result}_PROGRAM} --version
                  OUTPUT_VARIABLE text ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed AND text MATCHES "${version_regex}")
    set(ZH_${result}_FOUND "${CMAKE_MATCH_1} at ${ZH_${result}_PROGRAM}" PARENT_SCOPE)
  endif()
endfunction()

set(ZH_CUDA_FOUND "")
if(NOT ZEROHOLD_CUDA STREQUAL "OFF")
  zh_compiler(CUDA nvcc "release ([0-9.]+)" $ENV{CUDACXX} $ENV{CUDA_PATH}/bin)
  if(ZH_CUDA_FOUND)
    set(ZH_NVCC ${ZH_CUDA_PROGRAM})
  endif()
endif()
zh_report(CUDA CUDA "${ZH_CUDA_FOUND}"
  "this version has no GPU device yet, the element headers are compiled with it as a check"
  "install the CUDA toolkit and put nvcc on PATH")

set(ZH_HIP_FOUND "")
if(NOT ZEROHOLD_HIP STREQUAL "OFF")
  zh_compiler(HIP hipcc "HIP version: ([0-9.]+)" $ENV{ROCM_PATH}/bin /opt/rocm/bin)
  if(ZH_HIP_FOUND)
    set(ZH_HIPCC ${ZH_HIP_PROGRAM})
  endif()
endif()
zh_report(HIP HIP "${ZH_HIP_FOUND}"
  "this version has no GPU device yet, the element headers are compiled with it as a check"
  "apt-get install hipcc libamdhip64-dev rocm-device-libs")

set(ZH_NCCL_FOUND "")
if(NOT ZEROHOLD_NCCL STREQUAL "OFF")
  set(prefixes /opt/rocm)
  if(ZH_NVCC)
    cmake_path(GET ZH_NVCC PARENT_PATH cuda_bin)
    cmake_path(GET cuda_bin PARENT_PATH cuda_prefix)
    list(PREPEND prefixes ${cuda_prefix})
  endif()
  find_path(ZH_NCCL_INCLUDE NAMES nccl.h rccl/rccl.h HINTS ${prefixes} PATH_SUFFIXES include)
  find_library(ZH_NCCL_LIBRARY NAMES nccl rccl HINTS ${prefixes} PATH_SUFFIXES lib64 lib)
  mark_as_advanced(ZH_NCCL_INCLUDE ZH_NCCL_LIBRARY)
  if(ZH_NCCL_INCLUDE AND ZH_NCCL_LIBRARY)
    set(ZH_NCCL_FOUND "${ZH_NCCL_LIBRARY}")
  endif()
endif()
zh_report(NCCL NCCL "${ZH_NCCL_FOUND}" "this version has no GPU collectives yet, nothing uses it"
  "install NCCL (with the CUDA toolkit) or RCCL (with ROCm)")
