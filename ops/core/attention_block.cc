#include "core/attention_block.h"

#include <cstring>

#include "core/rounding.h"
#include "core/scratch.h"
#include "core/tiles.h"
#include "kernels/compressed.h"
#include "kernels/dispatch.h"
#include "kernels/numbers.h"

namespace dynq {
namespace {

constexpr int16_t kNoWeight = -kWordOffset;

// `to` may be an output, which a caller of the C interface need not align.
void add_bytes(const float* high, const float* low, float factor, int64_t count, float* to) {
  for (int64_t j = 0; j < count; ++j) store(to + j, (high[j] * 256.0f + low[j]) * factor);
}

// Rows [first, first + rows) of the query of one head of key: those of the heads that share it stand together.
class Block {
 public:
  Block(const AttentionRun& run, AttentionMemory& memory, int64_t head, int64_t first, int64_t rows)
      : run_(run),
        n_(run.n),
        memory_(memory),
        isa_(active_isa()),
        head_(head),
        first_(first),
        rows_(rows),
        repeats_(n_.h / n_.k),
        batch_(head / n_.k),
        first_head_(head % n_.k * repeats_) {
    start_ = std::min(run.window.first(token(0)), n_.t) / run.packed.token_unit * run.packed.token_unit;
    cols_ = std::max<int64_t>(run.window.end(token(rows - 1), n_.t) - start_, 0);
  }

  void compute() {
    if (cols_ == 0 || !run_.packed.is_finite[head_]) {  // no keys, or no known values
      const std::vector<float> numbers(static_cast<size_t>(n_.e),
                                       run_.zero_rows && run_.packed.is_finite[head_] ? 0.0f : kNan);
      for (int64_t i = 0; i < rows_; ++i) put(i, numbers.data());
      return;
    }
    stride_ = round_up(cols_, run_.packed.token_unit) + kSoftmaxUnit;
    for (int64_t i = 0; i < rows_; ++i) memory_.factors[i] = run_.query.scale(query_row(i)) * run_.scale;
    run_.packed.has_key_words ? score_words() : score();
    for (int64_t i = 0; i < rows_; i += kSoftmaxRows) soften(i, std::min(kSoftmaxRows, rows_ - i));
    run_.packed.has_value_words ? add_value_words() : add_values();
  }

 private:
  // Divisions would take a tenth of the time of a few tokens.
  int64_t token(int64_t i) const { return repeats_ == 1 ? first_ + i : (first_ + i) / repeats_; }
  int64_t head_of(int64_t i) const { return first_head_ + (repeats_ == 1 ? 0 : (first_ + i) % repeats_); }
  int64_t query_row(int64_t i) const { return run_.query.row(batch_, head_of(i), token(i)); }

  ProductBlock product(int64_t rows, int64_t cols, int64_t depth, float* dst, int64_t dst_stride) const {
    ProductBlock block = {};
    block.rows = rows;
    block.cols = cols;
    block.depth = round_up(depth, kQuad);
    block.groups = 1;
    block.output = {dst, dst_stride, false};
    block.order = kRowFirst;
    return block;
  }

  void multiply(const ProductBlock& block) const {
    (uses_tiles(block.rows) ? isa_.products->gemm_qc8w_tiles : isa_.products->gemm_qc8w)(block);
  }

  // The codes of the block's rows of query.
  CodeAddress query_rows() const {
    const auto row = [&](int64_t i) { return run_.query.codes(query_row(i)); };
    uint8_t* const copies = memory_.codes.get();
    if (uses_tiles(rows_)) return in_tiles(rows_, n_.d, copies, row);
    if (repeats_ == 1) return {row(0), run_.query.stride() * n_.d};
    const int64_t depth = round_up(n_.d, kQuad);
    for (int64_t i = 0; i < rows_; ++i) {
      std::memset(copies + (i + 1) * depth - kQuad, 0, kQuad);
      std::memcpy(copies + i * depth, row(i), static_cast<size_t>(n_.d));
    }
    return {copies, depth};
  }

