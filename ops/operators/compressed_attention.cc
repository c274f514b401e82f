// CompressedAttention: softmax(query * key^T * scale + bias) * value, where keys and values are codes of 8 or 4 bits
// with scales of groups along the head.
//
// Queries, and the powers of softmax times the scales of the values, become codes of 16 bits ("words"), so that sums of
// products are exact: results depend neither on their order nor on the layout. float32 keys or values become words of
// two bytes, which are two planes of codes. A unit of work is a block of query rows of one head of keys.
//
// More than 450 lines: operands, units and the node share the sizes and inputs of a run, and nothing else uses them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "core/attention_bias.h"
#include "core/formats.h"
#include "core/parallel.h"
#include "core/rounding.h"
#include "kernels/dispatch.h"
#include "kernels/numbers.h"

namespace dynq {
namespace {

constexpr const char* kName = "CompressedAttention";
constexpr int64_t kMostRows = 48;         // of a unit: a multiple of the rows of every kernel's tile
constexpr int64_t kUnitScores = 65536;    // of a unit, unless it has few rows: they stay in the second-level cache
constexpr int64_t kMostLength = 1 << 22;  // of keys and of heads: sums of products of words fit the 53 bits of a double
constexpr int64_t kFewUnits = 16;         // fewer are divided along the keys
constexpr int64_t kKeysOfPart = 1024;
constexpr int64_t kTransposedRows = 16;  // rows of float keys that are read at once

// Parts of the keys begin where sums of products do, and blocks of these where the padding of words ends.
static_assert(kKeysOfPart % kMostProducts == 0 && kMostProducts % kWordUnit == 0);
static_assert(static_cast<int64_t>(kLargestWord) * 255 * kMostProducts <= INT32_MAX);
static_assert(static_cast<int64_t>(kLargestWord) * static_cast<int64_t>(kLargestWord) * kMostLength <= int64_t{1}
                                                                                                           << 53);

enum Input { kQuery, kKey, kKeyScale, kKeyZeroPoint, kValue, kValueScale, kValueZeroPoint, kBias, kFactor };

// One run: B batches; H heads of query, K of key and value; S rows of query, T of key and value; D and E elements of a
// head of query and value.
struct Sizes {
  int64_t b, h, k, s, t, d, e;

  int64_t rows() const { return h / k * s; }  // of query for one head of key
};

template <class T>
std::unique_ptr<T[]> memory(int64_t count) {
  return std::unique_ptr<T[]>(new T[static_cast<size_t>(count)]);
}

CodeKind kind_of(Type type) { return type == kInt8 || type == kInt4 ? kS8 : kU8; }

// Codes of 4 bits [first, first + count), which may begin in the middle of a byte, as codes of 8 bits.
void widen_codes(const Storage& storage, Type type, const void* data, int64_t first, int64_t count, uint8_t* to) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  if (first % 2 != 0 && count > 0) {
    const int code = bytes[first / 2] >> 4;
    *to++ = static_cast<uint8_t>(type == kInt4 && code > 7 ? code - 16 : code);
    ++first;
    --count;
  }
  if (count > 0) storage.widen(bytes + first / 2, to, count);
}

// Bytes of codes by which words are multiplied; the sums are multiplied by `weight`.
struct Plane {
  CodeKind kind;
  int weight;
};

// Keys or values of one head.
class Operand {
 public:
  // `length` rows of `size` elements, or with `is_transposed` as many columns.
  Operand(const Tensor& codes, const Tensor& scales, const Tensor& zero_points, const Sizes& n, int64_t size,
          bool is_transposed)
      : codes_(codes),
        scales_(scales),
        zero_points_(zero_points),
        storage_(storage_of(codes.type)),
        n_(n),
        size_(size),
        is_transposed_(is_transposed),
        is_packed_(bits_of(codes.type) == 4),
        groups_(is_float() ? 1 : scales.shape.dims[is_transposed ? 2 : 3]) {
    if (is_float())
      planes_ = {{kS8, 256}, {kU8, 1}};
    else
      planes_ = {{kind_of(codes.type), 1}};
  }

  bool is_float() const { return codes_.type == kFloat; }
  bool is_packed() const { return is_packed_; }  // two codes in a byte
  bool is_transposed() const { return is_transposed_; }
  int64_t groups() const { return groups_; }
  int64_t size() const { return size_; }
  int64_t group_size() const { return size_ / groups_; }
  const std::vector<Plane>& planes() const { return planes_; }
  const Tensor& codes() const { return codes_; }
  const Sizes& sizes() const { return n_; }

