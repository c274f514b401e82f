// The scores of a unit of attention over codes: the products of words of the query with the codes of keys, and the keys
// that a unit sees.
#include <algorithm>
#include <cmath>

#include "core/compressed_unit.h"
#include "kernels/dispatch.h"
#include "kernels/numbers.h"

namespace dynq {
namespace {

constexpr int64_t kGroupsOfVector = 4;  // of a key, at most: see compressed-bytes-inl.h
constexpr int64_t kCopiedKeys = 512;
constexpr double kFarFromOverflow = 1e37;

void add_weighted(const int32_t* sums, int64_t count, int weight, double* totals) {
  for (int64_t i = 0; i < count; ++i) totals[i] += static_cast<double>(sums[i]) * weight;
}

int64_t long_sum_of(const int16_t* words, int64_t count) {
  int64_t sum = 0;
  for (int64_t i = 0; i < count; i += kMaxProducts) sum += sum_of_words(words + i, std::min(kMaxProducts, count - i));
  return sum;
}

// How many of `count` biases from bias[from] on, in a direction, are -infinity before the first other one.
int64_t hidden(const float* bias, int64_t from, int64_t count, int64_t direction) {
  constexpr int64_t kBlock = 16;
  int64_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    const float* const block = bias + (direction > 0 ? from + i : from - i - kBlock + 1);
    int others = 0;
    for (int64_t j = 0; j < kBlock; ++j) others |= load(block + j) == -kInfinity ? 0 : 1;
    if (others != 0) break;
  }
  while (i < count && load(bias + from + direction * i) == -kInfinity) ++i;
  return i;
}

}  // namespace

int32_t sum_of_words(const int16_t* words, int64_t count) {
  int32_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += words[i];
  return sum;
}

CompressedUnit::CompressedUnit(const CompressedRun& run, const CompressedHead& key, const CompressedHead& value,
                               int64_t row, int64_t rows, CompressedWorkspace& workspace)
    : run_(run),
      n_(run.n),
      head_(key.head),
      row_(row),
      rows_(rows),
      key_(key),
      value_(value),
      blocks_(workspace.blocks),
      padded_(workspace.padded),
      queries_(workspace.queries),
      scores_(workspace.scores.get()),
      inverses_(workspace.inverses),
      words_(workspace.words.get()),
      word_steps_(workspace.word_steps),
      offsets_(workspace.offsets) {
  if (!run.key.is_per_channel()) quantize(nullptr, nullptr, queries_);
  seen_ = seen();
}

// The products of the queries with keys [first, first + count). Threads may score other keys at the same time.
void CompressedUnit::score(int64_t first, int64_t count) {
  const KeyRange range = seen_.part({first, first + count});
  if (range.count() <= 0) return;
  const CompressedOperand& key = run_.key;
  if (!key.is_per_channel()) {
    score_range(queries_, range, 0, 0);
    if (key_.offsets != nullptr) add_offsets_of_groups(range);
    return;
  }
  WordsOfQueries queries(key, rows_);  // words of one token group after the other
  const int64_t size = key.token_group_size();
  for (int64_t token_group = range.first / size; token_group * size < range.end; ++token_group) {
    const KeyRange part = range.part({token_group * size, (token_group + 1) * size});
    quantize(key_.scales + token_group * n_.d,
             key_.zero_points == nullptr ? nullptr : key_.zero_points + token_group * n_.d, queries);
    score_range(queries, part, token_group, token_group * size);
    if (key_.offsets != nullptr) add_offsets_of_channels(key_.offsets + token_group * n_.d, part, queries);
  }
}

const float* CompressedUnit::bias_of(int64_t r) const {
  const int64_t number = row_ + r, h = head_ % n_.k * (n_.h / n_.k) + number / n_.s;
  const AttentionBias& bias = run_.bias;
  return bias.data + head_ / n_.k * bias.strides[0] + h * bias.strides[1] + number % n_.s * bias.strides[2];
}

// The words of the rows, times scales of channels if there are some.
void CompressedUnit::quantize(const float* scales, const uint8_t* zero_points, WordsOfQueries& to) const {
  const int64_t groups = run_.key.groups(), size = run_.key.group_size();
  const int64_t word_stride = run_.key.word_rows() * to.stride;
  for (int64_t group = 0; group < groups; ++group) {
    int16_t* const words_of_group = to.words.get() + group * rows_ * word_stride;
    active_compressed().quantize_words({query(0) + group * size, n_.d, scales, rows_, size, words_of_group, word_stride,
                                        to.steps.data() + group * rows_});
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t at = group * rows_ + r;
      int16_t* const words = words_of_group + r * word_stride;
      std::fill(words + size, words + to.stride, int16_t{0});
      describe_words(at, words, zero_points, to);
      if (run_.key.is_float()) split_words(words, to.stride, words + to.stride);
    }
  }
}

