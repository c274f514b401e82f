// QuantizedMatMul: 8-bit codes of rows times packed 8-bit or 4-bit weights, to float32 or float16.
//
// kernels/portable_products.cc has the arithmetic. compute() checks the inputs, prepares codes, scales and zero points
// of rows, and cuts the output into tasks. src is used in place, unless its codes are int8, its rows are no multiple of
// 4 bytes, or the kernel takes tiles.
//
// QuantizedMatMulProgram is the same, and then a program for each element of the result, while it is in the cache.
#include <algorithm>
#include <cstring>
#include <optional>

#include "core/attributes.h"
#include "core/formats.h"
#include "core/parallel.h"
#include "core/program.h"
#include "core/rounding.h"
#include "core/scratch.h"
#include "core/sums.h"
#include "kernels/dispatch.h"

namespace dynq {
namespace {

constexpr size_t kInputs = 8;
constexpr int64_t kStrip = 64;              // a multiple of the columns of every kernel's tile
constexpr int64_t kRowUnit = 12;            // likewise for rows; with AMX 32
constexpr int64_t kTaskProducts = 1 << 19;  // products of the smallest task: some microseconds
constexpr int64_t kMostTasks = 64;
constexpr int64_t kRoundedRows = 96;         // rows rounded to float16 at once: a multiple of kRowUnit and of two tiles
constexpr int64_t kRoundedColumns = kStrip;  // columns likewise
constexpr int64_t kStreamBytes = 4 << 20;    // larger outputs do not fit the second-level cache

class QuantizedMatMul : public Node {
 public:
  explicit QuantizedMatMul(const Attributes& attributes, const char* name = "QuantizedMatMul")
      : name_(name),
        bits_(read_one_of(name_, attributes, "bits", 8, {{8, nullptr}, {4, nullptr}})),
        group_size_(attributes.integer("group_size", 0)),
        order_(read_encoding(name_, attributes, "scale_order", kScalesFirst)) {
    if (group_size_ < 0 || group_size_ % kGroupUnit != 0)
      fail("group_size is " + std::to_string(group_size_) + ", expected 0 or a multiple of " +
           std::to_string(kGroupUnit));
    if (group_size_ > 0 && order_ != kColumnFirst)
      fail("scale_order is " + text_of(order_) + " for groups, expected " + text_of(kColumnFirst));
  }

