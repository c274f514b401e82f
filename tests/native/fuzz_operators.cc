// Runs every operator on inputs made from bytes, and compares each instruction set of this machine with the portable
// kernels, bit for bit. Tensors have memory of exactly their size, so that AddressSanitizer reports any access beyond.
// Types, shapes and attributes may be invalid: then all must report the same error and request no output.
// tests/native/run builds it in one of two ways:
//
//   with libFuzzer                     fuzz_operators [its options] [corpus]
//   without (-DORT_DYNQ_NO_FUZZER)     fuzz_operators SECONDS [CORPUS]: the corpus, then random bytes; each input also
//                                      runs from several threads at once; each has more threads for parallel_for
//
// New operators are included automatically. Their new attributes need a line in kAttributes; inputs with special rules
// of shapes need a case in shape_of_input; a new step of programs needs a place in ProgramText.
//
// More than 450 lines: the generator of inputs, the comparison and the two drivers share the description of a node, and
// nothing else uses them.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "c_api.h"
#include "core/encodings.h"
#include "core/operator.h"
#include "random.h"

namespace {

using dynq::Operator;
using dynq::Shape;
using dynq::Type;

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "fuzz_operators: %s\n", what.c_str());
  std::abort();
}

// The input's bytes, repeated with changes, so that few bytes make large tensors.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  uint8_t byte() {
    if (size_ == 0) return 0;
    const uint8_t value = static_cast<uint8_t>(data_[at_] ^ (round_ * 0x9d));
    if (++at_ == size_) at_ = 0, ++round_;
    return value;
  }
  template <class T>
  T any() {
    uint8_t bytes[sizeof(T)];
    for (uint8_t& value : bytes) value = byte();
    T value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
  }
  size_t below(size_t count) { return byte() % count; }
  bool one_in(size_t count) { return below(count) == count - 1; }  // never if the byte is 0
  template <class Range>
  auto of(const Range& values) -> decltype(values[0]) {
    return values[below(std::size(values))];
  }

 private:
  const uint8_t* data_;
  size_t size_, at_ = 0;
  unsigned round_ = 0;
};

// An attribute with valid and invalid values. Operators ignore attributes that they do not have.
struct Choices {
  const char* name;
  std::vector<const char*> texts;  // of a text attribute
  std::vector<int64_t> values, wrong;
};
constexpr int64_t kHuge = int64_t{1} << 62, kLowest = std::numeric_limits<int64_t>::min();
const Choices kAttributes[] = {
    {"qtype", {"per_tensor", "per_channel", "per_group", "auto", "", "per_row"}, {}, {}},
    {"arithmetic", {"onnx", "onednn", "ONNX"}, {}, {}},
    {"axis", {}, {0, 1, -1, -2, 2}, {3, -5, 17, kHuge, kLowest}},
    {"block_size", {}, {0, 1, 2, 3, 16, 32, 33, 128}, {-1, kHuge, kLowest}},
    {"output_dtype", {}, {2, 3}, {0, 1, 6, -1, kHuge}},
    {"count", {}, {0, 1, 2, 3}, {-1, 17, kHuge, kLowest}},
    {"reduce_others", {}, {0, 1}, {2, -1}},
    {"keepdims", {}, {0, 1}, {2, -1}},
    {"scale_order", {}, {0, 1, 2}, {3, -1, kLowest}},
    {"code_type", {}, {1, 2, 3}, {0, 6, kHuge}},
    {"bits", {}, {8, 4, 2}, {0, 3, 16, kHuge}},
    {"group_size", {}, {0, 16, 32, 64, 128}, {-16, 8, 17, kHuge, kLowest}},
    {"terms", {}, {1, 2}, {0, 3, -1, kHuge}},
    {"group", {}, {1, 2, 3, 16}, {0, -1, 7, kHuge, kLowest}},
    {"auto_pad", {}, {0, 1, 2}, {3, -1, kLowest}},
    {"quad_axis", {}, {0, 1}, {2, -1, kHuge}},
    {"branch", {}, {0, 1, 7}, {-1, kHuge, kLowest}},
    {"direction", {}, {0, 1, 2}, {3, -1, kHuge}},
    {"last_gate", {}, {0, 1, 2}, {3, -1, kLowest}},
};

std::vector<ort_dynq_attribute> make_attributes(Bytes& bytes, bool may_be_wrong) {
  std::vector<ort_dynq_attribute> given;
  for (const Choices& choices : kAttributes) {
    if (!bytes.one_in(2)) continue;
    const bool wrong = may_be_wrong && bytes.one_in(8);
    const bool is_text = choices.texts.empty() == (wrong && bytes.one_in(4));
    if (is_text)
      given.push_back({choices.name, choices.texts.empty() ? "1" : bytes.of(choices.texts), 0});
    else
      given.push_back(
          {choices.name, nullptr, choices.values.empty() ? 1 : bytes.of(wrong ? choices.wrong : choices.values)});
  }
  return given;
}

template <class T>
T find(const std::vector<ort_dynq_attribute>& given, const char* name, T absent, T ort_dynq_attribute::* member) {
  for (const ort_dynq_attribute& attribute : given)
    if (std::strcmp(attribute.name, name) == 0) return attribute.*member;
  return absent;
}

// Shapes

constexpr int64_t kLengths[] = {1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 32, 33, 64, 65, 97, 127, 128, 129, 130};
constexpr int64_t kLongLengths[] = {1023, 4097, 12289, 33000, 70001, 150000};
constexpr int64_t kMaxElements = 300000;   // more than one task, one block of parameters and one long row have
constexpr int64_t kMaxProducts = 2500000;  // several tasks; sanitizers make products a hundred times slower

Shape shape_of(std::initializer_list<int64_t> dims) {
  Shape shape;
  for (const int64_t dim : dims) shape.dims[shape.rank++] = dim;
  return shape;
}

Shape make_src_shape(Bytes& bytes, bool is_large) {
  Shape shape;
  shape.rank = bytes.one_in(16) ? bytes.below(dynq::kMaxRank + 1) : bytes.below(4) + 1;
  const size_t long_one = is_large ? bytes.below(std::max<size_t>(1, shape.rank)) : shape.rank;
  for (size_t i = 0; i < shape.rank; ++i) {
    int64_t& dim = shape.dims[i];
    dim = i == long_one                ? bytes.of(kLongLengths)
          : shape.rank > 4 || is_large ? 1 + static_cast<int64_t>(bytes.below(3))
          : bytes.one_in(32)           ? 0
          : bytes.one_in(2)            ? bytes.of(kLengths)
                                       : 1 + static_cast<int64_t>(bytes.below(8));
  }
  for (size_t i = 0; i < shape.rank && shape.elements() > (is_large ? kMaxElements : 20000); ++i)
    if (i != long_one) shape.dims[i] = 1;
  return shape;
}

int64_t divisor_of(Bytes& bytes, int64_t length) {
  int64_t count = std::max<int64_t>(1, length >> bytes.below(8));
  while (length % count != 0) --count;
  return length == 0 ? 0 : count;
}

// Makes src fit the attribute block_size of an operator with rows that may be blocks.
void fit_blocks(std::vector<ort_dynq_attribute>& given, Shape& src) {
  const int64_t block = find<int64_t>(given, "block_size", 0, &ort_dynq_attribute::integer);
  if (block <= 0 || src.rank == 0) return;
  const Shape given_src = src;
  int64_t& length = src.dims[src.rank - 1];
  length = (length + block - 1) / block * block;
  if (src.elements() > kMaxElements) src = given_src;
  given.erase(
      std::remove_if(given.begin(), given.end(), [](const auto& each) { return std::strcmp(each.name, "axis") == 0; }),
      given.end());
}

// Makes the attributes of RowProgram fit its inputs.
void fit_row_program(std::vector<ort_dynq_attribute>& given, const Shape& src, const std::vector<Type>& types) {
  const auto rank = static_cast<int64_t>(src.rank);
  const int64_t axis = find<int64_t>(given, "axis", -1, &ort_dynq_attribute::integer);
  const bool fits = axis >= -rank && axis <= rank - (rank > 0);
  given.erase(std::remove_if(given.begin(), given.end(),
                             [&](const auto& each) {
                               return (!fits && std::strcmp(each.name, "axis") == 0) ||
                                      std::strcmp(each.name, "code_type") == 0;
                             }),
              given.end());
  if (!fits && rank == 0) given.push_back({"axis", nullptr, 0});
  if (types.size() > 1) given.push_back({"code_type", nullptr, types[1]});
}