// Sets the sums of a row of words, and what sums of products have too much.
void CompressedUnit::describe_words(int64_t at, int16_t* words, const uint8_t* zero_points, WordsOfQueries& to) const {
  const int64_t size = run_.key.group_size();
  const bool is_signed = run_.key.is_signed();
  int64_t sum = 0, offset = 0;
  if (!key_.is_packed() || key_.offsets != nullptr) sum = long_sum_of(words, size);
  if (uses_halves_of_key()) offset = sum * (is_signed ? kSignOfHalves : 0);
  if (zero_points != nullptr && run_.key.has_one_zero_point())
    offset += sum * number_of_code(zero_points[0], is_signed);
  for (int64_t i = 0; i < size && zero_points != nullptr && !run_.key.has_one_zero_point(); ++i)
    offset += int64_t{words[i]} * number_of_code(zero_points[i], is_signed);
  to.sums[static_cast<size_t>(at)] = sum;
  to.offsets[static_cast<size_t>(at)] = offset;
}

// `part_first`: the first key of the token group.
void CompressedUnit::score_range(const WordsOfQueries& queries, KeyRange range, int64_t token_group,
                                 int64_t part_first) {
  if (key_.is_packed())
    score_packed(queries, range, token_group, part_first);
  else
    score_stored(queries, range);
}

void CompressedUnit::score_packed(const WordsOfQueries& queries, KeyRange range, int64_t token_group,
                                  int64_t part_first) {
  const CompressedOperand& key = run_.key;
  const int64_t columns = active_compressed().panel_columns, groups = key.groups();
  const int64_t panel = (range.first - part_first) / columns, first = part_first + panel * columns;
  PanelScores block = {};
  block.product.words = queries.words.get();
  block.product.word_stride = queries.stride;
  block.product.rows = rows_ * key.word_rows();
  block.product.depth = key.group_size();
  block.product.cols = range.end - first;
  block.product.panels = key_.panels(token_group * groups) + panel * key_.panel_stride();
  block.product.panel_stride = key_.panel_stride();
  block.product.fits_int8 = key.fits_int8();
  block.groups = groups;
  block.group_words = block.product.rows * queries.stride;
  block.group_panels = key_.part_stride();
  block.group_steps = rows_;
  block.group_scales = n_.t;
  block.is_split = key.is_float();
  block.steps = queries.steps.data();
  block.scales = scales_of(0, first);
  block.scores = scores_ + first;
  block.score_stride = n_.t;
  active_compressed().panel_scores(block);
}

// What the products of stored keys share. KeyRange in rows of tokens are multiplied by column, others by row.
struct CompressedUnit::StoredKeys {
  bool is_by_row, fits, is_copied, is_half;
  int64_t block, group_rows, most_at_once;
  const void* rows;  // of the tokens, if they are multiplied by column
  std::unique_ptr<int32_t[]> sums;
  std::vector<double> totals;
  std::unique_ptr<uint8_t[]> holder;

  // The codes from element `from` of a token on, for products by column.
  const void* codes_from(int64_t from, bool is_float) const {
    if (is_float) return static_cast<const int16_t*>(rows) + from;
    return static_cast<const uint8_t*>(rows) + (is_half ? from / 2 : from);
  }
};

void CompressedUnit::score_stored(const WordsOfQueries& queries, KeyRange range) {
  const CompressedOperand& key = run_.key;
  const int64_t size = key.group_size();
  StoredKeys keys = {};
  keys.is_by_row = key.is_transposed() && !key.is_float();
  keys.fits = size <= kMaxProducts;
  keys.is_half = uses_halves_of_key();
  // To the first-level cache.
  keys.is_copied = keys.is_by_row && key.has_4_bits() && !begins_at_bytes(range.first);
  keys.block = std::min(range.count(), !keys.is_by_row ? kMaxProducts : keys.is_copied ? kCopiedKeys : kKeysOfPart);
  keys.group_rows = rows_ * key.word_rows();
  // Groups at once: as many as have sums in the second-level cache.
  const int64_t most_vectors = std::max<int64_t>(1, kUnitScores / (kGroupsOfVector * keys.group_rows * keys.block));
  keys.most_at_once = keys.is_by_row || !keys.fits ? 1 : std::min(key.groups(), kGroupsOfVector * most_vectors);
  keys.sums = memory<int32_t>(keys.most_at_once * keys.group_rows * keys.block);
  keys.totals.resize(static_cast<size_t>(keys.fits ? 0 : rows_ * keys.block));
  keys.holder = memory<uint8_t>(keys.is_copied ? std::min(size, kMaxProducts) * round_up(keys.block, 2) / 2
                                : !key.has_4_bits() || keys.is_half ? 0
                                                                    : key.size() * keys.block);
  for (int64_t t = range.first; t < range.end; t += keys.block) {
    const int64_t cols = std::min(keys.block, range.end - t);
    keys.rows = keys.is_by_row ? nullptr
                : keys.is_half ? key_.halves(t * key.size())
                               : key_.codes(t * key.size(), cols * key.size(), keys.holder.get());
    for (int64_t group = 0; group < key.groups(); group += keys.most_at_once)
      score_groups(queries, keys, t, cols, group);
  }
}