  void compute(Context& context) const override {
    Product product;
    ProductBlock& all = product.all;
    const Tensor src = context.input(0), scale = context.input(1), zero_point = context.input(2),
                 weight = context.input(3), weight_zp = context.input(4), column_scale = context.input(5),
                 column_sum = context.input(6), bias = context.input(7);
    if (src.shape.rank == 0) fail("src is a scalar, expected rank 1 or more");
    const int64_t depth = src.shape.dims[src.shape.rank - 1];
    all.groups = 1;
    if (group_size_ > 0) {
      if (depth == 0 || depth % group_size_ != 0)
        fail("group_size is " + std::to_string(group_size_) + ", expected a divisor of src's last dimension, " +
             std::to_string(depth));
      all.groups = depth / group_size_;
    }
    if (bias.shape.rank != 1) fail("bias has shape " + bias.shape.text() + ", expected one element for each column");
    all.columns.count = all.cols = bias.shape.dims[0];
    check_columns(column_sum, "column_sum", all.groups, all.columns.count);
    check_columns(column_scale, "column_scale", all.groups, all.columns.count, true);
    if (weight_zp.shape.elements() != 1) check_columns(weight_zp, "weight_zero_point", all.groups, all.columns.count);
    all.depth = round_up(depth, bits_ == 4 ? 2 * kQuad : kQuad);
    check_weight(weight.shape, all.columns.count, all.depth);
    const ScaleShape rows = scale_shape(src.shape, scale.shape, all.groups);
    if (zero_point.shape.elements() != 1 && !(zero_point.shape == scale.shape))
      fail("zero_point has shape " + zero_point.shape.text() + ", expected that of scale, " + scale.shape.text() +
           ", or one element");
    // A single element may be of rank 2, too. Tensors without elements may have no data.
    const bool is_one_zp = weight_zp.shape.elements() == 1;
    all.weights.zps = is_one_zp ? nullptr : static_cast<const int8_t*>(weight_zp.data);
    all.weights.zp = is_one_zp ? *static_cast<const int8_t*>(weight_zp.data) : 0;
    const bool is_symmetric = bits_ == 8 && is_one_zp && all.weights.zp == 0;
    const int64_t longest = is_symmetric ? kLongestSymmetricSum : kLongestSum;
    if ((group_size_ > 0 ? group_size_ : depth) > longest)
      fail("sums of " + std::to_string(group_size_ > 0 ? group_size_ : depth) +
           " products may overflow int32, expected at most " + std::to_string(longest));

    Shape shape = src.shape;
    shape.dims[shape.rank - 1] = all.columns.count;
    product.tail = tail_ ? &*tail_ : nullptr;
    if (tail_) product.tail_tensors = tail_->tensors(context, kInputs, shape, shape.rank - 1);
    product.dst = context.output(0, shape);
    product.dst_storage = storage_of(bias.type);
    all.output.dst = bias.type == kFloat ? static_cast<float*>(product.dst) : nullptr;
    if (shape.elements() == 0) return;
    all.rows = shape.elements() / all.columns.count;
    all.output.stride = all.columns.count;
    all.weights.packed = static_cast<const int8_t*>(weight.data);
    all.weights.stride = all.depth * kBlockColumns * bits_ / 8;
    all.columns.scale_groups = column_scale.shape.dims[0];
    all.columns.scales = static_cast<const float*>(column_scale.data);
    all.columns.sums = static_cast<const int32_t*>(column_sum.data);
    all.columns.bias = FloatReader(bias).read(0, all.columns.count, product.bias);
    all.order = order_;
    all.output.stream = shape.elements() * static_cast<int64_t>(sizeof(float)) > kStreamBytes && !tail_;
    const ProductKernels& kernels = *active_isa().products;
    const bool tiles_fit = all.groups == 1 ? bits_ == 8 : group_size_ <= kLongestTileGroup;
    product.in_tiles = kernels.gemm_qc8w_tiles != nullptr && tiles_fit && all.rows >= kTileRows;
    product.prepare_codes(context, src, depth, bits_ == 8 && !is_symmetric);
    product.prepare_rows(src, scale, zero_point, rows);
    all.is_bounded = all.groups > 1 && all.rows >= kTileRows && has_bounded_groups(all);
    const ProductKernel in_rows = bits_ == 4       ? kernels.gemm_qb4w
                                  : all.groups > 1 ? kernels.gemm_qb8w
                                                   : kernels.gemm_qc8w;
    const ProductKernel in_tiles = all.groups == 1 ? kernels.gemm_qc8w_tiles
                                   : bits_ == 4    ? kernels.gemm_qb4w_tiles
                                                   : kernels.gemm_qb8w_tiles;
    product.run(context, product.in_tiles ? in_tiles : in_rows, bits_);
  }

 private:
  // How many adjacent rows share a scale, and how many scales a row has.
  struct ScaleShape {
    int64_t rows_per_scale, groups;
  };

  struct Product {
    ProductBlock all;  // the whole output as one block; all.output.dst is null if the output is float16
    void* dst;
    Storage dst_storage;
    bool in_tiles;     // the codes are in tiles
    const Tail* tail;  // or null
    ProgramTensors tail_tensors;
    Scratch<uint8_t, 4096> codes;
    Scratch<int32_t, 64> row_sums, zps;
    Scratch<float, 64> scales, bias;

