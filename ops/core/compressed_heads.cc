#include "core/compressed_heads.h"

#include <algorithm>
#include <cstring>

#include "core/rounding.h"
#include "kernels/dispatch.h"
#include "kernels/numbers.h"

namespace dynq {
namespace {

constexpr int64_t kTransposedRows = 16;   // rows of float keys that are read at once
constexpr int64_t kWidenedColumns = 512;  // of codes of 4 bits, for panels
static_assert(kWidenedColumns % kMaxPanelColumns == 0);

CodeKind kind_of(Type type) { return type == kInt8 || type == kInt4 ? kS8 : kU8; }

// 8 rows of 8 bytes, of which the first is the lowest byte.
void transpose_8x8(uint64_t (&rows)[8]) {
  constexpr uint64_t kMasks[] = {0x00000000ffffffffu, 0x0000ffff0000ffffu, 0x00ff00ff00ff00ffu};
  for (int step = 0; step < 3; ++step) {
    const int distance = 4 >> step, shift = 8 * distance;
    for (int i = 0; i < 8; ++i) {
      if ((i & distance) != 0) continue;
      const uint64_t low = rows[i], high = rows[i + distance], mask = kMasks[step];
      rows[i] = (low & mask) | (high & mask) << shift;
      rows[i + distance] = (low >> shift & mask) | (high & ~mask);
    }
  }
}

// to[j * to_stride + i] = from[i * stride + j] for i < rows and j < cols.
void transpose_bytes(const uint8_t* from, int64_t stride, int64_t rows, int64_t cols, uint8_t* to, int64_t to_stride) {
  int64_t i = 0;
  for (; i + 8 <= rows; i += 8) {
    int64_t j = 0;
    for (; j + 8 <= cols; j += 8) {
      uint64_t block[8];
      for (int64_t k = 0; k < 8; ++k) std::memcpy(block + k, from + (i + k) * stride + j, 8);
      transpose_8x8(block);
      for (int64_t k = 0; k < 8; ++k) std::memcpy(to + (j + k) * to_stride + i, block + k, 8);
    }
    for (; j < cols; ++j)
      for (int64_t k = i; k < i + 8; ++k) to[j * to_stride + k] = from[k * stride + j];
  }
  for (; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j) to[j * to_stride + i] = from[i * stride + j];
}

// Scales [tokens, kGroups] as [kGroups, tokens]. Compilers unroll the inner loop.
template <int64_t kGroups>
void turn(const float* from, int64_t tokens, float* to) {
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t group = 0; group < kGroups; ++group) store(to + group * tokens + t, load(from + t * kGroups + group));
}

constexpr int64_t kMaxTurned = 8;
constexpr void (*turn_scales[kMaxTurned + 1])(const float*, int64_t, float*) = {
    nullptr, turn<1>, turn<2>, turn<3>, turn<4>, turn<5>, turn<6>, turn<7>, turn<8>};

// Rows of words as columns.
void turn_words(const int16_t* words, int64_t rows, int64_t size, int16_t* to, int64_t to_stride) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < size; ++j) to[j * to_stride + i] = words[i * size + j];
}

int64_t dim(const Tensor& tensor, size_t axis) { return tensor.shape.rank == 4 ? tensor.shape.dims[axis] : 1; }

}  // namespace

CompressedOperand::CompressedOperand(const Tensor& codes, const Tensor& scales, const Tensor& zero_points,
                                     const Tensor& offsets, const CompressedSizes& n, int64_t size, bool is_transposed,
                                     bool is_per_channel)
    : codes_(codes),
      scales_(scales),
      zero_points_(zero_points),
      offsets_(offsets),
      storage_(storage_of(codes.type)),
      n_(n),
      size_(size),
      is_transposed_(is_transposed),
      is_per_channel_(is_per_channel),
      has_4_bits_(bits_of(codes.type) == 4),
      groups_(is_float() ? 1 : dim(scales, is_transposed ? 2 : 3)),
      token_groups_(is_float() ? 1 : dim(scales, is_transposed ? 3 : 2)),
      kind_(is_float() ? kWords : static_cast<int>(kind_of(codes.type))) {}

bool CompressedOperand::has_zero_points() const {
  if (is_float()) return false;
  if (zero_points_.shape.elements() != 1) return true;
  uint8_t code = 0;
  read_zero_points(0, 1, &code);
  return code != 0;
}

bool CompressedOperand::has_offsets() const {
  return !is_float() && (offsets_.shape.elements() != 1 || load(static_cast<const float*>(offsets_.data)) != 0);
}