// KeyRange [t, t + cols), and up to keys.most_at_once groups from `group` on.
void CompressedUnit::score_groups(const WordsOfQueries& queries, StoredKeys& keys, int64_t t, int64_t cols,
                                  int64_t group) {
  const CompressedOperand& key = run_.key;
  const int64_t size = key.group_size(), word_rows = key.word_rows();
  const int64_t at_once = std::min(keys.most_at_once, key.groups() - group);
  std::fill(keys.totals.begin(), keys.totals.end(), 0.0);
  for (int64_t d = 0; d < size; d += kMaxProducts) {
    const int64_t from = group * size + d;
    WordProduct product = {};
    product.groups = at_once;
    product.group_words = keys.group_rows * queries.stride;
    product.group_sums = keys.group_rows * cols;
    product.words = queries.words.get() + group * product.group_words + d;
    product.word_stride = queries.stride;
    product.rows = keys.group_rows;
    product.depth = std::min(kMaxProducts, size - d);
    product.cols = cols;
    product.sums = keys.sums.get();
    product.sum_stride = cols;
    if (keys.is_by_row) {
      set_rows(product, from, t, keys.is_copied ? keys.holder.get() : nullptr);
    } else {
      product.codes = keys.codes_from(from, key.is_float());
      product.code_stride = key.size();
    }
    product.flipped = key.flipped();
    (keys.is_by_row ? active_compressed().by_row
                    : active_compressed().by_column)[keys.is_half ? kHalves : key.kind()](product);
    for (int64_t r = 0; r < product.rows && !keys.fits; ++r)
      add_weighted(keys.sums.get() + r * cols, cols, word_rows == 2 && r % 2 == 0 ? kHighByte : 1,
                   keys.totals.data() + r / word_rows * cols);
  }
  for (int64_t i = 0; i < at_once * rows_; ++i)
    if (keys.fits)
      scale_sums(keys.sums.get() + i * word_rows * cols, queries, group + i / rows_, i % rows_, t, cols);
    else
      scale_totals(keys.totals.data() + i * cols, queries, group, i, t, cols);
}

// Adds the products of a sum with offsets to totals, or begins these. No sum times zero is NaN.
static void add_products(const float* offsets, int64_t count, float sum, bool begins, float* totals) {
  const auto add = [&](const auto& times) {
    for (int64_t i = 0; i < count; ++i) {
      const float product = times(load(offsets + i));
      totals[i] = begins ? product : totals[i] + product;
    }
  };
  if (std::isfinite(sum))
    add([&](float offset) { return sum * offset; });
  else
    add([&](float offset) { return offset == 0 ? 0.0f : sum * offset; });
}

// Adds the products of the queries with the offsets of keys, which are those of the sums of their words.
void CompressedUnit::add_offsets_of_groups(KeyRange range) {
  constexpr int64_t kBlock = 256;
  float totals[kBlock];
  for (int64_t r = 0; r < rows_; ++r)
    for (int64_t t = range.first; t < range.end; t += kBlock) {
      const int64_t count = std::min(kBlock, range.end - t);
      for (int64_t group = 0; group < run_.key.groups(); ++group) {
        const auto at = static_cast<size_t>(group * rows_ + r);
        const float sum = static_cast<float>(queries_.sums[at]) * queries_.steps[at];
        add_products(key_.offsets + group * n_.t + t, count, sum, group == 0, totals);
      }
      float* const scores = scores_ + r * n_.t + t;
      for (int64_t i = 0; i < count; ++i) scores[i] += totals[i];
    }
}

// The same of offsets of channels, which are factors of the query as the scales are. `queries` has memory for words.
void CompressedUnit::add_offsets_of_channels(const float* offsets, KeyRange range, WordsOfQueries& queries) {
  active_compressed().quantize_words(
      {query(0), n_.d, offsets, rows_, n_.d, queries.words.get(), queries.stride, queries.steps.data()});
  for (int64_t r = 0; r < rows_; ++r) {
    const float sum = static_cast<float>(long_sum_of(queries.words.get() + r * queries.stride, n_.d));
    const float product = sum * queries.steps[static_cast<size_t>(r)];
    float* const scores = scores_ + r * n_.t;
    for (int64_t t = range.first; t < range.end; ++t) scores[t] += product;
  }
}

