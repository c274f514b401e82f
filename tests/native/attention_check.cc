// Compares QuantizedAttention on every instruction set that this machine can run with the portable kernels, bit for
// bit: an operator chooses other layouts of its operands for tiles. Prints how many problems each instruction set
// computed.
//
//   attention_check [PROBLEMS]   the number of random problems: 200 unless given
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "core/operator.h"
#include "kernels/dispatch.h"
#include "random.h"
#ifdef ORT_DYNQ_AMX_EMULATED
#include "tile_emulator.h"
#endif

namespace dynq {
Operator quantized_attention();
}

namespace {

using dynq::Shape;

struct Given : dynq::Attributes {
  std::map<std::string, int64_t> values;

  int64_t integer(const char* name, int64_t absent) const override {
    const auto found = values.find(name);
    return found == values.end() ? absent : found->second;
  }
  std::string text(const char*, const char* absent) const override { return absent; }
  std::vector<int64_t> integers(const char*) const override { return {}; }
};

// Tasks run one after the other.
struct Run : dynq::Context {
  std::vector<Shape> shapes;
  std::vector<std::vector<float>> inputs;
  std::vector<float> result;

  dynq::Tensor input(size_t index) override { return {dynq::kFloat, shapes[index], inputs[index].data()}; }
  void* output(size_t, const Shape& shape) override {
    result.assign(static_cast<size_t>(shape.elements()), 77.0f);
    return result.data();
  }
  void parallel_for(size_t count, void (*task)(void*, size_t), void* data) override {
    for (size_t i = 0; i < count; ++i) task(data, i);
  }
};

Random source{1};

float number() { return static_cast<float>(source.integer(-1000, 1000)) / 400.0f; }

void add(Run& run, const Shape& shape) {
  run.shapes.push_back(shape);
  auto& values = run.inputs.emplace_back();
  for (int64_t i = 0; i < shape.elements(); ++i) values.push_back(number());
}

void add_number(Run& run, float value) {
  run.shapes.push_back({0, {}});
  run.inputs.push_back({value});
}

Shape laid_out(int64_t layout, int64_t b, int64_t h, int64_t t, int64_t d) {
  if (layout == 0) return {3, {b, t, h * d}};
  return layout == 1 ? Shape{4, {b, h, t, d}} : Shape{4, {b, h, d, t}};
}

void make_problem(Given& given, Run& run) {
  const int64_t b = source.integer(1, 2), key_heads = source.integer(1, 2), h = key_heads * source.integer(1, 3);
  const int64_t s = source.integer(1, source.one_in(2) ? 70 : 12),
                t = source.one_in(20) ? source.integer(505, 520) : source.integer(1, source.one_in(2) ? 200 : 20);
  const int64_t d = source.integer(1, source.one_in(4) ? 140 : 40), e = source.integer(1, source.one_in(4) ? 70 : 20);
  const char* const names[] = {"query_layout", "key_layout", "value_layout", "dst_layout"};
  for (const char* name : names) given.values[name] = source.integer(0, 2);
  given.values["num_heads"] = h;
  given.values["kv_num_heads"] = key_heads;
  given.values["keys_before"] = source.one_in(2) ? -1 : source.integer(0, 40);
  given.values["keys_after"] = source.one_in(2) ? -1 : source.integer(0, 40);
  given.values["ends_together"] = source.integer(0, 1);
  given.values["zero_rows"] = source.integer(0, 1);
  add(run, laid_out(given.values[names[0]], b, h, s, d));
  add(run, laid_out(given.values[names[1]], b, key_heads, t, d));
  add(run, laid_out(given.values[names[2]], b, key_heads, t, e));
  const auto some = [](int64_t length) { return source.one_in(2) ? int64_t{1} : length; };
  add(run, {4, {some(b), some(h), some(s), some(t)}});
  for (float& bias : run.inputs.back())
    if (source.one_in(5)) bias = source.one_in(2) ? -INFINITY : -3.4028234e38f;
  add_number(run, 0.2f);
  add_number(run, source.one_in(3) ? 5.0f : 0.0f);
  add_number(run, source.one_in(3) ? -1.0f : -INFINITY);
}

}  // namespace

int main(int count, char** arguments) {
#ifdef ORT_DYNQ_AMX_EMULATED
  tile_emulator::install();
#endif
  std::map<std::string, int> problems;
  for (int left = count > 1 ? std::atoi(arguments[1]) : 200; left > 0; --left) {
    Given given;
    Run run;
    make_problem(given, run);
    const std::unique_ptr<dynq::Node> node = dynq::quantized_attention().create(given);
    dynq::select_isa("portable");
    node->compute(run);
    const std::vector<float> expected = run.result;
    for (size_t i = 0; const char* name = dynq::supported_isa(i); ++i) {
      dynq::select_isa(name);
      node->compute(run);
      if (run.result.size() != expected.size() ||
          std::memcmp(run.result.data(), expected.data(), expected.size() * sizeof(float)) != 0)
        fail(std::string(name) + " differs, problem " + std::to_string(left));
      ++problems[name];
    }
  }
#ifdef ORT_DYNQ_AMX_EMULATED
  if (tile_stand_in::unit.products == 0) fail("no product was computed on tiles");
#endif
  for (const auto& [name, number_of] : problems) std::printf("%s attention %d\n", name.c_str(), number_of);
}