// A valid shape for input `index` > 0. Operators have the same rules if their names have the same prefix.
Shape shape_of_input(Bytes& bytes, const std::string& op, size_t index, const Shape& src, const Shape& scales,
                     const std::vector<ort_dynq_attribute>& given) {
  if (index > 1) return bytes.one_in(4) ? shape_of({1}) : scales;
  if (op.rfind("Dynamic", 0) != 0) {  // broadcast
    Shape shape = src;
    const size_t missing = bytes.one_in(4) ? bytes.below(src.rank + 1) : 0;
    shape.rank -= missing;
    for (size_t i = 0; i < shape.rank; ++i) shape.dims[i] = bytes.one_in(2) ? 1 : src.dims[i + missing];
    return shape;
  }
  const std::string qtype = find<const char*>(given, "qtype", "per_tensor", &ort_dynq_attribute::text)
                                ? find<const char*>(given, "qtype", "per_tensor", &ort_dynq_attribute::text)
                                : "";
  const int64_t rank = static_cast<int64_t>(src.rank);
  int64_t axis = find<int64_t>(given, "axis", 1, &ort_dynq_attribute::integer);
  const int64_t block = find<int64_t>(given, "block_size", 0, &ort_dynq_attribute::integer);
  if (axis < 0) axis += rank;
  const bool has_axis = axis >= 0 && axis < rank;
  if (qtype == "per_group" || (qtype == "auto" && block > 0)) {
    Shape shape = src;
    for (int64_t i = 0; i < rank; ++i) {
      const int64_t length = src.dims[i];
      shape.dims[i] = block <= 0  ? divisor_of(bytes, length)
                      : i == axis ? length / block + (length % block != 0)
                                  : length;
    }
    return shape;
  }
  if (has_axis && (qtype == "per_channel" || (qtype == "auto" && bytes.one_in(2)))) return shape_of({src.dims[axis]});
  return bytes.one_in(2) ? Shape{} : shape_of({1});
}

// Adds the group_shape that goes with these shapes, or rarely another one. A list is given as several attributes.
void add_group_shape(Bytes& bytes, const Shape& src, const Shape& scales, std::vector<ort_dynq_attribute>& given) {
  if (scales.rank != src.rank) return;
  for (size_t i = 0; i < src.rank; ++i) {
    const int64_t size = scales.dims[i] > 0 ? src.dims[i] / scales.dims[i] : 1;
    constexpr int64_t kWrong[] = {0, -1, 7, kHuge, kLowest};
    given.push_back({"group_shape", nullptr, bytes.one_in(16) ? bytes.of(kWrong) : std::max<int64_t>(1, size)});
  }
}

// CompressedAttention: the sizes and groups.
struct CompressedCache {
  static constexpr int64_t kKeysOfParts = 34 * 32;  // threads share these
  int64_t heads, keys, columns, key_groups, value_groups, key_tokens = 0, value_tokens = 0;
  bool is_transposed;

  CompressedCache(Bytes& bytes, const std::vector<Type>& types, std::vector<ort_dynq_attribute>& given, Shape& src)
      : heads(1 + static_cast<int64_t>(bytes.below(2))),
        keys(bytes.one_in(32) ? 0
             : bytes.one_in(16)
                 ? kKeysOfParts
                 : 1 + static_cast<int64_t>(bytes.one_in(16) ? 1020 + bytes.below(20) : bytes.below(60))),
        columns(1 + static_cast<int64_t>(bytes.below(20))),
        key_groups(is_float(types, 1) ? 1 : 1 + static_cast<int64_t>(bytes.below(3))),
        value_groups(is_float(types, 4) ? 1 : 1 + static_cast<int64_t>(bytes.below(3))),
        is_transposed(bytes.one_in(2)) {
    columns *= value_groups;
    given.push_back({"transposed_key", nullptr, is_transposed});
    given.push_back({"float_key", nullptr, is_float(types, 1) != bytes.one_in(32)});
    given.push_back({"scale_query", nullptr, (!is_float(types, 1) || bytes.one_in(32)) && bytes.one_in(3)});
    given.push_back({"float_value", nullptr, is_float(types, 4) != bytes.one_in(32)});
    given.push_back({"scale_result", nullptr, (!is_float(types, 4) || bytes.one_in(32)) && bytes.one_in(3)});
    // With many keys, heads are short and rows few: otherwise one input takes the portable kernels half a minute.
    const bool may_be_large = keys <= 60;
    const auto length = [&](uint64_t most, uint64_t usual) {
      return 1 + static_cast<int64_t>(bytes.one_in(8) && may_be_large ? bytes.below(most) : bytes.below(usual));
    };
    const int64_t size = key_groups * length(300, 40);
    src = shape_of({1 + static_cast<int64_t>(bytes.below(2)), heads * (1 + static_cast<int64_t>(bytes.below(3))),
                    length(40, 9), size});
    key_tokens = bytes.one_in(3) && keys % 3 == 0          ? keys / 3
                 : keys == kKeysOfParts && bytes.one_in(2) ? keys / 32
                                                           : keys;
    value_tokens = bytes.one_in(3) && keys % 2 == 0 ? keys / 2 : keys;
  }

  static bool is_float(const std::vector<Type>& types, size_t index) {
    if (index >= types.size()) return false;
    const Type type = types[index];
    return type == dynq::kFloat || type == dynq::kFloat16 || type == dynq::kBfloat16;
  }

  Shape shape_of_input(Bytes& bytes, const std::vector<Type>& types, size_t index, const Shape& src) const {
    const auto some = [&](int64_t length) { return bytes.one_in(2) ? int64_t{1} : length; };
    const int64_t b = src.dims[0];
    switch (index) {
      case 1:
        return is_transposed ? shape_of({b, heads, src.dims[3], keys}) : shape_of({b, heads, keys, src.dims[3]});
      case 2:
      case 3:
        if (is_float(types, 1)) return shape_of({1, 1, 1, 1});
        if (index == 2 && is_transposed) return shape_of({some(b), some(heads), key_groups, some(key_tokens)});
        if (index == 2) return shape_of({some(b), some(heads), some(key_tokens), key_groups});
        return shape_of({some(b), some(heads), some(is_transposed ? key_groups : key_tokens),
                         some(is_transposed ? key_tokens : key_groups)});
      case 4:
        return shape_of({b, heads, keys, columns});
      case 5:
        if (is_float(types, 4)) return shape_of({1, 1, 1, 1});
        return shape_of({some(b), some(heads), some(value_tokens), value_groups});
      case 6:
        if (is_float(types, 4)) return shape_of({1, 1, 1, 1});
        return shape_of({some(b), some(heads), some(value_tokens), some(value_groups)});
      case 7:
        return shape_of({some(b), some(src.dims[1]), some(src.dims[2]), some(keys)});
      case 9:
      case 10:
        return bytes.one_in(2) ? shape_of({1, 1, 1, 1}) : shape_of_input(bytes, types, index == 9 ? 3 : 6, src);
      default:
        return shape_of({1});
    }
  }
};

// CompressedMatMul: the columns and parts.
struct CompressedProduct {
  int64_t parts, size;

  CompressedProduct(Bytes& bytes, Shape& src)
      : parts(1 + static_cast<int64_t>(bytes.below(4))),
        size(1 + static_cast<int64_t>(bytes.one_in(8) ? 500 + bytes.below(40) : bytes.below(70))) {
    const int64_t depth = static_cast<int64_t>(bytes.one_in(4) ? bytes.below(600) : bytes.below(40));
    const auto rows = static_cast<int64_t>(bytes.one_in(4) ? bytes.below(110) : bytes.below(9));
    src = shape_of({std::min(rows, kMaxProducts / std::max<int64_t>(1, depth * parts * size)), depth});
  }

  Shape shape_of_input(Bytes& bytes, size_t index, const Shape& src) const {
    if (index == 1) return shape_of({src.dims[1], parts * size});
    if (index == 3 && bytes.one_in(2)) return Shape{};
    return shape_of({src.dims[1], parts});
  }
};

// QuantizedAttention: the heads, their layouts, and the lengths that src does not have.
struct Attention {
  int64_t heads, key_heads, batches, rows, keys, size, columns, layouts[4];

  Attention(Bytes& bytes, std::vector<ort_dynq_attribute>& given, Shape& src)
      : key_heads(1 + static_cast<int64_t>(bytes.below(3))),
        batches(1 + static_cast<int64_t>(bytes.below(2))),
        rows(1 + static_cast<int64_t>(bytes.below(30))),
        keys(bytes.one_in(32) ? 0 : 1 + static_cast<int64_t>(bytes.below(40))),
        size(1 + static_cast<int64_t>(bytes.below(20))),
        columns(1 + static_cast<int64_t>(bytes.below(20))) {
    heads = key_heads * (1 + static_cast<int64_t>(bytes.below(3)));
    given.push_back({"num_heads", nullptr, bytes.one_in(32) ? 0 : heads});
    given.push_back({"kv_num_heads", nullptr, heads == key_heads && bytes.one_in(2) ? 0 : key_heads});
    static constexpr const char* kLayouts[] = {"query_layout", "key_layout", "value_layout", "dst_layout"};
    for (size_t i = 0; i < 4; ++i) {
      layouts[i] = static_cast<int64_t>(bytes.below(bytes.one_in(32) ? 4 : 3));
      given.push_back({kLayouts[i], nullptr, layouts[i]});
    }
    for (const char* name : {"keys_before", "keys_after"})
      given.push_back({name, nullptr, static_cast<int64_t>(bytes.below(8)) - (bytes.one_in(32) ? 2 : 1)});
    for (const char* name : {"ends_together", "zero_rows"})
      given.push_back({name, nullptr, static_cast<int64_t>(bytes.below(2))});
    src = laid_out(0, heads, rows, size);
  }

  Shape laid_out(size_t index, int64_t of_heads, int64_t tokens, int64_t elements) const {
    if (layouts[index] == 0) return shape_of({batches, tokens, of_heads * elements});
    return layouts[index] == 1 ? shape_of({batches, of_heads, tokens, elements})
                               : shape_of({batches, of_heads, elements, tokens});
  }