// The keys between the first and the last that a row sees. The others have a bias of -infinity in every row; they
// change nothing if all scores, and all scales and offsets of values, are finite.
KeyRange CompressedUnit::seen() const {
  const KeyRange all = {0, n_.t};
  if (run_.bias.strides[3] == 0 || !(value_.largest_scale() < kInfinity)) return all;
  const double largest = largest_magnitude(query(0), rows_ * n_.d);
  const double products = static_cast<double>(n_.d) * static_cast<double>(run_.key.largest_code());
  const double factor = std::max(1.0f, std::fabs(run_.factor));
  if (!(largest * products * key_.largest_scale() * factor < kFarFromOverflow)) return all;
  int64_t first = n_.t, end = 0;
  const float* last = nullptr;
  for (int64_t r = rows_ - 1; r >= 0; --r) {  // the last row of a causal mask sees most
    const float* const bias = bias_of(r);
    if (bias == last) continue;
    last = bias;
    first = std::min(first, hidden(bias, 0, first, 1));
    end = std::max(end, n_.t - hidden(bias, n_.t - 1, n_.t - end, -1));
  }
  if (first >= end) return all;
  return {run_.value.is_per_channel() ? blocks_.start(first) : first / kWordUnit * kWordUnit, end};
}

// Whether rows of transposed keys of 4 bits begin at bytes, from row 0 on each second one at least, if blocks of
// rows have an even number of them.
bool CompressedUnit::begins_at_bytes(int64_t t) const {
  return key_.is_at_byte(t) && (n_.t % 2 == 0 || run_.key.group_size() % 2 == 0 || run_.key.groups() == 1);
}

// Rows [from, from + depth) and columns [t, t + cols) of transposed keys; of 4 bits that do not begin at bytes, a
// copy in `holder`.
void CompressedUnit::set_rows(WordProduct& product, int64_t from, int64_t t, uint8_t* holder) const {
  const int64_t depth = product.depth, cols = product.cols, first = from * n_.t + t;
  product.code_stride = n_.t;
  if (!run_.key.has_4_bits()) {
    product.codes = key_.codes(first, 0, nullptr);
  } else if (holder == nullptr) {
    product.codes = key_.halves(first);
  } else {
    product.codes = holder;
    product.code_stride = round_up(cols, 2);
    for (int64_t d = 0; d < depth; ++d) key_.copy_halves(first + d * n_.t, cols, holder + d * product.code_stride / 2);
  }
}

// Codes of 4 bits are multiplied as they are stored if they begin at bytes.
bool CompressedUnit::uses_halves_of_key() const {
  const CompressedOperand& key = run_.key;
  return key.has_4_bits() && !key_.is_packed() &&
         (key.is_transposed() || (key.size() % 2 == 0 && key.group_size() % 2 == 0));
}

// Null if they are factors of the query.
const float* CompressedUnit::scales_of(int64_t group, int64_t t) const {
  return run_.key.is_per_channel() ? nullptr : key_.scales + group * n_.t + t;
}

// Null if the offsets have them already, or there are none.
const uint8_t* CompressedUnit::zero_points_of(int64_t group, int64_t t) const {
  return run_.key.is_per_channel() || key_.zero_points == nullptr ? nullptr : key_.zero_points + group * n_.t + t;
}

void CompressedUnit::scale_sums(const int32_t* sums, const WordsOfQueries& queries, int64_t group, int64_t r, int64_t t,
                                int64_t cols) {
  const auto at = static_cast<size_t>(group * rows_ + r);
  active_compressed().scores[run_.key.is_signed() ? kS8 : kU8](
      {sums, run_.key.is_float() ? sums + cols : nullptr, static_cast<int32_t>(queries.offsets[at]),
       zero_points_of(group, t), static_cast<int32_t>(queries.sums[at]), queries.steps[at], scales_of(group, t), cols,
       group > 0, scores_ + r * n_.t + t});
}

// The same of sums beyond int32.
void CompressedUnit::scale_totals(const double* totals, const WordsOfQueries& queries, int64_t group, int64_t r,
                                  int64_t t, int64_t cols) {
  const auto at = static_cast<size_t>(group * rows_ + r);
  const bool is_signed = run_.key.is_signed();
  const uint8_t* zero_points = zero_points_of(group, t);
  const float* scales = scales_of(group, t);
  for (int64_t i = 0; i < cols; ++i) {
    const uint8_t byte = zero_points == nullptr ? uint8_t{0} : zero_points[i];
    const int64_t zero_point = is_signed ? static_cast<int8_t>(byte) : byte;
    const double exact = totals[i] - static_cast<double>(queries.offsets[at] + zero_point * queries.sums[at]);
    const float score = static_cast<float>(exact) * queries.steps[at] * (scales == nullptr ? 1.0f : load(scales + i));
    float& to = scores_[r * n_.t + t + i];
    to = group > 0 ? to + score : score;
  }
}

}  // namespace dynq
