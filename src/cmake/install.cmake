# What a trainer outside this tree gets: one shared library, the public headers, a CMake package, a pkg-config file and
# the programs. Components: Runtime (library, programs), Development (headers, package files).

if(NOT TARGET zerohold)
  return()
endif()
include(CMakePackageConfigHelpers)

set_target_properties(zerohold PROPERTIES
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
  LINK_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/exports.map)
target_include_directories(zerohold PUBLIC
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_compile_features(zerohold PUBLIC cxx_std_20)
target_link_libraries(zerohold PUBLIC absl::status absl::statusor MPI::MPI_CXX)
# Only our symbols leave: std::, absl:: and boost:: templates that our code instantiates stay inside.
target_link_options(zerohold PRIVATE
  -Wl,--version-script=${CMAKE_CURRENT_LIST_DIR}/exports.map -Wl,--no-undefined)
if(ZEROHOLD_SANITIZE)
  # The sanitizers' own symbols come from the program that loads the library.
  target_link_options(zerohold PRIVATE -Wl,-z,undefs)
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/zerohold)
install(TARGETS zerohold EXPORT zerohold
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT Runtime NAMELINK_COMPONENT Development)
install(EXPORT zerohold NAMESPACE zerohold:: FILE zeroholdTargets.cmake
        DESTINATION ${package_dir} COMPONENT Development)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/zerohold DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        COMPONENT Development FILES_MATCHING PATTERN "*.h")

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/zeroholdConfig.cmake.in
  ${PROJECT_BINARY_DIR}/package/zeroholdConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/zeroholdConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/package/zeroholdConfig.cmake
              ${PROJECT_BINARY_DIR}/package/zeroholdConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT Development)

# The prefix is found from the file's own place, so that an installed tree can be moved.
file(RELATIVE_PATH pc_to_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" pc_to_prefix "${pc_to_prefix}")
configure_file(${CMAKE_CURRENT_LIST_DIR}/zerohold.pc.in
  ${PROJECT_BINARY_DIR}/package/zerohold.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/package/zerohold.pc
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT Development)

# Programs for people; the benches stay in the build folder.
get_property(programs GLOBAL PROPERTY ZH_PROGRAMS)
list(FILTER programs INCLUDE REGEX "^zh-")
file(RELATIVE_PATH bin_to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
foreach(program ${programs})
  set_target_properties(${program} PROPERTIES INSTALL_RPATH "$ORIGIN/${bin_to_lib}")
  install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT Runtime)
endforeach()
