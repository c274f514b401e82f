#include "core/strassen.h"

#include <algorithm>
#include <string>
#include <thread>

#include "core/algorithm_use.h"
#include "core/rounding.h"
#include "kernels/dispatch.h"

namespace dynq {
namespace {

// When Strassen's algorithm takes less time than the direct form, as `tests/bench products` measures both. An
// instruction set that is not here always takes the direct form: the algorithm multiplies int16, and VNNI, dotprod,
// I8MM and AMX multiply bytes 2 to 16 times as fast, for a saving of an eighth. AVX-512 without VNNI is not measured.
struct Rule {
  const char* isa;
  int64_t rows, depth, columns;  // the fewest
  double padding;                // the most k with padding for each k
};
constexpr Rule kRules[] = {
    {"avx2", 48, 256, 256, 1.05},
};

// Likewise for convolutions. Operands of weights are formed for each tile of positions; tiles of more k than
// `most_depth` would have too few.
struct ConvRule {
  const char* isa;
  int64_t channels, depth, positions;  // the fewest
  int64_t most_depth;
  double padding;
};
constexpr ConvRule kConvRules[] = {
    {"avx2", 96, 192, 128, 2048, 1.1},
};

// Parts of fewer rows do not pay for the operands of weights.
constexpr int64_t kMinRows = 32;

bool has_little_padding(int64_t depth, double most) {
  const int64_t padded = 2 * strassen_pieces(depth) * strassen_half_depth(depth);
  return static_cast<double>(padded) <= most * static_cast<double>(depth);
}

}  // namespace

bool takes_strassen(const StrassenShape& shape) {
  if (active_isa().products->strassen == nullptr || shape.columns < kStrassenColumns || shape.depth == 0) return false;
  const AlgorithmUse use = strassen_use;
  if (use != AlgorithmUse::kByRule) return use == AlgorithmUse::kAlways;
  const std::string isa = active_isa().name;
  for (const Rule& rule : kRules)
    if (rule.isa == isa)
      return shape.rows >= rule.rows && shape.depth >= rule.depth && shape.columns >= rule.columns &&
             has_little_padding(shape.depth, rule.padding);
  return false;
}

bool takes_strassen_conv(const StrassenConvShape& shape) {
  if (active_isa().products->strassen == nullptr || shape.positions < kStrassenColumns || shape.depth == 0)
    return false;
  const AlgorithmUse use = strassen_use;
  if (use != AlgorithmUse::kByRule) return use == AlgorithmUse::kAlways;
  const std::string isa = active_isa().name;
  for (const ConvRule& rule : kConvRules)
    if (rule.isa == isa)
      return shape.channels >= rule.channels && shape.depth >= rule.depth && shape.depth <= rule.most_depth &&
             shape.positions >= rule.positions && has_little_padding(shape.depth, rule.padding);
  return false;
}

int64_t choose_strassen_channels(int64_t channels) {
  return round_up(divide_up(channels, divide_up(channels, kStrassenRows)), kBlockColumns);
}

int64_t choose_strassen_rows(const StrassenShape& shape, int64_t tasks) {
  static const int64_t threads = std::max(int64_t{1}, static_cast<int64_t>(std::thread::hardware_concurrency()));
  const int64_t strips = divide_up(shape.columns, kStrassenColumns), wanted = std::min(tasks, 2 * threads);
  const int64_t fewest = divide_up(shape.rows, kStrassenRows), most = std::max(fewest, shape.rows / kMinRows);
  const int64_t parts = std::clamp(divide_up(wanted, strips), fewest, most);
  return round_up(divide_up(shape.rows, parts), 2);
}

}  // namespace dynq
