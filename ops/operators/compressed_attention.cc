// CompressedAttention: softmax(query * key^T * scale + bias) * value, where keys and values are codes of 8 or 4 bits
// with scales of groups along the head and of tokens.
//
// Queries, and the powers of softmax times the scales of the values, become codes of 16 bits ("words"), so that sums of
// products are exact: results depend neither on their order nor on the layout. A unit of work is a block of query rows
// of one head of keys. Few rows read codes as they are stored; for many, heads are packed once.
//
// More than 450 lines: units and the node share the sizes and inputs of a run, and nothing else uses them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "core/attention_bias.h"
#include "core/compressed_heads.h"
#include "core/formats.h"
#include "core/parallel.h"
#include "core/rounding.h"
#include "core/scratch.h"
#include "kernels/dispatch.h"
#include "kernels/numbers.h"

namespace dynq {
namespace {

constexpr const char* kName = "CompressedAttention";
constexpr int64_t kUnitRows = 48;         // of a unit: a multiple of the rows that every kernel scores at once
constexpr int64_t kSoftenedRows = 16;     // at once: a multiple of the rows that kernels quantize at once
constexpr int64_t kUnitScores = 65536;    // of a unit, unless it has few rows: they stay in the second-level cache
constexpr int64_t kMostLength = 1 << 22;  // of keys and of heads: sums of products of words fit the 53 bits of a double
constexpr int64_t kFewHeads = 16;         // with fewer, threads share a head
constexpr int64_t kFewUnits = 16;         // fewer are divided along the keys
constexpr int64_t kKeysOfPart = 1024;
constexpr int64_t kPackedRows = 32;  // of query for one head: with fewer, packing the head takes longer than it saves
constexpr int64_t kNarrowGroup = 8;  // of a key: products of so few elements fill no vector, those of panels do
constexpr int64_t kPackedRowsOfNarrow = 2;
constexpr int64_t kGroupsOfVector = 4;  // of a key, at most: see compressed-bytes-inl.h
constexpr int64_t kCopiedKeys = 512;
constexpr double kFarFromOverflow = 1e37;

// Parts of the keys begin where sums of products do, and blocks of these where the padding of words ends.
static_assert(kKeysOfPart % kMostProducts == 0 && kMostProducts % kWordUnit == 0);
static_assert(static_cast<int64_t>(kLargestWord) * 255 * kMostProducts <= INT32_MAX);
static_assert(static_cast<int64_t>(kLargestWord) * static_cast<int64_t>(kLargestWord) * kMostLength <= int64_t{1}
                                                                                                           << 53);
static_assert(kWordUnit % kMostPanelColumns == 0);

enum Input {
  kQuery,
  kKey,
  kKeyScale,
  kKeyZeroPoint,
  kValue,
  kValueScale,
  kValueZeroPoint,
  kBias,
  kFactor,
  kKeyOffset,
  kValueOffset,
  kInputs
};

// Values have sums for blocks of at most kMostProducts keys, each with its own step of words. If their scales are of
// channels, the keys of a block are of one token group. The words of each block begin at a multiple of kWordUnit.
struct Blocks {
  explicit Blocks(const CompressedOperand& value)
      : part(value.token_group_size()),
        of_part(divide_up(part, kMostProducts)),
        stride(round_up(std::min(part, kMostProducts), kWordUnit)),
        count(value.token_groups() * of_part) {}

  int64_t number(int64_t t) const { return t / part * of_part + t % part / kMostProducts; }
  int64_t start(int64_t t) const { return t - t % part % kMostProducts; }
  int64_t end(int64_t t) const { return std::min(start(t) + kMostProducts, (t / part + 1) * part); }
  int64_t word(int64_t t) const { return number(t) * stride + t - start(t); }
  int64_t words() const { return (count - 1) * stride + round_up(part - (of_part - 1) * kMostProducts, kWordUnit); }

  int64_t part, of_part, stride, count;
};

// What all units of a run share.
struct Run {
  CompressedSizes n;
  CompressedOperand key, value;
  AttentionBias bias;
  float factor;
  const float* query;
  float* dst;
};

// Keys [first, end).
struct Keys {
  int64_t first, end;

  int64_t count() const { return end - first; }
  Keys part(const Keys& other) const { return {std::max(first, other.first), std::min(end, other.end)}; }
};

// Words of rows of query.
struct Queries {
  Queries(const CompressedOperand& key, int64_t rows)
      : stride(round_up(key.group_size(), kWordUnit)),
        words(memory<int16_t>(rows * key.word_rows() * key.groups() * stride)),
        steps(static_cast<size_t>(rows * key.groups())),
        sums(static_cast<size_t>(rows * key.groups())),
        offsets(static_cast<size_t>(rows * key.groups())) {}

  int64_t stride;
  std::unique_ptr<int16_t[]> words;  // [groups, rows, word rows, stride]
  std::vector<float> steps;          // [groups, rows]
  std::vector<int64_t> sums;         // of the words, for zero points
  std::vector<int64_t> offsets;      // what sums of products have too much, besides zero points of keys
};

// The memory of a unit of at most `rows` rows.
struct Workspace {
  Workspace(const Run& run, int64_t rows)
      : blocks(run.value),
        padded(blocks.words()),
        queries(run.key, run.key.is_per_channel() ? 0 : rows),
        scores(memory<float>(rows * run.n.t)),
        inverses(static_cast<size_t>(rows)),
        words(memory<int16_t>(run.value.groups() * rows * run.value.word_rows() * padded)),
        word_steps(static_cast<size_t>(run.value.groups() * blocks.count * rows)),
        offsets(
            static_cast<size_t>(!run.value.has_offsets() ? 0 : rows * (run.n.e / run.value.group_size_of_offsets()))),
        totals(memory<float>(rows * run.n.e)) {}

