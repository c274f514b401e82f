// Compares every kernel of attention over codes that this machine can run (kernels/compressed.h) with the portable one,
// bit for bit, and products of words also with their exact integers. Prints how many problems each of them computed.
//
//   compressed_check [PROBLEMS]   the number of random problems of each kernel: 200 unless given
//
// Arrays end directly before a protected page or begin directly after one.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "check.h"
#include "kernels/dispatch.h"
#include "random.h"
#ifdef ORT_DYNQ_AMX_EMULATED
#include "tile_emulator.h"
#endif

namespace {

using dynq::CompressedKernels;
using Bits = std::vector<uint32_t>;  // of results

constexpr int64_t kLargestWord = static_cast<int64_t>(dynq::kLargestWord);
constexpr int64_t kPanelRows = 16;  // a multiple of those of every kernel
constexpr int64_t kDepths[] = {1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 128, 129, 250, 254, 255, 256};

Random source{1};
std::map<std::string, int> problems;

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// run(kernels) returns the results as bits.
template <class Run>
void compare(const std::string& kernel, const std::string& problem, const Run& run) {
  const Bits expected = run(dynq::kPortableCompressed);
  for (size_t i = 0; const char* name = dynq::supported_isa(i); ++i) {
    dynq::select_isa(name);
    if (run(*dynq::active_isa().compressed) != expected) fail(name + (" " + kernel) + ", " + problem);
    ++problems[name + (" " + kernel)];
  }
}

template <class T>
T* place(const std::vector<T>& values, size_t number) {
  static Arena arenas[5];
  return arenas[number].place(values, source.one_in(2), 0);
}

Bits bits_of_floats(const float* values, int64_t count) {
  Bits bits;
  for (int64_t i = 0; i < count; ++i) bits.push_back(bits_of(dynq::load(values + i)));
  return bits;
}

// Numbers of one kind: ordinary ones, special ones, tiny ones, any bits, and so on.
constexpr int kOrdinary = 0, kNumberKinds = 9;
float number(int kind) {
  const auto of_bits = [](uint64_t bits) {
    const auto low = static_cast<uint32_t>(bits);
    float value;
    std::memcpy(&value, &low, sizeof value);
    return value;
  };
  switch (kind) {
    case kOrdinary:
      return static_cast<float>(source.integer(-1000000, 1000000)) * 1e-6f;
    case 1:
      return source.of(kSpecials);
    case 2:
      return source.of(kScales);
    case 3:
      return of_bits(source.next());
    case 4:
      return of_bits(source.next() & 0x80ffffffu);  // below 2^-124
    case 5:
      return static_cast<float>(source.integer(-100, 100)) * 1e-45f;
    case 6:
      return source.one_in(2) ? 0.0f : -0.0f;
    case 7:
      return source.one_in(2) ? 3.4028235e38f : -3.4028235e38f;
    default:
      return static_cast<float>(source.integer(-5, 5));
  }
}

int number_kind() { return source.one_in(2) ? kOrdinary : static_cast<int>(source.integer(0, kNumberKinds - 1)); }

std::vector<float> numbers(int64_t count, int kind) {
  const bool are_few = source.one_in(3);  // among ordinary ones
  std::vector<float> result;
  for (int64_t i = 0; i < count; ++i) result.push_back(number(are_few && !source.one_in(20) ? kOrdinary : kind));
  return result;
}

int16_t word(bool is_extreme, int64_t low = -kLargestWord, int64_t high = kLargestWord) {
  return static_cast<int16_t>(!is_extreme ? source.integer(low, high) : source.one_in(2) ? high : low);
}

// Rows of `stride` words, of which `depth` are multiplied; the last row ends after `last` words. Words of a row beyond
// its depth are 0 up to `padded`.
std::vector<int16_t> rows_of_words(int64_t rows, int64_t depth, int64_t padded, int64_t stride, int64_t last,
                                   bool is_split, bool is_extreme) {
  std::vector<int16_t> words;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t d = 0; d < (r < rows - 1 ? stride : last); ++d)
      words.push_back(d >= depth   ? (d < padded ? int16_t{0} : word(false))
                      : !is_split  ? word(is_extreme)
                      : r % 2 == 0 ? word(is_extreme, -127, 127)
                      : words[words.size() - static_cast<size_t>(stride)] == 127
                          ? int16_t{0}  // kLargestWord is split
                          : word(is_extreme, 0, dynq::kHighByte - 1));
  return words;
}

