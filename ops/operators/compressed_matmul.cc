// CompressedMatMul: floats times a matrix that is stored as codes of 8 or 4 bits: its rows have a scale and a zero
// point for each part of the columns.
//
// The scales vary along the sums, so each part has its own left factor, x times its scales. It becomes codes of 16 bits
// ("words"), as the weights of CompressedAttention do, so that sums are exact. A task computes some rows and parts. Few
// rows read codes as they are stored, many rows panels of them; the results are the same.
#include <algorithm>
#include <cstring>
#include <vector>

#include "core/formats.h"
#include "core/parallel.h"
#include "core/rounding.h"
#include "core/scratch.h"
#include "kernels/dispatch.h"
#include "kernels/numbers.h"

namespace dynq {
namespace {

constexpr const char* kName = "CompressedMatMul";
constexpr int64_t kPackedRows = 12;    // with fewer, packing takes longer than it saves
constexpr int64_t kTaskRows = 96;      // a multiple of the rows of every kernel's tile
constexpr int64_t kTaskColumns = 512;  // codes of kMaxProducts rows of them fit the second-level cache
constexpr int64_t kRowsAhead = 16;     // which are prefetched
constexpr int64_t kLine = 64;
constexpr int kSignOfHalves = 8;  // of codes of 4 bits
constexpr int kFlippedHalves = 0x88;

enum Input { kSrc, kWeight, kScale, kZeroPoint, kInputs };

// What all tasks of a run share.
struct Run {
  const float* src;       // [rows, depth]
  const uint8_t* weight;  // [depth, columns], as it is stored
  Type type;              // of its codes
  Storage storage;
  const float* scales;                        // [depth, parts]
  const uint8_t* zero_points;                 // likewise, of 8 bits, or one
  int64_t zero_stride;                        // parts, or 0
  int64_t rows, depth, columns, parts, size;  // `size` columns in a part
  bool is_signed, has_4_bits;
  float* dst;

  int64_t width() const { return std::min(size, kTaskColumns); }  // of a part in a task, at most
  CodeKind kind() const { return is_signed ? kS8 : kU8; }
  // Codes minus zero points.
  bool fits_int8() const { return has_4_bits || (is_signed && zero_stride == 0 && *zero_points == 0); }
};

// Some columns of adjacent parts, for some rows; at most `rows` and `parts`.
class Task {
 public:
  Task(const Run& run, int64_t rows, int64_t parts)
      : run_(run),
        packs_(rows >= kPackedRows && 2 * run.width() >= kernels().panel_columns),
        reads_halves_(run.has_4_bits && !packs_ && run.size % 2 == 0),
        row_bytes_(round_up(parts * run.width() / (reads_halves_ ? 2 : 1), kLine) + kLine),
        codes_(kMaxProducts * row_bytes_),
        scales_(parts * kMaxProducts),
        words_(rows * kMaxProducts),
        steps_(memory<float>(rows)),
        zeros_(packs_ ? 0 : parts * kMaxProducts),
        sums_(packs_ ? 0 : rows * run.width()),
        panels_(packs_ ? kMaxProducts * round_up(run.width(), kernels().panel_columns) : 0) {}

  // `width` columns from column `column` of each part on: all of them if there are several parts.
  void run(int64_t row, int64_t rows, int64_t part, int64_t parts, int64_t column, int64_t width) {
    width_ = width;
    for (int64_t first = 0; first < run_.depth; first += kMaxProducts) {
      const int64_t depth = std::min(kMaxProducts, run_.depth - first);
      turn(run_.scales + first * run_.parts + part, run_.parts, depth, parts, scales_.get());
      read_codes(first, depth, part * run_.size + column, parts * width);
      if (!packs_) turn_zeros(first, depth, part, parts);
      for (int64_t i = 0; i < parts; ++i) {
        kernels().quantize_words({run_.src + row * run_.depth + first, run_.depth, scales_.get() + i * kMaxProducts,
                                  rows, depth, words_.get(), kMaxProducts, steps_.get()});
        for (int64_t r = 0; r < rows; ++r) {
          int16_t* const end = words_.get() + r * kMaxProducts + depth;
          std::fill(end, end + round_up(depth, kWordUnit) - depth, int16_t{0});
        }
        float* const dst = run_.dst + row * run_.columns + (part + i) * run_.size + column;
        packs_ ? multiply_packed(rows, first, depth, part, i, dst) : multiply_stored(rows, first, depth, i, dst);
      }
    }
  }

 private:
  static const CompressedKernels& kernels() { return active_compressed(); }

  // Rows of `parts` elements as columns.
  template <class From, class To>
  static void turn(const From* from, int64_t stride, int64_t depth, int64_t parts, To* to) {
    for (int64_t d = 0; d < depth; ++d)
      for (int64_t i = 0; i < parts; ++i) to[i * kMaxProducts + d] = static_cast<To>(load(from + d * stride + i));
  }

