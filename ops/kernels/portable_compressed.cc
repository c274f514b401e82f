// The portable kernels of attention over compressed keys and values, in plain C++: they define the correct results.
#include <math.h>

#include "kernels/attention.h"
#include "kernels/compressed.h"
#include "kernels/elementwise.h"
#include "kernels/numbers.h"
#include "kernels/programs.h"

namespace dynq {
namespace {

static_assert(kWords == kCodeKinds && kHalves == kWords + 1);

template <int kKind>
int32_t code_at(const void* codes, int64_t i) {
  if (kKind == kHalves) return static_cast<const uint8_t*>(codes)[i / 2] >> i % 2 * 4 & 15;
  if (kKind == kWords) return load(static_cast<const int16_t*>(codes) + i);
  const uint8_t code = static_cast<const uint8_t*>(codes)[i];
  return kKind == kU8 ? static_cast<int32_t>(code) : static_cast<int32_t>(static_cast<int8_t>(code));
}

float joined(int64_t high, int64_t low) { return static_cast<float>(high * kHighByte + low); }

int32_t panel_sum(const PanelScores& block, int64_t group, int64_t r, int64_t c) {
  const PanelProduct& p = block.product;
  constexpr int64_t kColumns = kMaxPanelColumns;
  const int16_t* const pairs = p.panels + group * block.group_panels + c / kColumns * p.panel_stride + c % kColumns * 2;
  const int16_t* const words = p.words + group * block.group_words + r * p.word_stride;
  uint32_t sum = 0;
  for (int64_t d = 0; d < p.depth; ++d)
    sum += static_cast<uint32_t>(load(words + d) * load(pairs + d / 2 * 2 * kColumns + d % 2));
  return static_cast<int32_t>(sum);
}

int32_t minus_high_byte(int32_t sum) { return static_cast<int32_t>(static_cast<uint32_t>(sum) - uint32_t{kHighByte}); }

float whole_sum(const PanelScores& block, int64_t group, int64_t r, int64_t c) {
  if (block.is_split) return joined(panel_sum(block, group, 2 * r, c), panel_sum(block, group, 2 * r + 1, c));
  const int32_t sum = panel_sum(block, group, r, c);
  if (block.bases != nullptr)
    return static_cast<float>(static_cast<int32_t>(static_cast<uint32_t>(sum) + static_cast<uint32_t>(block.bases[c])));
  return block.highs != nullptr ? joined(block.highs[c], minus_high_byte(sum)) : joined(0, sum);
}

void quantize_row(const WordRows& p, int64_t row) {
  const float* const x = p.x + row * p.stride;
  int16_t* const words = p.words + row * p.word_stride;
  const auto number = [&](int64_t i) { return p.factors == nullptr ? load(x + i) : load(x + i) * load(p.factors + i); };
  if (!p.has_steps) {
    float peak = 0;
    bool is_finite = true;
    for (int64_t i = 0; i < p.count; ++i) {
      const float magnitude = fabsf(number(i));
      is_finite = is_finite && magnitude < kInfinity;
      if (magnitude > peak) peak = magnitude;
    }
    const float quotient = peak / p.largest_word, step = quotient < kSmallestStep ? kSmallestStep : quotient;
    store(p.steps + row, is_finite ? step : kNan);
  }
  const float step = load(p.steps + row), inverse = 1.0f / step;
  for (int64_t i = 0; i < p.count; ++i)
    words[i] = step == step ? static_cast<int16_t>(round_half_even(number(i) * inverse)) : int16_t{0};
}

}  // namespace

template <int kKind, bool kByRow>
void portable_word_product(const WordProduct& p) {
  const int64_t of_depth = kByRow ? p.code_stride : 1, of_column = kByRow ? 1 : p.code_stride;
  for (int64_t group = 0; group < (kByRow ? 1 : p.groups); ++group)
    for (int64_t r = 0; r < p.rows; ++r)
      for (int64_t c = 0; c < p.cols; ++c) {
        const int16_t* const words = p.words + group * p.group_words + r * p.word_stride;
        int32_t sum = 0;
        for (int64_t d = 0; d < p.depth; ++d)
          sum += words[d] * (code_at<kKind>(p.codes, group * p.depth + d * of_depth + c * of_column) ^
                             (kKind == kHalves ? p.flipped & 15 : 0));
        p.sums[group * p.group_sums + r * p.sum_stride + c] = sum;
      }
}

void portable_quantize_words(const WordRows& rows) {
  for (int64_t r = 0; r < rows.rows; ++r) quantize_row(rows, r);
}

template <int kKind>
void portable_scores(const ScoreBlock& block) {
  for (int64_t i = 0; i < block.count; ++i) {
    const int64_t zero_point = block.zero_points == nullptr ? 0 : code_at<kKind>(block.zero_points, i);
    const float sum = block.low_sums == nullptr
                          ? joined(0, block.sums[i] - int64_t{block.offset} - zero_point * block.word_sum)
                          : joined(block.sums[i], block.low_sums[i]);
    const float score = sum * block.step * (block.scales == nullptr ? 1.0f : load(block.scales + i));
    store(block.scores + i, block.adds ? load(block.scores + i) + score : score);
  }
}

float portable_powers(const PowerRow& row) {
  float largest = -kInfinity;
  for (int64_t i = 0; i < row.count; ++i) {
    row.scores[i] *= row.factor;
    if (row.bias != nullptr) row.scores[i] += load(row.bias + (row.bias_is_vector ? i : 0));
    if (row.scores[i] > largest) largest = row.scores[i];  // NaN is ignored
  }
  int64_t sum = 0;
  bool is_defined = true;
  for (int64_t i = 0; i < row.count; ++i) {
    const float difference = (row.scores[i] - largest) * kLog2E;
    const float y = difference < kMinPower ? kMinPower : difference;
    const float n = round_half_even(y), r = y - n;
    float p = kPowerOf2[0];
    for (int j = 1; j < kPowerTerms; ++j) p = p * r + kPowerOf2[j];
    is_defined = is_defined && n == n;
    const float power = y > kMinPower ? p * ldexpf(1.0f, static_cast<int>(n)) : y == y ? 0.0f : kNan;
    row.scores[i] = power;
    if (power == power) sum += static_cast<int64_t>(round_half_even(power * kPowerUnit));
  }
  return is_defined ? 1.0f / (static_cast<float>(sum) * (1 / kPowerUnit)) : kNan;
}

template <int kKind>
void portable_pack(const PanelPack& pack) {
  constexpr int64_t kColumns = kMaxPanelColumns;
  for (int64_t first = 0; first < pack.cols; first += kColumns) {
    int16_t* const panel = pack.panels + first / kColumns * pack.panel_stride;
    for (int64_t d = 0; d < pack.depth + pack.depth % 2; ++d)
      for (int64_t i = 0; i < kColumns; ++i) {
        const int64_t c = first + i;
        int32_t difference = 0;
        if (d < pack.depth && c < pack.cols) {
          difference = code_at<kKind>(pack.codes, d * pack.code_stride + c);
          if (kKind != kWords && pack.zero_points != nullptr)
            difference -= code_at<kKind>(pack.zero_points, d * pack.of_row + c * pack.of_column);
        }
        panel[(d / 2 * kColumns + i) * 2 + d % 2] = static_cast<int16_t>(difference);
      }
  }
}

void portable_pack_weights(const WeightPack& pack) {
  constexpr int64_t kColumns = kMaxPanelColumns, kBlock = 16, kPlaces[] = {0, 2, 1, 3};
  const auto weight = [&](int64_t k, int64_t c) -> int32_t {
    const int64_t quad = k / 4 * pack.bits / 8;
    const int8_t byte = pack.packed[c / kBlock * pack.stride + (quad * kBlock + c % kBlock) * 4 + k % 4];
    return pack.bits == 8 ? byte : byte >> k / 4 % 2 * 4 & 15;
  };
  for (int64_t k = 0; k < pack.groups * pack.group_size; ++k)
    for (int64_t c = 0; c < pack.cols; ++c) {
      int32_t zp = pack.zps == nullptr ? pack.zp : pack.zps[k / pack.group_size * pack.zps_stride + c];
      if (pack.bits == 4) zp &= 15;
      const int64_t place = k / 4 * 4 + kPlaces[k % 4];
      pack.panel[(place / 2 * kColumns + c) * 2 + place % 2] = static_cast<int16_t>(weight(k, c) - zp);
    }
}

void portable_panel_scores(const PanelScores& block) {
  const int64_t of_score = block.is_split ? 2 : 1;
  for (int64_t group = 0; group < block.groups; ++group)
    for (int64_t r = 0; r < block.product.rows / of_score; ++r)
      for (int64_t c = 0; c < block.product.cols; ++c) {
        const float sum = whole_sum(block, group, r, c);
        const float scale = block.scales == nullptr ? 1.0f : load(block.scales + group * block.group_scales + c);
        const float step = block.steps[group * block.group_steps + r];
        const float score = block.scales_first ? sum * scale * step : sum * step * scale;
        float* const to = block.scores + r * block.score_stride + c;
        store(to, block.adds || group > 0 ? load(to) + score : score);
      }
}

constexpr CompressedKernels kPortableCompressed = {
    {portable_word_product<kU8, true>, portable_word_product<kS8, true>, portable_word_product<kWords, true>,
     portable_word_product<kHalves, true>},
    {portable_word_product<kU8, false>, portable_word_product<kS8, false>, portable_word_product<kWords, false>,
     portable_word_product<kHalves, false>},
    portable_quantize_words,
    {portable_scores<kU8>, portable_scores<kS8>},
    portable_powers,
    kMaxPanelColumns,
    2,
    1,
    {portable_pack<kU8>, portable_pack<kS8>, portable_pack<kWords>},
    portable_panel_scores,
    portable_pack_weights};

}  // namespace dynq