std::vector<uint8_t> codes_of_kind(int kind, int64_t count, bool is_extreme) {
  std::vector<uint8_t> codes;
  for (int64_t i = 0; i < count && kind == dynq::kWords; ++i) {
    const auto bits = static_cast<uint16_t>(word(is_extreme));
    codes.push_back(static_cast<uint8_t>(bits & 255));
    codes.push_back(static_cast<uint8_t>(bits >> 8));
  }
  const uint8_t lowest = kind == dynq::kS8 ? 128 : 0, highest = kind == dynq::kS8 ? 127 : 255;
  const int64_t bytes = kind == dynq::kHalves ? (count + 1) / 2 : count;
  for (int64_t i = 0; i < bytes && kind != dynq::kWords; ++i)
    codes.push_back(!is_extreme ? static_cast<uint8_t>(source.next()) : source.one_in(2) ? highest : lowest);
  return codes;
}

int64_t code_at(int kind, const std::vector<uint8_t>& codes, int64_t index, uint8_t flipped) {
  const auto byte = [&](int64_t i) { return codes[static_cast<size_t>(i)]; };
  if (kind == dynq::kHalves) return (byte(index / 2) ^ flipped) >> index % 2 * 4 & 15;
  if (kind == dynq::kWords) return static_cast<int16_t>(byte(2 * index) | byte(2 * index + 1) << 8);
  return kind == dynq::kS8 ? static_cast<int8_t>(byte(index)) : byte(index);
}

void check_product() {
  const int kind = static_cast<int>(source.integer(0, dynq::kFactorKinds - 1));
  const bool is_by_row = source.one_in(2), is_extreme = source.one_in(3);
  int64_t rows = source.integer(1, source.one_in(4) ? 20 : 4), cols = source.integer(1, source.one_in(5) ? 200 : 70);
  int64_t depth = source.one_in(3) ? source.of(kDepths) : source.integer(1, dynq::kMaxProducts);
  // Several groups of a few bytes are in one vector.
  const int64_t groups = is_by_row || source.one_in(2) ? 1 : source.integer(1, 9);
  if (groups > 1 && source.one_in(2)) depth = int64_t{16} << source.integer(0, 2);
  if (kind == dynq::kHalves && !is_by_row) depth = round_up(depth, 2);
  const bool fills_quads = kind == dynq::kHalves && is_by_row && source.one_in(2);  // see half_bytes_by_row
  if (fills_quads) {
    rows = 1;
    cols = (int64_t{64} << source.integer(0, 3)) + (source.one_in(2) ? source.integer(1, 3) : 0);
  }
  const int64_t padded = round_up(depth, dynq::kWordUnit),
                word_stride = padded + dynq::kWordUnit * source.integer(0, 2);
  const std::vector<int16_t> words = rows_of_words(groups * rows, depth, is_by_row ? depth : padded, word_stride,
                                                   is_by_row ? depth : padded, kind == dynq::kWords, is_extreme);
  const int64_t length = is_by_row ? cols : groups * depth, count = is_by_row ? depth : cols;
  int64_t code_stride = length + source.integer(0, 3) * source.integer(0, 20);
  if (kind == dynq::kHalves && (!is_by_row || (fills_quads && source.one_in(2))))
    code_stride = round_up(code_stride, 2);
  const std::vector<uint8_t> codes = codes_of_kind(kind, (count - 1) * code_stride + length, is_extreme);
  dynq::WordProduct product = {};
  product.words = place(words, 0);
  product.word_stride = word_stride;
  product.rows = rows;
  product.depth = depth;
  product.cols = cols;
  product.codes = place(codes, 1);
  product.code_stride = code_stride;
  product.flipped = kind == dynq::kHalves && source.one_in(2) ? 0x88 : 0;
  product.sum_stride = cols + source.integer(0, 5);
  product.groups = groups;
  product.group_words = rows * word_stride;
  product.group_sums = rows * product.sum_stride;
  const std::vector<int32_t> untouched(static_cast<size_t>((groups * rows - 1) * product.sum_stride + cols),
                                       0x5a5a5a5a);
  const auto run = [&](const CompressedKernels& kernels) {
    product.sums = place(untouched, 2);
    (is_by_row ? kernels.by_row : kernels.by_column)[kind](product);
    return Bits(product.sums, product.sums + untouched.size());
  };
  const std::string name = is_by_row ? "by_row" : "by_column";
  const std::string problem = "kind " + std::to_string(kind) + ", " + std::to_string(rows) + "x" +
                              std::to_string(depth) + "x" + std::to_string(cols) + ", " + std::to_string(groups) +
                              " groups, stride " + std::to_string(code_stride);
  const Bits sums = run(dynq::kPortableCompressed);
  for (int64_t r = 0; r < groups * rows; ++r)
    for (int64_t c = 0; c < cols; ++c) {
      int64_t exact = 0;
      for (int64_t d = 0; d < depth; ++d) {
        const int64_t at = is_by_row ? d * code_stride + c : c * code_stride + r / rows * depth + d;
        exact += code_at(kind, codes, at, product.flipped) * words[static_cast<size_t>(r * word_stride + d)];
      }
      if (static_cast<int32_t>(sums[static_cast<size_t>(r * product.sum_stride + c)]) != exact)
        fail("portable " + name + ", " + problem);
    }
  compare(name + " of kind " + std::to_string(kind), problem, run);
}