  // The zero points as they are subtracted from stored codes.
  void turn_zeros(int64_t first, int64_t depth, int64_t part, int64_t parts) {
    int16_t* const to = zeros_.get();
    const bool is_one = run_.zero_stride == 0;
    const uint8_t* const from = run_.zero_points + (is_one ? 0 : first * run_.parts + part);
    if (is_one)
      std::fill(to, to + parts * kMaxProducts,
                static_cast<int16_t>(run_.is_signed ? static_cast<int8_t>(*from) : *from));
    else if (run_.is_signed)
      turn(reinterpret_cast<const int8_t*>(from), run_.parts, depth, parts, to);
    else
      turn(from, run_.parts, depth, parts, to);
    if (!reads_halves_ || !run_.is_signed) return;
    for (int64_t i = 0; i < parts * kMaxProducts; ++i) to[i] = static_cast<int16_t>(to[i] + kSignOfHalves);
  }

  // Copies rows of codes, which are far apart, often by a power of 2; codes of 4 bits as bytes unless these are read.
  void read_codes(int64_t first, int64_t depth, int64_t column, int64_t count) {
    const bool widens = run_.has_4_bits && !reads_halves_;
    const int64_t bytes = count * run_.storage.bits / 8;
    for (int64_t d = 0; d < depth; ++d) {
      const int64_t at = (first + d) * run_.columns + column;
      const uint8_t* const from = address(at);
      const uint8_t* const next = address(at + std::min(kRowsAhead, run_.depth - 1 - first - d) * run_.columns);
      for (int64_t i = 0; i < bytes; i += kLine) ORT_DYNQ_PREFETCH(next + i);
      uint8_t* const to = codes_.get() + d * row_bytes_;
      if (widens)
        widen_codes(run_.storage, run_.type, run_.weight, at, count, to);
      else
        std::memcpy(to, from, static_cast<size_t>(bytes));
    }
  }

  const uint8_t* address(int64_t code) const {
    return static_cast<const uint8_t*>(element(run_.weight, run_.storage, code));
  }

  // The codes of part i, and the distance between two rows in codes.
  const uint8_t* codes(int64_t i) const { return codes_.get() + i * width_ / (reads_halves_ ? 2 : 1); }
  int64_t code_stride() const { return row_bytes_ * (reads_halves_ ? 2 : 1); }

  void multiply_packed(int64_t rows, int64_t first, int64_t depth, int64_t part, int64_t i, float* dst) {
    PanelPack pack = {};
    pack.codes = codes(i);
    pack.code_stride = code_stride();
    pack.depth = depth;
    pack.cols = width_;
    pack.zero_points = run_.zero_points + (run_.zero_stride == 0 ? 0 : first * run_.parts + part + i);
    pack.of_row = run_.zero_stride;
    pack.panels = panels_.get();
    pack.panel_stride = round_up(depth, kernels().panel_rows) * kernels().panel_columns;
    pack.fits_int8 = run_.fits_int8();
    kernels().pack[run_.kind()](pack);
    PanelScores block = {};
    block.product = {words_.get(), kMaxProducts, rows, depth, width_, pack.panels, pack.panel_stride, pack.fits_int8};
    block.groups = 1;
    block.steps = steps_.get();
    block.adds = first > 0;
    block.scores = dst;
    block.score_stride = run_.columns;
    kernels().panel_scores(block);
  }

  void multiply_stored(int64_t rows, int64_t first, int64_t depth, int64_t i, float* dst) {
    WordProduct product = {};
    product.words = words_.get();
    product.word_stride = kMaxProducts;
    product.rows = rows;
    product.depth = depth;
    product.cols = width_;
    product.code_stride = code_stride();
    product.codes = codes(i);
    product.flipped = reads_halves_ && run_.is_signed ? kFlippedHalves : 0;
    product.sums = sums_.get();
    product.sum_stride = width_;
    product.groups = 1;
    kernels().by_row[reads_halves_ ? kHalves : static_cast<int>(run_.kind())](product);
    for (int64_t r = 0; r < rows; ++r)
      kernels().scores[kU8]({sums_.get() + r * width_, nullptr, products_of_zeros(r, i, depth), nullptr, 0,
                             steps_[static_cast<size_t>(r)], nullptr, width_, first > 0, dst + r * run_.columns});
  }

  // Compilers use vectors for sums of products of int16.
  int32_t products_of_zeros(int64_t row, int64_t i, int64_t depth) const {
    const int16_t *const words = words_.get() + row * kMaxProducts, *const zeros = zeros_.get() + i * kMaxProducts;
    int32_t sum = 0;
    for (int64_t d = 0; d < depth; ++d) sum += words[d] * zeros[d];
    return sum;
  }