  Blocks blocks;
  int64_t padded;
  Queries queries;                  // unless scales are factors of the query
  std::unique_ptr<float[]> scores;  // [rows, T], then powers
  std::vector<float> inverses;
  std::unique_ptr<int16_t[]> words;  // [groups, rows, word rows, padded]
  std::vector<float> word_steps;     // [groups, blocks, rows]
  std::vector<float> offsets;  // sums of powers times offsets, [rows, groups], or [rows, E] if they are of channels
  std::unique_ptr<float[]> totals;  // [rows, E]
  HeadMemory heads[2];              // of key and of value
};

// Units use memory again: the system takes longer to give new pages than a unit does to fill them.
class Workspaces {
 public:
  Workspaces(const Run& run, int64_t rows) : run_(run), rows_(rows) {}

  std::unique_ptr<Workspace> take() {
    {
      const std::lock_guard<std::mutex> guard(lock_);
      if (!free_.empty()) {
        std::unique_ptr<Workspace> found = std::move(free_.back());
        free_.pop_back();
        return found;
      }
    }
    return std::make_unique<Workspace>(run_, rows_);
  }

  void give_back(std::unique_ptr<Workspace> workspace) {
    const std::lock_guard<std::mutex> guard(lock_);
    free_.push_back(std::move(workspace));
  }

 private:
  const Run& run_;
  const int64_t rows_;
  std::mutex lock_;
  std::vector<std::unique_ptr<Workspace>> free_;
};

// Rows [row, row + rows) of the query of one head of key. The steps are score() of all keys, soften(), add_values() of
// all keys, and finish().
class Unit {
 public:
  Unit(const Run& run, const CompressedHead& key, const CompressedHead& value, int64_t row, int64_t rows,
       Workspace& workspace)
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
  void score(int64_t first, int64_t count) {
    const Keys range = seen_.part({first, first + count});
    if (range.count() <= 0) return;
    const CompressedOperand& key = run_.key;
    if (!key.is_per_channel()) {
      score_range(queries_, range, 0, 0);
      if (key_.offsets != nullptr) add_offsets_of_groups(range);
      return;
    }
    Queries queries(key, rows_);  // words of one token group after the other
    const int64_t size = key.token_group_size();
    for (int64_t token_group = range.first / size; token_group * size < range.end; ++token_group) {
      const Keys part = range.part({token_group * size, (token_group + 1) * size});
      quantize(key_.scales + token_group * n_.d,
               key_.zero_points == nullptr ? nullptr : key_.zero_points + token_group * n_.d, queries);
      score_range(queries, part, token_group, token_group * size);
      if (key_.offsets != nullptr) add_offsets_of_channels(key_.offsets + token_group * n_.d, part, queries);
    }
  }

  // Scores become powers, and words of powers times the scales of values.
  void soften() {
    for (int64_t row = 0; row < rows_; row += kSoftenedRows) soften(row, std::min(kSoftenedRows, rows_ - row));
    if (value_.offsets != nullptr) sum_offsets();
  }

  // Adds the products of the words with values [first, first + count) to totals [rows, E], one block after the other.
  void add_values(int64_t first, int64_t count, float* totals) const {
    const Keys range = seen_.part({first, first + count});
    if (range.count() <= 0) return;
    if (value_.is_packed())
      add_packed_values(range, totals);
    else
      add_stored_values(range, totals);
  }

