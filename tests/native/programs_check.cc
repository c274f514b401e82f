// Compares the kernel of programs of every instruction set that this machine can run with the portable kernel, bit for
// bit, and prints how many passes with each kind of step each of them ran.
//
//   programs_check PASSES     the number of random passes, after one pass for each kind of step and each row length
//
// Arrays end directly before a protected page or begin directly after one, at any address. Of several rows, the gaps
// between them must stay as they are. Data are mostly NaN, infinities, zeros, denormals, ties of rounding to integers
// and to float16, their neighbors and the ends of int32.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "check.h"
#include "kernels/dispatch.h"
#include "random.h"
#include "steps.h"

namespace {

using steps::describe;
using steps::Takes;

using dynq::Pass;
using dynq::Step;
using dynq::StepKind;
using dynq::StepOperand;

// Numbers

constexpr float kEnds[] = {2147483648.0f, -2147483648.0f, 2147483520.0f, -2147483904.0f, 8388607.5f,
                           8388609.0f,    -4194304.5f,    16777216.0f,   65504.0f,       65520.0f,
                           -65519.996f,   65536.0f,       5.9604645e-8f, 2.9802322e-8f,  1.1754944e-38f};

float neighbor(Random& random, float x) {
  return random.one_in(3) ? std::nextafterf(x, random.one_in(2) ? kInfinity : -kInfinity) : x;
}

// `theme`: which numbers are frequent in one array.
float make_number(Random& random, int64_t theme) {
  if (random.one_in(16)) theme = random.integer(0, 6);
  switch (theme) {
    case 0:
      return random.of(kSpecials);
    case 1:  // ties of rounding to integers, within and beyond the ranges of codes
      return neighbor(random, static_cast<float>(random.integer(-300, 300)) + 0.5f);
    case 2: {  // ties of rounding to float16, also to subnormal ones
      const auto bits = static_cast<uint32_t>(random.integer(0x33000000, 0x47800000)) & ~0x1fffu;
      float x;
      const uint32_t tie = bits | 0x1000u | (random.one_in(2) ? 0x80000000u : 0);
      std::memcpy(&x, &tie, sizeof x);
      return neighbor(random, x);
    }
    case 3:
      return neighbor(random, random.of(kEnds) * (random.one_in(2) ? 1.0f : -1.0f));
    case 4:
      return random.of({0.0f, -0.0f, 1.0f, -1.0f});
    case 5: {
      const auto bits = static_cast<uint32_t>(random.next());
      float x;
      std::memcpy(&x, &bits, sizeof x);
      return x;
    }
    default:
      return static_cast<float>(random.integer(-10000, 10000)) * 0.013f;
  }
}

// Passes

constexpr size_t kOutputs = 4;  // arrays that a pass writes, besides tiles
constexpr int64_t kMaxRows = 4;
constexpr uint8_t kUntouched = 0xa5;

// A pass with memory of its own for each operand.
class Problem {
 public:
  Problem(Random& random, int64_t rows, int64_t cols) : random_(random), pass_{nullptr, 0, rows, cols, true} {
    used_ = 0;
    at_end_ = !random.one_in(3);
    theme_ = random.integer(0, 6);
    pass_.begins_row = !random.one_in(4);
    add_step({StepKind::kLoad, vector(), {}});
  }

  void add(StepKind kind) {
    const Takes takes = describe(kind).takes;
    const bool only_moves = kind == StepKind::kLoad || kind == StepKind::kAbs || kind == StepKind::kNeg;
    if ((!only_moves && takes < Takes::kFloats) || kind == StepKind::kReduceSum) keeps_nan_ = false;
    switch (takes) {
      case Takes::kNothing:
        return add_step({kind, {}, {}});
      case Takes::kOne:
        return add_step({kind, operand(), {}});
      case Takes::kTwo:
        return kind == StepKind::kClip ? add_clip() : add_step({kind, operand(), operand()});
      case Takes::kFloats:
        return add_step({kind, output(takes, 4), {}});
      case Takes::kHalves:
        return add_step({kind, output(takes, 2), {}});
      case Takes::kCodes:
        return add_step({kind, output(takes, 1), {}});
      case Takes::kNumber:
        return add_step({kind, number_output(), {}});
    }
  }

