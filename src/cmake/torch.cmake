# Finds libtorch for zh-train: the target zh_torch, when found and not switched off, and ZH_TORCH_FOUND (a version and a
# place for people, or ""). Torch's own CMake package is not used: it looks for what its build was made with.

set(ZH_TORCH_FOUND "")
if(NOT ZEROHOLD_TORCH STREQUAL "OFF")
  find_path(ZH_TORCH_INCLUDE torch/csrc/api/include/torch/torch.h)
  find_library(ZH_TORCH_LIBRARY torch)
  find_library(ZH_TORCH_CPU_LIBRARY torch_cpu)
  find_library(ZH_C10_LIBRARY c10)
  mark_as_advanced(ZH_TORCH_INCLUDE ZH_TORCH_LIBRARY ZH_TORCH_CPU_LIBRARY ZH_C10_LIBRARY)
  if(ZH_TORCH_INCLUDE AND ZH_TORCH_LIBRARY AND ZH_TORCH_CPU_LIBRARY AND ZH_C10_LIBRARY)
    set(version_header ${ZH_TORCH_INCLUDE}/torch/csrc/api/include/torch/version.h)
    set(torch_version "")
    if(EXISTS ${version_header})
      file(STRINGS ${version_header} lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH)")
      string(REGEX REPLACE "[^;]*TORCH_VERSION_[A-Z]+ +" "" torch_version "${lines}")
      list(JOIN torch_version "." torch_version)
    endif()
    set(ZH_TORCH_FOUND "${torch_version} at ${ZH_TORCH_LIBRARY}")
    add_library(zh_torch INTERFACE)
    target_include_directories(zh_torch SYSTEM INTERFACE
      ${ZH_TORCH_INCLUDE} ${ZH_TORCH_INCLUDE}/torch/csrc/api/include)
    target_link_libraries(zh_torch INTERFACE
      ${ZH_TORCH_LIBRARY} ${ZH_TORCH_CPU_LIBRARY} ${ZH_C10_LIBRARY})
  endif()
endif()
zh_report(TORCH libtorch "${ZH_TORCH_FOUND}" "zh-train is built" "apt-get install libtorch-dev")