    void prepare_codes(Context& context, const Tensor& src, int64_t depth, bool needs_sums) {
      const auto* from = static_cast<const uint8_t*>(src.data);
      const uint8_t flip = src.type == kInt8 ? 0x80 : 0;
      const bool copies = !in_tiles && (flip != 0 || depth != all.depth);
      all.codes.data = from;
      all.codes.stride = all.depth;
      if (in_tiles) pack_tiles(context, from, depth, flip);
      uint8_t* copy = copies ? codes.allocate(all.rows * all.depth) : nullptr;
      int32_t* sums = needs_sums ? row_sums.allocate(all.rows * all.groups) : nullptr;
      if (copies) all.codes.data = copy;
      all.codes.sums = sums;
      if (!copies && !needs_sums) return;
      const int64_t tasks = part_count(all.rows * depth, all.rows);
      run_tasks(context, tasks, [&](int64_t task) {
        for (int64_t row = all.rows * task / tasks; row < all.rows * (task + 1) / tasks; ++row) {
          if (copies) copy_row(from + row * depth, depth, flip, copy + row * all.depth);
          if (needs_sums) add_row(from + row * depth, depth, flip, sums + row * all.groups);
        }
      });
    }

    void copy_row(const uint8_t* from, int64_t depth, uint8_t flip, uint8_t* to) const {
      for (int64_t i = 0; i < depth; ++i) to[i] = from[i] ^ flip;
      std::memset(to + depth, 0, static_cast<size_t>(all.depth - depth));
    }

    void add_row(const uint8_t* from, int64_t depth, uint8_t flip, int32_t* sums) const {
      const int64_t size = depth / all.groups;
      for (int64_t group = 0; group < all.groups; ++group, from += size) {
        int32_t sum = 0;
        for (int64_t i = 0; i < size; ++i) sum += from[i] ^ flip;
        sums[group] = sum;
      }
    }

    // The last tiles are padded with 0. A row of a tile is one cache line.
    void pack_tiles(Context& context, const uint8_t* src, int64_t depth, uint8_t flip) {
      const int64_t row_tiles = (all.rows + kTileRows - 1) / kTileRows;
      all.codes.stride = round_up(depth, kTileBytes) * kTileRows;
      uint8_t* tiles = codes.allocate(row_tiles * all.codes.stride + kTileBytes - 1);
      tiles += -reinterpret_cast<uintptr_t>(tiles) % kTileBytes;
      all.codes.data = tiles;
      const int64_t tasks = part_count(all.rows * depth, row_tiles);
      run_tasks(context, tasks, [&](int64_t task) {
        const int64_t end = row_tiles * (task + 1) / tasks * kTileRows;
        for (int64_t row = row_tiles * task / tasks * kTileRows; row < end; ++row) {
          uint8_t* to = tiles + row / kTileRows * all.codes.stride + row % kTileRows * kTileBytes;
          for (int64_t first = 0; first < depth; first += kTileBytes, to += kTileRows * kTileBytes)
            if (row < all.rows)
              pack_row(src + row * depth + first, depth - first, flip, to);
            else
              std::memset(to, 0, kTileBytes);
        }
      });
    }

    // Up to 64 codes of one row; padding is 0.
    static void pack_row(const uint8_t* from, int64_t count, uint8_t flip, uint8_t* to) {
      if (count >= kTileBytes && flip == 0) {
        std::memcpy(to, from, kTileBytes);
        return;
      }
      for (int64_t i = 0; i < kTileBytes; ++i) to[i] = i < count ? from[i] ^ flip : 0;
    }

    void prepare_rows(const Tensor& src, const Tensor& scale, const Tensor& zero_point, const ScaleShape& shape) {
      all.codes.scale_groups = shape.groups;
      float* row_scales = scales.allocate(all.rows * shape.groups);
      int32_t* row_zps = zps.allocate(all.rows * shape.groups);
      all.codes.scales = row_scales;
      all.codes.zps = row_zps;
      const bool zps_vary = zero_point.shape.elements() != 1;
      for (int64_t row = 0; row < all.rows; ++row)
        for (int64_t group = 0; group < shape.groups; ++group) {
          const int64_t from = row / shape.rows_per_scale * shape.groups + group, zp = zps_vary ? from : 0;
          *row_scales++ = load(static_cast<const float*>(scale.data) + from);
          *row_zps++ = src.type == kInt8 ? static_cast<const int8_t*>(zero_point.data)[zp] + 128
                                         : static_cast<const uint8_t*>(zero_point.data)[zp];
        }
    }