  const Run& run_;
  const bool packs_;
  int64_t width_ = 0;
  const bool reads_halves_;  // each part of each row begins with a byte: codes are read as they are stored
  const int64_t row_bytes_;  // of codes_; no power of 2
  AlignedArray<uint8_t> codes_;
  AlignedArray<float> scales_;  // [parts, kMaxProducts]
  AlignedArray<int16_t> words_;
  std::unique_ptr<float[]> steps_;
  AlignedArray<int16_t> zeros_;  // likewise
  AlignedArray<int32_t> sums_;
  AlignedArray<int16_t> panels_;
};

class CompressedMatMul : public Node {
 public:
  explicit CompressedMatMul(const Attributes&) {}

  void compute(Context& context) const override {
    Tensor src = context.input(kSrc), scale = context.input(kScale), zero_point = context.input(kZeroPoint);
    const Tensor weight = context.input(kWeight);
    Run run = sizes_of(src.shape, weight.shape, scale.shape, zero_point.shape);
    Shape shape = src.shape;
    shape.dims[shape.rank - 1] = run.columns;
    void* const dst = context.output(0, shape);
    const int64_t count = shape.elements();
    if (count == 0) return;
    std::unique_ptr<char[]> wide[3];
    run.src = static_cast<const float*>(widened(context, src, wide[0]));
    run.scales = static_cast<const float*>(widened(context, scale, wide[1]));
    run.zero_points = static_cast<const uint8_t*>(widened(context, zero_point, wide[2]));
    run.weight = static_cast<const uint8_t*>(weight.data);
    run.type = weight.type;
    run.storage = storage_of(weight.type);
    run.is_signed = weight.type == kInt8 || weight.type == kInt4;
    run.has_4_bits = bits_of(weight.type) == 4;
    run.dst = static_cast<float*>(dst);
    const Storage storage = storage_of(src.type);
    std::unique_ptr<float[]> results;
    if (storage.narrow != nullptr) {
      results = memory<float>(count);
      run.dst = results.get();
    }
    multiply(context, run);
    if (storage.narrow != nullptr) narrow(context, storage, run.dst, count, dst);
  }

 private:
  static void multiply(Context& context, const Run& run) {
    if (run.depth == 0) {
      std::memset(run.dst, 0, static_cast<size_t>(run.rows * run.columns) * sizeof(float));
      return;
    }
    const int64_t rows = std::min(run.rows, kTaskRows);
    const int64_t parts = std::min(run.parts, std::max<int64_t>(1, kTaskColumns / run.size)), width = run.width();
    const int64_t of_part = divide_up(run.size, width), of_rows = divide_up(run.parts, parts) * of_part;
    run_tasks(context, divide_up(run.rows, rows) * of_rows, [&](int64_t i) {
      const int64_t row = i / of_rows * rows, part = i % of_rows / of_part * parts, column = i % of_part * width;
      Task(run, rows, parts)
          .run(row, std::min(rows, run.rows - row), part, std::min(parts, run.parts - part), column,
               std::min(width, run.size - column));
    });
  }

  [[noreturn]] static void fail(const std::string& message) { throw Error(std::string(kName) + ": " + message); }

  static Run sizes_of(const Shape& src, const Shape& weight, const Shape& scale, const Shape& zero_point) {
    Run run = {};
    if (src.rank == 0) fail("src is a scalar, expected rank 1 or more");
    run.depth = src.dims[src.rank - 1];
    if (weight.rank != 2 || weight.dims[0] != run.depth)
      fail("weight has shape " + weight.text() + ", expected rank 2 and " + std::to_string(run.depth) + " rows");
    run.columns = weight.dims[1];
    run.parts = scale.rank == 2 ? scale.dims[1] : 1;
    if (scale.rank < 1 || scale.rank > 2 || scale.dims[0] != run.depth || run.parts == 0 ||
        run.columns % run.parts != 0)
      fail("scale has shape " + scale.text() + ", expected " + std::to_string(run.depth) + ", or " +
           std::to_string(run.depth) + " and a divisor of " + std::to_string(run.columns));
    const bool is_one = zero_point.elements() == 1;
    if (!is_one && !(zero_point == scale))
      fail("zero_point has shape " + zero_point.text() + ", expected that of scale, " + scale.text() +
           ", or one element");
    run.zero_stride = is_one ? 0 : run.parts;
    run.size = run.columns / run.parts;
    run.rows = 1;
    for (size_t i = 0; i + 1 < src.rank; ++i) run.rows *= src.dims[i];
    return run;
  }
};

}  // namespace

Operator compressed_matmul() {
  std::vector<Signature> signatures;
  for (const Type src : {kFloat, kFloat16})
    for (const Type scale : {kFloat, kFloat16})
      for (const Type codes : {kUint8, kInt8, kUint4, kInt4}) signatures.push_back({{src, codes, scale, codes}, {src}});
  Operator op = {kName, kInputs, signatures, make_node<CompressedMatMul>, type_of_input<kSrc>};
  op.columns_input = kWeight;
  return op;
}

}  // namespace dynq
