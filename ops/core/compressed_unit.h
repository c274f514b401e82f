// A unit of work of attention over codes: a block of query rows of one head of keys. Its steps are score() of all keys,
// soften(), add_values() of all keys, and finish().
#pragma once

#include <memory>
#include <vector>

#include "core/attention_bias.h"
#include "core/compressed_heads.h"
#include "core/rounding.h"
#include "core/scratch.h"

namespace dynq {

constexpr int64_t kKeysOfPart = 1024;
constexpr int64_t kMaxLength = 1 << 22;  // of keys and of heads: sums of products of words fit the 53 bits of a double
constexpr int64_t kUnitScores = 65536;   // of a unit, unless it has few rows: they stay in the second-level cache

// Parts of the keys begin where sums of products do, and blocks of these where the padding of words ends.
static_assert(kKeysOfPart % kMaxProducts == 0 && kMaxProducts % kWordUnit == 0);
static_assert(static_cast<int64_t>(kLargestWord) * 255 * kMaxProducts <= INT32_MAX);
static_assert(static_cast<int64_t>(kLargestWord) * static_cast<int64_t>(kLargestWord) * kMaxLength <= int64_t{1} << 53);
static_assert(kWordUnit % kMaxPanelColumns == 0);

// Values have sums for blocks of at most kMaxProducts keys, each with its own step of words. If their scales are of
// channels, the keys of a block are of one token group. The words of each block begin at a multiple of kWordUnit.
struct CompressedBlocks {
  explicit CompressedBlocks(const CompressedOperand& value)
      : part(value.token_group_size()),
        of_part(divide_up(part, kMaxProducts)),
        stride(round_up(std::min(part, kMaxProducts), kWordUnit)),
        count(value.token_groups() * of_part) {}

  int64_t number(int64_t t) const { return t / part * of_part + t % part / kMaxProducts; }
  int64_t start(int64_t t) const { return t - t % part % kMaxProducts; }
  int64_t end(int64_t t) const { return std::min(start(t) + kMaxProducts, (t / part + 1) * part); }
  int64_t word(int64_t t) const { return number(t) * stride + t - start(t); }
  int64_t words() const { return (count - 1) * stride + round_up(part - (of_part - 1) * kMaxProducts, kWordUnit); }

  int64_t part, of_part, stride, count;
};

// What all units of a run share.
struct CompressedRun {
  CompressedSizes n;
  CompressedOperand key, value;
  AttentionBias bias;
  float factor;
  const float* query;
  float* dst;
};

// KeyRange [first, end).
struct KeyRange {
  int64_t first, end;

  int64_t count() const { return end - first; }
  KeyRange part(const KeyRange& other) const { return {std::max(first, other.first), std::min(end, other.end)}; }
};

// Words of rows of query.
struct WordsOfQueries {
  WordsOfQueries(const CompressedOperand& key, int64_t rows)
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
struct CompressedWorkspace {
  CompressedWorkspace(const CompressedRun& run, int64_t rows)
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

  CompressedBlocks blocks;
  int64_t padded;
  WordsOfQueries queries;           // unless scales are factors of the query
  std::unique_ptr<float[]> scores;  // [rows, T], then powers
  std::vector<float> inverses;
  std::unique_ptr<int16_t[]> words;  // [groups, rows, word rows, padded]
  std::vector<float> word_steps;     // [groups, blocks, rows]
  std::vector<float> offsets;  // sums of powers times offsets, [rows, groups], or [rows, E] if they are of channels
  std::unique_ptr<float[]> totals;  // [rows, E]
  HeadMemory heads[2];              // of key and of value
};

class CompressedUnit {
 public:
  CompressedUnit(const CompressedRun& run, const CompressedHead& key, const CompressedHead& value, int64_t row,
                 int64_t rows, CompressedWorkspace& workspace);

  // The products of the queries with keys [first, first + count). Threads may score other keys at the same time.
  void score(int64_t first, int64_t count);

  // Scores become powers, and words of powers times the scales of values.
  void soften();

  // Adds the products of the words with values [first, first + count) to totals [rows, E], one block after the other.
  void add_values(int64_t first, int64_t count, float* totals) const;

  void finish(const float* totals) const;

  int64_t elements() const { return rows_ * n_.e; }

 private:
  struct StoredKeys;
  struct StoredValues;

  // Scores.
  const float* query(int64_t r) const { return run_.query + (head_ * n_.rows() + row_ + r) * n_.d; }
  const float* bias_of(int64_t r) const;
  KeyRange seen() const;
  void quantize(const float* scales, const uint8_t* zero_points, WordsOfQueries& to) const;
  void describe_words(int64_t at, int16_t* words, const uint8_t* zero_points, WordsOfQueries& to) const;
  void score_range(const WordsOfQueries& queries, KeyRange range, int64_t token_group, int64_t part_first);
  void score_packed(const WordsOfQueries& queries, KeyRange range, int64_t token_group, int64_t part_first);
  void score_stored(const WordsOfQueries& queries, KeyRange range);
  void score_groups(const WordsOfQueries& queries, StoredKeys& keys, int64_t t, int64_t cols, int64_t group);
  bool begins_at_bytes(int64_t t) const;
  void set_rows(WordProduct& product, int64_t from, int64_t t, uint8_t* holder) const;
  bool uses_halves_of_key() const;
  const float* scales_of(int64_t group, int64_t t) const;
  const uint8_t* zero_points_of(int64_t group, int64_t t) const;
  void scale_sums(const int32_t* sums, const WordsOfQueries& queries, int64_t group, int64_t r, int64_t t,
                  int64_t cols);
  void scale_totals(const double* totals, const WordsOfQueries& queries, int64_t group, int64_t r, int64_t t,
                    int64_t cols);
  void add_offsets_of_groups(KeyRange range);
  void add_offsets_of_channels(const float* offsets, KeyRange range, WordsOfQueries& queries);

  // Values.
  void soften(int64_t row, int64_t rows);
  void sum_offsets();
  int64_t end_of_block(int64_t t) const { return std::min(seen_.end, blocks_.end(t)); }
  float* steps_of(int64_t group, int64_t t) const {
    return word_steps_.data() + (group * blocks_.count + blocks_.number(t)) * rows_;
  }
  const float* scales_of_result(int64_t t) const;
  void add_packed_values(KeyRange range, float* totals) const;
  void add_stored_values(KeyRange range, float* totals) const;
  void add_stored_group(const StoredValues& values, int64_t t, int64_t group, float* totals) const;
  void add_row(const StoredValues& values, const WordProduct& product, int64_t r, int64_t t, int64_t group,
               float* totals) const;

  const CompressedRun& run_;
  const CompressedSizes& n_;
  const int64_t head_, row_, rows_;
  const CompressedHead &key_, &value_;
  const CompressedBlocks& blocks_;
  const int64_t padded_;
  KeyRange seen_ = {};
  WordsOfQueries& queries_;
  float* const scores_;
  std::vector<float>& inverses_;
  int16_t* const words_;
  std::vector<float>& word_steps_;
  std::vector<float>& offsets_;
};

// The sum of words. Those of at most kMaxProducts words fit int32, for which compilers use vectors.
int32_t sum_of_words(const int16_t* words, int64_t count);

inline int number_of_code(uint8_t code, bool is_signed) { return is_signed ? static_cast<int8_t>(code) : int{code}; }

}  // namespace dynq