const float* CompressedOperand::floats(const Tensor& tensor, int64_t head, std::unique_ptr<float[]>& holder) const {
  const auto* data = static_cast<const float*>(tensor.data);
  if (is_in_order(tensor)) return data + start(tensor, head);
  holder = memory<float>(parameters());
  if (tensor.shape.elements() == 1) {
    std::fill(holder.get(), holder.get() + parameters(), load(data));
    return holder.get();
  }
  const bool is_turned = !is_per_channel_ && !is_transposed_ && dim(tensor, 2) == n_.t && groups_ <= kMaxTurned;
  if (is_turned && dim(tensor, 3) == groups_) {
    turn_scales[groups_](data + start(tensor, head), n_.t, holder.get());
    return holder.get();
  }
  each(tensor, head, [&](int64_t to, int64_t from) { holder[static_cast<size_t>(to)] = load(data + from); });
  return holder.get();
}

const uint8_t* CompressedOperand::zero_points(int64_t head, std::unique_ptr<uint8_t[]>& holder) const {
  if (!has_zero_points()) return nullptr;
  if (!has_4_bits_ && is_in_order(zero_points_))
    return static_cast<const uint8_t*>(zero_points_.data) + start(zero_points_, head);
  holder = memory<uint8_t>(parameters());
  if (has_one_zero_point()) {
    uint8_t code = 0;
    read_zero_points(0, 1, &code);
    std::memset(holder.get(), code, static_cast<size_t>(parameters()));
    return holder.get();
  }
  const int64_t count = dim(zero_points_, 2) * dim(zero_points_, 3);
  const auto codes = memory<uint8_t>(count);
  const int64_t first = start(zero_points_, head);
  read_zero_points(first, count, codes.get());
  each(zero_points_, head,
       [&](int64_t to, int64_t from) { holder[static_cast<size_t>(to)] = codes[static_cast<size_t>(from - first)]; });
  return holder.get();
}

void CompressedOperand::quantize(int64_t head, int16_t* words, float* scales) const {
  const auto* from = static_cast<const float*>(codes_.data) + head * n_.t * size_;
  const QuantizeWordsKernel to_words = active_compressed().quantize_words;
  if (!is_transposed_) {
    to_words({from, size_, nullptr, n_.t, size_, words, size_, scales});
    return;
  }
  const auto rows = memory<float>(kTransposedRows * size_);
  for (int64_t t = 0; t < n_.t; t += kTransposedRows) {
    const int64_t count = std::min(kTransposedRows, n_.t - t);
    for (int64_t i = 0; i < size_; ++i)
      for (int64_t j = 0; j < count; ++j) store(rows.get() + j * size_ + i, load(from + i * n_.t + t + j));
    to_words({rows.get(), size_, nullptr, count, size_, words + t * size_, size_, scales + t});
  }
}

const uint8_t* CompressedOperand::bytes(int64_t head, int64_t first, int64_t count, uint8_t* holder) const {
  const int64_t at = head * n_.t * size_ + first;
  if (!has_4_bits_) return static_cast<const uint8_t*>(codes_.data) + at;
  widen_codes(storage_, codes_.type, codes_.data, at, count, holder);
  return holder;
}

// The number of the first element of a head.
int64_t CompressedOperand::start(const Tensor& tensor, int64_t head) const {
  const int64_t batch = head / n_.k, heads = dim(tensor, 1), of_head = dim(tensor, 2) * dim(tensor, 3);
  return ((dim(tensor, 0) == 1 ? 0 : batch * heads) + (heads == 1 ? 0 : head % n_.k)) * of_head;
}

bool CompressedOperand::is_in_order(const Tensor& tensor) const {
  const int64_t tokens = dim(tensor, is_transposed_ ? 3 : 2), groups = dim(tensor, is_transposed_ ? 2 : 3);
  if (is_per_channel_) return groups == size_ && tokens == token_groups_ && (!is_transposed_ || tokens == 1);
  return tokens == n_.t && groups == groups_ && (is_transposed_ || groups == 1);
}

// Calls copy(to, from) for the number of each element of the expanded form, and of its element of the tensor.
template <class Copy>
void CompressedOperand::each(const Tensor& tensor, int64_t head, const Copy& copy) const {
  const int64_t first = start(tensor, head), columns = dim(tensor, 3);
  const int64_t tokens = dim(tensor, is_transposed_ ? 3 : 2), groups = dim(tensor, is_transposed_ ? 2 : 3);
  const int64_t of_token = tokens == 1 ? 0 : is_transposed_ ? 1 : columns;
  const int64_t of_group = groups == 1 ? 0 : is_transposed_ ? columns : 1;
  if (is_per_channel_) {
    const int64_t size = size_ / groups;  // of a group
    for (int64_t token = 0; token < token_groups_; ++token)
      for (int64_t i = 0; i < size_; ++i) copy(token * size_ + i, first + token * of_token + i / size * of_group);
    return;
  }
  const int64_t size = n_.t / std::max<int64_t>(tokens, 1);
  for (int64_t token = 0; token < tokens; ++token)
    for (int64_t group = 0; group < groups_; ++group)
      for (int64_t t = token * size; t < (token + 1) * size; ++t)
        copy(group * n_.t + t, first + group * of_group + token * of_token);
}

