# Every folder of src/ is a "room": one static library kvasir_<room> of its .cc files and,
# from the *_test.cc files beside them, one test program <room>_test.

add_library(kvasir_options INTERFACE)
target_include_directories(kvasir_options INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
# The arithmetic is defined operation by operation: a compiler must neither fuse nor reorder it.
target_compile_options(kvasir_options INTERFACE
  -ffp-contract=off -fno-fast-math -fno-math-errno
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wold-style-cast -Wundef)
if(CMAKE_SYSTEM_PROCESSOR STREQUAL aarch64)
  target_compile_options(kvasir_options INTERFACE -Wno-psabi)  # notes that GCC 10 passes some arguments differently
endif()
if(KVASIR_WERROR)
  target_compile_options(kvasir_options INTERFACE -Werror)
endif()
if(KVASIR_SANITIZE)
  target_compile_options(kvasir_options INTERFACE
    -fsanitize=${KVASIR_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(kvasir_options INTERFACE -fsanitize=${KVASIR_SANITIZE})
endif()

# kvasir_room(NAME [DEPENDS room ...] [LINK library ...])
function(kvasir_room name)
  cmake_parse_arguments(ARG "" "" "DEPENDS;LINK" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS *.cc)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  add_library(kvasir_${name} STATIC ${sources})
  target_link_libraries(kvasir_${name} PUBLIC kvasir_options PRIVATE ${ARG_LINK})
  foreach(room ${ARG_DEPENDS})
    target_link_libraries(kvasir_${name} PUBLIC kvasir_${room})
  endforeach()
  if(KVASIR_BUILD_TESTS AND tests)
    kvasir_test(${name}_test SOURCES ${tests} LINK kvasir_${name} ${ARG_LINK})
  endif()
endfunction()

# kvasir_test(NAME SOURCES ... LINK ... [TIMEOUT seconds] [PREFIX prefix]): a GoogleTest program, each of its tests
# known to ctest, by its name after the prefix.
function(kvasir_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;PREFIX" "SOURCES;LINK" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} kvasir_options GTest::gtest GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE KVASIR_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
  gtest_discover_tests(${name} TEST_PREFIX "${ARG_PREFIX}" DISCOVERY_TIMEOUT 120 PROPERTIES TIMEOUT ${ARG_TIMEOUT})
endfunction()