  void finish(const float* totals) const {
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

  int64_t elements() const { return rows_ * n_.e; }

 private:
  static const CompressedKernels& kernels() { return active_compressed(); }

  static void add(const int32_t* sums, int64_t count, int weight, double* totals) {
    for (int64_t i = 0; i < count; ++i) totals[i] += static_cast<double>(sums[i]) * weight;
  }

  // Of at most kMostProducts words. Compilers use vectors for sums of int32.
  static int32_t sum_of(const int16_t* words, int64_t count) {
    int32_t sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += words[i];
    return sum;
  }

  static int number(uint8_t code, bool is_signed) { return is_signed ? static_cast<int8_t>(code) : int{code}; }

  static int64_t long_sum_of(const int16_t* words, int64_t count) {
    int64_t sum = 0;
    for (int64_t i = 0; i < count; i += kMostProducts) sum += sum_of(words + i, std::min(kMostProducts, count - i));
    return sum;
  }

  // Rows [row, row + rows), whose scores stay in the first-level cache.
  void soften(int64_t row, int64_t rows) {
    const int64_t groups = run_.value.groups(), word_rows = run_.value.word_rows();
    const int64_t count = seen_.count(), first = seen_.first;
    float* const scores = scores_ + row * n_.t;
    for (int64_t r = 0; r < rows; ++r) {
      const bool is_vector = run_.bias.strides[3] != 0;
      const float* biases = bias_of(row + r) + (is_vector ? first : 0);
      inverses_[static_cast<size_t>(row + r)] =
          kernels().powers({scores + r * n_.t + first, count, run_.factor, biases, is_vector});
    }
    for (int64_t group = 0; group < groups; ++group) {
      int16_t* const words = words_ + (group * rows_ + row) * word_rows * padded_;
      for (int64_t t = first; t < seen_.end; t = end_of_block(t)) {
        const int64_t keys = end_of_block(t) - t, padding = round_up(keys, kWordUnit) - keys;
        int16_t* const of_block = words + blocks_.word(t);
        const float* const scales = run_.value.is_per_channel() ? nullptr : value_.scales + group * n_.t + t;
        kernels().quantize_words(
            {scores + t, n_.t, scales, rows, keys, of_block, word_rows * padded_, steps_of(group, t) + row});
        for (int64_t r = 0; r < rows; ++r) {
          int16_t* const of_row = of_block + r * word_rows * padded_;
          std::fill(of_row + keys, of_row + keys + padding, int16_t{0});
          if (word_rows == 2) split_words(of_row, keys + padding, of_row + padded_);
        }
      }
    }
  }

  int64_t end_of_block(int64_t t) const { return std::min(seen_.end, blocks_.end(t)); }

  const float* query(int64_t r) const { return run_.query + (head_ * n_.rows() + row_ + r) * n_.d; }

  const float* bias_of(int64_t r) const {
    const int64_t number = row_ + r, h = head_ % n_.k * (n_.h / n_.k) + number / n_.s;
    const AttentionBias& bias = run_.bias;
    return bias.data + head_ / n_.k * bias.strides[0] + h * bias.strides[1] + number % n_.s * bias.strides[2];
  }

  // The words of the rows, times scales of channels if there are some.
  void quantize(const float* scales, const uint8_t* zero_points, Queries& to) const {
    const int64_t groups = run_.key.groups(), size = run_.key.group_size();
    const bool is_signed = run_.key.is_signed();
    const int64_t word_stride = run_.key.word_rows() * to.stride;
    for (int64_t group = 0; group < groups; ++group) {
      int16_t* const words_of_group = to.words.get() + group * rows_ * word_stride;
      kernels().quantize_words({query(0) + group * size, n_.d, scales, rows_, size, words_of_group, word_stride,
                                to.steps.data() + group * rows_});
      for (int64_t r = 0; r < rows_; ++r) {
        const int64_t at = group * rows_ + r;
        int16_t* const words = words_of_group + r * word_stride;
        std::fill(words + size, words + to.stride, int16_t{0});
        int64_t sum = 0, offset = 0;
        if (!key_.is_packed() || key_.offsets != nullptr) sum = long_sum_of(words, size);
        if (uses_halves_of_key()) offset = sum * (is_signed ? kSignOfHalves : 0);
        if (zero_points != nullptr && run_.key.has_one_zero_point()) offset += sum * number(zero_points[0], is_signed);
        for (int64_t i = 0; i < size && zero_points != nullptr && !run_.key.has_one_zero_point(); ++i)
          offset += int64_t{words[i]} * number(zero_points[i], is_signed);
        to.sums[static_cast<size_t>(at)] = sum;
        to.offsets[static_cast<size_t>(at)] = offset;
        if (run_.key.is_float()) split_words(words, to.stride, words + to.stride);
      }
    }
  }

  // Adds the products of the queries with the offsets of keys, which are those of the sums of their words.
  void add_offsets_of_groups(Keys range) {
    constexpr int64_t kBlock = 256;
    float totals[kBlock];
    for (int64_t r = 0; r < rows_; ++r)
      for (int64_t t = range.first; t < range.end; t += kBlock) {
        const int64_t count = std::min(kBlock, range.end - t);
        for (int64_t group = 0; group < run_.key.groups(); ++group) {
          const auto at = static_cast<size_t>(group * rows_ + r);
          const float sum = static_cast<float>(queries_.sums[at]) * queries_.steps[at];
          const float* const offsets = key_.offsets + group * n_.t + t;
          const auto add = [&](const auto& times) {
            for (int64_t i = 0; i < count; ++i) {
              const float product = times(load(offsets + i));
              totals[i] = group > 0 ? totals[i] + product : product;
            }
          };
          if (std::isfinite(sum))
            add([&](float offset) { return sum * offset; });
          else
            add([&](float offset) { return offset == 0 ? 0.0f : sum * offset; });
        }
        float* const scores = scores_ + r * n_.t + t;
        for (int64_t i = 0; i < count; ++i) scores[i] += totals[i];
      }
  }

  // The same of offsets of channels, which are factors of the query as the scales are. `queries` has memory for words.
  void add_offsets_of_channels(const float* offsets, Keys range, Queries& queries) {
    kernels().quantize_words(
        {query(0), n_.d, offsets, rows_, n_.d, queries.words.get(), queries.stride, queries.steps.data()});
    for (int64_t r = 0; r < rows_; ++r) {
      const float sum = static_cast<float>(long_sum_of(queries.words.get() + r * queries.stride, n_.d));
      const float product = sum * queries.steps[static_cast<size_t>(r)];
      float* const scores = scores_ + r * n_.t;
      for (int64_t t = range.first; t < range.end; ++t) scores[t] += product;
    }
  }

  // The sums of the powers times the offsets of values.
  void sum_offsets() {
    std::fill(offsets_.begin(), offsets_.end(), 0.0f);
    if (run_.value.is_per_channel()) {
      for (int64_t t = seen_.first; t < seen_.end; t = end_of_block(t))
        for (int64_t r = 0; r < rows_; ++r) {
          const auto sum = static_cast<float>(sum_of(words_ + r * padded_ + blocks_.word(t), end_of_block(t) - t));
          const float product = sum * steps_of(0, t)[r];
          const float* const offsets = value_.offsets + t / blocks_.part * n_.e;
          float* const totals = offsets_.data() + r * n_.e;
          for (int64_t i = 0; i < n_.e; ++i) totals[i] += product * load(offsets + i);
        }
      return;
    }
    const int64_t groups = run_.value.groups();
    const auto words = memory<int16_t>(rows_ * kMostProducts);
    std::vector<float> steps(static_cast<size_t>(rows_));
    for (int64_t group = 0; group < groups; ++group)
      for (int64_t t = seen_.first; t < seen_.end; t = end_of_block(t)) {
        const int64_t keys = end_of_block(t) - t;
        kernels().quantize_words({scores_ + t, n_.t, value_.offsets + group * n_.t + t, rows_, keys, words.get(),
                                  kMostProducts, steps.data()});
        for (int64_t r = 0; r < rows_; ++r)
          offsets_[static_cast<size_t>(r * groups + group)] +=
              static_cast<float>(sum_of(words.get() + r * kMostProducts, keys)) * steps[static_cast<size_t>(r)];
      }
  }

  // The keys between the first and the last that a row sees. The others have a bias of -infinity in every row; they
  // change nothing if all scores, and all scales and offsets of values, are finite.
  Keys seen() const {
    const Keys all = {0, n_.t};
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

  // How many of `count` biases from bias[from] on, in a direction, are -infinity before the first other one.
  static int64_t hidden(const float* bias, int64_t from, int64_t count, int64_t direction) {
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

  // `part_first`: the first key of the token group.
  void score_range(const Queries& queries, Keys range, int64_t token_group, int64_t part_first) {
    if (key_.is_packed())
      score_packed(queries, range, token_group, part_first);
    else
      score_stored(queries, range);
  }

  void score_packed(const Queries& queries, Keys range, int64_t token_group, int64_t part_first) {
    const CompressedOperand& key = run_.key;
    const int64_t columns = kernels().panel_columns, groups = key.groups();
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
    kernels().panel_scores(block);
  }

  void score_stored(const Queries& queries, Keys range) {
    const CompressedOperand& key = run_.key;
    const int64_t size = key.group_size(), word_rows = key.word_rows();
    const bool is_by_row = key.is_transposed() && !key.is_float();
    const bool fits = size <= kMostProducts;
    const bool is_copied = is_by_row && key.has_4_bits() && !begins_at_bytes(range.first);  // to the first-level cache
    const int64_t block = std::min(range.count(), !is_by_row ? kMostProducts : is_copied ? kCopiedKeys : kKeysOfPart);
    const int64_t group_rows = rows_ * word_rows;
    // Groups at once: as many as have sums in the second-level cache.
    const int64_t most_vectors = std::max<int64_t>(1, kUnitScores / (kGroupsOfVector * group_rows * block));
    const int64_t most_at_once = is_by_row || !fits ? 1 : std::min(key.groups(), kGroupsOfVector * most_vectors);
    const auto sums = memory<int32_t>(most_at_once * group_rows * block);
    std::vector<double> totals(static_cast<size_t>(fits ? 0 : rows_ * block));
    const bool is_half = uses_halves_of_key();
    const auto holder = memory<uint8_t>(is_copied ? std::min(size, kMostProducts) * round_up(block, 2) / 2
                                        : !key.has_4_bits() || is_half ? 0
                                                                       : key.size() * block);
    for (int64_t t = range.first; t < range.end; t += block) {
      const int64_t cols = std::min(block, range.end - t);
      const void* rows = is_by_row ? nullptr
                         : is_half ? key_.halves(t * key.size())
                                   : key_.codes(t * key.size(), cols * key.size(), holder.get());
      for (int64_t group = 0; group < key.groups(); group += most_at_once) {
        const int64_t at_once = std::min(most_at_once, key.groups() - group);
        std::fill(totals.begin(), totals.end(), 0.0);
        for (int64_t d = 0; d < size; d += kMostProducts) {
          const int64_t from = group * size + d;
          WordProduct product = {};
          product.groups = at_once;
          product.group_words = group_rows * queries.stride;
          product.group_sums = group_rows * cols;
          product.words = queries.words.get() + group * product.group_words + d;
          product.word_stride = queries.stride;
          product.rows = group_rows;
          product.depth = std::min(kMostProducts, size - d);
          product.cols = cols;
          product.sums = sums.get();
          product.sum_stride = cols;
          if (is_by_row) {
            set_rows(product, from, t, is_copied ? holder.get() : nullptr);
          } else {
            product.codes = key.is_float() ? static_cast<const void*>(static_cast<const int16_t*>(rows) + from)
                                           : static_cast<const uint8_t*>(rows) + (is_half ? from / 2 : from);
            product.code_stride = key.size();
          }
          product.flipped = key.flipped();
          (is_by_row ? kernels().by_row : kernels().by_column)[is_half ? kHalves : key.kind()](product);
          for (int64_t r = 0; r < product.rows && !fits; ++r)
            add(sums.get() + r * cols, cols, word_rows == 2 && r % 2 == 0 ? kHighByte : 1,
                totals.data() + r / word_rows * cols);
        }
        for (int64_t i = 0; i < at_once * rows_; ++i)
          if (fits)
            scale_sums(sums.get() + i * word_rows * cols, queries, group + i / rows_, i % rows_, t, cols);
          else
            scale_totals(totals.data() + i * cols, queries, group, i, t, cols);
      }
    }
  }

  float* steps_of(int64_t group, int64_t t) const {
    return word_steps_.data() + (group * blocks_.count + blocks_.number(t)) * rows_;
  }

  // Null if they are factors of the weights.
  const float* scales_of_result(int64_t t) const {
    return run_.value.is_per_channel() ? value_.scales + t / blocks_.part * n_.e : nullptr;
  }

  void add_packed_values(Keys range, float* totals) const {
    const CompressedOperand& value = run_.value;
    const int64_t size = value.group_size(), columns = kernels().panel_columns;
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
        kernels().panel_scores(block);
      }
  }

  void add_stored_values(Keys range, float* totals) const {
    const CompressedOperand& value = run_.value;
    const int64_t size = value.group_size(), word_rows = value.word_rows();
    const auto sums = memory<int32_t>(rows_ * word_rows * size), zero_sums = memory<int32_t>(rows_);
    const bool is_half = value.has_4_bits() && n_.e % 2 == 0 && size % 2 == 0;
    const auto holder =
        memory<uint8_t>(value.has_4_bits() && !is_half ? std::min(kMostProducts, range.count()) * n_.e : 0);
    std::fill(zero_sums.get(), zero_sums.get() + rows_, 0);
    for (int64_t t = range.first; t < range.end; t = end_of_block(t)) {
      const int64_t depth = end_of_block(t) - t;
      const void* codes = is_half ? value_.halves(t * n_.e) : value_.codes(t * n_.e, depth * n_.e, holder.get());
      for (int64_t group = 0; group < value.groups(); ++group) {
        WordProduct product = {};
        product.words = words_ + group * rows_ * word_rows * padded_ + blocks_.word(t);
        product.word_stride = padded_;
        product.rows = rows_ * word_rows;
        product.depth = depth;
        const bool is_per_channel = value.is_per_channel();
        const bool has_one_point = value_.zero_points != nullptr && value.has_one_zero_point() && !is_per_channel;
        if (value_.zero_points != nullptr && !is_per_channel && !has_one_point) {
          product.cols = product.groups = 1;
          product.codes = value_.zero_points + group * n_.t + t;
          product.sums = zero_sums.get();
          product.sum_stride = 1;
          kernels().by_column[value.kind()](product);
        }
        product.cols = size;
        product.codes =
            value.is_float() ? codes : static_cast<const uint8_t*>(codes) + (is_half ? group * size / 2 : group * size);
        product.flipped = value.flipped();
        product.code_stride = n_.e;
        product.sums = sums.get();
        product.sum_stride = size;
        kernels().by_row[is_half ? kHalves : value.kind()](product);
        for (int64_t r = 0; r < rows_; ++r) {
          const int32_t* const of_row = sums.get() + r * word_rows * size;
          const bool has_points = value_.zero_points != nullptr && is_per_channel;
          const bool has_signs = is_half && value.is_signed();
          const bool uses_sum = has_points || has_signs || has_one_point;
          const int32_t word_sum = uses_sum ? sum_of(product.words + r * padded_, depth) : 0;
          int32_t offset = zero_sums[static_cast<size_t>(r)];
          if (has_one_point) offset = word_sum * number(value_.zero_points[0], value.is_signed());
          if (has_signs) offset += word_sum * kSignOfHalves;
          const uint8_t* const points = has_points ? value_.zero_points + t / blocks_.part * n_.e : nullptr;
          kernels().scores[value.is_signed() ? kS8 : kU8]({of_row, value.is_float() ? of_row + size : nullptr, offset,
                                                           points, word_sum, steps_of(group, t)[r], scales_of_result(t),
                                                           size, true, totals + r * n_.e + group * size});
        }
      }
    }
  }

  // Whether rows of transposed keys of 4 bits begin at bytes, from row 0 on each second one at least, if blocks of
  // rows have an even number of them.
  bool begins_at_bytes(int64_t t) const {
    return key_.is_at_byte(t) && (n_.t % 2 == 0 || run_.key.group_size() % 2 == 0 || run_.key.groups() == 1);
  }

  // Rows [from, from + depth) and columns [t, t + cols) of transposed keys; of 4 bits that do not begin at bytes, a
  // copy in `holder`.
  void set_rows(WordProduct& product, int64_t from, int64_t t, uint8_t* holder) const {
    const int64_t depth = product.depth, cols = product.cols, first = from * n_.t + t;
    product.code_stride = n_.t;
    if (!run_.key.has_4_bits()) {
      product.codes = key_.codes(first, 0, nullptr);
    } else if (holder == nullptr) {
      product.codes = key_.halves(first);
    } else {
      product.codes = holder;
      product.code_stride = round_up(cols, 2);
      for (int64_t d = 0; d < depth; ++d)
        key_.copy_halves(first + d * n_.t, cols, holder + d * product.code_stride / 2);
    }
  }

  // Codes of 4 bits are multiplied as they are stored if they begin at bytes.
  bool uses_halves_of_key() const {
    const CompressedOperand& key = run_.key;
    return key.has_4_bits() && !key_.is_packed() &&
           (key.is_transposed() || (key.size() % 2 == 0 && key.group_size() % 2 == 0));
  }

  // Null if they are factors of the query.
  const float* scales_of(int64_t group, int64_t t) const {
    return run_.key.is_per_channel() ? nullptr : key_.scales + group * n_.t + t;
  }

  // Null if the offsets have them already, or there are none.
  const uint8_t* zero_points_of(int64_t group, int64_t t) const {
    return run_.key.is_per_channel() || key_.zero_points == nullptr ? nullptr : key_.zero_points + group * n_.t + t;
  }

  void scale_sums(const int32_t* sums, const Queries& queries, int64_t group, int64_t r, int64_t t, int64_t cols) {
    const auto at = static_cast<size_t>(group * rows_ + r);
    kernels().scores[run_.key.is_signed() ? kS8 : kU8](
        {sums, run_.key.is_float() ? sums + cols : nullptr, static_cast<int32_t>(queries.offsets[at]),
         zero_points_of(group, t), static_cast<int32_t>(queries.sums[at]), queries.steps[at], scales_of(group, t), cols,
         group > 0, scores_ + r * n_.t + t});
  }

  // The same of sums beyond int32.
  void scale_totals(const double* totals, const Queries& queries, int64_t group, int64_t r, int64_t t, int64_t cols) {
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

  const Run& run_;
  const CompressedSizes& n_;
  const int64_t head_, row_, rows_;
  const CompressedHead &key_, &value_;
  const Blocks& blocks_;
  const int64_t padded_;
  Keys seen_ = {};
  Queries& queries_;
  float* const scores_;
  std::vector<float>& inverses_;
  int16_t* const words_;
  std::vector<float>& word_steps_;
  std::vector<float>& offsets_;
};

class CompressedAttention : public Node {
 public:
  explicit CompressedAttention(const Attributes& attributes)
      : transposed_key_(flag(attributes, "transposed_key")),
        float_key_(flag(attributes, "float_key")),
        float_value_(flag(attributes, "float_value")),
        scale_query_(flag(attributes, "scale_query")),
        scale_result_(flag(attributes, "scale_result")) {}

  void compute(Context& context) const override {
    Tensor inputs[kInputs];
    for (size_t i = 0; i < kInputs; ++i) inputs[i] = context.input(i);
    const CompressedSizes n = sizes_of(inputs);
    check_type(inputs[kKey], float_key_, "key");
    check_type(inputs[kValue], float_value_, "value");
    for (const auto i : {kKey, kValue}) {
      const Shape &scale = inputs[i + 1].shape, &zero_point = inputs[i + 2].shape,
                  &offset = inputs[i == kKey ? kKeyOffset : kValueOffset].shape;
      if (is_float(inputs[i].type) && (scale.elements() != 1 || zero_point.elements() != 1 || offset.elements() != 1))
        fail("a scale, a zero point and an offset of floats have the shapes " + scale.text() + ", " +
             zero_point.text() + " and " + offset.text() + ", expected one element");
    }
    if (scale_query_ && float_key_) fail("scale_query is 1, expected 0 because float_key is 1");
    if (scale_result_ && float_value_) fail("scale_result is 1, expected 0 because float_value is 1");
    check_parameters(inputs[kKeyScale], inputs[kKeyZeroPoint], inputs[kKeyOffset], n, n.d, transposed_key_, "key");
    check_parameters(inputs[kValueScale], inputs[kValueZeroPoint], inputs[kValueOffset], n, n.e, false, "value");
    if (inputs[kFactor].shape.elements() != 1)
      fail("scale has shape " + inputs[kFactor].shape.text() + ", expected one element");
    const AttentionBias bias = attention_bias(kName, inputs[kBias], {n.b, n.h, n.s, n.t});
    Shape shape = inputs[kQuery].shape;
    shape.dims[3] = n.e;
    void* const dst = context.output(0, shape);
    if (shape.elements() == 0) return;
    const Storage storage = storage_of(inputs[kQuery].type);
    std::unique_ptr<float[]> memory_of_results;
    std::unique_ptr<char[]> floats[kInputs];  // 16-bit floats as float32
    auto* results = static_cast<float*>(dst);
    if (storage.widen != nullptr) {
      memory_of_results = memory<float>(shape.elements());
      results = memory_of_results.get();
      for (const auto i : {kQuery, kKey, kKeyScale, kKeyOffset, kValue, kValueScale, kValueOffset})
        if (is_float(inputs[i].type)) {
          inputs[i].data = widened(context, inputs[i], floats[i]);
          inputs[i].type = kFloat;
        }
    }
    attend(context, inputs, n, bias, results);
    if (storage.narrow != nullptr) narrow(context, storage, results, shape.elements(), dst);
  }

 private:
  static bool is_float(Type type) { return type == kFloat || type == kFloat16 || type == kBfloat16; }

  void attend(Context& context, const Tensor* inputs, const CompressedSizes& n, const AttentionBias& bias,
              float* dst) const {
    if (n.t == 0) {
      std::fill(dst, dst + n.b * n.h * n.s * n.e, 0.0f);
      return;
    }
    Run run = {n,
               CompressedOperand(inputs[kKey], inputs[kKeyScale], inputs[kKeyZeroPoint], inputs[kKeyOffset], n, n.d,
                                 transposed_key_, scale_query_),
               CompressedOperand(inputs[kValue], inputs[kValueScale], inputs[kValueZeroPoint], inputs[kValueOffset], n,
                                 n.e, false, scale_result_),
               bias,
               load(static_cast<const float*>(inputs[kFactor].data)),
               static_cast<const float*>(inputs[kQuery].data),
               dst};
    const int64_t at_once = active_compressed().score_rows;
    const int64_t rows = std::clamp<int64_t>(kUnitScores / n.t, at_once, kUnitRows) / at_once * at_once;
    const int64_t heads = n.b * n.k;
    const bool packs = n.rows() >= kPackedRows;
    const bool has_narrow_groups = run.key.groups() > 1 && run.key.group_size() <= kNarrowGroup;
    const bool packs_key = packs || (has_narrow_groups && !run.key.is_transposed() && n.rows() >= kPackedRowsOfNarrow);
    Workspaces workspaces(run, std::min(rows, n.rows()));
    const int64_t blocks = divide_up(n.rows(), rows), parts = parts_of(run, heads * blocks);
    if (heads < kFewHeads && (packs || blocks * parts > 1)) {
      attend_few(context, run, heads, rows, parts, packs_key, packs, workspaces);
      return;
    }
    run_tasks(context, heads, [&](int64_t i) {
      std::unique_ptr<Workspace> workspace = workspaces.take();
      CompressedHead key(run.key, i, workspace->heads[0]), value(run.value, i, workspace->heads[1]);
      if (packs_key) key.pack(true);
      if (packs) value.pack(false);
      for (int64_t row = 0; row < n.rows(); row += rows)
        attend_unit(run, key, value, row, std::min(rows, n.rows() - row), *workspace);
      workspaces.give_back(std::move(workspace));
    });
  }

  static void attend_unit(const Run& run, const CompressedHead& key, const CompressedHead& value, int64_t row,
                          int64_t rows, Workspace& workspace) {
    Unit unit(run, key, value, row, rows, workspace);
    unit.score(0, run.n.t);
    unit.soften();
    float* const totals = workspace.totals.get();
    std::fill(totals, totals + unit.elements(), 0.0f);
    unit.add_values(0, run.n.t, totals);
    unit.finish(totals);
  }

  // The parts of the keys: one if there are many units, since each part takes threads that wait for each other.
  static int64_t parts_of(const Run& run, int64_t units) {
    // Parts that do not begin with a panel would write the same scores; those that do not begin with a block would
    // round its words with other steps.
    const bool has_parts = (!run.key.is_per_channel() || run.key.token_group_size() % kWordUnit == 0) &&
                           (run.value.token_groups() == 1 || run.value.token_group_size() % kMostProducts == 0);
    if (units >= kFewUnits || !has_parts) return 1;
    return std::max<int64_t>(1, (run.n.t + kKeysOfPart / 2) / kKeysOfPart);
  }

  // Threads share the rows of a head and, if there are few, its keys.
  static void attend_few(Context& context, const Run& run, int64_t heads, int64_t rows, int64_t parts, bool packs_key,
                         bool packs_value, Workspaces& workspaces) {
    const CompressedSizes& n = run.n;
    std::vector<std::unique_ptr<CompressedHead>> keys(static_cast<size_t>(heads)), values(static_cast<size_t>(heads));
    std::vector<HeadMemory> memories(static_cast<size_t>(2 * heads));
    run_tasks(context, 2 * heads, [&](int64_t i) {
      const bool is_key = i % 2 == 0;
      auto head =
          std::make_unique<CompressedHead>(is_key ? run.key : run.value, i / 2, memories[static_cast<size_t>(i)]);
      if (is_key ? packs_key : packs_value) head->pack(is_key);
      (is_key ? keys : values)[static_cast<size_t>(i / 2)] = std::move(head);
    });
    const int64_t blocks = divide_up(n.rows(), rows), units = heads * blocks;
    const auto row_of = [&](int64_t i) { return i % blocks * rows; };
    const auto rows_of = [&](int64_t i) { return std::min(rows, n.rows() - row_of(i)); };
    if (parts == 1) {
      run_tasks(context, units, [&](int64_t i) {
        const auto head = static_cast<size_t>(i / blocks);
        std::unique_ptr<Workspace> workspace = workspaces.take();
        attend_unit(run, *keys[head], *values[head], row_of(i), rows_of(i), *workspace);
        workspaces.give_back(std::move(workspace));
      });
      return;
    }
    std::vector<std::unique_ptr<Unit>> all(static_cast<size_t>(units));
    std::vector<std::unique_ptr<Workspace>> workspaces_of_units(static_cast<size_t>(units));
    std::vector<std::vector<float>> totals(static_cast<size_t>(units * parts));  // of blocks, to be added in order
    const auto length = [&](int64_t part) { return part + 1 < parts ? kKeysOfPart : n.t - part * kKeysOfPart; };
    run_tasks(context, units, [&](int64_t i) {
      const auto at = static_cast<size_t>(i), head = static_cast<size_t>(i / blocks);
      workspaces_of_units[at] = workspaces.take();
      all[at] =
          std::make_unique<Unit>(run, *keys[head], *values[head], row_of(i), rows_of(i), *workspaces_of_units[at]);
    });
    run_tasks(context, units * parts, [&](int64_t i) {
      all[static_cast<size_t>(i / parts)]->score(i % parts * kKeysOfPart, length(i % parts));
    });
    run_tasks(context, units, [&](int64_t i) { all[static_cast<size_t>(i)]->soften(); });
    run_tasks(context, units * parts, [&](int64_t i) {
      const Unit& unit = *all[static_cast<size_t>(i / parts)];
      std::vector<float>& of_part = totals[static_cast<size_t>(i)];
      const int64_t first = i % parts * kKeysOfPart, blocks_of_part = divide_up(length(i % parts), kMostProducts);
      of_part.resize(static_cast<size_t>(blocks_of_part * unit.elements()));
      for (int64_t block = 0; block < blocks_of_part; ++block)
        unit.add_values(first + block * kMostProducts, kMostProducts, of_part.data() + block * unit.elements());
    });
    run_tasks(context, units, [&](int64_t i) {
      const Unit& unit = *all[static_cast<size_t>(i)];
      std::vector<float> sum(static_cast<size_t>(unit.elements()));
      for (int64_t part = 0; part < parts; ++part) {
        const std::vector<float>& of_part = totals[static_cast<size_t>(i * parts + part)];
        for (size_t j = 0; j < of_part.size(); ++j) sum[j % sum.size()] += of_part[j];
      }
      unit.finish(sum.data());
    });
  }

  [[noreturn]] static void fail(const std::string& message) { throw Error(std::string(kName) + ": " + message); }

  static bool flag(const Attributes& attributes, const char* name) {
    const int64_t value = attributes.integer(name, 0);
    if (value != 0 && value != 1) fail(std::string(name) + " is " + std::to_string(value) + ", expected 0 or 1");
    return value == 1;
  }

  static void check_type(const Tensor& tensor, bool is_float, const std::string& name) {
    if (CompressedAttention::is_float(tensor.type) != is_float)
      fail(name + " is " + name_of(tensor.type) + ", expected " + (is_float ? "floats" : "codes") + " because float_" +
           name + " is " + (is_float ? "1" : "0"));
  }

  CompressedSizes sizes_of(const Tensor* inputs) const {
    const Shape &query = inputs[kQuery].shape, &key = inputs[kKey].shape, &value = inputs[kValue].shape;
    const size_t length = transposed_key_ ? 3 : 2;
    for (const Shape* each : {&query, &key, &value})
      if (each->rank != 4)
        fail("query, key and value have the shapes " + query.text() + ", " + key.text() + " and " + value.text() +
             ", expected rank 4");
    const CompressedSizes n = {query.dims[0],    query.dims[1], key.dims[1],  query.dims[2],
                               key.dims[length], query.dims[3], value.dims[3]};
    if (key.dims[0] != n.b || value.dims[0] != n.b || value.dims[1] != n.k || value.dims[2] != n.t ||
        key.dims[5 - length] != n.d || (n.k == 0 ? n.h != 0 : n.h % n.k != 0))
      fail("query, key and value have the shapes " + query.text() + ", " + key.text() + " and " + value.text() +
           ", expected [B, H, S, D], " + (transposed_key_ ? "[B, K, D, T]" : "[B, K, T, D]") +
           " and [B, K, T, E], where H is a multiple of K");
    if (n.d == 0) fail("query has heads without elements, expected one or more");
    if (std::max({n.t, n.d, n.e}) > kMostLength)
      fail("there are " + std::to_string(n.t) + " keys, and heads of " + std::to_string(std::max(n.d, n.e)) +
           ", expected at most " + std::to_string(kMostLength));
    return n;
  }

  // Scales [B or 1, K or 1, token groups, groups], or with the last dimensions swapped, and zero points and offsets
  // that broadcast to them. Those of floats have one element.
  static void check_parameters(const Tensor& scale, const Tensor& zero_point, const Tensor& offset,
                               const CompressedSizes& n, int64_t size, bool is_transposed, const std::string& name) {
    const size_t groups_axis = is_transposed ? 2 : 3, tokens_axis = 5 - groups_axis;
    int64_t expected[] = {n.b, n.k, n.t, n.t};
    bool fits = scale.shape.rank == 4;
    if (fits) {
      const int64_t groups = scale.shape.dims[groups_axis], token_groups = scale.shape.dims[tokens_axis];
      fits = groups > 0 && size % groups == 0 && (token_groups > 0 ? n.t % token_groups == 0 : n.t == 0);
      expected[groups_axis] = groups;
      expected[tokens_axis] = token_groups;
      for (size_t i = 0; i < 2; ++i) fits = fits && (scale.shape.dims[i] == expected[i] || scale.shape.dims[i] == 1);
    }
    if (!fits)
      fail(name + "_scale has shape " + scale.shape.text() + ", expected rank 4: " + std::to_string(n.b) + " or 1, " +
           std::to_string(n.k) + " or 1, then divisors of " + std::to_string(n.t) + " and " + std::to_string(size) +
           (is_transposed ? ", in the other order" : ""));
    const auto check = [&](const Shape& shape, const char* what) {
      fits = shape.rank == 4;
      for (size_t i = 0; fits && i < 4; ++i) fits = shape.dims[i] == expected[i] || shape.dims[i] == 1;
      if (!fits)
        fail(name + what + " has shape " + shape.text() + ", expected rank 4, and dimensions of " + name +
             "_scale, or 1");
    };
    check(zero_point.shape, "_zero_point");
    check(offset.shape, "_offset");
  }

  bool transposed_key_, float_key_, float_value_, scale_query_, scale_result_;
};

}  // namespace

Operator compressed_attention() {
  std::vector<Signature> signatures;
  for (const Type type : {kFloat, kFloat16, kBfloat16}) {
    const Type operands[] = {kUint8, kInt8, kUint4, kInt4, type};
    for (const Type key : operands)
      for (const Type value : operands)
        if (key != type || value != type)
          signatures.push_back({{type, key, type, key, value, type, value, kFloat, kFloat, type, type}, {type}});
  }
  Operator op = {kName, kInputs, signatures, make_node<CompressedAttention>, type_of_input<kQuery>};
  op.columns_input = kValue;
  return op;
}

}  // namespace dynq
