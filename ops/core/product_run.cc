// The tasks of a matrix product: strips of columns, which are cut into rows if there are too few of them. Stacked
// weights are several products of one shape: their tasks run together. 2-bit weights become 4-bit weights strip by
// strip, unless there are few rows. A tail runs for each task, while its results are in the cache. Many rows may take
// Strassen's algorithm (core/strassen.h).
#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "core/product.h"
#include "core/rounding.h"
#include "core/strassen.h"
#include "core/tiles.h"
#include "core/verbose.h"
#include "kernels/dispatch.h"

namespace dynq {
namespace {

constexpr int64_t kStrip = 64;              // a multiple of the columns of every kernel's tile
constexpr int64_t kRowUnit = 12;            // likewise for rows; with AMX 32
constexpr int64_t kTaskProducts = 1 << 19;  // products of the smallest task: some microseconds
constexpr int64_t kPieceRows = 96;          // rows of a piece: a multiple of kRowUnit and of two tiles
constexpr int64_t kPieceColumns = kStrip;   // columns likewise
constexpr int64_t kOperandBytes = 4 << 20;  // of Strassen's algorithm at once, or those of one part of the rows
static_assert(kStrassenColumns == kPieceColumns, "so many rows of a strip are one piece");

// A line of 2-bit weights is two lines of 4-bit weights.
void widen_2bit_weights(const int8_t* from, int64_t bytes, int8_t* to) {
  constexpr int64_t kLine = kBlockColumns * kQuad;
  for (int64_t line = 0; line < bytes; line += kLine)
    for (int64_t i = 0; i < kLine; ++i) {
      const auto both = static_cast<uint8_t>(from[line + i]);
      to[2 * line + i] = static_cast<int8_t>(both & 0x33);
      to[2 * line + kLine + i] = static_cast<int8_t>(both >> 2 & 0x33);
    }
}

// The scales of a strip's columns as float32, one row after the other.
void widen_scales(ProductColumns& columns, int64_t count, float* to) {
  // Hardware does not prefetch lines so far apart, and they may share a set of the first-level cache.
  constexpr int64_t kAhead = 6, kElements = 32;  // of a line
  for (int64_t group = 0; group < columns.scale_groups; ++group) {
    const uint16_t* from = columns.halves + group * columns.scales_stride;
    for (int64_t i = 0; i < count && group + kAhead < columns.scale_groups; i += kElements)
      ORT_DYNQ_PREFETCH(from + kAhead * columns.scales_stride + i);
    storage_of(kFloat16).widen(from, to + group * count, count);
  }
  columns.scales = to;
  columns.halves = nullptr;
  columns.scales_stride = count;
}

void add_bias(float* sums, const float* bias, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sums[i] += load(bias + i);
}

void add_terms(float* __restrict first, const float* __restrict second, const float* bias, int64_t count) {
  for (int64_t i = 0; i < count; ++i) first[i] = first[i] + second[i] + load(bias + i);
}

}  // namespace

// What is made of the columns of a strip before its products: its weights stay in the caches.
struct Product::Strip {
  Scratch<int8_t, 4096> weights;
  Scratch<int32_t, 4096> sums;
  Scratch<float, 4096> scales;
};

// Tasks are matrices, or strips of their columns: the weights of a strip stay in the caches for all rows. Strips are
// cut into rows only if there are too few of them, and many of them only into parts of whole units.
struct Product::Cut {
  int64_t strips, units, unit;  // units of rows
  int64_t pair_tasks, column_tasks, row_tasks;

