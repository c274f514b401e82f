// GatherDequantize: columns of packed weights as rows of floats: an embedding whose table is the weights of a product.
#include <algorithm>
#include <string>

#include "core/attributes.h"
#include "core/formats.h"
#include "core/parallel.h"
#include "core/rounding.h"
#include "core/scratch.h"
#include "kernels/dispatch.h"
#include "kernels/products.h"

namespace dynq {
namespace {

constexpr const char* kName = "GatherDequantize";

struct Table {
  const uint32_t* quads;  // [blocks, lines, kBlockColumns], each of `parts` quads of codes
  Tensor zero_points, scales;
  int64_t lines, parts, groups, columns;

  int64_t depth() const { return lines * parts * kQuad; }
};

template <class T>
T number_at(const Tensor& tensor, int64_t index) {
  return load(static_cast<const T*>(tensor.data) + index);
}

int64_t id_at(const Tensor& ids, int64_t index) {
  return ids.type == kInt32 ? number_at<int32_t>(ids, index) : number_at<int64_t>(ids, index);
}

// Writes one row at a time. A task has its own.
class Writer {
 public:
  explicit Writer(const Table& table)
      : table_(table),
        storage_(storage_of(table.scales.type)),
        dequantize_(active_kernels().dequantize[kS8][kPerRow]),
        codes_(memory<uint32_t>(table.depth() / kQuad)),
        scales_(memory<float>(table.groups)),
        zero_points_(memory<int32_t>(table.groups)),
        row_(memory<float>(storage_.narrow == nullptr ? 0 : table.depth())) {}

  void write(int64_t column, void* to) const {
    const uint32_t* const first = table_.quads + column / kBlockColumns * table_.lines * kBlockColumns;
    for (int64_t line = 0; line < table_.lines; ++line)
      unpack(load(first + line * kBlockColumns + column % kBlockColumns), codes_.get() + line * table_.parts);
    const bool is_one = table_.zero_points.shape.elements() == 1;
    for (int64_t group = 0; group < table_.groups; ++group) {
      const int64_t index = group * table_.columns + column;
      scales_[group] = scale_at(index);
      const int32_t zero_point = number_at<int8_t>(table_.zero_points, is_one ? 0 : index);
      zero_points_[group] = table_.parts == 1 ? zero_point : zero_point & 15;
    }
    void* const floats = storage_.narrow == nullptr ? to : row_.get();
    const int64_t size = table_.depth() / table_.groups;
    for (int64_t group = 0; group < table_.groups; group += kMaxParameters) {
      const Extent extent = {std::min(kMaxParameters, table_.groups - group), size, size};
      dequantize_({extent, reinterpret_cast<const int8_t*>(codes_.get()) + group * size,
                   static_cast<char*>(floats) + group * size * static_cast<int64_t>(sizeof(float)),
                   scales_.get() + group, zero_points_.get() + group, false});
    }
    if (storage_.narrow != nullptr) storage_.narrow(floats, to, table_.depth());
  }

 private:
  // The codes of a quad of bytes, in ascending k.
  void unpack(uint32_t bytes, uint32_t* to) const {
    constexpr uint32_t kHalves = 0x0f0f0f0f, kQuarters = 0x03030303;
    if (table_.parts == 1) {
      *to = bytes;
    } else if (table_.parts == 2) {
      to[0] = bytes & kHalves;
      to[1] = bytes >> 4 & kHalves;
    } else {
      to[0] = bytes & kQuarters;
      to[1] = bytes >> 4 & kQuarters;
      to[2] = bytes >> 2 & kQuarters;
      to[3] = bytes >> 6 & kQuarters;
    }
  }

  float scale_at(int64_t index) const {
    if (storage_.widen == nullptr) return number_at<float>(table_.scales, index);
    float scale;
    storage_.widen(element(table_.scales.data, storage_, index), &scale, 1);
    return scale;
  }