  bool has_zero_points() const {
    if (is_float()) return false;
    if (zero_points_.shape.elements() != 1) return true;
    uint8_t code = 0;
    read_zero_points(0, 1, &code);
    return code != 0;
  }

  // The scales of a head: [groups, T]; `memory` holds them if the tensor has another order.
  const float* scales(int64_t head, std::unique_ptr<float[]>& holder) const {
    const int64_t count = groups_ * n_.t;
    if (is_in_order(scales_)) return static_cast<const float*>(scales_.data) + start(scales_, head);
    holder = memory<float>(count);
    each(scales_, head, [&](int64_t to, int64_t from) {
      holder[static_cast<size_t>(to)] = load(static_cast<const float*>(scales_.data) + from);
    });
    return holder.get();
  }

  const uint8_t* zero_points(int64_t head, std::unique_ptr<uint8_t[]>& holder) const {
    if (!has_zero_points()) return nullptr;
    if (!is_packed_ && is_in_order(zero_points_))
      return static_cast<const uint8_t*>(zero_points_.data) + start(zero_points_, head);
    holder = memory<uint8_t>(groups_ * n_.t);
    const int64_t count = zero_points_.shape.elements() / (dim(zero_points_, 0) * dim(zero_points_, 1));
    const auto codes = memory<uint8_t>(count);
    const int64_t first = start(zero_points_, head);
    read_zero_points(first, count, codes.get());
    each(zero_points_, head,
         [&](int64_t to, int64_t from) { holder[static_cast<size_t>(to)] = codes[static_cast<size_t>(from - first)]; });
    return holder.get();
  }

  // The words of a head of floats: [T, size] high bytes, then low bytes; and a scale for each row.
  void quantize(int64_t head, uint8_t* bytes, float* scales) const {
    const auto rows = memory<float>(is_transposed_ ? kTransposedRows * size_ : 0);
    const auto words = memory<int16_t>(size_);
    const auto* from = static_cast<const float*>(codes_.data) + head * n_.t * size_;
    const QuantizeWordsKernel to_words = active_kernels().compressed.quantize_words;
    for (int64_t t = 0; t < n_.t; ++t) {
      const float* numbers = from + t * size_;
      if (is_transposed_) {
        const int64_t at = t % kTransposedRows;
        if (at == 0)
          for (int64_t i = 0; i < size_; ++i)
            for (int64_t j = 0; j < std::min(kTransposedRows, n_.t - t); ++j)
              store(rows.get() + j * size_ + i, load(from + i * n_.t + t + j));
        numbers = rows.get() + at * size_;
      }
      scales[t] = to_words(numbers, nullptr, size_, words.get());
      uint8_t *high = bytes + t * size_, *low = high + n_.t * size_;
      for (int64_t i = 0; i < size_; ++i) {
        const auto word = static_cast<uint16_t>(words[static_cast<size_t>(i)]);
        high[i] = static_cast<uint8_t>(word >> 8);
        low[i] = static_cast<uint8_t>(word & 255);
      }
    }
  }

  // Codes [first, first + count) of a head as bytes: its own memory, or `holder`'s.
  const uint8_t* bytes(int64_t head, int64_t first, int64_t count, uint8_t* holder) const {
    const int64_t at = head * n_.t * size_ + first;
    if (!is_packed_) return static_cast<const uint8_t*>(codes_.data) + at;
    widen_codes(storage_, codes_.type, codes_.data, at, count, holder);
    return holder;
  }

 private:
  static int64_t dim(const Tensor& tensor, size_t axis) { return tensor.shape.rank == 4 ? tensor.shape.dims[axis] : 1; }

  // The number of the first element of a head.
  int64_t start(const Tensor& tensor, int64_t head) const {
    const int64_t batch = head / n_.k, heads = dim(tensor, 1), of_head = dim(tensor, 2) * dim(tensor, 3);
    return ((dim(tensor, 0) == 1 ? 0 : batch * heads) + (heads == 1 ? 0 : head % n_.k)) * of_head;
  }

  bool is_in_order(const Tensor& tensor) const {
    const bool is_whole = dim(tensor, is_transposed_ ? 3 : 2) == n_.t && dim(tensor, is_transposed_ ? 2 : 3) == groups_;
    return is_whole && (is_transposed_ || groups_ == 1);
  }

