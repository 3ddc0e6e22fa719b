// fmt's functions for programs that are linked without its shared library: those that its headers only declare.
#include "fmt/format-inl.h"

namespace fmt {
inline namespace v9 {
namespace detail {

template void buffer<char>::append(const char* begin, const char* end);
template auto dragonbox::to_decimal(float value) noexcept -> dragonbox::decimal_fp<float>;
template auto dragonbox::to_decimal(double value) noexcept -> dragonbox::decimal_fp<double>;
template auto thousands_sep_impl<char>(locale_ref locale) -> thousands_sep_result<char>;
template auto decimal_point_impl<char>(locale_ref locale) -> char;
template auto locale_ref::get<std::locale>() const -> std::locale;
template void vformat_to<char>(buffer<char>& out, string_view format, basic_format_args<buffer_context<char>> arguments,
                               locale_ref locale);

}  // namespace detail
}  // namespace v9
}  // namespace fmt
