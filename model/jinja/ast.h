// A template as a tree.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/jinja/value.h"

namespace gyre::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  enum class Kind {
    kLiteral,    // value
    kName,       // text
    kList,       // children
    kTuple,      // children
    kDict,       // children: key, value, key, value ...
    kAttribute,  // children[0] . text
    kItem,       // children[0] [ children[1] ]
    kSlice,      // children[0] [ children[1] : children[2] : children[3] ], any of the three null
    kCall,       // children[0] ( rest, named )
    kFilter,     // children[0] | text ( rest, named )
    kTest,       // children[0] is text ( rest, named )
    kUnary,      // text: - + not
    kBinary,     // text: + - * / // % ** ~ and or
    kCompare,    // children[0] operators[0] children[1] ...
    kCondition,  // children: then, if, else (null: undefined)
  };
  Kind kind = Kind::kLiteral;
  int line = 0;
  int depth = 0;  // of the tree below
  std::string text;
  Value value;
  std::vector<ExprPtr> children;
  std::vector<std::pair<std::string, ExprPtr>> named;
  std::vector<std::string> operators;
};

struct Node;
using Body = std::vector<std::unique_ptr<Node>>;

struct Parameter {
  std::string name;
  ExprPtr fallback;  // null: undefined where it is not given
};

struct Node {
  enum class Kind {
    kText,       // text
    kOutput,     // expr
    kIf,         // branches: a null condition is else
    kFor,        // targets in expr, if condition: body, else orelse
    kSet,        // targets = expr, or attribute text of the namespace targets[0]
    kSetBlock,   // targets = body, through expr (a filter chain on an empty name) if there is one
    kMacro,      // text(parameters): body
    kCallBlock,  // expr is the call, parameters are caller's: body
    kFilter,     // expr as in kSetBlock: body
    kWith,       // targets = values: body
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kText;
  int line = 0;
  std::string text;
  ExprPtr expr, condition;
  std::vector<std::string> targets;
  std::vector<ExprPtr> values;
  std::vector<Parameter> parameters;
  std::vector<std::pair<ExprPtr, Body>> branches;
  Body body, orelse;
  bool recursive = false;
  bool varargs = false, kwargs = false;  // a macro's body has these names, and so takes further arguments
  bool caller = false;                   // a macro's body has this name
};

}  // namespace gyre::jinja
