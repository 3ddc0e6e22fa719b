#include "model/hf/post_processor.h"

#include "model/hf/json.h"
#include "model/quoted.h"
#include "model/sentence_pieces.h"

namespace gyre {
namespace {

namespace json = boost::json;
using IdOf = std::function<TokenId(const std::string&)>;

StatusOr<TokenId> KnownId(const std::string& token, const IdOf& id_of) {
  const TokenId id = id_of(token);
  if (id < 0) return DataLoss("the token {} is not in the vocabulary", Printable(token));
  return id;
}

// The ids of a template's special token: "special_tokens" lists them by its name.
Status AddSpecial(const json::object& step, const std::string& name, const IdOf& id_of, std::vector<TokenId>* ids) {
  const json::object* all = Object(step, "special_tokens");
  const json::object* one = all != nullptr ? Object(*all, name.c_str()) : nullptr;
  const json::array* tokens = one != nullptr ? Array(*one, "tokens") : nullptr;
  const json::array named{json::string(name)};
  for (const json::value& token : tokens != nullptr ? *tokens : named) {
    GYRE_ASSIGN_OR_RETURN(const TokenId id, KnownId(Text(&token), id_of));
    ids->push_back(id);
  }
  return absl::OkStatus();
}

Status ReadTemplate(const json::object& step, const IdOf& id_of, TokensAround* around) {
  const json::array* single = Array(step, "single");
  if (single == nullptr) return DataLoss("a TemplateProcessing has no single");
  int texts = 0;
  for (const json::value& piece : *single) {
    const json::object* o = piece.if_object();
    const json::object* special = o != nullptr ? Object(*o, "SpecialToken") : nullptr;
    if (special != nullptr) {
      GYRE_RETURN_IF_ERROR(
          AddSpecial(step, Text(special->if_contains("id")), id_of, texts == 0 ? &around->prefix : &around->suffix));
    } else if (o != nullptr && Object(*o, "Sequence") != nullptr) {
      ++texts;
    } else {
      return DataLoss("a TemplateProcessing has the part {}", Printable(json::serialize(piece)));
    }
  }
  if (texts != 1) return Unimplemented("a TemplateProcessing that has the text {} times is not known", texts);
  return absl::OkStatus();
}

// "cls" and "sep" are a token's text and id each.
Status ReadPair(const json::object& step, const IdOf& id_of, TokensAround* around) {
  for (const char* key : {"cls", "sep"}) {
    const json::array* pair = Array(step, key);
    if (pair == nullptr || pair->size() != 2) return DataLoss("a {} has no {}", Printable(Kind(step)), key);
    GYRE_ASSIGN_OR_RETURN(const TokenId id, KnownId(Text(&(*pair)[0]), id_of));
    (key[0] == 'c' ? around->prefix : around->suffix).push_back(id);
  }
  return absl::OkStatus();
}

Status ReadBytesDecoder(const json::object& step) {
  const std::string kind = Kind(step);
  if (kind == "ByteLevel" || kind == "Fuse") return absl::OkStatus();
  return Unimplemented("the type \"{}\" is not known beside a model of bytes, known are ByteLevel and Fuse",
                       Printable(kind));
}

Status ReadPiecesDecoder(const json::object& step, DecoderFacts* facts) {
  const std::string kind = Kind(step);
  if (kind == "ByteFallback" || kind == "Fuse") return absl::OkStatus();
  if (kind == "Metaspace") {
    const json::value* replacement = step.if_contains("replacement");
    if (replacement != nullptr && Text(replacement) != kMetaSpace)
      return Unimplemented("a Metaspace of \"{}\" is not known", Printable(Text(replacement)));
    const std::string scheme = Text(step.if_contains("prepend_scheme"));
    facts->meta_space = true;
    facts->drop_space = scheme.empty() ? Flag(step, "add_prefix_space", true) : scheme != "never";
    return absl::OkStatus();
  }
  if (kind == "Replace") {
    const json::object* pattern = Object(step, "pattern");
    if (pattern == nullptr || Text(pattern->if_contains("String")) != kMetaSpace ||
        Text(step.if_contains("content")) != " ")
      return Unimplemented("a Replace other than that of U+2581 by a space is not known");
    facts->meta_space = true;
    return absl::OkStatus();
  }
  if (kind == "Strip") {
    const auto number = [&](const char* key) {
      const json::value* v = step.if_contains(key);
      return v != nullptr && v->is_int64() ? v->get_int64() : 0;
    };
    if (Text(step.if_contains("content")) != " " || number("start") > 1 || number("stop") != 0)
      return Unimplemented("a Strip other than that of one space at the beginning is not known");
    facts->drop_space = number("start") == 1;
    return absl::OkStatus();
  }
  return Unimplemented(
      "the type \"{}\" is not known beside a model of pieces, known are Metaspace, Replace, ByteFallback, Fuse and "
      "Strip",
      Printable(kind));
}

}  // namespace

StatusOr<TokensAround> ReadPostProcessor(const json::object& root, const IdOf& id_of) {
  TokensAround all;
  const Status read = ForEachStep(root, "post_processor", "processors", [&](const json::object& step) -> Status {
    const std::string kind = Kind(step);
    TokensAround around;
    if (kind == "TemplateProcessing") {
      if (!all.prefix.empty() || !all.suffix.empty())
        return Unimplemented("a TemplateProcessing after another step that adds tokens is not known");
      GYRE_RETURN_IF_ERROR(ReadTemplate(step, id_of, &around));
    } else if (kind == "RobertaProcessing" || kind == "BertProcessing") {
      GYRE_RETURN_IF_ERROR(ReadPair(step, id_of, &around));
    } else if (kind != "ByteLevel") {  // which concerns places in the text alone
      return Unimplemented(
          "the type \"{}\" is not known, known are ByteLevel, TemplateProcessing, RobertaProcessing and BertProcessing",
          Printable(kind));
    }
    all.prefix.insert(all.prefix.begin(), around.prefix.begin(), around.prefix.end());
    all.suffix.insert(all.suffix.end(), around.suffix.begin(), around.suffix.end());
    return absl::OkStatus();
  });
  GYRE_RETURN_IF_ERROR(Annotate(read, "post_processor"));
  return all;
}

StatusOr<DecoderFacts> ReadDecoder(const json::object& root, DecodedAs as) {
  DecoderFacts facts;
  const Status read = ForEachStep(root, "decoder", "decoders", [&](const json::object& step) {
    facts.given = true;
    return as == DecodedAs::kBytes ? ReadBytesDecoder(step) : ReadPiecesDecoder(step, &facts);
  });
  GYRE_RETURN_IF_ERROR(Annotate(read, "decoder"));
  return facts;
}

}  // namespace gyre