  Shape shape_of_input(Bytes& bytes, size_t index) const {
    const auto some = [&](int64_t length) { return bytes.one_in(2) ? int64_t{1} : length; };
    switch (index) {
      case 1:
        return laid_out(1, key_heads, keys, size);
      case 2:
        return laid_out(2, key_heads, keys, columns);
      case 3:
        return shape_of({some(batches), some(heads), some(rows), some(keys)});
      default:
        return shape_of({1});
    }
  }
};

// QuantizedRecurrence or WordRecurrence: the cell, and the lengths that src does not have.
struct Recurrence {
  bool has_words;
  int64_t directions, gates, size, columns;
  const char* program;

  Recurrence(Bytes& bytes, std::vector<ort_dynq_attribute>& given, Shape& src, bool of_words)
      : has_words(of_words),
        directions(find<int64_t>(given, "direction", 0, &ort_dynq_attribute::integer) == 2 ? 2 : 1),
        gates(1 + static_cast<int64_t>(bytes.below(4))),
        size(1 + static_cast<int64_t>(bytes.below(of_words && bytes.one_in(4) ? 300 : 40))),
        columns(static_cast<int64_t>(bytes.below(4))) {
    static constexpr const char* kCells[] = {
        "dst = Sub(Mul(Sigmoid(Mul(tensor1, 2)), 2), 1)",
        ("dst_2 = Add(Mul(Sigmoid(tensor3), tensor5), Mul(Sigmoid(tensor1), tensor4)); dst = Mul(Sigmoid(tensor2), "
         "dst_2)"),
        "z = Sigmoid(tensor1); dst_2 = Mul(Sigmoid(tensor2), x); dst = Add(Mul(Sub(1, z), tensor3), Mul(z, x))",
        "dst = Clip(Add(tensor1, Mul(column6, tensor2)), 0, inf)",
        "dst = Add(tensor3, Mul(tensor4, column8))",
        "dst = x; dst_2 = x",
        "dst = Add(x, ReduceMax(x))",
    };
    program = bytes.of(kCells);
    given.push_back({"program", program, 0});
    given.push_back({"hidden_size", nullptr, bytes.one_in(32) ? bytes.of(kWrongSizes) : size});
    src = shape_of(
        {static_cast<int64_t>(bytes.below(7)), static_cast<int64_t>(bytes.below(30)), directions * gates * size});
  }

  Shape shape_of_input(Bytes& bytes, size_t index, const Shape& src) const {
    const auto some = [&](int64_t length) { return bytes.one_in(2) ? int64_t{1} : length; };
    constexpr size_t kSums = 3;  // words have no input with sums
    switch (has_words && index >= kSums ? index + 1 : index) {
      case 1:
        return has_words ? shape_of({directions, (gates * size + 31) / 32, (size + 1) / 2, 32, 2})
                         : shape_of({directions, (gates * size + 15) / 16, (size + 3) / 4, 16, 4});
      case 5:
      case 6:
        return shape_of({some(directions), some(src.dims[1]), some(size)});
      case 7:
        return shape_of({some(src.dims[1])});
      case 8:
        return shape_of({directions, columns * size});
      default:
        return shape_of({directions, gates * size});
    }
  }

 private:
  static constexpr int64_t kWrongSizes[] = {0, -1, kHuge, kLowest};
};

// GatherDequantize: its table.
struct Lookup {
  int64_t columns, lines, groups;

  explicit Lookup(Bytes& bytes)
      : columns(1 + static_cast<int64_t>(bytes.below(80))),
        lines(static_cast<int64_t>(bytes.below(40))),
        groups(bytes.one_in(2)   ? 1
               : bytes.one_in(2) ? std::max(lines, int64_t{1})
                                 : 4) {}

  Shape shape_of_input(Bytes& bytes, size_t index) const {
    if (index == 1) return shape_of({(columns + 15) / 16, lines, 16, 4});
    return index == 2 && bytes.one_in(4) ? shape_of({1}) : shape_of({groups, columns});
  }
};

// ChannelGate: the numbers between its products.
struct Gate {
  int64_t hidden;

  Gate(Bytes& bytes, std::vector<ort_dynq_attribute>& given, Shape& src)
      : hidden(1 + static_cast<int64_t>(bytes.below(80))) {
    static constexpr const char* kPrograms[] = {
        "dst = Mul(x, Clip(Add(Mul(row1, 0.2), 0.5), 0.0, 1.0)); dst_2 = Clip(x, 0.0, inf)",
        "dst = Add(Mul(x, Sigmoid(row1)), x); dst_2 = Mul(x, Sigmoid(x))",
        "dst = Clip(Add(x, row1), 0.0, inf); dst_2 = x",
        "dst = x; dst_2 = Abs(x)",
        "dst = Mul(x, row1); dst_2 = Add(x, row1)",
        "dst = Mul(x, row1)",
        "dst = Mul(x, column1); dst_2 = x",
        "dst = Sub(x, ReduceMax(x)); dst_2 = x"};
    given.push_back({"program", bytes.of(kPrograms), 0});
    if (src.rank < 3 && !bytes.one_in(16)) {
      src = shape_of({1 + static_cast<int64_t>(bytes.below(3)), 1 + static_cast<int64_t>(bytes.below(80)),
                      1 + static_cast<int64_t>(bytes.below(80))});
    }
  }

  Shape shape_of_input(size_t index, const Shape& src) const {
    const int64_t channels = src.rank < 2 ? 1 : src.dims[1];
    return index == 1   ? shape_of({hidden, channels})
           : index == 2 ? shape_of({hidden})
           : index == 3 ? shape_of({channels, hidden})
                        : shape_of({channels});
  }
};

// QuantizedExperts: the experts, and the lengths that src does not have.
struct Mixture {
  int64_t experts, inner, columns, bits, group_size;
  const char* program;

  Mixture(Bytes& bytes, std::vector<ort_dynq_attribute>& given, Shape& src)
      : experts(1 + static_cast<int64_t>(bytes.below(6))),
        inner(1 + static_cast<int64_t>(bytes.below(80))),
        bits(find<int64_t>(given, "bits", 8, &ort_dynq_attribute::integer)),
        group_size(find<int64_t>(given, "group_size", 0, &ort_dynq_attribute::integer)) {
    static constexpr const char* kPrograms[] = {"dst = Mul(Mul(x, Sigmoid(x)), tensor1)",
                                                "dst = Clip(x, 0, inf)",
                                                "dst = x",
                                                "dst = Add(x, ReduceMax(x))",
                                                "dst = Mul(x, column1)",
                                                "unused = Add(tensor1, 1.0); dst = Mul(Round(Div(x, 0.1)), 0.1)"};
    program = bytes.of(kPrograms);
    columns = std::strstr(program, "tensor1") != nullptr ? 2 * inner : inner;
    given.push_back({"program", program, 0});
    given.push_back(
        {"k", nullptr, bytes.one_in(32) ? bytes.of(kWrongCounts) : 1 + static_cast<int64_t>(bytes.below(3))});
    if (bytes.one_in(2)) given.push_back({"normalize", nullptr, bytes.one_in(16) ? 2 : 1});
    src = shape_of({static_cast<int64_t>(bytes.below(40)), 1 + static_cast<int64_t>(bytes.below(80))});
    if (group_size <= 0 || group_size > 128) return;
    src.dims[1] = group_size * (1 + static_cast<int64_t>(bytes.below(3)));
    columns = columns / inner * group_size;
    inner = group_size;
  }

  Shape shape_of_input(Bytes& bytes, size_t index, const Shape& src) const {
    const int64_t hidden = src.dims[src.rank - 1], quad = bits == 4 ? 8 : 4;
    if (index <= 2) return index == 2 && bytes.one_in(2) ? shape_of({0}) : shape_of({src.dims[0], experts});
    const int64_t depth = index < 7 ? hidden : inner, count = index < 7 ? columns : hidden;
    const int64_t groups = group_size > 0 ? depth / group_size : 1;
    switch ((index - 3) % 4) {
      case 0:
        return shape_of({experts, (count + 15) / 16, (depth + quad - 1) / quad, 16, 4});
      case 1:
        return bytes.one_in(2) ? shape_of({1}) : shape_of({experts, groups, count});
      case 2:
        return shape_of({experts, groups, count});
      default:
        return shape_of({experts, count});
    }
  }

 private:
  static constexpr int64_t kWrongCounts[] = {0, -1, 7, kHuge, kLowest};
};

int64_t terms_of(const std::vector<ort_dynq_attribute>& given) {
  return find<int64_t>(given, "terms", 1, &ort_dynq_attribute::integer) == 2 ? 2 : 1;
}

void erase(std::vector<ort_dynq_attribute>& attributes, const char* name) {
  const auto has_name = [&](const auto& attribute) { return std::strcmp(attribute.name, name) == 0; };
  attributes.erase(std::remove_if(attributes.begin(), attributes.end(), has_name), attributes.end());
}

struct Product {
  int64_t bits, group_size, terms, columns;
  Shape stack;  // the leading dimensions of the weights

