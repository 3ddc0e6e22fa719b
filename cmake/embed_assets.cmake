# gyre_embed_assets(OUT FOLDER [FILE]): writes OUT, a C++ file with every file in FOLDER, and FILE, as bytes, as they are and
# compressed, and the table PageAssets() of them (coordinator/http/page_assets.h). Called as a script (cmake -P) it does
# the writing.
function(gyre_embed_assets out folder)
  file(GLOB assets CONFIGURE_DEPENDS ${folder}/*)
  list(APPEND assets ${ARGN})
  add_custom_command(
    OUTPUT ${out}
    COMMAND ${CMAKE_COMMAND} -DOUT=${out} -DFOLDER=${folder} -DFILE=${ARGN} -P ${CMAKE_CURRENT_FUNCTION_LIST_FILE}
    DEPENDS ${assets} ${CMAKE_CURRENT_FUNCTION_LIST_FILE}
    COMMENT "Embedding the web page" VERBATIM)
endfunction()

if(NOT CMAKE_SCRIPT_MODE_FILE)
  return()
endif()

# The bytes of a file as the elements of an array of char.
function(elements file result)
  file(READ ${file} hex HEX)
  string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${hex}")
  set(${result} "${bytes}" PARENT_SCOPE)
endfunction()

set(type_html "text/html; charset=utf-8")
set(type_js "text/javascript; charset=utf-8")
set(type_css "text/css; charset=utf-8")
set(type_txt "text/plain; charset=utf-8")
set(type_svg "image/svg+xml")
set(type_json "application/json")

set(arrays "")
set(rows "")
set(number 0)
file(GLOB assets ${FOLDER}/*)
list(APPEND assets ${FILE})
list(SORT assets)
foreach(asset ${assets})
  get_filename_component(name ${asset} NAME)
  get_filename_component(extension ${asset} LAST_EXT)
  string(SUBSTRING "${extension}" 1 -1 extension)
  if(NOT DEFINED type_${extension})
    message(FATAL_ERROR "${asset}: no content type is known for .${extension}; add one to ${CMAKE_CURRENT_LIST_FILE}")
  endif()
  set(path "/${name}")
  if(name STREQUAL "index.html")
    set(path "/")
  endif()
  file(ARCHIVE_CREATE OUTPUT ${OUT}.gz PATHS ${asset} FORMAT raw COMPRESSION GZip COMPRESSION_LEVEL 9)
  elements(${asset} plain)
  elements(${OUT}.gz packed)
  file(REMOVE ${OUT}.gz)
  file(SHA256 ${asset} hash)
  string(SUBSTRING ${hash} 0 24 hash)
  string(APPEND arrays "constexpr char kPlain${number}[] = {\n${plain}};\nconstexpr char kPacked${number}[] = {\n${packed}};\n")
  string(APPEND rows "    {\"${path}\", \"${type_${extension}}\", \"${hash}\", View(kPlain${number}), View(kPacked${number})},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUT} "// Written by cmake/embed_assets.cmake.
#include \"coordinator/http/page_assets.h\"

namespace gyre::http {
namespace {

template <size_t N>
constexpr std::string_view View(const char (&bytes)[N]) {
  return {bytes, N};
}

${arrays}
constexpr PageAsset kAssets[] = {
${rows}};

}  // namespace

std::span<const PageAsset> PageAssets() { return kAssets; }

}  // namespace gyre::http
")