void check_quantization() {
  const int64_t rows = source.integer(1, source.one_in(3) ? 40 : 3),
                count = source.integer(0, source.one_in(4) ? 300 : 70);
  const int64_t stride = count + source.integer(0, 3), word_stride = count + source.integer(0, 3);
  const std::vector<float> ordinary = numbers(rows * count, kOrdinary), others = numbers(rows * count, number_kind());
  std::vector<float> x;
  for (int64_t r = 0; r < rows; ++r) {
    const bool is_ordinary = source.one_in(2);
    for (int64_t i = 0; i < (r + 1 < rows ? stride : count); ++i)
      x.push_back(i < count ? (is_ordinary ? ordinary : others)[static_cast<size_t>(r * count + i)] : dynq::kNan);
  }
  dynq::WordRows block = {};
  block.x = place(x, 0);
  block.stride = stride;
  block.factors = source.one_in(2) ? nullptr : place(numbers(count, number_kind()), 1);
  block.rows = rows;
  block.count = count;
  block.word_stride = word_stride;
  if (source.one_in(3)) block.largest_word = 4095;  // of WordMatMul
  const std::vector<int16_t> before(static_cast<size_t>((rows - 1) * word_stride + count), 0x5a5a);
  std::vector<float> steps(static_cast<size_t>(rows), 1.0f);
  if (source.one_in(3)) {  // those of rows that have larger elements elsewhere, or NaN
    block.words = place(std::vector<int16_t>(static_cast<size_t>((rows - 1) * word_stride + count), 0x5a5a), 2);
    block.steps = place(steps, 3);
    dynq::kPortableCompressed.quantize_words(block);
    for (int64_t r = 0; r < rows; ++r)
      steps[static_cast<size_t>(r)] = source.one_in(8) ? dynq::kNan : block.steps[r] * (source.one_in(2) ? 1.0f : 3.7f);
    block.has_steps = true;
  }
  const std::string problem = std::to_string(rows) + "x" + std::to_string(count) + " numbers";
  compare("quantize_words", problem, [&](const CompressedKernels& kernels) {
    block.words = place(before, 2);
    block.steps = place(steps, 3);
    kernels.quantize_words(block);
    Bits bits = bits_of_floats(block.steps, rows);
    for (size_t i = 0; i < before.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      if (at % word_stride < count && std::abs(int{block.words[i]}) > block.largest_word)
        fail("quantize_words: a word is too large");
      bits.push_back(static_cast<uint32_t>(block.words[i]));
    }
    return bits;
  });
}

