#include "model/jinja/template.h"

#include <boost/json.hpp>

#include "model/jinja/builtins.h"
#include "model/jinja/interpreter.h"
#include "model/jinja/parser.h"
#include "model/quoted.h"

namespace gyre::jinja {
namespace {

// Errors repeat names and texts of the template, so they are made printable: no escape sequence reaches a terminal.
Status ForPeople(const Status& status) { return Status(status.code(), PrintableSentence(Message(status))); }

}  // namespace

struct Template::Rep {
  Body body;
};
Template::Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;
Template::~Template() = default;

StatusOr<Template> Template::Parse(std::string_view source) {
  try {
    auto rep = std::make_unique<Rep>();
    rep->body = jinja::Parse(source);
    Template t;
    t.rep_ = std::move(rep);
    return t;
  } catch (const Error& e) {
    return ForPeople(e.status);
  }
}

StatusOr<std::string> Template::Render(const boost::json::object& variables, const RenderOptions& options) const {
  try {
    auto globals = std::make_shared<Scope>();
    AddGlobals(globals.get());
    auto scope = InnerScope(globals);
    for (const auto& item : variables) {
      scope->names[std::string(item.key().data(), item.key().size())] = Value::FromJson(item.value());
    }
    return Interpreter(options).Run(rep_->body, scope);
  } catch (const Error& e) {
    return ForPeople(e.status);
  }
}

}  // namespace gyre::jinja