  // Calls copy(to, from) for the number of each element of [groups, T] and of its element of the tensor.
  template <class Copy>
  void each(const Tensor& tensor, int64_t head, const Copy& copy) const {
    const int64_t first = start(tensor, head), columns = dim(tensor, 3);
    const int64_t of_t = dim(tensor, is_transposed_ ? 3 : 2) == 1 ? 0 : is_transposed_ ? 1 : columns;
    const int64_t of_group = dim(tensor, is_transposed_ ? 2 : 3) == 1 ? 0 : is_transposed_ ? columns : 1;
    for (int64_t group = 0; group < groups_; ++group)
      for (int64_t t = 0; t < n_.t; ++t) copy(group * n_.t + t, first + group * of_group + t * of_t);
  }

  void read_zero_points(int64_t first, int64_t count, uint8_t* to) const {
    const auto* data = static_cast<const uint8_t*>(zero_points_.data);
    if (!is_packed_)
      std::memcpy(to, data + first, static_cast<size_t>(count));
    else
      widen_codes(storage_, zero_points_.type, data, first, count, to);
  }

  Tensor codes_, scales_, zero_points_;
  Storage storage_;
  Sizes n_;
  int64_t size_;
  bool is_transposed_, is_packed_;
  int64_t groups_;
  std::vector<Plane> planes_;
};

// What all units of a run share.
struct Run {
  Sizes n;
  Operand key, value;
  AttentionBias bias;
  float factor;
  const float* query;
  float* dst;
};

// An operand of one head: its scales and zero points, and its planes if it has floats.
struct Head {
  Head(const Operand& operand, int64_t head) : operand(operand), head(head) {
    if (operand.is_float()) {
      const Sizes& n = operand.sizes();
      planes_ = memory<uint8_t>(2 * n.t * operand.size());
      float_holder_ = memory<float>(n.t);
      operand.quantize(head, planes_.get(), float_holder_.get());
      scales = float_holder_.get();
    } else {
      scales = operand.scales(head, float_holder_);
      zero_points = operand.zero_points(head, byte_holder_);
    }
  }

  // Codes [first, first + count) of a plane as bytes.
  const uint8_t* bytes(size_t plane, int64_t first, int64_t count, uint8_t* holder) const {
    if (!operand.is_float()) return operand.bytes(head, first, count, holder);
    return planes_.get() + static_cast<int64_t>(plane) * operand.sizes().t * operand.size() + first;
  }

  const Operand& operand;
  int64_t head;
  const float* scales;                   // [groups, T]
  const uint8_t* zero_points = nullptr;  // likewise; null: 0

 private:
  std::unique_ptr<uint8_t[]> planes_, byte_holder_;
  std::unique_ptr<float[]> float_holder_;
};

// Rows [row, row + rows) of the query of one head of key. The steps are score() of all keys, soften(), add_values() of
// all keys, and finish().
class Unit {
 public:
  Unit(const Run& run, const Head& key, const Head& value, int64_t row, int64_t rows)
      : run_(run),
        n_(run.n),
        head_(key.head),
        row_(row),
        rows_(rows),
        key_(key),
        value_(value),
        padded_(round_up(n_.t, kWordUnit)),
        query_stride_(round_up(run.key.group_size(), kWordUnit)),
        queries_(memory<int16_t>(rows * run.key.groups() * query_stride_)),
        query_steps_(rows * run.key.groups()),
        query_sums_(rows * run.key.groups()),
        scores_(memory<float>(rows * n_.t)),
        inverses_(rows),
        words_(memory<int16_t>(run.value.groups() * rows * padded_)),
        word_steps_(run.value.groups() * rows) {
    const int64_t groups = run.key.groups(), size = run.key.group_size();
    const float* query = run.query + (head_ * n_.rows() + row) * n_.d;
    for (int64_t group = 0; group < groups; ++group)
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t at = group * rows + r;
        int16_t* const to = queries_.get() + at * query_stride_;
        std::fill(to + size, to + query_stride_, int16_t{0});
        query_steps_[static_cast<size_t>(at)] =
            kernels().quantize_words(query + r * n_.d + group * size, nullptr, size, to);
        int64_t sum = 0;
        for (int64_t i = 0; i < size; ++i) sum += to[i];
        query_sums_[static_cast<size_t>(at)] = sum;
      }
  }