  void score_words() {
    const int64_t depth = round_up(n_.d, 2), columns = active_compressed().panel_columns;
    for (int64_t i = 0; i < rows_; ++i) {
      const auto* const from = reinterpret_cast<const int8_t*>(run_.query.codes(query_row(i)));
      int16_t* const to = memory_.query.get() + i * depth;
      to[depth - 1] = 0;
      for (int64_t j = 0; j < n_.d; ++j) to[j] = from[j];
    }
    PanelScores block = {};
    block.product = {memory_.query.get(), depth, rows_, n_.d, cols_, nullptr, depth * columns, true};
    block.product.panels = run_.packed.key_words.get() + head_ * run_.packed.key_size + start_ * depth;
    block.groups = 1;
    block.steps = memory_.factors.get();
    block.scales = run_.packed.key_scales.get() + head_ * n_.t + start_;
    block.scores = memory_.scores.get();
    block.score_stride = stride_;
    active_compressed().panel_scores(block);
  }

  void score() {
    const CodeAddress codes = query_rows();
    ProductBlock block = product(rows_, cols_, n_.d, memory_.scores.get(), stride_);
    block.codes = {codes.data, codes.stride, memory_.factors.get(), run_.constants.zero_points.data(), 1,
                   nullptr,    false};
    block.weights = {run_.packed.key_codes(head_) + start_ * block.depth, block.depth * kBlockColumns, nullptr, 0, 0};
    const int64_t key = head_ * n_.t + start_;
    block.columns = {run_.packed.key_scales.get() + key, nullptr, 0, 1, run_.packed.key_sums.get() + key, 0,
                     run_.constants.zeros.data()};
    multiply(block);
  }

  // The bytes of the weights of rows: high ones, and low ones `rows_` rows later.
  void soften(int64_t first_row, int64_t count) {
    SoftmaxRow rows[kSoftmaxRows];
    for (int64_t i = 0; i < count; ++i) rows[i] = softmax_row(first_row + i);
    isa_.kernels->softmax(rows, count, memory_.factors.get() + first_row);
  }

  // Without keys, all of its scores are -infinity.
  SoftmaxRow softmax_row(int64_t i) {
    const int64_t row = token(i), first = std::max(run_.window.first(row), start_),
                  end = std::min(run_.window.end(row, n_.t), start_ + cols_);
    const int64_t count = std::max<int64_t>(end - first, 0), offset = count == 0 ? 0 : first - start_,
                  padded = std::max(round_up(count, kSoftmaxUnit), kSoftmaxUnit);
    float* const scores = memory_.scores.get() + i * stride_ + offset;
    std::fill(scores + count, scores + padded, -kInfinity);
    uint8_t *high = nullptr, *low = nullptr;
    int16_t* words = nullptr;
    if (run_.packed.has_value_words) {
      words = memory_.words.get() + i * stride_;
      std::fill(words, words + offset, kNoWeight);
      std::fill(words + offset + padded, words + stride_, kNoWeight);
      words += offset;
    } else {
      high = memory_.bytes.get() + i * stride_ + offset;
      low = high + rows_ * stride_;
      for (uint8_t* const bytes : {high, low}) {
        std::memset(bytes - offset, 0, static_cast<size_t>(offset));
        std::memset(bytes + padded, 0, static_cast<size_t>(stride_ - offset - padded));
      }
    }
    const int64_t key = count == 0 ? 0 : first;
    const float* const bias = run_.bias.data + batch_ * run_.bias.strides[0] + head_of(i) * run_.bias.strides[1] +
                              row * run_.bias.strides[2] + key * run_.bias.strides[3];
    const float* const value_factors = run_.packed.factors.get() + head_ * run_.packed.factors_size + key;
    return {scores, bias, value_factors, run_.bias.strides[3] != 0, run_.cap, run_.least_added, count, padded,
            high,   low,  words};
  }

  void add_values() {
    float* const sums = memory_.sums.get();
    ProductBlock block = product(2 * rows_, n_.e, cols_, sums, n_.e);
    CodeAddress codes = {memory_.bytes.get(), stride_};
    if (uses_tiles(block.rows))
      codes = in_tiles(block.rows, block.depth, memory_.codes.get(),
                       [&](int64_t i) { return memory_.bytes.get() + i * stride_; });
    block.codes = {codes.data, codes.stride, run_.constants.ones.data(), run_.constants.no_zero_points.data(), 1,
                   nullptr,    false};
    block.weights = {run_.packed.values.get() + head_ * run_.packed.value_size + start_ * kBlockColumns,
                     round_up(n_.t, kQuad) * kBlockColumns, nullptr, 0, 0};
    block.columns = {run_.constants.ones.data(), nullptr, 0, 1, run_.constants.no_zero_points.data(), 0,
                     run_.constants.zeros.data()};
    multiply(block);
    for (int64_t i = 0; i < rows_; ++i) {
      float *const high = sums + i * n_.e, *const low = high + rows_ * n_.e;
      float* const to = is_in_place() ? static_cast<float*>(run_.dst) + dst_index(i) : high;
      add_bytes(high, low, memory_.factors[i], n_.e, to);
      finish(i, to);
    }
  }