void check_scores() {
  const int64_t count = source.integer(1, source.one_in(4) ? 300 : 70);
  const bool is_split = source.one_in(3);
  const int kind = static_cast<int>(source.integer(0, 1)), numbers_of = number_kind();
  const auto integers = [&](int64_t most) {
    std::vector<int32_t> result;
    for (int64_t i = 0; i < count; ++i) result.push_back(static_cast<int32_t>(source.integer(-most, most)));
    return result;
  };
  dynq::ScoreBlock block = {};
  block.sums = place(integers(1000000000), 0);
  if (is_split) block.low_sums = place(integers(INT32_MAX), 1);
  block.offset = static_cast<int32_t>(source.integer(-60000000, 60000000));
  if (!is_split && source.one_in(2)) block.zero_points = place(codes_of_kind(dynq::kU8, count, false), 2);
  block.word_sum = static_cast<int32_t>(source.integer(-4000000, 4000000));
  block.step = number(numbers_of);
  if (source.one_in(2)) block.scales = place(numbers(count, numbers_of), 3);
  block.count = count;
  block.adds = source.one_in(2);
  const std::vector<float> before = numbers(count, numbers_of);
  compare("scores", std::to_string(count) + " sums", [&](const CompressedKernels& kernels) {
    block.scores = place(before, 4);
    kernels.scores[kind](block);
    return bits_of_floats(block.scores, count);
  });
}

void check_powers() {
  const int64_t count = source.integer(1, source.one_in(10) ? 5000 : source.one_in(3) ? 300 : 40);
  std::vector<float> scores = numbers(count, number_kind());
  const float size = source.one_in(2) ? 1.0f : static_cast<float>(source.integer(1, 1000));
  for (float& score : scores) score *= size;
  dynq::PowerRow row = {};
  row.count = count;
  row.factor = number(number_kind());
  row.bias_is_vector = source.one_in(2);
  std::vector<float> bias = numbers(row.bias_is_vector ? count : 1, number_kind());
  const bool hides_all = source.one_in(6);
  for (float& value : bias)
    if (row.bias_is_vector && (hides_all || source.one_in(4))) value = -kInfinity;
  if (!row.bias_is_vector && source.one_in(2)) bias[0] = number(6);
  if (source.one_in(2)) row.bias = place(bias, 1);
  compare("powers", std::to_string(count) + " scores", [&](const CompressedKernels& kernels) {
    row.scores = place(scores, 0);
    const float result = kernels.powers(row);
    if (std::isnan(result)) return Bits{bits_of(result)};  // so is what is multiplied by it
    Bits bits = bits_of_floats(row.scores, count);
    bits.push_back(bits_of(result));
    return bits;
  });
}

// Elements of WordConv's panels, and of its weights.
constexpr int kLargestPatch = 4095, kLargestFilter = 2047;

int16_t narrowed(int16_t word, int largest, bool is_extreme) {
  const int narrow = !is_extreme ? word % (largest + 1) : word < 0 ? -largest : word > 0 ? largest : 0;
  return static_cast<int16_t>(narrow);
}

void narrow(std::vector<uint8_t>& words, int largest, bool is_extreme) {
  for (size_t i = 0; i + 1 < words.size(); i += sizeof(int16_t)) {
    int16_t word;
    std::memcpy(&word, &words[i], sizeof word);
    word = narrowed(word, largest, is_extreme);
    std::memcpy(&words[i], &word, sizeof word);
  }
}