  // The products of the queries with keys [first, first + count).
  void score(int64_t first, int64_t count) {
    const Operand& key = run_.key;
    const int64_t size = key.group_size();
    const bool is_by_row = key.is_transposed() && !key.is_float();
    const bool fits = size <= kMostProducts && !key.is_float();
    const int64_t block = std::min(count, is_by_row ? kKeysOfPart : kMostProducts);
    const auto sums = memory<int32_t>(rows_ * block);
    std::vector<double> totals(static_cast<size_t>(fits ? 0 : rows_ * block));
    const bool is_widened = key.is_packed();
    const auto holder =
        memory<uint8_t>(is_widened ? (is_by_row ? std::min(size, kMostProducts) : key.size()) * block : 0);
    for (int64_t t = first; t < first + count; t += block) {
      const int64_t cols = std::min(block, first + count - t);
      const uint8_t* rows = is_by_row || is_widened ? nullptr : key_.bytes(0, t * key.size(), 0, nullptr);
      if (!is_by_row && is_widened) rows = key_.bytes(0, t * key.size(), cols * key.size(), holder.get());
      for (int64_t group = 0; group < key.groups(); ++group) {
        std::fill(totals.begin(), totals.end(), 0.0);
        for (int64_t d = 0; d < size; d += kMostProducts) {
          const int64_t depth = std::min(kMostProducts, size - d), from = group * size + d;
          for (size_t plane = 0; plane < key.planes().size(); ++plane) {
            WordProduct product = {};
            product.words = queries_.get() + group * rows_ * query_stride_ + d;
            product.word_stride = query_stride_;
            product.rows = rows_;
            product.depth = depth;
            product.cols = cols;
            product.sums = sums.get();
            product.sum_stride = cols;
            const CodeKind kind = key.planes()[plane].kind;
            if (is_by_row) {
              set_rows(product, from, t, holder.get());
              kernels().by_row[kind](product);
            } else {
              const uint8_t* codes = key.is_float() ? key_.bytes(plane, t * key.size(), 0, nullptr) : rows;
              product.codes = codes + from;
              product.code_stride = key.size();
              kernels().by_column[kind](product);
            }
            if (!fits) add(sums.get(), rows_ * cols, key.planes()[plane].weight, totals.data());
          }
        }
        for (int64_t r = 0; r < rows_; ++r)
          if (fits)
            scale_sums(sums.get() + r * cols, group, r, t, cols);
          else
            scale_totals(totals.data() + r * cols, group, r, t, cols);
      }
    }
  }

  // Scores become powers, and words of powers times the scales of values.
  void soften() {
    const int64_t groups = run_.value.groups();
    for (int64_t r = 0; r < rows_; ++r) {
      float* const of_row = scores_.get() + r * n_.t;
      const int64_t number = row_ + r, h = head_ % n_.k * (n_.h / n_.k) + number / n_.s;
      const AttentionBias& bias = run_.bias;
      const float* biases =
          bias.data + head_ / n_.k * bias.strides[0] + h * bias.strides[1] + number % n_.s * bias.strides[2];
      inverses_[static_cast<size_t>(r)] = kernels().powers({of_row, n_.t, run_.factor, biases, bias.strides[3] != 0});
      for (int64_t group = 0; group < groups; ++group) {
        int16_t* const to = words_.get() + (group * rows_ + r) * padded_;
        word_steps_[static_cast<size_t>(group * rows_ + r)] =
            kernels().quantize_words(of_row, value_.scales + group * n_.t, n_.t, to);
        std::fill(to + n_.t, to + padded_, int16_t{0});
      }
    }
  }