    // Tasks are strips of columns: the weights of a strip stay in the caches for all rows. Strips are cut into rows
    // only if there are too few of them.
    void run(Context& context, ProductKernel kernel, int64_t bits) const {
      const int64_t strips = (all.cols + kStrip - 1) / kStrip, unit = in_tiles ? 2 * kTileRows : kRowUnit;
      const int64_t units = (all.rows + unit - 1) / unit;
      // Reading a weight of 8 bits takes as long as 4 products; tiles are 4 times as fast.
      const int64_t work = strips * kStrip * all.depth * (all.rows + bits / 2) / (in_tiles ? 4 : 1);
      const int64_t tasks = std::min(work / (2 * kTaskProducts) * 2, kMostTasks);  // even, for two threads
      const int64_t column_tasks = std::clamp(tasks, int64_t{1}, strips);
      const int64_t row_tasks = std::clamp((tasks + column_tasks - 1) / column_tasks, int64_t{1}, units);
      run_tasks(context, column_tasks * row_tasks, [&](int64_t index) {
        const int64_t column_task = index / row_tasks, row_task = index % row_tasks;
        const int64_t row = units * row_task / row_tasks * unit, end = units * (row_task + 1) / row_tasks * unit;
        const int64_t col = strips * column_task / column_tasks * kStrip;
        const int64_t end_col = strips * (column_task + 1) / column_tasks * kStrip;
        if (dst_storage.narrow == nullptr)
          run_with_tail(kernel, part(row, end - row, col, end_col - col), row, col);
        else
          run_rounded(kernel, row, std::min(end, all.rows), col, std::min(end_col, all.cols));
      });
    }

    // The program runs after each piece of a task, which is in the second-level cache.
    void run_with_tail(ProductKernel kernel, ProductBlock block, int64_t row, int64_t col) const {
      kernel(block);
      if (tail != nullptr) tail->run(tail_tensors, static_cast<float*>(dst), row, row + block.rows, col, block.cols);
    }

    // Computes a task piece by piece, and rounds each piece to float16 while it is in the first-level cache.
    void run_rounded(ProductKernel kernel, int64_t row, int64_t end, int64_t col, int64_t end_col) const {
      alignas(64) float piece[kRoundedRows * kRoundedColumns];
      for (; col < end_col; col += kRoundedColumns)
        for (int64_t first = row; first < end; first += kRoundedRows) {
          ProductBlock block = part(first, std::min(kRoundedRows, end - first), col, kRoundedColumns);
          block.output.dst = piece;
          block.output.stride = kRoundedColumns;
          block.output.stream = false;
          kernel(block);
          for (int64_t i = 0; i < block.rows; ++i)
            dst_storage.narrow(piece + i * kRoundedColumns,
                               element(dst, dst_storage, (first + i) * all.columns.count + col), block.cols);
        }
    }

    ProductBlock part(int64_t row, int64_t rows, int64_t col, int64_t cols) const {
      ProductBlock block = all;
      block.rows = std::min(rows, all.rows - row);
      block.cols = std::min(cols, all.cols - col);
      block.codes.data += (in_tiles ? row / kTileRows : row) * all.codes.stride;
      block.codes.scales += row * all.codes.scale_groups;
      block.codes.zps += row * all.codes.scale_groups;
      if (block.codes.sums != nullptr) block.codes.sums += row * all.groups;
      block.weights.packed += col / kBlockColumns * all.weights.stride;
      if (block.weights.zps != nullptr) block.weights.zps += col;
      block.columns.scales += col;
      block.columns.sums += col;
      block.columns.bias += col;
      if (block.output.dst != nullptr) block.output.dst += row * all.output.stride + col;
      return block;
    }
  };