void check_panels() {
  const int kind = static_cast<int>(source.integer(0, dynq::kHalves - 1));
  const bool is_split = kind == dynq::kWords && source.one_in(2);
  const int per_row = is_split ? 2 : 1, code_bytes = kind == dynq::kWords ? 2 : 1;
  const bool is_extreme = source.one_in(3), is_of_rows = source.one_in(2);
  const bool is_narrow = kind != dynq::kWords && source.one_in(3);  // codes are of 4 bits
  const int64_t rows = source.integer(1, source.one_in(4) ? 50 : 15),
                cols = source.integer(1, source.one_in(3) ? 100 : 40), depth = source.integer(1, dynq::kMaxProducts),
                padded = round_up(depth, 2);
  // A product is of some rows of a panel: as many are before and behind.
  const int64_t before_rows = source.one_in(2) ? 0 : kPanelRows * source.integer(1, 5),
                all_rows = before_rows + depth + (source.one_in(2) ? 0 : source.integer(1, 40));
  const auto codes_of = [&](int64_t count) {
    std::vector<uint8_t> codes = codes_of_kind(kind, count, is_extreme);
    if (is_narrow)
      for (uint8_t& code : codes) code = static_cast<uint8_t>(code % 16 - (kind == dynq::kS8 ? 8 : 0));
    if (kind == dynq::kWords && !is_split) narrow(codes, kLargestPatch, is_extreme);
    return codes;
  };
  dynq::PanelPack pack = {};
  pack.code_stride = cols + source.integer(0, 9);
  const int64_t groups = source.one_in(2) ? 1 : source.integer(1, 4);  // the codes of each begin in another row
  pack.codes = place(codes_of((groups + all_rows - 2) * pack.code_stride + cols), 0);
  pack.depth = all_rows;
  pack.cols = cols;
  if (kind != dynq::kWords && source.one_in(2)) pack.zero_points = place(codes_of(is_of_rows ? all_rows : cols), 1);
  pack.of_row = is_of_rows ? 1 : 0;
  pack.of_column = is_of_rows ? 0 : 1;
  const int64_t word_stride = padded + source.integer(0, 9);
  std::vector<int16_t> words;  // those of each group end with the last row's padding
  for (int64_t group = 0; group < groups; ++group) {
    const std::vector<int16_t> of_group =
        rows_of_words(rows * per_row, depth, padded, word_stride, padded, is_split, is_extreme);
    words.insert(words.end(), of_group.begin(), of_group.end());
  }
  if (kind == dynq::kWords && !is_split)
    for (int16_t& word : words) word = narrowed(word, kLargestFilter, is_extreme);
  const int numbers_of = number_kind();
  const std::vector<float> steps = numbers(groups * rows, kOrdinary), scales = numbers(groups * cols, numbers_of);
  dynq::PanelScores block = {};
  block.product.word_stride = word_stride;
  block.product.rows = rows * per_row;
  block.product.depth = depth;
  block.product.cols = cols;
  block.groups = groups;
  block.group_words = static_cast<int64_t>(words.size()) / groups;
  block.group_steps = rows;
  block.group_scales = cols;
  block.is_split = is_split;
  block.product.is_stored = !is_split && source.one_in(3);  // panels of the portable kernels
  pack.fits_int8 = block.product.fits_int8 = is_narrow || (kind == dynq::kS8 && pack.zero_points == nullptr);
  // Kernels on tiles do not have them, but for stored panels they call others.
  std::vector<int32_t> highs(static_cast<size_t>(cols));
  for (int32_t& high : highs) high = static_cast<int32_t>(source.integer(-(1 << 23), 1 << 23));
  std::vector<int32_t> bases(static_cast<size_t>(cols));
  for (int32_t& base : bases) base = static_cast<int32_t>(source.integer(-(1 << 30), 1 << 30));
  if (block.product.is_stored && groups == 1 && source.one_in(2))
    source.one_in(2) ? block.highs = highs.data() : block.bases = bases.data();
  block.steps = steps.data();
  block.scales = source.one_in(2) ? nullptr : scales.data();
  block.scales_first = source.one_in(2);
  block.adds = source.one_in(2);
  block.score_stride = cols + source.integer(0, 5);
  const std::vector<float> before = numbers((rows - 1) * block.score_stride + cols, kOrdinary);
  const std::string problem = "kind " + std::to_string(kind) + (is_split ? " split, " : ", ") + std::to_string(rows) +
                              "x" + std::to_string(depth) + "x" + std::to_string(cols) + ", " + std::to_string(groups) +
                              " groups";
  compare("pack and panel_scores", problem, [&](const CompressedKernels& kernels) {
    const CompressedKernels& packing = block.product.is_stored ? dynq::kPortableCompressed : kernels;
    const int64_t columns = packing.panel_columns;
    pack.panel_stride = block.product.panel_stride = round_up(all_rows, packing.panel_rows) * columns;
    const int64_t size = round_up(cols, columns) / columns * pack.panel_stride;
    int16_t* const panels = place(std::vector<int16_t>(static_cast<size_t>(groups * size), 0x5a5a), 2);
    for (int64_t group = 0; group < groups; ++group) {
      dynq::PanelPack of_group = pack;
      of_group.codes = static_cast<const uint8_t*>(pack.codes) + group * pack.code_stride * code_bytes;
      of_group.panels = panels + group * size;
      packing.pack[kind](of_group);
    }
    block.product.panels = panels + before_rows * columns;
    block.group_panels = size;
    block.product.words = place(words, 3);
    block.scores = place(before, 4);
    kernels.panel_scores(block);
    return bits_of_floats(block.scores, static_cast<int64_t>(before.size()));
  });
}