  // Stores the accumulator for later steps of the same tile.
  void keep() {
    const std::vector<float> buffer(dynq::kTileElements, 12345.0f);
    const StepOperand tile = {reinterpret_cast<const char*>(arena().place(buffer, at_end_, offset())), 0, 0, true};
    add_step({StepKind::kStore, tile, {}});
    tiles_.push_back(tile);
  }

  bool takes_another_output() const { return outputs_.size() < kOutputs; }
  bool has_output() const { return !outputs_.empty(); }
  const std::vector<Step>& steps() const { return steps_; }

  // Runs the pass; returns what it wrote, with one form of NaN where which NaN it is depends on the order of operands.
  std::vector<std::vector<uint8_t>> run(dynq::PassKernel kernel) {
    for (const Output& output : outputs_) std::memset(output.at, kUntouched, output.size);
    pass_.steps = steps_.data();
    pass_.count = static_cast<int64_t>(steps_.size());
    kernel(pass_);
    std::vector<std::vector<uint8_t>> results;
    for (const Output& output : outputs_) {
      results.emplace_back(output.at, output.at + output.size);
      unify(output, results.back());
    }
    return results;
  }

  std::string text() const {
    std::string text = std::to_string(pass_.rows) + "x" + std::to_string(pass_.cols);
    for (const Step& step : steps_) text += std::string(" ") + describe(step.kind).name;
    return text;
  }

 private:
  struct Output {
    Takes kind;
    uint8_t* at;
    size_t size;
    bool keeps_nan;
  };

  Arena& arena() {
    static std::vector<Arena> arenas(40);
    if (used_ == arenas.size()) fail("a pass has too many operands");
    return arenas[used_++];
  }

  size_t offset() {
    constexpr size_t kOffsets[] = {0, 0, 4, 1, 2, 3, 20, 63};
    return random_.of(kOffsets);
  }

  std::vector<float> numbers(int64_t count) {
    const int64_t theme = random_.one_in(2) ? theme_ : random_.integer(0, 6);
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(make_number(random_, theme));
    return values;
  }

  // The last row ends with its last element.
  int64_t extent(int64_t stride) const { return (pass_.rows - 1) * stride + pass_.cols; }

  StepOperand vector() {
    const int64_t stride = random_.one_in(4) ? 0 : pass_.cols + random_.integer(0, 3);
    const float* at = arena().place(numbers(extent(stride)), at_end_, offset());
    return {reinterpret_cast<const char*>(at), stride * 4, 4, true};
  }

  StepOperand number() {
    const bool is_shared = random_.one_in(2);
    const float* at = arena().place(numbers(is_shared ? 1 : pass_.rows), at_end_, offset());
    return {reinterpret_cast<const char*>(at), is_shared ? 0 : 4, 0, false};
  }

  StepOperand operand() {
    if (!tiles_.empty() && random_.one_in(3)) return tiles_[random_.next() % tiles_.size()];
    return random_.one_in(2) ? vector() : number();
  }

  // The language has no NaN as a bound.
  void add_clip() {
    StepOperand bounds[2];
    for (StepOperand& bound : bounds) {
      std::vector<float> value = numbers(1);
      if (std::isnan(value[0])) value[0] = -0.0f;
      bound = {reinterpret_cast<const char*>(arena().place(value, at_end_, offset())), 0, 0, false};
    }
    add_step({StepKind::kClip, bounds[0], bounds[1]});
  }

  StepOperand output(Takes kind, int64_t size) {
    const int64_t stride = pass_.cols + random_.integer(0, 3);
    return output_of(kind, extent(stride) * size, stride * size, size);
  }

  StepOperand number_output() { return output_of(Takes::kNumber, pass_.rows * 4, 4, 4); }