  [[noreturn]] void fail(const std::string& message) const { throw Error(std::string(name_) + ": " + message); }

  // `may_be_shared`: one row may serve all groups.
  void check_columns(const Tensor& tensor, const char* name, int64_t groups, int64_t columns,
                     bool may_be_shared = false) const {
    const Shape& shape = tensor.shape;
    if (shape.rank == 2 && shape.dims[1] == columns &&
        (shape.dims[0] == groups || (may_be_shared && shape.dims[0] == 1)))
      return;
    fail(std::string(name) + " has shape " + shape.text() + ", expected " + std::to_string(groups) + "x" +
         std::to_string(columns) + ", one element for each group and column");
  }

  void check_weight(const Shape& shape, int64_t columns, int64_t depth) const {
    Shape expected;
    expected.rank = 4;
    expected.dims[0] = (columns + kBlockColumns - 1) / kBlockColumns;
    expected.dims[1] = depth / (bits_ == 4 ? 2 * kQuad : kQuad);
    expected.dims[2] = kBlockColumns;
    expected.dims[3] = kQuad;
    if (!(shape == expected))
      fail("weight has shape " + shape.text() + ", expected " + expected.text() + ", packed for " +
           std::to_string(bits_) + " bits");
  }

  ScaleShape scale_shape(const Shape& src, const Shape& scale, int64_t groups) const {
    const bool is_one = scale.elements() == 1;
    bool fits = is_one ? scale.rank <= src.rank : scale.rank == src.rank;
    const int64_t last = is_one ? 1 : fits ? scale.dims[src.rank - 1] : 0;
    fits = fits && (last == 1 || last == groups);
    bool is_shared = is_one;
    int64_t rows = 1;
    for (size_t i = 0; i + 1 < src.rank && fits; ++i) {
      is_shared = is_shared || (scale.dims[i] == 1 && src.dims[i] != 1);
      if (is_shared) rows *= src.dims[i];
      fits = is_one || scale.dims[i] == (is_shared ? 1 : src.dims[i]);
    }
    if (!fits)
      fail("scale has shape " + scale.text() + ", src " + src.text() +
           ": expected src's leading dimensions, then 1 or the number of groups, " + std::to_string(groups) +
           "; or one element");
    return {rows, last};
  }

  const char* name_;
  int64_t bits_, group_size_;
  ScaleOrder order_;

 protected:
  std::optional<Tail> tail_;
};

class QuantizedMatMulProgram : public QuantizedMatMul {
 public:
  explicit QuantizedMatMulProgram(const Attributes& attributes)
      : QuantizedMatMul(attributes, "QuantizedMatMulProgram") {
    tail_.emplace("QuantizedMatMulProgram", attributes);
  }
};

}  // namespace

Operator quantized_matmul() {
  Operator op = {"QuantizedMatMul",
                 kInputs,
                 {{{kUint8, kFloat, kUint8, kInt8, kInt8, kFloat, kInt32, kFloat}, {kFloat}},
                  {{kInt8, kFloat, kInt8, kInt8, kInt8, kFloat, kInt32, kFloat}, {kFloat}},
                  {{kUint8, kFloat, kUint8, kInt8, kInt8, kFloat, kInt32, kFloat16}, {kFloat16}},
                  {{kInt8, kFloat, kInt8, kInt8, kInt8, kFloat, kInt32, kFloat16}, {kFloat16}}},
                 make_node<QuantizedMatMul>,
                 type_of_input<7>};
  op.columns_input = 7;  // bias
  return op;
}

Operator quantized_matmul_program() {
  Operator op = with_program(quantized_matmul(), "QuantizedMatMulProgram", make_node<QuantizedMatMulProgram>);
  op.signatures.resize(2);  // of float32
  return op;
}

}  // namespace dynq