  // Changes attributes and src so that they fit each other: any of them alone would mostly be invalid with groups.
  Product(Bytes& bytes, std::vector<ort_dynq_attribute>& given, Shape& src, bool is_large) {
    bits = find<int64_t>(given, "bits", 8, &ort_dynq_attribute::integer);
    group_size = find<int64_t>(given, "group_size", 0, &ort_dynq_attribute::integer);
    if (group_size > 0 && !bytes.one_in(8)) {
      erase(given, "scale_order");
      given.push_back({"scale_order", nullptr, dynq::kColumnFirst});
    }
    if (src.rank > 0 && group_size > 0 && group_size <= 128) {
      int64_t& depth = src.dims[src.rank - 1];
      depth = std::max<int64_t>(1, std::min<int64_t>(depth, 16384) / group_size) * group_size;
    }
    // Few are large: the stand-in for tiles is slow, too. Kernels multiply whole blocks of 16 columns.
    const int64_t most = is_large && bytes.one_in(8) ? kMaxProducts : 60000;
    for (size_t i = 0; i < src.rank && src.elements() * 16 > most; ++i)
      if (i + 1 < src.rank || group_size == 0) src.dims[i] = std::min<int64_t>(src.dims[i], 1 + i);
    columns = bytes.one_in(32) ? 0 : bytes.one_in(8) ? 257 : bytes.of(kLengths);
    columns = std::min(columns, std::max<int64_t>(1, most / std::max<int64_t>(1, src.elements())));
    terms = terms_of(given);
    if (src.rank > 0 && !bytes.one_in(16)) src.dims[src.rank - 1] *= terms;
    stack.rank = src.rank >= 2 && bytes.one_in(4) ? 1 + bytes.below(2) : 0;
    int64_t products = src.elements() * std::max<int64_t>(16, columns);
    for (size_t i = 0; i < stack.rank; ++i) {
      const int64_t own = lead(src, stack.rank - 1 - i);
      stack.dims[i] = own == 1 || bytes.one_in(16) ? 1 + static_cast<int64_t>(bytes.below(3))
                      : own > 8 || bytes.one_in(4) ? 1
                                                   : own;
      if (own == 1 && products * stack.dims[i] > kMaxProducts) stack.dims[i] = 1;
      if (own == 1) products *= stack.dims[i];
    }
  }

  // The dimension of src that is `i` dimensions before the last one of its leading dimensions; 1 if there is none.
  static int64_t lead(const Shape& src, size_t i) { return i + 3 <= src.rank ? src.dims[src.rank - 3 - i] : 1; }

  Shape result(const Shape& src) const {
    if (src.rank == 0) return src;
    Shape shape = src;
    shape.rank = std::max(src.rank, stack.rank == 0 ? 0 : stack.rank + 2);
    for (size_t i = 0; i < 2 && i < src.rank; ++i) shape.dims[shape.rank - 1 - i] = src.dims[src.rank - 1 - i];
    for (size_t i = 0; i + 2 < shape.rank; ++i) {
      const int64_t own = lead(src, i), other = i < stack.rank ? stack.dims[stack.rank - 1 - i] : 1;
      shape.dims[shape.rank - 3 - i] = own == 1 ? other : own;
    }
    shape.dims[shape.rank - 1] = columns;
    return shape;
  }

  Shape stacked(std::initializer_list<int64_t> matrix) const {
    Shape shape = stack;
    for (const int64_t length : matrix) shape.dims[shape.rank++] = length;
    return shape;
  }

  // Of WordMatMul.
  Shape shape_of_word_input(size_t index, const Shape& src) const {
    const int64_t depth = src.rank == 0 ? 1 : src.dims[src.rank - 1];
    return index == 1 ? stacked({(columns + 31) / 32, (depth + 1) / 2, 32, 2}) : stacked({columns});
  }

  Shape shape_of_input(Bytes& bytes, size_t index, const Shape& src, const Shape& scales) const {
    const int64_t depth = src.rank == 0 ? 1 : src.dims[src.rank - 1] / terms, unit = bits == 4 ? 8 : bits == 2 ? 16 : 4;
    const int64_t groups = group_size > 0 ? std::max<int64_t>(1, depth / group_size) : 1;
    const Shape one = bytes.one_in(2) ? Shape{} : shape_of({1});
    switch (index) {
      case 1: {
        Shape shape = src;
        for (size_t i = bytes.below(src.rank + 1); i < src.rank; ++i) shape.dims[i] = 1;
        if (src.rank > 0) shape.dims[src.rank - 1] = bytes.one_in(2) ? groups : 1;
        return bytes.one_in(4) ? one : shape;
      }
      case 2:
        return bytes.one_in(4) ? one : scales;
      case 3:
        return stacked({(columns + 15) / 16, (depth + unit - 1) / unit, 16, 4});
      case 4:
        return bytes.one_in(2) ? stacked({groups, columns}) : one;
      case 5:
        return stacked({bytes.one_in(2) ? 1 : groups, columns});
      case 6:
        return stacked({bytes.one_in(4) ? 0 : groups, columns});  // 0: the operator computes them
      default:
        return stacked({columns});
    }
  }
};

// QuantizedConv or WordConv: the geometry, and the shapes that follow from it.
struct Convolution {
  static constexpr size_t kMaxAxes = 3;
  bool is_explicit;
  size_t rank;  // of the spatial dimensions
  int64_t geometry[5][kMaxAxes] = {};
  int64_t group, outputs, quads = 1, terms;
  bool has_words;           // WordConv
  int64_t row_weights = 0;  // of a kernel row, with padding of its last quad, if quads are along the width

  // Changes src, so that it fits the attributes.
  Convolution(Bytes& bytes, const std::vector<ort_dynq_attribute>& given, Shape& src, bool is_large, bool of_words)
      : has_words(of_words) {
    group = std::clamp<int64_t>(find<int64_t>(given, "group", 1, &ort_dynq_attribute::integer), 1, kHuge / 64);
    const bool is_width = find<int64_t>(given, "quad_axis", 0, &ort_dynq_attribute::integer) == 1;
    is_explicit = find<int64_t>(given, "auto_pad", 0, &ort_dynq_attribute::integer) == 0;
    rank = 1 + bytes.below(kMaxAxes);
    const int64_t inputs = 1 + static_cast<int64_t>(bytes.below(bytes.one_in(4) ? 40 : 6));
    src = {};
    src.rank = 2 + rank;
    src.dims[0] = bytes.one_in(32) ? 0 : 1 + static_cast<int64_t>(bytes.below(2));
    terms = terms_of(given);
    src.dims[1] = group > 16 ? 1 : group * inputs;
    if (!bytes.one_in(16)) src.dims[1] *= terms;
    outputs = bytes.one_in(32) ? 0 : 1 + static_cast<int64_t>(bytes.below(bytes.one_in(4) ? 100 : 8));
    outputs = group > 16 ? outputs : outputs * group;
    const auto extreme = [&] {
      constexpr int64_t kExtremes[] = {7, 64, 300, 4097, 65793, 1 << 20, INT32_MAX - 1, INT32_MAX, 0, -1};
      return bytes.of(kExtremes);
    };
    int64_t out[kMaxAxes];
    const bool is_winograd = bytes.one_in(2);  // of a form that takes it, if nothing else differs
    for (size_t i = 0; i < rank; ++i) {
      int64_t& length = src.dims[2 + i];
      length = bytes.one_in(64)              ? 0
               : is_large && i + 1 == rank   ? bytes.of(kLengths) * (rank == 1 ? 20 : 1)
               : is_large || bytes.one_in(2) ? 1 + static_cast<int64_t>(bytes.below(20))
                                             : 1 + static_cast<int64_t>(bytes.below(7));
      for (size_t row = 0; row < 5; ++row) {
        const int64_t most = row == 0 ? std::max<int64_t>(1, std::min<int64_t>(length, 5)) : 3;
        geometry[row][i] = bytes.one_in(64) ? extreme() : (row < 3) + static_cast<int64_t>(bytes.below(most));
      }
      if (bytes.one_in(16)) geometry[0][i] = bytes.one_in(2) ? length : 400;  // long kernels
      if (is_winograd) geometry[0][i] = i + 2 < rank ? 1 : bytes.one_in(4) ? geometry[0][i] : 3, geometry[1][i] = 1;
      int64_t& stride = geometry[1][i];
      const int64_t pads = is_explicit ? geometry[3][i] + geometry[4][i] : 0;
      out[i] = std::max<int64_t>(1, (length + pads) / std::max<int64_t>(1, stride));
      if (out[i] > 3000) stride = INT32_MAX, out[i] = 2;
      const bool is_quad = is_width && i + 1 == rank;
      const int64_t kernel = std::clamp<int64_t>(geometry[0][i], 1, 70000);
      quads *= is_quad ? (kernel + 3) / 4 : kernel;
      if (is_quad) row_weights = kernel;
    }
    // Checked before the shape of the weights is.
    const bool is_too_long = quads > (1 << 17);
    if (is_too_long) row_weights = 0;
    quads = is_too_long ? 1 : quads * (is_width ? inputs : (inputs + 3) / 4);
    // As for products: few are several tasks.
    const int64_t most = is_large && bytes.one_in(8) ? 20000000 : 1000000;
    const auto products = [&] {
      int64_t positions = 1;
      for (size_t i = 0; i < rank; ++i) positions *= std::min<int64_t>(out[i], 3000);
      return 2 * outputs * 4 * quads * std::max<int64_t>(positions, 64);  // kernels compute whole vectors
    };
    for (size_t i = 0; i < rank && products() > most; ++i) geometry[1][i] = INT32_MAX, out[i] = 2;
    outputs = products() > 4 * most ? std::min<int64_t>(outputs, group > 16 ? 1 : group) : outputs;
  }