  int64_t tasks() const { return pair_tasks * column_tasks * row_tasks; }
};

void Product::run(Context& context) const {
  if (!plan_.is_strassen) return run_strips(context);
  if (is_verbose()) report(matrix(pairs_[0]));
  run_strassen(context);
}

// An even number, for two threads.
int64_t Product::task_count() const {
  // Reading a weight of 8 bits takes as long as 4 products; tiles are 4 times as fast.
  const int64_t work = shape_.pairs.count * round_up(all_.cols, kStrip) * all_.depth * (all_.rows + product_.bits / 2) /
                       (plan_.in_tiles() ? 4 : 1);
  return std::min(work / (2 * kTaskProducts) * 2, kMaxTasks);
}

Product::Cut Product::cut() const {
  constexpr int64_t kFewStrips = 8;
  const int64_t tasks = task_count(), pairs = shape_.pairs.count;
  Cut cut = {};
  cut.strips = divide_up(all_.cols, kStrip);
  cut.unit = plan_.in_tiles() ? 2 * kTileRows : kRowUnit;
  cut.units = std::max((all_.rows + (cut.strips < kFewStrips ? cut.unit - 1 : 0)) / cut.unit, int64_t{1});
  cut.pair_tasks = std::clamp(tasks, int64_t{1}, pairs);
  const int64_t tasks_of_pair = divide_up(tasks, cut.pair_tasks);
  // Few rows are memory-bound: the first columns of a task wait for weights and scales that nothing has prefetched.
  const int64_t most =
      all_.rows > kMaxSummedRows + 1 ? cut.strips : std::max(cut.strips / 4, std::min(cut.strips, kFewStrips));
  cut.column_tasks = std::clamp(tasks_of_pair, int64_t{1}, most);
  cut.row_tasks = std::clamp(divide_up(tasks_of_pair, cut.column_tasks), int64_t{1}, cut.units);
  return cut;
}

void Product::report(const ProductBlock& first) const {
  ProductBlock block = first;
  if (plan_.sum_columns != nullptr) block.columns.sums = codes_of_ones_.sums;  // there are some when the kernel runs
  const InstructionSet& isa = active_isa();
  const bool has_forms = isa.products->form_name != nullptr && !plan_.in_tiles() && !plan_.is_strassen &&
                         !plan_.has_words() && plan_.kernel != isa.products->gemm_qb2w;
  const std::string form = has_forms ? std::string(", ") + isa.products->form_name(block, product_.bits) : "";
  const std::string groups = product_.groups > 1 ? " in " + std::to_string(product_.groups) + " groups" : "";
  const std::string terms = product_.terms > 1 ? ", 2 terms" : "";
  std::fprintf(stderr, "ort_dynq: %s %lldx%lldx%lld, %lld bits%s%s: %s, %s%s\n", attributes_.op,
               static_cast<long long>(product_.rows / product_.terms), static_cast<long long>(product_.depth),
               static_cast<long long>(product_.columns), static_cast<long long>(product_.bits), groups.c_str(),
               terms.c_str(), isa.name, plan_.name, form.c_str());
}

TileUse Product::use_tiles() const {
  return TileUse(plan_.in_tiles(), product_.groups > 1 ? tile_bytes_of_groups(product_.group_size()) : kTileBytes);
}

void Product::run_strips(Context& context) const {
  const int64_t pairs = shape_.pairs.count;
  if (pairs == 1 && task_count() == 0) {  // a few rows take no longer than the divisions and copies of a task
    if (is_verbose()) report(all_);
    return run_last_tasks(context, 1, [&](int64_t) {
      const TileUse tiles = use_tiles();
      run_block(plan_.kernel, all_, 0, 0);
    });
  }
  const Cut cut = this->cut();
  if (is_verbose()) {
    const int64_t rows = cut.row_tasks > 1 ? cut.units / cut.row_tasks * cut.unit : all_.rows;
    report(part_of(matrix(pairs_[0]), 0, rows, 0, all_.cols));
  }
  run_last_tasks(context, cut.tasks(), [&](int64_t index) {
    const int64_t pair_task = index / (cut.column_tasks * cut.row_tasks);
    const int64_t column_task = index / cut.row_tasks % cut.column_tasks, row_task = index % cut.row_tasks;
    const int64_t row = cut.units * row_task / cut.row_tasks * cut.unit;
    const int64_t end =
        row_task + 1 < cut.row_tasks ? cut.units * (row_task + 1) / cut.row_tasks * cut.unit : all_.rows;
    const int64_t col = cut.strips * column_task / cut.column_tasks * kStrip;
    const int64_t end_col = cut.strips * (column_task + 1) / cut.column_tasks * kStrip;
    const TileUse tiles = use_tiles();
    for (int64_t i = pairs * pair_task / cut.pair_tasks; i < pairs * (pair_task + 1) / cut.pair_tasks; ++i)
      run_block(plan_.kernel, part_of(matrix(pairs_[i]), row, end - row, col, end_col - col),
                pairs_[i].result * all_.rows + row, col);
  });
}

// Parts of the rows and strips of the columns are tasks. All strips share the operands of a part. Columns that do not
// fill a strip take the direct kernel.
void Product::run_strassen(Context& context) const {
  const StrassenKernels& kernels = *active_isa().products->strassen;
  const int64_t strips = divide_up(all_.cols, kStrip);
  const int64_t part_rows = choose_strassen_rows({all_.rows, all_.depth, all_.cols}, task_count());
  const int64_t parts = divide_up(all_.rows, part_rows), size = strassen_codes_size(part_rows, all_.depth);
  const int64_t fitting = kOperandBytes / (size * static_cast<int64_t>(sizeof(int16_t)));
  const int64_t at_once = std::clamp(fitting, int64_t{1}, parts);
  const AlignedArray<int16_t> operands(at_once * size);
  for (int64_t i = 0; i < shape_.pairs.count; ++i)
    for (int64_t first = 0; first < parts; first += at_once) {
      const ProductBlock block = matrix(pairs_[i]);
      const int64_t count = std::min(at_once, parts - first);
      form_operands(context, block, first, count, part_rows, operands.get());
      run_tasks(context, count * strips, [&](int64_t task) {
        const int64_t part = task / strips, row = (first + part) * part_rows, col = task % strips * kStrip;
        ProductBlock strip = part_of(block, row, part_rows, col, kStrip);
        const bool is_whole = strip.cols == kStrip;
        if (is_whole) strip.codes.data = reinterpret_cast<const uint8_t*>(operands.get() + part * size);
        run_block(is_whole ? kernels.gemm_qc8w : plan_.kernel, strip, pairs_[i].result * all_.rows + row, col);
      });
    }
}

// Those of `count` parts of the rows from number `first` on.
void Product::form_operands(Context& context, const ProductBlock& block, int64_t first, int64_t count,
                            int64_t part_rows, int16_t* operands) const {
  const StrassenKernels& kernels = *active_isa().products->strassen;
  const int64_t half_rows = strassen_half_rows(part_rows), size = strassen_codes_size(part_rows, all_.depth);
  const int64_t tasks = part_count(count * part_rows * all_.depth, count * half_rows);
  run_tasks(context, tasks, [&](int64_t task) {
    for (int64_t at = count * half_rows * task / tasks; at < count * half_rows * (task + 1) / tasks; ++at) {
      const int64_t part = at / half_rows, row = at % half_rows;
      const int64_t rows = std::min(part_rows, all_.rows - (first + part) * part_rows);
      if (row < strassen_half_rows(rows))
        kernels.form_codes(block.codes.data + (first + part) * part_rows * block.codes.stride, block.codes.stride, rows,
                           all_.depth, row, operands + part * size);
    }
  });
}

void Product::run_block(ProductKernel kernel, const ProductBlock& block, int64_t row, int64_t col) const {
  const bool widens_scales = all_.columns.halves != nullptr && !plan_.has_ones();
  if (plan_.sum_columns == nullptr && !widens_scales && !plan_.widens_2bit) return run_task(kernel, block, row, col);
  Strip strip;
  for (int64_t first = 0; first < block.cols; first += kStrip)
    run_strip(kernel, part_of(block, 0, block.rows, first, kStrip), row, col + first, strip);
}

void Product::run_strip(ProductKernel kernel, ProductBlock block, int64_t row, int64_t col, Strip& strip) const {
  if (plan_.widens_2bit) {
    const int64_t bytes = divide_up(block.cols, kBlockColumns) * block.weights.stride;
    int8_t* to = strip.weights.allocate(2 * bytes);
    widen_2bit_weights(block.weights.packed, bytes, to);
    block.weights.packed = to;
    block.weights.stride *= 2;
  }
  if (plan_.sum_columns != nullptr) {
    ProductBlock of_ones = block;
    of_ones.codes = codes_of_ones_;
    int32_t* to = strip.sums.allocate(all_.groups * block.cols);
    plan_.sum_columns(of_ones, to);
    block.columns.sums = to;
    block.columns.sums_stride = block.cols;
  }
  if (block.columns.halves != nullptr && !plan_.has_ones())
    widen_scales(block.columns, block.cols, strip.scales.allocate(block.columns.scale_groups * block.cols));
  run_task(kernel, block, row, col);
}

// The program runs after each task: its results are in the second-level cache.
void Product::run_task(ProductKernel kernel, const ProductBlock& block, int64_t row, int64_t col) const {
  if (plan_.has_words())
    run_words(block, row, col);
  else if (dst_storage_.narrow == nullptr && product_.terms == 1)
    kernel(block);
  else
    run_in_pieces(kernel, block, row, col);
  if (tail_ == nullptr) return;
  const int64_t end = row + block.rows - block.codes.has_ones;
  const bool halves = product_.terms == 2;
  tail_->run(tail_tensors_, static_cast<float*>(dst_), halves ? row / 2 : row, halves ? end / 2 : end, col, block.cols);
}

// Computes a task piece by piece. Adds the terms of each piece and rounds it to float16 while it is in the first-level
// cache. Few rows are one piece: their kernels read long streams of weights.
void Product::run_in_pieces(ProductKernel kernel, const ProductBlock& task, int64_t row, int64_t col) const {
  const int64_t columns = task.rows <= kMaxSummedRows + 1 ? round_up(task.cols, kPieceColumns) : kPieceColumns;
  const int64_t rows = task.rows <= kStrassenRows ? task.rows : kPieceRows;
  Scratch<float, kStrassenRows * kPieceColumns> memory;
  float* const piece = memory.allocate(rows * columns);
  for (int64_t right = 0; right < task.cols; right += columns)
    for (int64_t down = 0; down < task.rows; down += rows) {
      ProductBlock block = part_of(task, down, rows, right, columns);
      block.output = {piece, columns, false};
      kernel(block);
      store_piece(piece, columns, block, row + down, col + right);
    }
}

void Product::store_piece(float* piece, int64_t columns, const ProductBlock& block, int64_t row, int64_t col) const {
  const int64_t terms = product_.terms;
  for (int64_t i = 0; i < block.rows - block.codes.has_ones; i += terms) {
    float* of_row = piece + i * columns;
    if (terms > 1) {
      const float* const bias = bias_of_terms_ + (block.columns.bias - all_.columns.bias);
      if (product_.joins_terms)
        add_bias(of_row, bias, block.cols);
      else
        add_terms(of_row, of_row + columns, bias, block.cols);
    }
    const int64_t at = (row + i) / terms * all_.cols + col;
    if (dst_storage_.narrow != nullptr)
      dst_storage_.narrow(of_row, element(dst_, dst_storage_, at), block.cols);
    else
      std::memcpy(static_cast<float*>(dst_) + at, of_row, static_cast<size_t>(block.cols) * sizeof(float));
  }
}

// The product of one pair of matrices.
ProductBlock Product::matrix(const MatrixPair& pair) const {
  ProductBlock block = all_;
  const int64_t rows = pair.left * all_.rows, columns = pair.right * all_.cols;
  block.codes.data += (plan_.in_tiles() ? pair.left * row_tiles() : rows) * all_.codes.stride;
  block.codes.scales += rows * all_.codes.scale_groups;
  block.codes.zps += rows * all_.codes.scale_groups;
  if (block.codes.sums != nullptr) block.codes.sums += rows * all_.groups;
  block.weights.packed += pair.right * divide_up(all_.cols, kBlockColumns) * all_.weights.stride;
  if (block.weights.zps != nullptr) block.weights.zps += columns * all_.groups;
  if (block.columns.scales != nullptr) block.columns.scales += columns * all_.columns.scale_groups;
  if (block.columns.halves != nullptr) block.columns.halves += columns * all_.columns.scale_groups;
  if (block.columns.sums != nullptr) block.columns.sums += columns * all_.groups;
  block.columns.bias += columns;
  if (block.output.dst != nullptr) block.output.dst += pair.result * all_.rows * all_.cols;
  return block;
}

ProductBlock Product::part_of(const ProductBlock& from, int64_t row, int64_t rows, int64_t col, int64_t cols) const {
  ProductBlock block = from;
  block.rows = std::min(rows, from.rows - row);
  block.cols = std::min(cols, from.cols - col);
  block.codes.data += (plan_.in_tiles() ? row / kTileRows : row) * all_.codes.stride;
  block.codes.scales += row * all_.codes.scale_groups;
  block.codes.zps += row * all_.codes.scale_groups;
  if (block.codes.sums != nullptr) block.codes.sums += row * all_.groups;
  block.weights.packed += col / kBlockColumns * all_.weights.stride;
  if (block.weights.zps != nullptr) block.weights.zps += col;
  if (block.columns.scales != nullptr) block.columns.scales += col;
  if (block.columns.halves != nullptr) block.columns.halves += col;
  if (block.columns.sums != nullptr) block.columns.sums += col;
  block.columns.bias += col;
  if (block.output.dst != nullptr) block.output.dst += row * all_.output.stride + col;
  return block;
}

}  // namespace dynq
