# perseus_add_tests(PROGRAM): ctest runs the GoogleTest program as four processes, each with a
# quarter of its tests, because starting a process for each test took longer than the tests. Each
# process writes its results to test-results/ in the build folder.
function(perseus_add_tests program)
  set(shards 4)
  math(EXPR last "${shards} - 1")
  foreach(shard RANGE ${last})
    set(name ${program}.${shard})
    add_test(NAME ${name} COMMAND ${program})
    set_tests_properties(${name} PROPERTIES
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${shards};GTEST_SHARD_INDEX=${shard};GTEST_OUTPUT=xml:${PROJECT_BINARY_DIR}/test-results/${name}.xml")
  endforeach()
endfunction()