  // The words of a key without weight may be of a value that is not 0: sums have the offset of all of them.
  void add_value_words() {
    const int64_t end = std::min(start_ + round_up(cols_, run_.packed.token_unit), n_.t), keys = end - start_;
    const bool fits = keys <= kMaxProducts;  // kLargestCode * 128 * 256 < 2^31
    run_.packed.add_offset(head_, start_, end, fits, memory_.offsets.get());
    const int64_t columns = active_compressed().panel_columns;
    const bool in_place = is_in_place() && repeats_ == 1;
    float* const to = in_place ? static_cast<float*>(run_.dst) + dst_index(0) : memory_.sums.get();
    PanelScores block = {};
    block.product = {memory_.words.get(), stride_, rows_, keys, n_.e, nullptr, round_up(n_.t, 2) * columns, true};
    block.product.panels = run_.packed.value_words.get() + head_ * run_.packed.value_size + start_ * columns;
    block.groups = 1;
    (fits ? block.bases : block.highs) = memory_.offsets.get();
    block.steps = memory_.factors.get();
    block.scores = to;
    block.score_stride = in_place ? run_.of_dst.of_token : n_.e;
    active_compressed().panel_scores(block);
    for (int64_t i = 0; i < rows_; ++i) finish(i, to + i * block.score_stride);
  }

  bool is_in_place() const { return run_.of_dst.of_element == 1 && run_.storage.narrow == nullptr; }

  // `result` is where the row of the output is, or else it is copied there.
  void finish(int64_t i, float* result) const {
    const float factor = memory_.factors[i];
    if (run_.zero_rows && factor != factor)
      std::memset(static_cast<void*>(result), 0, static_cast<size_t>(n_.e) * sizeof *result);
    if (!is_in_place() || static_cast<float*>(run_.dst) + dst_index(i) != result) put(i, result);
  }

  int64_t dst_index(int64_t i) const { return run_.of_dst.at(batch_, head_of(i), token(i)); }

  // Writes a row of the result.
  void put(int64_t i, const float* from) const {
    const int64_t at = dst_index(i), stride = run_.of_dst.of_element;
    void* const to = element(run_.dst, run_.storage, at);
    if (stride != 1) {
      for (int64_t j = 0; j < n_.e; ++j) {
        void* const each = element(run_.dst, run_.storage, at + j * stride);
        if (run_.storage.narrow == nullptr)
          store(static_cast<float*>(each), from[j]);
        else
          run_.storage.narrow(from + j, each, 1);
      }
    } else if (run_.storage.narrow == nullptr) {
      std::memcpy(to, from, static_cast<size_t>(n_.e) * sizeof(float));
    } else {
      run_.storage.narrow(from, to, n_.e);
    }
  }

  const AttentionRun& run_;
  const AttentionSizes& n_;
  AttentionMemory& memory_;
  const InstructionSet& isa_;
  const int64_t head_, first_, rows_, repeats_;
  const int64_t batch_, first_head_;   // of query
  int64_t start_, cols_, stride_ = 0;  // keys [start_, start_ + cols_)
};

}  // namespace

AttentionMemory::AttentionMemory(const AttentionRun& run, int64_t rows)
    : stride(round_up(run.n.t, run.packed.token_unit) + kSoftmaxUnit),
      scores(memory<float>(rows * stride)),
      factors(memory<float>(rows)) {
  const AttentionSizes& n = run.n;
  const bool has_tiles = uses_tiles(rows) || uses_tiles(2 * rows);
  codes = memory<uint8_t>(std::max(tiled_bytes(rows, n.d), has_tiles ? tiled_bytes(2 * rows, n.t) : 0) + kQuad);
  if (run.packed.has_key_words) query = memory<int16_t>(rows * round_up(n.d, 2));
  if (run.packed.has_value_words) {
    sums = memory<float>(rows * n.e);
    words = memory<int16_t>(rows * stride);
    offsets = memory<int32_t>(n.e);
    return;
  }
  sums = memory<float>(2 * rows * n.e);
  bytes = memory<uint8_t>(2 * rows * stride);
}

void attend(const AttentionRun& run, AttentionMemory& memory, int64_t head, int64_t first, int64_t rows) {
  Block(run, memory, head, first, rows).compute();
}

}  // namespace dynq