  Shape result(const Shape& src) const {
    Shape shape = src;
    shape.dims[1] = outputs;
    for (size_t i = 0; i < rank; ++i) {
      const int64_t length = src.dims[2 + i], stride = std::max<int64_t>(1, geometry[1][i]);
      const int64_t span = (geometry[0][i] - 1) * geometry[2][i] + 1;
      const int64_t room = length + geometry[3][i] + geometry[4][i] - span;
      shape.dims[2 + i] = std::max<int64_t>(0, is_explicit ? room / stride + 1 : (length + stride - 1) / stride);
    }
    return shape;
  }

  size_t geometry_index() const { return has_words ? 4 : 8; }

  Shape shape_of_input(Bytes& bytes, size_t index, const Shape& src) const {
    const Shape one = bytes.one_in(2) ? Shape{} : shape_of({1});
    if (index == geometry_index()) return shape_of({5, static_cast<int64_t>(rank)});
    if (has_words && index > 0) {
      Shape shape = shape_of({outputs});
      if (index == 1) shape.dims[shape.rank++] = src.dims[1] / group;
      for (size_t i = 0; i < rank && index == 1; ++i) shape.dims[shape.rank++] = geometry[0][i];
      return shape;
    }
    switch (index) {
      case 0:
        return src;
      case 1:
      case 2:
        return bytes.one_in(2) ? shape_of({src.dims[0]}) : one;
      case 3:
        return shape_of({(outputs + 15) / 16, quads, 16, 4});
      case 4:
        return bytes.one_in(2) ? shape_of({outputs}) : one;
      default:
        return shape_of({outputs});
    }
  }

  // Images of different tiles have different codes there.
  void clear_padding(std::vector<uint8_t>& weights, size_t offset) const {
    constexpr size_t kLanes = 16, kQuad = 4;
    if (row_weights == 0) return;
    const auto row_quads = static_cast<size_t>((row_weights + 3) / 4);
    for (size_t i = offset; i < weights.size(); ++i) {
      const size_t quad = (i - offset) / (kLanes * kQuad) % row_quads, k = quad * kQuad + (i - offset) % kQuad;
      if (k >= static_cast<size_t>(row_weights)) weights[i] = 0;
    }
  }

  // Values that the operator requires.
  void change(Bytes& bytes, size_t index, std::vector<uint8_t>& values, size_t offset) const {
    if (index == 3 && !has_words) clear_padding(values, offset);
    if (index == 4 && !has_words && bytes.one_in(2)) std::fill(values.begin(), values.end(), uint8_t{0});
    if (index != geometry_index() || values.size() != offset + 5 * rank * sizeof(int32_t)) return;
    for (size_t i = 0; i < 5 * rank; ++i) {
      const auto value = static_cast<int32_t>(geometry[i / rank][i % rank]);
      std::memcpy(values.data() + offset + i * sizeof value, &value, sizeof value);
    }
  }
};

// Programs

// The text of a program, mostly a valid one, and the forms of its operands.
class ProgramText {
 public:
  enum Form { kUnused, kRow, kColumn, kTensor };
  std::string text;

  // `is_tail`: the program of a product.
  ProgramText(Bytes& bytes, size_t operands, bool is_tail, bool may_be_wrong)
      : bytes_(bytes), operands_(operands), is_tail_(is_tail && !(may_be_wrong && bytes.one_in(4))) {
    if (!is_tail && bytes_.one_in(4)) {
      quantize();
      if (may_be_wrong) spoil();
      return;
    }
    for (size_t count = bytes_.below(bytes_.one_in(16) ? 40 : 5); count > 0; --count) {
      const Value value = expression(0);
      const std::string name = "v" + std::to_string(names_.size());
      add(name, value);
      names_.push_back({name, value.is_vector, value.is_truth});
    }
    constexpr const char* kVectors[] = {"dst", "codes", "dst_2"};
    constexpr const char* kNumbers[] = {"scale", "zero_point", "number"};
    for (const char* name : kVectors)
      if (name == kVectors[0] || (!is_tail_ && bytes_.one_in(2))) add(name, vector(0));
    for (const char* name : kNumbers)
      if (!is_tail_ && bytes_.one_in(3)) add(name, number(0));
    if (may_be_wrong) spoil();
  }

  // The shape of an operand for rows of this tensor, which begin at `axis`.
  Shape shape_of(size_t operand, const Shape& src, int64_t axis) const {
    const Form form = operand < std::size(forms_) ? forms_[operand] : kUnused;
    double elements = 1;  // a convolution's geometry may ask for any size
    for (size_t i = 0; i < src.rank; ++i) elements *= static_cast<double>(src.dims[i]);
    if (form == kUnused || elements > kMaxElements) return bytes_.one_in(2) ? Shape{} : ::shape_of({1});
    const auto begin =
        static_cast<size_t>(std::clamp<int64_t>(axis < 0 ? axis + static_cast<int64_t>(src.rank) : axis, 0, kHuge));
    Shape shape = src;
    size_t repeated = form == kRow && bytes_.one_in(4) ? bytes_.below(begin + 1) : 0;
    for (size_t i = 0; i < src.rank; ++i)
      if (form != kTensor && (i >= begin) == (form == kRow)) shape.dims[i] = 1;
    for (size_t i = 0; i < std::min(repeated, src.rank); ++i) shape.dims[i] = 1;
    if (form == kTensor || !bytes_.one_in(2)) return shape;
    size_t missing = 0;  // leading ones may be left out
    while (missing < shape.rank && shape.dims[missing] == 1) ++missing;
    std::copy(shape.dims + missing, shape.dims + shape.rank, shape.dims);
    shape.rank -= missing;
    return shape;
  }

 private:
  struct Value {
    std::string text;
    bool is_vector, is_truth;
  };

  // Steps that kernels of whole passes may run (core/program_kernels.h).
  void quantize() {
    constexpr const char* kRanges[] = {"r = ReduceMax(Abs(x)); z = 3.0",
                                       "a = ReduceMin(x); r = ReduceMax(x); z = Round(a)",
                                       "r = ReduceMax(x); a = ReduceMin(x); z = Int8(Sub(a, r))"};
    constexpr const char* kScales[] = {"Div(r, 127.0)", "Clip(r, 1e-05, inf)", "r"};
    constexpr const char* kQuotients[] = {"Div(x, s)", "Mul(x, s)", "Float16(Div(x, s))"};
    constexpr const char* kSteps[] = {"Round(", "Add(z, ", "Int8(", "Uint8(", "Min(127.0, ", "Max(-127.0, "};
    constexpr const char* kOutputs[] = {"; codes = q", "; codes = Add(q, 128.0)", "; dst = Mul(q, s)",
                                        "; dst = Mul(Sub(q, z), s)", "; dst = Div(q, s)"};
    text = std::string(bytes_.of(kRanges)) + "; s = " + bytes_.of(kScales) + "; q = ";
    std::string code = bytes_.of(kQuotients);
    for (size_t count = bytes_.below(5); count > 0; --count) code = bytes_.of(kSteps) + code + ")";
    text += code + bytes_.of(kOutputs);
  }

  void add(const std::string& name, const Value& value) {
    text += (text.empty() ? "" : bytes_.one_in(8) ? " ;" : "; ") + name + " = " + value.text;
  }

  Value expression(int depth) {
    constexpr const char* kUnary[] = {"Abs",  "Neg",  "Sqrt",    "Reciprocal", "Round", "Floor",
                                      "Ceil", "Sign", "Float16", "Int8",       "Uint8", "Int32"};
    constexpr const char* kBinary[] = {"Mul", "Add", "Sub", "Div", "Max", "Min", "PRelu"};
    switch (bytes_.below(depth < 4 ? 12 : 5)) {
      case 0:
        return {"x", true, false};
      case 1:
      case 2:
        return names_.empty() ? operand() : names_[bytes_.below(names_.size())];
      case 3:
        return operand();
      case 4:
        return {literal(), false, false};
      case 5:
      case 6:
        return call(bytes_.of(kUnary), {expression(depth + 1)});
      case 7:
      case 8:
        return call(bytes_.of(kBinary), {expression(depth + 1), expression(depth + 1)});
      case 9:
        return truth(depth + 1);
      case 10: {
        const Value value = expression(depth + 1);
        if (bytes_.one_in(2)) return {"LeakyRelu(" + value.text + ", " + literal() + ")", value.is_vector, false};
        return {"Clip(" + value.text + ", " + literal() + ", " + literal() + ")", value.is_vector, false};
      }
      default:
        return bytes_.one_in(2) ? call("Where", {truth(depth + 1), expression(depth + 1), expression(depth + 1)})
                                : number(depth + 1);
    }
  }

  Value truth(int depth) {
    constexpr const char* kComparisons[] = {"Less", "Equal", "LessOrEqual", "Greater", "GreaterOrEqual"};
    for (const Value& value : names_)
      if (value.is_truth && bytes_.one_in(4)) return value;
    Value value;
    switch (depth < 4 ? bytes_.below(8) : 0) {
      case 7:
        value = call(bytes_.one_in(2) ? "And" : "Or", {truth(depth + 1), truth(depth + 1)});
        break;
      case 6:
        value = call("Not", {truth(depth + 1)});
        break;
      default:
        value = call(bytes_.of(kComparisons), {expression(depth + 1), expression(depth + 1)});
    }
    value.is_truth = true;
    return value;
  }

  Value vector(int depth) {
    const Value value = expression(depth);
    return value.is_vector ? value : call("Add", {{"x", true, false}, value});
  }