void CompressedOperand::read_zero_points(int64_t first, int64_t count, uint8_t* to) const {
  const auto* data = static_cast<const uint8_t*>(zero_points_.data);
  if (!has_4_bits_)
    std::memcpy(to, data + first, static_cast<size_t>(count));
  else
    widen_codes(storage_of(zero_points_.type), zero_points_.type, data, first, count, to);
}

CompressedHead::CompressedHead(const CompressedOperand& operand, int64_t head, HeadMemory& head_memory)
    : operand(operand), head(head), memory_(head_memory) {
  const int64_t length = operand.length();
  if (operand.is_float()) {
    if (memory_.words == nullptr) memory_.words = memory<int16_t>(length * operand.size());
    scale_holder_ = memory<float>(length);
    operand.quantize(head, memory_.words.get(), scale_holder_.get());
    scales = scale_holder_.get();
  } else {
    scales = operand.floats(operand.scales_, head, scale_holder_);
    zero_points = operand.zero_points(head, byte_holder_);
    if (operand.has_offsets()) offsets = operand.floats(operand.offsets_, head, offset_holder_);
  }
}

float CompressedHead::largest_scale() const {
  const float largest = largest_magnitude(scales, operand.parameters());
  return offsets == nullptr ? largest : std::max(largest, largest_magnitude(offsets, operand.parameters()));
}

// What the parts of an operand share. A part has `depth` rows and `cols` columns. Keys with codes in rows of
// tokens are transposed. Token groups of values with scales of channels are parts, which follow each other in each
// panel.
struct CompressedHead::Packing {
  bool is_key, is_turned;
  int64_t tokens, size, length;
  int64_t depth, cols;
  int64_t stride, widened;  // of codes of 4 bits, which become bytes in whole rows, or in parts of long rows
  std::unique_ptr<uint8_t[]> turned, holder;
  std::unique_ptr<int16_t[]> turned_words;

  Packing(const CompressedOperand& operand, bool is_of_key);
};

CompressedHead::Packing::Packing(const CompressedOperand& operand, bool is_of_key)
    : is_key(is_of_key),
      is_turned(is_key && (!operand.is_transposed() || operand.is_float())),
      tokens(operand.token_group_size()),
      size(operand.size()),
      length(operand.length()),
      depth(is_key ? operand.group_size() : tokens),
      cols(is_key ? tokens : operand.group_size()),
      stride(is_key ? length : size),
      widened(std::min(kWidenedColumns, stride)),
      turned(memory<uint8_t>(is_turned && !operand.is_float() ? depth * kMaxPanelColumns : 0)),
      // For values, those of all groups.
      holder(memory<uint8_t>(!operand.has_4_bits() ? 0
                             : is_turned           ? kMaxPanelColumns * size
                                                   : depth * widened)),
      turned_words(memory<int16_t>(is_turned && operand.is_float() ? depth * kMaxPanelColumns : 0)) {}

void CompressedHead::pack(bool is_key) {
  const CompressedKernels& kernels = active_compressed();
  const int64_t columns = kernels.panel_columns, tokens = operand.token_group_size();
  const int64_t group_size = operand.group_size(), cols = is_key ? tokens : group_size;
  const bool has_parts_of_panels = !is_key && operand.token_groups() > 1;
  if (2 * cols < columns || (is_key && group_size > kMaxProducts)) return;
  if (has_parts_of_panels && tokens % kernels.panel_rows != 0) return;
  const int64_t parts = operand.token_groups() * operand.groups(), panels_of_part = divide_up(cols, columns);
  panel_stride_ = round_up(is_key ? group_size : operand.length(), kernels.panel_rows) * columns;
  part_stride_ = has_parts_of_panels ? tokens * columns : panels_of_part * panel_stride_;
  if (memory_.panels == nullptr)
    memory_.panels = std::make_unique<AlignedArray<int16_t>>(has_parts_of_panels ? panels_of_part * panel_stride_
                                                                                 : parts * part_stride_);
  panels_ = memory_.panels->get();
  const Packing packing(operand, is_key);
  for (int64_t part = 0; part < parts; ++part) pack_part(packing, part);
}

void CompressedHead::pack_part(const Packing& packing, int64_t part) {
  const CompressedKernels& kernels = active_compressed();
  for (int64_t first = 0; first < packing.cols; first += kMaxPanelColumns) {
    PanelPack pack = {};
    pack.depth = packing.depth;
    pack.cols = std::min(kMaxPanelColumns, packing.cols - first);
    pack.panels = panels_ + part * part_stride_ + first / kernels.panel_columns * panel_stride_;
    pack.panel_stride = panel_stride_;
    pack.fits_int8 = operand.fits_int8();
    set_codes(packing, part, first, pack);
    if (zero_points != nullptr) set_zero_points(packing, part, first, pack);
    kernels.pack[operand.kind()](pack);
  }
}

