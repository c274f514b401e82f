// What matrix products need of an instruction set: the members of P, and the sizes of a tile that follow from them.

// The members of P. Nothing uses this struct, but the compiler checks that every member exists with its type.
struct ProductMembers {
  using F = P::F;  // kLanes floats
  using I = P::I;  // kLanes int32, or quads of bytes
  using Quad = P::Quad;
  using Mask = P::Mask;
  static constexpr int64_t kLanes = P::kLanes;
  // The blocks of 16 columns of a tile, with one group of k and with several: kMaxRows rows of sums fit the registers.
  // Up to kFewRows rows take two blocks.
  static constexpr int kBlocks = P::kBlocks, kGroupBlocks = P::kGroupBlocks;
  static constexpr int kSplit = P::kSplit;                // independent sums for up to kFewRows rows
  static constexpr int64_t kBytesAhead = P::kBytesAhead;  // of prefetched weights for up to kFewRows rows, or 0
  static constexpr int kSteps = P::kSteps;                // calls of dot for the products of a quad: 1 or 2
  // dot takes weights + 128, and dot4 takes 4-bit weights with their zero points: the sums are too large by the sum of
  // the codes (sum_codes) times 128 or the zero point.
  static constexpr bool kUnsignedWeights = P::kUnsignedWeights;

  F (*set1_float)(float) = P::set1;
  I (*set1_int)(int32_t) = P::set1;
  F (*load_floats)(const float*) = P::load;
  I (*load_quads)(const void*) = P::load;
  void (*store)(float*, F) = P::store;
  Mask (*first)(int64_t n) = P::first;  // the first n lanes, for any n
  F (*load_first_floats)(const float*, Mask) = P::load_part;
  I (*load_first_ints)(const int32_t*, Mask) = P::load_part;
  void (*store_first)(float*, F, Mask) = P::store_part;
  I (*load_zps)(const int8_t*, int64_t n) = P::load_zps;  // the first n

  F (*add)(F, F) = P::add;
  F (*mul)(F, F) = P::mul;
  F (*fnmadd)(F a, F b, F c) = P::fnmadd;  // c - a * b, rounded once
  I (*add_ints)(I, I) = P::add;
  I (*sub_ints)(I, I) = P::sub;
  I (*mul_ints)(I, I) = P::mul;
  F (*to_float)(I) = P::to_float;

  Quad (*quad)(const uint8_t* codes) = P::quad;  // for all lanes
  I (*weights_of)(I) = P::weights_of<0>;         // as dot takes them in a step
  I (*dot)(I sums, Quad codes, I weights) = P::dot;
  // 4-bit weights of two quads, minus their zero points.
  I (*zps4)(I) = P::zps4;
  I (*low_nibbles)(I) = P::low_nibbles;  // the low 4 bits of int32
  void (*halves)(const int8_t* weights, I zps4, I& low, I& high) = P::halves;
  I (*dot4)(I sums, Quad codes0, Quad codes1, I low, I high) = P::dot4;
  void (*quarters)(const int8_t* weights, I (&quads)[4]) = P::quarters;  // 2-bit weights of four quads
  F (*load_f16)(const uint8_t*) = P::load_f16;
  // If kSteps is 2, also widen (twice), widen_steps, pairs, sum_pairs, words, add16, sub16, sum_words, same_bytes
  // and either_bits; and sum_codes if kUnsignedWeights.
};

constexpr int64_t kMaxRows = 6, kManyRows = 4, kFewRows = 2;
constexpr int kVectors = kBlockColumns / P::kLanes;  // of a block
constexpr bool kIsBlock =
    kVectors == 1 && P::kSteps == 1 && !P::kUnsignedWeights;  // then one vector has the sums of a block
static_assert(!kIsBlock || P::kGroupBlocks == 2, "gemm_whole() takes two blocks");
constexpr int64_t kLine = 64, kBlockBytes = kBlockColumns * kQuad;  // a quad of 8-bit weights, two of 4-bit weights