  Value number(int depth) {
    if (is_tail_ || bytes_.one_in(4)) return {literal(), false, false};
    return {(bytes_.one_in(2) ? "ReduceMax(" : "ReduceMin(") + vector(depth + 1).text + ")", false, false};
  }

  Value operand() {
    const size_t index = bytes_.below(operands_);
    Form& form = forms_[index];
    if (form == kUnused) form = static_cast<Form>(1 + bytes_.below(3));
    constexpr const char* kForms[] = {"", "row", "column", "tensor"};
    return {kForms[form] + std::to_string(index + 1), form != kRow, false};
  }

  std::string literal() {
    constexpr const char* kLiterals[] = {"127.0", "0.0",   "1.0",  "-128.0", "1e-05",         "-inf",
                                         "inf",   "255.0", "-0.0", "0.1",    "1.1754944e-38", "3.4028234663852886e+38"};
    return bytes_.one_in(4) ? std::to_string(static_cast<int>(bytes_.any<int8_t>())) : bytes_.of(kLiterals);
  }

  static Value call(const char* name, const std::vector<Value>& arguments) {
    Value value = {name, false, false};
    for (const Value& argument : arguments) {
      value.text += (&argument == &arguments[0] ? "(" : ", ") + argument.text;
      value.is_vector |= argument.is_vector;
    }
    value.text += ")";
    return value;
  }

  // Changes a few characters, or repeats or removes a part.
  void spoil() {
    constexpr char kCharacters[] = "x;=(),.-+ e9_A\n\t\xc3";
    for (size_t count = bytes_.below(4); count > 0; --count) {
      const size_t at = bytes_.any<uint16_t>() % (text.size() + 1), length = bytes_.below(bytes_.one_in(8) ? 200 : 8);
      switch (bytes_.below(4)) {
        case 0:
          text.erase(at, length);
          break;
        case 1:
          text.insert(at, text.substr(at, length));
          break;
        case 2:
          text.insert(at, 1, kCharacters[bytes_.below(sizeof kCharacters - 1)]);
          break;
        default:
          if (bytes_.one_in(4)) text = std::string(bytes_.below(100), '(') + text;
          if (at < text.size()) text[at] = std::max(char{1}, static_cast<char>(bytes_.byte()));
      }
    }
  }

  Bytes& bytes_;
  const size_t operands_;
  const bool is_tail_;
  Form forms_[4] = {};
  std::vector<Value> names_;
};

// Whether a tensor has few elements. Empty ones may have a dimension of any length.
bool is_small(const Shape& shape) {
  constexpr int64_t kMaxCount = 1 << 24;
  int64_t count = 1;
  for (size_t i = 0; i < shape.rank; ++i) {
    if (shape.dims[i] < 0) return false;  // of WordConv's weights, if the geometry is wrong
    if (shape.dims[i] == 0) return true;
    count = shape.dims[i] > kMaxCount / count ? kMaxCount + 1 : count * shape.dims[i];
  }
  return count <= kMaxCount;
}

Shape make_wrong_shape(Bytes& bytes, Shape shape) {
  switch (bytes.below(5)) {
    case 0:
      return shape_of({bytes.of(kLengths)});
    case 1:
      if (shape.rank < dynq::kMaxRank) shape.dims[shape.rank++] = 1 + static_cast<int64_t>(bytes.below(2));
      return shape;
    case 2:
      if (shape.rank > 0) --shape.rank;
      return shape;
    case 3:
      if (shape.rank > 0) shape.dims[bytes.below(shape.rank)] = static_cast<int64_t>(bytes.below(5));
      return shape;
    default:
      return Shape{};
  }
}

// Values

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kSpecials[] = {kNan,   kInfinity,  -kInfinity,     0.0f,          -0.0f,          1e-45f,
                               1e-40f, -1e-40f,    1.1754944e-38f, 3.4028235e38f, 2147483648.0f,  -2147483904.0f,
                               1e30f,  8388608.0f, -8388609.0f,    4194304.5f,    -3.4028235e38f, 16777216.0f};
constexpr float kScales[] = {1.0f,          0.1f,          0.0078125f,    0.0037f, 1.9999999f, 8.6736174e-19f,
                             8.673616e-19f, 1.1529215e18f, 1.1529216e18f, 4.0f,    -0.1f,      -1.0f};
constexpr int32_t kZeroPoints[] = {0,      1,      128,     -128,       255,       16384,     16385,
                                   -16384, -16385, 1 << 24, -(1 << 24), INT32_MIN, INT32_MAX, INT32_MAX - 127};

// Mostly halves of codes times the scale and their neighbors; sometimes special values or any bits.
float make_float(Bytes& bytes, float scale) {
  const uint8_t kind = bytes.byte();
  if (kind >= 0xf0) return bytes.of(kSpecials);
  if (kind >= 0xe0) return bytes.any<float>();
  float x = (static_cast<float>(bytes.any<int8_t>()) * (kind & 1 ? 1.0f : 2.5f) + (kind & 2 ? 0.5f : 0.0f)) * scale;
  if (kind & 4) x = std::nextafterf(x, kind & 8 ? kInfinity : -kInfinity);
  return x;
}

// A tensor that ends where its memory ends. `offset` bytes before it make its address unaligned.
struct Given {
  Type type = dynq::kNone;
  Shape shape;
  size_t offset = 0;
  std::vector<uint8_t> exact;  // without spare capacity

  void make_room(uint8_t value) {
    exact.assign(offset + static_cast<size_t>(shape.elements() * dynq::bits_of(type) + 7) / 8, value);
  }
  uint8_t* data() { return exact.data() + offset; }
  const uint8_t* data() const { return exact.data() + offset; }

  ort_dynq_tensor tensor() const {
    return {type, static_cast<int32_t>(shape.rank), shape.dims, exact.size() == offset ? nullptr : data()};
  }
};

template <class T, class Make>
void fill(Given& given, Make make) {
  const auto count = static_cast<size_t>(given.shape.elements());
  for (size_t i = 0; i < count; ++i) {
    const T value = make(i);
    std::memcpy(given.data() + i * sizeof value, &value, sizeof value);
  }
}

void fill_any(Bytes& bytes, Given& given, size_t index, bool special, float scale) {
  constexpr size_t kOffsets[] = {0, 0, 0, 1, 2, 4, 20, 63};
  given.offset = bytes.of(kOffsets);
  given.make_room(0);
  if (given.type == dynq::kFloat && index == 1) {
    fill<float>(given, [&](size_t) {
      const float value = special && bytes.one_in(4) ? make_float(bytes, 1e-4f) : bytes.of(kScales);
      return special ? value : std::fabs(value);
    });
  } else if (given.type == dynq::kFloat && index > 1) {
    fill<float>(given, [&](size_t) {
      return special && bytes.one_in(4) ? make_float(bytes, 1) : static_cast<float>(bytes.any<int8_t>());
    });
  } else if (given.type == dynq::kFloat) {
    fill<float>(given, [&](size_t) { return make_float(bytes, scale); });
  } else if (given.type == dynq::kInt32) {
    fill<int32_t>(given, [&](size_t) -> int32_t {
      if (special && bytes.one_in(4)) return bytes.one_in(2) ? bytes.any<int32_t>() : bytes.of(kZeroPoints);
      return bytes.any<int8_t>();
    });
  } else if (given.type == dynq::kInt16) {
    const int divisor = bytes.one_in(16) ? 1 << 15 : 1 << 11;  // of the words of WordMatMul, which has a range
    fill<int16_t>(given, [&](size_t) { return static_cast<int16_t>(bytes.any<int16_t>() % divisor); });
  } else {
    for (uint8_t& value : given.exact) value = bytes.byte();
  }
}

// Most ids of GatherDequantize are columns.
void fill_ids(Bytes& bytes, Given& given, int64_t columns) {
  const auto make = [&](size_t) {
    return bytes.one_in(256) ? columns : bytes.any<uint16_t>() % (2 * columns) - columns;
  };
  if (given.type == dynq::kInt64) fill<int64_t>(given, make);
  if (given.type == dynq::kInt32) fill<int32_t>(given, [&](size_t i) { return static_cast<int32_t>(make(i)); });
}

// A row's extreme is often a zero: the first one counts.
void fill_with_zeros(Bytes& bytes, Given& given) {
  const float others = bytes.one_in(2) ? 1.0f : -1.0f;
  fill<float>(given, [&](size_t) {
    const uint8_t kind = bytes.byte();
    return kind < 254 ? others : kind == 254 ? 0.0f : -0.0f;
  });
}

struct Problem {
  const Operator* op = nullptr;
  std::vector<ort_dynq_attribute> attributes;
  std::shared_ptr<const std::string> program;  // the text of an attribute
  std::vector<Given> inputs;
  size_t output_offset = 0;

  std::vector<ort_dynq_tensor> tensors() const {
    std::vector<ort_dynq_tensor> all;
    for (const Given& given : inputs) all.push_back(given.tensor());
    return all;
  }
};