  const Table& table_;
  const Storage storage_;
  const DequantizeKernel dequantize_;
  const std::unique_ptr<uint32_t[]> codes_;
  const std::unique_ptr<float[]> scales_;
  const std::unique_ptr<int32_t[]> zero_points_;
  const std::unique_ptr<float[]> row_;  // of float32, if the result has another type
};

class GatherDequantize : public Node {
 public:
  explicit GatherDequantize(const Attributes& attributes)
      : parts_(8 / read_one_of(kName, attributes, "bits", 8, {{8, nullptr}, {4, nullptr}, {2, nullptr}})) {}

  void compute(Context& context) const override {
    const Tensor ids = context.input(0);
    const Table table = checked(context.input(1), context.input(2), context.input(3));
    if (ids.shape.rank == kMaxRank)
      fail("ids has shape " + ids.shape.text() + ", expected a rank below " + std::to_string(kMaxRank));
    const int64_t count = ids.shape.elements();
    for (int64_t i = 0; i < count; ++i) {
      const int64_t id = id_at(ids, i);
      if (id < -table.columns || id >= table.columns)
        fail("ids has " + std::to_string(id) + ", which is out of range: expected at least " +
             std::to_string(-table.columns) + " and less than " + std::to_string(table.columns));
    }
    Shape shape = ids.shape;
    shape.dims[shape.rank++] = table.depth();
    void* const dst = context.output(0, shape);
    if (shape.elements() == 0) return;
    const Storage storage = storage_of(table.scales.type);
    const int64_t tasks = part_count(shape.elements(), count);
    run_tasks(context, tasks, [&](int64_t task) {
      const Writer writer(table);
      for (int64_t i = count * task / tasks; i < count * (task + 1) / tasks; ++i) {
        const int64_t id = id_at(ids, i);
        writer.write(id < 0 ? id + table.columns : id, element(dst, storage, i * table.depth()));
      }
    });
  }

 private:
  Table checked(const Tensor& weight, const Tensor& zero_points, const Tensor& scales) const {
    if (scales.shape.rank != 2 || scales.shape.dims[0] == 0)
      fail("column_scale has shape " + scales.shape.text() + ", expected [groups, N]");
    const int64_t lines = weight.shape.rank == 4 ? weight.shape.dims[1] : 0;
    const int64_t groups = scales.shape.dims[0], columns = scales.shape.dims[1];
    constexpr int64_t kMost = int64_t{1} << 48;  // tensors without elements may have dimensions of any length
    if (lines > kMost || columns > kMost)
      fail("weight has shape " + weight.shape.text() + " and column_scale " + scales.shape.text() +
           ", expected lengths of up to 2^48");
    const Table table = {
        static_cast<const uint32_t*>(weight.data), zero_points, scales, lines, parts_, groups, columns};
    const Shape packed = {4, {divide_up(columns, kBlockColumns), lines, kBlockColumns, kQuad}};
    if (!(weight.shape == packed) || table.depth() % groups != 0)
      fail("weight has shape " + weight.shape.text() + ", expected packed weights of " + std::to_string(columns) +
           " columns, and of a K that " + std::to_string(groups) + " groups divide, by the shape of column_scale");
    if (zero_points.shape.elements() != 1 && !(zero_points.shape == scales.shape))
      fail("weight_zero_point has shape " + zero_points.shape.text() + ", expected that of column_scale, " +
           scales.shape.text() + ", or one element");
    return table;
  }

  [[noreturn]] static void fail(const std::string& message) { throw Error(std::string(kName) + ": " + message); }

  const int64_t parts_;
};

}  // namespace

Operator gather_dequantize() {
  std::vector<Signature> signatures;
  for (const Type scale : {kFloat, kFloat16})
    for (const Type id : {kInt64, kInt32}) signatures.push_back({{id, kInt8, kInt8, scale}, {scale}});
  Operator op = {kName, 4, signatures, make_node<GatherDequantize>, type_of_input<3>};
  op.columns_input = Operator::kNoInput;
  return op;
}

}  // namespace dynq
