# SPDX-License-Identifier: Apache-2.0
# Several sources in one translation unit: the headers of the standard library, fmt and nlohmann-json are read and instantiated once for
# a group of files, which takes a third of the CPU time (docs/decisions/0021). The groups are those of every build, so that a name which
# two files of a group give to different things is noticed where it is written.
option(QUIRE_UNITY "Compile the files of a folder in groups; OFF: one by one, for clang-tidy" ON)
# Files of a folder in one group. Every build has the same number: a larger one in builds for use hid that two files of a folder had
# given one name to different things, which no test saw. Developers compile a group again after each change of a file in it.
set(QUIRE_UNITY_GROUP 12)

# quire_unity_group(LIST ROOT NAME FILE...): replaces the files in LIST by files that include them, up to QUIRE_UNITY_GROUP each. The names in
# those files are relative to ROOT, which must be an include folder of the target: ccache serves other folders' builds then.
function(quire_unity_group list root name)
  set(files ${ARGN})
  list(LENGTH files count)
  if(NOT QUIRE_UNITY OR count LESS 2)
    return()
  endif()
  list(SORT files)
  set(all ${${list}})
  list(REMOVE_ITEM all ${files})
  set(begin 0)
  while(begin LESS count)
    list(SUBLIST files ${begin} ${QUIRE_UNITY_GROUP} group)
    list(TRANSFORM group REPLACE "^${root}/(.*)$" "#include \"\\1\"")
    list(JOIN group "\n" text)
    set(made ${CMAKE_CURRENT_BINARY_DIR}/unity/${name}_${begin}.cpp)
    file(CONFIGURE OUTPUT ${made} CONTENT "// Made by cmake/unity.cmake.\n${text}\n" @ONLY)
    # GCC takes what a group includes for headers, in which a member of an anonymous namespace's type would be a mistake; and GCC 12, which
    # inlines more in a group, takes a vector of bytes for memory that operator new did not give (GCC bug 104475).
    set_source_files_properties(${made} PROPERTIES COMPILE_OPTIONS
                                "$<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage;-Wno-free-nonheap-object>")
    list(APPEND all ${made})
    math(EXPR begin "${begin} + ${QUIRE_UNITY_GROUP}")
  endwhile()
  set(${list} ${all} PARENT_SCOPE)
endfunction()

# quire_unity(LIST ROOT FOLDER): the files of a folder in groups.
function(quire_unity list root folder)
  set(files ${${list}})
  list(FILTER files INCLUDE REGEX "^${root}/${folder}/[^/]+\\.cpp$")
  string(REPLACE "/" "_" name ${folder})
  quire_unity_group(${list} ${root} ${name} ${files})
  set(${list} ${${list}} PARENT_SCOPE)
endfunction()

# quire_unity_json(LIST ROOT): the files that write or read JSON in a group of their own, whatever their folders: nlohmann-json is the
# header that takes longest.
function(quire_unity_json list root)
  set(users "")
  foreach(file IN LISTS ${list})
    file(STRINGS ${file} uses REGEX "Json|nlohmann" LIMIT_COUNT 1)
    if(uses)
      list(APPEND users ${file})
    endif()
  endforeach()
  set(QUIRE_UNITY_GROUP 100)
  quire_unity_group(${list} ${root} json ${users})
  set(${list} ${${list}} PARENT_SCOPE)
endfunction()