  // Adds the products of the words with values [first, first + count) to totals [rows, E]. `first` is a multiple of
  // kMostProducts.
  void add_values(int64_t first, int64_t count, double* totals) const {
    const Operand& value = run_.value;
    const int64_t size = value.group_size();
    const auto sums = memory<int32_t>(rows_ * size);
    const auto holder = memory<uint8_t>(std::min(kMostProducts, count) * n_.e);
    for (int64_t t = first; t < first + count; t += kMostProducts) {
      const int64_t depth = std::min(kMostProducts, first + count - t);
      for (size_t plane = 0; plane < value.planes().size(); ++plane) {
        const auto [kind, weight] = value.planes()[plane];
        const uint8_t* codes = value_.bytes(plane, t * n_.e, depth * n_.e, holder.get());
        for (int64_t group = 0; group < value.groups(); ++group) {
          WordProduct product = {};
          product.words = words_.get() + group * rows_ * padded_ + t;
          product.word_stride = padded_;
          product.rows = rows_;
          product.depth = depth;
          product.cols = size;
          product.codes = codes + group * size;
          product.code_stride = n_.e;
          product.sums = sums.get();
          product.sum_stride = size;
          kernels().by_row[kind](product);
          for (int64_t r = 0; r < rows_; ++r)
            add(sums.get() + r * size, size, weight, totals + r * n_.e + group * size);
          if (value_.zero_points == nullptr) continue;
          product.cols = 1;
          product.codes = value_.zero_points + group * n_.t + t;
          product.sum_stride = 1;
          kernels().by_column[kind](product);
          for (int64_t r = 0; r < rows_; ++r)
            for (int64_t i = 0; i < size; ++i) totals[r * n_.e + group * size + i] -= sums[static_cast<size_t>(r)];
        }
      }
    }
  }

  void finish(const double* totals) const {
    const int64_t size = run_.value.group_size();
    for (int64_t r = 0; r < rows_; ++r) {
      float* const to = run_.dst + (head_ * n_.rows() + row_ + r) * n_.e;
      for (int64_t group = 0; group < run_.value.groups(); ++group) {
        const float step = word_steps_[static_cast<size_t>(group * rows_ + r)];
        for (int64_t i = group * size; i < (group + 1) * size; ++i)
          store(to + i, static_cast<float>(totals[r * n_.e + i]) * step * inverses_[static_cast<size_t>(r)]);
      }
    }
  }

  int64_t elements() const { return rows_ * n_.e; }

 private:
  static const CompressedKernels& kernels() { return active_kernels().compressed; }

  static void add(const int32_t* sums, int64_t count, int weight, double* totals) {
    for (int64_t i = 0; i < count; ++i) totals[i] += static_cast<double>(sums[i]) * weight;
  }

  // Rows [from, from + depth) and columns [t, t + cols) of transposed keys.
  void set_rows(WordProduct& product, int64_t from, int64_t t, uint8_t* holder) const {
    const int64_t depth = product.depth, cols = product.cols;
    const bool is_stored = !run_.key.is_packed();
    product.code_stride = is_stored ? n_.t : cols;
    if (is_stored || cols == n_.t) {
      product.codes = key_.bytes(0, from * n_.t + t, depth * cols, holder);
      return;
    }
    for (int64_t d = 0; d < depth; ++d) key_.bytes(0, (from + d) * n_.t + t, cols, holder + d * cols);
    product.codes = holder;
  }

  void scale_sums(const int32_t* sums, int64_t group, int64_t r, int64_t t, int64_t cols) {
    const auto at = static_cast<size_t>(group * rows_ + r);
    const int64_t parameters = group * n_.t + t;
    const uint8_t* zero_points = key_.zero_points == nullptr ? nullptr : key_.zero_points + parameters;
    kernels().scores[run_.key.planes()[0].kind]({sums, zero_points, static_cast<int32_t>(query_sums_[at]),
                                                 query_steps_[at], key_.scales + parameters, cols, group > 0,
                                                 scores_.get() + r * n_.t + t});
  }

  // The same of sums beyond int32.
  void scale_totals(const double* totals, int64_t group, int64_t r, int64_t t, int64_t cols) {
    const auto at = static_cast<size_t>(group * rows_ + r);
    const bool is_signed = run_.key.planes()[0].kind == kS8;
    for (int64_t i = 0; i < cols; ++i) {
      const int64_t parameter = group * n_.t + t + i;
      const uint8_t byte = key_.zero_points == nullptr ? uint8_t{0} : key_.zero_points[parameter];
      const int64_t zero_point = is_signed ? static_cast<int8_t>(byte) : byte;
      const double exact = totals[i] - static_cast<double>(zero_point * query_sums_[at]);
      const float score = static_cast<float>(exact) * query_steps_[at] * load(key_.scales + parameter);
      float& to = scores_[static_cast<size_t>(r * n_.t + t + i)];
      to = group > 0 ? to + score : score;
    }
  }

  const Run& run_;
  const Sizes& n_;
  const int64_t head_, row_, rows_;
  const Head &key_, &value_;
  const int64_t padded_, query_stride_;
  std::unique_ptr<int16_t[]> queries_;  // [groups, rows, query_stride]
  std::vector<float> query_steps_;
  std::vector<int64_t> query_sums_;
  std::unique_ptr<float[]> scores_;  // [rows, T], then powers
  std::vector<float> inverses_;
  std::unique_ptr<int16_t[]> words_;  // [groups, rows, padded]
  std::vector<float> word_steps_;
};