// Weights of matrix products become panels.
void check_weights() {
  dynq::WeightPack pack = {};
  pack.bits = source.one_in(2) ? 4 : 8;
  pack.groups = source.integer(1, 3);
  pack.group_size = 16 * source.integer(1, 8);
  pack.cols = source.integer(1, dynq::kMaxPanelColumns);
  const int64_t depth = pack.groups * pack.group_size, blocks = round_up(pack.cols, 16) / 16;
  pack.stride = 16 * depth * pack.bits / 8;
  pack.zps_stride = pack.cols + source.integer(0, 9);
  const auto bytes = [&](int64_t count, int which) {
    return reinterpret_cast<const int8_t*>(place(codes_of_kind(dynq::kU8, count, source.one_in(2)), which));
  };
  pack.packed = bytes(blocks * pack.stride, 0);
  if (source.one_in(2)) pack.zps = bytes((pack.groups - 1) * pack.zps_stride + pack.cols, 1);
  pack.zp = static_cast<int32_t>(source.integer(-128, 127));
  const std::string problem = std::to_string(pack.bits) + " bits, " + std::to_string(pack.groups) + " groups of " +
                              std::to_string(pack.group_size) + ", " + std::to_string(pack.cols) + " columns";
  compare("pack_weights", problem, [&](const CompressedKernels& kernels) {
    constexpr int64_t kColumns = dynq::kMaxPanelColumns;
    pack.panel = place(std::vector<int16_t>(static_cast<size_t>(depth * kColumns), 0x5a5a), 2);
    kernels.pack_weights(pack);
    Bits words;
    for (int64_t pair = 0; pair < depth / 2; ++pair)
      for (int64_t i = 0; i < 2 * pack.cols; ++i)
        words.push_back(static_cast<uint16_t>(pack.panel[pair * 2 * kColumns + i]));
    return words;
  });
}

}  // namespace

int main(int count, char** arguments) {
#ifdef ORT_DYNQ_AMX_EMULATED
  tile_emulator::install();
#endif
  for (int left = count > 1 ? std::atoi(arguments[1]) : 200; left > 0; --left) {
    check_product();
    check_quantization();
    check_scores();
    check_powers();
    check_panels();
    check_weights();
  }
  for (const auto& [name, number_of] : problems) std::printf("%s %d\n", name.c_str(), number_of);
}
