#include "core/row_extremes.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include "core/scratch.h"

namespace dynq {
namespace {

constexpr int64_t kLanes = 4;  // of an SSE register

float better(bool is_max, float a, float b) { return (is_max ? a < b : b < a) ? b : a; }

// maxps and minps: `a`, the second source, if either is NaN.
float better_in_lane(bool is_max, float a, float b) { return b != b ? a : a != a ? a : better(is_max, a, b); }

}  // namespace

// Eigen's reduction (Redux.h, LinearVectorizedTraversal): its packets are SSE registers in ONNX Runtime. It begins at
// the first address that is a multiple of 16 bytes, as that of a tensor is. Two packets are reduced at a time. Then
// both become one, with a single packet behind them, and this one becomes a number. The elements before and behind the
// packets follow one by one. So a NaN in the first packets hides numbers of its lane, and others are ignored.
float extreme_of_row(bool is_max, const float* row, int64_t cols, int64_t first) {
  const int64_t begin = std::min(-first & (kLanes - 1), cols);
  const int64_t in_packets = (cols - begin) / kLanes * kLanes, in_pairs = in_packets / (2 * kLanes) * (2 * kLanes);
  float best = load(row);
  if (in_packets > 0) {
    float lanes[2 * kLanes];
    const auto reduce = [&](int64_t lane, float number) { lanes[lane] = better_in_lane(is_max, lanes[lane], number); };
    const auto element = [&](int64_t i) { return load(row + begin + i); };
    for (int64_t i = 0; i < std::min(in_packets, 2 * kLanes); ++i) lanes[i] = element(i);
    for (int64_t i = 2 * kLanes; i < in_pairs; ++i) reduce(i % (2 * kLanes), element(i));
    for (int64_t i = 0; i < kLanes && in_pairs > 0; ++i) reduce(i, lanes[kLanes + i]);
    for (int64_t i = std::max(in_pairs, kLanes); i < in_packets; ++i) reduce(i % kLanes, element(i));
    for (int64_t half = kLanes / 2; half > 0; half /= 2)
      for (int64_t i = 0; i < half; ++i) reduce(i, lanes[half + i]);
    best = lanes[0];
  }
  for (int64_t i = 0; i < begin; ++i) best = better(is_max, best, load(row + i));
  for (int64_t i = begin + in_packets; i < cols; ++i) best = better(is_max, best, load(row + i));
  return best;
}

// MlasReduceMinimumMaximumF32KernelAvx: eight lanes, in four vectors for multiples of 32 elements, then in one, and the
// last elements one by one. A NaN takes the place of the numbers of its lane, and the next number that of the NaN.
static float extreme_of_tensor(const float* x, int64_t count, bool is_max) {
  constexpr int64_t kWidth = 8, kVectors = 4;
  // minps and maxps: `b`, the second source, if either is NaN.
  const auto reduce = [&](float& a, float b) { a = (is_max ? a > b : a < b) ? a : b; };
  constexpr float kLargest = std::numeric_limits<float>::max();
  float best = is_max ? -kLargest : kLargest, lanes[kVectors * kWidth];
  std::fill(std::begin(lanes), std::end(lanes), best);
  const int64_t in_four = count / (kVectors * kWidth) * (kVectors * kWidth), in_vectors = count / kWidth * kWidth;
  for (int64_t i = 0; i < in_four; ++i) reduce(lanes[i % (kVectors * kWidth)], load(x + i));
  if (in_four > 0)
    for (const auto& [to, from] : {std::pair{0, 1}, std::pair{2, 3}, std::pair{0, 2}})
      for (int64_t i = 0; i < kWidth; ++i) reduce(lanes[to * kWidth + i], lanes[from * kWidth + i]);
  for (int64_t i = in_four; i < in_vectors; ++i) reduce(lanes[i % kWidth], load(x + i));
  for (int64_t half = kWidth / 2; half > 0 && in_vectors > 0; half /= 2)
    for (int64_t i = 0; i < half; ++i) reduce(lanes[i], lanes[half + i]);
  if (in_vectors > 0) best = lanes[0];
  for (int64_t i = in_vectors; i < count; ++i) best = better(is_max, best, load(x + i));
  return best;
}

void extremes_of_tensor(const float* x, int64_t count, float& low, float& high) {
  low = extreme_of_tensor(x, count, false);
  high = extreme_of_tensor(x, count, true);
}

// Calls visit(numbers, count) for the numbers that a step reduces, tile by tile, until it returns false.
template <class Visit>
void ReducedRow::visit(int64_t reduction, const Visit& visit) const {
  std::vector<Step> steps;
  for (int64_t col = 0; col < pass_.cols; col += kTileElements) {
    steps.clear();
    for (int64_t i = 0; i < reduction; ++i) {
      Step step = pass_.steps[i];
      const bool is_of_tile = step.kind == StepKind::kStore && step.a.element_bytes == 0;
      if (step.kind >= StepKind::kStore && !is_of_tile) continue;
      for (StepOperand* operand : {&step.a, &step.b})
        if (operand->at != nullptr) operand->at += row_ * operand->row_bytes + col * operand->element_bytes;
      steps.push_back(step);
    }
    steps.push_back({StepKind::kStore, {reinterpret_cast<const char*>(tile_), 0, sizeof(float), true}, {}});
    const int64_t cols = std::min(kTileElements, pass_.cols - col);
    table_.run_pass({steps.data(), static_cast<int64_t>(steps.size()), 1, cols, true});
    if (!visit(tile_, cols)) return;
  }
}

float ReducedRow::first_zero(int64_t reduction) const {
  float zero = 0;
  visit(reduction, [&](const float* numbers, int64_t count) {
    const float* found = std::find(numbers, numbers + count, 0.0f);
    if (found == numbers + count) return true;
    zero = *found;
    return false;
  });
  return zero;
}

float ReducedRow::extreme(int64_t reduction, int64_t tensor_row) const {
  Scratch<float, 1024> memory;
  float* const row = memory.allocate(pass_.cols);
  float* end = row;
  visit(reduction, [&](const float* numbers, int64_t count) {
    end = std::copy_n(numbers, count, end);
    return true;
  });
  return extreme_of_row(pass_.steps[reduction].kind == StepKind::kReduceMax, row, pass_.cols, tensor_row * pass_.cols);
}

}  // namespace dynq