Problem make_problem(Bytes& bytes) {
  Problem problem;
  problem.op = &dynq::operators()[bytes.below(dynq::operators().size())];
  const uint8_t flags = bytes.byte();
  const bool wrong_attributes = (flags & 7) == 7, wrong_shapes = (flags & 56) == 56,
             wrong_types = (flags & 0xc0) == 0xc0;
  const uint8_t more = bytes.byte();
  const bool special = (more & 1) != 0, is_large = (more & 0xf0) == 0xf0;
  problem.attributes = make_attributes(bytes, wrong_attributes);

  const auto& signature = bytes.of(problem.op->signatures);
  std::vector<Type> types = signature.inputs;
  if (types.size() > problem.op->required_inputs && bytes.one_in(4)) types.pop_back();
  if (wrong_types) {
    constexpr Type kTypes[] = {dynq::kNone,  dynq::kFloat,   dynq::kUint8, dynq::kInt8,
                               dynq::kInt32, dynq::kFloat16, dynq::kInt4,  static_cast<Type>(100)};
    if (bytes.one_in(4)) types.resize(bytes.below(6), dynq::kFloat);
    if (!types.empty()) types[bytes.below(types.size())] = bytes.of(kTypes);
  }
  const std::string name = problem.op->name;
  const float scale = bytes.of(kScales);
  Shape src = make_src_shape(bytes, is_large);
  const bool has_blocks = name == "TwoTermQuantize" || name == "RowProgram";
  if (has_blocks && !wrong_attributes) fit_blocks(problem.attributes, src);
  std::optional<Product> product;
  const bool has_words = name.rfind("WordMatMul", 0) == 0;
  const bool makes_codes = name.rfind("DynamicQuantizedMatMul", 0) == 0;
  if (has_words) problem.attributes.clear();
  if (makes_codes) erase(problem.attributes, "terms");
  if (has_words || makes_codes || name.rfind("QuantizedMatMul", 0) == 0)
    product.emplace(bytes, problem.attributes, src, is_large);
  std::optional<Convolution> conv;
  const bool is_word_conv = name.rfind("WordConv", 0) == 0;
  if (is_word_conv || name.rfind("QuantizedConv", 0) == 0)
    conv.emplace(bytes, problem.attributes, src, is_large, is_word_conv);
  std::optional<Attention> attention;
  if (name == "QuantizedAttention") attention.emplace(bytes, problem.attributes, src);
  std::optional<CompressedCache> cache;
  if (name == "CompressedAttention") cache.emplace(bytes, types, problem.attributes, src);
  std::optional<CompressedProduct> compressed;
  if (name == "CompressedMatMul") compressed.emplace(bytes, src);
  std::optional<Recurrence> recurrence;
  const bool is_word_recurrence = name == "WordRecurrence";
  if (is_word_recurrence || name == "QuantizedRecurrence")
    recurrence.emplace(bytes, problem.attributes, src, is_word_recurrence);
  std::optional<Mixture> mixture;
  if (name == "QuantizedExperts") mixture.emplace(bytes, problem.attributes, src);
  if (name == "Interleave" && src.rank >= 3 && !wrong_attributes) {
    static constexpr const char* kStrides[] = {"stride_1", "stride_2", "stride_3"};
    for (size_t i = 0; i < std::min<size_t>(3, src.rank - 2); ++i) {
      const auto stride = static_cast<int64_t>(1 + bytes.below(4));
      problem.attributes.push_back({kStrides[i], nullptr, stride});
      if (!bytes.one_in(16)) src.dims[1] *= stride;
    }
  }
  std::optional<Lookup> lookup;
  if (name == "GatherDequantize") lookup.emplace(bytes);
  std::optional<Gate> gate;
  if (name == "ChannelGate") gate.emplace(bytes, problem.attributes, src);
  const bool is_tail = product || conv;
  std::optional<ProgramText> program;
  if (name.find("Program") != std::string::npos) {
    program.emplace(bytes, is_tail ? 3 : 4, is_tail, wrong_attributes);
    const bool rounds = conv && types.size() > 7 && types[7] == dynq::kFloat16;  // takes one Clip only
    if (rounds && !bytes.one_in(8)) program->text = bytes.one_in(2) ? "dst = Clip(x, 0, inf)" : "dst = Clip(x, 0, 6)";
    problem.program = std::make_shared<const std::string>(program->text);
    if (!bytes.one_in(32)) problem.attributes.push_back({"program", problem.program->c_str(), 0});
    if (!is_tail && !wrong_attributes && !wrong_types) fit_row_program(problem.attributes, src, types);
  }
  const auto operand_shape = [&](size_t operand) {
    Shape dst = product ? product->result(src) : conv ? conv->result(src) : src;
    const int64_t block = find<int64_t>(problem.attributes, "block_size", 0, &ort_dynq_attribute::integer);
    if (!is_tail && block > 0 && dst.rank > 0 && dst.rank < dynq::kMaxRank) {
      dst.dims[dst.rank - 1] /= block;
      dst.dims[dst.rank++] = block;
    }
    const int64_t axis = find<int64_t>(problem.attributes, "axis", -1, &ort_dynq_attribute::integer);
    return program->shape_of(operand, dst, product ? -1 : conv ? 2 : axis);
  };
  const size_t first_operand = is_word_conv ? 5 : conv ? 9 : has_words ? 4 : makes_codes ? 6 : product ? 8 : 2;
  for (size_t i = 0; i < types.size(); ++i) {
    Given given;
    given.type = types[i];
    const Shape& scales = problem.inputs.empty() ? src : problem.inputs[std::min<size_t>(i, 2) - 1].shape;
    given.shape = i == 0                          ? src
                  : program && i >= first_operand ? operand_shape(i - first_operand)
                  : has_words                     ? product->shape_of_word_input(i, src)
                  : makes_codes                   ? product->shape_of_input(bytes, i + 2, src, scales)
                  : product                       ? product->shape_of_input(bytes, i, src, scales)
                  : conv                          ? conv->shape_of_input(bytes, i, src)
                  : attention                     ? attention->shape_of_input(bytes, i)
                  : cache                         ? cache->shape_of_input(bytes, types, i, src)
                  : compressed                    ? compressed->shape_of_input(bytes, i, src)
                  : recurrence                    ? recurrence->shape_of_input(bytes, i, src)
                  : mixture                       ? mixture->shape_of_input(bytes, i, src)
                  : gate                          ? gate->shape_of_input(i, src)
                  : lookup                        ? lookup->shape_of_input(bytes, i)
                  : program                       ? shape_of({1})
                                                  : shape_of_input(bytes, name, i, src, scales, problem.attributes);
    if (i == 1 && name.rfind("Dynamic", 0) == 0 && !product && bytes.one_in(4))
      add_group_shape(bytes, src, given.shape, problem.attributes);
    if (i > 0 && wrong_shapes && bytes.one_in(2)) given.shape = make_wrong_shape(bytes, given.shape);
    if (!is_small(given.shape)) given.shape = shape_of({1});
    if (given.type != dynq::kNone) fill_any(bytes, given, i, special, scale);
    if (program && !is_tail && i == 0 && given.type == dynq::kFloat && bytes.one_in(8)) fill_with_zeros(bytes, given);
    if (lookup && i == 0) fill_ids(bytes, given, lookup->columns);
    if (conv && given.type != dynq::kNone) conv->change(bytes, i, given.exact, given.offset);
    problem.inputs.push_back(std::move(given));
  }
  problem.output_offset = bytes.one_in(4) ? 1 + bytes.below(63) : 0;
  return problem;
}

// Running

struct Result {
  size_t output_offset = 0;
  std::string error;
  std::vector<Given> outputs;
  bool operator!=(const Result& other) const {
    if (error != other.error || outputs.size() != other.outputs.size()) return true;
    for (size_t i = 0; i < outputs.size(); ++i)
      if (outputs[i].type != other.outputs[i].type || !(outputs[i].shape == other.outputs[i].shape) ||
          outputs[i].exact != other.outputs[i].exact)
        return true;
    return false;
  }
};

constexpr int64_t kMaxOutputs = 1 << 24;  // geometry may ask for any size

void* allocate(void* user, int32_t index, int32_t type, const int64_t* dims, int32_t rank) {
  Result& result = *static_cast<Result*>(user);
  auto& outputs = result.outputs;
  Given given;
  given.type = static_cast<Type>(type);
  given.shape.rank = static_cast<size_t>(rank);
  std::copy_n(dims, rank, given.shape.dims);
  if (given.shape.elements() > kMaxOutputs) return nullptr;
  given.offset = result.output_offset;
  given.make_room(0xa5);
  const auto i = static_cast<size_t>(index);
  if (outputs.size() <= i) outputs.resize(i + 1);  // those that an operator leaves out are requested last
  if (outputs[i].type != dynq::kNone) fail("an output is requested twice");
  outputs[i] = std::move(given);
  return outputs[i].data();
}

// The result of an operation on two NaNs depends on the order of operands that the compiler chose.
template <class T, class IsNan>
void unify_nans(Given& given, const IsNan& is_nan, T nan) {
  for (size_t i = given.offset; i < given.exact.size(); i += sizeof nan) {
    T value;
    std::memcpy(&value, &given.exact[i], sizeof value);
    if (is_nan(value)) std::memcpy(&given.exact[i], &nan, sizeof nan);
  }
}

// DynamicDequantize keeps the sign of a NaN.
void unify_nans(const dynq::Operator& op, Given& given) {
  if (given.type == dynq::kFloat) unify_nans(given, [](float value) { return std::isnan(value); }, kNan);
  if (given.type == dynq::kFloat16 && std::strcmp(op.name, "DynamicDequantize") != 0)
    unify_nans(given, [](uint16_t half) { return (half & 0x7fff) > 0x7c00; }, uint16_t{0x7e00});
}

