// The rows of the sampling options: complete, checked at the ends of their ranges, and copied by all that walks them.
#include "coordinator/engine/sampling_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "coordinator/engine/request_codec.h"

namespace gyre {
namespace {

using google::protobuf::FieldDescriptor;
using ::testing::HasSubstr;

bool IsWhole(const SamplingOption& option) { return std::holds_alternative<int SamplingParams::*>(option.field); }

// The number beside `value` in this direction, as the field can have it.
double Beside(const SamplingOption& option, double value, int direction) {
  if (IsWhole(option)) return value + direction;
  return std::nextafter(static_cast<float>(value), direction * std::numeric_limits<float>::infinity());
}

// All rows at once, each with a value of its own that is not its default.
SamplingParams Unusual() {
  SamplingParams params;
  double shift = 0.0625;
  for (const SamplingOption& option : SamplingOptions()) {
    SetValue(&params, option, IsWhole(option) ? 7 + 16 * shift : 0.125 + shift);
    shift += 0.0625;
  }
  return params;
}

TEST(SamplingOptionsTest, EveryFieldThatIsOneNumberHasARow) {
  constexpr size_t kOthers = sizeof(SamplingParams::logit_bias) + sizeof(SamplingParams::seed);
  const size_t numbers = SamplingOptions().size() * sizeof(float) + sizeof(SamplingParams::draw);
  EXPECT_EQ((numbers + 7) / 8 * 8 + kOthers, sizeof(SamplingParams)) << "a field of SamplingParams has no row";
  SamplingParams set = Unusual();
  std::set<double> values;
  for (const SamplingOption& option : SamplingOptions()) values.insert(ValueOf(set, option));
  EXPECT_EQ(values.size(), SamplingOptions().size()) << "two rows are of one field";
}

TEST(SamplingOptionsTest, RowsAndMessageHaveTheSameFields) {
  std::set<std::string> rows = {"seed", "logit_bias", "draw"}, fields;
  const auto* message = v1::Sampling::descriptor();
  for (int i = 0; i < message->field_count(); ++i) fields.emplace(message->field(i)->name());
  for (const SamplingOption& option : SamplingOptions()) {
    rows.emplace(option.name);
    const FieldDescriptor* field = message->FindFieldByName(std::string(option.name));
    ASSERT_NE(field, nullptr) << option.name << " is missing in Sampling of inference.proto";
    EXPECT_EQ(field->cpp_type(), IsWhole(option) ? FieldDescriptor::CPPTYPE_INT32 : FieldDescriptor::CPPTYPE_FLOAT)
        << option.name;
    EXPECT_TRUE(field->has_presence()) << option.name << ": what is not set has to be told from 0";
  }
  EXPECT_EQ(rows, fields);
}

TEST(SamplingOptionsTest, EachIsNamedOnceInEachWorld) {
  std::set<std::string_view> names, llama, flags;
  for (const SamplingOption& option : SamplingOptions()) {
    EXPECT_TRUE(names.insert(option.name).second) << option.name;
    EXPECT_TRUE(llama.insert(option.llama).second) << option.llama;
    EXPECT_TRUE(flags.insert(option.flag).second) << option.flag;
    EXPECT_FALSE(option.help.empty()) << option.name;
  }
}

TEST(SamplingOptionsTest, EachIsFoundByItsNamesAndTakesItsForeignValue) {
  for (const SamplingOption& option : SamplingOptions()) {
    EXPECT_EQ(FindSamplingOption(option.name), &option);
    EXPECT_EQ(FindSamplingOption(option.shown()), &option);
    EXPECT_EQ(FindSamplingOption(option.llama), &option);
    SamplingParams params;
    if (!option.has_foreign) continue;
    EXPECT_TRUE(SetChecked(&params, option, option.foreign).ok()) << option.name;
    EXPECT_EQ(static_cast<float>(ValueOf(params, option)), static_cast<float>(option.foreign_means)) << option.name;
  }
  EXPECT_EQ(FindSamplingOption("heat"), nullptr);
}

TEST(SamplingOptionsTest, ARangeHoldsItsEndsAndNothingBeyond) {
  for (const SamplingOption& option : SamplingOptions()) {
    const auto check = [&option](double value) {
      SamplingParams params;
      SetValue(&params, option, value);
      return params.Validate(10);
    };
    const double least = option.above_least ? Beside(option, option.least, 1) : option.least;
    EXPECT_TRUE(check(least).ok()) << option.name;
    EXPECT_TRUE(check(option.most).ok()) << option.name;
    EXPECT_TRUE(InRange(option, ValueOf(SamplingParams{}, option))) << option.name << "'s default";
    if (option.has_foreign) {
      EXPECT_TRUE(check(option.foreign_means).ok()) << option.name;
    }
    std::vector<double> wrong = {Beside(option, least, -1)};
    if (!IsWhole(option)) {
      wrong.insert(wrong.end(), {Beside(option, option.most, 1), std::nan(""), INFINITY, -INFINITY});
    }
    for (const double value : wrong) {
      const Status status = check(value);
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << option.name << " " << value;
      EXPECT_THAT(Message(status), HasSubstr(std::string(option.name) + " is ")) << value;
      EXPECT_THAT(Message(status), HasSubstr(RangeOf(option)));
    }
  }
}

TEST(SamplingOptionsTest, EachCrossesGrpcAndTheState) {
  Request request;
  request.sampling = Unusual();
  request.sampling.seed = 5;
  request.sampling.logit_bias = {{3, 0.5f}};
  EXPECT_EQ(DecodeRequest(EncodeRequest(request)).sampling, request.sampling);
  // What is not set has its default; what is set to it is the same.
  EXPECT_EQ(DecodeRequest({}).sampling, SamplingParams{});
  for (const SamplingOption& option : SamplingOptions()) {
    v1::GenerateRequest one;
    const FieldDescriptor* field = v1::Sampling::descriptor()->FindFieldByName(std::string(option.name));
    v1::Sampling* sampling = one.mutable_sampling();
    if (IsWhole(option)) {
      sampling->GetReflection()->SetInt32(sampling, field, 0);
    } else {
      sampling->GetReflection()->SetFloat(sampling, field, 0);
    }
    SamplingParams expected;
    SetValue(&expected, option, 0);
    EXPECT_EQ(DecodeSettings(one).sampling, expected) << option.name;
  }
}

}  // namespace
}  // namespace gyre
