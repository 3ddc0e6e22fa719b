#include "coordinator/grammar/json_formats.h"

#include <algorithm>
#include <memory>
#include <string>

#include "coordinator/grammar/regex.h"

namespace gyre::grammar {
namespace {

#define GYRE_DATE                                                                                                   \
  "(?:\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|" \
  "2[0-8]))|(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
#define GYRE_TIME "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d+)?(?:[Zz]|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define GYRE_OCTET "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define GYRE_IPV4 GYRE_OCTET "(?:\\." GYRE_OCTET "){3}"
#define GYRE_H "[0-9A-Fa-f]{1,4}"
#define GYRE_LOW32 "(?:" GYRE_H ":" GYRE_H "|" GYRE_IPV4 ")"
#define GYRE_IPV6                                                                                                      \
  "(?:(?:" GYRE_H ":){6}" GYRE_LOW32 "|::(?:" GYRE_H ":){5}" GYRE_LOW32 "|(?:" GYRE_H ")?::(?:" GYRE_H                 \
  ":){4}" GYRE_LOW32 "|(?:(?:" GYRE_H ":){0,1}" GYRE_H ")?::(?:" GYRE_H ":){3}" GYRE_LOW32 "|(?:(?:" GYRE_H            \
  ":){0,2}" GYRE_H ")?::(?:" GYRE_H ":){2}" GYRE_LOW32 "|(?:(?:" GYRE_H ":){0,3}" GYRE_H ")?::" GYRE_H ":" GYRE_LOW32  \
  "|(?:(?:" GYRE_H ":){0,4}" GYRE_H ")?::" GYRE_LOW32 "|(?:(?:" GYRE_H ":){0,5}" GYRE_H ")?::" GYRE_H "|(?:(?:" GYRE_H \
  ":){0,6}" GYRE_H ")?::)"
#define GYRE_LABEL "[0-9A-Za-z](?:[0-9A-Za-z-]{0,61}[0-9A-Za-z])?"
#define GYRE_HOST GYRE_LABEL "(?:\\." GYRE_LABEL ")*"
#define GYRE_PCT "%[0-9A-Fa-f]{2}"
#define GYRE_UNRESERVED "\\-0-9A-Za-z._~"
#define GYRE_SUB "!$&'()*+,;="
#define GYRE_PCHAR "(?:[" GYRE_UNRESERVED GYRE_SUB ":@]|" GYRE_PCT ")"
#define GYRE_PATH "(?:/" GYRE_PCHAR "*)*"
#define GYRE_AUTHORITY                                                                                   \
  "(?:(?:[" GYRE_UNRESERVED GYRE_SUB ":]|" GYRE_PCT ")*@)?(?:\\[(?:" GYRE_IPV6                           \
  "|[vV][0-9A-Fa-f]+\\.[" GYRE_UNRESERVED GYRE_SUB ":]+)\\]|(?:[" GYRE_UNRESERVED GYRE_SUB "]|" GYRE_PCT \
  ")*)(?::\\d*)?"
#define GYRE_ATOM "[0-9A-Za-z!#$%&'*+/=?^_`{|}~-]+"

struct Known {
  const char* name;
  const char* pattern;
};
constexpr Known kKnown[] = {
    {"date", GYRE_DATE},
    {"time", GYRE_TIME},
    {"date-time", GYRE_DATE "[Tt]" GYRE_TIME},
    {"duration",
     "P(?:\\d+W|(?:\\d+Y(?:\\d+M(?:\\d+D)?)?|\\d+M(?:\\d+D)?|\\d+D)(?:T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|"
     "\\d+S))?|T(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S))"},
    {"email", "(?:" GYRE_ATOM "(?:\\." GYRE_ATOM ")*|\"(?:[ !#-\\[\\]-~]|\\\\[ -~])*\")@(?:" GYRE_HOST "|\\[" GYRE_IPV4
              "\\]|\\[IPv6:" GYRE_IPV6 "\\])"},
    {"hostname", GYRE_HOST},
    {"ipv4", GYRE_IPV4},
    {"ipv6", GYRE_IPV6},
    {"uri", "[A-Za-z][0-9A-Za-z+.-]*:(?://" GYRE_AUTHORITY GYRE_PATH "|/(?:" GYRE_PCHAR "+" GYRE_PATH ")?|" GYRE_PCHAR
            "+" GYRE_PATH "|)(?:\\?(?:" GYRE_PCHAR "|[/?])*)?(?:#(?:" GYRE_PCHAR "|[/?])*)?"},
    {"uuid", "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"},
};

// A leap second: the last second of a day in UTC, whatever the offset. The hour and the minute decide the offset.
class LeapSecond : public Lazy {
 public:
  ExprId Expand(Expressions* e, const State& state) const override {
    std::vector<ExprId> all;
    const auto hour = static_cast<int>(state[1]), minute = static_cast<int>(state[2]);
    switch (state[0]) {
      case 0:
        for (uint64_t h = 0; h < 24; ++h)
          all.push_back(e->Concat(e->Text(fmt::format("{:02}:", h)), e->MakeLazy(this, {1, h, 0})));
        return e->Alt(std::move(all));
      case 1:
        for (uint64_t m = 0; m < 60; ++m)
          all.push_back(e->Concat(e->Text(fmt::format("{:02}:60", m)), e->MakeLazy(this, {2, state[1], m})));
        return e->Alt(std::move(all));
      default: break;
    }
    const int local = hour * 60 + minute, last = 24 * 60 - 1, day = 24 * 60;
    const int ahead = (local - last + day) % day, behind = (last - local + day) % day;
    all.push_back(e->Text(fmt::format("+{:02}:{:02}", ahead / 60, ahead % 60)));
    all.push_back(e->Text(fmt::format("-{:02}:{:02}", behind / 60, behind % 60)));
    if (local == last) all.insert(all.end(), {e->Text("Z"), e->Text("z")});
    const ExprId fraction = e->Concat(e->Text("."), e->Repeat(e->Range('0', '9'), 1, kUnbounded));
    return e->Concat(e->Optional(fraction), e->Alt(std::move(all)));
  }
  bool Nullable(const State&) const override { return false; }
  bool Regular() const override { return true; }
};

}  // namespace

bool IsKnownFormat(std::string_view name) {
  return std::any_of(std::begin(kKnown), std::end(kKnown), [name](const Known& k) { return k.name == name; });
}

StatusOr<ExprId> Format(Expressions* e, std::string_view name, Writing writing) {
  const auto known =
      std::find_if(std::begin(kKnown), std::end(kKnown), [name](const Known& k) { return k.name == name; });
  if (known == std::end(kKnown)) return NotFound("format {}", name);
  if (name == "hostname") {
    return Unimplemented(
        "the format hostname can't be obeyed: whether a label that begins with xn-- is one is no matter of a grammar; "
        "a pattern can say which names are meant");
  }
  // Within a JSON string / may be escaped, but nobody writes these texts so; only what must be is.
  const Writing shortest = writing == Writing::kPlain ? writing : Writing::kJsonName;
  GYRE_ASSIGN_OR_RETURN(ExprId all, ReadPattern(e, known->pattern, {.lenient = true, .writing = shortest}));
  if (name == "time" || name == "date-time") {
    const ExprId leap = e->MakeLazy(e->Own(std::make_unique<LeapSecond>()), {0, 0, 0});
    if (name == "time") {
      all = e->Alt(all, leap);
    } else {
      GYRE_ASSIGN_OR_RETURN(const ExprId date, ReadPattern(e, GYRE_DATE "[Tt]", {.writing = shortest}));
      all = e->Alt(all, e->Concat(date, leap));
    }
  }
  return all;
}

}  // namespace gyre::grammar
