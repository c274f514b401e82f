// The keys or values of attention over codes: the codes, scales, zero points and offsets of each head, and their packed
// form.
#pragma once

#include <memory>

#include "core/formats.h"
#include "core/operator.h"
#include "core/scratch.h"
#include "kernels/compressed.h"

namespace dynq {

// One run: B batches; H heads of query, K of key and value; S rows of query, T of key and value; D and E elements of a
// head of query and value.
struct CompressedSizes {
  int64_t b, h, k, s, t, d, e;

  int64_t rows() const { return h / k * s; }  // of query for one head of key
};

constexpr int kSignOfHalves = 8;  // of codes of 4 bits

// Keys or values: codes, or float32 that becomes words.
class CompressedOperand {
 public:
  // `length` rows of `size` elements, or with `is_transposed` as many columns. The last dimensions of scales are
  // token groups and groups along the head. `is_per_channel`: the scales are factors of the query or of the result, so
  // they are expanded along the head instead of along the tokens.
  CompressedOperand(const Tensor& codes, const Tensor& scales, const Tensor& zero_points, const Tensor& offsets,
                    const CompressedSizes& n, int64_t size, bool is_transposed, bool is_per_channel);

  bool is_float() const { return codes_.type == kFloat; }
  bool has_4_bits() const { return has_4_bits_; }  // two codes in a byte
  bool is_transposed() const { return is_transposed_; }
  bool is_per_channel() const { return is_per_channel_; }
  int64_t length() const { return n_.t; }
  int64_t size() const { return size_; }
  // Parts of a head with scales of their own: all of it if the scales are factors of the query or of the result.
  int64_t groups() const { return is_per_channel_ ? 1 : groups_; }
  int64_t group_size() const { return size_ / groups(); }
  int64_t group_size_of_offsets() const { return is_per_channel_ ? 1 : group_size(); }
  int64_t token_groups() const { return is_per_channel_ ? token_groups_ : 1; }  // that have scales of channels
  int64_t token_group_size() const { return n_.t / token_groups(); }
  bool fits_int8() const { return has_4_bits() || (is_signed() && !has_zero_points()); }  // codes minus zero points
  int64_t largest_code() const { return is_float() ? static_cast<int64_t>(kLargestWord) : 255; }
  int kind() const { return kind_; }                        // what the other words are multiplied by
  int64_t word_rows() const { return is_float() ? 2 : 1; }  // of the other words, for each row of numbers
  bool has_zero_points() const;
  bool has_one_zero_point() const { return zero_points_.shape.elements() == 1; }  // for all heads
  bool has_offsets() const;
  int64_t parameters() const { return is_per_channel_ ? token_groups_ * size_ : groups_ * n_.t; }  // of a head
  // Halves have no sign: a code of a type with a sign is one of kSignOfHalves more, if this bit is flipped.
  bool is_signed() const { return kind_ == kS8; }
  uint8_t flipped() const { return is_signed() ? 17 * kSignOfHalves : 0; }

 private:
  friend struct CompressedHead;

  // Scales or offsets, and zero points, of a head: [groups, T], or [token groups, size] if they are of channels.
  // `holder` has them if the tensor has another order.
  const float* floats(const Tensor& tensor, int64_t head, std::unique_ptr<float[]>& holder) const;
  const uint8_t* zero_points(int64_t head, std::unique_ptr<uint8_t[]>& holder) const;
  // The words of a head of floats, [T, size], and a scale for each row.
  void quantize(int64_t head, int16_t* words, float* scales) const;
  // Codes [first, first + count) of a head as bytes: its own memory, or `holder`'s.
  const uint8_t* bytes(int64_t head, int64_t first, int64_t count, uint8_t* holder) const;

  int64_t start(const Tensor& tensor, int64_t head) const;
  bool is_in_order(const Tensor& tensor) const;
  template <class Copy>
  void each(const Tensor& tensor, int64_t head, const Copy& copy) const;
  void read_zero_points(int64_t first, int64_t count, uint8_t* to) const;

  Tensor codes_, scales_, zero_points_, offsets_;
  Storage storage_;
  CompressedSizes n_;
  int64_t size_;
  bool is_transposed_, is_per_channel_, has_4_bits_;
  int64_t groups_, token_groups_;
  int kind_;
};

// The memory of a head, for heads of the same operand one after the other.
struct HeadMemory {
  std::unique_ptr<int16_t[]> words;
  std::unique_ptr<AlignedArray<int16_t>> panels;
};

// An operand of one head: its scales, zero points and offsets, its words if it has floats, and its panels if it is
// packed.
struct CompressedHead {
  CompressedHead(const CompressedOperand& operand, int64_t head, HeadMemory& memory);

  // Packs all codes minus their zero points, for products with many rows. A key has a panel for some tokens: [token
  // groups, groups, panels of tokens, elements]; a value one for some elements: [groups, panels of elements, tokens].
  // Does nothing if padding would take more than half of each panel, if the sums of a key's group do not fit int32, or
  // if adjacent rows of a panel would have tokens of two groups with scales of channels.
  void pack(bool is_key);

  bool is_at_byte(int64_t first) const { return number_of(first) % 2 == 0; }
  // Codes of 4 bits from `first` on, which is at a byte; or a copy of some, which need not be.
  const uint8_t* halves(int64_t first) const {
    return static_cast<const uint8_t*>(operand.codes_.data) + number_of(first) / 2;
  }
  void copy_halves(int64_t first, int64_t count, uint8_t* to) const;

  // Codes [first, first + count) as bytes, or words.
  const void* codes(int64_t first, int64_t count, uint8_t* holder) const {
    if (operand.is_float()) return memory_.words.get() + first;
    return operand.bytes(head, first, count, holder);
  }

  const CompressedOperand& operand;
  int64_t head;
  const float* scales;                   // [groups, T], or [token groups, size]
  const uint8_t* zero_points = nullptr;  // likewise; null: 0
  const float* offsets = nullptr;        // likewise; null: 0

  float largest_scale() const;  // or offset; infinite if one is NaN or infinite
  bool is_packed() const { return panels_ != nullptr; }
  int64_t panel_stride() const { return panel_stride_; }
  int64_t part_stride() const { return part_stride_; }
  // The panels of a part: a token group and group of a key, or a group of a value.
  const int16_t* panels(int64_t part) const { return panels_ + part * part_stride_; }

 private:
  struct Packing;

  void pack_part(const Packing& packing, int64_t part);
  void set_codes(const Packing& packing, int64_t part, int64_t first, PanelPack& pack) const;
  void set_halves(const Packing& packing, int64_t part, int64_t first, PanelPack& pack) const;
  void set_zero_points(const Packing& packing, int64_t part, int64_t first, PanelPack& pack) const;
  int64_t number_of(int64_t first) const { return head * operand.length() * operand.size() + first; }

  HeadMemory& memory_;
  std::unique_ptr<uint8_t[]> byte_holder_;
  std::unique_ptr<float[]> scale_holder_, offset_holder_;
  int16_t* panels_ = nullptr;
  int64_t part_stride_ = 0, panel_stride_ = 0;
};

// Splits words into their high bytes, which take their place, and their low bytes.
void split_words(int16_t* words, int64_t count, int16_t* low);

// The largest magnitude; infinite if a number is NaN or infinite.
float largest_magnitude(const float* x, int64_t count);

}  // namespace dynq