Result run(const Problem& problem) {
  Result result;
  result.outputs.reserve(8);
  result.output_offset = problem.output_offset;
  const std::vector<ort_dynq_tensor> tensors = problem.tensors();
  char error[512] = "";
  const int failed =
      ort_dynq_run(problem.op->name, problem.attributes.data(), static_cast<int32_t>(problem.attributes.size()),
                   tensors.data(), static_cast<int32_t>(tensors.size()), allocate, &result, error, sizeof error);
  if (failed) {
    if (*error == '\0') fail("an error without a message");
    if (!result.outputs.empty()) fail("an error after an output was requested: " + std::string(error));
    result.error = error;
  }
  for (Given& output : result.outputs) unify_nans(*problem.op, output);
  return result;
}

std::string describe(const Problem& problem) {
  std::string text = problem.op->name;
  for (const ort_dynq_attribute& given : problem.attributes)
    text += std::string(" ") + given.name + "=" + (given.text ? given.text : std::to_string(given.integer));
  for (const Given& given : problem.inputs)
    text += std::string(", ") + dynq::name_of(given.type) + " " + given.shape.text();
  return text;
}

[[noreturn]] void differ(const Problem& problem, const std::string& what, const Result& expected,
                         const Result& actual) {
  std::string text = describe(problem) + ": " + what + " differs";
  if (expected.error != actual.error) text += ": '" + actual.error + "', expected '" + expected.error + "'";
  for (size_t i = 0; i < std::min(expected.outputs.size(), actual.outputs.size()); ++i) {
    const auto &e = expected.outputs[i].exact, &a = actual.outputs[i].exact;
    for (size_t k = 0; k < std::min(e.size(), a.size()); ++k)
      if (e[k] != a[k]) {
        const auto size = static_cast<size_t>((dynq::bits_of(expected.outputs[i].type) + 7) / 8);
        const size_t at = (k - expected.outputs[i].offset) / size;
        text += ", output " + std::to_string(i) + ", element " + std::to_string(at);
        for (const uint8_t* from : {a.data(), e.data()}) {
          text += from == a.data() ? ": " : ", expected ";
          for (size_t b = size; b-- > 0;) {
            char hex[3];
            std::snprintf(hex, sizeof hex, "%02x", from[expected.outputs[i].offset + at * size + b]);
            text += hex;
          }
        }
        break;
      }
  }
  fail(text);
}

// Counts what has run. The driver without libFuzzer fails if a count is too low.
struct Statistics {
  size_t inputs = 0, errors = 0;
  std::map<std::string, size_t> runs;
  std::set<std::string> messages;
} statistics;

std::vector<const char*> isas() {
  std::vector<const char*> names;
  while (const char* name = ort_dynq_supported_isa(names.size())) names.push_back(name);
  return names;
}

void select(const char* isa) {
  if (ort_dynq_select_isa(isa, nullptr, 0)) fail(std::string("cannot select ") + isa);
}

// Of ort_dynq_select_winograd(), ort_dynq_select_strassen() and ort_dynq_select_conv_rows().
constexpr int32_t kAlways = 1, kNever = 2;

Result check(const Problem& problem) {
  static const std::vector<const char*> names = isas();
  select("portable");
  ort_dynq_select_winograd(kNever);
  ort_dynq_select_strassen(kNever);
  ort_dynq_select_conv_rows(kNever);
  Result expected = run(problem);
  const std::string op = problem.op->name;
  const bool has_algorithm = op.rfind("QuantizedConv", 0) == 0 || op.find("QuantizedMatMul") != std::string::npos;
  for (const char* name : names)
    for (const int32_t use : {kNever, kAlways}) {
      if (use == kAlways && !has_algorithm) continue;
      select(name);
      ort_dynq_select_winograd(use);
      ort_dynq_select_strassen(use);
      ort_dynq_select_conv_rows(use);
      const Result actual = run(problem);
      if (actual != expected) differ(problem, name, expected, actual);
    }
  ++statistics.inputs;
  if (expected.error.empty())
    ++statistics.runs[problem.op->name];
  else
    ++statistics.errors, statistics.messages.insert(expected.error);
  return expected;
}

}  // namespace

#ifndef ORT_DYNQ_NO_FUZZER

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes bytes(data, size);
  check(make_problem(bytes));
  return 0;
}

#else

namespace {

class ReadAttributes : public dynq::Attributes {
 public:
  explicit ReadAttributes(const std::vector<ort_dynq_attribute>& given) : given_(given) {}
  int64_t integer(const char* name, int64_t absent) const override {
    return find<int64_t>(given_, name, absent, &ort_dynq_attribute::integer);
  }
  std::string text(const char* name, const char* absent) const override {
    return find<const char*>(given_, name, absent, &ort_dynq_attribute::text);
  }
  std::vector<int64_t> integers(const char* name) const override {
    std::vector<int64_t> values;
    for (const ort_dynq_attribute& each : given_)
      if (std::strcmp(each.name, name) == 0) values.push_back(each.integer);
    return values;
  }

 private:
  const std::vector<ort_dynq_attribute>& given_;
};

// One caller of a node, with threads for parallel_for.
class Threads : public dynq::Context {
 public:
  Threads(const Problem& problem, const Result& expected, size_t threads)
      : problem_(problem), expected_(expected), threads_(threads) {}

  dynq::Tensor input(size_t index) override {
    if (index >= problem_.inputs.size()) return {};
    const Given& given = problem_.inputs[index];
    return {given.type, given.shape, given.data()};
  }

  void* output(size_t index, const Shape& shape) override {
    const Given& as = expected_.outputs.at(index);
    if (!(shape == as.shape)) fail("an output has another shape");
    return allocate(&result, static_cast<int32_t>(index), as.type, shape.dims, static_cast<int32_t>(shape.rank));
  }

  // As ort_dynq_run: outputs that the operator has left out become empty.
  void make_the_rest() {
    for (size_t i = 0; i < expected_.outputs.size(); ++i)
      if (i >= result.outputs.size() || result.outputs[i].type == dynq::kNone) output(i, {1, {0}});
  }

  void parallel_for(size_t count, void (*task)(void*, size_t), void* data) override {
    ++used;
    std::atomic<size_t> next{0};
    const auto work = [&] {
      for (size_t i = next++; i < count; i = next++) task(data, i);
    };
    std::vector<std::thread> others;
    for (size_t i = 1; i < std::min(threads_, count); ++i) others.emplace_back(work);
    work();
    for (std::thread& other : others) other.join();
  }

  Result result;
  size_t used = 0;

 private:
  const Problem& problem_;
  const Result& expected_;
  size_t threads_;
};

// Runs one node from several callers at once. Returns how many loops ran in parallel.
size_t check_threads(const Problem& problem, const Result& expected) {
  const ReadAttributes attributes(problem.attributes);
  const auto node = problem.op->create(attributes);
  std::vector<Threads> callers(3, Threads(problem, expected, 3));
  std::vector<std::thread> threads;
  for (Threads& caller : callers) {
    caller.result.outputs.reserve(8);
    caller.result.output_offset = problem.output_offset;
    threads.emplace_back([&] { node->compute(caller); });
  }
  for (std::thread& thread : threads) thread.join();
  size_t used = 0;
  for (Threads& caller : callers) {
    caller.make_the_rest();
    for (Given& output : caller.result.outputs) unify_nans(*problem.op, output);
    if (caller.result != expected) differ(problem, "a thread", expected, caller.result);
    used += caller.used;
  }
  return used;
}

}  // namespace

int main(int count, char** arguments) {
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  const double limit = count > 1 ? std::atof(arguments[1]) : 10;
  size_t parallel_loops = 0;
  const auto try_one = [&](const std::vector<uint8_t>& input) {
    Bytes bytes(input.data(), input.size());
    const Problem problem = make_problem(bytes);
    const Result expected = check(problem);
    if (expected.error.empty()) parallel_loops += check_threads(problem, expected);
  };
  if (count > 2)
    for (const auto& entry : std::filesystem::directory_iterator(arguments[2])) {
      std::ifstream file(entry.path(), std::ios::binary);
      try_one({std::istreambuf_iterator<char>(file), {}});
    }
  const size_t corpus = statistics.inputs;
  Random random = {1};
  const auto ran_enough = [] {
    return std::all_of(dynq::operators().begin(), dynq::operators().end(),
                       [](const Operator& op) { return statistics.runs[op.name] >= 10; });
  };
  while (seconds() < limit || (!ran_enough() && seconds() < 10 * limit)) {  // a busy machine runs fewer inputs
    std::vector<uint8_t> input(64 + random.next() % 512);
    for (uint8_t& value : input) value = static_cast<uint8_t>(random.next());
    if (random.next() % 2 == 0) input[1] = 0, input[2] |= 0xf0;  // valid and large, so that work is split into tasks
    try_one(input);
  }
  std::printf("%zu inputs, %zu of them from the corpus, %zu with an error, %zu parallel loops\n", statistics.inputs,
              corpus, statistics.errors, parallel_loops);
  for (const Operator& op : dynq::operators()) std::printf("%7zu %s\n", statistics.runs[op.name], op.name);
  for (const Operator& op : dynq::operators())
    if (statistics.runs[op.name] < 10) fail(std::string(op.name) + " ran fewer than 10 times");
  if (parallel_loops < 10) fail("fewer than 10 loops ran in parallel");
}

#endif