// Columns of a part from `first` on.
void CompressedHead::set_codes(const Packing& packing, int64_t part, int64_t first, PanelPack& pack) const {
  const int64_t token = part / operand.groups() * packing.tokens + first, size = packing.size;
  const int64_t element = part % operand.groups() * operand.group_size();
  if (!packing.is_turned) return set_halves(packing, part, first, pack);
  pack.code_stride = kMaxPanelColumns;
  if (operand.is_float()) {
    turn_words(memory_.words.get() + token * size, pack.cols, size, packing.turned_words.get(), kMaxPanelColumns);
    pack.codes = packing.turned_words.get();
    return;
  }
  const auto* rows = static_cast<const uint8_t*>(codes(token * size, pack.cols * size, packing.holder.get()));
  transpose_bytes(rows + element, size, pack.cols, packing.depth, packing.turned.get(), kMaxPanelColumns);
  pack.codes = packing.turned.get();
}

// Likewise, if no codes are transposed: in place, or of 4 bits as bytes.
void CompressedHead::set_halves(const Packing& packing, int64_t part, int64_t first, PanelPack& pack) const {
  const int64_t group = part % operand.groups(), token_group = part / operand.groups();
  const int64_t token = token_group * packing.tokens + first, element = group * operand.group_size();
  const int64_t row = packing.is_key ? element * packing.length : token_group * packing.tokens * packing.size;
  const int64_t at = row + (packing.is_key ? token : element + first);
  pack.code_stride = packing.stride;
  if (!operand.has_4_bits()) {
    pack.codes = codes(at, 0, nullptr);
    return;
  }
  uint8_t* const holder = packing.holder.get();
  const int64_t widened = packing.widened, column = first % widened;
  pack.code_stride = widened;
  if (widened == packing.stride) {
    if (first == 0 && (packing.is_key || group == 0)) codes(row, packing.depth * packing.stride, holder);
    pack.codes = holder + at - row;
    return;
  }
  const int64_t count = std::min(widened, packing.cols - first);
  for (int64_t d = 0; d < packing.depth && column == 0; ++d)
    codes(at + d * packing.stride, count, holder + d * widened);
  pack.codes = holder + column;
}

void CompressedHead::set_zero_points(const Packing& packing, int64_t part, int64_t first, PanelPack& pack) const {
  const int64_t group = part % operand.groups(), token_group = part / operand.groups();
  const bool is_key = packing.is_key, is_of_rows = is_key == operand.is_per_channel();
  const int64_t of_tokens = group * packing.length + (is_key ? token_group * packing.tokens + first : 0);
  const int64_t of_channels = token_group * packing.size + (is_key ? 0 : first);
  pack.zero_points = zero_points + (operand.is_per_channel() ? of_channels : of_tokens);
  pack.of_row = is_of_rows ? 1 : 0;
  pack.of_column = is_of_rows ? 0 : 1;
}

void CompressedHead::copy_halves(int64_t first, int64_t count, uint8_t* to) const {
  const int64_t bytes = divide_up(count, 2);
  const uint8_t* const from = halves(first);
  if (is_at_byte(first)) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return;
  }
  int64_t i = 0;
  for (; i + 8 < bytes; i += 8) {  // eight bytes, of which the first is the lowest
    constexpr uint64_t kLow = 0x0f0f0f0f0f0f0f0fu;
    uint64_t eight, next;
    std::memcpy(&eight, from + i, 8);
    std::memcpy(&next, from + i + 1, 8);
    const uint64_t codes = (eight >> 4 & kLow) | (next << 4 & ~kLow);
    std::memcpy(to + i, &codes, 8);
  }
  for (; i < bytes - 1; ++i) to[i] = static_cast<uint8_t>(from[i] >> 4 | from[i + 1] << 4);
  const uint8_t last = from[bytes - 1];
  to[bytes - 1] = static_cast<uint8_t>(count % 2 == 1 ? last >> 4 : last >> 4 | from[bytes] << 4);
}

void split_words(int16_t* words, int64_t count, int16_t* low) {
  for (int64_t i = 0; i < count; ++i) {
    const int word = words[i], low_byte = word & (kHighByte - 1);
    low[i] = static_cast<int16_t>(low_byte);
    words[i] = static_cast<int16_t>((word - low_byte) / kHighByte);
  }
}

float largest_magnitude(const float* x, int64_t count) {
  if (count == 0) return 0;
  const Range range = active_kernels().ranges[kAbsMax](x, count);
  return range.not_finite == 0 ? range.high : kInfinity;
}

}  // namespace dynq