class CompressedAttention : public Node {
 public:
  explicit CompressedAttention(const Attributes& attributes)
      : transposed_key_(flag(attributes, "transposed_key")),
        float_key_(flag(attributes, "float_key")),
        float_value_(flag(attributes, "float_value")) {}

  void compute(Context& context) const override {
    Tensor inputs[9];
    for (size_t i = 0; i < 9; ++i) inputs[i] = context.input(i);
    const Sizes n = sizes_of(inputs);
    check_type(inputs[kKey], float_key_, "key");
    check_type(inputs[kValue], float_value_, "value");
    for (const auto i : {kKey, kValue})
      if (inputs[i].type == kFloat && (inputs[i + 1].shape.elements() != 1 || inputs[i + 2].shape.elements() != 1))
        fail("a scale and a zero point of float32 have the shapes " + inputs[i + 1].shape.text() + " and " +
             inputs[i + 2].shape.text() + ", expected one element");
    check_parameters(inputs[kKeyScale], inputs[kKeyZeroPoint], n, n.d, transposed_key_, "key");
    check_parameters(inputs[kValueScale], inputs[kValueZeroPoint], n, n.e, false, "value");
    if (inputs[kFactor].shape.elements() != 1)
      fail("scale has shape " + inputs[kFactor].shape.text() + ", expected one element");
    const AttentionBias bias = attention_bias(kName, inputs[kBias], {n.b, n.h, n.s, n.t});
    Shape shape = inputs[kQuery].shape;
    shape.dims[3] = n.e;
    auto* dst = static_cast<float*>(context.output(0, shape));
    if (shape.elements() == 0) return;
    if (n.t == 0) {
      for (int64_t i = 0; i < shape.elements(); ++i) store(dst + i, kNan);
      return;
    }
    const Run run = {n,
                     Operand(inputs[kKey], inputs[kKeyScale], inputs[kKeyZeroPoint], n, n.d, transposed_key_),
                     Operand(inputs[kValue], inputs[kValueScale], inputs[kValueZeroPoint], n, n.e, false),
                     bias,
                     load(static_cast<const float*>(inputs[kFactor].data)) * kLog2E,
                     static_cast<const float*>(inputs[kQuery].data),
                     dst};
    const int64_t heads = n.b * n.k;
    std::vector<std::unique_ptr<Head>> keys(static_cast<size_t>(heads)), values(static_cast<size_t>(heads));
    run_tasks(context, 2 * heads, [&](int64_t i) {
      const bool is_key = i % 2 == 0;
      (is_key ? keys : values)[static_cast<size_t>(i / 2)] =
          std::make_unique<Head>(is_key ? run.key : run.value, i / 2);
    });
    const int64_t rows = std::clamp<int64_t>(kUnitScores / n.t, 6, kMostRows) / 6 * 6;
    const int64_t blocks = divide_up(n.rows(), rows), units = heads * blocks;
    const auto unit_of = [&](int64_t i) {
      const int64_t row = i % blocks * rows;
      const auto head = static_cast<size_t>(i / blocks);
      return std::make_unique<Unit>(run, *keys[head], *values[head], row, std::min(rows, n.rows() - row));
    };
    const int64_t parts = units < kFewUnits ? divide_up(n.t, kKeysOfPart) : 1;
    if (parts == 1) {
      run_tasks(context, units, [&](int64_t i) {
        const std::unique_ptr<Unit> unit = unit_of(i);
        unit->score(0, n.t);
        unit->soften();
        std::vector<double> totals(static_cast<size_t>(unit->elements()));
        unit->add_values(0, n.t, totals.data());
        unit->finish(totals.data());
      });
      return;
    }
    std::vector<std::unique_ptr<Unit>> all(static_cast<size_t>(units));
    std::vector<std::vector<double>> totals(static_cast<size_t>(units * parts));
    const auto length = [&](int64_t part) { return std::min(kKeysOfPart, n.t - part * kKeysOfPart); };
    run_tasks(context, units, [&](int64_t i) { all[static_cast<size_t>(i)] = unit_of(i); });
    run_tasks(context, units * parts, [&](int64_t i) {
      all[static_cast<size_t>(i / parts)]->score(i % parts * kKeysOfPart, length(i % parts));
    });
    run_tasks(context, units, [&](int64_t i) { all[static_cast<size_t>(i)]->soften(); });
    run_tasks(context, units * parts, [&](int64_t i) {
      const Unit& unit = *all[static_cast<size_t>(i / parts)];
      std::vector<double>& of_part = totals[static_cast<size_t>(i)];
      of_part.resize(static_cast<size_t>(unit.elements()));
      unit.add_values(i % parts * kKeysOfPart, length(i % parts), of_part.data());
    });
    run_tasks(context, units, [&](int64_t i) {
      std::vector<double>& sum = totals[static_cast<size_t>(i * parts)];
      for (int64_t part = 1; part < parts; ++part)
        for (size_t j = 0; j < sum.size(); ++j) sum[j] += totals[static_cast<size_t>(i * parts + part)][j];
      all[static_cast<size_t>(i)]->finish(sum.data());
    });
  }

