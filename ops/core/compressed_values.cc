// The values of a unit of attention over codes: powers of the scores, their words, and the products of these with the
// codes of values.
#include <algorithm>

#include "core/compressed_unit.h"
#include "kernels/dispatch.h"
#include "kernels/numbers.h"

namespace dynq {
namespace {

constexpr int64_t kSoftenedRows = 16;  // at once: a multiple of the rows that kernels quantize at once

}  // namespace

// Scores become powers, and words of powers times the scales of values.
void CompressedUnit::soften() {
  for (int64_t row = 0; row < rows_; row += kSoftenedRows) soften(row, std::min(kSoftenedRows, rows_ - row));
  if (value_.offsets != nullptr) sum_offsets();
}

// Rows [row, row + rows): their scores stay in the first-level cache.
void CompressedUnit::soften(int64_t row, int64_t rows) {
  const int64_t groups = run_.value.groups(), word_rows = run_.value.word_rows();
  const int64_t count = seen_.count(), first = seen_.first;
  float* const scores = scores_ + row * n_.t;
  for (int64_t r = 0; r < rows; ++r) {
    const bool is_vector = run_.bias.strides[3] != 0;
    const float* biases = bias_of(row + r) + (is_vector ? first : 0);
    inverses_[static_cast<size_t>(row + r)] =
        active_compressed().powers({scores + r * n_.t + first, count, run_.factor, biases, is_vector});
  }
  for (int64_t group = 0; group < groups; ++group) {
    int16_t* const words = words_ + (group * rows_ + row) * word_rows * padded_;
    for (int64_t t = first; t < seen_.end; t = end_of_block(t)) {
      const int64_t keys = end_of_block(t) - t, padding = round_up(keys, kWordUnit) - keys;
      int16_t* const of_block = words + blocks_.word(t);
      const float* const scales = run_.value.is_per_channel() ? nullptr : value_.scales + group * n_.t + t;
      active_compressed().quantize_words(
          {scores + t, n_.t, scales, rows, keys, of_block, word_rows * padded_, steps_of(group, t) + row});
      for (int64_t r = 0; r < rows; ++r) {
        int16_t* const of_row = of_block + r * word_rows * padded_;
        std::fill(of_row + keys, of_row + keys + padding, int16_t{0});
        if (word_rows == 2) split_words(of_row, keys + padding, of_row + padded_);
      }
    }
  }
}

// The sums of the powers times the offsets of values.
void CompressedUnit::sum_offsets() {
  std::fill(offsets_.begin(), offsets_.end(), 0.0f);
  if (run_.value.is_per_channel()) {
    for (int64_t t = seen_.first; t < seen_.end; t = end_of_block(t))
      for (int64_t r = 0; r < rows_; ++r) {
        const auto sum = static_cast<float>(sum_of_words(words_ + r * padded_ + blocks_.word(t), end_of_block(t) - t));
        const float product = sum * steps_of(0, t)[r];
        const float* const offsets = value_.offsets + t / blocks_.part * n_.e;
        float* const totals = offsets_.data() + r * n_.e;
        for (int64_t i = 0; i < n_.e; ++i) totals[i] += product * load(offsets + i);
      }
    return;
  }
  const int64_t groups = run_.value.groups();
  const auto words = memory<int16_t>(rows_ * kMaxProducts);
  std::vector<float> steps(static_cast<size_t>(rows_));
  for (int64_t group = 0; group < groups; ++group)
    for (int64_t t = seen_.first; t < seen_.end; t = end_of_block(t)) {
      const int64_t keys = end_of_block(t) - t;
      active_compressed().quantize_words(
          {scores_ + t, n_.t, value_.offsets + group * n_.t + t, rows_, keys, words.get(), kMaxProducts, steps.data()});
      for (int64_t r = 0; r < rows_; ++r)
        offsets_[static_cast<size_t>(r * groups + group)] +=
            static_cast<float>(sum_of_words(words.get() + r * kMaxProducts, keys)) * steps[static_cast<size_t>(r)];
    }
}

// Adds the products of the words with values [first, first + count) to totals [rows, E], one block after the other.
void CompressedUnit::add_values(int64_t first, int64_t count, float* totals) const {
  const KeyRange range = seen_.part({first, first + count});
  if (range.count() <= 0) return;
  if (value_.is_packed())
    add_packed_values(range, totals);
  else
    add_stored_values(range, totals);
}

// Null if they are factors of the weights.
const float* CompressedUnit::scales_of_result(int64_t t) const {
  return run_.value.is_per_channel() ? value_.scales + t / blocks_.part * n_.e : nullptr;
}

void CompressedUnit::add_packed_values(KeyRange range, float* totals) const {
  const CompressedOperand& value = run_.value;
  const int64_t size = value.group_size(), columns = active_compressed().panel_columns;
  for (int64_t t = range.first; t < range.end; t = end_of_block(t))
    for (int64_t group = 0; group < value.groups(); ++group) {
      PanelScores block = {};
      block.product.words = words_ + group * rows_ * value.word_rows() * padded_ + blocks_.word(t);
      block.product.word_stride = padded_;
      block.product.rows = rows_ * value.word_rows();
      block.product.depth = end_of_block(t) - t;
      block.product.cols = size;
      block.product.panels = value_.panels(group) + t * columns;
      block.product.panel_stride = value_.panel_stride();
      block.product.fits_int8 = value.fits_int8();
      block.groups = 1;
      block.is_split = value.is_float();
      block.steps = steps_of(group, t);
      block.scales = scales_of_result(t);
      block.adds = true;
      block.scores = totals + group * size;
      block.score_stride = n_.e;
      active_compressed().panel_scores(block);
    }
}

// What the products of stored values share.
struct CompressedUnit::StoredValues {
  bool is_half;
  bool has_one_point;  // one zero point serves all values
  const void* codes;   // of the tokens of a block
  std::unique_ptr<int32_t[]> sums, zero_sums;
};

void CompressedUnit::add_stored_values(KeyRange range, float* totals) const {
  const CompressedOperand& value = run_.value;
  const int64_t size = value.group_size();
  StoredValues values = {};
  values.is_half = value.has_4_bits() && n_.e % 2 == 0 && size % 2 == 0;
  values.has_one_point = value_.zero_points != nullptr && value.has_one_zero_point() && !value.is_per_channel();
  values.sums = memory<int32_t>(rows_ * value.word_rows() * size);
  values.zero_sums = memory<int32_t>(rows_);
  const auto holder =
      memory<uint8_t>(value.has_4_bits() && !values.is_half ? std::min(kMaxProducts, range.count()) * n_.e : 0);
  std::fill(values.zero_sums.get(), values.zero_sums.get() + rows_, 0);
  for (int64_t t = range.first; t < range.end; t = end_of_block(t)) {
    const int64_t depth = end_of_block(t) - t;
    values.codes = values.is_half ? value_.halves(t * n_.e) : value_.codes(t * n_.e, depth * n_.e, holder.get());
    for (int64_t group = 0; group < value.groups(); ++group) add_stored_group(values, t, group, totals);
  }
}

// The block of keys that begins at t.
void CompressedUnit::add_stored_group(const StoredValues& values, int64_t t, int64_t group, float* totals) const {
  const CompressedOperand& value = run_.value;
  const int64_t size = value.group_size(), word_rows = value.word_rows();
  WordProduct product = {};
  product.words = words_ + group * rows_ * word_rows * padded_ + blocks_.word(t);
  product.word_stride = padded_;
  product.rows = rows_ * word_rows;
  product.depth = end_of_block(t) - t;
  if (value_.zero_points != nullptr && !value.is_per_channel() && !values.has_one_point) {
    product.cols = product.groups = 1;
    product.codes = value_.zero_points + group * n_.t + t;
    product.sums = values.zero_sums.get();
    product.sum_stride = 1;
    active_compressed().by_column[value.kind()](product);
  }
  const int64_t element = values.is_half ? group * size / 2 : group * size;
  product.cols = size;
  product.codes = value.is_float() ? values.codes : static_cast<const uint8_t*>(values.codes) + element;
  product.flipped = value.flipped();
  product.code_stride = n_.e;
  product.sums = values.sums.get();
  product.sum_stride = size;
  active_compressed().by_row[values.is_half ? kHalves : value.kind()](product);
  for (int64_t r = 0; r < rows_; ++r) add_row(values, product, r, t, group, totals);
}

// Scales the sums of a row of the product, and adds them to the totals.
void CompressedUnit::add_row(const StoredValues& values, const WordProduct& product, int64_t r, int64_t t,
                             int64_t group, float* totals) const {
  const CompressedOperand& value = run_.value;
  const int64_t size = product.cols;
  const int32_t* const of_row = values.sums.get() + r * value.word_rows() * size;
  const bool has_points = value_.zero_points != nullptr && value.is_per_channel();
  const bool has_signs = values.is_half && value.is_signed();
  const bool uses_sum = has_points || has_signs || values.has_one_point;
  const int32_t word_sum = uses_sum ? sum_of_words(product.words + r * padded_, product.depth) : 0;
  int32_t offset = values.zero_sums[static_cast<size_t>(r)];
  if (values.has_one_point) offset = word_sum * number_of_code(value_.zero_points[0], value.is_signed());
  if (has_signs) offset += word_sum * kSignOfHalves;
  const uint8_t* const points = has_points ? value_.zero_points + t / blocks_.part * n_.e : nullptr;
  active_compressed().scores[value.is_signed() ? kS8 : kU8](
      {of_row, value.is_float() ? of_row + size : nullptr, offset, points, word_sum, steps_of(group, t)[r],
       scales_of_result(t), size, true, totals + r * n_.e + group * size});
}

void CompressedUnit::finish(const float* totals) const {
  const int64_t size = n_.e;
  for (int64_t r = 0; r < rows_; ++r) {
    const float* const from = totals + r * size;
    float* const to = run_.dst + (head_ * n_.rows() + row_ + r) * size;
    const float inverse = inverses_[static_cast<size_t>(r)];
    if (value_.offsets == nullptr) {
      for (int64_t i = 0; i < size; ++i) store(to + i, from[i] * inverse);
      continue;
    }
    const int64_t group_size = run_.value.group_size_of_offsets();
    const float* const offsets = offsets_.data() + r * (size / group_size);
    for (int64_t i = 0; i < size; ++i) store(to + i, (from[i] + offsets[i / group_size]) * inverse);
  }
}

}  // namespace dynq