  StepOperand output_of(Takes kind, int64_t bytes, int64_t row_bytes, int64_t element_bytes) {
    uint8_t* at = arena().place(std::vector<uint8_t>(static_cast<size_t>(bytes)), at_end_, offset());
    outputs_.push_back({kind, at, static_cast<size_t>(bytes), keeps_nan_});
    return {reinterpret_cast<const char*>(at), row_bytes, element_bytes, true};
  }

  void add_step(const Step& step) { steps_.push_back(step); }

  // A row's extreme may be a zero of either sign.
  static void unify(const Output& output, std::vector<uint8_t>& bytes) {
    const bool is_float = output.kind == Takes::kFloats || output.kind == Takes::kNumber;
    for (size_t i = 0; is_float && i < bytes.size(); i += 4) {
      float value;
      std::memcpy(&value, &bytes[i], sizeof value);
      if (std::isnan(value) && !output.keeps_nan) value = NAN;
      if (value == 0 && output.kind == Takes::kNumber) value = 0;
      std::memcpy(&bytes[i], &value, sizeof value);
    }
    for (size_t i = 0; output.kind == Takes::kHalves && !output.keeps_nan && i < bytes.size(); i += 2)
      if ((bytes[i + 1] & 0x7c) == 0x7c && ((bytes[i + 1] & 3) | bytes[i]) != 0) bytes[i + 1] &= 0x7f;
  }

  Random& random_;
  Pass pass_;
  size_t used_;
  bool at_end_;
  int64_t theme_;
  bool keeps_nan_ = true;  // no step so far chooses between two NaNs
  std::vector<Step> steps_;
  std::vector<StepOperand> tiles_;
  std::vector<Output> outputs_;
};

struct Counter {
  std::map<std::string, int> passes;
  std::map<std::string, dynq::PassKernel> kernels;  // of each instruction set

  Counter() {
    for (size_t i = 0; const char* name = dynq::supported_isa(i); ++i) {
      dynq::select_isa(name);
      kernels[name] = dynq::active_kernels().run_pass;
    }
  }

  void check(Problem& problem) {
    const auto expected = problem.run(dynq::run_portable_pass);
    for (const auto& [name, kernel] : kernels) {
      const auto actual = problem.run(kernel);
      for (size_t k = 0; k < expected.size(); ++k)
        for (size_t at = 0; at < expected[k].size(); ++at)
          if (actual[k][at] != expected[k][at])
            fail(name + ", " + problem.text() + ": output " + std::to_string(k) + " differs at byte " +
                 std::to_string(at) + " of " + std::to_string(expected[k].size()));
      for (const Step& step : problem.steps()) ++passes[name + " " + describe(step.kind).name];
    }
  }
};

void add_random_steps(Random& random, Problem& problem, const std::vector<StepKind>& kinds, int64_t count) {
  int64_t reductions = 0;
  while (count-- > 0) {
    const StepKind kind = kinds[random.next() % kinds.size()];
    const Takes takes = describe(kind).takes;
    if (takes == Takes::kNumber && ++reductions > dynq::kMaxReductions) continue;
    if (takes < Takes::kFloats || problem.takes_another_output()) problem.add(kind);
    if (random.one_in(6)) problem.keep();
  }
}

}  // namespace

int main(int count, char** arguments) {
  Random random{1};
  Counter counter;
  const std::vector<StepKind> kinds = steps::all_kinds();
  for (const StepKind kind : kinds)
    for (int64_t cols = 1; cols <= 200; ++cols) {
      Problem problem(random, random.integer(1, kMaxRows), cols);
      problem.add(kind);
      if (!problem.has_output()) problem.add(StepKind::kStore);
      counter.check(problem);
    }
  for (int left = count > 1 ? std::atoi(arguments[1]) : 1000; left > 0; --left) {
    Problem problem(random, random.integer(1, kMaxRows), random.integer(1, random.one_in(8) ? 1000 : 200));
    add_random_steps(random, problem, kinds, random.integer(1, 12));
    if (!problem.has_output()) problem.add(StepKind::kStore);
    counter.check(problem);
  }
  for (const auto& [name, passes] : counter.passes) std::printf("%s %d\n", name.c_str(), passes);
}