 private:
  [[noreturn]] static void fail(const std::string& message) { throw Error(std::string(kName) + ": " + message); }

  static bool flag(const Attributes& attributes, const char* name) {
    const int64_t value = attributes.integer(name, 0);
    if (value != 0 && value != 1) fail(std::string(name) + " is " + std::to_string(value) + ", expected 0 or 1");
    return value == 1;
  }

  static void check_type(const Tensor& tensor, bool is_float, const std::string& name) {
    if ((tensor.type == kFloat) != is_float)
      fail(name + " is " + name_of(tensor.type) + ", expected " + (is_float ? "float32" : "codes") + " because float_" +
           name + " is " + (is_float ? "1" : "0"));
  }

  Sizes sizes_of(const Tensor* inputs) const {
    const Shape &query = inputs[kQuery].shape, &key = inputs[kKey].shape, &value = inputs[kValue].shape;
    const size_t length = transposed_key_ ? 3 : 2;
    for (const Shape* each : {&query, &key, &value})
      if (each->rank != 4)
        fail("query, key and value have the shapes " + query.text() + ", " + key.text() + " and " + value.text() +
             ", expected rank 4");
    const Sizes n = {query.dims[0],    query.dims[1], key.dims[1],  query.dims[2],
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

  // Scales [B or 1, K or 1, T or 1, groups], or with the last dimensions swapped, and zero points that broadcast to
  // them. Those of floats have one element.
  static void check_parameters(const Tensor& scale, const Tensor& zero_point, const Sizes& n, int64_t size,
                               bool is_transposed, const std::string& name) {
    const size_t groups_axis = is_transposed ? 2 : 3;
    int64_t expected[] = {n.b, n.k, n.t, n.t};
    bool fits = scale.shape.rank == 4;
    if (fits) {
      const int64_t groups = scale.shape.dims[groups_axis];
      fits = groups > 0 && size % groups == 0;
      expected[groups_axis] = groups;
      for (size_t i = 0; i < 4; ++i) fits = fits && (scale.shape.dims[i] == expected[i] || scale.shape.dims[i] == 1);
    }
    if (!fits)
      fail(name + "_scale has shape " + scale.shape.text() + ", expected rank 4: " + std::to_string(n.b) + " or 1, " +
           std::to_string(n.k) + " or 1, then " + std::to_string(n.t) + " or 1 keys and a divisor of " +
           std::to_string(size) + (is_transposed ? ", in the other order" : ""));
    fits = zero_point.shape.rank == 4;
    for (size_t i = 0; fits && i < 4; ++i)
      fits = zero_point.shape.dims[i] == expected[i] || zero_point.shape.dims[i] == 1;
    if (!fits)
      fail(name + "_zero_point has shape " + zero_point.shape.text() + ", expected rank 4, and dimensions of " + name +
           "_scale, or 1");
  }

  bool transposed_key_, float_key_, float_value_;
};

}  // namespace

Operator compressed_attention() {
  std::vector<Signature> signatures;
  constexpr Type kOperands[] = {kUint8, kInt8, kUint4, kInt4, kFloat};
  for (const Type key : kOperands)
    for (const Type value : kOperands)
      if (key != kFloat || value != kFloat)
        signatures.push_back({{kFloat, key, kFloat, key, value, kFloat, value, kFloat, kFloat}, {kFloat}});
  Operator op = {kName, 9, signatures, make_node<CompressedAttention>, always_float};
  op.columns_input = kValue;
  return op;
}

}  // namespace dynq
